/* Accumulates gradients into the `.grad` of leaves, as PyTorch's engine does. Handles two cases: a first gradient that
   nothing else refers to and that has the leaf's layout, and a gradient added to one like it. Python handles the
   others. */
#include "autograd/graph_read.h"

#include "guards/guards.h"

#include <string.h>

static PyObject *name_variable, *name_grad, *name_add, *name_is_view;

int
accumulate_grad_init(void)
{
    name_variable = PyUnicode_InternFromString("variable");
    name_grad = PyUnicode_InternFromString("grad");
    name_add = PyUnicode_InternFromString("add_");
    name_is_view = PyUnicode_InternFromString("_is_view");
    return name_variable && name_grad && name_add && name_is_view ? 0 : -1;
}

/* Whether two tensors are alike in dtype, device, sizes and strides, and row-major without gaps. */
static bool
lie_alike(PyObject *one, PyObject *other)
{
    uint64_t words[TENSOR_WORDS], others[TENSOR_WORDS];
    int count = tensor_memory_words(one, words);
    if (count == 0 || tensor_memory_words(other, others) != count || memcmp(words, others, (size_t)count * sizeof *words)) {
        return false;
    }
    uint64_t expected = 1;
    const uint64_t *strides = words + count - words[0], *sizes = strides - words[0];
    for (uint64_t i = words[0]; i-- > 0; expected *= sizes[i]) {
        if (strides[i] != expected) {
            return false;
        }
    }
    return true;
}

/* 1: done, 0: it is not one of the plain ones, -1: an exception. */
static int
accumulate_plain(PyObject *leaf, PyObject *before, PyObject *gradient, bool owned)
{
    if (!tensor_memory_is_plain(gradient)) {
        return 0;
    }
    if (before == Py_None) {
        if (!owned || !lie_alike(leaf, gradient)) {
            return 0;
        }
        PyObject *is_view = PyObject_CallMethodNoArgs(gradient, name_is_view);
        Py_XDECREF(is_view);
        if (is_view != Py_False) {
            return is_view ? 0 : -1;
        }
        return PyObject_SetAttr(leaf, name_grad, gradient) < 0 ? -1 : 1;
    }
    if (!tensor_memory_is_plain(before) || !lie_alike(before, gradient)) {
        return 0;
    }
    PyObject *sum = PyObject_CallMethodOneArg(before, name_add, gradient);
    Py_XDECREF(sum);
    return sum ? 1 : -1;
}

/* 0, or -1 with an exception. */
static int
accumulate_one(PyObject *node, PyObject *gradient, PyObject *otherwise)
{
    bool owned = Py_REFCNT(gradient) == 1;
    PyObject *leaf = PyObject_GetAttr(node, name_variable);
    PyObject *before = leaf ? PyObject_GetAttr(leaf, name_grad) : NULL;
    int done = before ? accumulate_plain(leaf, before, gradient, owned) : -1;
    Py_XDECREF(before);
    if (done == 0) {
        PyObject *arguments[] = {leaf, gradient, owned ? Py_True : Py_False};
        PyObject *result = PyObject_Vectorcall(otherwise, arguments, 3, NULL);
        Py_XDECREF(result);
        done = result ? 1 : -1;
    }
    Py_XDECREF(leaf);
    return done < 0 ? -1 : 0;
}

PyObject *
accumulate_grads(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *nodes, *values, *places, *otherwise;
    if (!PyArg_ParseTuple(args, "O!O!O!O:accumulate_grads", &PyList_Type, &nodes, &PyList_Type, &values, &PyTuple_Type, &places,
                          &otherwise)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        Py_ssize_t number, slot;
        int is_last;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(places, i), "nnp:accumulate_grads", &number, &slot, &is_last)) {
            return NULL;
        }
        if (number < 0 || number >= PyList_GET_SIZE(nodes) || slot < 0 || slot >= PyList_GET_SIZE(values)) {
            PyErr_SetString(PyExc_IndexError, "accumulate_grads(): there is no such node or value");
            return NULL;
        }
        PyObject *gradient = Py_NewRef(PyList_GET_ITEM(values, slot));
        if (is_last) {
            PyList_SetItem(values, slot, Py_NewRef(Py_None));
        }
        int status = accumulate_one(PyList_GET_ITEM(nodes, number), gradient, otherwise);
        Py_DECREF(gradient);
        if (status < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}
