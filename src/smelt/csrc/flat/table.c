/* Reads a flat program and checks every reference in it, so that the code that runs it need not. */
#include "flat/table.h"

#include <stdbool.h>
#include <string.h>

typedef enum { FREE, INDEX, OPTIONAL, SPAN, LAYOUT } Rule;

typedef struct {
    const char *name;
    Rule rule;
    int section;
} Field;

#define FIELD_ROW(field, rule, section) {#field, rule, section},
#define FIELD_ROWS(section, NUMBER, Type, FIELDS) static const Field section##_fields[] = {FIELDS(FIELD_ROW)};
TABLE_SECTIONS(FIELD_ROWS)
static const Field header_fields[] = {HEADER_FIELDS(FIELD_ROW)};

/* In the order of the sections. */
#define SECTION_ROW(section, NUMBER, Type, FIELDS) {#section, section##_fields, Py_ARRAY_LENGTH(section##_fields)},
static const struct {
    const char *name;
    const Field *fields;
    size_t width;
} sections[] = {TABLE_SECTIONS(SECTION_ROW) {"header", header_fields, Py_ARRAY_LENGTH(header_fields)}};

enum { HEADER_SECTION = SECTION_COUNT };

/* --- the rules -------------------------------------------------------------------------------------- */

static int
refuse(const char *section, int64_t record, const char *field)
{
    PyErr_Format(PyExc_ValueError, "this is no program: %s %lld has a wrong %s", section, (long long)record, field);
    return -1;
}

static bool
is_index(const Table *table, int section, int64_t number)
{
    return number >= 0 && number < table->counts[section];
}

static bool
is_span(const Table *table, int section, int64_t first, int64_t count)
{
    const int64_t limit = table->counts[section];
    return first >= 0 && first <= limit && count >= 0 && count <= limit - first;
}

static bool
is_layout(const Table *table, int64_t first, int64_t rank)
{
    const int64_t limit = table->counts[NUMBERS];
    return first >= 0 && rank >= 0 && rank < limit && first < limit && 2 * rank + 1 <= limit - first;
}

static bool
keeps_rule(const Table *table, const Field *field, const int64_t *word)
{
    switch (field->rule) {
    case INDEX:
        return is_index(table, field->section, *word);
    case OPTIONAL:
        return *word == -1 || is_index(table, field->section, *word);
    case SPAN:
        return is_span(table, field->section, word[0], word[1]);
    case LAYOUT:
        return is_layout(table, word[0], word[1]);
    default:
        return true;
    }
}

/* All fields of all records of a section. */
static int
check_rules(const Table *table, int section, const int64_t *words, int64_t count)
{
    const size_t width = sections[section].width;
    for (int64_t record = 0; record < count; record++) {
        for (size_t i = 0; i < width; i++) {
            if (!keeps_rule(table, &sections[section].fields[i], &words[(size_t)record * width + i])) {
                return refuse(sections[section].name, record, sections[section].fields[i].name);
            }
        }
    }
    return 0;
}

/* --- what depends on more than one field ------------------------------------------------------------ */

static int
check_strings(const Table *table)
{
    const int64_t size = table->header->bytes - table->header->blob;
    for (int64_t i = 0; i < table->counts[STRINGS]; i++) {
        const StringRecord *string = &table->strings[i];
        if (string->offset < 0 || string->offset >= size || string->length < 0
            || string->length >= size - string->offset || table->blob[string->offset + string->length] != 0) {
            return refuse("strings", i, "length");
        }
    }
    return 0;
}

static int
check_items(const Table *table)
{
    for (int64_t i = 0; i < table->counts[ITEMS]; i++) {
        const ItemRecord *item = &table->items[i];
        bool fits = item->kind >= OBJECT_ITEM && item->kind <= DOUBLE_ITEM;
        if (item->kind == OBJECT_ITEM) {
            fits = is_index(table, OBJECTS, item->what);
        }
        else if (item->kind == VALUE_ITEM) {
            fits = is_index(table, VALUES, item->what)
                   && (item->numbers == -1 || is_layout(table, item->numbers, item->length));
        }
        else if (item->kind == TUPLE_ITEM || item->kind == LIST_ITEM) {
            fits = item->what > i && is_span(table, ITEMS, item->what, item->length); /* so there is no circle */
        }
        if (!fits) {
            return refuse("items", i, "kind");
        }
    }
    return 0;
}

static int
check_steps(const Table *table)
{
    static const int section_of[] = {
        [ALLOCATE_STEP] = VALUES, [LAUNCH_STEP] = LAUNCHES, [CALL_STEP] = CALLS, [DROP_STEP] = DROPS};
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        if (step->kind < ALLOCATE_STEP || step->kind > DROP_STEP) {
            return refuse("steps", i, "kind");
        }
        if (!is_index(table, section_of[step->kind], step->place)) {
            return refuse("steps", i, "place");
        }
    }
    return 0;
}

static bool
are_values(const Table *table, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (table->references[first + i].value < 0) {
            return false;
        }
    }
    return true;
}

static int
check_values_given(const Table *table)
{
    for (int64_t i = 0; i < table->counts[LAUNCHES]; i++) {
        const LaunchRecord *launch = &table->launches[i];
        if (launch->value_count != table->kernels[launch->kernel].buffers) {
            return refuse("launches", i, "value_count: its kernel takes another number of buffers");
        }
        if (!are_values(table, launch->values, launch->value_count)) {
            return refuse("launches", i, "value");
        }
    }
    for (int64_t i = 0; i < table->counts[DROPS]; i++) {
        if (!are_values(table, table->drops[i].values, table->drops[i].value_count)) {
            return refuse("drops", i, "value");
        }
    }
    for (int64_t i = 0; i < table->counts[NATIVES]; i++) {
        const NativeRecord *native = &table->natives[i];
        for (int64_t k = 0; k < native->tensor_count; k++) {
            if (table->items[native->tensors + k].kind != VALUE_ITEM) {
                return refuse("natives", i, "tensor");
            }
        }
    }
    return 0;
}

/* --- the whole -------------------------------------------------------------------------------------- */

static int
check_header(const Header *header, Py_ssize_t size)
{
    if ((size_t)size < sizeof *header || header->magic != TABLE_MAGIC) {
        PyErr_SetString(PyExc_ValueError, "this is no program: it does not begin like one");
        return -1;
    }
    if (header->version != TABLE_VERSION) {
        PyErr_Format(PyExc_ValueError, "this is no program of version %d, but of version %lld", TABLE_VERSION,
                     (long long)header->version);
        return -1;
    }
    if (header->bytes != size) {
        PyErr_Format(PyExc_ValueError, "this is no whole program: it has %zd bytes, not %lld", size,
                     (long long)header->bytes);
        return -1;
    }
    int64_t next = sizeof *header / 8; /* sections follow each other without gaps, up to the strings */
    const int64_t limit = size / 8;
    for (int i = 0; i < SECTION_COUNT; i++) {
        const int64_t count = header->sections[i].count, width = (int64_t)sections[i].width;
        if (header->sections[i].width != width) {
            return refuse("header", 0, "width: records of another layout");
        }
        if (header->sections[i].first != next || count < 0 || count > (limit - next) / width) {
            return refuse("header", 0, sections[i].name);
        }
        next += count * width;
    }
    return header->blob == 8 * next ? 0 : refuse("header", 0, "blob");
}

/* Whether the values are as many as the header counts, one after the other. */
static bool
are_counts(const Table *table)
{
    const Header *header = table->header;
    const int64_t values = table->counts[VALUES];
    return header->inputs >= 0 && header->inputs <= values && header->constants >= 0
           && header->constants <= values - header->inputs && header->constants <= table->counts[OBJECTS]
           && header->arena >= 0 && header->arena <= values - header->inputs - header->constants
           && (header->consuming == 0 || header->consuming == 1);
}

int
table_read(Table *table, PyObject *bytes, Py_ssize_t objects)
{
    const int64_t *words = (const int64_t *)PyBytes_AS_STRING(bytes);
    const Header *header = (const Header *)words;
    if (check_header(header, PyBytes_GET_SIZE(bytes)) < 0) {
        return -1;
    }
    *table = (Table){.header = header, .blob = (const char *)words + header->blob};
#define SET_SECTION(section, NUMBER, Type, FIELDS)                                                                     \
    table->section = (const Type *)(words + header->sections[NUMBER].first);                                           \
    table->counts[NUMBER] = header->sections[NUMBER].count;
    TABLE_SECTIONS(SET_SECTION)
    table->counts[OBJECTS] = objects;
    if (!are_counts(table)) {
        return refuse("header", 0, "number of values");
    }
    for (int i = 0; i < SECTION_COUNT; i++) {
        if (check_rules(table, i, words + header->sections[i].first, table->counts[i]) < 0) {
            return -1;
        }
    }
    if (check_rules(table, HEADER_SECTION, words, 1) < 0 || check_strings(table) < 0 || check_items(table) < 0
        || check_steps(table) < 0) {
        return -1;
    }
    return check_values_given(table);
}

/* --- the layout, for who writes tables -------------------------------------------------------------- */

PyObject *
program_layout(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *layout = PyDict_New();
    for (size_t i = 0; layout && i < Py_ARRAY_LENGTH(sections); i++) {
        PyObject *names = PyTuple_New((Py_ssize_t)sections[i].width);
        for (size_t k = 0; names && k < sections[i].width; k++) {
            PyObject *name = PyUnicode_FromString(sections[i].fields[k].name);
            if (name == NULL) {
                Py_CLEAR(names);
                break;
            }
            PyTuple_SET_ITEM(names, (Py_ssize_t)k, name);
        }
        if (names == NULL || PyDict_SetItemString(layout, sections[i].name, names) < 0) {
            Py_CLEAR(layout);
        }
        Py_XDECREF(names);
    }
    return layout;
}
