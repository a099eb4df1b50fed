/* StridedLayout and LazyMemory: how tensors are laid out, and what is behind a storage. */
#include "lazy/lazy.h"

#include <stddef.h>
#include <structmember.h>
#include <string.h>

/* --- layouts ---------------------------------------------------------------------------------- */

static int
take_words(PyObject *tuple, int64_t *words)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (words[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* How far it reaches, and whether it is laid out as new tensors are. */
static int
measure(StridedLayout *self)
{
    const int64_t *sizes = self->words, *strides = self->words + self->rank;
    PyObject *itemsize = PyObject_GetAttrString(self->dtype, "itemsize");
    int64_t item = itemsize ? PyLong_AsLongLong(itemsize) : -1, last = self->offset, step = 1;
    Py_XDECREF(itemsize);
    bool is_empty = false;
    self->is_as_created = self->offset == 0;
    for (int64_t i = self->rank - 1; i >= 0; i--) {
        is_empty = is_empty || sizes[i] == 0;
        self->is_as_created = self->is_as_created && strides[i] == step;
        last += (sizes[i] - 1) * strides[i];
        step *= sizes[i]; /* as strides of torch._C._acc.create_empty_tensor */
    }
    self->bytes = is_empty ? 0 : (last + 1) * item;
    return item < 0 ? -1 : 0;
}

StridedLayout *
strided_layout(PyObject *parts)
{
    PyObject *shape, *strides, *dtype;
    long long offset;
    if (!PyTuple_Check(parts) || !PyArg_ParseTuple(parts, "O!O!LO", &PyTuple_Type, &shape, &PyTuple_Type, &strides, &offset, &dtype)) {
        return NULL;
    }
    Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(strides) != rank) {
        PyErr_SetString(PyExc_ValueError, "a layout has as many strides as sizes");
        return NULL;
    }
    StridedLayout *self = PyObject_NewVar(StridedLayout, &StridedLayoutType, 2 * rank);
    if (self == NULL) {
        return NULL;
    }
    self->parts = Py_NewRef(parts);
    self->shape = shape, self->dtype = dtype;
    self->rank = rank, self->offset = offset;
    if (take_words(shape, self->words) < 0 || take_words(strides, self->words + rank) < 0 || measure(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static void
layout_dealloc(StridedLayout *self)
{
    Py_XDECREF(self->parts);
    PyObject_Free(self);
}

PyTypeObject StridedLayoutType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.StridedLayout",
    .tp_basicsize = offsetof(StridedLayout, words),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)layout_dealloc,
};

static bool
is_same(const StridedLayout *one, const StridedLayout *other)
{
    return one == other
           || (one->rank == other->rank && one->offset == other->offset && one->dtype == other->dtype
               && !memcmp(one->words, other->words, (size_t)(2 * one->rank) * sizeof *one->words));
}

/* --- memory ----------------------------------------------------------------------------------- */

static void
forget_views(LazyMemory *self)
{
    int count = self->count;
    self->count = 0;
    for (int i = 0; i < count; i++) {
        Py_DECREF(self->views[i].layout);
    }
}

int
lazy_memory_see(LazyMemory *self, StridedLayout *layout, int64_t value)
{
    for (int i = self->count - 1; i >= 0; i--) {
        if (is_same(self->views[i].layout, layout)) {
            return 0;
        }
    }
    if (self->count == self->capacity) {
        int capacity = 4 * self->capacity;
        bool is_first = self->views == &self->first;
        SeenView *views = PyMem_Realloc(is_first ? NULL : self->views, (size_t)capacity * sizeof *views);
        if (views == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        if (is_first) {
            views[0] = self->first;
        }
        self->views = views, self->capacity = capacity;
    }
    self->views[self->count++] = (SeenView){(StridedLayout *)Py_NewRef(layout), value};
    return 0;
}

int
lazy_memory_enter(LazyMemory *self, int64_t serial, int64_t value)
{
    forget_views(self);
    self->serial = serial;
    return lazy_memory_see(self, self->whole, value);
}

LazyMemory *
lazy_memory_new(PyTypeObject *type, StridedLayout *whole)
{
    LazyMemory *self = (LazyMemory *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->whole = (StridedLayout *)Py_NewRef(whole);
    self->views = &self->first, self->capacity = 1;
    self->serial = -1;
    if (device_memory_add(&self->base) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

static PyObject *
memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"layout", "real", NULL};
    PyObject *parts, *real = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &parts, &real)) {
        return NULL;
    }
    StridedLayout *whole = strided_layout(parts);
    LazyMemory *self = whole ? lazy_memory_new(type, whole) : NULL;
    Py_XDECREF(whole);
    if (self && real != Py_None) {
        self->real = Py_NewRef(real);
    }
    return (PyObject *)self;
}

static void
memory_dealloc(LazyMemory *self)
{
    device_memory_remove(&self->base);
    if (self->in) {
        self->in->living[self->place] = NULL;
    }
    forget_views(self);
    if (self->views != &self->first) {
        PyMem_Free(self->views);
    }
    Py_CLEAR(self->whole);
    Py_CLEAR(self->real);
    Py_CLEAR(self->lost);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
get_layout(LazyMemory *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->whole->parts);
}

static int
set_layout(LazyMemory *self, PyObject *parts, void *Py_UNUSED(closure))
{
    StridedLayout *whole = parts ? strided_layout(parts) : NULL;
    if (whole == NULL) {
        if (parts == NULL) {
            PyErr_SetString(PyExc_TypeError, "the layout of memory cannot be deleted");
        }
        return -1;
    }
    Py_SETREF(self->whole, whole);
    return 0;
}

static PyObject *
memory_enter(LazyMemory *self, PyObject *args)
{
    long long serial, value;
    if (!PyArg_ParseTuple(args, "LL:enter", &serial, &value) || lazy_memory_enter(self, serial, value) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
memory_see(LazyMemory *self, PyObject *args)
{
    PyObject *parts;
    long long value;
    StridedLayout *layout = PyArg_ParseTuple(args, "OL:see", &parts, &value) ? strided_layout(parts) : NULL;
    int done = layout ? lazy_memory_see(self, layout, value) : -1;
    Py_XDECREF(layout);
    if (done < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
memory_find(LazyMemory *self, PyObject *parts)
{
    StridedLayout *layout = strided_layout(parts);
    PyObject *result = layout ? Py_None : NULL;
    for (int i = self->count - 1; layout && i >= 0; i--) {
        if (is_same(self->views[i].layout, layout)) {
            result = NULL;
            Py_DECREF(layout);
            return PyLong_FromLongLong(self->views[i].value);
        }
    }
    Py_XDECREF(layout);
    return Py_XNewRef(result);
}

static PyObject *
memory_seen(LazyMemory *self, PyObject *Py_UNUSED(unused))
{
    PyObject *views = PyTuple_New(self->count);
    for (int i = 0; views && i < self->count; i++) {
        PyObject *pair = Py_BuildValue("(OL)", self->views[i].layout->parts, (long long)self->views[i].value);
        if (pair == NULL) {
            Py_CLEAR(views);
            break;
        }
        PyTuple_SET_ITEM(views, i, pair);
    }
    return views;
}

static PyMethodDef memory_methods[] = {
    {"enter", (PyCFunction)memory_enter, METH_VARARGS, PyDoc_STR("Become a value of the recording with this serial.")},
    {"see", (PyCFunction)memory_see, METH_VARARGS, PyDoc_STR("A view with this layout has this value, unless one has.")},
    {"seen", (PyCFunction)memory_seen, METH_NOARGS, PyDoc_STR("The layouts of its views, with their values.")},
    {"find", (PyCFunction)memory_find, METH_O, PyDoc_STR("The value of the view with this layout, or None.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef memory_members[] = {
    {"real", T_OBJECT, offsetof(LazyMemory, real), 0, NULL},
    {"lost", T_OBJECT, offsetof(LazyMemory, lost), 0, NULL},
    {"serial", T_LONGLONG, offsetof(LazyMemory, serial), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef memory_properties[] = {
    {"layout", (getter)get_layout, (setter)set_layout, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Not for the collector: what refers to a memory is a storage, which the collector cannot look into. */
PyTypeObject LazyMemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.LazyMemory",
    .tp_doc = PyDoc_STR("What is behind the storage of a lazy tensor."),
    .tp_basicsize = sizeof(LazyMemory),
    .tp_base = &DeviceMemoryType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = memory_new,
    .tp_dealloc = (destructor)memory_dealloc,
    .tp_methods = memory_methods,
    .tp_members = memory_members,
    .tp_getset = memory_properties,
};
