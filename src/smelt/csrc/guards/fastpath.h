/* The structures of fast paths, which guards/fastpath_build.c writes and guards/fastpath.c checks. */
#ifndef SMELT_GUARD_FASTPATH_H
#define SMELT_GUARD_FASTPATH_H

#include "guards/guards.h"

typedef struct {
    PyObject *value; /* the local variable that must be in the slot, or NULL */
    Py_ssize_t slot;
} SlotFact;

/* A word of memory that must be as it was: a pointer, a length, a dict's version. The lowest bits of `place` say what
   lies there (but for those bits). */
typedef struct {
    uintptr_t place;
    uint64_t expected;
} WordFact;

enum {
    WHOLE_WORD,
    LOOKUP,    /* a LookupFact instead */
    HALF_WORD, /* of half the size: a class's version */
    WORD_KINDS = 3,
};

/* A dict that is written to all the time must hold this very value under the key; NULL: nothing. */
typedef struct {
    PyObject *dict, *key;
} LookupFact;

typedef struct {
    PyObject *value;
    const TensorSpec *spec;
} TensorFact;

typedef struct {
    PyObject *value;
    Py_ssize_t place;
} Collected;

/* What only asking can tell: one check of a value, or (check NULL) all nodes from `first` to `end` below it. */
typedef struct {
    PyObject *value;
    const Check *check;
    Py_ssize_t first, end;
} Question;

/* An array that grows, with the node each item stands for beside it. */
typedef struct {
    void *items;
    Py_ssize_t *nodes;
    Py_ssize_t count;
} Facts;

/* All pointers to objects are borrowed, and good only as long as the facts before them hold. */
struct FastPath {
    Py_ssize_t users; /* a thread may be on it while another replaces it */
    Facts states;     /* Questions that look at no value: before all else, being cheap and often decisive */
    Facts slots, words, tensors, collected, questions;
};

#endif
