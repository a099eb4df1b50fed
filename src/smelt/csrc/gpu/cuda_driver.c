/* Opens the driver, queries devices, and loads modules: PTX → machine code for a GPU → functions in its memory. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

enum { LOG_BYTES = 16 * 1024, NAME_BYTES = 256, USUAL_SHARED = 48 * 1024 };
enum { INFO_LOG = 3, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, LOG_VERBOSE = 12 }; /* options of the assembler */
enum { PTX_INPUT = 1, MOST_DYNAMIC_SHARED = 8, RELAXED_CAPTURE = 2 };

static CudaDriver *driver; /* never freed: modules remember theirs */
static PyObject *cuda_error;

static const struct {
    const char *name;
    size_t place;
    bool is_needed;
} functions[] = {
    {"cuInit", offsetof(CudaDriver, init), true},
    {"cuDriverGetVersion", offsetof(CudaDriver, driver_version), true},
    {"cuGetErrorName", offsetof(CudaDriver, error_name), true},
    {"cuGetErrorString", offsetof(CudaDriver, error_string), true},
    {"cuDeviceGetCount", offsetof(CudaDriver, device_count), true},
    {"cuDeviceGet", offsetof(CudaDriver, device_get), true},
    {"cuDeviceGetName", offsetof(CudaDriver, device_name), true},
    {"cuDeviceGetAttribute", offsetof(CudaDriver, device_attribute), true},
    {"cuDevicePrimaryCtxRetain", offsetof(CudaDriver, primary_context), true},
    {"cuCtxGetCurrent", offsetof(CudaDriver, get_context), true},
    {"cuCtxSetCurrent", offsetof(CudaDriver, set_context), true},
    {"cuModuleLoadDataEx", offsetof(CudaDriver, load), true},
    {"cuModuleUnload", offsetof(CudaDriver, unload), true},
    {"cuModuleGetFunction", offsetof(CudaDriver, get_function), true},
    {"cuFuncGetAttribute", offsetof(CudaDriver, get_attribute), true},
    {"cuFuncSetAttribute", offsetof(CudaDriver, set_attribute), true},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", offsetof(CudaDriver, occupancy), true},
    {"cuLaunchKernel", offsetof(CudaDriver, launch), true},
    {"cuLinkCreate_v2", offsetof(CudaDriver, link_create), true},
    {"cuLinkAddData_v2", offsetof(CudaDriver, link_add), true},
    {"cuLinkComplete", offsetof(CudaDriver, link_complete), true},
    {"cuLinkDestroy", offsetof(CudaDriver, link_destroy), true},
    {"cuThreadExchangeStreamCaptureMode", offsetof(CudaDriver, capture_mode), false},
    {"cuStreamIsCapturing", offsetof(CudaDriver, is_capturing), false},
};

/* --- errors ------------------------------------------------------------------------------------- */

/* Raises CudaError, with the error's number and what the assembler printed as attributes. Returns -1. */
static int
fail(const CudaDriver *asked, const char *function, CudaResult code, const char *log)
{
    const char *name = NULL, *text = NULL;
    if (asked->error_name(code, &name) || name == NULL) {
        name = "an error without a name";
    }
    if (asked->error_string(code, &text) || text == NULL) {
        text = "no text";
    }
    PyObject *message = PyUnicode_FromFormat("%s: %s (%s)", function, text, name);
    PyObject *error = message ? PyObject_CallOneArg(cuda_error, message) : NULL;
    PyObject *number = PyLong_FromLong(code), *printed = PyUnicode_DecodeUTF8(log, (Py_ssize_t)strlen(log), "replace");
    PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (error && number && printed && words && PyObject_SetAttrString(error, "code", number) == 0
        && PyObject_SetAttrString(error, "text", words) == 0 && PyObject_SetAttrString(error, "log", printed) == 0) {
        PyErr_SetObject(cuda_error, error);
    }
    Py_XDECREF(message);
    Py_XDECREF(error);
    Py_XDECREF(number);
    Py_XDECREF(printed);
    Py_XDECREF(words);
    return -1;
}

/* cuda_error_text(code) → the driver's own words for an error */
static PyObject *
cuda_error_text(PyObject *Py_UNUSED(module), PyObject *code)
{
    const CudaDriver *asked = cuda_driver();
    const char *text = NULL;
    long number = asked ? PyLong_AsLong(code) : -1;
    if (asked == NULL || (number == -1 && PyErr_Occurred())) {
        return NULL;
    }
    bool is_known = asked->error_string((CudaResult)number, &text) == 0 && text;
    return is_known ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")
                    : PyUnicode_FromFormat("unknown error %ld", number);
}

/* --- the library -------------------------------------------------------------------------------- */

CudaDriver *
cuda_driver(void)
{
    if (driver == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no CUDA driver was opened");
    }
    return driver;
}

/* Fills in the functions; the name of one that is needed and missing, or NULL. */
static const char *
find_functions(CudaDriver *table, void *library)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(functions); i++) {
        void *function = dlsym(library, functions[i].name);
        if (function == NULL && functions[i].is_needed) {
            return functions[i].name;
        }
        memcpy((char *)table + functions[i].place, &function, sizeof function);
    }
    return NULL;
}

/* cuda_open(path) → the version of the driver. Opened again it is another table: what was loaded before stays usable. */
static PyObject *
cuda_open(PyObject *Py_UNUSED(module), PyObject *path)
{
    const char *name = PyUnicode_AsUTF8(path);
    CudaDriver *opened = name ? calloc(1, sizeof *opened) : NULL;
    if (opened == NULL) {
        return name ? PyErr_NoMemory() : NULL;
    }
    void *library;
    const char *missing = NULL;
    CudaResult status = 0;
    Py_BEGIN_ALLOW_THREADS
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    missing = library ? find_functions(opened, library) : NULL;
    if (library && missing == NULL) {
        status = opened->init(0);
        status = status ? status : opened->driver_version(&opened->version);
        opened->process = getpid();
    }
    Py_END_ALLOW_THREADS
    if (library == NULL) {
        const char *reason = dlerror();
        PyErr_SetString(PyExc_OSError, reason ? reason : name);
    }
    else if (missing) {
        PyErr_Format(PyExc_OSError, "%s has no function %s", name, missing);
    }
    else if (status) {
        fail(opened, "cuInit", status, "");
    }
    else {
        driver = opened;
        return PyLong_FromLong(opened->version);
    }
    free(opened); /* the library stays open: some cannot be closed */
    return NULL;
}

int
cuda_context(CudaDriver *asked, int device, CudaContext *context)
{
    int handle = 0;
    CudaContext primary = NULL;
    CudaResult status;
    if (device < 0 || device >= CUDA_MOST_DEVICES) {
        PyErr_Format(PyExc_ValueError, "%d is not the number of a GPU", device);
        return -1;
    }
    if (asked->contexts[device] == NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = asked->device_get(&handle, device);
        status = status ? status : asked->primary_context(&primary, handle); /* kept for good, as PyTorch does */
        Py_END_ALLOW_THREADS
        if (status) {
            return fail(asked, "cuDevicePrimaryCtxRetain", status, "");
        }
        asked->contexts[device] = primary;
    }
    *context = asked->contexts[device];
    return 0;
}

/* --- devices ------------------------------------------------------------------------------------ */

static PyObject *
cuda_device_count(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const CudaDriver *asked = cuda_driver();
    int count;
    if (asked == NULL) {
        return NULL;
    }
    CudaResult status = asked->device_count(&count);
    return status ? (fail(asked, "cuDeviceGetCount", status, ""), NULL) : PyLong_FromLong(count);
}

static PyObject *
cuda_device_name(PyObject *Py_UNUSED(module), PyObject *number)
{
    const CudaDriver *asked = cuda_driver();
    int device = 0;
    char name[NAME_BYTES] = "";
    long wanted = asked ? PyLong_AsLong(number) : -1;
    if (asked == NULL || (wanted == -1 && PyErr_Occurred())) {
        return NULL;
    }
    CudaResult status = asked->device_get(&device, (int)wanted);
    status = status ? status : asked->device_name(name, sizeof name - 1, device);
    return status ? (fail(asked, "cuDeviceGetName", status, ""), NULL) : PyUnicode_FromString(name);
}

/* cuda_attribute(device, attribute): the attribute by its number in the driver's manual. */
static PyObject *
cuda_attribute(PyObject *Py_UNUSED(module), PyObject *args)
{
    const CudaDriver *asked = cuda_driver();
    int number, attribute, device, value;
    if (asked == NULL || !PyArg_ParseTuple(args, "ii:cuda_attribute", &number, &attribute)) {
        return NULL;
    }
    CudaResult status = asked->device_get(&device, number);
    status = status ? status : asked->device_attribute(&value, attribute, device);
    return status ? (fail(asked, "cuDeviceGetAttribute", status, ""), NULL) : PyLong_FromLong(value);
}

/* --- work in a context ---------------------------------------------------------------------------- */

/* A thread in the context of a device, and allowed to allocate there while somebody records a graph. */
typedef struct {
    const CudaDriver *driver;
    CudaContext context, before;
    int mode;
} Inside;

static CudaResult
go_inside(Inside *inside, const CudaDriver *asked, CudaContext context)
{
    *inside = (Inside){.context = context, .mode = RELAXED_CAPTURE};
    CudaResult status = cuda_enter(asked, context, &inside->before);
    if (status) {
        return status;
    }
    inside->driver = asked;
    if (asked->capture_mode) {
        asked->capture_mode(&inside->mode);
    }
    return 0;
}

/* Back from there, if it was reached. */
static void
go_outside(Inside *inside)
{
    if (inside->driver == NULL) {
        return;
    }
    if (inside->driver->capture_mode) {
        inside->driver->capture_mode(&inside->mode);
    }
    cuda_leave(inside->driver, inside->context, inside->before);
}

/* What the assembler prints, and the options that make it print there. */
typedef struct {
    char info[LOG_BYTES], errors[LOG_BYTES];
    int options[5];
    void *values[5];
} Log;

static Log *
new_log(void)
{
    Log *log = calloc(1, sizeof *log);
    if (log) {
        int options[] = {INFO_LOG, INFO_LOG_BYTES, ERROR_LOG, ERROR_LOG_BYTES, LOG_VERBOSE};
        void *values[] = {log->info, (void *)(uintptr_t)(LOG_BYTES - 1), log->errors,
                          (void *)(uintptr_t)(LOG_BYTES - 1), (void *)(uintptr_t)1};
        memcpy(log->options, options, sizeof options);
        memcpy(log->values, values, sizeof values);
    }
    return log;
}

static CudaResult
link_ptx(const CudaDriver *asked, Log *log, const char *ptx, size_t size, void **image, size_t *image_size, CudaLink *link)
{
    CudaResult status = asked->link_create(Py_ARRAY_LENGTH(log->options), log->options, log->values, link);
    if (status) {
        *link = NULL;
        return status;
    }
    status = asked->link_add(*link, PTX_INPUT, (void *)(uintptr_t)ptx, size, "smelt.ptx", 0, NULL, NULL);
    return status ? status : asked->link_complete(*link, image, image_size);
}

/* cuda_link(ptx, device) → (machine code for such a device, what the assembler printed) */
static PyObject *
cuda_link(PyObject *Py_UNUSED(module), PyObject *args)
{
    CudaDriver *asked = cuda_driver();
    const char *ptx;
    Py_ssize_t size;
    int device;
    CudaContext context;
    if (asked == NULL || !PyArg_ParseTuple(args, "y#i:cuda_link", &ptx, &size, &device)
        || cuda_context(asked, device, &context) < 0) {
        return NULL;
    }
    Log *log = new_log();
    char *text = malloc((size_t)size + 1); /* the driver reads to a zero */
    PyObject *result = NULL;
    if (log && text) {
        Inside inside;
        CudaLink link = NULL;
        void *image = NULL;
        size_t image_size = 0;
        memcpy(text, ptx, (size_t)size);
        text[size] = 0;
        CudaResult status;
        Py_BEGIN_ALLOW_THREADS
        status = go_inside(&inside, asked, context);
        if (status == 0) {
            status = link_ptx(asked, log, text, (size_t)size + 1, &image, &image_size, &link);
        }
        Py_END_ALLOW_THREADS
        if (status) {
            fail(asked, "cuLinkAddData", status, log->errors);
        }
        else {
            result = Py_BuildValue("(y#N)", (const char *)image, (Py_ssize_t)image_size,
                                   PyUnicode_DecodeUTF8(log->info, (Py_ssize_t)strlen(log->info), "replace"));
        }
        if (link) {
            asked->link_destroy(link); /* the image goes with it */
        }
        go_outside(&inside);
    }
    else {
        PyErr_NoMemory();
    }
    free(log);
    free(text);
    return result;
}

/* --- modules -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    CudaDriver *driver;
    CudaContext context;
    CudaHandle handle;
    int device;
} CudaModule;

static PyObject *
module_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "device", NULL};
    Py_buffer image;
    int device;
    CudaContext context;
    CudaDriver *asked = cuda_driver();
    if (asked == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "y*i:CudaModule", names, &image, &device)) {
        return NULL;
    }
    CudaModule *self = NULL;
    Log *log = new_log();
    if (log == NULL) {
        PyErr_NoMemory();
    }
    else if (cuda_context(asked, device, &context) == 0) {
        self = (CudaModule *)type->tp_alloc(type, 0);
    }
    if (self) {
        CudaResult status;
        Inside inside;
        CudaHandle handle = NULL;
        Py_BEGIN_ALLOW_THREADS
        status = go_inside(&inside, asked, context);
        if (status == 0) {
            status = asked->load(&handle, image.buf, Py_ARRAY_LENGTH(log->options), log->options, log->values);
        }
        go_outside(&inside);
        Py_END_ALLOW_THREADS
        self->driver = asked;
        self->context = context;
        self->device = device;
        self->handle = status ? NULL : handle;
        if (status) {
            fail(asked, "cuModuleLoadDataEx", status, log->errors);
            Py_CLEAR(self);
        }
    }
    free(log);
    PyBuffer_Release(&image);
    return (PyObject *)self;
}

static bool
is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* At the end of the process the driver may be gone before us, and frees everything anyway; a child of fork() has none. */
static void
module_dealloc(CudaModule *self)
{
    if (self->handle && !is_finalizing() && self->driver->process == getpid()) {
        Inside inside;
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        Py_BEGIN_ALLOW_THREADS
        if (go_inside(&inside, self->driver, self->context) == 0) {
            self->driver->unload(self->handle);
        }
        go_outside(&inside);
        Py_END_ALLOW_THREADS
        PyErr_Restore(type, error, trace);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Looks a function up and lets it have more shared memory than a function has unasked, if it needs more. */
static CudaResult
find_function(CudaModule *self, const char *name, int shared, CudaFunction *result)
{
    CudaResult status = self->driver->get_function(result, self->handle, name);
    if (status == 0 && shared > USUAL_SHARED) {
        int have = 0;
        status = self->driver->get_attribute(&have, MOST_DYNAMIC_SHARED, *result);
        if (status == 0 && have < shared) {
            status = self->driver->set_attribute(*result, MOST_DYNAMIC_SHARED, shared);
        }
    }
    return status;
}

/* function(name, shared_bytes=0) → what cuLaunchKernel takes */
static PyObject *
module_function(CudaModule *self, PyObject *args)
{
    const char *name;
    int shared = 0;
    CudaFunction handle = NULL;
    Inside inside;
    if (!PyArg_ParseTuple(args, "s|i:function", &name, &shared)) {
        return NULL;
    }
    CudaResult status = go_inside(&inside, self->driver, self->context);
    status = status ? status : find_function(self, name, shared, &handle);
    go_outside(&inside);
    if (status) {
        fail(self->driver, status == CUDA_INVALID_VALUE ? "cuFuncSetAttribute" : "cuModuleGetFunction", status, name);
        return NULL;
    }
    return PyLong_FromVoidPtr(handle);
}

/* attribute(function, attribute): by its number in the driver's manual. */
static PyObject *
module_attribute(CudaModule *self, PyObject *args)
{
    Py_ssize_t function;
    int attribute, value = 0;
    Inside inside;
    if (!PyArg_ParseTuple(args, "ni:attribute", &function, &attribute)) {
        return NULL;
    }
    CudaResult status = go_inside(&inside, self->driver, self->context);
    status = status ? status : self->driver->get_attribute(&value, attribute, (CudaFunction)(uintptr_t)function);
    go_outside(&inside);
    return status ? (fail(self->driver, "cuFuncGetAttribute", status, ""), NULL) : PyLong_FromLong(value);
}

/* occupancy(function, threads, shared_bytes) → how many of its blocks one multiprocessor runs at once */
static PyObject *
module_occupancy(CudaModule *self, PyObject *args)
{
    Py_ssize_t function, shared;
    int threads, blocks = 0;
    Inside inside;
    if (!PyArg_ParseTuple(args, "nin:occupancy", &function, &threads, &shared)) {
        return NULL;
    }
    CudaResult status = go_inside(&inside, self->driver, self->context);
    status = status ? status
                    : self->driver->occupancy(&blocks, (CudaFunction)(uintptr_t)function, threads, (size_t)shared);
    go_outside(&inside);
    return status ? (fail(self->driver, "cuOccupancyMaxActiveBlocksPerMultiprocessor", status, ""), NULL)
                  : PyLong_FromLong(blocks);
}

static PyMethodDef module_methods[] = {
    {"function", (PyCFunction)module_function, METH_VARARGS, PyDoc_STR("A function of the module, by name.")},
    {"attribute", (PyCFunction)module_attribute, METH_VARARGS, PyDoc_STR("What the driver says of a function.")},
    {"occupancy", (PyCFunction)module_occupancy, METH_VARARGS,
     PyDoc_STR("How many blocks of a function one multiprocessor runs at once.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef module_members[] = {
    {"device", T_INT, offsetof(CudaModule, device), READONLY, "The number of the GPU it was loaded on."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject CudaModuleType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.CudaModule",
    .tp_basicsize = sizeof(CudaModule),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = module_new,
    .tp_dealloc = (destructor)module_dealloc,
    .tp_methods = module_methods,
    .tp_members = module_members,
    .tp_doc = PyDoc_STR("Machine code in the memory of a GPU; it stays there as long as this object does."),
};

/* --- the Python module ---------------------------------------------------------------------------- */

static PyMethodDef driver_functions[] = {
    {"cuda_open", cuda_open, METH_O, PyDoc_STR("Open the driver at a path; its version.")},
    {"cuda_device_count", cuda_device_count, METH_NOARGS, PyDoc_STR("How many GPUs the driver sees.")},
    {"cuda_device_name", cuda_device_name, METH_O, PyDoc_STR("What a GPU is called.")},
    {"cuda_attribute", cuda_attribute, METH_VARARGS, PyDoc_STR("What the driver says of a GPU.")},
    {"cuda_error_text", cuda_error_text, METH_O, PyDoc_STR("The driver's own words for an error.")},
    {"cuda_link", cuda_link, METH_VARARGS, PyDoc_STR("PTX as machine code for a GPU, and what the assembler printed.")},
    {NULL, NULL, 0, NULL},
};

int
cuda_driver_init(PyObject *module)
{
    cuda_error = PyErr_NewExceptionWithDoc("smelt._native.CudaError", "A function of the CUDA driver failed.",
                                           PyExc_RuntimeError, NULL);
    if (cuda_error == NULL || PyModule_AddObjectRef(module, "CudaError", cuda_error) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, driver_functions) < 0 ? -1 : PyModule_AddType(module, &CudaModuleType);
}
