/* The addresses of PyTorch's C interface, and access to tensors. */
#include "runner/aoti_library.h"

#include <stddef.h>
#include <string.h>

Library library;
static PyObject *addresses; /* of functions, by name */

/* --- setting it all --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t place;
    bool is_needed; /* else it stays NULL where there is none */
} functions[] = {
    {"aoti_torch_get_data_ptr", offsetof(Library, data_ptr), true},
    {"aoti_torch_empty_strided", offsetof(Library, empty_strided), true},
    {"aoti_torch__reinterpret_tensor", offsetof(Library, view), true},
    {"aoti_torch_delete_tensor_object", offsetof(Library, drop), true},
    {"aoti_torch_new_tensor_handle", offsetof(Library, new_handle), true},
    {"wrap", offsetof(Library, wrap), true},
    {"torch_call_dispatcher", offsetof(Library, call_dispatcher), false},
    {"aoti_torch_abi_version", offsetof(Library, version), false},
    {"torch_new_list_reserve_size", offsetof(Library, new_list), false},
    {"torch_list_push_back", offsetof(Library, push_back), false},
    {"torch_list_size", offsetof(Library, list_size), false},
    {"torch_list_get_item", offsetof(Library, list_get), false},
    {"torch_delete_list", offsetof(Library, drop_list), false},
    {"torch_new_string_handle", offsetof(Library, new_string), false},
    {"torch_new_stable_ivalue", offsetof(Library, new_value), false},
    {"_Znwm", offsetof(Library, operator_new), false},
    {"aoti_torch_get_dim", offsetof(Library, rank), false},
    {"aoti_torch_get_sizes", offsetof(Library, sizes), false},
    {"aoti_torch_get_strides", offsetof(Library, strides), false},
    {"aoti_torch_get_dtype", offsetof(Library, dtype), false},
    {"aoti_torch_get_device_index", offsetof(Library, device_index), false},
    {"aoti_torch_item_bool", offsetof(Library, item_bool), false},
};

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
    for (size_t i = 0; i < Py_ARRAY_LENGTH(functions); i++) {
        void *address;
        if (address_of(function_addresses, functions[i].name, &address) < 0) {
            return NULL;
        }
        if (address == NULL && functions[i].is_needed) {
            PyErr_Format(PyExc_ValueError, "set_library: no address of %s", functions[i].name);
            return NULL;
        }
        memcpy((char *)&opened + functions[i].place, &address, sizeof address);
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
        PyObject *object = PySequence_Fast_GET_ITEM(tensors, i);
        char *place = PyBytes_AS_STRING(pointers) + i * (Py_ssize_t)sizeof(void *);
        memset(place, 0, sizeof(void *));
        if (PyObject_TypeCheck(object, library.tensor)) {
            char *body;
            memcpy(&body, (char *)object + library.body, sizeof body);
            if (body) {
                memcpy(place, body + library.storage, sizeof(void *));
            }
        }
    }
    return pointers;
}
