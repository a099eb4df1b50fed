/* Entry: if its guards hold for a frame, the frame's result is run(*collected), or is built from a graph's outputs. */
#include "frame/entry.h"

#include <stddef.h>
#include <structmember.h>

#include "autograd/forward_call.h"
#include "direct_call.h"
#include "state/preserved_state.h"

/* --- running ---------------------------------------------------------------------------------- */

enum { USUAL_ARGUMENTS = 32 };

static PyObject *
graph_outputs(const Entry *entry, PyObject *const *collected)
{
    const Around *around = entry->around;
    PyObject *usual[USUAL_ARGUMENTS + 1];
    PyObject **room = usual; /* room[0] is scratch space for vectorcall */
    if (around->count > USUAL_ARGUMENTS) {
        room = PyMem_New(PyObject *, around->count + 1);
        if (room == NULL) {
            return PyErr_NoMemory();
        }
    }
    for (Py_ssize_t i = 0; i < around->count; i++) {
        room[i + 1] = collected[around->arguments[i]];
    }
    size_t count = (size_t)around->count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *outputs = entry->is_covered ? forward_call_covered(entry->run, room + 1, count)
                                          : PyObject_Vectorcall(entry->run, room + 1, count, NULL);
    if (room != usual) {
        PyMem_Free(room);
    }
    return outputs;
}

static PyObject *
recover(const Around *around, PyObject *const *collected, Py_ssize_t count)
{
    PyObject *error = take_error();
    PyObject *arguments = PyTuple_New(count + 1);
    if (arguments == NULL) {
        Py_DECREF(error);
        return NULL;
    }
    PyTuple_SET_ITEM(arguments, 0, error);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(arguments, i + 1, Py_NewRef(collected[i]));
    }
    PyObject *result = PyObject_Call(around->failed, arguments, NULL);
    Py_DECREF(arguments);
    return result;
}

/* Steals the outputs, which may be NULL with an exception. */
static PyObject *
one_output(PyObject *outputs, Py_ssize_t which)
{
    PyObject *output = outputs ? PySequence_GetItem(outputs, which) : NULL;
    Py_XDECREF(outputs);
    return output;
}

/* Calls make(*outputs), and steals them. */
static PyObject *
call_with_outputs(PyObject *make, PyObject *outputs)
{
    PyObject *arguments = PySequence_Tuple(outputs);
    PyObject *result = arguments ? PyObject_Call(make, arguments, NULL) : NULL;
    Py_DECREF(outputs);
    Py_XDECREF(arguments);
    return result;
}

PyObject *
entry_run(Entry *entry, PyObject **collected, Py_ssize_t count)
{
    const Around *around = entry->around;
    if (around == NULL) {
        return PyObject_Vectorcall(entry->run, collected, (size_t)count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    bool is_one = PyLong_Check(around->result);
    PyObject *outputs = graph_outputs(entry, collected);
    outputs = is_one ? one_output(outputs, around->which) : outputs;
    if (outputs == NULL) {
        if (around->restore != Py_None) {
            restore_surely(around->restore);
        }
        return PyErr_ExceptionMatches(PyExc_Exception) ? recover(around, collected, count) : NULL;
    }
    return is_one ? outputs : call_with_outputs(around->result, outputs);
}

/* --- the Python type -------------------------------------------------------------------------- */

static void
drop_around(Around *around)
{
    if (around) {
        Py_DECREF(around->result);
        Py_DECREF(around->failed);
        Py_DECREF(around->restore);
        PyMem_Free(around);
    }
}

/* NULL with an exception. */
static Around *
take_around(PyObject *arguments, PyObject *result, PyObject *failed, PyObject *restore, Py_ssize_t collected)
{
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    Py_ssize_t which = PyLong_Check(result) ? PyLong_AsSsize_t(result) : 0;
    bool is_result = PyLong_Check(result) || PyCallable_Check(result);
    bool are_callable = failed && PyCallable_Check(failed) && (restore == Py_None || PyCallable_Check(restore));
    if (which < 0 || !is_result || !are_callable) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "Entry: result must be a number or callable, and failed and restore callable");
        }
        return NULL;
    }
    Around *around = PyMem_Malloc(sizeof *around + (size_t)count * sizeof around->arguments[0]);
    if (around == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *around = (Around){.result = result, .which = which, .failed = failed, .restore = restore, .count = count};
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(arguments, i));
        if (place < 0 || place >= collected) {
            PyMem_Free(around);
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_IndexError, "Entry: of %zd collected values none is number %zd", collected, place);
            }
            return NULL;
        }
        around->arguments[i] = place;
    }
    Py_INCREF(result);
    Py_INCREF(failed);
    Py_INCREF(restore);
    return around;
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "run", "arguments", "result", "failed", "restore", NULL};
    PyObject *guards, *run, *arguments = NULL, *result = Py_None, *failed = NULL, *restore = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|O!OOO:Entry", names, &GuardsType, &guards, &run, &PyTuple_Type,
                                     &arguments, &result, &failed, &restore)) {
        return NULL;
    }
    if (!PyCallable_Check(run)) {
        PyErr_Format(PyExc_TypeError, "Entry: run must be callable, not %.200s", Py_TYPE(run)->tp_name);
        return NULL;
    }
    Around *around = NULL;
    if (arguments) {
        around = take_around(arguments, result, failed, restore, guards_collected((Guards *)guards));
        if (around == NULL) {
            return NULL;
        }
    }
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self) {
        self->guards = (Guards *)Py_NewRef(guards);
        self->run = Py_NewRef(run);
        self->around = around;
        self->is_covered = around && forward_call_is_covered(run, self->guards);
    }
    else {
        drop_around(around);
    }
    return (PyObject *)self;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->guards);
    Py_VISIT(self->run);
    if (self->around) {
        Py_VISIT(self->around->result);
        Py_VISIT(self->around->failed);
        Py_VISIT(self->around->restore);
    }
    return 0;
}

static int
entry_clear(Entry *self)
{
    Py_CLEAR(self->guards);
    Py_CLEAR(self->run);
    Around *around = self->around;
    self->around = NULL;
    drop_around(around);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef entry_members[] = {
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, NULL},
    {"run", T_OBJECT, offsetof(Entry, run), READONLY, NULL},
    {"hits", T_LONGLONG, offsetof(Entry, hits), READONLY, "How often it ran."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_members = entry_members,
    .tp_doc = PyDoc_STR("One compiled version of a frame: if `guards` hold, its result is run(*collected)."),
};
