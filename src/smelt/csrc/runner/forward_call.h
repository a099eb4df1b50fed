/* ForwardCall: a compiled graph without gradients, as what a compiled function calls; see _native.pyi. */
#ifndef SMELT_FORWARD_CALL_H
#define SMELT_FORWARD_CALL_H

#include <Python.h>

extern PyTypeObject ForwardCallType;

#endif
