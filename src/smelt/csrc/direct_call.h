/* Calls of functions that query the state of the process, several before every call of compiled code, and exceptions. */
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

/* The exception that is set, taken off. */
static inline PyObject *
take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace) {
        PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return error;
#endif
}

#endif
