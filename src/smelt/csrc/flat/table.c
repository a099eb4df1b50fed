/* Reads a flat program and checks every reference in it, so that the code that runs it need not. */
#include "flat/table.h"

TABLE_SECTIONS(FIELD_ROWS)
static const TableField header_fields[] = {HEADER_FIELDS(FIELD_ROW)};

/* In the order of the sections. */
static const TableSection sections[] = {
    TABLE_SECTIONS(SECTION_ROW) {"header", header_fields, Py_ARRAY_LENGTH(header_fields)}};

enum { HEADER_SECTION = SECTION_COUNT };

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

/* --- what depends on more than one field ------------------------------------------------------------ */

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
                   && (item->numbers == -1 || smelt_is_layout(table->counts[NUMBERS], item->numbers, item->length));
        }
        else if (item->kind == TUPLE_ITEM || item->kind == LIST_ITEM) {
            fits = item->what > i /* so there is no circle */
                   && smelt_is_span(table->counts[ITEMS], item->what, item->length);
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
    TableFault fault;
    return smelt_sections_hold(header->sections, sections, SECTION_COUNT, sizeof *header / 8, size, header->blob, &fault)
               ? 0
               : refuse(fault.section, fault.record, fault.field);
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
    TABLE_SECTIONS(SET_SECTION)
    table->counts[OBJECTS] = objects;
    if (!are_counts(table)) {
        return refuse("header", 0, "number of values");
    }
    TableFault fault;
    int64_t budget = 64 * (header->bytes / 8) + (1 << 20);
    bool holds = smelt_rules_hold(&sections[HEADER_SECTION], words, 1, table->counts, &budget, &fault);
    for (int i = 0; holds && i < SECTION_COUNT; i++) {
        const int64_t *first = words + header->sections[i].first;
        holds = smelt_rules_hold(&sections[i], first, table->counts[i], table->counts, &budget, &fault);
    }
    holds = holds && smelt_strings_hold(&table->strings->offset, table->counts[STRINGS], table->blob,
                                        header->bytes - header->blob, &fault);
    if (!holds) {
        return refuse(fault.section, fault.record, fault.field);
    }
    if (check_items(table) < 0 || check_steps(table) < 0) {
        return -1;
    }
    return check_values_given(table);
}
