/* The steps of a program: allocations, kernels, native or Python library calls, dropping values. */
#include "runner/run.h"

#include "executor/steps.h"
#include "runner/small_matmul.h"

enum { USUAL_ARGUMENTS = 16 };

static PyObject *
object_at(const Run *run, int64_t place)
{
    return PyTuple_GET_ITEM(run->program->objects, place);
}

/* Calls function(*arguments), the last of them by name. With the GIL. */
static PyObject *
call_python(Run *run, const CallRecord *call)
{
    const int64_t count = call->argument_count;
    PyObject *usual[USUAL_ARGUMENTS + 1], *names = object_at(run, call->names);
    PyObject **room = count <= USUAL_ARGUMENTS ? usual : PyMem_New(PyObject *, count + 1);
    if (room == NULL) {
        return PyErr_NoMemory();
    }
    PyObject **arguments = room + 1, *result = NULL; /* room[0] is scratch space for vectorcall */
    int64_t filled = 0;
    while (filled < count) {
        PyObject *argument = object_made(run, &run->table->items[call->arguments + filled], false);
        if (argument == NULL) {
            break;
        }
        arguments[filled++] = argument;
    }
    if (filled == count) {
        Py_ssize_t named = PyTuple_GET_SIZE(names);
        size_t positional = (size_t)(count - named) | PY_VECTORCALL_ARGUMENTS_OFFSET;
        result = PyObject_Vectorcall(object_at(run, call->function), arguments, positional, named ? names : NULL);
    }
    while (filled > 0) {
        Py_DECREF(arguments[--filled]);
    }
    if (room != usual) {
        PyMem_Free(room);
    }
    return result;
}

/* The value that a reference names. */
static Value *
value_at(Run *run, int64_t reference)
{
    return &run->values[run->table->references[reference].number];
}

/* --- steps: each 0, or -1 with an exception and the GIL ---------------------------------------- */

int
allocate_value(Run *run, int64_t place)
{
    Value *value = &run->values[place];
    if (value->handle) {
        return 0;
    }
    const TensorRecord *layout = &run->table->tensors[place];
    const DtypeRecord *dtype = &run->table->dtypes[layout->dtype];
    const DeviceRecord *device = &run->table->devices[layout->device];
    const int64_t *sizes = run->numbers + layout->numbers, *strides = sizes + layout->rank;
    Handle handle;
    if (run->native && dtype->code >= 0 && device->kind >= 0
        && library.empty_strided(layout->rank, sizes, strides, (int32_t)dtype->code, (int32_t)device->kind,
                                 (int32_t)device->number, &handle) == 0) {
        *value = (Value){.handle = handle, .owns_handle = true};
        return 0;
    }
    acquire_gil(run);
    PyObject *object = PyObject_CallFunction(run->program->allocate, "NNOO", tuple_of(sizes, layout->rank),
                                             tuple_of(strides, layout->rank), object_at(run, dtype->object),
                                             object_at(run, device->object));
    if (object == NULL) {
        return -1;
    }
    set_object(run, value, object, true);
    return 0;
}

static int
allocate(void *of, int64_t place)
{
    return allocate_value(of, place);
}

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
    run->threads = thread_count(answer);
    Py_DECREF(answer);
    return run->threads ? 0 : -1;
}

/* Calls kernel(threads, *tensors). */
static int
launch_python(Run *run, const LaunchRecord *launch)
{
    acquire_gil(run);
    PyObject *kernel = object_at(run, run->table->kernels[launch->kernel].object);
    PyObject *arguments = PyTuple_New(launch->value_count + 1);
    bool is_made = arguments != NULL;
    for (int64_t i = 0; is_made && i <= launch->value_count; i++) {
        PyObject *argument = i == 0 ? PyLong_FromLongLong(run->threads)
                                    : Py_XNewRef(object_of(run, value_at(run, launch->values + i - 1)));
        is_made = argument != NULL;
        PyTuple_SET_ITEM(arguments, i, argument);
    }
    PyObject *result = is_made ? PyObject_CallObject(kernel, arguments) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static int
launch(void *of, const LaunchRecord *launch)
{
    Run *run = of;
    run->held = 0;
    if (ask_threads(run) < 0) {
        return -1;
    }
    AnyLauncher *kernel = launcher_at(run->program, launch);
    if (kernel == NULL) {
        return launch_python(run, launch);
    }
    for (int64_t i = 0; i < launch->value_count; i++) {
        if (data_of(run, value_at(run, launch->values + i), &run->pointers[i]) < 0) {
            return -1;
        }
    }
    LaunchCall call = {
        .buffers = run->pointers, .threads = run->threads, .workspace = &run->workspace, .device = -1,
        .recording = run->recording};
    if (run->recording) {
        run->recording->values = &run->table->references[launch->values];
    }
    if (kernel->device_from >= 0
        && device_of(run, value_at(run, launch->values + kernel->device_from), &call.device) < 0) {
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
keep_result(Run *run, int64_t place, PyObject *result)
{
    const TensorRecord *expected = &run->table->tensors[place];
    const int64_t *sizes = run->numbers + expected->numbers, *strides = sizes + expected->rank;
    PyObject *fitted = PyObject_CallFunction(run->program->fit, "NNNOs", result, tuple_of(sizes, expected->rank),
                                             tuple_of(strides, expected->rank),
                                             object_at(run, run->table->dtypes[expected->dtype].object),
                                             table_string(run->table, expected->name));
    if (fitted == NULL) {
        return -1;
    }
    set_object(run, &run->values[place], fitted, true);
    return 0;
}

/* What a call returned becomes the values it stands for. Steals the result. */
static int
keep_results(Run *run, const CallRecord *call, PyObject *result)
{
    if (call->result_count == 0) {
        Py_DECREF(result);
        return 0;
    }
    PyObject *sequence = call->is_one ? NULL : PySequence_Fast(result, "a library call that yields several results");
    if (!call->is_one && sequence && PySequence_Fast_GET_SIZE(sequence) != call->result_count) {
        PyErr_Format(PyExc_ValueError, "a library call yields %zd results, not %lld", PySequence_Fast_GET_SIZE(sequence),
                     (long long)call->result_count);
        Py_CLEAR(sequence);
    }
    int status = call->is_one || sequence ? 0 : -1;
    for (int64_t i = 0; status == 0 && i < call->result_count; i++) {
        const int64_t place = run->table->references[call->results + i].number;
        if (place >= 0) {
            status = keep_result(run, place, Py_NewRef(sequence ? PySequence_Fast_GET_ITEM(sequence, i) : result));
        }
    }
    Py_XDECREF(sequence);
    Py_DECREF(result);
    return status;
}

static bool
has_layout(const Run *run, Handle handle, const TensorRecord *expected, bool *has_strides)
{
    int64_t rank, *sizes, *strides;
    int32_t dtype;
    const int64_t *wanted = run->numbers + expected->numbers;
    if (library.rank(handle, &rank) || rank != expected->rank || library.dtype(handle, &dtype)
        || dtype != run->table->dtypes[expected->dtype].code || library.sizes(handle, &sizes)
        || library.strides(handle, &strides)) {
        return false;
    }
    *has_strides = true;
    for (int64_t i = 0; i < rank; i++) {
        if (sizes[i] != wanted[i] || (strides[i] != wanted[rank + i] && sizes[i] != 1)) {
            return false;
        }
        *has_strides = *has_strides && strides[i] == wanted[rank + i];
    }
    return true;
}

/* Steals the handle: what a native call returned becomes the value it stands for, in the layout that was promised. */
static int
keep_handle(Run *run, int64_t place, Handle handle)
{
    bool has_strides;
    if (place < 0) {
        library.drop(handle);
        return 0;
    }
    const TensorRecord *expected = &run->table->tensors[place];
    if (has_layout(run, handle, expected, &has_strides)) {
        Handle view = handle;
        /* The same memory with the strides of its dimensions of one element; no view of it to autograd. */
        if (has_strides || view_handle(run, handle, shape_of_value(expected), &view) == 0) {
            if (!has_strides) {
                library.drop(handle);
            }
            run->values[place] = (Value){.handle = view, .owns_handle = true};
            return 0;
        }
    }
    acquire_gil(run);
    PyObject *object = wrapped(handle);
    return object ? keep_result(run, place, object) : -1;
}

/* 0, or -1 with an exception. */
static int
keep_handles(Run *run, const CallRecord *call)
{
    int status = 0;
    for (int64_t i = 0; i < call->result_count; i++) {
        if (status < 0) {
            library.drop(run->temporary[i]);
        }
        else {
            status = keep_handle(run, run->table->references[call->results + i].number, run->temporary[i]);
        }
    }
    return status;
}

/* Without the GIL. Not 0: it did not work, whatever the reason, or cannot be done without Python. */
static int32_t
call_native(Run *run, const CallRecord *call, const NativeCall *native)
{
    const NativeRecord *record = &run->table->natives[call->native];
    int made_count = 0;
    int32_t status = 0;
    for (int i = 0; status == 0 && i < native->tensor_count; i++) {
        const ItemRecord *item = &run->table->items[record->tensors + i];
        run->handles[i] = run->values[item->what].handle;
        if (run->handles[i] == NULL) {
            status = -1;
        }
        else if (item->numbers >= 0) {
            status = view_handle(run, run->handles[i], shape_of_item(item), &run->temporary[made_count]);
            if (status == 0) {
                run->handles[i] = run->temporary[made_count++];
            }
        }
    }
    if (status == 0) {
        status = native_call(native, run->numbers + record->code, run->table, run->handles, run->stack);
    }
    while (made_count > 0) {
        library.drop(run->temporary[--made_count]);
    }
    if (status || native->function) {
        return status;
    }
    return native_call_returned(native, run->stack, run->temporary, (int)call->result_count) < 0 ? -1 : 0;
}

/* Whether the next call, with no kernel before it, is one that the same value decides about. */
static bool
is_followed_up(const Run *run, const CallRecord *call)
{
    for (int64_t i = run->step + 1; i < run->table->counts[STEPS]; i++) {
        const StepRecord *next = &run->table->steps[i];
        if (next->kind == CALL_STEP) {
            return run->table->calls[next->place].unless == call->unless;
        }
        if (next->kind == LAUNCH_STEP) {
            return false;
        }
    }
    return false;
}

/* A call that is there to raise. 0, or -1 with its exception. */
static int
raise_unless(Run *run, const CallRecord *call)
{
    if (run->held == call->unless + 1) {
        return 0;
    }
    int holds = is_true(run, &run->values[call->unless]);
    if (holds) {
        run->held = call->unless + 1;
        return holds < 0 ? -1 : 0;
    }
    acquire_gil(run);
    PyObject *result = call_python(run, call);
    if (result && is_followed_up(run, call)) {
        Py_DECREF(result);
        return 0;
    }
    if (result) {
        PyErr_Format(PyExc_SystemError, "%s raises nothing for values that a kernel found out of range",
                     table_string(run->table, call->name));
        Py_DECREF(result);
    }
    return -1;
}

/* A product that is less work than a call. The GIL stays as it is. */
static int
multiply(Run *run, const NativeRecord *record)
{
    void *data[PRODUCT_MATRICES];
    for (int64_t i = 0; i < record->tensor_count; i++) {
        if (data_of(run, &run->values[run->table->items[record->tensors + i].what], &data[i]) < 0) {
            return -1;
        }
    }
    product_run(run->numbers + record->product, (int)record->tensor_count, data, double_of(record->beta),
                double_of(record->alpha));
    return 0;
}

/* Whether a call was made before its step. */
static bool
is_made(const Run *run, const CallRecord *call)
{
    const int64_t first = call->result_count ? run->table->references[call->results].number : -1;
    return first >= 0 && (run->values[first].handle || run->values[first].object);
}

int
call_operator(Run *run, const CallRecord *call)
{
    const NativeCall *native = run->native ? native_at(run->program, call) : NULL;
    if (run->recording && call->draws == DRAWS_UNREAD) {
        return 0; /* each launch draws */
    }
    if (call->unless >= 0) {
        return raise_unless(run, call);
    }
    if (native && run->table->natives[call->native].product_count) {
        return multiply(run, &run->table->natives[call->native]);
    }
    if (native) {
        release_gil(run);
        if (call_native(run, call, native) == 0) {
            return keep_handles(run, call);
        }
    }
    if (is_made(run, call)) {
        return 0;
    }
    acquire_gil(run);
    PyObject *result = call_python(run, call);
    return result ? keep_results(run, call, result) : -1;
}

static int
call(void *of, const CallRecord *call)
{
    return call_operator(of, call);
}

static int
drop(void *of, const DropRecord *drop)
{
    Run *run = of;
    for (int64_t i = 0; i < drop->value_count; i++) {
        Value *value = value_at(run, drop->values + i);
        const bool is_read = run->recording && run->recording->is_outside[value - run->values]; /* once it is launched */
        if (!value->is_shared && !is_read) {
            drop_value(run, value);
        }
    }
    return 0;
}

int
run_steps(Run *run, int64_t first, int64_t end, int (*after)(void *run))
{
    const StepFunctions functions = {.allocate = allocate, .launch = launch, .call = call, .drop = drop, .after = after};
    return smelt_run_steps(run->table, first, end - first, &functions, run, &run->step);
}
