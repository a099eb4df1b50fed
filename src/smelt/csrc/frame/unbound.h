/* NULL, the Python object for an empty stack slot or an unbound local. */
#ifndef SMELT_NULL_H
#define SMELT_NULL_H

#include <Python.h>

extern PyObject smelt_null; /* a singleton; compare with `== &smelt_null` */
extern PyTypeObject NullType;

/* A C slot as Python sees it: NULL pointers become the NULL object. New reference. */
static inline PyObject *
slot_to_python(PyObject *value)
{
    return Py_NewRef(value ? value : &smelt_null);
}

/* The reverse, borrowed. */
static inline PyObject *
slot_from_python(PyObject *value)
{
    return value == &smelt_null ? NULL : value;
}

#endif
