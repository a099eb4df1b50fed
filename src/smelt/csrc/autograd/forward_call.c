/* Calls a graph without gradients, aliases or mutations. Most of a call of a small function is spent around the program,
   so this is not Python.

   Where `in_transform` or `in_autocast` returns something true, or `module[level]`, the level of forward-mode
   differentiation, is not negative, `general` is called. Else `run` is, with grad mode off. The results are returned as a
   tuple, those for which `is_view` is true as `detach` returns them. An error of class `failure` makes the call
   `failed(inputs, error)`. An Entry whose guards say that `grad_mode` and `in_autocast` return False does not ask again. */
#include "autograd/forward_call.h"

#include <stddef.h>
#include <structmember.h>

#include "direct_call.h"
#include "state/preserved_state.h"

#define FORWARD_OBJECTS(F) F(run) F(general) F(in_transform) F(in_autocast) F(grad_mode) F(module) F(level) F(failure) F(failed) F(is_view) F(detach)

#define FORWARD_OBJECT(name) PyObject *name;
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    FORWARD_OBJECTS(FORWARD_OBJECT)
} ForwardCall;

/* What a function says: 1, 0, or -1 with an exception. */
static int
says(PyObject *function)
{
    PyObject *answer = call_directly(function);
    int is_so = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_so;
}

/* Whether a transform or forward-mode differentiation is on: 1, 0, or -1 with an exception. */
static int
is_transformed(const ForwardCall *self)
{
    int transformed = says(self->in_transform);
    if (transformed) {
        return transformed;
    }
    PyObject *level = PyDict_GetItemWithError(self->module, self->level); /* of forward-mode differentiation; -1: none */
    long number = level ? PyLong_AsLong(level) : -1;
    return number == -1 && PyErr_Occurred() ? -1 : number >= 0;
}

/* The value, or if it is a view a detached one. A new reference, or NULL with an exception. */
static PyObject *
without_view(const ForwardCall *self, PyObject *value)
{
    PyObject *answer = PyObject_CallOneArg(self->is_view, value);
    int is_view = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (is_view < 0) {
        return NULL;
    }
    return is_view ? PyObject_CallOneArg(self->detach, value) : Py_NewRef(value);
}

/* A tuple of the results without views. Steals the values. */
static PyObject *
without_views(const ForwardCall *self, PyObject *values)
{
    PyObject *sequence = PySequence_Fast(values, "a compiled graph returns its results in a sequence");
    Py_DECREF(values);
    Py_ssize_t count = sequence ? PySequence_Fast_GET_SIZE(sequence) : 0;
    PyObject *results = sequence ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; results && i < count; i++) {
        PyObject *result = without_view(self, PySequence_Fast_GET_ITEM(sequence, i));
        if (result == NULL) {
            Py_CLEAR(results);
            break;
        }
        PyTuple_SET_ITEM(results, i, result);
    }
    Py_XDECREF(sequence);
    return results;
}

/* failed(inputs, error), where the error that is set is one that eager PyTorch may not raise. */
static PyObject *
recover(const ForwardCall *self, PyObject *const *inputs, Py_ssize_t count)
{
    if (!PyErr_ExceptionMatches(self->failure)) {
        return NULL;
    }
    PyObject *error = take_error(), *result = NULL, *arguments = PyTuple_New(count);
    for (Py_ssize_t i = 0; arguments && i < count; i++) {
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(inputs[i]));
    }
    if (arguments) {
        result = PyObject_CallFunctionObjArgs(self->failed, arguments, error, NULL);
    }
    Py_XDECREF(arguments);
    Py_DECREF(error);
    return result;
}

static PyObject *
call_for_results(const ForwardCall *self, bool is_covered, PyObject *const *inputs, size_t flagged_count)
{
    int general = is_transformed(self);
    general = general || is_covered ? general : says(self->in_autocast);
    if (general) {
        return general < 0 ? NULL : PyObject_Vectorcall(self->general, inputs, flagged_count, NULL);
    }
    PyObject *values = is_covered ? PyObject_Vectorcall(self->run, inputs, flagged_count, NULL)
                                  : call_unrecorded(self->run, inputs, flagged_count, NULL);
    return values ? without_views(self, values) : recover(self, inputs, PyVectorcall_NARGS(flagged_count));
}

static PyObject *
forward_call(PyObject *self, PyObject *const *inputs, size_t flagged_count, PyObject *names)
{
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "a compiled graph takes no keyword arguments");
        return NULL;
    }
    return call_for_results((ForwardCall *)self, false, inputs, flagged_count);
}

bool
forward_call_is_covered(PyObject *run, const Guards *guards)
{
    const ForwardCall *self = (ForwardCall *)run;
    return Py_IS_TYPE(run, &ForwardCallType) && guards_say(guards, self->grad_mode, Py_False)
           && guards_say(guards, self->in_autocast, Py_False);
}

PyObject *
forward_call_covered(PyObject *run, PyObject *const *inputs, size_t flagged_count)
{
    return call_for_results((ForwardCall *)run, true, inputs, flagged_count);
}

/* --- the Python type -------------------------------------------------------------------------- */

static PyObject *
forward_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"run", "general", "in_transform", "in_autocast", "grad_mode", "module", "level", "failure",
                            "failed", "is_view", "detach", NULL};
    ForwardCall parsed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOO!UOOOO:ForwardCall", names, &parsed.run, &parsed.general,
                                     &parsed.in_transform, &parsed.in_autocast, &parsed.grad_mode, &PyDict_Type,
                                     &parsed.module, &parsed.level, &parsed.failure, &parsed.failed, &parsed.is_view,
                                     &parsed.detach)) {
        return NULL;
    }
    ForwardCall *self = (ForwardCall *)type->tp_alloc(type, 0);
    if (self) {
#define KEEP(name) self->name = Py_NewRef(parsed.name);
        FORWARD_OBJECTS(KEEP)
        self->vectorcall = forward_call;
    }
    return (PyObject *)self;
}

static int
forward_call_traverse(ForwardCall *self, visitproc visit, void *arg)
{
#define VISIT(name) Py_VISIT(self->name);
    FORWARD_OBJECTS(VISIT)
    return 0;
}

static int
forward_call_clear(ForwardCall *self)
{
#define CLEAR(name) Py_CLEAR(self->name);
    FORWARD_OBJECTS(CLEAR)
    return 0;
}

static void
forward_call_dealloc(ForwardCall *self)
{
    PyObject_GC_UnTrack(self);
    forward_call_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef forward_call_members[] = {
    {"run", T_OBJECT, offsetof(ForwardCall, run), READONLY, NULL},
    {"__self__", T_OBJECT, offsetof(ForwardCall, general), READONLY, "What calls of any kind go to."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject ForwardCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.ForwardCall",
    .tp_basicsize = sizeof(ForwardCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = forward_call_new,
    .tp_dealloc = (destructor)forward_call_dealloc,
    .tp_traverse = (traverseproc)forward_call_traverse,
    .tp_clear = (inquiry)forward_call_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(ForwardCall, vectorcall),
    .tp_members = forward_call_members,
    .tp_doc = PyDoc_STR("A compiled graph without gradients, aliases or mutations, as a function of its inputs."),
};
