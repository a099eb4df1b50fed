/* The results of a recorded call: new tensors without data, views of arguments, or arguments. */
#include "lazy/lazy.h"

#include "runner/aoti_library.h"

PyObject *
view_of(PyObject *tensor, const StridedLayout *layout, int64_t offset)
{
    Handle base = library_handle(tensor), view;
    if (base == NULL || library.view(base, layout->rank, layout->words, layout->words + layout->rank, offset, &view)) {
        return NULL;
    }
    PyObject *wrapped = library.wrap(view);
    library.drop(view);
    return wrapped;
}

/* dispatch/tensors.py says what such a tensor is, and makes it where memory cannot be read. */
PyObject *
new_tensor(LazyRecorder *recorder, LazyMemory *memory)
{
    const StridedLayout *layout = memory->whole;
    if (recorder->create == NULL || recorder->create == Py_None) {
        return PyObject_CallMethod((PyObject *)recorder, "new", "OO", layout->parts, memory);
    }
    PyObject *args[] = {layout->shape, layout->dtype};
    PyObject *tensor = PyObject_Vectorcall(recorder->create, args, 2, NULL);
    int done = tensor ? device_memory_place(tensor, &memory->base, layout->bytes) : -1;
    if (done == 0 && !layout->is_as_created) {
        PyObject *strided = view_of(tensor, layout, 0);
        if (strided == NULL && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "PyTorch cannot make a tensor with these strides");
        }
        done = strided ? 0 : -1;
        Py_SETREF(tensor, strided);
    }
    if (done < 0) {
        Py_CLEAR(tensor);
    }
    return tensor;
}

static PyObject *
fresh_result(LazyRecorder *recorder, const StepResult *result, int64_t value)
{
    Recording *now = (Recording *)recorder->now;
    LazyMemory *memory = lazy_memory_new((PyTypeObject *)recorder->memory_class, result->layout);
    if (memory == NULL) {
        return NULL;
    }
    PyObject *tensor = NULL;
    if (lazy_memory_enter(memory, now->serial, value) == 0 && recording_watch(now, value, memory) == 0) {
        now->bytes += result->layout->bytes;
        tensor = new_tensor(recorder, memory);
    }
    Py_DECREF(memory);
    return tensor;
}

/* The argument that a result is, or is a view of; borrowed. */
static PyObject *
argument_of(const StepResult *result, PyObject *args, PyObject *kwargs)
{
    if (result->position >= 0 && result->position < PyTuple_GET_SIZE(args)) {
        return PyTuple_GET_ITEM(args, result->position);
    }
    PyObject *argument = result->name && kwargs ? PyDict_GetItemWithError(kwargs, result->name) : NULL;
    if (argument == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "a result is an argument that is not there");
    }
    return argument;
}

static PyObject *
view_result(LazyRecorder *recorder, const StepResult *result, int64_t value, PyObject *base)
{
    int64_t offset;
    LazyMemory *memory = plain_memory(recorder, base, result->layout->dtype, &offset);
    if (memory) {
        if (lazy_memory_see(memory, result->layout, value) < 0) {
            return NULL;
        }
        PyObject *view = view_of(base, result->layout, result->layout->offset - offset);
        if (view || PyErr_Occurred()) {
            return view;
        }
    }
    return PyObject_CallMethod((PyObject *)recorder, "new_view", "OLO", result->layout->parts, (long long)value, base);
}

static PyObject *
one_result(LazyRecorder *recorder, const StepResult *result, int64_t *value, PyObject *args, PyObject *kwargs)
{
    if (result->kind == NO_RESULT) {
        Py_RETURN_NONE;
    }
    if (result->kind == FRESH_RESULT) {
        return fresh_result(recorder, result, (*value)++);
    }
    PyObject *argument = argument_of(result, args, kwargs);
    if (argument == NULL || result->kind == SAME_RESULT) {
        return Py_XNewRef(argument);
    }
    return view_result(recorder, result, (*value)++, argument);
}

PyObject *
step_results(LazyRecorder *recorder, Step *step, PyObject *args, PyObject *kwargs)
{
    if (step->outputs == NULL && step_read_results(step) < 0) {
        return NULL;
    }
    int64_t value = step->first_value;
    if (step->form == NULL || step->form == Py_None) {
        if (step->output_count == 0) {
            Py_RETURN_NONE;
        }
        return one_result(recorder, &step->outputs[0], &value, args, kwargs);
    }
    PyObject *results = PyList_New(0);
    for (Py_ssize_t i = 0; results && i < step->output_count; i++) {
        PyObject *one = one_result(recorder, &step->outputs[i], &value, args, kwargs);
        if (one == NULL || PyList_Append(results, one) < 0) {
            Py_CLEAR(results);
        }
        Py_XDECREF(one);
    }
    if (results && step->form != (PyObject *)&PyList_Type) {
        Py_SETREF(results, PyList_AsTuple(results));
    }
    return results;
}
