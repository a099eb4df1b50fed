/* Reads autograd's graph from PyTorch's memory (autograd/graph_read.c). */
#ifndef SMELT_NODES_H
#define SMELT_NODES_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

PyObject *set_node_layout(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *set_node_stream(PyObject *module, PyObject *offset);
PyObject *read_graph(PyObject *module, PyObject *args);
PyObject *outline_graph(PyObject *module, PyObject *args);
int nodes_init(void); /* 0, or -1 with an exception */
PyObject *leaf_hooks(PyObject *module, PyObject *leaf);
PyObject *node_hooks(PyObject *module, PyObject *address);
PyObject *release_nodes(PyObject *module, PyObject *addresses);
PyObject *accumulate_grads(PyObject *module, PyObject *args); /* autograd/accumulate_grad.c */
int accumulate_grad_init(void);

/* Where a leaf's record has the address of the node that accumulates its gradient; -1: it has not. */
Py_ssize_t accumulator_place(PyObject *leaf, uint64_t address);

/* Whether a leaf has this node there, and no hooks. */
bool leaf_is_plain(PyObject *leaf, Py_ssize_t place, uint64_t address);

#endif
