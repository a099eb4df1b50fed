/* PyTorch's C interface: functions found by name at run time (torch_abi/aoti_shims.py). Building needs no PyTorch
   header, importing needs no PyTorch. */
#ifndef SMELT_LIBRARY_H
#define SMELT_LIBRARY_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* A tensor as the interface takes it. One that the interface made is freed with `drop`; the one inside a Python object
   lives as long as that does. */
typedef struct TensorHandle *Handle;
typedef struct ListOfValues *ListHandle;

/* All but `wrap` return 0, or something else for an error that the interface keeps to itself, and want no GIL. */
typedef struct {
    PyTypeObject *tensor, *parameter; /* classes whose objects have the handle's tensor at `body`; NULL: none known */
    Py_ssize_t body;
    Py_ssize_t storage; /* how far into the tensor's own body what it keeps of its memory is pointed to; 0: not known */
    Py_ssize_t data, bytes, resizable; /* how far into that the address of the memory is, how long it is, and whether
                                          PyTorch allocated it; 0: not known */
    int32_t (*data_ptr)(Handle, void **address);
    int32_t (*empty_strided)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,
                             int32_t number, Handle *result);
    int32_t (*view)(Handle, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, Handle *result);
    int32_t (*drop)(Handle);
    int32_t (*new_handle)(Handle, Handle *result); /* of the same tensor */
    PyObject *(*wrap)(Handle); /* a new reference to the Python object of a tensor; its handle is still to be dropped */
    /* Any operator through the dispatcher, with what its arguments are made of (runner/native_call.c); NULL: not known.
       Of new_value and operator_new, which both make room for one value, one may be missing. */
    int32_t (*call_dispatcher)(const char *name, const char *overload, uint64_t *stack, uint64_t version);
    uint64_t (*version)(void);
    int32_t (*new_list)(size_t reserved, ListHandle *result);
    int32_t (*push_back)(ListHandle, uint64_t item);
    int32_t (*list_size)(ListHandle, size_t *size);
    int32_t (*list_get)(ListHandle, size_t place, uint64_t *item);
    int32_t (*drop_list)(ListHandle);
    int32_t (*new_string)(const char *text, size_t length, void **result);
    int32_t (*new_value)(uint64_t **result);
    void *(*operator_new)(size_t size);
    int32_t (*rank)(Handle, int64_t *rank);
    int32_t (*sizes)(Handle, int64_t **sizes);
    int32_t (*strides)(Handle, int64_t **strides);
    int32_t (*dtype)(Handle, int32_t *dtype);
    int32_t (*device_index)(Handle, int32_t *number); /* -1 on the CPU */
    int32_t (*item_bool)(Handle, bool *value);
} Library;

extern Library library;

/* The tensor inside a Python object of one of the two classes; NULL for any other object. */
static inline Handle
library_handle(PyObject *object)
{
    bool is_plain = library.tensor && (Py_TYPE(object) == library.tensor || Py_TYPE(object) == library.parameter);
    return is_plain ? (Handle)((char *)object + library.body) : NULL;
}

/* A function of the interface by its name; NULL: set_library was not given it. With the GIL. */
void (*library_function(const char *name))(void);

/* set_library(tensor, parameter, body, storage, memory, functions), storages(tensors) and overlap(tensors, written):
   see _native.pyi. */
PyObject *set_library(PyObject *module, PyObject *args);
PyObject *library_storages(PyObject *module, PyObject *tensors);
PyObject *library_overlap(PyObject *module, PyObject *args);

#endif
