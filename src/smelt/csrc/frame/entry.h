/* Entry: one compiled version of a frame. */
#ifndef SMELT_ENTRY_H
#define SMELT_ENTRY_H

#include <Python.h>
#include "guards/guards.h"

/* What is left to do around a graph, so that most calls get by without a Python function for it. */
typedef struct {
    PyObject *result; /* an int: which of the graph's outputs; else a callable that makes it of them all */
    Py_ssize_t which; /* the int */
    PyObject *failed; /* failed(error, *collected) yields the result if the graph raises an Exception */
    PyObject *restore; /* None, or restore() puts back what a graph may have left changed when it raises */
    Py_ssize_t count;
    Py_ssize_t arguments[]; /* the graph's, among the collected */
} Around;

typedef struct {
    PyObject_HEAD
    Guards *guards; /* NULL, like run, only once the collector has cleared the entry */
    PyObject *run;
    Around *around; /* NULL: run takes all that is collected, and yields the result */
    long long hits;
    bool is_covered; /* see autograd/forward_call.h */
} Entry;

extern PyTypeObject EntryType;

/* The result for what the guards collected; NULL with an exception. There is room for one more in front of it. */
PyObject *entry_run(Entry *entry, PyObject **collected, Py_ssize_t count);

#endif
