/* Autograd's graph, read where it lies (nodes.c). */
#ifndef SMELT_NODES_H
#define SMELT_NODES_H

#include <Python.h>

PyObject *set_node_layout(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *walk_graph(PyObject *module, PyObject *roots);
PyObject *node_hooks(PyObject *module, PyObject *address);
PyObject *release_nodes(PyObject *module, PyObject *addresses);

#endif
