/* Code: machine code in its own memory. */
#ifndef SMELT_CODE_H
#define SMELT_CODE_H

#include <Python.h>

extern PyTypeObject CodeType;

#endif
