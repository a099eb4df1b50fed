/* Launcher: a compiled kernel as a Python callable. */
#ifndef SMELT_LAUNCHER_H
#define SMELT_LAUNCHER_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Memory that is kept between calls: whoever acquires it has it alone until it is released. */
typedef struct {
    void *memory;
    size_t size;
} Workspace;

typedef void (*Kernel)(void **buffers, int64_t threads, void *workspace);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kernel kernel;
    Py_ssize_t buffers;
    size_t fixed, per_thread;
    Workspace workspace; /* none yet, or in use: empty */
} Launcher;

extern PyTypeObject LauncherType;

/* 0, or -1 with an exception. */
int launcher_init(void);

/* What was kept, and what shall be: with the GIL. */
Workspace workspace_acquire(Workspace *kept);
void workspace_release(Workspace *kept, Workspace taken);

/* Makes what was taken large enough for a kernel; false: there is no memory. Needs no GIL. */
bool workspace_fits(Workspace *taken, const Launcher *kernel, int64_t threads);

#endif
