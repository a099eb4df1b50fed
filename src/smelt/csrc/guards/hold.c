/* Evaluates guards: by the fast path if there is one, else by the walk, which builds one from the second time on. */
#include "guards/guards.h"

#include <limits.h>

enum { FEW_PLACES = 64 };

/* Numbers and the like may be one object without anybody being able to tell. */
static bool
is_shared_value(PyObject *value)
{
    return value == Py_None || PyLong_CheckExact(value) || PyBool_Check(value) || PyFloat_CheckExact(value)
           || PyUnicode_CheckExact(value) || PyComplex_CheckExact(value) || PyBytes_CheckExact(value);
}

/* Looks for a value that was seen before, in a table of at least twice as many places. Returns the place of the earlier
   one in `values`, or -1 if this one is new (and now in the table). */
static Py_ssize_t
seen_before(PyObject **values, Py_ssize_t i, Py_ssize_t *table, size_t size)
{
    size_t place = ((uintptr_t)values[i] >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20 & (size - 1);
    for (; table[place]; place = (place + 1) & (size - 1)) {
        if (values[table[place] - 1] == values[i]) {
            return table[place] - 1;
        }
    }
    table[place] = i + 1;
    return -1;
}

/* Two places in `values` with the same object: true. */
static bool
find_same(PyObject **values, Py_ssize_t count, Py_ssize_t *first, Py_ssize_t *second)
{
    Py_ssize_t few[FEW_PLACES] = {0};
    Py_ssize_t *table = few;
    size_t size = 2;
    while (size < 2 * (size_t)count) {
        size *= 2;
    }
    if (size > FEW_PLACES) {
        table = PyMem_Calloc(size, sizeof *table);
        if (table == NULL) {
            *first = *second = 0;
            return true; /* cannot tell: the guard does not hold */
        }
    }
    bool same = false;
    for (Py_ssize_t i = 0; i < count && !same; i++) {
        Py_ssize_t earlier = is_shared_value(values[i]) ? -1 : seen_before(values, i, table, size);
        if (earlier >= 0) {
            *first = earlier;
            *second = i;
            same = true;
        }
    }
    if (table != few) {
        PyMem_Free(table);
    }
    return same;
}

static const Node *
collecting_node(const Guards *guards, Py_ssize_t place)
{
    for (Py_ssize_t i = 0; i < guards->node_count; i++) {
        if (guards->nodes[i].collect && place-- == 0) {
            return &guards->nodes[i];
        }
    }
    return NULL;
}

static bool
all_distinct(const Guards *guards, PyObject **collected, GuardFailure *failure)
{
    Py_ssize_t first, second;
    if (!find_same(collected, guards->collected, &first, &second)) {
        return true;
    }
    if (failure) {
        *failure = (GuardFailure){.node = collecting_node(guards, first), .same = collecting_node(guards, second)};
    }
    return false;
}

static void
give_up(PyObject **collected, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(collected[i]);
    }
}

enum { PASSES_BEFORE_FASTPATH = 2 };

/* All held: from the second time on it is worth remembering why. `stale` is the node whose change made the fast path
   there was useless, or -1. */
static void
remember(Guards *guards, const GuardSource *source, Py_ssize_t stale)
{
    if (guards->passes < PASSES_BEFORE_FASTPATH) {
        guards->passes++;
    }
    if (stale >= 0 && guards->nodes[stale].changes < UCHAR_MAX) {
        guards->nodes[stale].changes++;
    }
    if (guards->passes == PASSES_BEFORE_FASTPATH && (stale >= 0 || guards->fastpath == NULL)) {
        FastPath *fastpath = fastpath_build(guards, source);
        FastPath *old = guards->fastpath; /* not before: making one may have run a finalizer that came here too */
        guards->fastpath = fastpath;
        fastpath_drop(old);
    }
}

/* With the guards held by the caller. `count` is the number of places in `collected`. */
static bool
hold(Guards *guards, const GuardSource *source, PyObject **collected, Py_ssize_t count, GuardFailure *failure)
{
    Py_ssize_t stale = -1;
    if (guards->fastpath && failure == NULL) {
        FastPathAnswer answer = fastpath_follow(guards, source, collected, &stale);
        if (answer != FASTPATH_STALE) {
            return answer == FASTPATH_HOLDS;
        }
        give_up(collected, count);
    }
    if (!walk_nodes(guards, 0, guards->node_count, source, NULL, collected, failure)) {
        return false;
    }
    if (failure == NULL && guards->roots) {
        remember(guards, source, stale);
    }
    return true;
}

bool
guards_hold(Guards *guards, const GuardSource *source, PyObject **collected, GuardFailure *failure)
{
    if (guards->roots == NULL) {
        return guard_failed(failure, NULL, NULL, NULL);
    }
    Py_ssize_t count = guards->collected;
    for (Py_ssize_t i = 0; i < count; i++) {
        collected[i] = NULL;
    }
    Py_INCREF(guards); /* user code may drop the last other reference */
    bool holds = hold(guards, source, collected, count, failure);
    if (holds && guards->distinct) {
        holds = all_distinct(guards, collected, failure);
    }
    if (holds && guards->sizes && !size_facts_hold(guards->sizes, collected)) {
        holds = false;
        if (failure) {
            failure->text = size_facts_explain(guards->sizes, collected);
        }
    }
    if (!holds) {
        give_up(collected, count);
    }
    Py_DECREF(guards);
    return holds;
}
