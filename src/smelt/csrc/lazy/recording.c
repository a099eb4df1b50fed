/* Recording and Step: the position of a recording in the tree of recorded steps, and the data beside it. */
#include "lazy/lazy.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

/* --- recordings ------------------------------------------------------------------------------- */

static uint64_t (*next_node)(void);  /* the number that this thread's next node of autograd's graph will have */
static PyObject *saving_hooks;       /* returns the hooks that pack what nodes save, or None */

PyObject *
watch_nodes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *address, *hooks;
    if (!PyArg_ParseTuple(args, "O!O:watch_nodes", &PyLong_Type, &address, &hooks)) {
        return NULL;
    }
    void *function = PyLong_AsVoidPtr(address);
    if (function == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Py_XSETREF(saving_hooks, Py_NewRef(hooks));
    memcpy(&next_node, &function, sizeof next_node);
    Py_RETURN_NONE;
}

static bool
packs_saved_tensors(void)
{
    PyObject *hooks = PyObject_CallOneArg(saving_hooks, Py_True);
    if (hooks == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(hooks);
    return hooks != Py_None;
}

void
recording_note(Recording *self)
{
    if (self->is_trail_lost || PyThread_get_thread_ident() != self->thread || packs_saved_tensors()) {
        self->is_trail_lost = true;
        return;
    }
    self->trail = (self->trail ^ (next_node() - self->first_node)) * UINT64_C(0x9E3779B97F4A7C15);
    self->trail ^= self->trail >> 29;
}

static PyObject *
recording_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    long long serial;
    PyObject *root;
    if (!PyArg_ParseTuple(args, "LO!:Recording", &serial, &StepType, &root)) {
        return NULL;
    }
    Recording *self = (Recording *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->serial = serial;
    self->step = Py_NewRef(root);
    self->numbers = PyList_New(0);
    self->inputs = PyList_New(0);
    self->thread = PyThread_get_thread_ident();
    self->first_node = next_node ? next_node() : 0;
    self->is_trail_lost = next_node == NULL;
    if (self->numbers == NULL || self->inputs == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

int
recording_watch(Recording *self, int64_t value, LazyMemory *memory)
{
    if (value >= self->length) {
        int64_t length = value < 64 ? 64 : 2 * value;
        LazyMemory **living = PyMem_Realloc(self->living, (size_t)length * sizeof *living);
        if (living == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memset(living + self->length, 0, (size_t)(length - self->length) * sizeof *living);
        self->living = living, self->length = length;
    }
    if (memory->in) {
        memory->in->living[memory->place] = NULL;
    }
    if (self->living[value]) {
        self->living[value]->in = NULL;
    }
    memory->in = self, memory->place = value;
    self->living[value] = memory;
    return 0;
}

static PyObject *
watch(Recording *self, PyObject *args)
{
    long long value;
    PyObject *memory;
    if (!PyArg_ParseTuple(args, "LO!:watch", &value, &LazyMemoryType, &memory)) {
        return NULL;
    }
    if (value < 0) {
        return PyErr_Format(PyExc_ValueError, "there is no value %lld", value);
    }
    if (recording_watch(self, value, (LazyMemory *)memory) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
alive(Recording *self, PyObject *Py_UNUSED(unused))
{
    PyObject *pairs = PyList_New(0);
    for (int64_t value = 0; pairs && value < self->length; value++) {
        if (self->living[value] == NULL) {
            continue;
        }
        PyObject *pair = Py_BuildValue("LO", (long long)value, self->living[value]);
        if (pair == NULL || PyList_Append(pairs, pair) < 0) {
            Py_CLEAR(pairs);
        }
        Py_XDECREF(pair);
    }
    return pairs;
}

static int
recording_traverse(Recording *self, visitproc visit, void *arg)
{
    Py_VISIT(self->step);
    Py_VISIT(self->numbers);
    Py_VISIT(self->inputs);
    return 0;
}

static int
recording_clear(Recording *self)
{
    Py_CLEAR(self->step);
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->inputs);
    return 0;
}

static void
recording_dealloc(Recording *self)
{
    PyObject_GC_UnTrack(self);
    for (int64_t value = 0; value < self->length; value++) {
        if (self->living[value]) {
            self->living[value]->in = NULL;
        }
    }
    PyMem_Free(self->living);
    self->length = 0;
    recording_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef recording_methods[] = {
    {"watch", (PyCFunction)watch, METH_VARARGS, PyDoc_STR("A value is all of a memory that is new in this recording.")},
    {"alive", (PyCFunction)alive, METH_NOARGS, PyDoc_STR("The memories that are watched and live, with their values.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef recording_members[] = {
    {"step", T_OBJECT_EX, offsetof(Recording, step), 0, NULL},
    {"numbers", T_OBJECT_EX, offsetof(Recording, numbers), READONLY, NULL},
    {"inputs", T_OBJECT_EX, offsetof(Recording, inputs), READONLY, NULL},
    {"serial", T_LONGLONG, offsetof(Recording, serial), READONLY, NULL},
    {"count", T_LONGLONG, offsetof(Recording, count), 0, NULL},
    {"bytes", T_LONGLONG, offsetof(Recording, bytes), 0, NULL},
    {"first_node", T_ULONGLONG, offsetof(Recording, first_node), READONLY, NULL},
    {"trail", T_ULONGLONG, offsetof(Recording, trail), READONLY, NULL},
    {"is_trail_lost", T_BOOL, offsetof(Recording, is_trail_lost), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject RecordingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Recording",
    .tp_doc = PyDoc_STR("What was recorded since the last run."),
    .tp_basicsize = sizeof(Recording),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = recording_new,
    .tp_dealloc = (destructor)recording_dealloc,
    .tp_traverse = (traverseproc)recording_traverse,
    .tp_clear = (inquiry)recording_clear,
    .tp_methods = recording_methods,
    .tp_members = recording_members,
};

/* --- steps ------------------------------------------------------------------------------------ */

static PyObject *
step_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"before", "operator", NULL};
    PyObject *before, *operator= Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Step", names, &before, &operator)) {
        return NULL;
    }
    if (before != Py_None && !PyObject_TypeCheck(before, &StepType)) {
        return PyErr_Format(PyExc_TypeError, "a step follows a step, not %R", before);
    }
    Step *self = (Step *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->before = Py_NewRef(before);
    self->operator= Py_NewRef(operator);
    self->args = PyTuple_New(0);
    self->kwargs = PyDict_New();
    self->results = PyTuple_New(0);
    self->after = PyDict_New();
    self->programs = PyDict_New();
    if (before != Py_None) {
        self->first_value = self->values = ((Step *)before)->values;
        self->numbers = ((Step *)before)->numbers;
    }
    if (!self->args || !self->kwargs || !self->results || !self->after || !self->programs) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static bool
is_same_code(PyObject *one, PyObject *other)
{
    if (one == other) {
        return true;
    }
    /* Codes of one type only are equal; types, Refs and operators are so by identity. */
    if (Py_TYPE(one) != Py_TYPE(other) || !(PyTuple_Check(one) || PyLong_Check(one) || PyUnicode_Check(one))) {
        return false;
    }
    int same = PyObject_RichCompareBool(one, other, Py_EQ);
    if (same < 0) {
        PyErr_Clear();
    }
    return same > 0;
}

Step *
step_after(Step *self, PyObject *const *key, Py_ssize_t count)
{
    if (self->last && PyTuple_GET_SIZE(self->last_key) == count) {
        Py_ssize_t same = 0;
        while (same < count && is_same_code(key[same], PyTuple_GET_ITEM(self->last_key, same))) {
            same++;
        }
        if (same == count) {
            return self->last;
        }
    }
    PyObject *tuple = PyTuple_New(count);
    if (tuple == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(key[i]));
    }
    PyObject *step = PyDict_GetItemWithError(self->after, tuple);
    if (step == NULL || !PyObject_TypeCheck(step, &StepType)) {
        Py_DECREF(tuple);
        return NULL;
    }
    Py_XSETREF(self->last_key, tuple);
    Py_XSETREF(self->last, (Step *)Py_NewRef(step));
    return self->last;
}

/* Where the argument is that a result is, or is a view of. */
static int
read_path(StepResult *result, PyObject *described)
{
    PyObject *path = PyObject_GetAttrString(described, "path");
    if (path == NULL) {
        return -1;
    }
    result->position = -1;
    if (PyTuple_Check(path) && PyTuple_GET_SIZE(path) == 1) {
        PyObject *first = PyTuple_GET_ITEM(path, 0);
        if (PyLong_Check(first)) {
            result->position = PyLong_AsSsize_t(first);
        }
        else {
            result->name = first;
        }
    }
    Py_DECREF(path); /* `results` keeps it */
    return PyErr_Occurred() ? -1 : 0;
}

static int
read_result(StepResult *result, PyObject *described)
{
    if (described == Py_None) {
        result->kind = NO_RESULT;
        return 0;
    }
    PyObject *layout = PyObject_GetAttrString(described, "layout");
    if (layout == NULL) {
        PyErr_Clear();
        result->kind = SAME_RESULT;
        return read_path(result, described);
    }
    result->layout = strided_layout(layout);
    Py_DECREF(layout);
    if (result->layout == NULL) {
        return -1;
    }
    int is_view = PyObject_HasAttrString(described, "path");
    result->kind = is_view ? VIEW_RESULT : FRESH_RESULT;
    return is_view ? read_path(result, described) : 0;
}

static void
forget_results(Step *self)
{
    for (Py_ssize_t i = 0; self->outputs && i < self->output_count; i++) {
        Py_XDECREF(self->outputs[i].layout);
    }
    PyMem_Free(self->outputs);
    self->outputs = NULL;
}

int
step_read_results(Step *self)
{
    if (!PyTuple_Check(self->results)) {
        PyErr_SetString(PyExc_TypeError, "the results of a step are a tuple");
        return -1;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(self->results);
    self->outputs = PyMem_Calloc((size_t)(count ? count : 1), sizeof *self->outputs);
    if (self->outputs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->output_count = count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (read_result(&self->outputs[i], PyTuple_GET_ITEM(self->results, i)) < 0) {
            forget_results(self);
            return -1;
        }
    }
    return 0;
}

static int
step_traverse(Step *self, visitproc visit, void *arg)
{
    PyObject *held[] = {self->before, self->operator, self->args,     self->kwargs, self->results,  self->form,
                        self->layout, self->line,     self->programs, self->launch, self->constants,
                        self->backwards, self->after,  self->last_key, (PyObject *)self->last};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(held); i++) {
        Py_VISIT(held[i]);
    }
    return 0;
}

static int
step_clear(Step *self)
{
    Py_CLEAR(self->before);
    Py_CLEAR(self->operator);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
    forget_results(self);
    Py_CLEAR(self->results);
    Py_CLEAR(self->form);
    Py_CLEAR(self->layout);
    Py_CLEAR(self->line);
    Py_CLEAR(self->programs);
    Py_CLEAR(self->launch);
    Py_CLEAR(self->constants);
    Py_CLEAR(self->backwards);
    Py_CLEAR(self->last_key);
    Py_CLEAR(self->last);
    Py_CLEAR(self->after);
    return 0;
}

static void
step_dealloc(Step *self)
{
    PyObject_GC_UnTrack(self);
    step_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef step_members[] = {
    {"before", T_OBJECT, offsetof(Step, before), READONLY, NULL},
    {"operator", T_OBJECT, offsetof(Step, operator), READONLY, NULL},
    {"args", T_OBJECT_EX, offsetof(Step, args), 0, NULL},
    {"kwargs", T_OBJECT_EX, offsetof(Step, kwargs), 0, NULL},
    {"results", T_OBJECT_EX, offsetof(Step, results), 0, NULL},
    {"form", T_OBJECT, offsetof(Step, form), 0, NULL},
    {"layout", T_OBJECT, offsetof(Step, layout), 0, NULL},
    {"line", T_OBJECT, offsetof(Step, line), 0, NULL},
    {"programs", T_OBJECT_EX, offsetof(Step, programs), 0, NULL},
    {"launch", T_OBJECT, offsetof(Step, launch), 0, NULL},
    {"constants", T_OBJECT, offsetof(Step, constants), 0, NULL},
    {"backwards", T_OBJECT, offsetof(Step, backwards), 0, NULL},
    {"after", T_OBJECT_EX, offsetof(Step, after), READONLY, NULL},
    {"first_value", T_LONGLONG, offsetof(Step, first_value), READONLY, NULL},
    {"values", T_LONGLONG, offsetof(Step, values), 0, NULL},
    {"numbers", T_LONGLONG, offsetof(Step, numbers), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject StepType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Step",
    .tp_doc = PyDoc_STR("One recorded call, or an input, and the calls that have followed it."),
    .tp_basicsize = sizeof(Step),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = step_new,
    .tp_dealloc = (destructor)step_dealloc,
    .tp_traverse = (traverseproc)step_traverse,
    .tp_clear = (inquiry)step_clear,
    .tp_members = step_members,
};
