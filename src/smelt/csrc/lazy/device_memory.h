/* DeviceMemory: what is behind a storage of a device of our own, found from the storage's address.

   A storage without data uses the address of its memory as its data address (dispatch/tensors.py), so that the memory
   of a tensor is two loads away. The addresses of live memories are recorded, and no other is ever followed. */
#ifndef SMELT_DEVICE_MEMORY_H
#define SMELT_DEVICE_MEMORY_H

#include <Python.h>
#include <stdbool.h>

typedef struct {
    PyObject_HEAD
} DeviceMemory;

extern PyTypeObject DeviceMemoryType, DeviceTypeAnswerType;

/* For types that are derived from it in C. */
int device_memory_add(DeviceMemory *memory);
void device_memory_remove(DeviceMemory *memory);

/* The memory behind a tensor, borrowed; NULL without an exception where that cannot be read. */
DeviceMemory *device_memory_of(PyObject *tensor);

/* Give the storage of a new tensor its memory, the memory's address, and a size. -1 with an exception. */
int device_memory_place(PyObject *tensor, DeviceMemory *memory, int64_t bytes);

int device_memory_init(void);

/* set_storage_layout(address, size, context, release), place_device_memory(tensor, memory, bytes), reads_storages(),
   device_memory_of(tensor) and device_memory_at(address): see _native.pyi. */
PyObject *set_storage_layout(PyObject *module, PyObject *args);
PyObject *place_device_memory(PyObject *module, PyObject *args);
PyObject *reads_storages(PyObject *module, PyObject *unused);
PyObject *device_memory_of_tensor(PyObject *module, PyObject *tensor);
PyObject *device_memory_at(PyObject *module, PyObject *address);

#endif
