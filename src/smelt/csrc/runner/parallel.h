/* The function that the code of every kernel calls to share its points out between threads. */
#ifndef SMELT_TEAM_H
#define SMELT_TEAM_H

#include <Python.h>

int team_init(void);

PyObject *team_function(PyObject *module, PyObject *args);

#endif
