/* LazyKernel: what PyTorch's dispatcher calls for one operator of the lazy device.

   The first call asks the owner what the operator is. Operators that are simply recorded are recorded here. All
   others, and calls that recording declines, go to the owner. */
#include "lazy/lazy.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD
    LazyRecorder *recorder;
    PyObject *owner, *name;
    PyObject *operator;         /* NULL: not asked yet */
    RecordedOperator *recorded; /* NULL: the owner answers */
} LazyKernel;

static PyObject *device_name;

static PyObject *
kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"recorder", "owner", "name", NULL};
    PyObject *recorder, *owner, *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OU:LazyKernel", names, &LazyRecorderType, &recorder, &owner,
                                     &name)) {
        return NULL;
    }
    if (device_name == NULL && (device_name = PyUnicode_InternFromString("device")) == NULL) {
        return NULL;
    }
    LazyKernel *self = (LazyKernel *)type->tp_alloc(type, 0);
    if (self) {
        self->recorder = (LazyRecorder *)Py_NewRef(recorder);
        self->owner = Py_NewRef(owner);
        self->name = Py_NewRef(name);
    }
    return (PyObject *)self;
}

/* Finding all operators when they are registered would take half a second. */
static int
find_operator(LazyKernel *self)
{
    PyObject *pair = PyObject_CallMethod(self->owner, "find", "O", self->name), *operator, *recorded;
    if (pair == NULL || !PyArg_ParseTuple(pair, "OO", &operator, &recorded)) {
        Py_XDECREF(pair);
        return -1;
    }
    if (recorded != Py_None && !PyObject_TypeCheck(recorded, &RecordedOperatorType)) {
        PyErr_SetString(PyExc_TypeError, "find() returns an operator, and how it is recorded");
        Py_DECREF(pair);
        return -1;
    }
    if (self->operator== NULL) { /* no other thread was there */
        self->recorded = recorded == Py_None ? NULL : (RecordedOperator *)Py_NewRef(recorded);
        self->operator= Py_NewRef(operator);
    }
    Py_DECREF(pair);
    return 0;
}

static PyObject *
ask_owner(LazyKernel *self, const char *method, PyObject *args, PyObject *kwargs, PyObject *error)
{
    PyObject *named = kwargs ? Py_NewRef(kwargs) : PyDict_New();
    if (named == NULL) {
        return NULL;
    }
    PyObject *result = error ? PyObject_CallMethod(self->owner, method, "OOOO", self->operator, args, named, error)
                            : PyObject_CallMethod(self->owner, method, "OOO", self->operator, args, named);
    Py_DECREF(named);
    return result;
}

/* After a call that could not be recorded, with its exception. */
static PyObject *
after_error(LazyKernel *self, PyObject *args, PyObject *kwargs)
{
    if (!PyErr_ExceptionMatches(self->recorder->declined)) {
        return NULL;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *result = ask_owner(self, "declined", args, kwargs, value);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return result;
}

static PyObject *
record_locked(LazyKernel *self, PyObject *args, PyObject *kwargs)
{
    LazyRecorder *recorder = self->recorder;
    PyObject *result = record_call(recorder, self->recorded, args, kwargs);
    if (result == NULL) {
        return after_error(self, args, kwargs);
    }
    const Recording *now = (Recording *)recorder->now;
    if (now->count >= recorder->most_operators || now->bytes >= recorder->most_bytes) {
        PyObject *done = PyObject_CallMethod(self->owner, "run_full", NULL);
        if (done == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(done);
    }
    return result;
}

/* Whether the owner has to see a call: it says for which device, or draws random numbers. */
static bool
is_for_owner(const LazyKernel *self, PyObject *args, PyObject *kwargs)
{
    const RecordedOperator *recorded = self->recorded;
    if (recorded == NULL || (kwargs && PyDict_Contains(kwargs, device_name))) {
        return true;
    }
    if (recorded->zero == NULL) {
        return false;
    }
    bool is_there = recorded->zero_position < PyTuple_GET_SIZE(args);
    PyObject *chance = is_there ? PyTuple_GET_ITEM(args, recorded->zero_position)
                       : kwargs ? PyDict_GetItem(kwargs, recorded->zero)
                                : NULL;
    return chance && !(PyFloat_CheckExact(chance) && PyFloat_AS_DOUBLE(chance) == 0.0);
}

static PyObject *
kernel_call(LazyKernel *self, PyObject *args, PyObject *kwargs)
{
    if (self->operator== NULL && find_operator(self) < 0) {
        return NULL;
    }
    if (kwargs && PyDict_GET_SIZE(kwargs) == 0) {
        kwargs = NULL;
    }
    if (is_for_owner(self, args, kwargs)) {
        return ask_owner(self, "call", args, kwargs, NULL);
    }
    if (recording_lock_acquire(self->recorder->lock) < 0) {
        return NULL;
    }
    PyObject *result = record_locked(self, args, kwargs);
    recording_lock_release(self->recorder->lock);
    return result;
}

static int
kernel_traverse(LazyKernel *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->owner);
    Py_VISIT(self->operator);
    Py_VISIT(self->recorded);
    return 0;
}

static void
kernel_dealloc(LazyKernel *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->recorder);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->name);
    Py_CLEAR(self->operator);
    Py_CLEAR(self->recorded);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject LazyKernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.LazyKernel",
    .tp_doc = PyDoc_STR("What PyTorch's dispatcher calls for one operator of the lazy device."),
    .tp_basicsize = sizeof(LazyKernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_new,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_traverse = (traverseproc)kernel_traverse,
    .tp_call = (ternaryfunc)kernel_call,
};
