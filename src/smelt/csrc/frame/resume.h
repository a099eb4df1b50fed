/* Enters a function in the middle, and creates frame objects for tracebacks. */
#ifndef SMELT_RESUME_H
#define SMELT_RESUME_H

#include <Python.h>

/* run_from(function, offset, slots, stack, handling=None) */
PyObject *run_from(PyObject *module, PyObject *args, PyObject *kwargs);

/* new_frame(function, offset, slots=None) */
PyObject *new_frame(PyObject *module, PyObject *args, PyObject *kwargs);

/* suspended_generator(function, next_offset, slots, stack) */
PyObject *suspended_generator(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
