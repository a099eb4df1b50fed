/* The steps of a program: allocations, kernels, library calls natively or by Python, values dropped. */
#include "runner/run.h"

#include "runner/small_matmul.h"

enum { USUAL_ARGUMENTS = 16 };

/* Calls function(threads, *items) or function(*items), the last of them by name. With the GIL. */
static PyObject *
call_python(Run *run, const Step *step, PyObject *threads)
{
    int before = threads ? 1 : 0, count = step->count + before;
    PyObject *usual[USUAL_ARGUMENTS + 1];
    PyObject **room = count <= USUAL_ARGUMENTS ? usual : PyMem_New(PyObject *, count + 1);
    if (room == NULL) {
        return PyErr_NoMemory();
    }
    PyObject **arguments = room + 1, *result = NULL; /* room[0] is scratch space for vectorcall */
    int made = 0;
    if (threads) {
        arguments[made++] = Py_NewRef(threads);
    }
    while (made < count) {
        PyObject *argument = object_made(run, &run->program->items[step->first + made - before], false);
        if (argument == NULL) {
            break;
        }
        arguments[made++] = argument;
    }
    if (made == count) {
        Py_ssize_t named = step->names ? PyTuple_GET_SIZE(step->names) : 0;
        size_t positional = (size_t)(count - named) | PY_VECTORCALL_ARGUMENTS_OFFSET;
        result = PyObject_Vectorcall(step->function, arguments, positional, named ? step->names : NULL);
    }
    while (made > 0) {
        Py_DECREF(arguments[--made]);
    }
    if (room != usual) {
        PyMem_Free(room);
    }
    return result;
}

/* --- steps: each 0, or -1 with an exception and the GIL ---------------------------------------- */

static int
allocate(Run *run, const Step *step)
{
    Value *value = &run->values[step->value];
    const int64_t *numbers = run->numbers + step->shape.numbers;
    Handle made;
    if (run->native && step->code >= 0
        && library.empty_strided(step->shape.rank, numbers, numbers + step->shape.rank, step->code, step->device_type,
                                 step->device_index, &made) == 0) {
        *value = (Value){.handle = made, .owns_handle = true};
        return 0;
    }
    acquire_gil(run);
    PyObject *sizes, *strides;
    if (tuples_of(run, step->shape, &sizes, &strides) < 0) {
        return -1;
    }
    PyObject *arguments[] = {sizes, strides, step->dtype, step->device};
    PyObject *object = PyObject_Vectorcall(run->program->allocate, arguments, 4, NULL);
    Py_DECREF(sizes);
    Py_DECREF(strides);
    if (object == NULL) {
        return -1;
    }
    set_object(run, value, object, true);
    return 0;
}

/* How many threads kernels are to use, asked once a call. */
int
ask_threads(Run *run)
{
    if (run->threads) {
        return 0;
    }
    acquire_gil(run);
    PyObject *answer = PyObject_CallNoArgs(run->program->threads);
    if (answer == NULL) {
        return -1;
    }
    run->threads = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    if (run->threads < 1) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "a kernel needs at least one thread, got %lld", (long long)run->threads);
        }
        run->threads = 0;
        return -1;
    }
    return 0;
}

static int
launch_python(Run *run, const Step *step)
{
    acquire_gil(run);
    PyObject *threads = PyLong_FromLongLong(run->threads);
    PyObject *result = threads ? call_python(run, step, threads) : NULL;
    Py_XDECREF(threads);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static int
launch(Run *run, const Step *step)
{
    if (ask_threads(run) < 0) {
        return -1;
    }
    if (!is_launcher(step->function)) {
        return launch_python(run, step);
    }
    AnyLauncher *kernel = (AnyLauncher *)step->function;
    const Item *items = run->program->items + step->first;
    for (int i = 0; i < step->count; i++) {
        if (data_of(run, &run->values[items[i].value], &run->pointers[i]) < 0) {
            return -1;
        }
    }
    LaunchCall call = {
        .buffers = run->pointers, .threads = run->threads, .workspace = &run->workspace, .device = -1};
    if (kernel->asks_device && step->count && device_of(run, &run->values[items[0].value], &call.device) < 0) {
        return -1;
    }
    release_gil(run);
    if (kernel->launch(kernel, &call) == 0) {
        return 0;
    }
    acquire_gil(run);
    return kernel->finish(kernel, &call);
}

/* Steals a tensor, which becomes the value it stands for, in the layout that was promised. */
static int
keep_result(Run *run, const Result *expected, PyObject *found)
{
    PyObject *sizes, *strides, *fitted = NULL;
    if (tuples_of(run, expected->shape, &sizes, &strides) == 0) {
        PyObject *arguments[] = {found, sizes, strides, expected->dtype, expected->name};
        fitted = PyObject_Vectorcall(run->program->fit, arguments, 5, NULL);
        Py_DECREF(sizes);
        Py_DECREF(strides);
    }
    Py_DECREF(found);
    if (fitted == NULL) {
        return -1;
    }
    set_object(run, &run->values[expected->value], fitted, true);
    return 0;
}

/* What a call returned becomes the values it stands for. Steals the result. */
static int
keep_results(Run *run, const Step *step, PyObject *result)
{
    if (step->result_count == 0) {
        Py_DECREF(result);
        return 0;
    }
    PyObject *sequence = step->is_one ? NULL : PySequence_Fast(result, "a library call that yields several results");
    if (!step->is_one && sequence && PySequence_Fast_GET_SIZE(sequence) != step->result_count) {
        PyErr_Format(PyExc_ValueError, "a library call yields %zd results, not %d", PySequence_Fast_GET_SIZE(sequence),
                     step->result_count);
        Py_CLEAR(sequence);
    }
    int status = step->is_one || sequence ? 0 : -1;
    for (int i = 0; status == 0 && i < step->result_count; i++) {
        const Result *expected = &run->program->results[step->results + i];
        if (expected->value >= 0) {
            status = keep_result(run, expected, Py_NewRef(sequence ? PySequence_Fast_GET_ITEM(sequence, i) : result));
        }
    }
    Py_XDECREF(sequence);
    Py_DECREF(result);
    return status;
}

static bool
has_layout(const Run *run, Handle handle, const Result *expected, bool *has_strides)
{
    int64_t rank, *sizes, *strides;
    int32_t dtype;
    const Shape shape = expected->shape;
    const int64_t *wanted = run->numbers + shape.numbers;
    if (library.rank(handle, &rank) || rank != shape.rank || library.dtype(handle, &dtype) || dtype != expected->code
        || library.sizes(handle, &sizes) || library.strides(handle, &strides)) {
        return false;
    }
    *has_strides = true;
    for (int i = 0; i < shape.rank; i++) {
        if (sizes[i] != wanted[i] || (strides[i] != wanted[shape.rank + i] && sizes[i] != 1)) {
            return false;
        }
        *has_strides = *has_strides && strides[i] == wanted[shape.rank + i];
    }
    return true;
}

/* Steals the handle: what a native call returned becomes the value it stands for, in the layout that was promised. */
static int
keep_handle(Run *run, const Result *expected, Handle handle)
{
    bool has_strides;
    if (expected->value < 0) {
        library.drop(handle);
        return 0;
    }
    if (has_layout(run, handle, expected, &has_strides)) {
        Handle made = handle;
        /* The same memory with the strides of its dimensions of one element; no view of it to autograd. */
        if (has_strides || view_handle(run, handle, expected->shape, &made) == 0) {
            if (!has_strides) {
                library.drop(handle);
            }
            run->values[expected->value] = (Value){.handle = made, .owns_handle = true};
            return 0;
        }
    }
    acquire_gil(run);
    PyObject *object = wrapped(handle);
    return object ? keep_result(run, expected, object) : -1;
}

/* 0, or -1 with an exception. */
static int
keep_handles(Run *run, const Step *step)
{
    int status = 0;
    for (int i = 0; i < step->result_count; i++) {
        if (status < 0) {
            library.drop(run->temporary[i]);
        }
        else {
            status = keep_handle(run, &run->program->results[step->results + i], run->temporary[i]);
        }
    }
    return status;
}

/* Without the GIL. Not 0: it did not work, whatever the reason, or cannot be done without Python. */
static int32_t
call_native(Run *run, const Step *step)
{
    const NativeCall *call = &step->native;
    int made_count = 0;
    int32_t status = 0;
    for (int i = 0; status == 0 && i < call->tensor_count; i++) {
        const Item *item = &run->program->items[call->tensors + i];
        run->handles[i] = run->values[item->value].handle;
        if (run->handles[i] == NULL) {
            status = -1;
        }
        else if (item->shape.numbers >= 0) {
            status = view_handle(run, run->handles[i], item->shape, &run->temporary[made_count]);
            if (status == 0) {
                run->handles[i] = run->temporary[made_count++];
            }
        }
    }
    if (status == 0) {
        status = native_call(call, run->numbers + call->code, run->program->texts + call->texts, run->handles,
                             run->stack);
    }
    while (made_count > 0) {
        library.drop(run->temporary[--made_count]);
    }
    if (status || call->function) {
        return status;
    }
    return native_call_returned(call, run->stack, run->temporary, step->result_count) < 0 ? -1 : 0;
}

/* A call that is there to raise. 0, or -1 with its exception. */
static int
raise_unless(Run *run, const Step *step)
{
    int holds = is_true(run, &run->values[step->unless]);
    if (holds) {
        return holds < 0 ? -1 : 0;
    }
    acquire_gil(run);
    PyObject *result = call_python(run, step, NULL);
    if (result) {
        PyErr_Format(PyExc_SystemError, "%R raises nothing for values that a kernel found out of range", step->function);
        Py_DECREF(result);
    }
    return -1;
}

/* A product that is less work than a call. The GIL stays as it is. */
static int
multiply(Run *run, const Step *step)
{
    void *data[PRODUCT_MATRICES];
    for (int i = 0; i < step->native.tensor_count; i++) {
        if (data_of(run, &run->values[run->program->items[step->native.tensors + i].value], &data[i]) < 0) {
            return -1;
        }
    }
    product_run(run->numbers + step->product, step->native.tensor_count, data, step->factors);
    return 0;
}

static int
call(Run *run, const Step *step)
{
    if (step->unless >= 0) {
        return raise_unless(run, step);
    }
    if (step->product >= 0 && run->native) {
        return multiply(run, step);
    }
    if (step->is_native && run->native) {
        release_gil(run);
        if (call_native(run, step) == 0) {
            return keep_handles(run, step);
        }
    }
    acquire_gil(run);
    PyObject *result = call_python(run, step, NULL);
    return result ? keep_results(run, step, result) : -1;
}

int
run_step(Run *run, const Step *step)
{
    if (step->kind == ALLOCATE) {
        return allocate(run, step);
    }
    if (step->kind == LAUNCH) {
        return launch(run, step);
    }
    if (step->kind == CALL) {
        return call(run, step);
    }
    for (int i = 0; i < step->count; i++) {
        Value *value = &run->values[run->program->items[step->first + i].value];
        if (!value->is_shared) {
            drop_value(run, value);
        }
    }
    return 0;
}
