/* The addresses of PyTorch's C interface, and the operators it has a function for. */
#include "runner/aoti_library.h"

#include <stddef.h>
#include <string.h>

Library library;

/* --- operators -------------------------------------------------------------------------------- */

static int32_t
product(void (*function)(void), Handle *tensors, const double *Py_UNUSED(numbers))
{
    return ((int32_t(*)(Handle, Handle, Handle))function)(tensors[0], tensors[1], tensors[2]);
}

static int32_t
sum_and_product(void (*function)(void), Handle *tensors, const double *numbers)
{
    return ((int32_t(*)(Handle, Handle, Handle, Handle, double, double))function)(
        tensors[0], tensors[1], tensors[2], tensors[3], numbers[0], numbers[1]);
}

static LibraryCall calls[] = {
    {"aoti_torch_cpu_mm_out", 3, 0, NULL, product},
    {"aoti_torch_cpu_bmm_out", 3, 0, NULL, product},
    {"aoti_torch_cpu_addmm_out", 4, 2, NULL, sum_and_product},
    {"aoti_torch_cpu_baddbmm_out", 4, 2, NULL, sum_and_product},
};

const LibraryCall *
library_call(const char *name)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(calls); i++) {
        if (strcmp(calls[i].name, name) == 0) {
            return calls[i].function ? &calls[i] : NULL;
        }
    }
    return NULL;
}

/* --- setting it all --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t place;
} functions[] = {
    {"aoti_torch_get_data_ptr", offsetof(Library, data_ptr)},
    {"aoti_torch_empty_strided", offsetof(Library, empty_strided)},
    {"aoti_torch__reinterpret_tensor", offsetof(Library, view)},
    {"aoti_torch_delete_tensor_object", offsetof(Library, drop)},
    {"wrap", offsetof(Library, wrap)},
};

/* The address under a name, NULL if there is none; -1 with an exception. */
static int
address_of(PyObject *given, const char *name, void **address)
{
    PyObject *found = PyDict_GetItemString(given, name);
    *address = found ? PyLong_AsVoidPtr(found) : NULL;
    return *address == NULL && PyErr_Occurred() ? -1 : 0;
}

PyObject *
set_library(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *parameter, *given;
    Py_ssize_t body, storage, data, bytes, resizable;
    if (!PyArg_ParseTuple(args, "O!O!nn(nnn)O!:set_library", &PyType_Type, &tensor, &PyType_Type, &parameter, &body,
                          &storage, &data, &bytes, &resizable, &PyDict_Type, &given)) {
        return NULL;
    }
    Library made = {.body = body, .storage = storage, .data = data, .bytes = bytes, .resizable = resizable};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(functions); i++) {
        void *address;
        if (address_of(given, functions[i].name, &address) < 0) {
            return NULL;
        }
        if (address == NULL) {
            PyErr_Format(PyExc_ValueError, "set_library: no address of %s", functions[i].name);
            return NULL;
        }
        memcpy((char *)&made + functions[i].place, &address, sizeof address);
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(calls); i++) {
        void *address;
        if (address_of(given, calls[i].name, &address) < 0) {
            return NULL;
        }
        memcpy(&calls[i].function, &address, sizeof address);
    }
    made.tensor = (PyTypeObject *)Py_NewRef(tensor); /* for good: objects of theirs are looked into */
    made.parameter = (PyTypeObject *)Py_NewRef(parameter);
    library = made;
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
    PyObject *made = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(void *));
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject *object = PySequence_Fast_GET_ITEM(tensors, i);
        char *place = PyBytes_AS_STRING(made) + i * (Py_ssize_t)sizeof(void *);
        memset(place, 0, sizeof(void *));
        if (PyObject_TypeCheck(object, library.tensor)) {
            char *body;
            memcpy(&body, (char *)object + library.body, sizeof body);
            if (body) {
                memcpy(place, body + library.storage, sizeof(void *));
            }
        }
    }
    return made;
}
