/* The value of a tensor in the current recording, read from memory. */
#include "guards/guards.h"
#include "lazy/lazy.h"

#include <string.h>

/* --- dtypes ----------------------------------------------------------------------------------- */

/* What the words that tell dtype, device and flags of a tensor say, asked of the first tensor that had them: its dtype,
   or None unless it is a plain tensor of the device (not conjugated, not negated). Under the GIL. */
enum { KINDS = 512 };

static struct {
    uint64_t words[KIND_WORDS];
    PyObject *dtype; /* NULL: nothing is here */
} kinds[KINDS];

static int kinds_used;

static size_t
home_of(const uint64_t *words, int count)
{
    uint64_t mixed = 0;
    for (int i = 0; i < count; i++) {
        mixed = (mixed ^ words[i]) * 0x9E3779B97F4A7C15u;
        mixed ^= mixed >> 29;
    }
    return (size_t)(mixed % KINDS);
}

/* Borrowed, of a tensor of this kind; NULL with an exception. */
static PyObject *
plain_dtype(LazyRecorder *recorder, PyObject *tensor, const uint64_t *words, int count)
{
    size_t place = home_of(words, count);
    while (kinds[place].dtype && memcmp(kinds[place].words, words, (size_t)count * sizeof *words)) {
        place = (place + 1) % KINDS;
    }
    if (kinds[place].dtype) {
        return kinds[place].dtype;
    }
    if (kinds_used > KINDS / 2) {
        return Py_None;
    }
    PyObject *dtype = PyObject_CallMethod((PyObject *)recorder, "plain_dtype", "O", tensor);
    if (dtype == NULL) {
        return NULL;
    }
    if (kinds[place].dtype) { /* another thread was there */
        Py_DECREF(dtype);
        return Py_None;
    }
    memcpy(kinds[place].words, words, (size_t)count * sizeof *words);
    kinds[place].dtype = dtype; /* for good: dtypes live as long as PyTorch */
    kinds_used++;
    return dtype;
}

/* --- values ----------------------------------------------------------------------------------- */

typedef struct {
    LazyMemory *memory;
    PyObject *dtype;
    int64_t rank, offset;
    const uint64_t *sizes; /* and strides */
    uint64_t words[TENSOR_WORDS];
} TensorPlace;

/* 1: found; 0: it cannot be read, or is no plain tensor of ours; -1: an exception. */
static int
find_place(LazyRecorder *recorder, PyObject *tensor, TensorPlace *place)
{
    DeviceMemory *memory = device_memory_of(tensor);
    if (memory == NULL || !PyObject_TypeCheck(memory, &LazyMemoryType)) {
        return 0;
    }
    int count = tensor_memory_words(tensor, place->words);
    if (count == 0 || !tensor_memory_offset(tensor, &place->offset)) {
        return 0;
    }
    place->memory = (LazyMemory *)memory;
    place->rank = (int64_t)place->words[0];
    int kind_count = count - 1 - 2 * (int)place->rank;
    place->dtype = plain_dtype(recorder, tensor, place->words + 1, kind_count);
    place->sizes = place->words + 1 + kind_count;
    return place->dtype == NULL ? -1 : place->dtype != Py_None;
}

/* A memory of an earlier recording becomes an input of this one. */
static int
enter(LazyRecorder *recorder, LazyMemory *memory)
{
    Recording *now = (Recording *)recorder->now;
    if (memory->real && memory->real != Py_None && (memory->lost == NULL || memory->lost == Py_None)) {
        PyObject *key[] = {Py_None, memory->whole->parts};
        Step *step = step_after((Step *)now->step, key, 2);
        if (step) {
            Py_SETREF(now->step, Py_NewRef(step));
            return PyList_Append(now->inputs, (PyObject *)memory) < 0
                           || lazy_memory_enter(memory, now->serial, step->first_value) < 0
                       ? -1
                       : 0;
        }
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    Py_INCREF(memory);
    PyObject *done = PyObject_CallMethod((PyObject *)recorder, "enter", "O", memory);
    Py_DECREF(memory);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The value of the view at a place; -1: it has none. */
static int64_t
value_at(const TensorPlace *place)
{
    const LazyMemory *memory = place->memory;
    for (int i = memory->count - 1; i >= 0; i--) {
        const StridedLayout *seen = memory->views[i].layout;
        if (seen->offset == place->offset && seen->rank == place->rank && seen->dtype == place->dtype
            && !memcmp(seen->words, place->sizes, (size_t)(2 * seen->rank) * sizeof *seen->words)) {
            return memory->views[i].value;
        }
    }
    return -1;
}

int64_t
known_value(LazyRecorder *recorder, PyObject *tensor)
{
    TensorPlace place;
    int status = find_place(recorder, tensor, &place);
    if (status <= 0) {
        return status < 0 ? -2 : -1;
    }
    if (place.memory->serial != ((Recording *)recorder->now)->serial && enter(recorder, place.memory) < 0) {
        return -2;
    }
    return value_at(&place);
}

int64_t
recorded_value(LazyRecorder *recorder, PyObject *tensor)
{
    TensorPlace place;
    int status = find_place(recorder, tensor, &place);
    if (status < 0) {
        PyErr_Clear();
    }
    return status > 0 && place.memory->serial == ((Recording *)recorder->now)->serial ? value_at(&place) : -1;
}

LazyMemory *
plain_memory(LazyRecorder *recorder, PyObject *tensor, PyObject *dtype, int64_t *offset)
{
    TensorPlace place;
    int status = find_place(recorder, tensor, &place);
    if (status < 0) {
        PyErr_Clear();
    }
    *offset = place.offset;
    return status > 0 && place.dtype == dtype ? place.memory : NULL;
}
