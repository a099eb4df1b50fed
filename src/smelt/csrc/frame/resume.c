/* Enters a function in the middle: CPython builds a frame for a call with dummy arguments, and before it runs the hook
   replaces its contents. Rejects everything that could crash the interpreter later: offsets between instructions, too
   deep a stack, variables that the code expects to be cells and are not. */
#include "frame/resume.h"

#include "frame/frame.h"

#include <frameobject.h>
#include <opcode.h>

#include "frame/hook.h"
#include "frame/unbound.h"

static bool
is_suspendable(PyCodeObject *code)
{
    return code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE);
}

/* --- where ------------------------------------------------------------------------------------ */

static int
opcode_at(const unsigned char *bytes, Py_ssize_t offset)
{
    return offset >= 0 ? bytes[offset] : CACHE;
}

#ifdef KW_NAMES
/* KW_NAMES leaves its names in a C variable for the CALL that follows; nobody may come in between. */
static bool
keyword_names_are_pending(const unsigned char *bytes, Py_ssize_t offset)
{
    Py_ssize_t before = offset;
    do {
        before -= 2;
#ifdef PRECALL
    } while (before >= 0 && (bytes[before] == CACHE || bytes[before] == PRECALL));
#else
    } while (before >= 0 && bytes[before] == CACHE);
#endif
    return opcode_at(bytes, before) == KW_NAMES;
}
#else
static bool
keyword_names_are_pending(const unsigned char *Py_UNUSED(bytes), Py_ssize_t Py_UNUSED(offset))
{
    return false;
}
#endif

static const char *
why_not_at(PyCodeObject *code, const unsigned char *bytes, Py_ssize_t length, Py_ssize_t offset)
{
    if (offset < 0 || offset >= length || offset % 2) {
        return "is not the place of an instruction";
    }
    if (opcode_at(bytes, offset) == CACHE) {
        return "is inside an instruction's inline cache";
    }
    if (opcode_at(bytes, offset - 2) == EXTENDED_ARG) {
        return "is between EXTENDED_ARG and its instruction";
    }
    if (keyword_names_are_pending(bytes, offset)) {
        return "is between KW_NAMES and its CALL";
    }
    if (offset > 0 && offset / 2 < code->_co_firsttraceable) {
        return "is among the instructions that prepare the frame";
    }
    return NULL;
}

/* 0, or -1 with an exception. */
static int
expect_instruction(PyCodeObject *code, Py_ssize_t offset)
{
    PyObject *bytes = PyCode_GetCode(code); /* as compiled: no specialised instructions, caches zeroed */
    if (bytes == NULL) {
        return -1;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AS_STRING(bytes);
    const char *reason = why_not_at(code, start, PyBytes_GET_SIZE(bytes), offset);
    Py_DECREF(bytes);
    if (reason) {
        PyErr_Format(PyExc_ValueError, "offset %zd of %U %s", offset, code->co_qualname, reason);
        return -1;
    }
    return 0;
}

/* --- with what -------------------------------------------------------------------------------- */

static void
drop_values(PyObject **values, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(values[i]);
    }
    PyMem_Free(values);
}

/* The value for a variable that is a cell or free variable, once the frame is past its preparation. Steals `value`. */
static PyObject *
as_cell(PyFunctionObject *function, Py_ssize_t slot, PyObject *value)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t first_free = code->co_nlocalsplus - code->co_nfreevars;
    if (value && PyCell_Check(value)) {
        return value;
    }
    if (value) {
        PyErr_Format(PyExc_ValueError, "variable %R of %U needs a cell, got %.200s",
                     PyTuple_GET_ITEM(code->co_localsplusnames, slot), code->co_qualname, Py_TYPE(value)->tp_name);
        Py_DECREF(value);
        return NULL;
    }
    if (slot >= first_free) {
        return Py_NewRef(PyTuple_GET_ITEM(function->func_closure, slot - first_free));
    }
    return PyCell_New(NULL);
}

/* Adapts the variables to what the code takes for granted there. 0, or -1 with an exception. */
static int
settle_cells(PyFunctionObject *function, Py_ssize_t offset, PyObject **values)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    const char *kinds = PyBytes_AS_STRING(code->co_localspluskinds);
    bool prepared = offset / 2 >= code->_co_firsttraceable;
    for (Py_ssize_t i = 0; i < code->co_nlocalsplus; i++) {
        if (prepared && kinds[i] & (CO_FAST_CELL | CO_FAST_FREE)) {
            values[i] = as_cell(function, i, values[i]);
            if (values[i] == NULL) {
                return -1;
            }
        }
        else if (!prepared && kinds[i] & CO_FAST_FREE) { /* COPY_FREE_VARS overwrites without looking */
            Py_CLEAR(values[i]);
        }
    }
    return 0;
}

/* An array of new references: `slots`, then `stack`. NULL with an exception if they do not fit the code. */
static PyObject **
gather_values(PyFunctionObject *function, Py_ssize_t offset, PyObject *slots, PyObject *stack, Py_ssize_t *count)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t locals = PyTuple_GET_SIZE(slots), depth = PyTuple_GET_SIZE(stack);
    if (locals != code->co_nlocalsplus) {
        PyErr_Format(PyExc_ValueError, "%U has %d slots, got %zd", code->co_qualname, code->co_nlocalsplus, locals);
        return NULL;
    }
    if (depth > code->co_stacksize) {
        PyErr_Format(PyExc_ValueError, "%U has a stack of %d, got %zd", code->co_qualname, code->co_stacksize, depth);
        return NULL;
    }
    PyObject **values = PyMem_New(PyObject *, locals + depth);
    if (values == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *count = locals + depth;
    for (Py_ssize_t i = 0; i < *count; i++) {
        PyObject *value = i < locals ? PyTuple_GET_ITEM(slots, i) : PyTuple_GET_ITEM(stack, i - locals);
        values[i] = Py_XNewRef(slot_from_python(value));
    }
    if (settle_cells(function, offset, values) < 0) {
        drop_values(values, *count);
        return NULL;
    }
    return values;
}

/* --- run_from --------------------------------------------------------------------------------- */

/* Calls the function so that argument binding is content, whatever its signature. */
static PyObject *
call_with_dummies(PyFunctionObject *function, FrameContents *contents)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t positional = code->co_argcount, keywords = code->co_kwonlyargcount;
    PyObject *names = NULL;
    if (keywords) {
        names = PyTuple_GetSlice(code->co_localsplusnames, positional, positional + keywords);
        if (names == NULL) {
            return NULL;
        }
    }
    PyObject **dummies = PyMem_New(PyObject *, positional + keywords);
    PyObject *result = NULL;
    if (dummies) {
        for (Py_ssize_t i = 0; i < positional + keywords; i++) {
            dummies[i] = Py_None;
        }
        result = hook_call_with(contents, dummies, (size_t)positional, names);
    }
    else {
        PyErr_NoMemory();
    }
    PyMem_Free(dummies);
    Py_XDECREF(names);
    return result;
}

/* As call_with_dummies, while `exception` is the one being handled (what a bare `raise` raises again). */
static PyObject *
call_handling(PyFunctionObject *function, FrameContents *contents, PyObject *exception)
{
    if (exception == Py_None) {
        return call_with_dummies(function, contents);
    }
    _PyErr_StackItem *innermost = PyThreadState_Get()->exc_info;
    PyObject *outer = innermost->exc_value;
    innermost->exc_value = Py_NewRef(exception);
    PyObject *result = call_with_dummies(function, contents);
    Py_XSETREF(innermost->exc_value, outer);
    return result;
}

/* The two sequences as tuples (new references). 0, or -1 with an exception. */
static int
as_tuples(PyObject **slots, PyObject **stack)
{
    *slots = PySequence_Tuple(*slots);
    *stack = *slots ? PySequence_Tuple(*stack) : NULL;
    if (*stack == NULL) {
        Py_XDECREF(*slots);
        return -1;
    }
    return 0;
}

PyObject *
run_from(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"function", "offset", "slots", "stack", "handling", NULL};
    PyObject *object, *slots, *stack, *handling = Py_None;
    Py_ssize_t offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nOO|O:run_from", keywords, &PyFunction_Type, &object, &offset,
                                     &slots, &stack, &handling)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)object;
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    if (is_suspendable(code)) {
        PyErr_Format(PyExc_ValueError, "%U is a generator or coroutine: it cannot be entered in the middle",
                     code->co_qualname);
        return NULL;
    }
    if (handling != Py_None && !PyExceptionInstance_Check(handling)) {
        PyErr_Format(PyExc_TypeError, "handling must be an exception or None, not %.200s", Py_TYPE(handling)->tp_name);
        return NULL;
    }
    if (expect_instruction(code, offset) < 0 || as_tuples(&slots, &stack) < 0) {
        return NULL;
    }
    FrameContents contents = {.function = object, .unit = offset / 2};
    contents.values = gather_values(function, offset, slots, stack, &contents.count);
    Py_DECREF(slots);
    Py_DECREF(stack);
    if (contents.values == NULL) {
        return NULL;
    }
    PyObject *result = call_handling(function, &contents, handling);
    drop_values(contents.values, contents.count); /* all NULL by now unless no frame was made */
    return result;
}

/* --- new_frame -------------------------------------------------------------------------------- */

PyObject *
new_frame(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"function", "offset", "slots", NULL};
    PyObject *object, *slots = Py_None;
    Py_ssize_t offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!n|O:new_frame", keywords, &PyFunction_Type, &object, &offset,
                                     &slots)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)object;
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    Py_ssize_t length = Py_SIZE(code) * (Py_ssize_t)sizeof(_Py_CODEUNIT);
    if (offset < 0 || offset >= length || offset % 2) {
        PyErr_Format(PyExc_ValueError, "offset %zd of %U is not the place of an instruction", offset,
                     code->co_qualname);
        return NULL;
    }
    Py_ssize_t earliest = code->_co_firsttraceable * (Py_ssize_t)sizeof(_Py_CODEUNIT);
    offset = offset < earliest ? earliest : offset; /* a frame that anybody can see has been prepared */
    PyObject *stack = PyTuple_New(0);
    slots = slots == Py_None ? PyTuple_New(code->co_nlocalsplus) : PySequence_Tuple(slots);
    Py_ssize_t count = 0;
    PyObject **values = slots && stack ? gather_values(function, offset, slots, stack, &count) : NULL;
    Py_XDECREF(slots);
    Py_XDECREF(stack);
    if (values == NULL) {
        return NULL;
    }
    PyFrameObject *frame_object = PyFrame_New(PyThreadState_Get(), code, function->func_globals, NULL);
    if (frame_object) {
        Frame *frame = frame_object->f_frame;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_XSETREF(frame->localsplus[i], values[i]);
            values[i] = NULL;
        }
        frame_set_current(frame, offset / 2);
    }
    drop_values(values, count);
    return (PyObject *)frame_object;
}

/* --- suspended_generator ---------------------------------------------------------------------- */

/* A generator that has not begun, whatever the function's signature: its arguments are None. */
static PyObject *
fresh_generator(PyFunctionObject *function)
{
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    PyObject *positional = PyTuple_New(code->co_argcount), *named = PyDict_New(), *generator = NULL;
    if (positional == NULL || named == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < code->co_argcount; i++) {
        PyTuple_SET_ITEM(positional, i, Py_NewRef(Py_None));
    }
    for (Py_ssize_t i = 0; i < code->co_kwonlyargcount; i++) {
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(code->co_localsplusnames, code->co_argcount + i), Py_None) < 0) {
            goto done;
        }
    }
    generator = PyObject_Call((PyObject *)function, positional, named);
    if (generator && !PyGen_CheckExact(generator)) {
        PyErr_Format(PyExc_ValueError, "%U is no generator function", code->co_qualname);
        Py_CLEAR(generator);
    }
done:
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return generator;
}

PyObject *
suspended_generator(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"function", "next_offset", "slots", "stack", NULL};
    PyObject *object, *slots, *stack;
    Py_ssize_t next;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nOO:suspended_generator", keywords, &PyFunction_Type, &object,
                                     &next, &slots, &stack)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)object;
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    if (!(code->co_flags & CO_GENERATOR)) {
        PyErr_Format(PyExc_ValueError, "%U is no generator function", code->co_qualname);
        return NULL;
    }
    if (expect_instruction(code, next) < 0 || as_tuples(&slots, &stack) < 0) {
        return NULL;
    }
    Py_ssize_t count = 0;
    PyObject **values = gather_values(function, next, slots, stack, &count);
    Py_DECREF(slots);
    Py_DECREF(stack);
    PyObject *suspended = values ? fresh_generator(function) : NULL;
    if (suspended) {
        PyGenObject *generator = (PyGenObject *)suspended;
        Frame *frame = (Frame *)generator->gi_iframe;
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *dummy = i < code->co_nlocalsplus ? frame->localsplus[i] : NULL;
            frame->localsplus[i] = values[i];
            values[i] = NULL;
            Py_XDECREF(dummy);
        }
        frame->stacktop = (int)count;
        frame_set_next(frame, next / 2);
        generator->gi_frame_state = FRAME_SUSPENDED;
    }
    if (values) {
        drop_values(values, count);
    }
    return suspended;
}
