/* Runner: a whole program as one call. Its steps as C structs, made once (runner/make.c), run many times (runner/runner.c).

   A program works on values: tensors, by number. The first are the inputs, then the constants, then what the arena
   lends for the time of a call, then what steps make. All sizes, strides and offsets lie in one array of numbers, which
   structs refer to by position: a call could bring an array of its own, for a program whose sizes differ. */
#ifndef SMELT_PROGRAM_H
#define SMELT_PROGRAM_H

#include <Python.h>
#include <stdbool.h>
#include "runner/launcher.h"
#include "runner/native_call.h"

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
    int32_t code; /* the dtype's number in PyTorch's C interface, -1 if unknown */
} Result;

typedef struct {
    enum { ALLOCATE, LAUNCH, CALL, DROP } kind;
    /* ALLOCATE: `value` becomes a new tensor; LAUNCH: `function` is a launcher, or any callable(threads, *tensors) */
    int value;
    Shape shape;
    PyObject *dtype, *device;
    int32_t code; /* the dtype's number in PyTorch's C interface, -1 if unknown */
    int32_t device_type, device_index; /* the device's numbers there */
    PyObject *function;
    int first, count; /* items: arguments (those with names last), or values to be dropped */
    /* CALL */
    PyObject *names;
    int results, result_count;
    bool is_one; /* the call yields its result, not a sequence of results */
    bool is_native; /* false: only Python can make this call */
    NativeCall native;
    int unless; /* a value, one bool: the call is made to raise, and only if it is false; -1: it is made */
    int product; /* where the numbers lie of a product that is made without a call (runner/small_matmul.h), -1: it is no such one */
    double factors[2]; /* of that product */
} Step;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *dict;
    /* Owners of every object that the structs below point to. */
    PyObject *given_steps, *given_outputs, *constants;
    PyObject *allocate, *view, *fit; /* what Python does where the C interface does not: see _native.pyi */
    PyObject *acquire, *release;     /* the arena; None if the program needs none */
    PyObject *threads;
    PyObject *watchers; /* callables: if one yields something true, Python makes every call itself */
    int inputs, constant_count, arena, values;
    bool consuming;
    int64_t *numbers;
    Item *items;
    Result *results;
    Step *steps;
    const char **texts;
    int number_count, item_count, result_count, step_count, text_count;
    int output; /* the item that makes the result */
    int most_buffers; /* of a kernel */
    int most_tensors; /* that a native call takes, as arguments or on its stack, or returns */
    int python_steps; /* how many Python must do */
    bool has_launches, has_native_work; /* kernels; kernels or native calls */
    bool *consumed; /* which inputs a step drops; NULL: not a consuming program */
    int64_t acquisitions; /* how often the GIL was acquired between two steps, in all calls */
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
