/* Relations between dynamic sizes and scalars: `x.shape[0] == y.shape[0]`, `n >= 2`.

   Once everything in the tree holds, the sizes are read from the collected values, and each fact, a polynomial
   compared with zero, is evaluated on them. A fact whose arithmetic overflows 64 bits fails. */
#include "guards/guards.h"

typedef struct {
    Py_ssize_t place; /* among the collected values */
    enum { READ_SIZE, READ_STRIDE, READ_NUMBER } what;
    Py_ssize_t dimension;
} Reading;

typedef struct {
    int64_t factor;
    Py_ssize_t count;
    Py_ssize_t *registers; /* owned; multiplied */
} Term;

typedef struct {
    Py_ssize_t count;
    Term *terms; /* owned; added */
} Polynomial;

typedef struct {
    enum { QUOTIENT, REMAINDER, LARGER, SMALLER } function;
    Polynomial left, right;
} Compound;

typedef struct {
    enum { EQUAL, UNEQUAL, LESS, AT_MOST, MORE, AT_LEAST } relation;
    Polynomial polynomial;
    PyObject *text; /* borrowed from `spec` */
} SizeFact;

/* Registers hold the readings first, then the compounds, each computed from those before it. */
struct SizeFacts {
    PyObject *spec; /* owned */
    Py_ssize_t reading_count, compound_count, fact_count;
    Reading *readings;
    Compound *compounds;
    SizeFact *facts;
};

static const char *const reading_names[] = {"size", "stride", "number", NULL};
static const char *const function_names[] = {"//", "%", "max", "min", NULL};
static const char *const relation_names[] = {"==", "!=", "<", "<=", ">", ">=", NULL};

/* --- building --------------------------------------------------------------------------------- */

/* The place of a name in a list, or -1 with an exception. */
static int
find_name(PyObject *name, const char *const *names)
{
    for (int i = 0; names[i]; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "guards know nothing of sizes called %R", name);
    return -1;
}

/* The i-th item of a tuple that must have so many; borrowed, NULL with an exception. */
static PyObject *
part(PyObject *tuple, Py_ssize_t count, Py_ssize_t i)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "facts about sizes need a tuple of %zd, got %R", count, tuple);
        return NULL;
    }
    return PyTuple_GET_ITEM(tuple, i);
}

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
take_term(Term *term, PyObject *spec, Py_ssize_t registers)
{
    PyObject *factor = part(spec, 2, 0), *places = factor ? part(spec, 2, 1) : NULL;
    term->registers = places ? room_for(places, sizeof(Py_ssize_t)) : NULL;
    if (term->registers == NULL) {
        return -1;
    }
    term->factor = PyLong_AsLongLong(factor);
    for (; !PyErr_Occurred() && term->count < PyTuple_GET_SIZE(places); term->count++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, term->count));
        if (!PyErr_Occurred() && (place < 0 || place >= registers)) {
            PyErr_Format(PyExc_ValueError, "size %zd is used and not there", place);
        }
        term->registers[term->count] = place;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int
take_polynomial(Polynomial *polynomial, PyObject *spec, Py_ssize_t registers)
{
    polynomial->terms = spec ? room_for(spec, sizeof(Term)) : NULL;
    if (polynomial->terms == NULL) {
        return -1;
    }
    while (polynomial->count < PyTuple_GET_SIZE(spec)) {
        Py_ssize_t i = polynomial->count++;
        if (take_term(&polynomial->terms[i], PyTuple_GET_ITEM(spec, i), registers) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
take_reading(Reading *reading, PyObject *spec, Py_ssize_t collected)
{
    PyObject *place = part(spec, 4, 0);
    int what = place ? find_name(PyTuple_GET_ITEM(spec, 1), reading_names) : -1;
    if (what < 0) {
        return -1;
    }
    reading->what = what;
    reading->place = PyLong_AsSsize_t(place);
    reading->dimension = PyLong_AsSsize_t(PyTuple_GET_ITEM(spec, 2));
    if (!PyErr_Occurred() && (reading->place < 0 || reading->place >= collected || reading->dimension < 0)) {
        PyErr_Format(PyExc_ValueError, "sizes are read of what is not collected: %R", spec);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int
take_compound(Compound *compound, PyObject *spec, Py_ssize_t registers)
{
    PyObject *name = part(spec, 3, 0);
    int function = name ? find_name(name, function_names) : -1;
    if (function < 0) {
        return -1;
    }
    compound->function = function;
    return take_polynomial(&compound->left, PyTuple_GET_ITEM(spec, 1), registers) < 0
                   || take_polynomial(&compound->right, PyTuple_GET_ITEM(spec, 2), registers) < 0
               ? -1
               : 0;
}

static int
take_fact(SizeFact *fact, PyObject *spec, Py_ssize_t registers)
{
    PyObject *name = part(spec, 3, 0);
    int relation = name ? find_name(name, relation_names) : -1;
    if (relation < 0) {
        return -1;
    }
    fact->relation = relation;
    fact->text = PyTuple_GET_ITEM(spec, 2);
    if (!PyUnicode_Check(fact->text)) {
        PyErr_Format(PyExc_TypeError, "a fact about sizes needs a text, got %R", spec);
        return -1;
    }
    return take_polynomial(&fact->polynomial, PyTuple_GET_ITEM(spec, 1), registers);
}

SizeFacts *
size_facts_make(PyObject *spec, Py_ssize_t collected)
{
    PyObject *readings = part(spec, 3, 0);
    SizeFacts *result = readings ? PyMem_Calloc(1, sizeof(SizeFacts)) : NULL;
    if (result == NULL) {
        return readings ? (SizeFacts *)PyErr_NoMemory() : NULL;
    }
    PyObject *compounds = PyTuple_GET_ITEM(spec, 1), *facts = PyTuple_GET_ITEM(spec, 2);
    result->spec = Py_NewRef(spec);
    result->readings = room_for(readings, sizeof(Reading));
    result->compounds = result->readings ? room_for(compounds, sizeof(Compound)) : NULL;
    result->facts = result->compounds ? room_for(facts, sizeof(SizeFact)) : NULL;
    int status = result->facts ? 0 : -1;
    while (status == 0 && result->reading_count < PyTuple_GET_SIZE(readings)) {
        Py_ssize_t i = result->reading_count++;
        status = take_reading(&result->readings[i], PyTuple_GET_ITEM(readings, i), collected);
    }
    while (status == 0 && result->compound_count < PyTuple_GET_SIZE(compounds)) {
        Py_ssize_t i = result->compound_count++;
        status = take_compound(&result->compounds[i], PyTuple_GET_ITEM(compounds, i), result->reading_count + i);
    }
    while (status == 0 && result->fact_count < PyTuple_GET_SIZE(facts)) {
        Py_ssize_t i = result->fact_count++;
        status = take_fact(&result->facts[i], PyTuple_GET_ITEM(facts, i), result->reading_count + result->compound_count);
    }
    if (status < 0) {
        size_facts_drop(result);
        return NULL;
    }
    return result;
}

static void
drop_polynomial(Polynomial *polynomial)
{
    for (Py_ssize_t i = 0; i < polynomial->count; i++) {
        PyMem_Free(polynomial->terms[i].registers);
    }
    PyMem_Free(polynomial->terms);
}

void
size_facts_drop(SizeFacts *facts)
{
    if (facts == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; i < facts->compound_count; i++) {
        drop_polynomial(&facts->compounds[i].left);
        drop_polynomial(&facts->compounds[i].right);
    }
    for (Py_ssize_t i = 0; i < facts->fact_count; i++) {
        drop_polynomial(&facts->facts[i].polynomial);
    }
    PyMem_Free(facts->readings);
    PyMem_Free(facts->compounds);
    PyMem_Free(facts->facts);
    Py_XDECREF(facts->spec);
    PyMem_Free(facts);
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

static bool
read_size(PyObject *value, const Reading *reading, int64_t *size)
{
    if (reading->what != READ_NUMBER) {
        return tensor_memory_size(value, reading->what == READ_STRIDE, reading->dimension, size)
               || ask_size(value, reading, size);
    }
    if (!PyLong_CheckExact(value)) {
        return false;
    }
    *size = PyLong_AsLongLong(value);
    bool known = !PyErr_Occurred();
    PyErr_Clear();
    return known;
}

static bool
evaluate(const Polynomial *polynomial, const int64_t *registers, int64_t *total)
{
    *total = 0;
    for (Py_ssize_t i = 0; i < polynomial->count; i++) {
        const Term *term = &polynomial->terms[i];
        int64_t product = term->factor;
        for (Py_ssize_t j = 0; j < term->count; j++) {
            if (__builtin_mul_overflow(product, registers[term->registers[j]], &product)) {
                return false;
            }
        }
        if (__builtin_add_overflow(*total, product, total)) {
            return false;
        }
    }
    return true;
}

/* As Python divides: towards minus infinity. */
static bool
apply(const Compound *compound, const int64_t *registers, int64_t *result)
{
    int64_t left, right;
    if (!evaluate(&compound->left, registers, &left) || !evaluate(&compound->right, registers, &right)) {
        return false;
    }
    if (compound->function == LARGER || compound->function == SMALLER) {
        *result = (left > right) == (compound->function == LARGER) ? left : right;
        return true;
    }
    if (right == 0 || (left == INT64_MIN && right == -1)) {
        return false;
    }
    int64_t remainder = left % right;
    bool borrows = remainder != 0 && (remainder < 0) != (right < 0);
    *result = compound->function == QUOTIENT ? left / right - borrows : remainder + (borrows ? right : 0);
    return true;
}

static bool
compares(int relation, int64_t value)
{
    switch (relation) {
    case EQUAL:
        return value == 0;
    case UNEQUAL:
        return value != 0;
    case LESS:
        return value < 0;
    case AT_MOST:
        return value <= 0;
    case MORE:
        return value > 0;
    default:
        return value >= 0;
    }
}

/* Which fact fails: its number, -1 if none, or -2 if the sizes could not be read or computed. */
static Py_ssize_t
first_false(const SizeFacts *facts, PyObject *const *collected, int64_t *registers)
{
    for (Py_ssize_t i = 0; i < facts->reading_count; i++) {
        if (!read_size(collected[facts->readings[i].place], &facts->readings[i], &registers[i])) {
            return -2;
        }
    }
    for (Py_ssize_t i = 0; i < facts->compound_count; i++) {
        if (!apply(&facts->compounds[i], registers, &registers[facts->reading_count + i])) {
            return -2;
        }
    }
    for (Py_ssize_t i = 0; i < facts->fact_count; i++) {
        int64_t value;
        if (!evaluate(&facts->facts[i].polynomial, registers, &value)
            || !compares(facts->facts[i].relation, value)) {
            return i;
        }
    }
    return -1;
}

enum { FEW = 32 };

static Py_ssize_t
find_false(const SizeFacts *facts, PyObject *const *collected, int64_t *few)
{
    Py_ssize_t count = facts->reading_count + facts->compound_count;
    int64_t *registers = count <= FEW ? few : PyMem_New(int64_t, count);
    if (registers == NULL) {
        return -2;
    }
    Py_ssize_t failed = first_false(facts, collected, registers);
    if (registers != few) {
        PyMem_Free(registers);
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
    PyObject *values = PyUnicode_FromString("");
    for (Py_ssize_t i = 0; values && i < facts->reading_count; i++) {
        PyObject *name = PyTuple_GET_ITEM(PyTuple_GET_ITEM(PyTuple_GET_ITEM(facts->spec, 0), i), 3);
        int64_t size = 0;
        if (PySequence_Contains(facts->facts[failed].text, name) == 1
            && read_size(collected[facts->readings[i].place], &facts->readings[i], &size)) {
            Py_SETREF(values, PyUnicode_FromFormat("%U%s%U = %lld", values, PyUnicode_GET_LENGTH(values) ? ", " : "",
                                                  name, (long long)size));
        }
    }
    PyObject *text = values ? PyUnicode_FromFormat("expected %U, got %U", facts->facts[failed].text, values) : NULL;
    Py_XDECREF(values);
    return text;
}
