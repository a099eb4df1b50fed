/* Values of a running program: tensors as handles, as Python objects or both, and conversions between them. */
#include "runner/run.h"

/* --- values ----------------------------------------------------------------------------------- */

void
set_object(Run *run, Value *value, PyObject *object, bool owned)
{
    *value = (Value){.object = object, .owns_object = owned, .handle = run->native ? library_handle(object) : NULL};
}

void
drop_value(Run *run, Value *value)
{
    Value old = *value;
    *value = (Value){.object = NULL};
    if (old.owns_handle) {
        library.drop(old.handle);
    }
    if (old.owns_object) {
        acquire_gil(run);
        Py_DECREF(old.object);
    }
}

PyObject *
wrapped(Handle handle)
{
    PyObject *object = library.wrap(handle);
    library.drop(handle);
    if (object == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a tensor got no Python object");
    }
    return object;
}

PyObject *
object_of(Run *run, Value *value)
{
    if (value->object) {
        return value->object;
    }
    acquire_gil(run);
    if (value->handle == NULL) {
        PyErr_SetString(PyExc_SystemError, "a step uses a value that no step before it has made");
        return NULL;
    }
    PyObject *object = wrapped(value->handle);
    void *data = value->data;
    *value = (Value){.object = NULL};
    if (object) {
        set_object(run, value, object, true);
        value->data = data;
    }
    return object;
}

int
data_of(Run *run, Value *value, void **data)
{
    if (value->data == NULL && (value->handle == NULL || library.data_ptr(value->handle, &value->data))) {
        acquire_gil(run);
        PyObject *object = object_of(run, value);
        if (object == NULL || tensor_data(object, &value->data) < 0) {
            return -1;
        }
    }
    *data = value->data;
    return 0;
}

int
device_of(Run *run, Value *value, int32_t *device)
{
    if (value->handle && library.device_index && library.device_index(value->handle, device) == 0) {
        return 0;
    }
    acquire_gil(run);
    PyObject *object = object_of(run, value);
    return object ? tensor_device(object, device) : -1;
}

int
is_true(Run *run, Value *value)
{
    int32_t device;
    if (device_of(run, value, &device) < 0) {
        return -1;
    }
    if (device < 0) {
        void *holds;
        return data_of(run, value, &holds) < 0 ? -1 : *(const unsigned char *)holds != 0;
    }
    /* Memory that only a GPU can read: PyTorch waits for what is at work there, and copies. */
    bool answer;
    if (value->handle && library.item_bool && library.item_bool(value->handle, &answer) == 0) {
        return answer;
    }
    acquire_gil(run);
    PyObject *object = object_of(run, value);
    return object ? PyObject_IsTrue(object) : -1;
}

PyObject *
tuple_of(const int64_t *numbers, int64_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int64_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

int32_t
view_handle(const Run *run, Handle handle, Shape shape, Handle *view)
{
    const int64_t *numbers = run->numbers + shape.numbers;
    return library.view(handle, shape.rank, numbers, numbers + shape.rank, numbers[2 * shape.rank], view);
}

/* A new reference to a view. What leaves the program is a view to PyTorch too, and made by it. With the GIL. */
static PyObject *
view_object(Run *run, Value *value, Shape shape, bool leaves)
{
    Handle viewed;
    if (run->native && !leaves && value->handle && view_handle(run, value->handle, shape, &viewed) == 0) {
        return wrapped(viewed);
    }
    PyObject *whole = object_of(run, value);
    const int64_t *sizes = run->numbers + shape.numbers, *strides = sizes + shape.rank;
    return whole ? PyObject_CallFunction(run->program->view, "ONNL", whole, tuple_of(sizes, shape.rank),
                                         tuple_of(strides, shape.rank), (long long)strides[shape.rank])
                 : NULL;
}

/* --- objects made of values ------------------------------------------------------------------- */

/* Each a new reference, or NULL with an exception. With the GIL. */
static PyObject *
tensor_made(Run *run, const ItemRecord *item, bool leaves)
{
    Value *value = &run->values[item->what];
    if (item->numbers >= 0) {
        return view_object(run, value, shape_of_item(item), leaves);
    }
    PyObject *object = object_of(run, value);
    return object ? Py_NewRef(object) : NULL;
}

static PyObject *
sequence_made(Run *run, const ItemRecord *item, bool leaves)
{
    if (Py_EnterRecursiveCall(" in the arguments or results of a program")) {
        return NULL;
    }
    PyObject *sequence = item->kind == LIST_ITEM ? PyList_New(item->length) : PyTuple_New(item->length);
    for (int64_t i = 0; sequence && i < item->length; i++) {
        PyObject *part = object_made(run, &run->table->items[item->what + i], leaves);
        if (part == NULL) {
            Py_CLEAR(sequence);
        }
        else if (item->kind == LIST_ITEM) {
            PyList_SET_ITEM(sequence, i, part);
        }
        else {
            PyTuple_SET_ITEM(sequence, i, part);
        }
    }
    Py_LeaveRecursiveCall();
    return sequence;
}

PyObject *
object_made(Run *run, const ItemRecord *item, bool leaves)
{
    switch (item->kind) {
    case OBJECT_ITEM:
        return Py_NewRef(PyTuple_GET_ITEM(run->program->objects, item->what));
    case VALUE_ITEM:
        return tensor_made(run, item, leaves);
    case NONE_ITEM:
        return Py_NewRef(Py_None);
    case BOOL_ITEM:
        return PyBool_FromLong(item->what != 0);
    case INTEGER_ITEM:
        return PyLong_FromLongLong(item->what);
    case DOUBLE_ITEM:
        return PyFloat_FromDouble(double_of(item->what));
    default:
        return sequence_made(run, item, leaves);
    }
}
