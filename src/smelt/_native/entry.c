/* Entry: if its guards hold for a frame, the frame's result is run(*collected). */
#include "entry.h"

#include <stddef.h>
#include <structmember.h>

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"guards", "run", NULL};
    PyObject *guards, *run;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Entry", names, &GuardsType, &guards, &run)) {
        return NULL;
    }
    if (!PyCallable_Check(run)) {
        PyErr_Format(PyExc_TypeError, "Entry: run must be callable, not %.200s", Py_TYPE(run)->tp_name);
        return NULL;
    }
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self) {
        self->guards = (Guards *)Py_NewRef(guards);
        self->run = Py_NewRef(run);
    }
    return (PyObject *)self;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->guards);
    Py_VISIT(self->run);
    return 0;
}

static int
entry_clear(Entry *self)
{
    Py_CLEAR(self->guards);
    Py_CLEAR(self->run);
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
