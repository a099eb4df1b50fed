/* Defers the program's signal handlers while the compiler has changed its state.

   CPython runs a handler on the main thread between any two bytecodes, including those of the compiler, under its
   dispatch modes and in the middle of its imports. Tensors of the handler would have no data and end up in the graph,
   and its exceptions would look like faults of the compiler. So signals with such a handler are recorded, and
   raised again once the program's state is restored, as for a function written in C. `signal.default_int_handler` is not
   deferred: Ctrl-C ends a compilation. */
#include "state/deferred_signals.h"

#include <Python.h>

#include <pthread.h>
#include <signal.h>

enum { SIGNALS = NSIG };

static volatile sig_atomic_t arrived[SIGNALS]; /* written on any thread */

/* Of the main thread, under the GIL. */
static struct {
    Py_ssize_t blocks; /* in progress */
    bool is_deferred[SIGNALS];
    struct sigaction before[SIGNALS];
} deferring;

static PyObject *threading, *getsignal, *default_int_handler;

static void
note(int number)
{
    arrived[number] = 1;
}

static bool
is_main_thread(void)
{
    PyObject *thread = PyObject_GetAttrString(threading, "_main_thread");
    PyObject *number = thread ? PyObject_GetAttrString(thread, "_ident") : NULL;
    bool is_main = number && PyLong_AsUnsignedLong(number) == PyThread_get_thread_ident();
    Py_XDECREF(number);
    Py_XDECREF(thread);
    PyErr_Clear();
    return is_main;
}

/* Faults of the process itself: they come back at once until somebody has handled them. */
static bool
is_fault(int number)
{
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL || number == SIGABRT
           || number == SIGTRAP;
}

/* Whether the program has a function for it that may do anything. */
static bool
has_handler(int number)
{
    PyObject *argument = PyLong_FromLong(number);
    PyObject *handler = argument ? PyObject_CallOneArg(getsignal, argument) : NULL;
    bool has = handler && handler != Py_None && handler != default_int_handler && !PyLong_Check(handler);
    Py_XDECREF(argument);
    Py_XDECREF(handler);
    PyErr_Clear(); /* a number that is no signal's here */
    return has;
}

static void
defer(int number)
{
    struct sigaction *before = &deferring.before[number];
    if (sigaction(number, NULL, before) < 0) {
        return;
    }
    struct sigaction noting = *before;
    noting.sa_flags &= ~SA_SIGINFO;
    noting.sa_handler = note;
    deferring.is_deferred[number] = sigaction(number, &noting, NULL) == 0;
}

/* A handler that was set meanwhile stays. */
static void
put_back(int number)
{
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == note) {
        sigaction(number, &deferring.before[number], NULL);
    }
    deferring.is_deferred[number] = false;
}

bool
begin_deferring_signals(void)
{
    if (!is_main_thread()) {
        return false; /* handlers do not run here */
    }
    for (int number = 1; deferring.blocks == 0 && number < SIGNALS; number++) {
        if (!is_fault(number) && has_handler(number)) {
            defer(number);
        }
    }
    deferring.blocks++;
    return true;
}

void
end_deferring_signals(void)
{
    if (deferring.blocks == 0 || --deferring.blocks > 0) { /* none: a child of a fork that was made in between */
        return;
    }
    for (int number = 1; number < SIGNALS; number++) {
        if (deferring.is_deferred[number]) {
            put_back(number);
            if (arrived[number]) {
                arrived[number] = 0;
                PyErr_SetInterruptEx(number);
            }
        }
    }
}

/* A child has none of the parent's signals; and whoever forks in the middle of a compilation may never come back to it. */
static void
forget_in_child(void)
{
    for (int number = 1; number < SIGNALS; number++) {
        if (deferring.is_deferred[number]) {
            put_back(number);
        }
        arrived[number] = 0;
    }
    deferring.blocks = 0;
}

int
deferred_signals_init(void)
{
    PyObject *signals = PyImport_ImportModule("_signal");
    getsignal = signals ? PyObject_GetAttrString(signals, "getsignal") : NULL;
    default_int_handler = getsignal ? PyObject_GetAttrString(signals, "default_int_handler") : NULL;
    threading = default_int_handler ? PyImport_ImportModule("threading") : NULL;
    Py_XDECREF(signals);
    if (threading == NULL) {
        return -1;
    }
    if (pthread_atfork(NULL, NULL, forget_in_child) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}
