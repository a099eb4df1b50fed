/* Reads autograd's graph from PyTorch's memory (autograd/graph_read.c). */
#ifndef SMELT_NODES_H
#define SMELT_NODES_H

#include <Python.h>

PyObject *set_node_layout(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *set_node_stream(PyObject *module, PyObject *offset);
PyObject *read_graph(PyObject *module, PyObject *args);
int nodes_init(void); /* 0, or -1 with an exception */
PyObject *leaf_hooks(PyObject *module, PyObject *leaf);
PyObject *node_hooks(PyObject *module, PyObject *address);
PyObject *release_nodes(PyObject *module, PyObject *addresses);
PyObject *accumulate_grads(PyObject *module, PyObject *args); /* autograd/accumulate_grad.c */
int accumulate_grad_init(void);

#endif
