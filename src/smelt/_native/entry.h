/* Entry: one compiled version of a frame. */
#ifndef SMELT_ENTRY_H
#define SMELT_ENTRY_H

#include <Python.h>
#include "guards.h"

typedef struct {
    PyObject_HEAD
    Guards *guards; /* NULL, like run, only once the collector has cleared the entry */
    PyObject *run;
    long long hits;
} Entry;

extern PyTypeObject EntryType;

#endif
