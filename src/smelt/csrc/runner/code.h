/* Code: machine code as a Python object. */
#ifndef SMELT_CODE_H
#define SMELT_CODE_H

#include <Python.h>

extern PyTypeObject CodeType;

#endif
