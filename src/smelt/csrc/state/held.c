/* Held and PausedGC: blocks that end when they are left or, if an exception arrives in between, with their object.

   `with` keeps only the manager's `__exit__`. If an exception arrives between the block and that call, Python drops it
   without calling it, and its deallocation ends the block. */
#include <stdbool.h>

#include <pthread.h>

#include "state/preserved_state.h"

/* --- no automatic collections ----------------------------------------------------------------- */

/* Under the GIL. */
static struct {
    Py_ssize_t blocks; /* in progress, over all threads */
    bool was_enabled;
    Py_ssize_t modules; /* loaded when the first block began */
} collector;

static _Thread_local Py_ssize_t blocks_here;

/* Python 3.12 freezes 375 objects as it starts; who freezes later freezes many thousands. */
enum { OF_THE_INTERPRETER = 1000 };

static Py_ssize_t
loaded_modules(void)
{
    PyObject *modules = PySys_GetObject("modules");
    return modules && PyDict_Check(modules) ? PyDict_GET_SIZE(modules) : 0;
}

/* Count all there is among the objects that only a full collection looks at. */
static void
grow_old(void)
{
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *frozen = gc ? PyObject_CallMethod(gc, "get_freeze_count", NULL) : NULL;
    if (frozen && PyLong_AsSsize_t(frozen) < OF_THE_INTERPRETER) { /* what the program has frozen stays frozen */
        Py_XDECREF(PyObject_CallMethod(gc, "freeze", NULL));
        Py_XDECREF(PyObject_CallMethod(gc, "unfreeze", NULL));
    }
    Py_XDECREF(frozen);
    Py_XDECREF(gc);
    PyErr_Clear();
}

void
pause_collector(void)
{
    blocks_here++;
    if (collector.blocks++ == 0) {
        collector.was_enabled = PyGC_Disable();
        collector.modules = loaded_modules();
    }
}

void
resume_collector(void)
{
    blocks_here--;
    if (--collector.blocks == 0 && collector.was_enabled) {
        if (loaded_modules() > collector.modules) {
            grow_old();
        }
        PyGC_Enable();
    }
}

/* After fork() this thread is the only one, and blocks of others never end. */
static void
forget_other_blocks(void)
{
    if (collector.blocks > 0 && blocks_here == 0 && collector.was_enabled) {
        PyGC_Enable();
    }
    collector.blocks = blocks_here;
}

/* --- the blocks ------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *lock; /* of Held; NULL: the collector is paused */
    bool is_entered;
} Block;

static PyObject *
held_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lock", NULL};
    PyObject *lock;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Held", names, &lock)) {
        return NULL;
    }
    Block *self = (Block *)type->tp_alloc(type, 0);
    if (self) {
        self->lock = Py_NewRef(lock);
    }
    return (PyObject *)self;
}

static PyObject *
paused_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return type->tp_alloc(type, 0);
}

static PyObject *
block_enter(Block *self, PyObject *Py_UNUSED(unused))
{
    if (self->lock) {
        PyObject *done = PyObject_CallMethod(self->lock, "acquire", NULL);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
    }
    else if (!self->is_entered) {
        pause_collector();
    }
    self->is_entered = true;
    Py_RETURN_NONE;
}

/* 0, or -1 with an exception. */
static int
end_block(Block *self)
{
    if (!self->is_entered) {
        return 0;
    }
    self->is_entered = false;
    if (self->lock == NULL) {
        resume_collector();
        return 0;
    }
    PyObject *done = PyObject_CallMethod(self->lock, "release", NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *
block_exit(Block *self, PyObject *Py_UNUSED(args))
{
    if (end_block(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static void
block_dealloc(Block *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (end_block(self) < 0) {
        PyErr_Clear(); /* a lock that this thread no longer has: after a fork, say */
    }
    PyErr_Restore(type, value, trace);
    Py_XDECREF(self->lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef block_methods[] = {
    {"__enter__", (PyCFunction)block_enter, METH_NOARGS, PyDoc_STR("The block begins.")},
    {"__exit__", (PyCFunction)block_exit, METH_VARARGS, PyDoc_STR("The block ends.")},
    {NULL, NULL, 0, NULL},
};

PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Held",
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = held_new,
    .tp_dealloc = (destructor)block_dealloc,
    .tp_methods = block_methods,
    .tp_doc = PyDoc_STR("A block that holds a lock, and releases it whatever is raised and wherever."),
};

PyTypeObject PausedGCType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.PausedGC",
    .tp_basicsize = sizeof(Block),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = paused_new,
    .tp_dealloc = (destructor)block_dealloc,
    .tp_methods = block_methods,
    .tp_doc = PyDoc_STR("A block without automatic collections. Nests, and leaves a collector that was off alone."),
};

int
preserved_state_init(void)
{
    if (pthread_atfork(NULL, NULL, forget_other_blocks) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}
