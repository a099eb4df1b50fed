/* Runner as a Python type. */
#include "gpu/replay.h"
#include "runner/dynamic/sizes.h"

#include <stddef.h>
#include <stdlib.h>
#include <structmember.h>

static int
runner_traverse(Runner *self, visitproc visit, void *arg)
{
#define VISIT(name) Py_VISIT(self->name);
    RUNNER_OBJECTS(VISIT)
    Py_VISIT(self->dict);
    Py_VISIT(self->clock);
    return 0;
}

static int
runner_clear(Runner *self)
{
    replay_free(self->replay); /* before the functions that its graphs launch */
    self->replay = NULL;
#define CLEAR(name) Py_CLEAR(self->name);
    RUNNER_OBJECTS(CLEAR)
    Py_CLEAR(self->dict);
    Py_CLEAR(self->clock);
    return 0;
}

static void
runner_dealloc(Runner *self)
{
    PyObject_GC_UnTrack(self);
    runner_clear(self);
    Py_XDECREF(self->table_bytes);
    PyMem_Free(self->natives);
    PyMem_Free(self->consumed);
    program_sizes_drop(self->sizes);
    free(self->taken);
    free(self->workspace.memory);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* time(on): notes from now on how long each step takes, from zero; or no more. A callable makes a device's clock for each
   call. */
static PyObject *
runner_time(Runner *self, PyObject *on)
{
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0) {
        return NULL;
    }
    free(self->taken);
    self->taken = wanted ? calloc((size_t)self->table.counts[STEPS] + 1, sizeof *self->taken) : NULL;
    self->timed_calls = 0;
    Py_XSETREF(self->clock, wanted && PyCallable_Check(on) ? Py_NewRef(on) : NULL);
    if (wanted && self->taken == NULL) {
        return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *
runner_times(Runner *self, void *unused)
{
    PyObject *times = self->taken ? tuple_of(self->taken, self->table.counts[STEPS]) : PyTuple_New(0);
    return times ? Py_BuildValue("(LN)", (long long)self->timed_calls, times) : NULL;
}

static PyObject *
runner_graphs(Runner *self, void *unused)
{
    return replay_told(self);
}

/* fits(*inputs): whether a call with these inputs has sizes that the program is for. */
static PyObject *
runner_fits(Runner *self, PyObject *const *inputs, Py_ssize_t count)
{
    bool fits = count == self->table.programs->inputs
                && (self->sizes == NULL || program_sizes_fill(self->sizes, &self->table, inputs, NULL));
    return PyBool_FromLong(fits);
}

static PyMethodDef runner_methods[] = {
    {"begin", (PyCFunction)runner_begin, METH_O, "Begin a call that pauses between steps."},
    {"fits", (PyCFunction)(void (*)(void))runner_fits, METH_FASTCALL, "Whether it is for the sizes of these inputs."},
    {"time", (PyCFunction)runner_time, METH_O, "Begin or cease to time steps."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef runner_members[] = {
    {"table", T_OBJECT, offsetof(Runner, table_bytes), READONLY, "The flat program it was made of."},
    {"objects", T_OBJECT, offsetof(Runner, objects), READONLY, "What that refers to."},
    {"python_steps", T_INT, offsetof(Runner, python_steps), READONLY, "How many steps only Python can do."},
    {"gil_acquisitions", T_LONGLONG, offsetof(Runner, acquisitions), READONLY,
     "How often Python was needed between the first step and the last, in all calls."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef runner_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"graphs", (getter)runner_graphs, NULL, "What became of its CUDA graphs.", NULL},
    {"times", (getter)runner_times, NULL, "How many calls were timed, and what each step took in all of them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject RunnerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Runner",
    .tp_basicsize = sizeof(Runner),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = runner_new,
    .tp_dealloc = (destructor)runner_dealloc,
    .tp_traverse = (traverseproc)runner_traverse,
    .tp_clear = (inquiry)runner_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Runner, vectorcall),
    .tp_dictoffset = offsetof(Runner, dict),
    .tp_members = runner_members,
    .tp_methods = runner_methods,
    .tp_getset = runner_getset,
    .tp_doc = PyDoc_STR("A program of kernels and library calls, run by one call."),
};
