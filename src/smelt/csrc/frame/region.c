/* Region as a Python type: the call that makes it active. */
#include "frame/region.h"

#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#include "frame/hook.h"

/* --- the Python type -------------------------------------------------------------------------- */

static PyObject *
region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"missed", NULL};
    PyObject *missed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Region", names, &missed)) {
        return NULL;
    }
    if (!PyCallable_Check(missed)) {
        PyErr_Format(PyExc_TypeError, "Region: missed must be callable, not %.200s", Py_TYPE(missed)->tp_name);
        return NULL;
    }
    Region *self = (Region *)type->tp_alloc(type, 0);
    if (self) {
        self->missed = Py_NewRef(missed);
    }
    return (PyObject *)self;
}

static int
region_traverse(Region *self, visitproc visit, void *arg)
{
    Py_VISIT(self->missed);
    for (size_t i = 0; i < self->size; i++) {
        Py_VISIT(self->table[i].code);
        Py_VISIT(self->table[i].entries);
    }
    return 0;
}

/* The table is taken off first: dropping the entries may run code that uses the region. */
static void
drop_table(Region *self)
{
    CodeRecord *table = self->table;
    size_t size = self->size;
    self->table = NULL;
    self->size = self->used = 0;
    for (size_t i = 0; i < size; i++) {
        Py_XDECREF(table[i].code);
        Py_XDECREF(table[i].entries);
    }
    PyMem_Free(table);
}

static int
region_clear_references(Region *self)
{
    Py_CLEAR(self->missed);
    drop_table(self);
    return 0;
}

static void
region_dealloc(Region *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    region_clear_references(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
region_call(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "Region.call() needs the function to call");
        return NULL;
    }
    Region *outer = hook_activate((Region *)self);
    HookRoom room = hook_begin_program();
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    hook_end(room);
    hook_activate(outer);
    return result;
}

/* Called with the function, once, where a debugger or a coverage tool first meets a compiled one; NULL: it was. */
static PyObject *on_trace;

static PyObject *
region_on_trace(PyObject *Py_UNUSED(self), PyObject *callable)
{
    Py_XSETREF(on_trace, Py_NewRef(callable));
    Py_RETURN_NONE;
}

static int
tell_of_trace(PyObject *function)
{
    PyObject *tell = on_trace;
    on_trace = NULL;
    PyObject *result = PyObject_CallOneArg(tell, function);
    Py_DECREF(tell);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

/* The same for arguments in a tuple and a dict, as a Python function with *args and **kwargs has them. */
static PyObject *
region_enter(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyTuple_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "Region.enter() needs the function to call, a tuple and a dict");
        return NULL;
    }
    if (on_trace && PyThreadState_Get()->c_tracefunc && tell_of_trace(args[0]) < 0) {
        return NULL;
    }
    PyTupleObject *arguments = (PyTupleObject *)args[1];
    Region *region = (Region *)self;
    long long before = region->pieces;
    Region *outer = hook_activate(region);
    HookRoom room = hook_begin_program();
    PyObject *result = PyDict_GET_SIZE(args[2])
                           ? PyObject_Call(args[0], args[1], args[2])
                           : PyObject_Vectorcall(args[0], arguments->ob_item, (size_t)Py_SIZE(arguments), NULL);
    hook_end(room);
    hook_activate(outer);
    region->scattered |= region->pieces != before + 1;
    return result;
}

static int
expect_code(PyObject *object, const char *method)
{
    if (PyCode_Check(object)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "Region.%s() needs a code object, not %.200s", method, Py_TYPE(object)->tp_name);
    return -1;
}

static PyObject *
region_entries(Region *self, PyObject *code)
{
    if (expect_code(code, "entries") < 0) {
        return NULL;
    }
    CodeRecord *record = region_find_record(self, (PyCodeObject *)code);
    PyObject *entries = record ? Py_XNewRef(record->entries) : NULL;
    PyObject *list = entries ? PySequence_List(entries) : PyList_New(0);
    Py_XDECREF(entries);
    return list;
}

static PyObject *
region_add_method(Region *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "Region.add() needs a code object and an entry");
        return NULL;
    }
    if (expect_code(args[0], "add") < 0) {
        return NULL;
    }
    if (!PyObject_TypeCheck(args[1], &EntryType)) {
        PyErr_Format(PyExc_TypeError, "Region.add() needs an Entry, not %.200s", Py_TYPE(args[1])->tp_name);
        return NULL;
    }
    if (region_add(self, (PyCodeObject *)args[0], (Entry *)args[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
treat(Region *self, PyObject *code, FrameTreatment treatment, const char *method)
{
    if (expect_code(code, method) < 0) {
        return NULL;
    }
    CodeRecord *record = region_find_or_make_record(self, (PyCodeObject *)code);
    if (record == NULL) {
        return NULL;
    }
    record->treatment = treatment;
    Py_RETURN_NONE;
}

static PyObject *
region_never(Region *self, PyObject *code)
{
    return treat(self, code, FRAME_NEVER, "never");
}

static PyObject *
region_alone(Region *self, PyObject *code)
{
    return treat(self, code, FRAME_ALONE, "alone");
}

static PyObject *
region_clear(Region *self, PyObject *Py_UNUSED(unused))
{
    drop_table(self);
    Py_RETURN_NONE;
}

static PyObject *
region_hold(PyObject *Py_UNUSED(none), PyObject *Py_UNUSED(unused))
{
    hook_hold();
    Py_RETURN_NONE;
}

static PyObject *
region_release(PyObject *Py_UNUSED(none), PyObject *Py_UNUSED(unused))
{
    hook_release();
    Py_RETURN_NONE;
}

static PyObject *
region_held(PyObject *Py_UNUSED(none), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(hook_is_held());
}

static PyMethodDef region_methods[] = {
    {"call", (PyCFunction)(void (*)(void))region_call, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function with this region active on the thread.")},
    {"enter", (PyCFunction)(void (*)(void))region_enter, METH_FASTCALL,
     PyDoc_STR("Call a function with a tuple and a dict of arguments with this region active on the thread.")},
    {"on_trace", region_on_trace, METH_O | METH_STATIC,
     PyDoc_STR("Have a callable called, once, with the function that is entered while a trace function is set.")},
    {"hold", region_hold, METH_NOARGS | METH_STATIC,
     PyDoc_STR("No region is or becomes active on this thread until release().")},
    {"release", region_release, METH_NOARGS | METH_STATIC, PyDoc_STR("The end of hold().")},
    {"held", region_held, METH_NOARGS | METH_STATIC, PyDoc_STR("Whether this thread is between hold() and release().")},
    {"entries", (PyCFunction)region_entries, METH_O, PyDoc_STR("The entries kept for a code object, oldest first.")},
    {"add", (PyCFunction)(void (*)(void))region_add_method, METH_FASTCALL,
     PyDoc_STR("Keep an entry for a code object.")},
    {"never", (PyCFunction)region_never, METH_O, PyDoc_STR("Leave frames of this code object to CPython.")},
    {"alone", (PyCFunction)region_alone, METH_O,
     PyDoc_STR("Leave frames of this code object, and whatever they call, to CPython.")},
    {"clear", (PyCFunction)region_clear, METH_NOARGS, PyDoc_STR("Forget every entry, every never() and alone().")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"missed", T_OBJECT, offsetof(Region, missed), READONLY, NULL},
    {"pieces", T_LONGLONG, offsetof(Region, pieces), 0, NULL},
    {"scattered", T_BOOL, offsetof(Region, scattered), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject RegionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Region",
    .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = region_new,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear_references,
    .tp_weaklistoffset = offsetof(Region, weakrefs),
    .tp_methods = region_methods,
    .tp_members = region_members,
    .tp_doc = PyDoc_STR("All that was compiled for one `smelt.compile`."),
};
