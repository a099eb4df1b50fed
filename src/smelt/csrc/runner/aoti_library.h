/* PyTorch's C interface: functions found by name at run time (torch_abi/aoti_shims.py). Building needs no PyTorch
   header, importing needs no PyTorch. */
#ifndef SMELT_LIBRARY_H
#define SMELT_LIBRARY_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* A tensor as the interface takes it. One that the interface made is freed with `drop`; the one inside a Python object
   lives as long as that does. */
typedef struct TensorHandle *Handle;
typedef struct ListOfValues *ListHandle;

/* F(type, name, field, whether it is needed: else it stays NULL where there is none, parameters). Those of type int32_t
   return 0, or something else for an error that the interface keeps to itself; all but `wrap` want no GIL. `view` makes a
   view of a tensor, `new_handle` a handle of the same tensor, `wrap` a new reference to the Python object of a tensor,
   whose handle is still to be dropped. The optional ones up to `operator_new` are for any operator through the dispatcher
   and what its arguments are made of (runner/native_call.c): of new_value and operator_new, which both make room for one
   value, one may be missing. `device_index` is -1 on the CPU. */
#define LIBRARY_FUNCTIONS(F)                                                                                           \
    F(int32_t, aoti_torch_get_data_ptr, data_ptr, true, (Handle, void **address))                                      \
    F(int32_t, aoti_torch_empty_strided, empty_strided, true,                                                          \
      (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device, int32_t number,      \
       Handle *result))                                                                                                \
    F(int32_t, aoti_torch__reinterpret_tensor, view, true,                                                             \
      (Handle, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, Handle *result))            \
    F(int32_t, aoti_torch_delete_tensor_object, drop, true, (Handle))                                                  \
    F(int32_t, aoti_torch_new_tensor_handle, new_handle, true, (Handle, Handle *result))                               \
    F(PyObject *, wrap, wrap, true, (Handle))                                                                          \
    F(int32_t, torch_call_dispatcher, call_dispatcher, false,                                                          \
      (const char *name, const char *overload, uint64_t *stack, uint64_t version))                                     \
    F(uint64_t, aoti_torch_abi_version, version, false, (void))                                                        \
    F(int32_t, torch_new_list_reserve_size, new_list, false, (size_t reserved, ListHandle *result))                    \
    F(int32_t, torch_list_push_back, push_back, false, (ListHandle, uint64_t item))                                    \
    F(int32_t, torch_list_size, list_size, false, (ListHandle, size_t *size))                                          \
    F(int32_t, torch_list_get_item, list_get, false, (ListHandle, size_t place, uint64_t *item))                       \
    F(int32_t, torch_delete_list, drop_list, false, (ListHandle))                                                      \
    F(int32_t, torch_new_string_handle, new_string, false, (const char *text, size_t length, void **result))           \
    F(int32_t, torch_new_stable_ivalue, new_value, false, (uint64_t **result))                                         \
    F(void *, _Znwm, operator_new, false, (size_t size))                                                               \
    F(int32_t, aoti_torch_get_dim, rank, false, (Handle, int64_t *rank))                                               \
    F(int32_t, aoti_torch_get_sizes, sizes, false, (Handle, int64_t **sizes))                                          \
    F(int32_t, aoti_torch_get_strides, strides, false, (Handle, int64_t **strides))                                    \
    F(int32_t, aoti_torch_get_dtype, dtype, false, (Handle, int32_t *dtype))                                           \
    F(int32_t, aoti_torch_get_device_index, device_index, false, (Handle, int32_t *number))                            \
    F(int32_t, aoti_torch_item_bool, item_bool, false, (Handle, bool *value))                                          \
    F(size_t, aoti_torch_dtype_element_size, element_size, false, (int32_t dtype))

#define LIBRARY_FIELD(type, name, field, is_needed, parameters) type(*field) parameters;
typedef struct {
    PyTypeObject *tensor, *parameter; /* classes whose objects have the handle's tensor at `body`; NULL: none known */
    Py_ssize_t body;
    Py_ssize_t storage; /* how far into the tensor's own body what it keeps of its memory is pointed to; 0: not known */
    Py_ssize_t data, bytes, resizable; /* how far into that the address of the memory is, how long it is, and whether
                                          PyTorch allocated it; 0: not known */
    LIBRARY_FUNCTIONS(LIBRARY_FIELD)
} Library;

extern Library library;

/* The tensor inside a Python object of one of the two classes; NULL for any other object. */
static inline Handle
library_handle(PyObject *object)
{
    bool is_plain = library.tensor && (Py_TYPE(object) == library.tensor || Py_TYPE(object) == library.parameter);
    return is_plain ? (Handle)((char *)object + library.body) : NULL;
}

/* The storage of a tensor, where that is known; NULL for other objects and for tensors that have none. */
static inline const char *
library_storage(PyObject *object)
{
    const char *body = NULL, *storage = NULL;
    if (PyObject_TypeCheck(object, library.tensor)) {
        memcpy(&body, (const char *)object + library.body, sizeof body);
    }
    if (body) {
        memcpy(&storage, body + library.storage, sizeof storage);
    }
    return storage;
}

/* A function, and where in a table its address goes. */
typedef struct {
    const char *name;
    size_t place;
    bool is_needed;
} LibraryFunction;

/* Fills a table out of a dict of addresses by name; NULL where one is missing that is not needed. 0, or -1 with an
   exception. */
int library_read(PyObject *addresses, const LibraryFunction *functions, size_t count, void *table);

/* A function of the interface by its name; NULL: set_library was not given it. With the GIL. */
void (*library_function(const char *name))(void);

/* set_library(tensor, parameter, body, storage, memory, functions), storages(tensors) and overlap(tensors, written):
   see _native.pyi. */
PyObject *set_library(PyObject *module, PyObject *args);
PyObject *library_storages(PyObject *module, PyObject *tensors);
PyObject *library_overlap(PyObject *module, PyObject *args);

#endif
