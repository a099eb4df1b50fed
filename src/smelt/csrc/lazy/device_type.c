/* DeviceTypeAnswer: the answer of a device guard in Python to the question for its device type, also while an
   exception is set.

   PyTorch asks its guards for their type when it leaves the stream of an autograd node, also when a hook of the node has
   raised. Python refuses the result of a call that returns with an exception set, and PyTorch then ends the process. So
   the exception is set aside for the call: PyTorch reads the attribute `type_`, calls it, and drops it. An attribute
   that is read while an exception is set is an object of its own, which takes the exception when it is called and sets
   it again when it is dropped. */
#include "lazy/device_memory.h"

typedef struct {
    PyObject_HEAD
    PyObject *device_type;
    PyObject *type, *value, *traceback; /* of the exception that was set when this was called */
} DeviceTypeAnswer;

static PyObject *
create(PyTypeObject *type, PyObject *device_type)
{
    DeviceTypeAnswer *self = (DeviceTypeAnswer *)type->tp_alloc(type, 0);
    if (self) {
        self->device_type = Py_NewRef(device_type);
    }
    return (PyObject *)self;
}

static PyObject *
answer_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *device_type;
    return PyArg_ParseTuple(args, "O:DeviceTypeAnswer", &device_type) ? create(type, device_type) : NULL;
}

static PyObject *
answer_get(PyObject *self, PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(owner))
{
    return PyErr_Occurred() ? create(Py_TYPE(self), ((DeviceTypeAnswer *)self)->device_type) : Py_NewRef(self);
}

static PyObject *
answer_call(DeviceTypeAnswer *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    if (PyErr_Occurred() && self->type == NULL) {
        PyErr_Fetch(&self->type, &self->value, &self->traceback);
    }
    return Py_NewRef(self->device_type);
}

static void
answer_dealloc(DeviceTypeAnswer *self)
{
    Py_CLEAR(self->device_type);
    if (self->type) {
        PyErr_Restore(self->type, self->value, self->traceback);
    }
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject DeviceTypeAnswerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.DeviceTypeAnswer",
    .tp_doc = PyDoc_STR("Returns a device type when it is called, also while an exception is set."),
    .tp_basicsize = sizeof(DeviceTypeAnswer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = answer_new,
    .tp_dealloc = (destructor)answer_dealloc,
    .tp_call = (ternaryfunc)answer_call,
    .tp_descr_get = answer_get,
};
