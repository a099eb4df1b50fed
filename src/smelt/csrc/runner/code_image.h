/* Code: machine code in memory of its own. */
#ifndef SMELT_CODE_H
#define SMELT_CODE_H

#include <Python.h>

extern PyTypeObject CodeType;

#endif
