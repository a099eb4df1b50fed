/* The singleton NULL: it cannot be created again, copied into another object, or mistaken for None. */
#include "frame/unbound.h"

static PyObject *
null_repr(PyObject *Py_UNUSED(self))
{
    return PyUnicode_FromString("NULL");
}

static void
null_dealloc(PyObject *self)
{
    Py_SET_REFCNT(self, 1); /* static: reached only if somebody miscounts */
}

static PyObject *
null_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
    return PyUnicode_FromString("NULL"); /* pickle and copy find the singleton by its name in this module */
}

static PyMethodDef null_methods[] = {
    {"__reduce__", null_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject NullType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.NullType",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = null_repr,
    .tp_dealloc = null_dealloc,
    .tp_methods = null_methods,
    .tp_doc = PyDoc_STR("An empty stack slot or an unbound local."),
};

PyObject smelt_null = {.ob_refcnt = 1, .ob_type = &NullType};
