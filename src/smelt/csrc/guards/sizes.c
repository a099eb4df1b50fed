/* Relations between dynamic sizes and scalars: `x.shape[0] == y.shape[0]`, `n >= 2`.

   Once everything in the tree holds, the sizes are read from the collected values, and each fact is evaluated on them:
   an expression (executor/expression.h) that is 0 where it fails. A fact whose arithmetic overflows 64 bits fails. */
#include "guards/guards.h"

#include "executor/expression.h"

typedef struct {
    Py_ssize_t place; /* among the collected values */
    enum { READ_SIZE, READ_STRIDE, READ_NUMBER } what;
    Py_ssize_t dimension;
} Reading;

/* Of a bytes object in `spec`. */
typedef struct {
    const int64_t *code;
    Py_ssize_t count;
} Instructions;

/* Symbols of expressions are the readings first, then the definitions, each computed from those before it. */
struct SizeFacts {
    PyObject *spec; /* owned */
    Py_ssize_t reading_count, definition_count, fact_count;
    Reading *readings;
    Instructions *definitions, *facts;
};

static const char *const reading_names[] = {"size", "stride", "number", NULL};

/* --- building --------------------------------------------------------------------------------- */

/* Room for as many items as a tuple has, zeroed; NULL with an exception. */
static void *
room_for(PyObject *tuple, size_t item)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "facts about sizes are tuples, not %R", tuple);
        return NULL;
    }
    void *room = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tuple) + 1, item);
    return room ? room : PyErr_NoMemory();
}

static int
take_reading(Reading *reading, PyObject *spec, Py_ssize_t collected)
{
    const char *what, *text;
    if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "nsns;a size is read by", &reading->place, &what,
                                                  &reading->dimension, &text)) {
        return PyErr_Occurred() ? -1 : (PyErr_Format(PyExc_TypeError, "sizes are read by tuples, not %R", spec), -1);
    }
    int kind = 0;
    while (reading_names[kind] && strcmp(reading_names[kind], what)) {
        kind++;
    }
    if (reading_names[kind] == NULL || reading->place < 0 || reading->place >= collected || reading->dimension < 0) {
        PyErr_Format(PyExc_ValueError, "sizes are read of what is not collected: %R", spec);
        return -1;
    }
    reading->what = kind;
    return 0;
}

static int
take_code(Instructions *instructions, PyObject *code, Py_ssize_t symbols)
{
    int64_t needed;
    if (!PyBytes_Check(code) || PyBytes_GET_SIZE(code) % (2 * (Py_ssize_t)sizeof(int64_t))) {
        PyErr_Format(PyExc_TypeError, "expressions of sizes are bytes of whole instructions, not %R", code);
        return -1;
    }
    *instructions = (Instructions){(const int64_t *)(const void *)PyBytes_AS_STRING(code),
                                   PyBytes_GET_SIZE(code) / (2 * (Py_ssize_t)sizeof(int64_t))};
    if (!smelt_expression_holds(instructions->code, instructions->count, &needed) || needed > symbols) {
        PyErr_Format(PyExc_ValueError, "no expression of %zd sizes: %R", symbols, code);
        return -1;
    }
    return 0;
}

static int
take_fact(Instructions *fact, PyObject *spec, Py_ssize_t symbols)
{
    if (!PyTuple_Check(spec) || PyTuple_GET_SIZE(spec) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(spec, 1))) {
        PyErr_Format(PyExc_TypeError, "a fact about sizes needs an expression and a text, got %R", spec);
        return -1;
    }
    return take_code(fact, PyTuple_GET_ITEM(spec, 0), symbols);
}

SizeFacts *
size_facts_make(PyObject *spec, Py_ssize_t collected)
{
    PyObject *readings, *definitions, *facts;
    if (!PyTuple_Check(spec) || !PyArg_ParseTuple(spec, "OOO;facts about sizes", &readings, &definitions, &facts)) {
        return PyErr_Occurred() ? NULL : (PyErr_Format(PyExc_TypeError, "facts about sizes are a tuple, not %R", spec), NULL);
    }
    SizeFacts *result = PyMem_Calloc(1, sizeof(SizeFacts));
    if (result == NULL) {
        return (SizeFacts *)PyErr_NoMemory();
    }
    result->spec = Py_NewRef(spec);
    result->readings = room_for(readings, sizeof(Reading));
    result->definitions = result->readings ? room_for(definitions, sizeof(Instructions)) : NULL;
    result->facts = result->definitions ? room_for(facts, sizeof(Instructions)) : NULL;
    int status = result->facts ? 0 : -1;
    while (status == 0 && result->reading_count < PyTuple_GET_SIZE(readings)) {
        Py_ssize_t i = result->reading_count++;
        status = take_reading(&result->readings[i], PyTuple_GET_ITEM(readings, i), collected);
    }
    while (status == 0 && result->definition_count < PyTuple_GET_SIZE(definitions)) {
        Py_ssize_t i = result->definition_count++;
        status = take_code(&result->definitions[i], PyTuple_GET_ITEM(definitions, i), result->reading_count + i);
    }
    while (status == 0 && result->fact_count < PyTuple_GET_SIZE(facts)) {
        Py_ssize_t i = result->fact_count++;
        status = take_fact(&result->facts[i], PyTuple_GET_ITEM(facts, i), result->reading_count + result->definition_count);
    }
    if (status < 0) {
        size_facts_drop(result);
        return NULL;
    }
    return result;
}

void
size_facts_drop(SizeFacts *facts)
{
    if (facts) {
        PyMem_Free(facts->readings);
        PyMem_Free(facts->definitions);
        PyMem_Free(facts->facts);
        Py_XDECREF(facts->spec);
        PyMem_Free(facts);
    }
}

/* --- checking --------------------------------------------------------------------------------- */

/* One size of a tensor by its attributes. Clears what it raises. */
static bool
ask_size(PyObject *value, const Reading *reading, int64_t *size)
{
    PyObject *name = PyUnicode_FromString(reading->what == READ_SIZE ? "shape" : "stride");
    PyObject *sizes = name ? PyObject_GetAttr(value, name) : NULL;
    if (sizes && reading->what == READ_STRIDE) {
        Py_SETREF(sizes, PyObject_CallNoArgs(sizes));
    }
    PyObject *item = sizes ? PySequence_GetItem(sizes, reading->dimension) : NULL;
    *size = item ? PyLong_AsLongLong(item) : -1;
    Py_XDECREF(name);
    Py_XDECREF(sizes);
    Py_XDECREF(item);
    bool known = !PyErr_Occurred();
    PyErr_Clear();
    return known;
}

bool
tensor_size(PyObject *value, bool stride, Py_ssize_t dimension, int64_t *size)
{
    const Reading reading = {.what = stride ? READ_STRIDE : READ_SIZE, .dimension = dimension};
    return tensor_memory_size(value, stride, dimension, size) || ask_size(value, &reading, size);
}

static bool
read_size(PyObject *value, const Reading *reading, int64_t *size)
{
    if (reading->what != READ_NUMBER) {
        return tensor_size(value, reading->what == READ_STRIDE, reading->dimension, size);
    }
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *size = PyLong_AsLongLong(value);
    bool known = !PyErr_Occurred();
    PyErr_Clear();
    return known;
}

/* Which fact fails: its number, -1 if none, or -2 if the sizes could not be read or computed. */
static Py_ssize_t
first_false(const SizeFacts *facts, PyObject *const *collected, int64_t *symbols)
{
    int64_t holds;
    for (Py_ssize_t i = 0; i < facts->reading_count; i++) {
        if (!read_size(collected[facts->readings[i].place], &facts->readings[i], &symbols[i])) {
            return -2;
        }
    }
    for (Py_ssize_t i = 0; i < facts->definition_count; i++) {
        const Instructions *definition = &facts->definitions[i];
        if (!smelt_evaluate(definition->code, definition->count, symbols, &symbols[facts->reading_count + i])) {
            return -2;
        }
    }
    for (Py_ssize_t i = 0; i < facts->fact_count; i++) {
        const Instructions *fact = &facts->facts[i];
        if (!smelt_evaluate(fact->code, fact->count, symbols, &holds) || !holds) {
            return i;
        }
    }
    return -1;
}

enum { FEW = 32 };

static Py_ssize_t
find_false(const SizeFacts *facts, PyObject *const *collected, int64_t *few)
{
    Py_ssize_t count = facts->reading_count + facts->definition_count;
    int64_t *symbols = count <= FEW ? few : PyMem_New(int64_t, count);
    if (symbols == NULL) {
        return -2;
    }
    Py_ssize_t failed = first_false(facts, collected, symbols);
    if (symbols != few) {
        PyMem_Free(symbols);
    }
    return failed;
}

bool
size_facts_hold(const SizeFacts *facts, PyObject *const *collected)
{
    int64_t few[FEW];
    return find_false(facts, collected, few) == -1;
}

PyObject *
size_facts_explain(const SizeFacts *facts, PyObject *const *collected)
{
    int64_t few[FEW];
    Py_ssize_t failed = find_false(facts, collected, few);
    if (failed < 0) {
        return PyUnicode_FromString("sizes could not be read");
    }
    PyObject *text = PyTuple_GET_ITEM(PyTuple_GET_ITEM(PyTuple_GET_ITEM(facts->spec, 2), failed), 1);
    PyObject *values = PyUnicode_FromString("");
    for (Py_ssize_t i = 0; values && i < facts->reading_count; i++) {
        PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(PyTuple_GET_ITEM(facts->spec, 0), i), 3);
        int64_t size = 0;
        if (PySequence_Contains(text, name) == 1
            && read_size(collected[facts->readings[i].place], &facts->readings[i], &size)) {
            Py_SETREF(values, PyUnicode_FromFormat("%U%s%U = %lld", values, PyUnicode_GET_LENGTH(values) ? ", " : "",
                                                  name, (long long)size));
        }
    }
    PyObject *message = values ? PyUnicode_FromFormat("expected %U, got %U", text, values) : NULL;
    Py_XDECREF(values);
    return message;
}
