/* Records lazy tensors in C: a call that was recorded before runs no Python (lazy/recorder.py handles the others).

   A recording walks a tree of steps. The key of a step is a tuple: the operator, then a code per argument, then names
   and codes. A tensor's code is the `Ref` of its value. A number's code is its type (the number is an operand). Any
   other argument is its own code, or a pair where Python's equality is too coarse (1 and True, 0.0 and -0.0). */
#ifndef SMELT_LAZY_H
#define SMELT_LAZY_H

#include "lazy/device_memory.h"

#include <stdint.h>

/* How a tensor is laid out over its storage: the tuple (shape, strides, offset, dtype), and its words. */
typedef struct {
    PyObject_VAR_HEAD
    PyObject *parts;
    PyObject *shape, *dtype; /* borrowed from it */
    int64_t rank, offset, bytes;
    bool is_as_created;
    int64_t words[]; /* sizes, strides */
} StridedLayout;

struct Recording;

typedef struct {
    StridedLayout *layout;
    int64_t value;
} SeenView;

/* One storage: see lazy/memory.py. */
typedef struct {
    DeviceMemory base;
    StridedLayout *whole;
    PyObject *real, *lost; /* NULL: None */
    int64_t serial;        /* of the recording that its views are values of */
    SeenView *views; /* `first`, until there are more */
    SeenView first;
    int count, capacity;
    struct Recording *in; /* the recording that has it in its table, if any, */
    int64_t place;        /* and where */
} LazyMemory;

/* What was recorded since the last run. */
typedef struct Recording {
    PyObject_HEAD
    PyObject *step, *numbers, *inputs;
    int64_t serial, count, bytes;
    LazyMemory **living; /* by value: memories that are new in this recording, borrowed; NULL where one died */
    int64_t length;
    unsigned long thread; /* that began it */
    uint64_t first_node;  /* the number of the next node of autograd's graph when it began */
    uint64_t trail;       /* between which recorded calls nodes were made, as a hash; */
    bool is_trail_lost;   /* not known: other threads recorded too, or PyTorch does not say */
} Recording;

typedef enum { FRESH_RESULT, VIEW_RESULT, SAME_RESULT, NO_RESULT } ResultKind;

typedef struct {
    ResultKind kind;
    StridedLayout *layout; /* of FRESH and VIEW */
    Py_ssize_t position;   /* of the argument that it is, or is a view of; -1: it has a name, */
    PyObject *name;        /* this, borrowed from `results`; NULL with -1: neither, Python finds it */
} StepResult;

/* One recorded call or input: see lazy/steps.py. */
typedef struct Step {
    PyObject_HEAD
    PyObject *before, *operator, *args, *kwargs, *results, *form, *layout, *line, *programs, *launch, *constants, *after;
    PyObject *backwards; /* NULL: None */
    int64_t first_value, values, numbers;
    PyObject *last_key; /* of the step that followed the last time, */
    struct Step *last;  /* and the step; NULL: none yet */
    StepResult *outputs; /* `results` for C; NULL: not read yet */
    Py_ssize_t output_count;
} Step;

typedef enum { TENSOR_KIND, NUMBER_KIND, LITERAL_KIND, DEVICE_KIND } ArgumentKind;

/* One overload, as recording needs it: see dispatch/signatures.py. */
typedef struct {
    PyObject_HEAD
    PyObject *known; /* its Signature */
    PyObject *names, *kinds;
    bool writes, is_view;
    PyObject *zero;           /* the argument that must be 0.0, else it draws random numbers; NULL: none, */
    Py_ssize_t zero_position; /* and its position */
} RecordedOperator;

/* A lock that its thread may take again, and that C takes without a call. */
typedef struct {
    PyObject_HEAD
    unsigned long thread; /* that has it */
    int64_t depth;        /* how often; 0: nobody has it */
    PyThread_type_lock gate; /* locked but when somebody who waits is to look again */
    int64_t waiting;
    bool is_open;
} RecordingLock;

/* What records calls: the base of `Recorder` in lazy/recorder.py, whose methods do what is rare. */
typedef struct {
    PyObject_HEAD
    PyObject *now, *refs;
    RecordingLock *lock;
    PyObject *tensor_class, *memory_class;
    PyObject *create;   /* makes a tensor of the device, of a shape and a dtype; None: Python has to */
    PyObject *declined; /* errors that mean that a call cannot be recorded */
    int64_t most_operators, most_bytes;
} LazyRecorder;

extern PyTypeObject StridedLayoutType, LazyMemoryType, RecordingType, StepType, RecordedOperatorType, LazyRecorderType,
    LazyKernelType, LazyLaunchType, LazyBackwardType, RecordingLockType;

/* All return a new reference, or NULL with an exception, unless they say otherwise. */
StridedLayout *strided_layout(PyObject *parts);

LazyMemory *lazy_memory_new(PyTypeObject *type, StridedLayout *whole);
/* Let memory be a value of a recording, and forget what it was in others. */
int lazy_memory_enter(LazyMemory *memory, int64_t serial, int64_t value);
int lazy_memory_see(LazyMemory *memory, StridedLayout *layout, int64_t value);

int recording_watch(Recording *recording, int64_t value, LazyMemory *memory);
/* A call was recorded. */
void recording_note(Recording *recording);
PyObject *watch_nodes(PyObject *module, PyObject *args);
PyObject *saved_values(PyObject *module, PyObject *args); /* lazy/saved_values.c */

/* The step that follows for a key; NULL without an exception: none does. Borrowed. */
Step *step_after(Step *step, PyObject *const *key, Py_ssize_t count);
int step_read_results(Step *step);

/* The value of a tensor of the recording, and its memory; -1: Python has to find it; -2: an exception. */
int64_t known_value(LazyRecorder *recorder, PyObject *tensor);

/* The same for a tensor whose memory is part of the recording; -1 for all others. */
int64_t recorded_value(LazyRecorder *recorder, PyObject *tensor);

/* The memory of a plain tensor with this dtype, borrowed, and where in it the tensor begins; NULL: Python looks. */
LazyMemory *plain_memory(LazyRecorder *recorder, PyObject *tensor, PyObject *dtype, int64_t *offset);

/* Whether two numbers are of one type and one value; -0.0 is not 0.0. False too where that is not clear. */
bool is_same_number(PyObject *one, PyObject *other);

/* A tensor over memory of its own, and one over the storage of another (NULL with or without an exception: not this way). */
PyObject *new_tensor(LazyRecorder *recorder, LazyMemory *memory);
PyObject *view_of(PyObject *tensor, const StridedLayout *layout, int64_t offset);

/* What a recorded call returns. */
PyObject *step_results(LazyRecorder *recorder, Step *step, PyObject *args, PyObject *kwargs);

PyObject *record_call(LazyRecorder *recorder, RecordedOperator *operator, PyObject *args, PyObject *kwargs);

/* -1 with an exception: a signal came first. */
int recording_lock_acquire(RecordingLock *lock);
void recording_lock_release(RecordingLock *lock);

int recorder_init(void);
int lazy_backward_init(void);

#endif
