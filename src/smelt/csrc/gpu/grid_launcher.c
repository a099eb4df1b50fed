/* GridLauncher as a Python type: built from phases, launched by the host or by CUDA. */
#include "gpu/grid_launcher.h"

#include "gpu/cuda_grid.h"
#include "gpu/grid.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

enum { MOST_THREADS = 1024, MOST_SIZES = 4096 };

/* --- launches --------------------------------------------------------------------------------------- */

static int
host_launch(AnyLauncher *any, LaunchCall *call)
{
    const GridLauncher *self = (const GridLauncher *)any;
    int64_t bytes = workspace_bytes(self, call);
    call->fault = bytes < 0 || !workspace_fits(call->workspace, (size_t)bytes) ? GRID_MEMORY : 0;
    if (call->fault == 0 && bytes) {
        host_grid_fill(call->workspace->memory, (size_t)bytes);
    }
    for (int i = 0; call->fault == 0 && i < self->phase_count; i++) {
        const GridPhase *phase = &self->phases[i];
        int64_t blocks = cuda_size(phase->grid.blocks, phase->grid.slot, grid_sizes(self, call));
        call->phase = i;
        if (blocks < 0 || blocks > CUDA_MOST_BLOCKS) {
            call->fault = GRID_BLOCKS;
        }
        else if (blocks) {
            call->fault = host_grid_run(phase, self->warp, blocks, call->buffers, call->workspace->memory);
        }
    }
    return call->fault ? -1 : 0;
}

static int
host_finish(AnyLauncher *Py_UNUSED(any), LaunchCall *call)
{
    return grid_raise(call);
}

static bool
is_aligned(const GridLauncher *self, const LaunchCall *call)
{
    uintptr_t bits = 0;
    for (Py_ssize_t i = 0; i < pointer_count(self); i++) {
        bits |= is_number(self, i) ? 0 : (uintptr_t)call->buffers[i];
    }
    return (bits & (self->alignment - 1)) == 0;
}

static int
checked_launch(AnyLauncher *any, LaunchCall *call)
{
    GridLauncher *self = (GridLauncher *)any;
    if (is_aligned(self, call)) {
        return self->launch(any, call);
    }
    AnyLauncher *fallback = atomic_load(&self->fallback);
    if (fallback) {
        return fallback->launch(fallback, call);
    }
    call->fault = GRID_UNALIGNED;
    return -1;
}

/* Buffers that are not aligned the first time: has the other launcher made. */
static int
checked_finish(AnyLauncher *any, LaunchCall *call)
{
    GridLauncher *self = (GridLauncher *)any;
    if (is_aligned(self, call)) {
        return self->finish(any, call);
    }
    AnyLauncher *fallback = atomic_load(&self->fallback);
    if (call->fault != GRID_UNALIGNED) {
        return fallback->finish(fallback, call);
    }
    if (fallback == NULL) {
        PyObject *object = PyObject_CallNoArgs(self->unaligned);
        if (object == NULL) {
            return -1;
        }
        if (!PyObject_TypeCheck(object, &AnyLauncherType) || ((AnyLauncher *)object)->buffers != any->buffers) {
            PyErr_SetString(PyExc_TypeError, "GridLauncher: unaligned() returns a launcher of the same buffers");
            Py_DECREF(object);
            return -1;
        }
        if (!atomic_compare_exchange_strong(&self->fallback, &fallback, (AnyLauncher *)object)) {
            Py_DECREF(object); /* another thread was first */
        }
        else {
            fallback = (AnyLauncher *)object;
        }
    }
    call->fault = 0;
    return fallback->launch(fallback, call) == 0 ? 0 : fallback->finish(fallback, call);
}

/* --- making one ------------------------------------------------------------------------------------- */

/* A number, or (slot,): one of the sizes that a launch is given. 0, or -1 with an exception. */
static int
read_size(PyObject *argument, int sizes, int64_t *number, int64_t *slot)
{
    *number = 0;
    *slot = -1;
    if (PyTuple_Check(argument)) {
        long long place;
        if (!PyArg_ParseTuple(argument, "L;GridLauncher: the place of a size", &place)) {
            return -1;
        }
        *slot = place;
        if (place < 0 || place >= sizes) {
            PyErr_Format(PyExc_ValueError, "GridLauncher: of %d sizes none is number %lld", sizes, place);
            return -1;
        }
        return 0;
    }
    *number = PyLong_AsLongLong(argument);
    if (*number < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "GridLauncher: blocks and bytes must not be negative");
    }
    return *number < 0 ? -1 : 0;
}

/* (function, blocks, threads, shared_bytes, has_barriers, overlaps) */
static int
read_phase(PyObject *argument, const GridLauncher *self, bool is_host, GridPhase *phase)
{
    PyObject *function, *blocks;
    int has_barriers, overlaps = false;
    long threads, shared;
    if (!PyTuple_Check(argument)
        || !PyArg_ParseTuple(argument, "OOllp|p;GridLauncher: a phase", &function, &blocks, &threads, &shared,
                             &has_barriers, &overlaps)
        || read_size(blocks, self->size_count, &phase->grid.blocks, &phase->grid.slot) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "GridLauncher: a phase is a tuple");
        }
        return -1;
    }
    if (threads < 1 || threads > MOST_THREADS || threads % self->warp || shared < 0 || shared > INT32_MAX / 2) {
        PyErr_Format(PyExc_ValueError, "GridLauncher: no block has %ld threads and %ld bytes of shared memory", threads,
                     shared);
        return -1;
    }
    void *address = PyLong_AsVoidPtr(function);
    if (PyErr_Occurred()) {
        return -1;
    }
    if (is_host && address == NULL) {
        PyErr_SetString(PyExc_ValueError, "GridLauncher: the address of a phase is zero");
        return -1;
    }
    memcpy(&phase->function, &address, sizeof address);
    phase->grid.threads = threads;
    phase->grid.shared_bytes = shared;
    phase->has_barriers = has_barriers;
    phase->overlaps = overlaps;
    return 0;
}

/* A byte for each buffer but the sizes. 0, or -1 with an exception. */
static int
read_numbers(GridLauncher *self, PyObject *bytes)
{
    Py_ssize_t count = bytes ? PyBytes_GET_SIZE(bytes) : 0;
    if (count == 0) {
        return 0;
    }
    const char *numbers = PyBytes_AS_STRING(bytes);
    bool fits = count == pointer_count(self);
    for (Py_ssize_t i = 0; fits && i < count; i++) {
        fits = numbers[i] == 0 || numbers[i] == 1 || numbers[i] == 2 || numbers[i] == 4 || numbers[i] == 8;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "GridLauncher: of each buffer, how many bytes of a number the host has");
        return -1;
    }
    self->number_bytes = Py_NewRef(bytes);
    self->numbers = (const unsigned char *)numbers;
    return 0;
}

/* The first buffer in memory of the device; -1: none is. */
static Py_ssize_t
first_in_memory(const GridLauncher *self)
{
    for (Py_ssize_t i = 0; i < pointer_count(self); i++) {
        if (!is_number(self, i)) {
            return i;
        }
    }
    return -1;
}

static PyObject *
grid_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"phases", "buffers",   "workspace", "sizes",   "warp", "support", "device",
                            "alignment", "unaligned", "numbers", NULL};
    PyObject *phases, *workspace, *numbers = NULL, *support = Py_None, *unaligned = Py_None;
    Py_ssize_t buffers;
    int sizes = 0, warp = 32, device = -1, alignment = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nO|$iiOiiOS:GridLauncher", names, &PyTuple_Type, &phases,
                                     &buffers, &workspace, &sizes, &warp, &support, &device, &alignment, &unaligned,
                                     &numbers)) {
        return NULL;
    }
    if (alignment < 1 || (alignment & (alignment - 1)) || (alignment > 1 && unaligned == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "GridLauncher: an alignment is a power of two, and comes with `unaligned`");
        return NULL;
    }
    if (sizes < 0 || sizes > MOST_SIZES || buffers < (sizes > 0) || warp < 1 || device >= CUDA_MOST_DEVICES) {
        PyErr_SetString(PyExc_ValueError, "GridLauncher: numbers of buffers, sizes, lanes or devices that cannot be");
        return NULL;
    }
    GridLauncher *self = (GridLauncher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    bool is_host = support == Py_None;
    self->any.vectorcall = launcher_call;
    self->any.buffers = buffers;
    self->launch = is_host ? host_launch : cuda_grid_launch;
    self->finish = is_host ? host_finish : cuda_grid_finish;
    self->any.launch = alignment > 1 ? checked_launch : self->launch;
    self->any.finish = alignment > 1 ? checked_finish : self->finish;
    self->alignment = (unsigned)alignment;
    self->unaligned = Py_NewRef(unaligned);
    self->size_count = sizes;
    self->warp = (unsigned)warp;
    self->device = device;
    self->support = is_host ? NULL : Py_NewRef(support);
    self->phase_count = (int)PyTuple_GET_SIZE(phases);
    self->phases = calloc((size_t)self->phase_count + 1, sizeof *self->phases);
    if (self->phases == NULL) {
        PyErr_NoMemory();
    }
    bool fits = self->phases && read_numbers(self, numbers) == 0
                && read_size(workspace, sizes, &self->workspace, &self->workspace_slot) == 0;
    for (int i = 0; fits && i < self->phase_count; i++) {
        fits = read_phase(PyTuple_GET_ITEM(phases, i), self, is_host, &self->phases[i]) == 0;
    }
    if (!fits) {
        Py_DECREF(self);
        return NULL;
    }
    self->any.device_from = is_host || device >= 0 ? -1 : first_in_memory(self);
    return (PyObject *)self;
}

static void
grid_dealloc(GridLauncher *self)
{
    cuda_grid_free(self);
    Py_XDECREF(self->unaligned);
    Py_XDECREF((PyObject *)atomic_load(&self->fallback));
    free(self->phases);
    Py_XDECREF(self->number_bytes);
    free(self->any.workspace.memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef members[] = {
    {"phases", T_INT, offsetof(GridLauncher, phase_count), READONLY, "How many grids it launches."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject GridLauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.GridLauncher",
    .tp_basicsize = sizeof(GridLauncher),
    .tp_base = &AnyLauncherType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = grid_new,
    .tp_dealloc = (destructor)grid_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AnyLauncher, vectorcall),
    .tp_members = members,
    .tp_doc = PyDoc_STR("launcher(threads, *tensors) launches the grids of a kernel, one after the other."),
};

/* simt_barrier_address() and set_simt_order(order, seed): see _native.pyi. */
static PyObject *
simt_barrier_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr((void *)(uintptr_t)host_grid_barrier);
}

static PyObject *
set_simt_order(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *order;
    unsigned long long seed = 0;
    if (!PyArg_ParseTuple(args, "s|K:set_simt_order", &order, &seed)) {
        return NULL;
    }
    if (!host_grid_set_order(order, seed)) {
        return PyErr_Format(PyExc_ValueError, "blocks and warps run forward, reverse or shuffled, not %s", order);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"simt_barrier_address", simt_barrier_address, METH_NOARGS,
     PyDoc_STR("The address of what warps call on the host to wait for each other.")},
    {"set_simt_order", set_simt_order, METH_VARARGS,
     PyDoc_STR("Say in which order blocks and warps run on the host.")},
    {"set_cuda_library", set_cuda_library, METH_O, PyDoc_STR("Say where PyTorch's functions for CUDA are.")},
    {NULL, NULL, 0, NULL},
};

int
grid_launcher_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ? -1 : PyModule_AddType(module, &GridLauncherType);
}
