/* Builds a Runner: binds a flat program (executor/table.c) to the objects it refers to and the functions it calls. */
#include "gpu/replay.h"

#include "runner/dynamic/sizes.h"
#include "runner/small_matmul.h"

enum { MOST_RETURNED = 1 << 16 }; /* tensors, by one call */

static void
at_least(int *most, int64_t wanted)
{
    *most = wanted > *most ? (int)wanted : *most;
}

/* --- kernels and calls ------------------------------------------------------------------------ */

static int
bind_launch(Runner *self, const LaunchRecord *launch)
{
    const KernelRecord *kernel = &self->table.kernels[launch->kernel];
    const AnyLauncher *launcher = launcher_at(self, launch);
    if (launcher && launcher->buffers != kernel->buffers) {
        PyErr_Format(PyExc_ValueError, "Runner: the code of %s takes %zd buffers, and gets %lld",
                     table_string(&self->table, kernel->name), launcher->buffers, (long long)kernel->buffers);
        return -1;
    }
    at_least(&self->most_buffers, launch->value_count);
    return 0;
}

/* Stays without a way to call it, where the interface has it not. */
static int
bind_native(Runner *self, const CallRecord *call)
{
    const Table *table = &self->table;
    const NativeRecord *record = &table->natives[call->native];
    const bool by_dispatcher = record->overload >= 0;
    NativeCall native = {
        .function = by_dispatcher ? NULL : library_function(table_string(table, record->name)),
        .name = table_string(table, record->name),
        .overload = by_dispatcher ? table_string(table, record->overload) : NULL,
        .code_count = (int)record->code_count,
        .tensor_count = (int)record->tensor_count,
        .texts = record->texts,
        .text_count = record->text_count,
        .returns = (int)record->returns,
    };
    native.is_known = by_dispatcher ? library.call_dispatcher != NULL : native.function != NULL;
    if (!native.is_known) {
        return 0;
    }
    const int64_t *numbers = &table->numbers->number;
    if (record->returns < -1 || record->returns > MOST_RETURNED || (!by_dispatcher && call->result_count)
        || !native_call_fits(&native, numbers + record->code)) {
        PyErr_Format(PyExc_ValueError, "Runner: this is not how %s is called", native.name);
        return -1;
    }
    if (record->product_count && !product_fits(numbers + record->product, record->product_count, record->tensor_count)) {
        PyErr_Format(PyExc_ValueError, "Runner: these numbers describe no product of %s", native.name);
        return -1;
    }
    at_least(&self->most_tensors, record->tensor_count);
    at_least(&self->most_tensors, native.stack);
    at_least(&self->most_tensors, call->result_count);
    self->natives[call->native] = native;
    return 0;
}

static int
bind_call(Runner *self, const CallRecord *call)
{
    PyObject *names = PyTuple_GET_ITEM(self->objects, call->names);
    bool fits = PyTuple_CheckExact(names) && PyTuple_GET_SIZE(names) <= call->argument_count
                && (!call->is_one || call->result_count == 1);
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(names); i++) {
        fits = PyUnicode_CheckExact(PyTuple_GET_ITEM(names, i));
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "Runner: a call with more names than arguments, or one result that is not one");
        return -1;
    }
    return call->native < 0 ? 0 : bind_native(self, call);
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool
needs_python(const Runner *self, const StepRecord *step)
{
    const Table *table = &self->table;
    switch (step->kind) {
    case ALLOCATE_STEP:
        return table->dtypes[table->tensors[step->place].dtype].code < 0
               || table->devices[table->tensors[step->place].device].kind < 0;
    case LAUNCH_STEP:
        return launcher_at(self, &table->launches[step->place]) == NULL;
    case CALL_STEP:
        return table->calls[step->place].unless < 0 && native_at(self, &table->calls[step->place]) == NULL;
    default:
        return false;
    }
}

static int
bind_step(Runner *self, const StepRecord *step)
{
    const Table *table = &self->table;
    const CallRecord *call = step->kind == CALL_STEP ? &table->calls[step->place] : NULL;
    if (step->kind == LAUNCH_STEP && bind_launch(self, &table->launches[step->place]) < 0) {
        return -1;
    }
    if (call && bind_call(self, call) < 0) {
        return -1;
    }
    const bool python = needs_python(self, step);
    self->python_steps += python;
    self->has_launches = self->has_launches || step->kind == LAUNCH_STEP;
    bool works = step->kind == LAUNCH_STEP
                 || (call && native_at(self, call) && table->natives[call->native].product_count == 0);
    self->has_native_work = self->has_native_work || (works && !python);
    return 0;
}

/* Inputs that a step drops. */
static int
find_consumed(Runner *self)
{
    const Table *table = &self->table;
    self->consumed = PyMem_Calloc((size_t)table->programs->inputs + 1, sizeof(bool));
    if (self->consumed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < table->counts[DROPS]; i++) {
        const DropRecord *drop = &table->drops[i];
        for (int64_t k = 0; k < drop->value_count; k++) {
            int64_t value = table->references[drop->values + k].number;
            if (value < table->programs->inputs) {
                self->consumed[value] = true;
            }
        }
    }
    return 0;
}

static int
bind(Runner *self, PyObject *sizes)
{
    smelt_error error;
    if (smelt_table_read(&self->table, PyBytes_AS_STRING(self->table_bytes), PyBytes_GET_SIZE(self->table_bytes),
                         PyTuple_GET_SIZE(self->objects), &error)) {
        PyErr_SetString(PyExc_ValueError, error.message);
        return -1;
    }
    if (self->table.counts[PROGRAMS] == 0) {
        PyErr_SetString(PyExc_ValueError, "this is no program: its table is one of an artifact's");
        return -1;
    }
    self->natives = PyMem_Calloc((size_t)self->table.counts[NATIVES] + 1, sizeof(NativeCall));
    if (self->natives == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < self->table.counts[STEPS]; i++) {
        if (bind_step(self, &self->table.steps[i]) < 0) {
            return -1;
        }
    }
    if (self->table.programs->consuming && find_consumed(self) < 0) {
        return -1;
    }
    if (sizes != Py_None && (self->sizes = program_sizes_make(sizes, &self->table)) == NULL) {
        return -1;
    }
    self->replay = self->recorder == Py_None ? NULL : replay_new(self, &self->why_no_graphs);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *
runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"table", "objects", "threads", "acquire", "release", "allocate", "view", "fit", "watchers",
                            "recorder", "sizes", NULL};
    Runner parsed = {.recorder = Py_None};
    PyObject *sizes = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOOOOOO!|OO:Runner", names, &PyBytes_Type, &parsed.table_bytes,
                                     &PyTuple_Type, &parsed.objects, &parsed.threads, &parsed.acquire, &parsed.release,
                                     &parsed.allocate, &parsed.view, &parsed.fit, &PyTuple_Type, &parsed.watchers,
                                     &parsed.recorder, &sizes)) {
        return NULL;
    }
    Runner *self = (Runner *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
#define KEEP(name) self->name = Py_NewRef(parsed.name);
    KEEP(table_bytes)
    RUNNER_OBJECTS(KEEP)
    self->vectorcall = runner_call;
    if (bind(self, sizes) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}
