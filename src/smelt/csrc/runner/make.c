/* Making a Runner: from the tuples that runtime/program/launch.py writes (see _native.pyi) to structs. */
#include "runner/program.h"

#include "runner/small_matmul.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- arrays that grow ------------------------------------------------------------------------- */

/* Room for `more` elements at the end of an array: the position of the first, zeroed, or -1 with an exception. */
static int
grow(void *array, size_t size, int *count, Py_ssize_t more)
{
    if (more > INT32_MAX - *count) {
        PyErr_SetString(PyExc_OverflowError, "Runner: a program of this length cannot be run");
        return -1;
    }
    void *old;
    memcpy(&old, array, sizeof old);
    size_t needed = ((size_t)*count + (size_t)more) * size;
    void *made = PyMem_Realloc(old, needed ? needed : 1);
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset((char *)made + (size_t)*count * size, 0, (size_t)more * size);
    memcpy(array, &made, sizeof made);
    int first = *count;
    *count += (int)more;
    return first;
}

static int
new_items(Runner *self, Py_ssize_t count)
{
    return grow(&self->items, sizeof(Item), &self->item_count, count);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static int
read_value(Runner *self, long value, int *found)
{
    if (value < 0 || value >= self->values) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_IndexError, "Runner: of %d values none is number %ld", self->values, value);
        }
        return -1;
    }
    *found = (int)value;
    return 0;
}

/* `sizes` None: the value as it is. */
static int
read_shape(Runner *self, PyObject *sizes, PyObject *strides, PyObject *offset, Shape *shape)
{
    *shape = (Shape){.numbers = -1};
    if (sizes == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(sizes) || !PyTuple_Check(strides) || PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides)) {
        PyErr_SetString(PyExc_TypeError, "Runner: sizes and strides must be tuples of one length");
        return -1;
    }
    Py_ssize_t rank = PyTuple_GET_SIZE(sizes);
    int at = grow(&self->numbers, sizeof(int64_t), &self->number_count, 2 * rank + 1);
    if (at < 0) {
        return -1;
    }
    int64_t *numbers = self->numbers + at;
    for (Py_ssize_t i = 0; i < rank; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
        numbers[rank + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i));
    }
    numbers[2 * rank] = offset ? PyLong_AsLongLong(offset) : 0;
    if (PyErr_Occurred()) {
        return -1;
    }
    *shape = (Shape){.rank = (int)rank, .numbers = at};
    return 0;
}

/* A tuple of numbers: where they are. -1 with an exception. */
static int
read_numbers(Runner *self, PyObject *given)
{
    int at = grow(&self->numbers, sizeof(int64_t), &self->number_count, PyTuple_GET_SIZE(given));
    for (Py_ssize_t i = 0; at >= 0 && i < PyTuple_GET_SIZE(given); i++) {
        self->numbers[at + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(given, i));
    }
    return at < 0 || PyErr_Occurred() ? -1 : at;
}

/* --- items ------------------------------------------------------------------------------------ */

static int read_items(Runner *self, PyObject *sequence, int first);

static bool
are_constants(const Runner *self, int first, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (self->items[first + i].kind != CONSTANT) {
            return false;
        }
    }
    return true;
}

/* An exact tuple or list is a sequence, an object of a subclass of tuple is (value, sizes, strides, offset), anything
   else a constant. The items move when there are more of them: `place` counts, pointers do not last. */
static int
read_item(Runner *self, PyObject *given, int place)
{
    Item item = {.kind = CONSTANT, .object = given};
    if (PyTuple_CheckExact(given) || PyList_CheckExact(given)) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(given);
        item = (Item){.kind = PyList_CheckExact(given) ? LIST : TUPLE, .first = new_items(self, count)};
        if (item.first < 0 || read_items(self, given, item.first) < 0) {
            return -1;
        }
        item.count = (int)count;
        if (are_constants(self, item.first, count)) {
            item = (Item){.kind = CONSTANT, .object = given};
        }
    }
    else if (PyTuple_Check(given)) {
        long value;
        PyObject *sizes, *strides, *offset;
        item.kind = VALUE;
        if (!PyArg_ParseTuple(given, "lOOO:Runner", &value, &sizes, &strides, &offset)
            || read_value(self, value, &item.value) < 0
            || read_shape(self, sizes, strides, offset, &item.shape) < 0) {
            return -1;
        }
    }
    self->items[place] = item;
    return 0;
}

static int
read_items(Runner *self, PyObject *sequence, int first)
{
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); i++) {
        if (read_item(self, PySequence_Fast_GET_ITEM(sequence, i), first + (int)i) < 0) {
            return -1;
        }
    }
    return 0;
}

/* A tuple of the numbers of values, as items. */
static int
read_values(Runner *self, PyObject *values, Step *step)
{
    step->first = new_items(self, PyTuple_GET_SIZE(values));
    step->count = (int)PyTuple_GET_SIZE(values);
    for (int i = 0; step->first >= 0 && i < step->count; i++) {
        Item item = {.kind = VALUE, .shape = {.numbers = -1}};
        if (read_value(self, PyLong_AsLong(PyTuple_GET_ITEM(values, i)), &item.value) < 0) {
            return -1;
        }
        self->items[step->first + i] = item;
    }
    return step->first < 0 ? -1 : 0;
}

/* --- steps ------------------------------------------------------------------------------------ */

static int
read_allocate(Runner *self, PyObject *given, Step *step)
{
    const char *kind;
    long value;
    PyObject *sizes, *strides;
    step->device_index = -1;
    if (!PyArg_ParseTuple(given, "slO!O!OOi|ii:Runner", &kind, &value, &PyTuple_Type, &sizes, &PyTuple_Type, &strides,
                          &step->dtype, &step->device, &step->code, &step->device_type, &step->device_index)) {
        return -1;
    }
    return read_value(self, value, &step->value) < 0 ? -1 : read_shape(self, sizes, strides, NULL, &step->shape);
}

static int
read_launch(Runner *self, PyObject *given, Step *step)
{
    const char *kind;
    PyObject *values;
    if (!PyArg_ParseTuple(given, "sOO!:Runner", &kind, &step->function, &PyTuple_Type, &values)
        || read_values(self, values, step) < 0) {
        return -1;
    }
    if (is_launcher(step->function) && ((AnyLauncher *)step->function)->buffers != step->count) {
        PyErr_Format(PyExc_ValueError, "Runner: a kernel of %zd buffers gets %d",
                     ((AnyLauncher *)step->function)->buffers, step->count);
        return -1;
    }
    self->most_buffers = step->count > self->most_buffers ? step->count : self->most_buffers;
    return 0;
}

/* The description of a product that is made without a call, and its factors; an empty one is none. */
static int
read_product(Runner *self, PyObject *given, PyObject *factors, Step *step)
{
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count == 0) {
        return 0;
    }
    int at = read_numbers(self, given);
    if (at < 0) {
        return -1;
    }
    if (!product_fits(self->numbers + at, (int)count, step->native.tensor_count)
        || PyTuple_GET_SIZE(factors) > (Py_ssize_t)Py_ARRAY_LENGTH(step->factors)) {
        PyErr_Format(PyExc_ValueError, "Runner: %R describes no product of %s", given, step->native.name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(factors); i++) {
        step->factors[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(factors, i));
    }
    step->product = at;
    return PyErr_Occurred() ? -1 : 0;
}

static int
read_texts(Runner *self, PyObject *given)
{
    int at = grow(&self->texts, sizeof(char *), &self->text_count, PyTuple_GET_SIZE(given));
    for (Py_ssize_t i = 0; at >= 0 && i < PyTuple_GET_SIZE(given); i++) {
        self->texts[at + i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(given, i));
        if (self->texts[at + i] == NULL) {
            return -1;
        }
    }
    return at;
}

/* (name, overload, tensors, code, texts, returns, product, factors): stays without, where the interface has it not. */
static int
read_native(Runner *self, PyObject *given, Step *step)
{
    PyObject *tensors, *code, *texts, *product, *factors;
    NativeCall call = {.function = NULL};
    if (!PyArg_ParseTuple(given, "szO!O!O!iO!O!:Runner", &call.name, &call.overload, &PyTuple_Type, &tensors,
                          &PyTuple_Type, &code, &PyTuple_Type, &texts, &call.returns, &PyTuple_Type, &product,
                          &PyTuple_Type, &factors)) {
        return -1;
    }
    call.function = call.overload ? NULL : library_function(call.name);
    if (call.overload ? library.call_dispatcher == NULL : call.function == NULL) {
        return 0;
    }
    call.tensor_count = (int)PyTuple_GET_SIZE(tensors);
    call.tensors = new_items(self, call.tensor_count);
    if (call.tensors < 0 || read_items(self, tensors, call.tensors) < 0) {
        return -1;
    }
    for (int i = 0; i < call.tensor_count; i++) {
        if (self->items[call.tensors + i].kind != VALUE) {
            PyErr_Format(PyExc_TypeError, "Runner: %s takes tensors", call.name);
            return -1;
        }
    }
    call.code_count = (int)PyTuple_GET_SIZE(code);
    call.code = read_numbers(self, code);
    call.text_count = (int)PyTuple_GET_SIZE(texts);
    call.texts = call.code < 0 ? -1 : read_texts(self, texts);
    if (call.texts < 0) {
        return -1;
    }
    if (call.returns < -1 || !native_call_fits(&call, self->numbers + call.code)) {
        PyErr_Format(PyExc_ValueError, "Runner: %R is not how %s is called", code, call.name);
        return -1;
    }
    int wanted[] = {self->most_tensors, call.tensor_count, call.stack, step->result_count};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(wanted); i++) {
        self->most_tensors = wanted[i] > self->most_tensors ? wanted[i] : self->most_tensors;
    }
    step->native = call;
    step->is_native = true;
    return read_product(self, product, factors, step);
}

static int
read_results(Runner *self, PyObject *given, Step *step)
{
    step->result_count = (int)PyTuple_GET_SIZE(given);
    step->results = grow(&self->results, sizeof(Result), &self->result_count, PyTuple_GET_SIZE(given));
    for (int i = 0; step->results >= 0 && i < step->result_count; i++) {
        PyObject *one = PyTuple_GET_ITEM(given, i), *sizes, *strides;
        Result result = {.value = -1};
        long value;
        if (one != Py_None
            && (!PyArg_ParseTuple(one, "lO!O!OOi:Runner", &value, &PyTuple_Type, &sizes, &PyTuple_Type,
                                  &strides, &result.dtype, &result.name, &result.code)
                || read_value(self, value, &result.value) < 0
                || read_shape(self, sizes, strides, NULL, &result.shape) < 0)) {
            return -1;
        }
        self->results[step->results + i] = result;
    }
    return step->results < 0 ? -1 : 0;
}

static int
read_call(Runner *self, PyObject *given, Step *step)
{
    const char *kind;
    PyObject *arguments, *results, *native;
    int is_one;
    long unless = -1;
    if (!PyArg_ParseTuple(given, "sOO!O!O!pO|l:Runner", &kind, &step->function, &PyTuple_Type, &arguments,
                          &PyTuple_Type, &step->names, &PyTuple_Type, &results, &is_one, &native, &unless)) {
        return -1;
    }
    step->is_one = is_one;
    step->unless = step->product = -1;
    if (unless != -1 && read_value(self, unless, &step->unless) < 0) {
        return -1;
    }
    step->count = (int)PyTuple_GET_SIZE(arguments);
    if (PyTuple_GET_SIZE(step->names) > step->count || (is_one && PyTuple_GET_SIZE(results) != 1)) {
        PyErr_SetString(PyExc_ValueError, "Runner: a call with more names than arguments, or one result that is not one");
        return -1;
    }
    step->first = new_items(self, step->count);
    if (step->first < 0 || read_items(self, arguments, step->first) < 0 || read_results(self, results, step) < 0) {
        return -1;
    }
    return native == Py_None ? 0 : read_native(self, native, step);
}

static int
read_drop(Runner *self, PyObject *given, Step *step)
{
    const char *kind;
    PyObject *values;
    return PyArg_ParseTuple(given, "sO!:Runner", &kind, &PyTuple_Type, &values) ? read_values(self, values, step) : -1;
}

static const struct {
    const char *name;
    int (*read)(Runner *self, PyObject *given, Step *step);
} kinds[] = {
    [ALLOCATE] = {"allocate", read_allocate},
    [LAUNCH] = {"launch", read_launch},
    [CALL] = {"call", read_call},
    [DROP] = {"drop", read_drop},
};

static int
read_step(Runner *self, PyObject *given, Step *step)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) == 0 || !PyUnicode_Check(PyTuple_GET_ITEM(given, 0))) {
        PyErr_SetString(PyExc_TypeError, "Runner: a step is a tuple that begins with its kind");
        return -1;
    }
    for (size_t kind = 0; kind < Py_ARRAY_LENGTH(kinds); kind++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(given, 0), kinds[kind].name) == 0) {
            step->kind = (int)kind;
            return kinds[kind].read(self, given, step);
        }
    }
    PyErr_Format(PyExc_ValueError, "Runner: no step is called %R", PyTuple_GET_ITEM(given, 0));
    return -1;
}

/* --- the whole -------------------------------------------------------------------------------- */

static bool
needs_python(const Step *step)
{
    switch (step->kind) {
    case ALLOCATE:
        return step->code < 0;
    case LAUNCH:
        return !is_launcher(step->function);
    case CALL:
        return step->unless < 0 && !step->is_native;
    default:
        return false;
    }
}

static void
count_python_steps(Runner *self)
{
    for (int i = 0; i < self->step_count; i++) {
        const Step *step = &self->steps[i];
        self->python_steps += needs_python(step);
        self->has_launches = self->has_launches || step->kind == LAUNCH;
        bool works = step->kind == LAUNCH || (step->kind == CALL && step->is_native && step->product < 0);
        self->has_native_work = self->has_native_work || (works && !needs_python(step));
    }
}

/* Inputs that a step drops. */
static int
find_consumed(Runner *self)
{
    self->consumed = PyMem_Calloc((size_t)self->inputs + 1, sizeof(bool));
    if (self->consumed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < self->step_count; i++) {
        const Step *step = &self->steps[i];
        for (int k = 0; step->kind == DROP && k < step->count; k++) {
            int value = self->items[step->first + k].value;
            if (value < self->inputs) {
                self->consumed[value] = true;
            }
        }
    }
    return 0;
}

static int
read_program(Runner *self)
{
    int steps = grow(&self->steps, sizeof(Step), &self->step_count, PyTuple_GET_SIZE(self->given_steps));
    for (int i = 0; steps >= 0 && i < self->step_count; i++) {
        if (read_step(self, PyTuple_GET_ITEM(self->given_steps, i), &self->steps[i]) < 0) {
            return -1;
        }
    }
    self->output = steps < 0 ? -1 : new_items(self, 1);
    if (self->output < 0 || read_item(self, self->given_outputs, self->output) < 0) {
        return -1;
    }
    count_python_steps(self);
    return self->consuming ? find_consumed(self) : 0;
}

PyObject *
runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"inputs", "constants", "arena", "values",   "steps", "outputs", "consuming", "threads",
                            "acquire", "release",      "allocate", "view", "fit",   "watchers", NULL};
    Runner *self = (Runner *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    int consuming;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!iiO!O!pOOOOOOO!:Runner", names, &self->inputs, &PyTuple_Type,
                                     &self->constants, &self->arena, &self->values, &PyTuple_Type, &self->given_steps,
                                     &PyTuple_Type, &self->given_outputs, &consuming, &self->threads, &self->acquire,
                                     &self->release, &self->allocate, &self->view, &self->fit, &PyTuple_Type,
                                     &self->watchers)) {
        PyObject **borrowed[] = {&self->constants, &self->given_steps, &self->given_outputs, &self->threads,
                                 &self->acquire,      &self->release,        &self->allocate,      &self->view,
                                 &self->fit,       &self->watchers};
        for (size_t i = 0; i < Py_ARRAY_LENGTH(borrowed); i++) {
            *borrowed[i] = NULL; /* what was parsed before the error is not ours */
        }
        Py_DECREF(self);
        return NULL;
    }
    PyObject *owned[] = {self->constants, self->given_steps, self->given_outputs, self->threads, self->acquire,
                         self->release,      self->allocate,    self->view,          self->fit,     self->watchers};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(owned); i++) {
        Py_INCREF(owned[i]);
    }
    self->vectorcall = runner_call;
    self->consuming = consuming;
    self->constant_count = (int)PyTuple_GET_SIZE(self->constants);
    if (self->inputs < 0 || self->arena < 0 || self->values < self->inputs + self->constant_count + self->arena) {
        PyErr_SetString(PyExc_ValueError, "Runner: fewer values than inputs, constants and places in the arena");
        Py_DECREF(self);
        return NULL;
    }
    if (read_program(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}
