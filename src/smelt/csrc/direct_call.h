/* Calls of functions that ask the process for its state, a few of them before every call of anything compiled. */
#ifndef SMELT_DIRECT_H
#define SMELT_DIRECT_H

#include <Python.h>

/* function(). One in C that takes nothing is called as it stands: what CPython does around it is no use here. */
static inline PyObject *
call_directly(PyObject *function)
{
    if (PyCFunction_CheckExact(function) && PyCFunction_GET_FLAGS(function) == METH_NOARGS) {
        return PyCFunction_GET_FUNCTION(function)(PyCFunction_GET_SELF(function), NULL);
    }
    return PyObject_CallNoArgs(function);
}

#endif
