/* The check ("tensor", type, dtype, device, shape, stride, requires_grad), through Python attributes: any object that
   has them counts as a tensor, and torch is not needed to build or import this module.

   Reading them creates a Python object each, about a microsecond per tensor. If the tensor's type offers DLPack's
   exchange interface, the first tensor that passes shows the check how its dtype and device look there. From then on
   one call and a few integer comparisons replace everything but the type and what DLPack does not show: requires_grad,
   and whether the tensor has state besides its memory, which compiled code would not see. If the memory layout of
   tensors is known (guards/tensor_memory.c), not even that call is needed. */
#include "guards/guards.h"

static struct {
    PyObject *dtype, *device, *shape, *stride, *requires_grad, *exchange; /* interned */
} names;

/* What makes a tensor more than its memory: a method or an attribute that must not say so, and how to put it if it does.
   A type that does not have it is free of it. */
static struct {
    const char *ask, *words;
    PyObject *name; /* interned */
} quirks[] = {
    {"is_neg", "lazily negated", NULL},         {"is_conj", "lazily conjugated", NULL},
    {"_is_zerotensor", "all zeros and has none", NULL}, {"is_mkldnn", "laid out by another library", NULL},
    {"has_names", "read by names", NULL},
};

enum { QUIRKS = Py_ARRAY_LENGTH(quirks) };

int
guard_tensor_init(void)
{
    names.dtype = PyUnicode_InternFromString("dtype");
    names.device = PyUnicode_InternFromString("device");
    names.shape = PyUnicode_InternFromString("shape");
    names.stride = PyUnicode_InternFromString("stride");
    names.requires_grad = PyUnicode_InternFromString("requires_grad");
    names.exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    for (int i = 0; i < QUIRKS; i++) {
        quirks[i].name = PyUnicode_InternFromString(quirks[i].ask);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The operands of the check, in order, then the absence of each quirk. */
enum {
    TENSOR_TYPE,
    TENSOR_DTYPE,
    TENSOR_DEVICE,
    TENSOR_SHAPE,
    TENSOR_STRIDE,
    TENSOR_GRAD,
    TENSOR_QUIRKS,
    TENSOR_PROPERTIES = TENSOR_QUIRKS + QUIRKS,
};

static int
sizes_prepare(PyObject *tuple, Py_ssize_t rank, int64_t *sizes)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != rank) {
        PyErr_Format(PyExc_TypeError, "guard check \"tensor\" needs shape and stride of one length, got %R", tuple);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank; i++) {
        PyObject *size = PyTuple_GET_ITEM(tuple, i);
        sizes[i] = size == Py_None ? ANY_SIZE : (int64_t)PyLong_AsLongLong(size);
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* The type's exchange function; NULL, without an exception, if it has none that we know. */
static DescribeTensor
find_describe(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttr(type, names.exchange);
    ExchangeInterface *interface = NULL;
    if (capsule && PyCapsule_CheckExact(capsule)) {
        interface = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    }
    Py_XDECREF(capsule);
    PyErr_Clear();
    return interface && interface->major_version == 1 ? interface->describe : NULL;
}

int
tensor_prepare(Check *check)
{
    PyObject *shape = operand(check, TENSOR_SHAPE), *stride = operand(check, TENSOR_STRIDE);
    if (!PyType_Check(operand(check, TENSOR_TYPE)) || !PyTuple_Check(shape)) {
        PyErr_Format(PyExc_TypeError, "guard check \"tensor\" needs a type and a shape, got %R", check->spec);
        return -1;
    }
    Py_ssize_t rank = PyTuple_GET_SIZE(shape);
    TensorSpec *spec = PyMem_Calloc(1, sizeof(TensorSpec) + 2 * (size_t)rank * sizeof(int64_t));
    if (spec == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    check->tensor = spec; /* freed with the guards, whatever happens */
    spec->type = operand(check, TENSOR_TYPE);
    spec->dtype = operand(check, TENSOR_DTYPE);
    spec->device = operand(check, TENSOR_DEVICE);
    spec->requires_grad = PyObject_IsTrue(operand(check, TENSOR_GRAD));
    spec->rank = rank;
    spec->any_stride = stride == Py_None;
    spec->describe = find_describe(spec->type);
    for (int i = 0; i < QUIRKS; i++) {
        spec->quirks |= (unsigned)PyObject_HasAttr(spec->type, quirks[i].name) << i;
    }
    if (spec->requires_grad < 0 || sizes_prepare(shape, rank, spec->sizes) < 0) {
        return -1;
    }
    return spec->any_stride ? 0 : sizes_prepare(stride, rank, spec->sizes + rank);
}

/* Takes the reference to `actual`. */
static int
sizes_equal(PyObject *actual, const int64_t *sizes, Py_ssize_t rank)
{
    if (actual == NULL) {
        return -1;
    }
    bool equal = PyTuple_Check(actual) && PyTuple_GET_SIZE(actual) == rank;
    for (Py_ssize_t i = 0; equal && i < rank; i++) {
        PyObject *size = PyTuple_GET_ITEM(actual, i);
        equal = PyLong_Check(size) && (sizes[i] == ANY_SIZE || PyLong_AsLongLong(size) == sizes[i]);
    }
    Py_DECREF(actual);
    return PyErr_Occurred() ? -1 : equal;
}

static bool
is_of_c(PyObject *descriptor)
{
    return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) || Py_IS_TYPE(descriptor, &PyMethodDescr_Type);
}

/* An attribute as PyTorch's own C type has it: what a program put in its place above that is not to run here. */
static PyObject *
own_attribute(PyObject *value, PyObject *name)
{
    PyObject *nearest = _PyType_Lookup(Py_TYPE(value), name); /* which Python keeps in a cache, and is it as a rule */
    if (nearest && is_of_c(nearest)) {
        return Py_TYPE(nearest)->tp_descr_get(nearest, value, (PyObject *)Py_TYPE(value));
    }
    PyObject *mro = Py_TYPE(value)->tp_mro;
    for (Py_ssize_t i = mro ? PyTuple_GET_SIZE(mro) : 0; i-- > 0;) {
        PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        PyObject *attribute = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, name) : NULL;
        if (attribute && is_of_c(attribute)) {
            return Py_TYPE(attribute)->tp_descr_get(attribute, value, (PyObject *)Py_TYPE(value));
        }
        if (attribute == NULL && PyErr_Occurred()) {
            return NULL;
        }
    }
    return PyObject_GetAttr(value, name);
}


static int
attribute_is(PyObject *value, PyObject *name, PyObject *expected)
{
    PyObject *actual = own_attribute(value, name);
    Py_XDECREF(actual);
    return actual ? actual == expected : -1;
}

static int
device_equal(PyObject *value, PyObject *expected)
{
    PyObject *actual = own_attribute(value, names.device);
    int equal = actual ? PyObject_RichCompareBool(actual, expected, Py_EQ) : -1;
    Py_XDECREF(actual);
    return equal;
}

/* Whether the value of an attribute, or what it says if it is a method without arguments, is False. */
static int
denies(PyObject *value, PyObject *name)
{
    PyObject *answer = own_attribute(value, name);
    if (answer && !PyBool_Check(answer)) {
        Py_SETREF(answer, PyObject_CallNoArgs(answer));
    }
    Py_XDECREF(answer);
    return answer ? answer == Py_False : -1;
}

static PyObject *
own_stride(PyObject *value)
{
    PyObject *stride = own_attribute(value, names.stride);
    PyObject *strides = stride ? PyObject_CallNoArgs(stride) : NULL;
    Py_XDECREF(stride);
    return strides;
}

/* One property of a tensor, by its place in the check. */
static int
tensor_property_holds(const TensorSpec *spec, PyObject *value, int property)
{
    switch (property) {
    case TENSOR_TYPE:
        return (PyObject *)Py_TYPE(value) == spec->type;
    case TENSOR_DTYPE:
        return attribute_is(value, names.dtype, spec->dtype);
    case TENSOR_DEVICE:
        return device_equal(value, spec->device);
    case TENSOR_SHAPE:
        return sizes_equal(own_attribute(value, names.shape), spec->sizes, spec->rank);
    case TENSOR_STRIDE:
        return spec->any_stride || sizes_equal(own_stride(value), spec->sizes + spec->rank, spec->rank);
    case TENSOR_GRAD:
        return attribute_is(value, names.requires_grad, spec->requires_grad ? Py_True : Py_False);
    default:
        return !(spec->quirks >> (property - TENSOR_QUIRKS) & 1) || denies(value, quirks[property - TENSOR_QUIRKS].name);
    }
}

static int
tensor_properties_hold(const TensorSpec *spec, PyObject *value, int first)
{
    int holds = 1;
    for (int property = first; holds == 1 && property < TENSOR_PROPERTIES; property++) {
        holds = tensor_property_holds(spec, value, property);
    }
    return holds;
}

/* Kinds of numbers and devices where the exchange interface tells apart all that Python does. */
static bool
is_unambiguous(const ExchangeTensor *tensor)
{
    uint8_t code = tensor->type.code;
    int32_t device = tensor->device.kind;
    return tensor->type.lanes == 1
           && (code == EXCHANGE_INT || code == EXCHANGE_UINT || code == EXCHANGE_FLOAT || code == EXCHANGE_BFLOAT
               || code == EXCHANGE_BOOL)
           && (device == EXCHANGE_CPU || device == EXCHANGE_CUDA || device == EXCHANGE_ROCM);
}

/* Describes a tensor; if that does not work, it is not tried again. */
static bool
describe(TensorSpec *spec, PyObject *value, ExchangeTensor *tensor)
{
    if (spec->describe(value, tensor) == 0) {
        return true;
    }
    PyErr_Clear();
    spec->describe = NULL;
    return false;
}

static bool
same_sizes(const int64_t *actual, const int64_t *expected, Py_ssize_t rank)
{
    for (Py_ssize_t i = 0; i < rank; i++) {
        if (expected[i] != ANY_SIZE && expected[i] != actual[i]) {
            return false;
        }
    }
    return true;
}

static bool
same_kind(const TensorSpec *spec, const ExchangeTensor *tensor)
{
    return tensor->type.code == spec->exchange_type.code && tensor->type.bits == spec->exchange_type.bits
           && tensor->type.lanes == spec->exchange_type.lanes && tensor->device.kind == spec->exchange_device.kind
           && tensor->device.index == spec->exchange_device.index && tensor->rank == spec->rank;
}

/* Whether the description has the wanted sizes. */
static bool
same_layout(const TensorSpec *spec, const ExchangeTensor *tensor)
{
    return same_sizes(tensor->shape, spec->sizes, spec->rank)
           && (spec->any_stride || same_sizes(tensor->stride, spec->sizes + spec->rank, spec->rank));
}

/* From a tensor that passed: what its dtype and device look like. An interface that describes it otherwise than Python
   does is of no use. */
static void
learn(TensorSpec *spec, PyObject *value)
{
    ExchangeTensor tensor;
    if (!describe(spec, value, &tensor)) {
        return;
    }
    spec->exchange_type = tensor.type;
    spec->exchange_device = tensor.device;
    if (is_unambiguous(&tensor) && same_kind(spec, &tensor) && same_layout(spec, &tensor)) {
        spec->learned = true;
    }
    else {
        spec->describe = NULL;
    }
}

/* For a value of the right type. */
static int
tensor_holds_by_interface(TensorSpec *spec, PyObject *value)
{
    ExchangeTensor tensor;
    if (!spec->learned || !spec->describe || !describe(spec, value, &tensor)) {
        int holds = tensor_properties_hold(spec, value, TENSOR_TYPE);
        if (holds == 1 && spec->describe && !spec->learned) {
            learn(spec, value);
        }
        return holds;
    }
    if (!same_kind(spec, &tensor) || !same_layout(spec, &tensor)) {
        return 0;
    }
    return tensor_properties_hold(spec, value, TENSOR_GRAD);
}

int
tensor_holds(const Check *check, PyObject *value)
{
    TensorSpec *spec = check->tensor;
    if ((PyObject *)Py_TYPE(value) != spec->type) {
        return 0;
    }
    if (tensor_memory_holds(spec, value)) {
        return 1;
    }
    int holds = tensor_holds_by_interface(spec, value);
    if (holds == 1) {
        tensor_memory_learn(spec, value);
    }
    return holds;
}

static PyObject *
tensor_property(PyObject *value, int property)
{
    switch (property) {
    case TENSOR_TYPE:
        return Py_NewRef(Py_TYPE(value));
    case TENSOR_DTYPE:
        return PyObject_GetAttr(value, names.dtype);
    case TENSOR_DEVICE:
        return PyObject_GetAttr(value, names.device);
    case TENSOR_SHAPE: {
        PyObject *shape = PyObject_GetAttr(value, names.shape);
        PyObject *plain = shape ? PySequence_Tuple(shape) : NULL; /* torch.Size prints its own name */
        Py_XDECREF(shape);
        return plain;
    }
    case TENSOR_STRIDE:
        return PyObject_CallMethodNoArgs(value, names.stride);
    default:
        return PyObject_GetAttr(value, names.requires_grad);
    }
}

PyObject *
tensor_explain(const Check *check, PyObject *value)
{
    static const char *const words[] = {"type ", "dtype ", "device ", "shape ", "stride ", "requires_grad "};
    for (int property = TENSOR_TYPE; value && property < TENSOR_PROPERTIES; property++) {
        int holds = tensor_property_holds(check->tensor, value, property);
        if (holds == 1) {
            continue;
        }
        PyErr_Clear();
        if (property >= TENSOR_QUIRKS) {
            return PyUnicode_FromFormat("expected memory to be read as it is, got a tensor that is %s",
                                        quirks[property - TENSOR_QUIRKS].words);
        }
        PyObject *actual = tensor_property(value, property);
        if (actual == NULL) {
            PyErr_Clear();
            return expected_got(words[property], operand(check, property), value);
        }
        PyObject *text = expected_got(words[property], operand(check, property), actual);
        Py_DECREF(actual);
        return text;
    }
    return expected_got("a tensor of type ", operand(check, TENSOR_TYPE), value);
}
