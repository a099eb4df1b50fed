/* Running a program: all its kernels and library calls in order, in one call.

   The GIL is let go at the first kernel or library call that needs no Python and taken back where Python is needed: for
   a call that PyTorch's C interface does not offer, to let go of an object, to make the results. Where that interface
   is unknown, where somebody watches (a dispatch mode, the profiler) and for tensors of other classes, Python does
   every step but the kernels, so that whoever looks sees what he always did. An error inside the interface has no words:
   the same step is done again by Python, which raises it. */
#include "runner/runner.h"

#include "runner/small_matmul.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { USUAL_VALUES = 64, USUAL_BUFFERS = 32, USUAL_ARGUMENTS = 16 };

/* A tensor: as a Python object, as a handle, or both; then the handle is that of the object's own tensor. */
typedef struct {
    PyObject *object;
    Handle handle;
    void *data; /* once somebody asked */
    bool owns_object, owns_handle;
} Value;

/* One call of a program. */
typedef struct {
    const Runner *program;
    const int64_t *numbers;
    Value *values;
    void **pointers; /* room for the buffers of a kernel */
    PyObject *arena;
    PyThreadState *thread; /* not NULL: the GIL is let go */
    Workspace workspace;
    int64_t threads; /* 0: not asked yet */
    bool native;     /* whether handles may be used */
    int step;        /* the one at work, -1: none yet */
} Run;

static PyObject *data_ptr_name; /* interned */

static void
let_go(Run *run)
{
    if (run->thread == NULL) {
        run->thread = PyEval_SaveThread();
    }
}

static void
take_back(Run *run)
{
    if (run->thread) {
        PyEval_RestoreThread(run->thread);
        run->thread = NULL;
    }
}

/* --- values ----------------------------------------------------------------------------------- */

static void
set_object(Run *run, Value *value, PyObject *object, bool owned)
{
    *value = (Value){.object = object, .owns_object = owned, .handle = run->native ? library_handle(object) : NULL};
}

/* The GIL is taken back only if it must be. */
static void
drop_value(Run *run, Value *value)
{
    Value old = *value;
    *value = (Value){.object = NULL};
    if (old.owns_handle) {
        library.drop(old.handle);
    }
    if (old.owns_object) {
        take_back(run);
        Py_DECREF(old.object);
    }
}

/* Steals the handle. A new reference, or NULL with an exception. With the GIL. */
static PyObject *
wrapped(Handle handle)
{
    PyObject *object = library.wrap(handle);
    library.drop(handle);
    if (object == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_SystemError, "a tensor got no Python object");
    }
    return object;
}

/* Borrowed, or NULL with an exception. */
static PyObject *
object_of(Run *run, Value *value)
{
    if (value->object) {
        return value->object;
    }
    take_back(run);
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

/* Where a tensor's first element lies. 0, or -1 with an exception. */
static int
data_of(Run *run, Value *value, void **data)
{
    if (value->data == NULL && (value->handle == NULL || library.data_ptr(value->handle, &value->data))) {
        take_back(run);
        PyObject *object = object_of(run, value);
        PyObject *address = object ? PyObject_CallMethodNoArgs(object, data_ptr_name) : NULL;
        if (address == NULL) {
            return -1;
        }
        value->data = PyLong_AsVoidPtr(address);
        Py_DECREF(address);
        if (value->data == NULL && PyErr_Occurred()) {
            return -1;
        }
    }
    *data = value->data;
    return 0;
}

PyObject *
tuple_of(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

/* The sizes and strides of a shape as two tuples. 0, or -1 with an exception. */
static int
tuples_of(const Run *run, Shape shape, PyObject **sizes, PyObject **strides)
{
    const int64_t *numbers = run->numbers + shape.numbers;
    *sizes = tuple_of(numbers, shape.rank);
    *strides = *sizes ? tuple_of(numbers + shape.rank, shape.rank) : NULL;
    if (*strides == NULL) {
        Py_CLEAR(*sizes);
        return -1;
    }
    return 0;
}

/* A new handle on a view. Not 0: an error without words. */
static int32_t
view_handle(const Run *run, Handle handle, Shape shape, Handle *made)
{
    const int64_t *numbers = run->numbers + shape.numbers;
    return library.view(handle, shape.rank, numbers, numbers + shape.rank, numbers[2 * shape.rank], made);
}

/* A new reference to a view. What leaves the program is a view to PyTorch too, and made by it. With the GIL. */
static PyObject *
view_object(Run *run, Value *value, Shape shape, bool leaves)
{
    Handle made;
    if (run->native && !leaves && value->handle && view_handle(run, value->handle, shape, &made) == 0) {
        return wrapped(made);
    }
    PyObject *whole = object_of(run, value), *sizes, *strides;
    if (whole == NULL || tuples_of(run, shape, &sizes, &strides) < 0) {
        return NULL;
    }
    PyObject *offset = PyLong_FromLongLong(run->numbers[shape.numbers + 2 * shape.rank]);
    PyObject *arguments[] = {whole, sizes, strides, offset};
    PyObject *view = offset ? PyObject_Vectorcall(run->program->view, arguments, 4, NULL) : NULL;
    Py_DECREF(sizes);
    Py_DECREF(strides);
    Py_XDECREF(offset);
    return view;
}

/* --- objects made of values ------------------------------------------------------------------- */

/* A new reference, or NULL with an exception. With the GIL. */
static PyObject *
object_made(Run *run, const Item *item, bool leaves)
{
    if (item->kind == CONSTANT) {
        return Py_NewRef(item->object);
    }
    if (item->kind == VALUE) {
        Value *value = &run->values[item->value];
        if (item->shape.numbers >= 0) {
            return view_object(run, value, item->shape, leaves);
        }
        PyObject *object = object_of(run, value);
        return object ? Py_NewRef(object) : NULL;
    }
    PyObject *sequence = item->kind == LIST ? PyList_New(item->count) : PyTuple_New(item->count);
    for (int i = 0; sequence && i < item->count; i++) {
        PyObject *part = object_made(run, &run->program->items[item->first + i], leaves);
        if (part == NULL) {
            Py_CLEAR(sequence);
        }
        else if (item->kind == LIST) {
            PyList_SET_ITEM(sequence, i, part);
        }
        else {
            PyTuple_SET_ITEM(sequence, i, part);
        }
    }
    return sequence;
}

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
        && library.empty_strided(step->shape.rank, numbers, numbers + step->shape.rank, step->code, 0, -1, &made) == 0) {
        *value = (Value){.handle = made, .owns_handle = true};
        return 0;
    }
    take_back(run);
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
static int
ask_threads(Run *run)
{
    if (run->threads) {
        return 0;
    }
    take_back(run);
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
    take_back(run);
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
    if (Py_TYPE(step->function) != &LauncherType) {
        return launch_python(run, step);
    }
    const Launcher *kernel = (const Launcher *)step->function;
    for (int i = 0; i < step->count; i++) {
        if (data_of(run, &run->values[run->program->items[step->first + i].value], &run->pointers[i]) < 0) {
            return -1;
        }
    }
    if (!workspace_fits(&run->workspace, kernel, run->threads)) {
        take_back(run);
        PyErr_NoMemory();
        return -1;
    }
    let_go(run);
    kernel->kernel(run->pointers, run->threads, run->workspace.memory);
    return 0;
}

/* What a call yielded becomes the values it stands for, in the layout that was promised. Steals the result. */
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
        PyObject *sizes, *strides;
        if (expected->value < 0) {
            continue;
        }
        status = tuples_of(run, expected->shape, &sizes, &strides);
        if (status < 0) {
            break;
        }
        PyObject *found = step->is_one ? result : PySequence_Fast_GET_ITEM(sequence, i);
        PyObject *arguments[] = {found, sizes, strides, expected->dtype, expected->name};
        PyObject *fitted = PyObject_Vectorcall(run->program->fit, arguments, 5, NULL);
        Py_DECREF(sizes);
        Py_DECREF(strides);
        if (fitted) {
            set_object(run, &run->values[expected->value], fitted, true);
        }
        status = fitted ? 0 : -1;
    }
    Py_XDECREF(sequence);
    Py_DECREF(result);
    return status;
}

/* Without the GIL. Not 0: it did not work, whatever the reason, or cannot be done without Python. */
static int32_t
call_library(Run *run, const Step *step)
{
    Handle tensors[MOST_TENSORS], made[MOST_TENSORS];
    int made_count = 0;
    int32_t status = 0;
    for (int i = 0; status == 0 && i < step->native->tensors; i++) {
        const Item *item = &run->program->items[step->tensors + i];
        tensors[i] = run->values[item->value].handle;
        if (tensors[i] == NULL) {
            status = -1;
        }
        else if (item->shape.numbers >= 0) {
            status = view_handle(run, tensors[i], item->shape, &made[made_count]);
            if (status == 0) {
                tensors[i] = made[made_count++];
            }
        }
    }
    if (status == 0) {
        status = step->native->call(step->native->function, tensors, step->numbers);
    }
    while (made_count > 0) {
        library.drop(made[--made_count]);
    }
    return status;
}

/* A call that is there to raise. 0, or -1 with its exception. */
static int
raise_unless(Run *run, const Step *step)
{
    void *holds;
    if (data_of(run, &run->values[step->unless], &holds) < 0) {
        return -1;
    }
    if (*(const unsigned char *)holds) {
        return 0;
    }
    take_back(run);
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
    void *data[MOST_TENSORS];
    for (int i = 0; i < step->native->tensors; i++) {
        if (data_of(run, &run->values[run->program->items[step->tensors + i].value], &data[i]) < 0) {
            return -1;
        }
    }
    product_run(run->numbers + step->product, step->native->tensors, data, step->numbers);
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
    if (step->native && run->native) {
        let_go(run);
        if (call_library(run, step) == 0) {
            return 0;
        }
    }
    take_back(run);
    PyObject *result = call_python(run, step, NULL);
    return result ? keep_results(run, step, result) : -1;
}

static inline int
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
        drop_value(run, &run->values[run->program->items[step->first + i].value]);
    }
    return 0;
}

static int
run_steps(Run *run)
{
    const Runner *program = run->program;
    for (int i = 0; i < program->step_count; i++) {
        run->step = i;
        if (run_step(run, &program->steps[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int64_t
nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The same, with a look at the clock after each step. Threads add to what the program has taken so far in turn: each
   notes its own times first. */
static int
run_steps_timed(Run *run, Runner *program)
{
    int64_t *taken = malloc((size_t)program->step_count * sizeof *taken + 1);
    if (taken == NULL) {
        return run_steps(run);
    }
    int status = 0;
    int64_t before = nanoseconds();
    for (int i = 0; status == 0 && i < program->step_count; i++) {
        run->step = i;
        status = run_step(run, &program->steps[i]);
        int64_t after = nanoseconds();
        taken[i] = after - before;
        before = after;
    }
    take_back(run);
    if (status == 0 && program->taken) {
        program->timed_calls++;
        for (int i = 0; i < program->step_count; i++) {
            program->taken[i] += taken[i];
        }
    }
    free(taken);
    return status;
}

/* --- a call ----------------------------------------------------------------------------------- */

/* 1: nobody watches, 0: somebody does, -1 with an exception. */
static int
is_unwatched(const Runner *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->watchers); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(self->watchers, i));
        int is_watched = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (is_watched) {
            return is_watched < 0 ? -1 : 0;
        }
    }
    return 1;
}

/* Inputs, constants and the arena as values. 0, or -1 with an exception. */
static int
begin(Run *run, PyObject *const *inputs)
{
    const Runner *program = run->program;
    int count = program->inputs + program->constant_count;
    run->native = library.tensor != NULL;
    for (int i = 0; run->native && i < count; i++) {
        PyObject *object = i < program->inputs ? inputs[i] : PyTuple_GET_ITEM(program->constants, i - program->inputs);
        run->native = library_handle(object) != NULL;
    }
    if (run->native) {
        int unwatched = is_unwatched(program);
        if (unwatched < 0) {
            return -1;
        }
        run->native = unwatched;
    }
    for (int i = 0; i < count; i++) {
        PyObject *object = i < program->inputs ? inputs[i] : PyTuple_GET_ITEM(program->constants, i - program->inputs);
        bool owned = program->consuming && i < program->inputs;
        set_object(run, &run->values[i], owned ? Py_NewRef(object) : object, owned);
    }
    if (program->arena == 0) {
        return 0;
    }
    run->arena = PyObject_CallNoArgs(program->take);
    if (run->arena == NULL || !PyList_Check(run->arena) || PyList_GET_SIZE(run->arena) != program->arena) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "an arena is a list with a tensor for each of its places");
        }
        Py_CLEAR(run->arena);
        return -1;
    }
    for (int i = 0; i < program->arena; i++) {
        set_object(run, &run->values[count + i], PyList_GET_ITEM(run->arena, i), false);
    }
    return 0;
}

/* Lets the exception there is say at which step it was raised: who catches it wants to know what was done by then. */
static void
note_step(int step)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *number = PyLong_FromLong(step);
    if (number == NULL || PyObject_SetAttrString(error, "smelt_step", number) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(number);
    PyErr_Restore(type, error, trace);
}

/* Lets go of everything, with whatever exception there is left as it is. With the GIL. */
static int
end(Run *run, int status)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    for (int i = 0; i < run->program->values; i++) {
        drop_value(run, &run->values[i]);
    }
    if (run->arena) {
        PyObject *given = PyObject_CallOneArg(run->program->give, run->arena);
        Py_DECREF(run->arena);
        Py_XDECREF(given);
        if (given == NULL && type == NULL) {
            return -1;
        }
    }
    PyErr_Restore(type, error, trace);
    return status;
}

/* `list`: what the inputs lie in, to be emptied; NULL: they are the caller's. */
static PyObject *
run_program(Runner *self, Run *run, PyObject *const *inputs, PyObject *list)
{
    run->workspace = workspace_take(&self->workspace);
    int status = begin(run, inputs);
    if (status == 0 && list) {
        status = PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL); /* now the values are the only owners */
    }
    status = status < 0 ? -1 : self->taken ? run_steps_timed(run, self) : run_steps(run);
    take_back(run);
    if (status < 0 && run->step >= 0) {
        note_step(run->step);
    }
    PyObject *result = status < 0 ? NULL : object_made(run, &self->items[self->output], true);
    if (end(run, result ? 0 : -1) < 0) {
        Py_CLEAR(result);
    }
    workspace_give(&self->workspace, run->workspace);
    return result;
}

PyObject *
runner_call(PyObject *object, PyObject *const *args, size_t flagged_count, PyObject *names)
{
    Runner *self = (Runner *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    PyObject *list = NULL;
    bool fits = !(names && PyTuple_GET_SIZE(names)) && count == (self->consuming ? 1 : self->inputs);
    if (fits && self->consuming) {
        list = args[0];
        fits = PyList_Check(list) && PyList_GET_SIZE(list) == self->inputs;
        args = fits ? ((PyListObject *)list)->ob_item : NULL;
    }
    if (!fits) {
        const char *how = self->consuming ? " in a list" : "";
        PyErr_Format(PyExc_TypeError, "this program takes %d tensors%s", self->inputs, how);
        return NULL;
    }
    Value usual[USUAL_VALUES];
    void *usual_pointers[USUAL_BUFFERS];
    Run run = {.program = self, .numbers = self->numbers, .values = usual, .pointers = usual_pointers, .step = -1};
    if (self->values > USUAL_VALUES) {
        run.values = PyMem_New(Value, self->values);
    }
    if (self->most_buffers > USUAL_BUFFERS) {
        run.pointers = PyMem_New(void *, self->most_buffers);
    }
    PyObject *result = NULL;
    if (run.values && run.pointers) {
        memset(run.values, 0, (size_t)self->values * sizeof(Value));
        result = run_program(self, &run, args, list);
    }
    else {
        PyErr_NoMemory();
    }
    if (run.values != usual) {
        PyMem_Free(run.values);
    }
    if (run.pointers != usual_pointers) {
        PyMem_Free(run.pointers);
    }
    return result;
}

int
runner_init(void)
{
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return data_ptr_name ? 0 : -1;
}
