/* Sizes of programs with dynamic shapes: facts checked and numbers filled in at each call.

   Symbols are what is read from the inputs: sizes and strides. Facts and numbers are expressions over them
   (executor/expression.h). Behind the numbers of the table are those of constants that kernels read sizes from. */
#include "runner/dynamic/sizes.h"

#include "executor/expression.h"
#include "guards/guards.h"

enum { MOST_SYMBOLS = 1024 };

typedef struct {
    Py_ssize_t input, dimension;
    int is_stride;
} Reading;

typedef struct {
    const int64_t *code;
    int64_t count;
    PyObject *places; /* among the numbers, where the value goes; NULL: it is a fact */
} Formula;

typedef struct {
    Py_ssize_t value, number;
} SizedConstant;

struct ProgramSizes {
    PyObject *spec; /* owned: formulas point into it */
    Py_ssize_t reading_count, fact_count, fill_count, constant_count, view_count, extra;
    Reading *readings;
    Formula *facts, *fills;
    SizedConstant *constants;
    Py_ssize_t *views;
};

/* --- building --------------------------------------------------------------------------------- */

static int
refused(const char *what)
{
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "Runner: sizes with %s that the program does not have", what);
    }
    return -1;
}

static int
take_reading(Reading *reading, PyObject *spec, const Table *table)
{
    if (!PyTuple_Check(spec)
        || !PyArg_ParseTuple(spec, "npn", &reading->input, &reading->is_stride, &reading->dimension)
        || reading->input < 0 || reading->input >= table->programs->inputs || reading->dimension < 0
        || reading->dimension >= table->tensors[reading->input].rank) {
        return refused("an input");
    }
    return 0;
}

static int
take_code(Formula *formula, PyObject *code, Py_ssize_t symbols)
{
    int64_t needed;
    if (!PyBytes_Check(code) || PyBytes_GET_SIZE(code) % (2 * (Py_ssize_t)sizeof(int64_t))) {
        return refused("code");
    }
    formula->code = (const int64_t *)(const void *)PyBytes_AS_STRING(code);
    formula->count = PyBytes_GET_SIZE(code) / (2 * (Py_ssize_t)sizeof(int64_t));
    bool holds = smelt_expression_holds(formula->code, formula->count, &needed) && needed <= symbols;
    return holds ? 0 : refused("an expression");
}

/* Numbers of a product are checked when a Runner is made, so they may not change. */
static bool
is_of_product(const Table *table, Py_ssize_t place)
{
    for (int64_t i = 0; i < table->counts[NATIVES]; i++) {
        const NativeRecord *native = &table->natives[i];
        if (place >= native->product && place < native->product + native->product_count) {
            return true;
        }
    }
    return false;
}

static int
take_fill(Formula *fill, PyObject *spec, Py_ssize_t symbols, Py_ssize_t numbers, const Table *table)
{
    PyObject *code;
    if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "OO!", &code, &PyTuple_Type, &fill->places)
        || take_code(fill, code, symbols) < 0) {
        return refused("a number");
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fill->places); i++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(fill->places, i));
        if (place < 0 || place >= numbers || is_of_product(table, place)) {
            return refused("a number");
        }
    }
    return 0;
}

static int
take_constant(SizedConstant *constant, PyObject *spec, Py_ssize_t numbers, const Table *table)
{
    const ProgramRecord *program = table->programs;
    bool fits = PyTuple_Check(spec) && PyArg_ParseTuple(spec, "nn", &constant->value, &constant->number)
                && constant->value >= program->inputs && constant->value < program->inputs + program->constants
                && constant->number >= 0;
    if (!fits) {
        return refused("a constant");
    }
    const TensorRecord *tensor = &table->tensors[constant->value];
    int64_t count = tensor->rank == 1 ? table->numbers[tensor->numbers].number : -1;
    return count >= 0 && count <= numbers - constant->number ? 0 : refused("a constant");
}

static int
take_view(Py_ssize_t *view, PyObject *spec, const Table *table)
{
    const int64_t count = table->counts[TENSORS];
    *view = PyLong_AsSsize_t(spec);
    return *view >= count - table->programs->arena && *view < count ? 0 : refused("a view");
}

static void *
room_for(PyObject *tuple, size_t item)
{
    void *room = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, item);
    return room ? room : PyErr_NoMemory();
}

static int
take_parts(ProgramSizes *sizes, const Table *table)
{
    PyObject *readings, *facts, *fills, *constants, *views;
    if (!PyTuple_Check(sizes->spec)
        || !PyArg_ParseTuple(sizes->spec, "O!O!O!O!O!n", &PyTuple_Type, &readings, &PyTuple_Type, &facts, &PyTuple_Type,
                             &fills, &PyTuple_Type, &constants, &PyTuple_Type, &views, &sizes->extra)
        || sizes->extra < 0 || PyTuple_GET_SIZE(readings) > MOST_SYMBOLS
        || (sizes->readings = room_for(readings, sizeof(Reading))) == NULL
        || (sizes->facts = room_for(facts, sizeof(Formula))) == NULL
        || (sizes->fills = room_for(fills, sizeof(Formula))) == NULL
        || (sizes->constants = room_for(constants, sizeof(SizedConstant))) == NULL
        || (sizes->views = room_for(views, sizeof(Py_ssize_t))) == NULL) {
        return refused("parts");
    }
    const Py_ssize_t numbers = table->counts[NUMBERS] + sizes->extra, symbols = PyTuple_GET_SIZE(readings);
#define TAKE_ALL(name, ...)                                                                                            \
    for (; sizes->name##_count < PyTuple_GET_SIZE(name##s); sizes->name##_count++) {                                   \
        if (take_##name(&sizes->name##s[sizes->name##_count], PyTuple_GET_ITEM(name##s, sizes->name##_count),          \
                        __VA_ARGS__) < 0) {                                                                            \
            return -1;                                                                                                 \
        }                                                                                                              \
    }
#define take_fact take_code
    TAKE_ALL(reading, table)
    TAKE_ALL(fact, symbols)
    TAKE_ALL(fill, symbols, numbers, table)
    TAKE_ALL(constant, numbers, table)
    TAKE_ALL(view, table)
    return 0;
}

ProgramSizes *
program_sizes_make(PyObject *spec, const Table *table)
{
    ProgramSizes *sizes = PyMem_Calloc(1, sizeof(ProgramSizes));
    if (sizes == NULL) {
        return (ProgramSizes *)PyErr_NoMemory();
    }
    sizes->spec = Py_NewRef(spec);
    if (take_parts(sizes, table) < 0) {
        program_sizes_drop(sizes);
        return NULL;
    }
    return sizes;
}

void
program_sizes_drop(ProgramSizes *sizes)
{
    if (sizes) {
        PyMem_Free(sizes->readings);
        PyMem_Free(sizes->facts);
        PyMem_Free(sizes->fills);
        PyMem_Free(sizes->constants);
        PyMem_Free(sizes->views);
        Py_XDECREF(sizes->spec);
        PyMem_Free(sizes);
    }
}

/* --- a call ------------------------------------------------------------------------------------ */

size_t
program_sizes_bytes(const ProgramSizes *sizes, const Table *table)
{
    return sizes ? (size_t)(table->counts[NUMBERS] + sizes->extra) * sizeof(int64_t) : 0;
}

bool
program_sizes_fill(const ProgramSizes *sizes, const Table *table, PyObject *const *inputs, int64_t *room)
{
    int64_t symbols[MOST_SYMBOLS], value;
    for (Py_ssize_t i = 0; i < sizes->reading_count; i++) {
        const Reading *reading = &sizes->readings[i];
        if (!tensor_size(inputs[reading->input], reading->is_stride, reading->dimension, &symbols[i])) {
            return false;
        }
    }
    for (Py_ssize_t i = 0; i < sizes->fact_count; i++) {
        const Formula *fact = &sizes->facts[i];
        if (!smelt_evaluate(fact->code, fact->count, symbols, &value) || !value) {
            return false;
        }
    }
    if (room == NULL) {
        return true;
    }
    memcpy(room, table->numbers, (size_t)table->counts[NUMBERS] * sizeof(int64_t));
    for (Py_ssize_t i = 0; i < sizes->fill_count; i++) {
        const Formula *fill = &sizes->fills[i];
        if (!smelt_evaluate(fill->code, fill->count, symbols, &value)) {
            return false;
        }
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(fill->places); k++) {
            room[PyLong_AsSsize_t(PyTuple_GET_ITEM(fill->places, k))] = value;
        }
    }
    return true;
}

int
program_sizes_begin(Run *run)
{
    const ProgramSizes *sizes = run->program->sizes;
    for (Py_ssize_t i = 0; i < sizes->constant_count; i++) {
        run->values[sizes->constants[i].value].data = (void *)(run->numbers + sizes->constants[i].number);
    }
    for (Py_ssize_t i = 0; i < sizes->view_count; i++) {
        Value *value = &run->values[sizes->views[i]];
        const Shape shape = shape_of_value(&run->table->tensors[sizes->views[i]]);
        Handle view;
        if (run->native && value->handle && view_handle(run, value->handle, shape, &view) == 0) {
            *value = (Value){.handle = view, .owns_handle = true};
            continue;
        }
        const int64_t *numbers = run->numbers + shape.numbers;
        PyObject *object = PyObject_CallFunction(run->program->view, "ONNL", object_of(run, value),
                                                 tuple_of(numbers, shape.rank), tuple_of(numbers + shape.rank, shape.rank),
                                                 (long long)numbers[2 * shape.rank]);
        if (object == NULL) {
            return -1;
        }
        set_object(run, value, object, true);
    }
    return 0;
}
