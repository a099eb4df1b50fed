/* PausedRun: a call of a program that stops between steps, so that results leave it before its end.

   A backward stops where gradients are complete, and PyTorch's engine hands them on: a reduction of them over a network
   begins while the kernels after them run. No CUDA graph is launched for such a call. */
#include "runner/run.h"

typedef struct {
    PyObject_HEAD
    Runner *program; /* NULL: it has ended */
    bool is_running;
    int64_t next; /* the first step that is still to be done */
    Run run;
    char *room;
} PausedRun;

/* Ends the call, with whatever exception there is. 0, or -1 with one. */
static int
finish(PausedRun *self, int status)
{
    Runner *program = self->program;
    self->program = NULL;
    if (program) {
        status = end_run(&self->run, status);
        PyMem_Free(self->room);
        Py_DECREF(program);
    }
    return status;
}

static void
paused_dealloc(PausedRun *self)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (finish(self, self->program && self->next < self->run.table->counts[STEPS] ? -1 : 0) < 0 && PyErr_Occurred()) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    PyErr_Restore(type, error, trace);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyObject *
runner_begin(PyObject *object, PyObject *argument)
{
    Runner *program = (Runner *)object;
    PyObject *list, *const *inputs = inputs_of_call(program, &argument, 1, &list);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (list == NULL || program->sizes) { /* nor one for all sizes, which has no backward */
        PyErr_SetString(PyExc_TypeError, "only a program that consumes its inputs can pause: it owns them");
        return NULL;
    }
    PausedRun *self = (PausedRun *)PausedRunType.tp_alloc(&PausedRunType, 0);
    if (self == NULL) {
        return NULL;
    }
    self->room = PyMem_Malloc(bytes_of_run(program) + 1);
    if (self->room == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->program = (Runner *)Py_NewRef(program);
    self->run = run_in(program, self->room);
    int status = begin_run(&self->run, inputs, list);
    if (status == 0) {
        go_on_by_steps(&self->run);
    }
    come_back(&self->run);
    if (status < 0) {
        finish(self, -1);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* What an item of the results is; the run lets its value go. A new reference, or NULL with an exception. */
static PyObject *
result_at(Run *run, int64_t place)
{
    const ItemRecord *results = &run->table->items[run->table->programs->output];
    if (place < 0 || place >= results->length) {
        PyErr_Format(PyExc_IndexError, "this program has %lld results", (long long)results->length);
        return NULL;
    }
    return object_made(run, &run->table->items[results->what + place], true);
}

static void
drop_result(Run *run, int64_t place)
{
    const ItemRecord *results = &run->table->items[run->table->programs->output];
    const ItemRecord *item = &run->table->items[results->what + place];
    if (item->kind == VALUE_ITEM) {
        drop_value(run, &run->values[item->what]);
    }
}

/* The steps up to one, then results: whoever asks knows that no step after it needs them, nor other results of the same
   values. */
static PyObject *
advance(PausedRun *self, int64_t until, PyObject *places)
{
    Run *run = &self->run;
    const Py_ssize_t count = PyTuple_GET_SIZE(places);
    int status = until > self->next ? run_until(run, self->next, until) : 0;
    come_back(run);
    self->next = until > self->next ? until : self->next;
    PyObject *results = status < 0 ? NULL : PyTuple_New(count);
    for (Py_ssize_t i = 0; results && i < count; i++) {
        PyObject *result = result_at(run, PyLong_AsLongLong(PyTuple_GET_ITEM(places, i)));
        if (result == NULL) {
            Py_CLEAR(results);
            break;
        }
        PyTuple_SET_ITEM(results, i, result);
    }
    for (Py_ssize_t i = 0; results && i < count; i++) {
        drop_result(run, PyLong_AsLongLong(PyTuple_GET_ITEM(places, i)));
    }
    return results;
}

/* advance(until, places): see _native.pyi. */
static PyObject *
paused_advance(PausedRun *self, PyObject *args)
{
    long long until;
    PyObject *places;
    if (!PyArg_ParseTuple(args, "LO!:advance", &until, &PyTuple_Type, &places)) {
        return NULL;
    }
    if (self->program == NULL || self->is_running) {
        PyErr_SetString(PyExc_RuntimeError, self->program ? "this call is running" : "this call has ended");
        return NULL;
    }
    if (until > self->run.table->counts[STEPS]) {
        PyErr_Format(PyExc_ValueError, "this program has %lld steps", (long long)self->run.table->counts[STEPS]);
        return NULL;
    }
    self->is_running = true;
    PyObject *results = advance(self, until, places);
    self->is_running = false;
    if ((results == NULL || self->next == self->run.table->counts[STEPS]) && finish(self, results ? 0 : -1) < 0) {
        Py_CLEAR(results);
    }
    return results;
}

static PyMethodDef paused_methods[] = {
    {"advance", (PyCFunction)paused_advance, METH_VARARGS, "Do steps, and take results."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject PausedRunType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.PausedRun",
    .tp_basicsize = sizeof(PausedRun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)paused_dealloc,
    .tp_methods = paused_methods,
    .tp_doc = PyDoc_STR("A call of a program that stops between steps."),
};
