/* Code: maps an image of machine code, fills its slots with addresses, and makes it executable and read-only.

   The image is position-independent except for its slots, eight bytes each. */
#include "runner/code_image.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    char *memory;
    size_t size;
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
        uint64_t address = (uint64_t)value + (relative ? (uint64_t)(uintptr_t)self->memory : 0);
        memcpy(self->memory + offset, &address, sizeof address);
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
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = ((size_t)image.len + page) / page * page; /* never none */
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto failed;
    }
    self->memory = memory;
    self->size = size;
    memcpy(memory, image.buf, (size_t)image.len);
    if (fill_slots(self, image.len, slots) < 0) {
        goto failed;
    }
    if (mprotect(memory, size, PROT_READ | PROT_EXEC) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        goto failed;
    }
    __builtin___clear_cache(memory, memory + size);
    PyBuffer_Release(&image);
    return (PyObject *)self;
failed:
    PyBuffer_Release(&image);
    Py_DECREF(self);
    return NULL;
}

static void
code_dealloc(Code *self)
{
    if (self->memory) {
        munmap(self->memory, self->size);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
code_address(Code *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(self->memory);
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
