/* Region: everything compiled for one `smelt.compile`, found by code object. The hook and the Python type build on
   this. */
#ifndef SMELT_ENTRY_TABLE_H
#define SMELT_ENTRY_TABLE_H

#include <Python.h>
#include <stdbool.h>
#include "frame/entry.h"

/* What becomes of the frames of a code object. */
typedef enum {
    FRAME_ASKED, /* the entries are tried, then `missed` is asked */
    FRAME_NEVER, /* CPython evaluates it; what it calls is asked about */
    FRAME_ALONE, /* CPython evaluates it with no region active, and so all that it calls */
} FrameTreatment;

/* What is known of one code object. */
typedef struct {
    PyCodeObject *code; /* NULL: a free place in the table */
    PyObject *entries;  /* a tuple, replaced as a whole when an entry is added; NULL: none yet */
    FrameTreatment treatment;
} CodeRecord;

typedef struct Region {
    PyObject_HEAD
    PyObject *missed; /* NULL only once the collector has cleared the region */
    PyObject *weakrefs;
    CodeRecord *table; /* open addressing by identity: comparing code objects by value is slow */
    size_t size;       /* of the table: zero or a power of two */
    size_t used;
    long long pieces; /* how often a frame was looked up, or a plan stopped at a break: 1 for a call that is one graph */
    bool scattered;   /* a call was more or less than one piece */
} Region;

/* What becomes of frames of `code`. */
FrameTreatment region_treatment(Region *region, PyCodeObject *code);

/* What becomes of frames of `code`; if they are asked about, also its entries (new reference, NULL: none). */
FrameTreatment region_find(Region *region, PyCodeObject *code, PyObject **entries);

/* Appends the entry unless it is there already. -1 with an exception if out of memory. */
int region_add(Region *region, PyCodeObject *code, Entry *entry);

/* What is known of `code`; NULL: nothing yet. */
CodeRecord *region_find_record(Region *region, PyCodeObject *code);

/* The same, made if it is not there; NULL with an exception if out of memory. */
CodeRecord *region_find_or_make_record(Region *region, PyCodeObject *code);

#endif
