/* Calls functions that query the state of the process; several run before every call of compiled code. */
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
