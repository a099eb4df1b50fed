/* State that must be restored, whatever is raised and wherever: see state/preserved_state.c. */
#ifndef SMELT_SHELTER_H
#define SMELT_SHELTER_H

#include <Python.h>

extern PyTypeObject HeldType;
extern PyTypeObject PausedGCType;

int preserved_state_init(void);

/* No automatic collections between them, on any thread. They nest. */
void pause_collector(void);
void resume_collector(void);

/* Calls restore() with the exception that is set put aside, again if it is interrupted. */
void restore_surely(PyObject *restore);

/* function(...) without autograd's recording, whatever grad mode is. */
PyObject *call_unrecorded(PyObject *function, PyObject *const *args, size_t flagged_count, PyObject *names);

PyObject *install_preserved_state(PyObject *module, PyObject *args);
PyObject *preserving_state(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *undoing(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *restoring(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *recorded(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *unrecorded(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *offering_errors(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *within(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

#endif
