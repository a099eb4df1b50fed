/* Launcher: calls `void kernel(void **buffers, int64_t threads, void *workspace)` without the GIL. Also defines how
   any launcher is called from Python.

   The workspace is kept between calls. A call takes it off the launcher under the GIL, so a second thread in the same
   kernel finds none and allocates its own. A program of several steps runs its kernels itself (runner/runner.c) and
   uses only the data of a launcher. */
#include "runner/launcher.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { ALIGNMENT = 64, USUAL_BUFFERS = 32 };

static PyObject *data_ptr, *get_device; /* interned */

int
launcher_init(void)
{
    data_ptr = PyUnicode_InternFromString("data_ptr");
    get_device = PyUnicode_InternFromString("get_device");
    return data_ptr && get_device ? 0 : -1;
}

Workspace
workspace_acquire(Workspace *kept)
{
    Workspace taken = *kept;
    *kept = (Workspace){.memory = NULL};
    return taken;
}

void
workspace_release(Workspace *kept, Workspace taken)
{
    if (taken.size <= kept->size) {
        free(taken.memory);
        return;
    }
    free(kept->memory);
    *kept = taken;
}

bool
workspace_fits(Workspace *taken, size_t size)
{
    if (size <= taken->size) {
        return true;
    }
    if (size > (size_t)PY_SSIZE_T_MAX - ALIGNMENT) {
        return false;
    }
    free(taken->memory);
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; /* aligned_alloc wants a multiple */
    *taken = (Workspace){.memory = aligned_alloc(ALIGNMENT, size), .size = size};
    if (taken->memory == NULL) {
        taken->size = 0;
    }
    return taken->memory != NULL;
}

/* --- tensors, and any launcher as a callable --------------------------------------------------------------- */

int
tensor_data(PyObject *tensor, void **data)
{
    PyObject *address = PyObject_CallMethodNoArgs(tensor, data_ptr);
    *data = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    return *data == NULL && PyErr_Occurred() ? -1 : 0;
}

int
tensor_device(PyObject *tensor, int32_t *device)
{
    PyObject *number = PyObject_CallMethodNoArgs(tensor, get_device);
    *device = number ? (int32_t)PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return *device == -1 && PyErr_Occurred() ? -1 : 0;
}

int64_t
thread_count(PyObject *number)
{
    long long threads = PyLong_AsLongLong(number);
    if (threads < 1 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "a kernel needs at least one thread, got %lld", threads);
    }
    return threads < 1 ? 0 : threads;
}

/* Pointers in place: takes a workspace and runs. 0, or -1 with an exception. */
static int
launch(AnyLauncher *self, LaunchCall *call)
{
    Workspace workspace = workspace_acquire(&self->workspace);
    int status;
    call->workspace = &workspace;
    Py_BEGIN_ALLOW_THREADS
    status = self->launch(self, call);
    Py_END_ALLOW_THREADS
    if (status) {
        status = self->finish(self, call);
    }
    workspace_release(&self->workspace, workspace);
    return status;
}

PyObject *
launcher_call(PyObject *object, PyObject *const *args, size_t flagged_count, PyObject *names)
{
    AnyLauncher *self = (AnyLauncher *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "a launcher takes no keyword arguments");
        return NULL;
    }
    if (count != self->buffers + 1) {
        PyErr_Format(PyExc_TypeError, "this launcher takes the thread count and %zd tensors, got %zd arguments",
                     self->buffers, count);
        return NULL;
    }
    int64_t threads = thread_count(args[0]);
    if (threads == 0) {
        return NULL;
    }
    void *usual[USUAL_BUFFERS];
    void **pointers = usual;
    if (self->buffers > USUAL_BUFFERS) {
        pointers = PyMem_New(void *, self->buffers);
        if (pointers == NULL) {
            return PyErr_NoMemory();
        }
    }
    LaunchCall call = {.buffers = pointers, .threads = threads, .device = -1};
    int status = 0;
    for (Py_ssize_t i = 0; status == 0 && i < self->buffers; i++) {
        status = tensor_data(args[1 + i], &pointers[i]);
    }
    if (status == 0 && self->device_from >= 0) {
        status = tensor_device(args[1 + self->device_from], &call.device);
    }
    if (status == 0) {
        status = launch(self, &call);
    }
    if (pointers != usual) {
        PyMem_Free(pointers);
    }
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* --- kernels for the CPU ---------------------------------------------------------------------- */

static int
launch_cpu(AnyLauncher *any, LaunchCall *call)
{
    const Launcher *self = (const Launcher *)any;
    const size_t limit = (size_t)PY_SSIZE_T_MAX - ALIGNMENT;
    if (self->per_thread && (size_t)call->threads > (limit - self->fixed) / self->per_thread) {
        return -1;
    }
    if (!workspace_fits(call->workspace, self->fixed + self->per_thread * (size_t)call->threads)) {
        return -1;
    }
    self->kernel(call->buffers, call->threads, call->workspace->memory);
    return 0;
}

/* All that a launch for the CPU fails for. */
static int
finish_cpu(AnyLauncher *Py_UNUSED(self), LaunchCall *Py_UNUSED(call))
{
    PyErr_NoMemory();
    return -1;
}

static PyObject *
launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "buffers", "fixed", "per_thread", NULL};
    PyObject *address;
    Py_ssize_t buffers, fixed, per_thread;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onnn:Launcher", names, &address, &buffers, &fixed, &per_thread)) {
        return NULL;
    }
    void *kernel = PyLong_AsVoidPtr(address);
    if (kernel == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "Launcher: the kernel's address is zero");
        }
        return NULL;
    }
    if (buffers < 0 || fixed < 0 || per_thread < 0 || fixed > PY_SSIZE_T_MAX - ALIGNMENT) {
        PyErr_SetString(PyExc_ValueError, "Launcher: counts and sizes must not be negative or overflow");
        return NULL;
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self) {
        self->any.vectorcall = launcher_call;
        self->any.buffers = buffers;
        self->any.device_from = -1;
        self->any.launch = launch_cpu;
        self->any.finish = finish_cpu;
        self->kernel = (Kernel)(uintptr_t)kernel;
        self->fixed = (size_t)fixed;
        self->per_thread = (size_t)per_thread;
    }
    return (PyObject *)self;
}

static void
launcher_dealloc(AnyLauncher *self)
{
    free(self->workspace.memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject AnyLauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.AnyLauncher",
    .tp_basicsize = sizeof(AnyLauncher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AnyLauncher, vectorcall),
    .tp_doc = PyDoc_STR("launcher(threads, *tensors) launches a compiled kernel."),
};

PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_base = &AnyLauncherType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = launcher_new,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AnyLauncher, vectorcall),
    .tp_doc = PyDoc_STR("launcher(threads, *tensors) calls a compiled kernel without the GIL."),
};
