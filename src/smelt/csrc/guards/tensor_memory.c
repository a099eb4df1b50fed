/* Checks a tensor by reading PyTorch's memory: a few loads and comparisons instead of calls that create objects.

   Nothing here depends on PyTorch's headers. Capture determines the layout by experiments on tensors it creates
   (torch_abi/tensor_layout.py) and sets it once. Until then, and wherever an experiment has no clear outcome, this
   check never passes and the full check decides. It passes only for a tensor whose type, sizes and strides are the
   expected ones and whose dtype, device and flags are bit-identical to those of one that passed the full check. */
#include "guards/guards.h"

#include <string.h>

enum { HISTORY_WORDS = 4 };

static struct {
    int known;
    PyTypeObject *base; /* the class all this is true of, and of its subclasses; nothing else is ever read */
    int body;      /* byte offset of the pointer to the tensor's body in its Python object */
    int rank;      /* byte offsets in the body: the number of dimensions, */
    int sizes;     /* the sizes, if they are no more than `dimensions`, */
    int strides;   /* and the strides; */
    int kind;      /* dtype, device, flags: so many words from here, */
    int kind_words;
    uint64_t masks[KIND_WORDS]; /* with the bits that mean something; */
    int gradient;  /* the pointer to what autograd knows of it, NULL: nothing */
    uint64_t plain; /* the first word there unless the tensor is a view; */
    int wanted;    /* byte offset there of the flag that a gradient is wanted, */
    uint64_t history[HISTORY_WORDS]; /* and of so many words that are all zero if the tensor was not computed from others */
    int history_words;
    int dimensions;
} layout;

/* Copies a tuple of 1 to `most` integers; their number, or -1 with an exception. */
static int
take_integers(PyObject *tuple, const char *name, int most, uint64_t *integers)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (count < 1 || count > most) {
        PyErr_Format(PyExc_ValueError, "set_tensor_layout() takes 1 to %d %s, not %zd", most, name, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        integers[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, i));
    }
    return PyErr_Occurred() ? -1 : (int)count;
}

PyObject *
set_tensor_layout(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"base",     "body",     "rank",   "sizes",   "strides",    "kind", "kind_masks",
                            "gradient", "plain",    "wanted", "history", "dimensions", NULL};
    int body, rank, sizes, strides, kind, gradient, wanted, dimensions;
    unsigned long long plain;
    PyObject *base, *kind_masks, *history;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!iiiiiO!iKiO!i:set_tensor_layout", names, &PyType_Type, &base,
                                     &body, &rank, &sizes, &strides, &kind, &PyTuple_Type, &kind_masks, &gradient,
                                     &plain, &wanted, &PyTuple_Type, &history, &dimensions)) {
        return NULL;
    }
    uint64_t masks[KIND_WORDS], places[HISTORY_WORDS];
    int kind_words = take_integers(kind_masks, "kind_masks", KIND_WORDS, masks);
    int history_words = kind_words < 0 ? -1 : take_integers(history, "places of history", HISTORY_WORDS, places);
    if (history_words < 0) {
        return NULL;
    }
    Py_INCREF(base);
    Py_XSETREF(layout.base, (PyTypeObject *)base);
    layout.body = body, layout.rank = rank, layout.sizes = sizes, layout.strides = strides, layout.kind = kind;
    layout.gradient = gradient, layout.plain = plain, layout.wanted = wanted, layout.dimensions = dimensions;
    layout.kind_words = kind_words, layout.history_words = history_words;
    memcpy(layout.masks, masks, sizeof masks);
    memcpy(layout.history, places, sizeof places);
    layout.known = SIZEOF_VOID_P == 8;
    Py_RETURN_NONE;
}

static bool
same_words(const char *memory, const int64_t *expected, Py_ssize_t count)
{
    const int64_t *words = (const int64_t *)memory;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (words[i] != expected[i] && expected[i] != ANY_SIZE) {
            return false;
        }
    }
    return true;
}

/* `record` is what autograd knows of the tensor, or NULL. A tensor computed from others wants a gradient without the
   flag, and so does a view once what it looks at was written from such a tensor: those take the slow path. */
static bool
same_gradient(const TensorSpec *spec, const char *record)
{
    if (record == NULL || record[layout.wanted] == 1) {
        return spec->requires_grad == (record != NULL);
    }
    if (*(const uint64_t *)record != layout.plain) {
        return false;
    }
    for (int i = 0; i < layout.history_words; i++) {
        if (*(const uint64_t *)(record + layout.history[i])) {
            return false;
        }
    }
    return !spec->requires_grad;
}

bool
tensor_memory_holds(const TensorSpec *spec, PyObject *value)
{
    if (!layout.known || !spec->seen || (PyObject *)Py_TYPE(value) != spec->type) {
        return false;
    }
    const char *body = *(const char **)((const char *)value + layout.body);
    if (body == NULL || *(const int64_t *)(body + layout.rank) != spec->rank) {
        return false;
    }
    const uint64_t *kind = (const uint64_t *)(body + layout.kind);
    for (int i = 0; i < layout.kind_words; i++) {
        if ((kind[i] ^ spec->kind[i]) & layout.masks[i]) {
            return false;
        }
    }
    if (!same_words(body + layout.sizes, spec->sizes, spec->rank)
        || (!spec->any_stride && !same_words(body + layout.strides, spec->sizes + spec->rank, spec->rank))) {
        return false;
    }
    return same_gradient(spec, *(const char **)(body + layout.gradient));
}

void
tensor_memory_learn(TensorSpec *spec, PyObject *value)
{
    if (!layout.known || spec->rank > layout.dimensions || !PyType_IsSubtype(Py_TYPE(value), layout.base)) {
        return;
    }
    const char *body = *(const char **)((const char *)value + layout.body);
    if (body) {
        memcpy(spec->kind, body + layout.kind, (size_t)layout.kind_words * sizeof spec->kind[0]);
        spec->seen = true;
    }
}

int
tensor_memory_words(PyObject *value, uint64_t *words)
{
    if (!layout.known || !PyType_IsSubtype(Py_TYPE(value), layout.base)) {
        return 0;
    }
    const char *body = *(const char **)((const char *)value + layout.body);
    int64_t rank = body ? *(const int64_t *)(body + layout.rank) : -1;
    if (rank < 0 || rank > layout.dimensions || rank > TENSOR_DIMENSIONS) {
        return 0;
    }
    int count = 0;
    words[count++] = (uint64_t)rank;
    for (int i = 0; i < layout.kind_words; i++) {
        words[count++] = ((const uint64_t *)(body + layout.kind))[i] & layout.masks[i];
    }
    memcpy(words + count, body + layout.sizes, (size_t)rank * sizeof *words);
    memcpy(words + count + rank, body + layout.strides, (size_t)rank * sizeof *words);
    return count + 2 * (int)rank;
}

bool
tensor_memory_is_plain(PyObject *value)
{
    return layout.known && Py_TYPE(value) == layout.base;
}

bool
tensor_memory_size(PyObject *value, bool stride, Py_ssize_t dimension, int64_t *size)
{
    if (!layout.known || !PyType_IsSubtype(Py_TYPE(value), layout.base)) {
        return false;
    }
    const char *body = *(const char **)((const char *)value + layout.body);
    int64_t rank = body ? *(const int64_t *)(body + layout.rank) : 0;
    if (dimension >= rank || rank > layout.dimensions) {
        return false;
    }
    *size = ((const int64_t *)(body + (stride ? layout.strides : layout.sizes)))[dimension];
    return true;
}

bool
tensor_memory_offset(PyObject *value, int64_t *offset)
{
    if (!layout.known || !PyType_IsSubtype(Py_TYPE(value), layout.base)) {
        return false;
    }
    const char *body = *(const char **)((const char *)value + layout.body);
    if (body == NULL) {
        return false;
    }
    /* It is behind the strides: the experiment has held that against tensors with several offsets. */
    *offset = ((const int64_t *)(body + layout.strides))[layout.dimensions];
    return true;
}
