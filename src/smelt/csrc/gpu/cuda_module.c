/* Opens the driver for Python, queries devices, and loads modules: PTX → machine code for a GPU → functions in its
   memory. */
#define PY_SSIZE_T_CLEAN
#include "gpu/cuda_module.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

enum { NAME_BYTES = 256 };

/* Never freed: modules remember theirs. */
typedef struct {
    CudaDriver driver;
    CudaContext contexts[CUDA_MOST_DEVICES]; /* PyTorch's own, which the runtime calls primary; NULL: not asked for yet */
} OpenDriver;

static OpenDriver *opened;
static PyObject *cuda_error;

/* --- errors ------------------------------------------------------------------------------------- */

/* Raises CudaError, with the error's number and what the assembler printed as attributes. Returns -1. */
static int
fail(const CudaDriver *asked, const char *function, CudaResult code, const char *log)
{
    const char *name = NULL, *text = smelt_cuda_error_words(asked, code);
    if (asked->error_name(code, &name) || name == NULL) {
        name = "an error without a name";
    }
    text = text ? text : "no text";
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
    long number = asked ? PyLong_AsLong(code) : -1;
    if (asked == NULL || (number == -1 && PyErr_Occurred())) {
        return NULL;
    }
    const char *text = smelt_cuda_error_words(asked, (CudaResult)number);
    return text ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace")
                : PyUnicode_FromFormat("unknown error %ld", number);
}

/* --- the library -------------------------------------------------------------------------------- */

const CudaDriver *
cuda_driver(void)
{
    if (opened == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no CUDA driver was opened");
        return NULL;
    }
    return &opened->driver;
}

/* cuda_open(path) → the version of the driver. Opened again it is another table: what was loaded before stays usable. */
static PyObject *
cuda_open(PyObject *Py_UNUSED(module), PyObject *path)
{
    const char *name = PyUnicode_AsUTF8(path);
    OpenDriver *opening = name ? calloc(1, sizeof *opening) : NULL;
    if (opening == NULL) {
        return name ? PyErr_NoMemory() : NULL;
    }
    const CudaDriver *driver = &opening->driver;
    const char *problem;
    int version = 0;
    CudaResult status = 0;
    Py_BEGIN_ALLOW_THREADS
    problem = smelt_cuda_open_driver(&opening->driver, name, CUDA_ASSEMBLER);
    if (problem == NULL) {
        status = driver->init(0);
        status = status ? status : driver->driver_version(&version);
    }
    Py_END_ALLOW_THREADS
    if (problem == NULL && status == 0) {
        opened = opening;
        return PyLong_FromLong(version);
    }
    if (status) {
        fail(driver, "cuInit", status, "");
    }
    else if (driver->library) {
        PyErr_Format(PyExc_OSError, "%s has no function %s", name, problem);
    }
    else {
        PyErr_SetString(PyExc_OSError, problem);
    }
    free(opening); /* the library stays open: some cannot be closed */
    return NULL;
}

int
cuda_context(const CudaDriver *asked, int device, CudaContext *context)
{
    int handle = 0;
    CudaContext primary = NULL;
    CudaResult status;
    if (device < 0 || device >= CUDA_MOST_DEVICES) {
        PyErr_Format(PyExc_ValueError, "%d is not the number of a GPU", device);
        return -1;
    }
    CudaContext *found = &((OpenDriver *)asked)->contexts[device];
    if (*found == NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = asked->device_get(&handle, device);
        status = status ? status : asked->retain_context(&primary, handle); /* kept for good, as PyTorch does */
        Py_END_ALLOW_THREADS
        if (status) {
            return fail(asked, "cuDevicePrimaryCtxRetain", status, "");
        }
        *found = primary;
    }
    *context = *found;
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

/* --- modules -------------------------------------------------------------------------------------- */

/* cuda_link(ptx, device) → (machine code for such a device, what the assembler printed) */
static PyObject *
cuda_link(PyObject *Py_UNUSED(module), PyObject *args)
{
    const CudaDriver *asked = cuda_driver();
    const char *ptx;
    Py_ssize_t size;
    int device;
    CudaContext context;
    if (asked == NULL || !PyArg_ParseTuple(args, "y#i:cuda_link", &ptx, &size, &device)
        || cuda_context(asked, device, &context) < 0) {
        return NULL;
    }
    CudaLog *log = calloc(1, sizeof *log);
    char *text = malloc((size_t)size + 1); /* the driver reads to a zero */
    PyObject *result = NULL;
    if (log && text) {
        CudaInside inside;
        CudaLink link = NULL;
        void *image = NULL;
        size_t image_size = 0;
        memcpy(text, ptx, (size_t)size);
        text[size] = 0;
        CudaResult status;
        Py_BEGIN_ALLOW_THREADS
        status = smelt_cuda_go_inside(&inside, asked, context);
        if (status == 0) {
            status = smelt_cuda_link(asked, text, (size_t)size + 1, &image, &image_size, &link, log);
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
        smelt_cuda_go_outside(&inside);
    }
    else {
        PyErr_NoMemory();
    }
    free(log);
    free(text);
    return result;
}

typedef struct {
    PyObject_HEAD
    const CudaDriver *driver;
    CudaContext context;
    CudaModuleHandle handle;
    int device;
} CudaModule;

static PyObject *
module_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "device", NULL};
    Py_buffer image;
    int device;
    CudaContext context;
    const CudaDriver *asked = cuda_driver();
    if (asked == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "y*i:CudaModule", names, &image, &device)) {
        return NULL;
    }
    CudaModule *self = NULL;
    CudaLog *log = calloc(1, sizeof *log);
    if (log == NULL) {
        PyErr_NoMemory();
    }
    else if (cuda_context(asked, device, &context) == 0) {
        self = (CudaModule *)type->tp_alloc(type, 0);
    }
    if (self) {
        CudaResult status;
        CudaInside inside;
        Py_BEGIN_ALLOW_THREADS
        status = smelt_cuda_go_inside(&inside, asked, context);
        if (status == 0) {
            status = smelt_cuda_load_module(asked, image.buf, &self->handle, log);
        }
        smelt_cuda_go_outside(&inside);
        Py_END_ALLOW_THREADS
        self->driver = asked;
        self->context = context;
        self->device = device;
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
        CudaInside inside;
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        Py_BEGIN_ALLOW_THREADS
        if (smelt_cuda_go_inside(&inside, self->driver, self->context) == 0) {
            self->driver->unload(self->handle);
        }
        smelt_cuda_go_outside(&inside);
        Py_END_ALLOW_THREADS
        PyErr_Restore(type, error, trace);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* function(name, shared_bytes=0) → what cuLaunchKernel takes */
static PyObject *
module_function(CudaModule *self, PyObject *args)
{
    const char *name;
    int shared = 0;
    CudaFunction handle = NULL;
    CudaInside inside;
    if (!PyArg_ParseTuple(args, "s|i:function", &name, &shared)) {
        return NULL;
    }
    CudaResult status = smelt_cuda_go_inside(&inside, self->driver, self->context);
    status = status ? status : smelt_cuda_find_function(self->driver, self->handle, name, shared, &handle);
    smelt_cuda_go_outside(&inside);
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
    CudaInside inside;
    if (!PyArg_ParseTuple(args, "ni:attribute", &function, &attribute)) {
        return NULL;
    }
    CudaResult status = smelt_cuda_go_inside(&inside, self->driver, self->context);
    status = status ? status : self->driver->get_attribute(&value, attribute, (CudaFunction)(uintptr_t)function);
    smelt_cuda_go_outside(&inside);
    return status ? (fail(self->driver, "cuFuncGetAttribute", status, ""), NULL) : PyLong_FromLong(value);
}

/* occupancy(function, threads, shared_bytes) → how many of its blocks one multiprocessor runs at once */
static PyObject *
module_occupancy(CudaModule *self, PyObject *args)
{
    Py_ssize_t function, shared;
    int threads, blocks = 0;
    CudaInside inside;
    if (!PyArg_ParseTuple(args, "nin:occupancy", &function, &threads, &shared)) {
        return NULL;
    }
    CudaResult status = smelt_cuda_go_inside(&inside, self->driver, self->context);
    status = status ? status
                    : self->driver->occupancy(&blocks, (CudaFunction)(uintptr_t)function, threads, (size_t)shared);
    smelt_cuda_go_outside(&inside);
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

static PyTypeObject CudaModuleType = {
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
cuda_module_init(PyObject *module)
{
    cuda_error = PyErr_NewExceptionWithDoc("smelt._native.CudaError", "A function of the CUDA driver failed.",
                                           PyExc_RuntimeError, NULL);
    if (cuda_error == NULL || PyModule_AddObjectRef(module, "CudaError", cuda_error) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, driver_functions) < 0 ? -1 : PyModule_AddType(module, &CudaModuleType);
}
