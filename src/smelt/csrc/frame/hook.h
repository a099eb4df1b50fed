/* The frame hook: which region is active on this thread, and how each frame is handled while one is.

   CPython's evaluator is replaced only while some thread has an active region. Compiled code and `missed` run with no
   region active, so CPython runs them unchanged too, unless another thread needs the hook at that moment. */
#ifndef SMELT_HOOK_H
#define SMELT_HOOK_H

#include <Python.h>
#include <stdbool.h>

typedef struct Region Region;

/* Once, at import. 0, or -1 with an exception. */
int hook_init(void);

/* Makes `region` (NULL: none) the active one on this thread; returns the one it replaces, to be given back later.
   Borrowed references: the caller keeps both alive until then. */
Region *hook_activate(Region *region);

/* The region active on this thread, borrowed, or NULL. */
Region *hook_active(void);

/* From here to the matching release no region is or becomes active on this thread. Counts. The one that was active is so
   again when whoever made it active does so: the call that did may be over by the time of the release. */
void hook_hold(void);
void hook_release(void);
bool hook_is_held(void);

/* Whose code runs, and how many frames of it count.

   Frames of smelt's own are none of the program's: they are lent room where little is left of Python's recursion limit,
   and where the program goes on inside of them, it has as many frames left as it had. So its recursion ends where it
   would have ended. Each begin has its end, with what begin returned. */
typedef struct {
    int lent;   /* frames added to what the thread may enter; below zero: taken away */
    int theirs; /* what the outer state had in their place */
    bool own;
} HookRoom;

HookRoom hook_begin_own(void);
HookRoom hook_begin_program(void);
void hook_end(HookRoom room);

/* Whether the hook is in place at this moment. */
bool hook_is_installed(void);

/* The contents for one frame of `function`. */
typedef struct {
    PyObject *function; /* borrowed */
    PyObject **values;  /* `count` owned references or NULLs, localsplus first, then the stack; NULLed when taken */
    Py_ssize_t count;
    Py_ssize_t unit; /* code unit at which to start */
} FrameContents;

/* Calls `function` with arguments that only have to satisfy its signature; its frame gets `contents` before it runs. */
PyObject *hook_call_with(FrameContents *contents, PyObject *const *dummies, size_t positional, PyObject *names);

#endif
