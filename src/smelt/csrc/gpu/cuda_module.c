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

/* What the driver says, as text. A new reference, or NULL with an exception. */
static PyObject *
decoded(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* Raises CudaError, with the error's number and what the assembler printed as attributes. Returns NULL. */
static PyObject *
fail(const CudaDriver *asked, const char *function, CudaResult code, const char *log)
{
    const char *name = NULL, *text = smelt_cuda_error_words(asked, code);
    if (asked->error_name(code, &name) || name == NULL) {
        name = "an error without a name";
    }
    text = text ? text : "no text";
    PyObject *message = PyUnicode_FromFormat("%s: %s (%s)", function, text, name);
    PyObject *error = message ? PyObject_CallOneArg(cuda_error, message) : NULL;
    PyObject *attributes = error ? PyObject_GetAttrString(error, "__dict__") : NULL;
    PyObject *values = attributes ? Py_BuildValue("{s:i,s:N,s:N}", "code", code, "text", decoded(text), "log", decoded(log))
                                  : NULL;
    if (values && PyDict_Update(attributes, values) == 0) {
        PyErr_SetObject(cuda_error, error);
    }
    Py_XDECREF(message);
    Py_XDECREF(error);
    Py_XDECREF(attributes);
    Py_XDECREF(values);
    return NULL;
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
    return text ? decoded(text) : PyUnicode_FromFormat("unknown error %ld", number);
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
            fail(asked, "cuDevicePrimaryCtxRetain", status, "");
            return -1;
        }
        *found = primary;
    }
    *context = *found;
    return 0;
}

/* --- devices ------------------------------------------------------------------------------------ */

/* cuda_device_names() → [what each GPU is called] */
static PyObject *
cuda_device_names(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    const CudaDriver *asked = cuda_driver();
    int count = 0, device;
    char name[NAME_BYTES] = "";
    CudaResult status = asked ? asked->device_count(&count) : 0;
    PyObject *names = asked ? PyList_New(count) : NULL;
    for (int i = 0; names && status == 0 && i < count; i++) {
        status = asked->device_get(&device, i);
        status = status ? status : asked->device_name(name, sizeof name - 1, device);
        PyList_SET_ITEM(names, i, decoded(name));
    }
    if (names && (status || PyErr_Occurred())) {
        Py_CLEAR(names);
    }
    return status ? fail(asked, count ? "cuDeviceGetName" : "cuDeviceGetCount", status, "") : names;
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
    return status ? fail(asked, "cuDeviceGetAttribute", status, "") : PyLong_FromLong(value);
}

/* --- modules -------------------------------------------------------------------------------------- */

/* cuda_new_stream(device): see _native.pyi. PyTorch's own streams are shared by all who ask for one. */
static PyObject *
cuda_new_stream(PyObject *Py_UNUSED(module), PyObject *number)
{
    enum { NON_BLOCKING = 1 };
    const CudaDriver *asked = cuda_driver();
    const long device = PyLong_AsLong(number);
    CudaContext context, before;
    CudaStream stream = NULL;
    if (asked == NULL || PyErr_Occurred() || cuda_context(asked, (int)device, &context) < 0) {
        return NULL;
    }
    CudaResult status = asked->stream_create ? cuda_enter(asked, context, &before) : CUDA_INVALID_VALUE;
    if (status == 0) {
        status = asked->stream_create(&stream, NON_BLOCKING);
        cuda_leave(asked, context, before);
    }
    return status ? fail(asked, "cuStreamCreate", status, "") : PyLong_FromVoidPtr(stream);
}

/* cuda_link(ptx, device) → (machine code for such a device, what the assembler printed) */
static PyObject *
cuda_link(PyObject *Py_UNUSED(module), PyObject *args)
{
    const CudaDriver *asked = cuda_driver();
    PyObject *ptx; /* bytes have a zero at their end, which the driver reads to */
    int device;
    CudaContext context;
    if (asked == NULL || !PyArg_ParseTuple(args, "Si:cuda_link", &ptx, &device)
        || cuda_context(asked, device, &context) < 0) {
        return NULL;
    }
    const size_t size = (size_t)PyBytes_GET_SIZE(ptx) + 1;
    CudaLog log = {.errors = ""};
    CudaInside inside;
    CudaLink link = NULL;
    void *image = NULL;
    size_t image_size = 0;
    CudaResult status;
    Py_BEGIN_ALLOW_THREADS
    status = smelt_cuda_go_inside(&inside, asked, context);
    status = status ? status : smelt_cuda_link(asked, PyBytes_AS_STRING(ptx), size, &image, &image_size, &link, &log);
    Py_END_ALLOW_THREADS
    PyObject *result = status ? fail(asked, "cuLinkAddData", status, log.errors)
                              : Py_BuildValue("(y#N)", (const char *)image, (Py_ssize_t)image_size, decoded(log.info));
    if (link) {
        asked->link_destroy(link); /* the image goes with it */
    }
    smelt_cuda_go_outside(&inside);
    return result;
}

typedef struct {
    PyObject_HEAD
    CudaModule module;
    int device;
} ModuleObject;

static PyObject *
module_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"image", "device", NULL};
    Py_buffer image;
    int device;
    const CudaDriver *asked = cuda_driver();
    if (asked == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "y*i:CudaModule", names, &image, &device)) {
        return NULL;
    }
    CudaModule module = {.driver = asked};
    CudaLog log;
    ModuleObject *self = cuda_context(asked, device, &module.context) < 0 ? NULL : (ModuleObject *)type->tp_alloc(type, 0);
    if (self) {
        CudaResult status;
        Py_BEGIN_ALLOW_THREADS
        status = smelt_cuda_load_module(&module, image.buf, &log);
        Py_END_ALLOW_THREADS
        self->module = module;
        self->device = device;
        if (status) {
            fail(asked, "cuModuleLoadDataEx", status, log.errors);
            Py_CLEAR(self);
        }
    }
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
module_dealloc(ModuleObject *self)
{
    if (self->module.handle && !is_finalizing() && self->module.driver->process == getpid()) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        Py_BEGIN_ALLOW_THREADS
        smelt_cuda_unload_module(&self->module);
        Py_END_ALLOW_THREADS
        PyErr_Restore(type, error, trace);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* 0, or -1 with an exception. */
static int
find_function(const ModuleObject *self, const char *name, int shared_bytes, CudaFunction *function)
{
    CudaResult status = smelt_cuda_find_function(&self->module, name, shared_bytes, function);
    if (status) {
        fail(self->module.driver, status == CUDA_INVALID_VALUE ? "cuFuncSetAttribute" : "cuModuleGetFunction", status, "");
    }
    return status ? -1 : 0;
}

/* function(name, shared_bytes=0) → what cuLaunchKernel takes */
static PyObject *
module_function(ModuleObject *self, PyObject *args)
{
    const char *name;
    int shared = 0;
    CudaFunction function;
    if (!PyArg_ParseTuple(args, "s|i:function", &name, &shared) || find_function(self, name, shared, &function) < 0) {
        return NULL;
    }
    return PyLong_FromVoidPtr(function);
}

/* usage(name, threads, shared_bytes): see _native.pyi. */
static PyObject *
module_usage(ModuleObject *self, PyObject *args)
{
    enum { SHARED_BYTES = 1, LOCAL_BYTES = 3, REGISTERS = 4 }; /* in the driver's manual */
    const CudaDriver *driver = self->module.driver;
    const char *name;
    int threads, shared_bytes, registers, local, shared, blocks;
    CudaFunction function;
    CudaInside inside;
    if (!PyArg_ParseTuple(args, "sii:usage", &name, &threads, &shared_bytes)
        || find_function(self, name, shared_bytes, &function) < 0) {
        return NULL;
    }
    CudaResult status = smelt_cuda_go_inside(&inside, driver, self->module.context);
    status = status ? status : driver->get_attribute(&registers, REGISTERS, function);
    status = status ? status : driver->get_attribute(&local, LOCAL_BYTES, function);
    status = status ? status : driver->get_attribute(&shared, SHARED_BYTES, function);
    status = status ? status : driver->occupancy(&blocks, function, threads, (size_t)shared_bytes);
    smelt_cuda_go_outside(&inside);
    return status ? fail(driver, "cuFuncGetAttribute", status, "") : Py_BuildValue("iiii", registers, local, shared, blocks);
}

static PyMethodDef module_methods[] = {
    {"function", (PyCFunction)module_function, METH_VARARGS, PyDoc_STR("A function of the module, by name.")},
    {"usage", (PyCFunction)module_usage, METH_VARARGS, PyDoc_STR("What a function takes of a GPU.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef module_members[] = {
    {"device", T_INT, offsetof(ModuleObject, device), READONLY, "The number of the GPU it was loaded on."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CudaModuleType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.CudaModule",
    .tp_basicsize = sizeof(ModuleObject),
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
    {"cuda_device_names", cuda_device_names, METH_NOARGS, PyDoc_STR("What the GPUs that the driver sees are called.")},
    {"cuda_attribute", cuda_attribute, METH_VARARGS, PyDoc_STR("What the driver says of a GPU.")},
    {"cuda_new_stream", cuda_new_stream, METH_O, PyDoc_STR("A stream of a GPU that nobody else has, for good.")},
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
