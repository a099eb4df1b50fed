/* Runner: a whole program as one call. Its steps as C structs, made once (runner/make.c), run many times (runner/runner.c).

   A program works on values: tensors, by number. The first are the inputs, then the constants, then what the arena
   lends for the time of a call, then what steps make. All sizes, strides and offsets lie in one array of numbers, which
   structs refer to by position: a call could bring an array of its own, for a program whose sizes differ. */
#ifndef SMELT_RUNNER_H
#define SMELT_RUNNER_H

#include <Python.h>
#include <stdbool.h>
#include "runner/launcher.h"
#include "runner/aoti_library.h"

/* How a value is looked at: `rank` sizes, as many strides, and an offset in elements from where the value begins. */
typedef struct {
    int rank;
    int numbers; /* where those lie; -1: the value is meant as it is */
} Shape;

/* A part of an argument list or of the results: an object, a value or a view of one, or a sequence of items. */
typedef struct {
    enum { CONSTANT, VALUE, TUPLE, LIST } kind;
    PyObject *object; /* CONSTANT */
    int value;        /* VALUE */
    Shape shape;
    int first, count; /* TUPLE, LIST: these items */
} Item;

/* What a call yields: the value it becomes (-1: nobody reads it), the layout and dtype promised of it, and its name. */
typedef struct {
    int value;
    Shape shape;
    PyObject *dtype, *name;
} Result;

typedef struct {
    enum { ALLOCATE, LAUNCH, CALL, DROP } kind;
    /* ALLOCATE: `value` becomes a new tensor; LAUNCH: `function` is a Launcher, or any callable(threads, *tensors) */
    int value;
    Shape shape;
    PyObject *dtype, *device;
    int32_t code; /* the dtype's number in PyTorch's C interface, -1 if unknown */
    PyObject *function;
    int first, count; /* items: arguments (those with names last), or values to be dropped */
    /* CALL */
    PyObject *names;
    int results, result_count;
    bool is_one; /* the call yields its result, not a sequence of results */
    const LibraryCall *native; /* NULL: only Python can make this call */
    int tensors; /* items of the native call */
    int unless; /* a value, one bool: the call is made to raise, and only if it is false; -1: it is made */
    double numbers[MOST_NUMBERS];
    int product; /* where the numbers lie of a product that is made without a call (runner/small_matmul.h), -1: it is no such one */
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict;
    /* Owners of every object that the structs below point to. */
    PyObject *given_steps, *given_outputs, *constants;
    PyObject *allocate, *view, *fit; /* what Python does where the C interface does not: see _native.pyi */
    PyObject *take, *give;           /* the arena; None if the program needs none */
    PyObject *threads;
    PyObject *watchers; /* callables: if one yields something true, Python makes every call itself */
    int inputs, constant_count, arena, values;
    bool consuming;
    int64_t *numbers;
    Item *items;
    Result *results;
    Step *steps;
    int number_count, item_count, result_count, step_count;
    int output; /* the item that makes the result */
    int most_buffers; /* of a kernel */
    Workspace workspace;
    int64_t *taken; /* nanoseconds per step, over `timed_calls` calls; NULL: nobody asks */
    int64_t timed_calls;
} Runner;

extern PyTypeObject RunnerType;

/* 0, or -1 with an exception. */
int runner_init(void);

/* `count` numbers as a tuple. */
PyObject *tuple_of(const int64_t *numbers, int count);

PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
PyObject *runner_call(PyObject *self, PyObject *const *args, size_t flagged_count, PyObject *names);

#endif
