/* Restores state, whatever is raised and wherever.

   A signal handler may raise between any two bytecodes: before a `with` has its `__exit__`, inside an `__exit__`
   written in Python, in a `finally`. So state is restored here, without bytecode in between: PyTorch's functions are
   called one after the other, and none of them calls Python. */
#include "state/preserved_state.h"

#include <stdbool.h>

#include "direct_call.h"
#include "state/deferred_signals.h"

/* What Python tells of PyTorch, see _native.pyi. */
static struct {
    PyObject *settings; /* tuples (reads, write, arguments) */
    PyObject *stacks;   /* tuples (length, item, pop, push) */
    PyObject *counters; /* tuples (increment, decrement) */
    PyObject *hooks;    /* None or a tuple (top, pop, push) */
    PyObject *locals;   /* thread-local objects */
    PyObject *globals;  /* tuples (dict, names, write): write, if not None, is called with the last of them */
    PyObject *guards;   /* tuples (make, read, twice): make(read()) has __enter__ and __exit__ */
} known;

enum { MOST_HOOKS = 64, TRIES = 8 };

/* --- one kind of state after the other: a list of what there is, and making it so again ------- */

/* A list of function(*arguments, each, …); NULL with an exception. */
static PyObject *
values_of(PyObject *reads, PyObject *arguments)
{
    PyObject *values = PyList_New(0);
    for (Py_ssize_t i = 0; values && i < PyTuple_GET_SIZE(reads); i++) {
        PyObject *value = PyObject_CallObject(PyTuple_GET_ITEM(reads, i), arguments);
        if (value == NULL || PyList_Append(values, value) < 0) {
            Py_CLEAR(values);
        }
        Py_XDECREF(value);
    }
    return values;
}

static PyObject *
read_setting(PyObject *setting)
{
    return values_of(PyTuple_GET_ITEM(setting, 0), PyTuple_GET_ITEM(setting, 2));
}

static bool
are_same(PyObject *one, PyObject *other)
{
    Py_ssize_t count = PyList_GET_SIZE(one);
    if (PyList_GET_SIZE(other) != count) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_ITEM(one, i) != PyList_GET_ITEM(other, i)) { /* bools and dtypes: there is one of each */
            return false;
        }
    }
    return true;
}

static void
put_setting(PyObject *setting, PyObject *before)
{
    PyObject *now = read_setting(setting);
    if (now && !are_same(before, now)) {
        PyObject *values = PyList_AsTuple(before);
        PyObject *arguments = values ? PySequence_Concat(PyTuple_GET_ITEM(setting, 2), values) : NULL;
        PyObject *done = arguments ? PyObject_CallObject(PyTuple_GET_ITEM(setting, 1), arguments) : NULL;
        Py_XDECREF(done);
        Py_XDECREF(arguments);
        Py_XDECREF(values);
    }
    Py_XDECREF(now);
}

static PyObject *
read_stack(PyObject *stack)
{
    PyObject *length = PyObject_CallNoArgs(PyTuple_GET_ITEM(stack, 0));
    Py_ssize_t count = length ? PyLong_AsSsize_t(length) : -1;
    Py_XDECREF(length);
    PyObject *items = count < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; items && i < count; i++) {
        PyObject *item = PyObject_CallFunction(PyTuple_GET_ITEM(stack, 1), "n", i);
        if (item == NULL || PyList_Append(items, item) < 0) {
            Py_CLEAR(items);
        }
        Py_XDECREF(item);
    }
    return items;
}

static void
put_stack(PyObject *stack, PyObject *before)
{
    PyObject *now = read_stack(stack);
    if (now == NULL) {
        return;
    }
    Py_ssize_t same = 0, there = PyList_GET_SIZE(now), wanted = PyList_GET_SIZE(before);
    while (same < there && same < wanted && PyList_GET_ITEM(now, same) == PyList_GET_ITEM(before, same)) {
        same++;
    }
    for (Py_ssize_t i = same; i < there; i++) {
        Py_XDECREF(PyObject_CallNoArgs(PyTuple_GET_ITEM(stack, 2)));
    }
    for (Py_ssize_t i = same; i < wanted; i++) {
        Py_XDECREF(PyObject_CallOneArg(PyTuple_GET_ITEM(stack, 3), PyList_GET_ITEM(before, i)));
    }
    Py_DECREF(now);
}

/* -1 with an exception. */
static Py_ssize_t
read_counter(PyObject *counter)
{
    PyObject *above = PyObject_CallNoArgs(PyTuple_GET_ITEM(counter, 0));
    PyObject *back = above ? PyObject_CallNoArgs(PyTuple_GET_ITEM(counter, 1)) : NULL;
    Py_ssize_t value = back ? PyLong_AsSsize_t(above) - 1 : -1;
    Py_XDECREF(above);
    Py_XDECREF(back);
    return value;
}

static void
put_counter(PyObject *counter, PyObject *before)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(before), now = read_counter(counter);
    for (; now >= 0 && now < wanted; now++) {
        Py_XDECREF(PyObject_CallNoArgs(PyTuple_GET_ITEM(counter, 0)));
    }
    for (; now > wanted; now--) {
        Py_XDECREF(PyObject_CallNoArgs(PyTuple_GET_ITEM(counter, 1)));
    }
}

/* The hooks on tensors that are saved, which only show their top: taken off and put back, the uppermost first. */
static PyObject *
take_hooks(void)
{
    PyObject *hooks = PyList_New(0);
    for (int i = 0; hooks && i < MOST_HOOKS; i++) {
        PyObject *top = PyObject_CallOneArg(PyTuple_GET_ITEM(known.hooks, 0), Py_True);
        if (top == NULL || !PyTuple_Check(top) || PyList_Append(hooks, top) < 0) {
            Py_XDECREF(top);
            break;
        }
        Py_DECREF(top);
        Py_XDECREF(PyObject_CallNoArgs(PyTuple_GET_ITEM(known.hooks, 1)));
    }
    return hooks;
}

static void
put_hooks(PyObject *wanted)
{
    for (Py_ssize_t i = PyList_GET_SIZE(wanted); i-- > 0;) {
        Py_XDECREF(PyObject_CallObject(PyTuple_GET_ITEM(known.hooks, 2), PyList_GET_ITEM(wanted, i)));
    }
}

static PyObject *
read_hooks(void)
{
    PyObject *hooks = take_hooks();
    if (hooks) {
        put_hooks(hooks);
    }
    return hooks;
}

static PyObject *
read_local(PyObject *local)
{
    PyObject *attributes = PyObject_GetAttrString(local, "__dict__");
    PyObject *copy = attributes ? PyDict_Copy(attributes) : NULL;
    Py_XDECREF(attributes);
    return copy;
}

static void
put_local(PyObject *local, PyObject *before)
{
    PyObject *attributes = PyObject_GetAttrString(local, "__dict__");
    PyObject *there = attributes ? PyDict_Copy(attributes) : NULL; /* what is dropped is so at the end */
    if (there) {
        PyDict_Clear(attributes);
        PyDict_Update(attributes, before);
    }
    Py_XDECREF(there);
    Py_XDECREF(attributes);
}

static PyObject *
read_globals(PyObject *some)
{
    PyObject *names = PyTuple_GET_ITEM(some, 1), *values = PyList_New(0);
    for (Py_ssize_t i = 0; values && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *value = PyDict_GetItemWithError(PyTuple_GET_ITEM(some, 0), PyTuple_GET_ITEM(names, i));
        if (value == NULL || PyList_Append(values, value) < 0) {
            Py_CLEAR(values);
        }
    }
    return values;
}

static void
put_globals(PyObject *some, PyObject *before)
{
    PyObject *now = read_globals(some), *names = PyTuple_GET_ITEM(some, 1), *write = PyTuple_GET_ITEM(some, 2);
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    if (now == NULL || are_same(before, now)) {
        Py_XDECREF(now);
        return;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyDict_SetItem(PyTuple_GET_ITEM(some, 0), PyTuple_GET_ITEM(names, i), PyList_GET_ITEM(before, i));
    }
    if (write != Py_None && count) {
        Py_XDECREF(PyObject_CallOneArg(write, PyList_GET_ITEM(before, count - 1)));
    }
    Py_DECREF(now);
}

/* --- all of it -------------------------------------------------------------------------------- */

typedef struct {
    PyObject *settings, *stacks, *counters, *hooks, *locals, *globals, *guards;
} Before;

typedef PyObject *(*Read)(PyObject *what);
typedef void (*Put)(PyObject *what, PyObject *before);

static PyObject *
read_number(PyObject *counter)
{
    Py_ssize_t value = read_counter(counter);
    return value < 0 ? NULL : PyLong_FromSsize_t(value);
}

static void
leave_guard(PyObject *Py_UNUSED(spec), PyObject *guard)
{
    Py_XDECREF(PyObject_CallMethod(guard, "__exit__", "OOO", Py_None, Py_None, Py_None));
}

static PyObject *
enter_guard(PyObject *spec)
{
    PyObject *read = PyTuple_GET_ITEM(spec, 1), *make = PyTuple_GET_ITEM(spec, 0);
    PyObject *value = read == Py_None ? NULL : PyObject_CallNoArgs(read);
    PyObject *guard = value ? PyObject_CallOneArg(make, value) : read == Py_None ? PyObject_CallNoArgs(make) : NULL;
    PyObject *entered = guard ? PyObject_CallMethod(guard, "__enter__", NULL) : NULL;
    if (entered && PyTuple_GET_ITEM(spec, 2) == Py_True) {
        leave_guard(spec, guard);
    }
    if (entered == NULL) {
        Py_CLEAR(guard);
    }
    Py_XDECREF(value);
    Py_XDECREF(entered);
    return guard;
}

/* A list of what `read` says of each, None where it cannot; NULL with an exception. */
static PyObject *
read_each(PyObject *things, Read read)
{
    Py_ssize_t count = PyTuple_GET_SIZE(things);
    PyObject *values = PyList_New(count);
    for (Py_ssize_t i = 0; values && i < count; i++) {
        PyObject *value = read(PyTuple_GET_ITEM(things, i));
        if (value == NULL) {
            PyErr_Clear();
            value = Py_NewRef(Py_None);
        }
        PyList_SET_ITEM(values, i, value);
    }
    return values;
}

static void
put_each(PyObject *things, PyObject *before, Put put)
{
    for (Py_ssize_t i = 0; before && i < PyList_GET_SIZE(before); i++) {
        if (PyList_GET_ITEM(before, i) != Py_None) {
            put(PyTuple_GET_ITEM(things, i), PyList_GET_ITEM(before, i));
        }
        PyErr_Clear(); /* PyTorch's functions do not raise for what they gave; if one does, the others still count */
    }
}

/* There is one set of flags for all threads: of a thread that is in no mode, none is true for good. */
static void
lower_flags(Before *before)
{
    PyObject *modes = before->stacks && PyList_GET_SIZE(before->stacks) ? PyList_GET_ITEM(before->stacks, 0) : NULL;
    if (modes == NULL || !PyList_Check(modes) || PyList_GET_SIZE(modes) || before->globals == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(before->globals); i++) {
        PyObject *values = PyList_GET_ITEM(before->globals, i);
        for (Py_ssize_t j = 0; PyList_Check(values) && j < PyList_GET_SIZE(values); j++) {
            PyList_SetItem(values, j, Py_NewRef(Py_False));
        }
    }
}

static void
read_all(Before *before)
{
    before->settings = read_each(known.settings, read_setting);
    before->stacks = read_each(known.stacks, read_stack);
    before->counters = read_each(known.counters, read_number);
    before->locals = read_each(known.locals, read_local);
    before->globals = read_each(known.globals, read_globals);
    lower_flags(before);
    before->hooks = known.hooks == Py_None ? NULL : read_hooks();
    before->guards = read_each(known.guards, enter_guard); /* last: they may change what is read above */
    put_each(known.settings, before->settings, put_setting);
    PyErr_Clear();
}

static void
put_all(Before *before)
{
    /* Guards first: they put whole sets of keys back, which the stacks below have parts in. */
    put_each(known.guards, before->guards, leave_guard);
    put_each(known.stacks, before->stacks, put_stack);
    if (before->hooks) {
        Py_XDECREF(take_hooks());
        PyErr_Clear();
        put_hooks(before->hooks);
        PyErr_Clear();
    }
    put_each(known.counters, before->counters, put_counter);
    put_each(known.settings, before->settings, put_setting);
    put_each(known.globals, before->globals, put_globals);
    put_each(known.locals, before->locals, put_local);
    PyObject *lists[] = {before->settings, before->stacks, before->counters, before->hooks,
                         before->locals,   before->globals, before->guards};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(lists); i++) {
        Py_XDECREF(lists[i]);
    }
}

/* --- for Python ------------------------------------------------------------------------------- */

PyObject *
install_preserved_state(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tuples[7];
    if (!PyArg_ParseTuple(args, "O!O!O!OO!O!O!:install_preserved_state", &PyTuple_Type, &tuples[0], &PyTuple_Type,
                          &tuples[1], &PyTuple_Type, &tuples[2], &tuples[3], &PyTuple_Type, &tuples[4], &PyTuple_Type, &tuples[5],
                          &PyTuple_Type, &tuples[6])) {
        return NULL;
    }
    PyObject **places[] = {&known.settings, &known.stacks,  &known.counters, &known.hooks,
                           &known.locals,   &known.globals, &known.guards};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(places); i++) {
        Py_XSETREF(*places[i], Py_NewRef(tuples[i]));
    }
    Py_RETURN_NONE;
}

static bool
expect_function(Py_ssize_t count, Py_ssize_t wanted, const char *name)
{
    if (count < wanted) {
        PyErr_Format(PyExc_TypeError, "%s() needs the function to call", name);
        return false;
    }
    return true;
}

PyObject *
preserving_state(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!expect_function(count, 1, "preserving_state")) {
        return NULL;
    }
    if (known.settings == NULL) {
        return PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    }
    Before before;
    PyObject *type, *value, *trace;
    /* What the program does in the handler of a signal, or when garbage is collected, needs the program's state. */
    bool defers = begin_deferring_signals();
    pause_collector();
    read_all(&before);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    PyErr_Fetch(&type, &value, &trace);
    put_all(&before);
    resume_collector();
    PyErr_Restore(type, value, trace);
    if (defers) {
        end_deferring_signals();
    }
    return result;
}

/* Calls undo() until it ends by itself: an exception from outside hits it once, and is raised afterwards. */
static int
undo_surely(PyObject *undo)
{
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    for (int i = 0; i < TRIES; i++) {
        PyObject *done = PyObject_CallNoArgs(undo);
        if (done) {
            Py_DECREF(done);
            break;
        }
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        PyErr_Fetch(&type, &value, &trace);
    }
    if (type == NULL) {
        return 0;
    }
    PyErr_Restore(type, value, trace);
    return -1;
}

PyObject *
undoing(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!expect_function(count, 2, "undoing")) {
        return NULL;
    }
    PyObject *type, *value, *trace;
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(count - 2), names);
    PyErr_Fetch(&type, &value, &trace);
    if (undo_surely(args[0]) < 0) {
        Py_CLEAR(result);
        if (type == NULL) {
            return NULL;
        }
        PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
    return result;
}

void
restore_surely(PyObject *restore)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    undo_surely(restore);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

PyObject *
restoring(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!expect_function(count, 2, "restoring")) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(count - 2), names);
    if (result == NULL) {
        restore_surely(args[0]);
    }
    return result;
}

/* 1: handled; 0: not, and the exception is set again. */
static int
offer_error(PyObject *offer)
{
    PyObject *error = take_error();
    for (int i = 0; i < TRIES; i++) {
        PyObject *answer = PyObject_CallOneArg(offer, error);
        if (answer) {
            int handled = PyObject_IsTrue(answer) == 1;
            Py_DECREF(answer);
            if (handled) {
                Py_DECREF(error);
                return 1;
            }
            break;
        }
        Py_SETREF(error, take_error());
    }
    /* As it was: raising it anew would give it another context. */
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
    return 0;
}

PyObject *
offering_errors(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!expect_function(count, 2, "offering_errors")) {
        return NULL;
    }
    for (;;) {
        PyObject *result = PyObject_CallNoArgs(args[0]);
        if (result || !offer_error(args[1])) {
            return result;
        }
    }
}

/* Grad mode is the first of the settings. */
static PyObject *
set_recording(PyObject *value)
{
    return PyObject_CallOneArg(PyTuple_GET_ITEM(PyTuple_GET_ITEM(known.settings, 0), 1), value);
}

static bool
is_recording(void)
{
    PyObject *reads = PyTuple_GET_ITEM(PyTuple_GET_ITEM(known.settings, 0), 0);
    PyObject *now = call_directly(PyTuple_GET_ITEM(reads, 0));
    Py_XDECREF(now);
    return now == Py_True;
}

static PyObject *
call_with_recording(bool records, PyObject *function, PyObject *const *args, size_t flagged_count, PyObject *names)
{
    if (known.settings == NULL || is_recording() == records) {
        return PyObject_Vectorcall(function, args, flagged_count, names);
    }
    PyObject *type, *value, *trace;
    Py_XDECREF(set_recording(records ? Py_True : Py_False));
    PyObject *result = PyObject_Vectorcall(function, args, flagged_count, names);
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(set_recording(records ? Py_False : Py_True));
    PyErr_Restore(type, value, trace);
    return result;
}

PyObject *
call_unrecorded(PyObject *function, PyObject *const *args, size_t flagged_count, PyObject *names)
{
    return call_with_recording(false, function, args, flagged_count, names);
}

static PyObject *
call_first(bool records, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!expect_function(count, 1, records ? "recorded" : "unrecorded")) {
        return NULL;
    }
    return call_with_recording(records, args[0], args + 1, (size_t)(count - 1), names);
}

PyObject *
recorded(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return call_first(true, args, count, names);
}

PyObject *
unrecorded(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return call_first(false, args, count, names);
}

PyObject *
within(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!expect_function(count, 2, "within")) {
        return NULL;
    }
    PyObject *type, *value, *trace;
    PyObject *entered = PyObject_CallMethod(args[0], "__enter__", NULL);
    if (entered == NULL) {
        return NULL;
    }
    Py_DECREF(entered);
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(count - 2), names);
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = PyObject_CallMethod(args[0], "__exit__", "OOO", Py_None, Py_None, Py_None);
    if (left == NULL && type) {
        PyErr_Clear();
    }
    if (left == NULL) {
        Py_CLEAR(result);
    }
    Py_XDECREF(left);
    if (type) {
        PyErr_Restore(type, value, trace);
    }
    return result;
}
