/* The addresses of PyTorch's C interface, and access to tensors. */
#include "runner/aoti_library.h"

#include <stddef.h>

Library library;
static PyObject *addresses; /* of functions, by name */

/* --- setting it all --------------------------------------------------------------------------- */

#define LIBRARY_ROW(type, name, field, is_needed, parameters) {#name, offsetof(Library, field), is_needed},
static const LibraryFunction functions[] = {LIBRARY_FUNCTIONS(LIBRARY_ROW)};

/* The address under a name, NULL if there is none; -1 with an exception. */
static int
address_of(PyObject *functions, const char *name, void **address)
{
    PyObject *number = PyDict_GetItemString(functions, name);
    *address = number ? PyLong_AsVoidPtr(number) : NULL;
    return *address == NULL && PyErr_Occurred() ? -1 : 0;
}

void (*library_function(const char *name))(void)
{
    void *address = NULL;
    void (*function)(void);
    if (addresses && address_of(addresses, name, &address) < 0) {
        PyErr_Clear();
    }
    memcpy(&function, &address, sizeof function);
    return function;
}

int
library_read(PyObject *given, const LibraryFunction *wanted, size_t count, void *table)
{
    if (!PyDict_Check(given)) {
        PyErr_Format(PyExc_TypeError, "addresses of functions are in a dict, not in %R", Py_TYPE(given));
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        void *address;
        if (address_of(given, wanted[i].name, &address) < 0) {
            return -1;
        }
        if (address == NULL && wanted[i].is_needed) {
            PyErr_Format(PyExc_ValueError, "set_library: no address of %s", wanted[i].name);
            return -1;
        }
        memcpy((char *)table + wanted[i].place, &address, sizeof address);
    }
    return 0;
}

PyObject *
set_library(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *parameter, *function_addresses;
    Py_ssize_t body, storage, data, bytes, resizable;
    if (!PyArg_ParseTuple(args, "O!O!nn(nnn)O!:set_library", &PyType_Type, &tensor, &PyType_Type, &parameter, &body,
                          &storage, &data, &bytes, &resizable, &PyDict_Type, &function_addresses)) {
        return NULL;
    }
    Library opened = {.body = body, .storage = storage, .data = data, .bytes = bytes, .resizable = resizable};
    if (library_read(function_addresses, functions, Py_ARRAY_LENGTH(functions), &opened) < 0) {
        return NULL;
    }
    bool has_all = opened.call_dispatcher && opened.version && opened.new_list && opened.push_back && opened.list_size
                   && opened.list_get && opened.drop_list && opened.new_string && (opened.new_value || opened.operator_new)
                   && opened.rank && opened.sizes && opened.strides && opened.dtype;
    opened.call_dispatcher = has_all ? opened.call_dispatcher : NULL;
    opened.tensor = (PyTypeObject *)Py_NewRef(tensor); /* for good: objects of theirs are looked into */
    opened.parameter = (PyTypeObject *)Py_NewRef(parameter);
    library = opened;
    Py_XSETREF(addresses, Py_NewRef(function_addresses));
    Py_RETURN_NONE;
}

/* --- looking into tensors --------------------------------------------------------------------- */

PyObject *
library_storages(PyObject *Py_UNUSED(module), PyObject *tensors)
{
    if (!PyList_CheckExact(tensors) && !PyTuple_CheckExact(tensors)) {
        return PyErr_Format(PyExc_TypeError, "storages() needs a list or a tuple, not %R", Py_TYPE(tensors));
    }
    if (library.tensor == NULL || library.storage == 0) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(tensors);
    PyObject *pointers = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(void *));
    for (Py_ssize_t i = 0; pointers && i < count; i++) {
        const char *storage = library_storage(PySequence_Fast_GET_ITEM(tensors, i));
        memcpy(PyBytes_AS_STRING(pointers) + i * (Py_ssize_t)sizeof storage, &storage, sizeof storage);
    }
    return pointers;
}
