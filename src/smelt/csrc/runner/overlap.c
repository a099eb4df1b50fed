/* Whether written tensors overlap others, by address: memory that PyTorch did not allocate (an array of numpy's, a
   buffer, shared memory) may be behind any number of storages. */
#include "runner/aoti_library.h"

#include <stdlib.h>

typedef struct {
    uintptr_t start, end;
    bool written;
} Range;

enum { FEW = 64, NOT_MAPPED_TWICE = 0, OVERLAP = 1, MAYBE_MAPPED_TWICE = 2, WRITES_NO_MEMORY = 3 };

static int
by_start(const void *one, const void *other)
{
    uintptr_t first = ((const Range *)one)->start, second = ((const Range *)other)->start;
    return (first > second) - (first < second);
}

/* One walk from the lowest address up, knowing how far what came before reaches. */
static bool
any_overlap(Range *ranges, Py_ssize_t count)
{
    uintptr_t end = 0, written_end = 0;
    bool sorted = true;
    for (Py_ssize_t i = 1; i < count && sorted; i++) {
        sorted = ranges[i - 1].start <= ranges[i].start;
    }
    if (!sorted) {
        qsort(ranges, (size_t)count, sizeof *ranges, by_start);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const Range *range = &ranges[i];
        if (range->start < written_end || (range->written && range->start < end)) {
            return true;
        }
        end = range->end > end ? range->end : end;
        written_end = range->written && range->end > written_end ? range->end : written_end;
    }
    return false;
}

/* Fills in the ranges of all that have memory; the answer as far as it shows without comparing them. */
static int
collect(PyObject *tensors, PyObject *written, Range *ranges, Py_ssize_t *filled)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(tensors), writes = PyTuple_GET_SIZE(written), foreign = 0;
    bool writes_foreign = false, writes_none = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        ranges[i].written = false;
    }
    for (Py_ssize_t i = 0; i < writes; i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(written, i));
        if (place < 0 || place >= count) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_IndexError, "overlap(): a written tensor is not among those given");
            }
            return -1;
        }
        ranges[place].written = true;
    }
    Py_ssize_t next = 0; /* never ahead of `i`: what is overwritten has been read */
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *storage = library_storage(PySequence_Fast_GET_ITEM(tensors, i));
        uint64_t start = 0, bytes = 0;
        if (storage != NULL) {
            memcpy(&start, storage + library.data, sizeof start);
            memcpy(&bytes, storage + library.bytes, sizeof bytes);
        }
        bool is_written = ranges[i].written;
        if (start == 0 || bytes == 0) {
            writes_none = writes_none || is_written;
            continue;
        }
        if (!storage[library.resizable]) {
            foreign++;
            writes_foreign = writes_foreign || is_written;
        }
        ranges[next++] = (Range){(uintptr_t)start, (uintptr_t)(start + bytes), is_written};
    }
    *filled = next;
    if (writes_none) {
        return WRITES_NO_MEMORY;
    }
    return foreign > 1 && writes_foreign ? MAYBE_MAPPED_TWICE : NOT_MAPPED_TWICE;
}

PyObject *
library_overlap(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensors, *written;
    if (!PyArg_ParseTuple(args, "OO!:overlap", &tensors, &PyTuple_Type, &written)) {
        return NULL;
    }
    if (!PyList_CheckExact(tensors) && !PyTuple_CheckExact(tensors)) {
        return PyErr_Format(PyExc_TypeError, "overlap() needs a list or a tuple, not %R", Py_TYPE(tensors));
    }
    if (library.tensor == NULL || library.storage == 0 || library.data == 0) {
        Py_RETURN_NONE;
    }
    Range few[FEW], *ranges = few;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(tensors), filled = 0;
    if (count > FEW) {
        ranges = PyMem_New(Range, count);
        if (ranges == NULL) {
            return PyErr_NoMemory();
        }
    }
    int status = collect(tensors, written, ranges, &filled);
    if (status >= 0 && status != WRITES_NO_MEMORY && any_overlap(ranges, filled)) {
        status = OVERLAP;
    }
    if (ranges != few) {
        PyMem_Free(ranges);
    }
    return status < 0 ? NULL : PyLong_FromLong(status);
}
