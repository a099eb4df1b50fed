/* ForwardCall: a compiled graph without gradients, as what a compiled function calls; see _native.pyi. */
#ifndef SMELT_FORWARD_CALL_H
#define SMELT_FORWARD_CALL_H

#include "guards/guards.h"

extern PyTypeObject ForwardCallType;

/* Whether `run` is one, and guards that hold say that grad mode and autocast are off. */
bool forward_call_is_covered(PyObject *run, const Guards *guards);

/* Its call right after such guards have held: they are not asked for again. */
PyObject *forward_call_covered(PyObject *run, PyObject *const *inputs, size_t flagged_count);

#endif
