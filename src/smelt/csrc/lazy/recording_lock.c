/* RecordingLock: a reentrant lock like threading.RLock, which C acquires without a call. */
#include "lazy/lazy.h"

#include <pythread.h>

/* Let one of those who wait look again, if the lock is free. */
static void
let_look(RecordingLock *self)
{
    if (self->depth == 0 && self->waiting > 0 && !self->is_open) {
        self->is_open = true;
        PyThread_release_lock(self->gate);
    }
}

/* Until the lock may be free. -1 with an exception: a signal came first. */
static int
wait_for(RecordingLock *self)
{
    self->waiting++;
    PyLockStatus status;
    Py_BEGIN_ALLOW_THREADS
    status = PyThread_acquire_lock_timed(self->gate, -1, 1);
    Py_END_ALLOW_THREADS
    self->waiting--;
    if (status == PY_LOCK_ACQUIRED) {
        self->is_open = false;
        return 0;
    }
    return Py_MakePendingCalls();
}

int
recording_lock_acquire(RecordingLock *self)
{
    unsigned long thread = PyThread_get_thread_ident();
    while (self->depth > 0 && self->thread != thread) {
        if (wait_for(self) < 0) {
            let_look(self);
            return -1;
        }
    }
    self->thread = thread;
    self->depth++;
    return 0;
}

/* The GIL is held, so that nobody comes between: it alone keeps a lock that nobody waits for. */
void
recording_lock_release(RecordingLock *self)
{
    self->depth--;
    let_look(self);
}

static PyObject *
acquire(RecordingLock *self, PyObject *Py_UNUSED(unused))
{
    if (recording_lock_acquire(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
release(RecordingLock *self, PyObject *Py_UNUSED(args))
{
    if (self->depth == 0 || self->thread != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "a lock is released by the thread that has it");
        return NULL;
    }
    recording_lock_release(self);
    Py_RETURN_NONE;
}

static PyObject *
lock_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    RecordingLock *self = (RecordingLock *)type->tp_alloc(type, 0);
    if (self && (self->gate = PyThread_allocate_lock()) == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(self);
    }
    if (self) {
        PyThread_acquire_lock(self->gate, WAIT_LOCK);
    }
    return (PyObject *)self;
}

static void
lock_dealloc(RecordingLock *self)
{
    if (self->gate) {
        if (!self->is_open) {
            PyThread_release_lock(self->gate);
        }
        PyThread_free_lock(self->gate);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"acquire", (PyCFunction)acquire, METH_NOARGS, PyDoc_STR("Take the lock.")},
    {"release", (PyCFunction)release, METH_NOARGS, PyDoc_STR("Give it back.")},
    {"__enter__", (PyCFunction)acquire, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)release, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject RecordingLockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.RecordingLock",
    .tp_doc = PyDoc_STR("A lock that its thread may take again."),
    .tp_basicsize = sizeof(RecordingLock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = lock_new,
    .tp_dealloc = (destructor)lock_dealloc,
    .tp_methods = methods,
};
