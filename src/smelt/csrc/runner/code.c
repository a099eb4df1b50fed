/* Code: an image of machine code (executor/code_image.h), its slots filled with addresses.

   The image is position-independent except for its slots, eight bytes each. */
#include "runner/code.h"

#include <stdint.h>
#include <string.h>

#include "executor/code_image.h"

typedef struct {
    PyObject_HEAD
    CodeImage image;
} Code;

/* 0, or -1 with an exception. An address in `relative` slots counts from the image's own start. */
static int
fill_slots(Code *self, Py_ssize_t image_size, PyObject *slots)
{
    PyObject *items = PySequence_Fast(slots, "Code: slots must be a sequence");
    if (items == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
        Py_ssize_t offset;
        unsigned long long value;
        int relative;
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "nKp:Code slot", &offset, &value, &relative)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "Code: a slot is (offset, value, relative)");
            }
            Py_DECREF(items);
            return -1;
        }
        if (offset < 0 || offset > image_size - (Py_ssize_t)sizeof(uint64_t)) {
            PyErr_SetString(PyExc_ValueError, "Code: a slot is outside the image");
            Py_DECREF(items);
            return -1;
        }
        uint64_t address = (uint64_t)value + (relative ? (uint64_t)(uintptr_t)self->image.memory : 0);
        memcpy(self->image.memory + offset, &address, sizeof address);
    }
    Py_DECREF(items);
    return 0;
}

static PyObject *
code_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "slots", NULL};
    Py_buffer image;
    PyObject *slots;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*O:Code", names, &image, &slots)) {
        return NULL;
    }
    Code *self = (Code *)type->tp_alloc(type, 0);
    if (self == NULL) {
        PyBuffer_Release(&image);
        return NULL;
    }
    bool is_mapped = smelt_code_image_map(&self->image, image.buf, (size_t)image.len);
    if (is_mapped && fill_slots(self, image.len, slots) < 0) {
        Py_CLEAR(self);
    }
    else if (!is_mapped || !smelt_code_image_seal(&self->image)) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    PyBuffer_Release(&image);
    return (PyObject *)self;
}

static void
code_dealloc(Code *self)
{
    smelt_code_image_unmap(&self->image);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
code_address(Code *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(self->image.memory);
}

static PyGetSetDef attributes[] = {
    {"address", (getter)code_address, NULL, PyDoc_STR("Where the image begins."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject CodeType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Code",
    .tp_basicsize = sizeof(Code),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = code_new,
    .tp_dealloc = (destructor)code_dealloc,
    .tp_getset = attributes,
    .tp_doc = PyDoc_STR("Machine code in memory; it stays there as long as this object does."),
};
