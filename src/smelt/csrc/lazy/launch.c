/* LazyLaunch: the program of a path that recurs, run without Python between the recording and the program.

   `run(recording)` checks that the same values are alive and that the numbers are those of the program, calls it with
   the inputs, and gives each memory its result. It returns False, with nothing done, for any other recording. */
#include "guards/guards.h"
#include "lazy/lazy.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

enum { CONSTANT = -1, DYNAMIC = -2 };

typedef struct {
    PyObject_HEAD
    PyObject *call, *numbers, *scalar, *adopt;
    int64_t *leaders; /* per number: CONSTANT, DYNAMIC, or the number that it is equal to */
    int64_t *live;    /* the values that are alive */
    int64_t *results; /* and which result each is */
    int64_t *scalars; /* the numbers that are arguments after the inputs */
    Py_ssize_t live_count, scalar_count, input_count;
} LazyLaunch;

/* A tuple of integers as an array, never of no length. */
static int64_t *
integers_of(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    int64_t *integers = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *integers);
    if (integers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        integers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    }
    if (PyErr_Occurred()) {
        PyMem_Free(integers);
        return NULL;
    }
    return integers;
}

static bool
are_below(const int64_t *integers, Py_ssize_t count, int64_t least, int64_t limit)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (integers[i] < least || integers[i] >= limit) {
            return false;
        }
    }
    return true;
}

static PyObject *
launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"call", "inputs", "numbers", "leaders", "scalars", "live", "results", "scalar", "adopt", NULL};
    PyObject *call, *numbers, *leaders, *scalars, *live, *results, *scalar, *adopt;
    Py_ssize_t inputs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnO!O!O!O!O!OO:LazyLaunch", names, &call, &inputs, &PyTuple_Type,
                                     &numbers, &PyTuple_Type, &leaders, &PyTuple_Type, &scalars, &PyTuple_Type, &live,
                                     &PyTuple_Type, &results, &scalar, &adopt)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(numbers);
    if (PyTuple_GET_SIZE(leaders) != count || PyTuple_GET_SIZE(results) != PyTuple_GET_SIZE(live)) {
        PyErr_SetString(PyExc_ValueError, "each number has a leader, and each live value a result");
        return NULL;
    }
    LazyLaunch *self = (LazyLaunch *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->call = Py_NewRef(call);
    self->numbers = Py_NewRef(numbers);
    self->scalar = Py_NewRef(scalar);
    self->adopt = Py_NewRef(adopt);
    self->input_count = inputs;
    self->live_count = PyTuple_GET_SIZE(live);
    self->scalar_count = PyTuple_GET_SIZE(scalars);
    self->leaders = integers_of(leaders);
    self->live = self->leaders ? integers_of(live) : NULL;
    self->results = self->live ? integers_of(results) : NULL;
    self->scalars = self->results ? integers_of(scalars) : NULL;
    if (self->scalars == NULL) {
        Py_CLEAR(self);
    }
    else if (!are_below(self->leaders, count, DYNAMIC, count) || !are_below(self->scalars, self->scalar_count, 0, count)
             || !are_below(self->live, self->live_count, 0, INT64_MAX)
             || !are_below(self->results, self->live_count, 0, INT64_MAX)) {
        PyErr_SetString(PyExc_ValueError, "a number, a value or a result is out of range");
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* --- what must be as it was ------------------------------------------------------------------- */

bool
is_same_number(PyObject *one, PyObject *other)
{
    if (one == other) {
        return true;
    }
    if (Py_TYPE(one) != Py_TYPE(other)) {
        return false;
    }
    if (PyFloat_CheckExact(one)) {
        double values[2] = {PyFloat_AS_DOUBLE(one), PyFloat_AS_DOUBLE(other)};
        return !memcmp(&values[0], &values[1], sizeof values[0]);
    }
    return PyLong_CheckExact(one) && PyObject_RichCompareBool(one, other, Py_EQ) == 1;
}

static bool
have_numbers_recurred(const LazyLaunch *self, PyObject *numbers)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->numbers);
    if (PyList_GET_SIZE(numbers) != count) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *number = PyList_GET_ITEM(numbers, i), *first = PyTuple_GET_ITEM(self->numbers, i);
        int64_t leader = self->leaders[i];
        bool is_same = leader == DYNAMIC     ? Py_TYPE(number) == Py_TYPE(first)
                       : leader == CONSTANT ? is_same_number(number, first)
                                            : is_same_number(number, PyList_GET_ITEM(numbers, leader));
        if (!is_same) {
            return false;
        }
    }
    return true;
}

static bool
are_same_alive(const LazyLaunch *self, const Recording *recording)
{
    Py_ssize_t found = 0;
    for (int64_t value = 0; value < recording->length; value++) {
        if (recording->living[value] == NULL) {
            continue;
        }
        if (found == self->live_count || self->live[found] != value) {
            return false;
        }
        found++;
    }
    return found == self->live_count;
}

static bool
are_inputs_there(const LazyLaunch *self, PyObject *inputs)
{
    if (PyList_GET_SIZE(inputs) != self->input_count) {
        return false;
    }
    for (Py_ssize_t i = 0; i < self->input_count; i++) {
        const LazyMemory *memory = (const LazyMemory *)PyList_GET_ITEM(inputs, i);
        if (!PyObject_TypeCheck(memory, &LazyMemoryType) || memory->real == NULL || memory->real == Py_None
            || (memory->lost && memory->lost != Py_None)) {
            return false;
        }
    }
    return true;
}

/* --- the call --------------------------------------------------------------------------------- */

/* New references; NULL with an exception. */
static PyObject *
arguments_of(const LazyLaunch *self, const Recording *recording)
{
    PyObject *arguments = PyTuple_New(self->input_count + self->scalar_count);
    for (Py_ssize_t i = 0; arguments && i < self->input_count; i++) {
        PyTuple_SET_ITEM(arguments, i, Py_NewRef(((LazyMemory *)PyList_GET_ITEM(recording->inputs, i))->real));
    }
    for (Py_ssize_t i = 0; arguments && i < self->scalar_count; i++) {
        PyObject *number = PyList_GET_ITEM(recording->numbers, self->scalars[i]);
        PyObject *tensor = PyObject_CallOneArg(self->scalar, number);
        if (tensor == NULL) {
            Py_CLEAR(arguments);
            break;
        }
        PyTuple_SET_ITEM(arguments, self->input_count + i, tensor);
    }
    return arguments;
}

/* Whether a tensor has sizes, strides and offset of a memory; its dtype is the program's. */
static bool
is_laid_out_as(PyObject *tensor, const StridedLayout *whole)
{
    uint64_t words[TENSOR_WORDS];
    int64_t offset;
    int count = tensor_memory_words(tensor, words);
    return count && tensor_memory_offset(tensor, &offset) && offset == 0 && (int64_t)words[0] == whole->rank
           && !memcmp(words + count - 2 * whole->rank, whole->words, (size_t)(2 * whole->rank) * sizeof *words);
}

static int
take_result(const LazyLaunch *self, LazyMemory *memory, PyObject *result)
{
    PyObject *real = is_laid_out_as(result, memory->whole)
                         ? Py_NewRef(result)
                         : PyObject_CallFunctionObjArgs(self->adopt, result, (PyObject *)memory, NULL);
    if (real == NULL) {
        return -1;
    }
    Py_XSETREF(memory->real, real);
    return 0;
}

static int
take_results(const LazyLaunch *self, LazyMemory **alive, PyObject *values)
{
    PyObject *row = PySequence_Fast(values, "a program returns a sequence");
    int done = row ? 0 : -1;
    for (Py_ssize_t i = 0; done == 0 && i < self->live_count; i++) {
        if (self->results[i] >= PySequence_Fast_GET_SIZE(row)) {
            PyErr_SetString(PyExc_RuntimeError, "a program returned fewer results than it has");
            done = -1;
        }
        else {
            done = take_result(self, alive[i], PySequence_Fast_GET_ITEM(row, self->results[i]));
        }
    }
    Py_XDECREF(row);
    return done;
}

static PyObject *
launch_run(LazyLaunch *self, PyObject *object)
{
    if (!PyObject_TypeCheck(object, &RecordingType)) {
        return PyErr_Format(PyExc_TypeError, "%R is no recording", object);
    }
    Recording *recording = (Recording *)object;
    if (!have_numbers_recurred(self, recording->numbers) || !are_same_alive(self, recording)
        || !are_inputs_there(self, recording->inputs)) {
        Py_RETURN_FALSE;
    }
    LazyMemory **alive = PyMem_Malloc((size_t)(self->live_count + 1) * sizeof *alive);
    if (alive == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < self->live_count; i++) {
        alive[i] = (LazyMemory *)Py_NewRef(recording->living[self->live[i]]);
    }
    PyObject *arguments = arguments_of(self, recording);
    PyObject *values = arguments ? PyObject_CallObject(self->call, arguments) : NULL;
    int done = values ? take_results(self, alive, values) : -1;
    Py_XDECREF(arguments);
    Py_XDECREF(values);
    for (Py_ssize_t i = 0; i < self->live_count; i++) {
        Py_DECREF(alive[i]);
    }
    PyMem_Free(alive);
    if (done < 0) {
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* --- the type --------------------------------------------------------------------------------- */

static int
launch_traverse(LazyLaunch *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->scalar);
    Py_VISIT(self->adopt);
    return 0;
}

static int
launch_clear(LazyLaunch *self)
{
    Py_CLEAR(self->call);
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->scalar);
    Py_CLEAR(self->adopt);
    return 0;
}

static void
launch_dealloc(LazyLaunch *self)
{
    PyObject_GC_UnTrack(self);
    launch_clear(self);
    PyMem_Free(self->leaders);
    PyMem_Free(self->live);
    PyMem_Free(self->results);
    PyMem_Free(self->scalars);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef launch_methods[] = {
    {"run", (PyCFunction)launch_run, METH_O, PyDoc_STR("Run a recording that has recurred; False: it has not.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef launch_members[] = {
    {"outputs", T_PYSSIZET, offsetof(LazyLaunch, live_count), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject LazyLaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.LazyLaunch",
    .tp_doc = PyDoc_STR("The program of a path that recurs."),
    .tp_basicsize = sizeof(LazyLaunch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = launch_new,
    .tp_dealloc = (destructor)launch_dealloc,
    .tp_traverse = (traverseproc)launch_traverse,
    .tp_clear = (inquiry)launch_clear,
    .tp_methods = launch_methods,
    .tp_members = launch_members,
};
