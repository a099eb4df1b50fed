/* One running call of a program: its values, and whether it holds the GIL. */
#ifndef SMELT_RUN_H
#define SMELT_RUN_H

#include "runner/program.h"
#include "executor/cuda_driver.h"

#include <string.h>

/* The double that a word has the bits of. */
static inline double
double_of(int64_t bits)
{
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* How a value is looked at: `rank` sizes, as many strides, and an offset in elements from where the value begins. */
typedef struct {
    int64_t rank;
    int64_t numbers; /* where those are among the numbers of the program */
} Shape;

static inline Shape
shape_of_value(const TensorRecord *value)
{
    return (Shape){.rank = value->rank, .numbers = value->numbers};
}

/* Of an item that is a view. */
static inline Shape
shape_of_item(const ItemRecord *item)
{
    return (Shape){.rank = item->length, .numbers = item->numbers};
}

/* A tensor: as a Python object, as a handle, or both; then the handle is that of the object's own tensor. */
typedef struct {
    PyObject *object;
    Handle handle;
    void *data; /* once somebody asked */
    bool owns_object, owns_handle;
    bool is_shared; /* the object has other owners: it is not dropped before the end, which would free nothing */
} Value;

/* Whether the GPU waits for the host, as events say that are recorded between steps (gpu/replay.c). */
typedef struct {
    const CudaDriver *driver;
    CudaContext context;
    CudaStream stream;
    CudaEvent event; /* NULL: nobody asks */
    int64_t every, work, waits; /* launches and calls from one event to the next; done so far; how often it waited */
} ReplayProbe;

/* One call of a program. */
typedef struct {
    Runner *program;
    const Table *table;
    const int64_t *numbers;
    Value *values;
    void **pointers; /* room for the buffers of a kernel */
    Handle *handles, *temporary; /* room for the tensors of a native call, and for views among them or what it returns */
    uint64_t *stack; /* room for what the dispatcher is given */
    PyObject *arena;
    PyThreadState *thread; /* not NULL: the GIL is released */
    Workspace workspace;
    int64_t threads; /* 0: not asked yet */
    bool native;     /* whether handles may be used */
    int64_t step;    /* the one at work, -1: none yet */
    int64_t held;    /* the value, plus one, that was found true since the last kernel; 0: none */
    GraphRecording *recording; /* steps become part of a CUDA graph; NULL: of none */
    ReplayProbe probe;
    int64_t settings; /* of PyTorch, as a number that a recorded graph must have been recorded with */
    PyObject *clock; /* of a device, in a call that is timed; NULL: the host's will do */
    int64_t *taken, since; /* by the host's clock: nanoseconds of each step that was timed, and when the last ended */
} Run;

static inline void
release_gil(Run *run)
{
    if (run->thread == NULL) {
        run->thread = PyEval_SaveThread();
    }
}

/* After the last step: it is not counted. */
static inline void
come_back(Run *run)
{
    if (run->thread) {
        PyEval_RestoreThread(run->thread);
        run->thread = NULL;
    }
}

static inline void
acquire_gil(Run *run)
{
    if (run->thread) {
        come_back(run);
        run->program->acquisitions++;
    }
}

/* --- values (runner/values.c) -------------------------------------------------------------------- */

void set_object(Run *run, Value *value, PyObject *object, bool owned);

/* The GIL is acquired only if it must be. */
void drop_value(Run *run, Value *value);

/* Steals the handle. A new reference, or NULL with an exception. With the GIL. */
PyObject *wrapped(Handle handle);

/* The object of a value. Borrowed, or NULL with an exception; with the GIL. */
PyObject *object_of(Run *run, Value *value);

/* Where a tensor's first element is. 0, or -1 with an exception. */
int data_of(Run *run, Value *value, void **data);

/* The number of the GPU that a tensor is on, -1: on none. 0, or -1 with an exception. */
int device_of(Run *run, Value *value, int32_t *device);

/* What the one bool of a tensor says, wherever the tensor is: 1, 0, or -1 with an exception. */
int is_true(Run *run, Value *value);

/* A new handle on a view. Not 0: an error without words. */
int32_t view_handle(const Run *run, Handle handle, Shape shape, Handle *view);

/* What an item stands for, as an object. What leaves the program is a view to PyTorch too, and made by it. A new
   reference, or NULL with an exception. With the GIL. */
PyObject *object_made(Run *run, const ItemRecord *item, bool leaves);

/* --- steps (runner/steps.c) ----------------------------------------------------------------------- */

/* How many threads kernels are to use, asked once a call. 0, or -1 with an exception. */
int ask_threads(Run *run);

/* The steps from `first` to before `end`, with a call of `after` after each, if it is not NULL. 0, or -1 with an exception
   and the GIL. */
int run_steps(Run *run, int64_t first, int64_t end, int (*after)(void *run));

/* An allocation, and a call of an operator; nothing where there are results already. Each 0, or -1 with an exception and
   the GIL. */
int allocate_value(Run *run, int64_t place);
int call_operator(Run *run, const CallRecord *call);

/* --- a call (runner/runner.c) ---------------------------------------------------------------------- */

/* The bytes that a run works in, and a run in them. */
size_t bytes_of_run(const Runner *program);
Run run_in(Runner *program, char *room);

/* The inputs among the arguments of a call, and the list that they lie in, NULL if they lie in none. With an exception:
   they do not fit. */
PyObject *const *inputs_of_call(Runner *program, PyObject *const *args, Py_ssize_t count, PyObject **list);

/* Begins a run, empties the list; may release the GIL. Steps, as `run_steps`, but timed if the program's are. Drops all
   values and releases the arena, with the GIL, whatever exception there is: `status`, or -1. */
int begin_run(Run *run, PyObject *const *inputs, PyObject *list);
int run_until(Run *run, int64_t first, int64_t end);
int end_run(Run *run, int status);

/* Before the first step of a run that launches no CUDA graph. */
void go_on_by_steps(Run *run);

#endif
