/* The live memories by address, and the lookup from a tensor to its memory. */
#include "lazy/device_memory.h"

#include "runner/aoti_library.h"

#include <stdlib.h>
#include <string.h>

/* A table of addresses, at most half full; its length is a power of two. Under the GIL. */
static struct {
    void **slots;
    size_t length, used;
} living;

static size_t
home_of(const void *address)
{
    uint64_t mixed = (uint64_t)(uintptr_t)address * 0x9E3779B97F4A7C15u;
    return (size_t)(mixed >> 20) & (living.length - 1);
}

static size_t
find_slot(const void *address)
{
    size_t place = home_of(address);
    while (living.slots[place] && living.slots[place] != address) {
        place = (place + 1) & (living.length - 1);
    }
    return place;
}

static int
grow(void)
{
    void **old = living.slots;
    size_t length = living.length;
    void **slots = calloc(length ? 2 * length : 1024, sizeof *slots);
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    living.slots = slots;
    living.length = length ? 2 * length : 1024;
    for (size_t i = 0; i < length; i++) {
        if (old[i]) {
            living.slots[find_slot(old[i])] = old[i];
        }
    }
    free(old);
    return 0;
}

int
device_memory_add(DeviceMemory *memory)
{
    if (2 * living.used >= living.length && grow() < 0) {
        return -1;
    }
    living.slots[find_slot(memory)] = memory;
    living.used++;
    return 0;
}

void
device_memory_remove(DeviceMemory *memory)
{
    size_t place = living.length ? find_slot(memory) : 0, mask = living.length - 1;
    if (living.length == 0 || living.slots[place] == NULL) {
        return; /* it was never added */
    }
    living.used--;
    /* Move back what came to lie behind it because it was there. */
    for (size_t next = (place + 1) & mask; living.slots[next]; next = (next + 1) & mask) {
        size_t home = home_of(living.slots[next]);
        if (((next - home) & mask) >= ((next - place) & mask)) {
            living.slots[place] = living.slots[next];
            place = next;
        }
    }
    living.slots[place] = NULL;
}

static DeviceMemory *
at_address(const void *address)
{
    return address && living.length ? living.slots[find_slot(address)] : NULL;
}

/* Byte offsets in a storage (torch_abi/storage_layout.py); 0: not known. PyTorch calls what is at `release` with what is
   at `context` when a storage dies. */
static struct {
    Py_ssize_t address, bytes, context, release;
} places;

static bool
are_places_known(void)
{
    return library.tensor && library.storage && places.address && places.bytes;
}

static char *
storage_of(PyObject *tensor)
{
    if (!are_places_known() || !PyObject_TypeCheck(tensor, library.tensor)) {
        return NULL;
    }
    char *body = *(char **)((char *)tensor + library.body);
    return body ? *(char **)(body + library.storage) : NULL;
}

DeviceMemory *
device_memory_of(PyObject *tensor)
{
    const char *storage = storage_of(tensor);
    return storage ? at_address(*(void *const *)(storage + places.address)) : NULL;
}

/* PyTorch's storage dies, on any thread. */
static void
release_memory(void *memory)
{
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)memory);
    PyGILState_Release(state);
}

static PyObject *memory_name, *storage_name; /* attributes of storages and of tensors */

int
device_memory_init(void)
{
    memory_name = PyUnicode_InternFromString("smelt_memory");
    storage_name = PyUnicode_InternFromString("untyped_storage");
    return memory_name && storage_name ? 0 : -1;
}

/* Let the Python object of a storage keep its memory. */
static int
keep_by_attribute(PyObject *tensor, DeviceMemory *memory)
{
    PyObject *storage = PyObject_CallMethodNoArgs(tensor, storage_name);
    int done = storage ? PyObject_SetAttr(storage, memory_name, (PyObject *)memory) : -1;
    Py_XDECREF(storage);
    return done;
}

int
device_memory_place(PyObject *tensor, DeviceMemory *memory, int64_t bytes)
{
    char *storage = storage_of(tensor);
    void **context = storage ? (void **)(storage + places.context) : NULL;
    if (storage == NULL || *(void **)(storage + places.address) || (places.context && *context)) {
        PyErr_SetString(PyExc_RuntimeError, "the storage of a new tensor is not as it should be");
        return -1;
    }
    if (!places.context) {
        if (keep_by_attribute(tensor, memory) < 0) {
            return -1;
        }
    }
    else {
        void (*release)(void *) = release_memory;
        memcpy(storage + places.release, &release, sizeof release);
        *context = Py_NewRef(memory);
    }
    *(void **)(storage + places.address) = memory;
    *(int64_t *)(storage + places.bytes) = bytes;
    return 0;
}

PyObject *
set_storage_layout(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_ssize_t address, bytes, context, release;
    if (!PyArg_ParseTuple(args, "nnnn:set_storage_layout", &address, &bytes, &context, &release)) {
        return NULL;
    }
    places.address = address, places.bytes = bytes, places.context = context, places.release = release;
    Py_RETURN_NONE;
}

PyObject *
place_device_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor, *memory;
    long long bytes;
    if (!PyArg_ParseTuple(args, "OO!L:place_device_memory", &tensor, &DeviceMemoryType, &memory, &bytes)
        || device_memory_place(tensor, (DeviceMemory *)memory, bytes) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
reads_storages(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(are_places_known());
}

PyObject *
device_memory_of_tensor(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    DeviceMemory *memory = device_memory_of(tensor);
    return Py_NewRef(memory ? (PyObject *)memory : Py_None);
}

PyObject *
device_memory_at(PyObject *Py_UNUSED(module), PyObject *address)
{
    void *data = PyLong_AsVoidPtr(address);
    if (data == NULL && PyErr_Occurred()) {
        return NULL;
    }
    DeviceMemory *memory = at_address(data);
    return Py_NewRef(memory ? (PyObject *)memory : Py_None);
}

static PyObject *
memory_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *memory = type->tp_alloc(type, 0);
    if (memory && device_memory_add((DeviceMemory *)memory) < 0) {
        Py_CLEAR(memory);
    }
    return memory;
}

static void
memory_dealloc(PyObject *self)
{
    device_memory_remove((DeviceMemory *)self);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject DeviceMemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.DeviceMemory",
    .tp_doc = PyDoc_STR("What stands behind a storage of a device of our own."),
    .tp_basicsize = sizeof(DeviceMemory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = memory_new,
    .tp_dealloc = memory_dealloc,
};
