/* The parts of frame handling that CPython does not export. */
#include "frame/frame.h"

#include <pthread.h>
#include <stdint.h>

#if PY_VERSION_HEX >= 0x030D0000

#include "internal/pycore_ceval.h"

void
frame_dispose(PyThreadState *tstate, Frame *frame)
{
    _PyEval_FrameClearAndPop(tstate, frame);
}

#elif PY_VERSION_HEX >= 0x030C0000

/* 3.12 exports nothing for this. The frame is the topmost on the thread's data stack; that stack is a list of chunks,
   and a frame that opened a chunk takes the chunk with it. */
static void
pop_from_data_stack(PyThreadState *tstate, Frame *frame)
{
    PyObject **base = (PyObject **)frame;
    _PyStackChunk *chunk = tstate->datastack_chunk;
    if (base != &chunk->data[0]) {
        tstate->datastack_top = base;
        return;
    }
    _PyStackChunk *previous = chunk->previous;
    tstate->datastack_chunk = previous;
    tstate->datastack_top = &previous->data[previous->top];
    tstate->datastack_limit = (PyObject **)((char *)previous + previous->size);
    PyObjectArenaAllocator allocator;
    PyObject_GetArenaAllocator(&allocator);
    allocator.free(allocator.ctx, chunk, chunk->size);
}

void
frame_dispose(PyThreadState *tstate, Frame *frame)
{
    tstate->c_recursion_remaining--; /* finalizers may run */
    for (int i = 0; i < frame->stacktop; i++) {
        Py_XDECREF(frame->localsplus[i]);
    }
    Py_DECREF(frame->f_funcobj);
    Py_DECREF(frame->f_code);
    tstate->c_recursion_remaining++;
    pop_from_data_stack(tstate, frame);
}

#else

void
frame_dispose(PyThreadState *Py_UNUSED(tstate), Frame *Py_UNUSED(frame))
{
    /* 3.11: whoever called the evaluator clears the frame. */
}

#endif

enum { SMALLEST_RESERVE = 64 * 1024, LARGEST_RESERVE = 2 * 1024 * 1024 };

/* Where this thread's stack ends, and how large it is; 0 if unknown. */
static size_t
find_stack(uintptr_t *end)
{
#if defined(__linux__)
    pthread_attr_t attributes;
    void *lowest = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) {
        return 0;
    }
    int failed = pthread_attr_getstack(&attributes, &lowest, &size);
    pthread_attr_destroy(&attributes);
    if (failed) {
        return 0;
    }
#elif defined(__APPLE__)
    size_t size = pthread_get_stacksize_np(pthread_self());
    char *lowest = (char *)pthread_get_stackaddr_np(pthread_self()) - size;
#else
    size_t size = 0;
    void *lowest = NULL;
#endif
    *end = (uintptr_t)lowest;
    return size;
}

Py_ssize_t
frame_stack_left(void)
{
    static _Thread_local uintptr_t end;
    if (end == 0 && find_stack(&end) == 0) {
        end = 1;
    }
    char here;
    uintptr_t now = (uintptr_t)&here;
    if (end == 1) {
        return PY_SSIZE_T_MAX;
    }
    return now > end ? (Py_ssize_t)(now - end) : 0;
}

/* A quarter of the thread's stack, within bounds, is kept for C code. 1 (an address nothing is below) if unknown. */
static uintptr_t
find_stack_limit(void)
{
    uintptr_t end = 0;
    size_t size = find_stack(&end);
    if (size == 0) {
        return 1;
    }
    size_t reserve = size / 4;
    reserve = reserve < SMALLEST_RESERVE ? SMALLEST_RESERVE : reserve;
    reserve = reserve > LARGEST_RESERVE ? LARGEST_RESERVE : reserve;
    return end + reserve;
}

bool
frame_stack_is_low(PyThreadState *tstate, uintptr_t *limit)
{
    if (*limit == 0) {
        *limit = find_stack_limit();
    }
    char here;
    if ((uintptr_t)&here < *limit) {
        return true;
    }
#if PY_VERSION_HEX >= 0x030D0000
    return tstate->c_recursion_remaining < Py_C_RECURSION_LIMIT / 4;
#elif PY_VERSION_HEX >= 0x030C0000
    return tstate->c_recursion_remaining < C_RECURSION_LIMIT / 4;
#else
    (void)tstate;
    return false;
#endif
}
