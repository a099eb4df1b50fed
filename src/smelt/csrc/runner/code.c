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

/* Python found it: what a slot is filled with is all in its addend. */
static smelt_status
find_nothing(const void *Py_UNUSED(context), const SlotRecord *Py_UNUSED(slot), uint64_t *address,
             smelt_error *Py_UNUSED(error))
{
    *address = 0;
    return SMELT_OK;
}

static PyObject *
code_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "slots", NULL};
    Py_buffer image;
    PyObject *slots;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*S:Code", names, &image, &slots)) {
        return NULL;
    }
    Code *self = NULL;
    if (PyBytes_GET_SIZE(slots) % (Py_ssize_t)sizeof(SlotRecord)) {
        PyErr_SetString(PyExc_ValueError, "Code: slots of four words each");
    }
    else {
        self = (Code *)type->tp_alloc(type, 0);
    }
    const int64_t count = PyBytes_GET_SIZE(slots) / (int64_t)sizeof(SlotRecord);
    smelt_error error;
    if (self
        && smelt_code_image_load(&self->image, image.buf, (size_t)image.len, (const SlotRecord *)PyBytes_AS_STRING(slots),
                                 count, find_nothing, NULL, &error)) {
        PyErr_SetString(error.status == SMELT_ERROR_FILE ? PyExc_ValueError : PyExc_OSError, error.message);
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
