/* Launcher: a compiled kernel as a Python callable. */
#ifndef SMELT_LAUNCHER_H
#define SMELT_LAUNCHER_H

#include <Python.h>

extern PyTypeObject LauncherType;

/* 0, or -1 with an exception. */
int launcher_init(void);

#endif
