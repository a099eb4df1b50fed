/* Launches grids with the CUDA driver.

   All work is enqueued on PyTorch's current stream of the device. A workspace from PyTorch's allocator is freed as
   soon as the phases are launched, because its next user on that stream comes after them. `finish` asks Python for
   everything else: the functions on this device, what PyTorch's C interface lacks, and what it refuses (memory, for
   one). Errors are then raised by Python. */
#include "gpu/cuda_grid.h"

#include "runner/aoti_library.h"

#include <stdlib.h>
#include <string.h>

enum { USUAL_PARAMETERS = 64, IS_RECORDING = 1, NOT_LOADED = 1 };

/* PyTorch's functions for CUDA; NULL: not known. All return 0, or something else for an error. */
typedef struct {
    int32_t (*current_stream)(int32_t device, void **stream);
    int32_t (*allocate)(uint64_t bytes, void **memory); /* on the current device, for its current stream */
    int32_t (*free)(void *memory);
} TorchFunctions;

/* Read without the GIL: they are replaced as a whole, and never freed. */
static const TorchFunctions none_known;
static _Atomic(const TorchFunctions *) torch_functions = &none_known;

/* --- a launch --------------------------------------------------------------------------------------- */

static const CudaCode *
find_code(GridLauncher *self, int32_t device)
{
    const CudaCode *code = atomic_load_explicit(&self->code, memory_order_acquire);
    while (code && code->device != device) {
        code = code->next;
    }
    return code;
}

/* A recorded launch is repeated by whoever has the graph: the functions must stay, whatever becomes of the launcher. */
static void
note_recording(GridLauncher *self, const CudaDriver *driver, CudaStream stream)
{
    int status = 0;
    if (stream && driver->is_capturing && !atomic_load_explicit(&self->is_recorded, memory_order_relaxed)
        && driver->is_capturing(stream, &status) == 0 && status == IS_RECORDING) {
        atomic_store(&self->is_recorded, true);
    }
}

static int
refuse(LaunchCall *call, int fault, int at)
{
    call->fault = fault;
    call->at = at;
    return -1;
}

int
cuda_current_stream(int32_t device, CudaStream *stream)
{
    const TorchFunctions *torch = atomic_load_explicit(&torch_functions, memory_order_acquire);
    void *current = NULL;
    const int status = torch->current_stream ? torch->current_stream(device, &current) : -1;
    *stream = current;
    return status;
}

/* Notes in a CUDA graph what a phase was launched with. */
static CudaResult
record_launch(const GridLauncher *self, const GraphRecording *recording, CudaFunction function, const GridRecord *grid,
              const int64_t *sizes, void **parameters, int count)
{
    const int64_t blocks = cuda_size(grid->blocks, grid->slot, sizes);
    const int pointers = (int)pointer_count(self);
    CudaSource usual[USUAL_PARAMETERS];
    CudaSource *sources = count <= USUAL_PARAMETERS ? usual : malloc((size_t)count * sizeof *sources);
    if (sources == NULL) {
        return CUDA_OUT_OF_MEMORY;
    }
    for (int i = 0; i < count; i++) {
        const int64_t value = i < pointers ? recording->values[i].number : -1;
        sources[i] = (CudaSource){value >= 0 && recording->is_outside[value] ? value : -1,
                                  i < pointers && is_number(self, i) ? self->numbers[i] : 0};
    }
    const CudaKernelNode node = {.grid = {(unsigned)blocks, 1, 1},
                                 .block = {(unsigned)grid->threads, 1, 1},
                                 .shared = (unsigned)grid->shared_bytes,
                                 .parameters = parameters};
    const CudaResult status = blocks ? smelt_graph_add_launch(recording->graph, function, &node, sources, count) : 0;
    if (sources != usual) {
        free(sources);
    }
    return status;
}

/* Every phase in order, in the device's context. 0, or not, and the call says why. */
static int
launch_phases(const GridLauncher *self, LaunchCall *call, const CudaCode *code, CudaStream stream, void *workspace)
{
    const int64_t *sizes = grid_sizes(self, call);
    int pointers = (int)pointer_count(self), count = pointers + 1 + self->size_count;
    void *usual[2 * USUAL_PARAMETERS];
    void **parameters = count <= USUAL_PARAMETERS ? usual : malloc((size_t)count * 2 * sizeof *parameters);
    if (parameters == NULL) {
        return refuse(call, GRID_MEMORY, 0);
    }
    void **numbers = parameters + count; /* those that the host has, each in eight bytes */
    smelt_cuda_set_parameters(parameters, call->buffers, pointers, &workspace, sizes, self->size_count);
    for (int i = 0; self->numbers && i < pointers; i++) {
        if (is_number(self, i)) {
            numbers[i] = NULL;
            memcpy(&numbers[i], call->buffers[i], self->numbers[i]);
            parameters[i] = &numbers[i];
        }
    }
    CudaResult status = 0;
    for (int i = 0; status == 0 && i < self->phase_count; i++) {
        call->phase = i;
        const GridRecord *grid = &self->phases[i].grid;
        const bool overlaps =
            self->phases[i].overlaps && call->recording && smelt_graph_may_overlap(call->recording->graph);
        status = smelt_cuda_launch_grid(code->driver, code->functions[i], grid, sizes, stream, parameters, overlaps);
        if (status == 0 && call->recording) {
            status = record_launch(self, call->recording, code->functions[i], grid, sizes, parameters, count);
        }
    }
    if (parameters != usual) {
        free(parameters);
    }
    return status ? refuse(call, status == CUDA_TOO_MANY_BLOCKS ? GRID_BLOCKS : GRID_DRIVER, status) : 0;
}

/* In the context of the device, with a workspace of so many bytes of PyTorch's allocator, or the one given if there are
   none. */
static int
launch_inside(GridLauncher *self, LaunchCall *call, const CudaCode *code, CudaStream stream, const TorchFunctions *torch,
              int64_t bytes, void *workspace)
{
    CudaContext before;
    CudaResult status = cuda_enter(code->driver, code->context, &before);
    if (status) {
        return refuse(call, GRID_DRIVER, status);
    }
    if (call->recording == NULL) {
        note_recording(self, code->driver, stream);
    }
    int launched;
    if (bytes && (torch->allocate((uint64_t)bytes, &workspace) || workspace == NULL)) {
        launched = refuse(call, GRID_PYTHON, 0);
    }
    else {
        launched = launch_phases(self, call, code, stream, workspace);
        if (bytes) {
            torch->free(workspace);
        }
    }
    cuda_leave(code->driver, code->context, before);
    return launched;
}

int
cuda_grid_launch(AnyLauncher *any, LaunchCall *call)
{
    GridLauncher *self = (GridLauncher *)any;
    int32_t device = self->device < 0 ? call->device : self->device;
    const CudaCode *code = find_code(self, device);
    const TorchFunctions *torch = atomic_load_explicit(&torch_functions, memory_order_acquire);
    int64_t bytes = workspace_bytes(self, call);
    void *stream;
    if (bytes < 0) {
        return refuse(call, GRID_MEMORY, 0);
    }
    if (code == NULL) {
        return refuse(call, GRID_PYTHON, NOT_LOADED);
    }
    if (torch->current_stream == NULL || torch->current_stream(device, &stream) || (bytes && torch->allocate == NULL)) {
        return refuse(call, GRID_PYTHON, 0);
    }
    return launch_inside(self, call, code, stream, torch, bytes, NULL);
}

/* --- with Python ------------------------------------------------------------------------------------ */

/* Asks for the functions on a device, which are loaded now if they were not. NULL with an exception. */
static const CudaCode *
load_code(GridLauncher *self, int32_t device)
{
    PyObject *handles = PyObject_CallMethod(self->support, "functions", "i", (int)device);
    const CudaDriver *driver = handles ? cuda_driver() : NULL;
    CudaContext context;
    if (driver == NULL || cuda_context(driver, device, &context) < 0) {
        Py_XDECREF(handles);
        return NULL;
    }
    const CudaCode *known = find_code(self, device); /* another thread may have asked meanwhile */
    if (known) {
        Py_DECREF(handles);
        return known;
    }
    CudaCode *loaded = calloc(1, sizeof *loaded + (size_t)self->phase_count * sizeof(CudaFunction));
    bool fits = PyTuple_Check(handles) && PyTuple_GET_SIZE(handles) == self->phase_count;
    for (int i = 0; loaded && fits && i < self->phase_count; i++) {
        loaded->functions[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(handles, i));
        fits = loaded->functions[i] != NULL;
    }
    Py_DECREF(handles);
    if (loaded == NULL || !fits) {
        free(loaded);
        if (!PyErr_Occurred()) {
            PyErr_SetString(loaded ? PyExc_TypeError : PyExc_MemoryError, "a function for each phase of a kernel");
        }
        return NULL;
    }
    loaded->driver = driver;
    loaded->context = context;
    loaded->device = device;
    loaded->next = atomic_load(&self->code);
    atomic_store_explicit(&self->code, loaded, memory_order_release);
    return loaded;
}

/* The current stream of a device. 0, or -1 with an exception. */
static int
find_stream(GridLauncher *self, int32_t device, void **stream)
{
    const TorchFunctions *torch = atomic_load(&torch_functions);
    if (torch->current_stream && torch->current_stream(device, stream) == 0) {
        return 0;
    }
    PyObject *number = PyObject_CallMethod(self->support, "stream", "i", (int)device);
    *stream = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* A tensor that owns the workspace, and where it is. NULL with an exception. */
static PyObject *
find_workspace(GridLauncher *self, int32_t device, int64_t bytes, void **memory)
{
    PyObject *tensor = PyObject_CallMethod(self->support, "workspace", "iL", (int)device, (long long)bytes);
    if (tensor && tensor_data(tensor, memory) < 0) {
        Py_CLEAR(tensor);
    }
    return tensor;
}

/* Raises what a failed launch is to Python. Returns -1. */
static int
raise(GridLauncher *self, const LaunchCall *call)
{
    if (call->fault != GRID_DRIVER) {
        return grid_raise(call);
    }
    PyObject *result = PyObject_CallMethod(self->support, "failed", "ii", call->at, call->phase);
    Py_XDECREF(result);
    if (result) {
        PyErr_Format(PyExc_SystemError, "a launch failed with %d, which nobody raised", call->at);
    }
    return -1;
}

/* With a stream and a workspace of Python's, where PyTorch's C functions have none. Nothing was launched by then. */
static int
launch_by_python(GridLauncher *self, LaunchCall *call, const CudaCode *code)
{
    void *stream, *memory = NULL;
    PyObject *workspace = NULL;
    int64_t bytes = workspace_bytes(self, call);
    if (find_stream(self, code->device, &stream) < 0
        || (bytes && (workspace = find_workspace(self, code->device, bytes, &memory)) == NULL)) {
        return -1;
    }
    int launched;
    Py_BEGIN_ALLOW_THREADS /* a launch may wait until earlier ones are done, and they for other threads */
    launched = launch_inside(self, call, code, stream, NULL, 0, memory);
    Py_END_ALLOW_THREADS
    Py_XDECREF(workspace);
    return launched < 0 ? raise(self, call) : 0;
}

int
cuda_grid_finish(AnyLauncher *any, LaunchCall *call)
{
    GridLauncher *self = (GridLauncher *)any;
    int32_t device = self->device < 0 ? call->device : self->device;
    if (call->fault != GRID_PYTHON) {
        return raise(self, call);
    }
    if (device < 0) {
        PyErr_SetString(PyExc_ValueError, "a kernel for CUDA was given a tensor that is not on a GPU");
        return -1;
    }
    const CudaCode *code = find_code(self, device);
    code = code ? code : load_code(self, device);
    if (code == NULL) {
        return -1;
    }
    if (call->at == NOT_LOADED) {
        int status;
        Py_BEGIN_ALLOW_THREADS
        status = cuda_grid_launch(any, call);
        Py_END_ALLOW_THREADS
        if (status == 0) {
            return 0;
        }
    }
    return call->fault == GRID_PYTHON ? launch_by_python(self, call, code) : raise(self, call);
}

void
cuda_grid_free(GridLauncher *self)
{
    CudaCode *code = atomic_load(&self->code);
    while (code) {
        CudaCode *next = code->next;
        free(code);
        code = next;
    }
    if (!atomic_load(&self->is_recorded)) { /* else what it holds is held for good */
        Py_XDECREF(self->support);
    }
}

/* --- for Python ------------------------------------------------------------------------------------- */

PyObject *
set_cuda_library(PyObject *Py_UNUSED(module), PyObject *functions)
{
    static const LibraryFunction wanted[] = {
        {"aoti_torch_get_current_cuda_stream", offsetof(TorchFunctions, current_stream), false},
        {"aoti_torch_cuda_caching_allocator_raw_alloc", offsetof(TorchFunctions, allocate), false},
        {"aoti_torch_cuda_caching_allocator_raw_delete", offsetof(TorchFunctions, free), false},
    };
    TorchFunctions *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return PyErr_NoMemory();
    }
    if (library_read(functions, wanted, Py_ARRAY_LENGTH(wanted), table) < 0) {
        free(table);
        return NULL;
    }
    if (table->free == NULL) {
        table->allocate = NULL; /* one is no use without the other */
    }
    atomic_store_explicit(&torch_functions, table, memory_order_release);
    Py_RETURN_NONE;
}
