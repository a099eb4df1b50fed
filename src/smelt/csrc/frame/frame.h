/* Differences between CPython 3.11, 3.12 and 3.13 in frames. No other file looks inside one.

   In all three a frame starts with arguments in localsplus, every other slot NULL, and nothing executed. Cells are not
   created and free variables are not copied yet: the first instructions do that (MAKE_CELL, COPY_FREE_VARS). */
#ifndef SMELT_FRAME_H
#define SMELT_FRAME_H

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <Python.h>
#include <stdbool.h>
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "smelt supports CPython 3.11, 3.12 and 3.13"
#endif

typedef _PyInterpreterFrame Frame;

/* Borrowed. */
static inline PyCodeObject *
frame_code(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

/* Borrowed; NULL if the frame does not belong to a Python function. */
static inline PyFunctionObject *
frame_function(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *function = frame->f_funcobj;
#else
    PyObject *function = (PyObject *)frame->f_func;
#endif
    return function && PyFunction_Check(function) ? (PyFunctionObject *)function : NULL;
}

/* Whether this is a plain function call about to begin: not a generator, not a module or class body, and with nobody
   holding a frame object for it yet. */
static inline bool
frame_is_fresh_call(Frame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    if (!PyCode_Check(frame->f_executable)) {
        return false;
    }
#endif
    PyCodeObject *code = frame_code(frame);
    const int suspendable = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    const int function_body = CO_OPTIMIZED | CO_NEWLOCALS;
    return frame->owner == FRAME_OWNED_BY_THREAD && (code->co_flags & suspendable) == 0
           && (code->co_flags & function_body) == function_body && frame->f_locals == NULL && frame->frame_obj == NULL
           && frame->stacktop == code->co_nlocalsplus && frame_function(frame) != NULL;
}

/* Puts the frame at a code unit, so that evaluation starts with it. */
static inline void
frame_set_next(Frame *frame, Py_ssize_t unit)
{
#if PY_VERSION_HEX >= 0x030D0000
    frame->instr_ptr = _PyCode_CODE(frame_code(frame)) + unit;
#else
    frame->prev_instr = _PyCode_CODE(frame_code(frame)) + unit - 1;
#endif
}

/* Makes the frame say that it stands at a code unit (f_lasti, f_lineno). */
static inline void
frame_set_current(Frame *frame, Py_ssize_t unit)
{
#if PY_VERSION_HEX >= 0x030D0000
    frame->instr_ptr = _PyCode_CODE(frame_code(frame)) + unit;
#else
    frame->prev_instr = _PyCode_CODE(frame_code(frame)) + unit;
#endif
}

/* Ends a frame that was never evaluated, as its evaluator has to. */
void frame_dispose(PyThreadState *tstate, Frame *frame);

/* How many more frames the thread may enter before CPython raises RecursionError. */
static inline int *
frame_recursion_left(PyThreadState *tstate)
{
#if PY_VERSION_HEX >= 0x030C0000
    return &tstate->py_recursion_remaining;
#else
    return &tstate->recursion_remaining;
#endif
}

/* Bytes of C stack that are left on this thread; PY_SSIZE_T_MAX if unknown. */
Py_ssize_t frame_stack_left(void);

/* Whether so little C stack is left that Python calls should no longer go through it. `limit` caches, per thread, the
   address below which that is so; start it at zero. */
bool frame_stack_is_low(PyThreadState *tstate, uintptr_t *limit);

#endif
