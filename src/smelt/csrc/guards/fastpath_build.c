/* Builds a fast path: finds the words of memory that the result of the checks depends on.

   Walks the tree once more, without running user code. For each node it finds where its value is stored, so that one
   comparison shows whether it is still the same, and which of its checks can change their result while the value stays
   the same. A value without such a place is checked by a call every time.

   A value is `identity_proved` if the facts recorded so far prove that it is the object seen now: the guards own it,
   or an unchanged dict or a proved tuple holds it, or it passed an "is" check. An equal bare pointer proves less,
   because another object may have been allocated there; nothing is assumed of such a value except what further facts
   say, its type first. */
#include "guards/fastpath.h"

#include <stddef.h>

#include "frame/unbound.h"

/* A node that made a fast path stale so often is not relied on again; a dict is first tried key by key. */
enum { TOO_OFTEN = 2 };

typedef struct {
    PyObject *value; /* owned; NULL: unbound */
    Py_ssize_t node;
    bool identity_proved;
    bool typed;     /* a fact says that its type is the same */
    bool versioned; /* a dict or a class, and a fact says that it is unchanged */
    bool measured;  /* a sequence, and facts say where its items are and how many */
} Level;

typedef struct {
    Guards *guards;
    const GuardSource *source;
    FastPath *fastpath;
    Level *levels;
    bool broken; /* out of memory, or the guards do not hold after all */
} Builder;

typedef enum { FIXED, ASK } Reach;

/* --- writing facts down ----------------------------------------------------------------------- */

static bool
grow(Builder *builder, void **array, Py_ssize_t count, size_t item)
{
    if (count & (count - 1)) { /* grows when the count is zero or a power of two */
        return true;
    }
    void *larger = PyMem_Realloc(*array, (count ? 2 * (size_t)count : 1) * item);
    builder->broken |= larger == NULL;
    *array = larger ? larger : *array;
    return larger != NULL;
}

/* Room for one more, for the given node; NULL if there is none. */
static void *
add_fact(Builder *builder, Facts *facts, Py_ssize_t node, size_t item)
{
    if (!grow(builder, &facts->items, facts->count, item)
        || !grow(builder, (void **)&facts->nodes, facts->count, sizeof *facts->nodes)) {
        return NULL;
    }
    facts->nodes[facts->count] = node;
    return (char *)facts->items + (size_t)facts->count++ * item;
}

static void
add_word(Builder *builder, Py_ssize_t node, const void *place, uint64_t expected)
{
    WordFact *fact = add_fact(builder, &builder->fastpath->words, node, sizeof *fact);
    if (fact) {
        *fact = (WordFact){.place = (uintptr_t)place, .expected = expected};
    }
}

/* The pointer at `place` stays what it is. */
static void
add_pointer(Builder *builder, Py_ssize_t node, const void *place)
{
    add_word(builder, node, place, (uint64_t)(uintptr_t)*(void *const *)place);
}

static void
add_question(Builder *builder, Facts *questions, Py_ssize_t node, Question question)
{
    Question *fact = add_fact(builder, questions, node, sizeof *fact);
    if (fact) {
        *fact = question;
    }
}

static const Node *
node_at(const Builder *builder, Py_ssize_t node)
{
    return &builder->guards->nodes[node];
}

/* Sees to it that the value's type is known to be the same. False: another type in its place could go unnoticed. */
static bool
ensure_type(Builder *builder, Level *level)
{
    if (level->identity_proved || level->typed) {
        return true;
    }
    if (Py_TYPE(level->value)->tp_flags & Py_TPFLAGS_HEAPTYPE) { /* may be freed; one that is checked is ours */
        return false;
    }
    add_pointer(builder, level->node, &level->value->ob_type);
    level->typed = true;
    return true;
}

/* Sees to it that a class, whose identity is proved, is known to answer every look-up as it does now. */
static bool
note_class(Builder *builder, Level *level)
{
    PyTypeObject *type = (PyTypeObject *)level->value;
    if (type->tp_version_tag == 0) { /* a look-up gives every class one, while they last */
        return false;
    }
    if (!level->versioned) {
        add_word(builder, level->node, (char *)&type->tp_version_tag + HALF_WORD, type->tp_version_tag);
        level->versioned = true;
    }
    return true;
}

static bool
is_plain_dict(PyObject *value)
{
    return value && (PyDict_CheckExact(value) || PyODict_CheckExact(value));
}

static bool
is_plain_key(PyObject *key)
{
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key);
}

/* --- reaching values -------------------------------------------------------------------------- */

static Reach
fixed(Level *level, PyObject *value, bool identity_proved)
{
    level->value = Py_XNewRef(value);
    level->identity_proved = identity_proved;
    return FIXED;
}

static Reach
reach_slot(Builder *builder, const Node *node, Level *level)
{
    const GuardSource *source = builder->source;
    PyObject *value = node->index < source->count ? source->slots[node->index] : source->function;
    if (value == NULL || value == &smelt_null || node->index > source->count || node->end == level->node + 1) {
        return ASK; /* without anything below it, asking is as cheap; and arguments do change */
    }
    SlotFact *fact = add_fact(builder, &builder->fastpath->slots, level->node, sizeof *fact);
    if (fact) {
        *fact = (SlotFact){.value = value, .slot = node->index};
    }
    return fixed(level, value, false);
}

static Reach
reach_instance(Builder *builder, Level *parent, Level *level)
{
    if (PyType_Check(parent->value) || !ensure_type(builder, parent)) {
        return ASK;
    }
    PyObject **place = _PyObject_GetDictPtr(parent->value);
    if (place == NULL || *place == NULL) {
        return ASK;
    }
    add_pointer(builder, level->node, place);
    return fixed(level, *place, false);
}

static bool
has_only_names(PyObject *dict)
{
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        if (!PyUnicode_CheckExact(key)) {
            return false;
        }
    }
    return true;
}

static void
add_lookup(Builder *builder, Py_ssize_t node, PyObject *dict, PyObject *key, PyObject *value)
{
    LookupFact *lookup = PyMem_Malloc(sizeof *lookup);
    builder->broken |= lookup == NULL;
    if (lookup) {
        *lookup = (LookupFact){.dict = dict, .key = key};
        Py_ssize_t before = builder->fastpath->words.count;
        add_word(builder, node, (char *)lookup + LOOKUP, (uint64_t)(uintptr_t)value);
        if (builder->fastpath->words.count == before) {
            PyMem_Free(lookup);
        }
    }
}

static Reach
reach_key(Builder *builder, const Node *node, const Level *parent, Level *level)
{
    if (!is_plain_dict(parent->value) || !is_plain_key(node->operand)) {
        return ASK;
    }
    if (!parent->versioned && !(PyUnicode_CheckExact(node->operand) && has_only_names(parent->value))) {
        return ASK; /* looking it up could run code that compares keys */
    }
    PyObject *value = PyDict_GetItemWithError(parent->value, node->operand);
    if (value == NULL) {
        PyErr_Clear();
        builder->broken = true;
        return ASK;
    }
    if (!parent->versioned) {
        add_lookup(builder, level->node, parent->value, node->operand, value);
    }
    return fixed(level, value, parent->versioned);
}

static Reach
reach_item(Builder *builder, const Node *node, Level *parent, Level *level)
{
    PyObject *sequence = parent->value;
    bool is_list = PyList_Check(sequence);
    if ((!is_list && !PyTuple_Check(sequence)) || node->index >= Py_SIZE(sequence) || !ensure_type(builder, parent)) {
        return ASK;
    }
    if (!is_list && parent->identity_proved) {
        return fixed(level, PyTuple_GET_ITEM(sequence, node->index), true);
    }
    if (!parent->measured) {
        add_word(builder, parent->node, &((PyVarObject *)sequence)->ob_size, (uint64_t)Py_SIZE(sequence));
        if (is_list) {
            add_pointer(builder, parent->node, &((PyListObject *)sequence)->ob_item);
        }
        parent->measured = true;
    }
    PyObject **items = is_list ? ((PyListObject *)sequence)->ob_item : ((PyTupleObject *)sequence)->ob_item;
    add_pointer(builder, level->node, &items[node->index]);
    return fixed(level, items[node->index], false);
}

static Reach
reach_cell(Builder *builder, Level *parent, Level *level)
{
    if (!PyCell_Check(parent->value) || !ensure_type(builder, parent)) {
        return ASK;
    }
    PyObject **place = &((PyCellObject *)parent->value)->ob_ref;
    add_pointer(builder, level->node, place);
    return fixed(level, *place, false);
}

/* What is in a field that nobody can write to. */
static Reach
reach_constant_field(Builder *builder, PyObject **place, Level *parent, Level *level)
{
    if (!parent->identity_proved) {
        add_pointer(builder, level->node, place);
    }
    return fixed(level, *place, parent->identity_proved);
}

static Reach
reach_closure(Builder *builder, const Node *node, PyFunctionObject *function, const Level *parent, Level *level)
{
    PyTupleObject *closure = (PyTupleObject *)function->func_closure;
    if (closure == NULL || node->index >= PyTuple_GET_SIZE(closure)) {
        return ASK;
    }
    if (!parent->identity_proved) {
        add_pointer(builder, level->node, &function->func_closure);
        add_word(builder, level->node, &((PyVarObject *)closure)->ob_size, (uint64_t)PyTuple_GET_SIZE(closure));
        add_pointer(builder, level->node, &closure->ob_item[node->index]);
    }
    return fixed(level, closure->ob_item[node->index], parent->identity_proved);
}

static Reach
reach_of_function(Builder *builder, const Node *node, Level *parent, Level *level)
{
    if (!PyFunction_Check(parent->value) || !ensure_type(builder, parent)) {
        return ASK;
    }
    PyFunctionObject *function = (PyFunctionObject *)parent->value;
    switch (node->access->name[0]) {
    case 'g':
        return reach_constant_field(builder, &function->func_globals, parent, level);
    case 'b':
        return reach_constant_field(builder, &function->func_builtins, parent, level);
    default:
        return reach_closure(builder, node, function, parent, level);
    }
}

/* A field of a function that can be assigned to; nothing there reads as None. */
static Reach
reach_field(Builder *builder, PyObject **place, Level *level)
{
    add_pointer(builder, level->node, place);
    return *place ? fixed(level, *place, false) : fixed(level, Py_None, true);
}

static bool
is_named(const Node *node, const char *name)
{
    return PyUnicode_CompareWithASCIIString(node->operand, name) == 0;
}

/* Where a class that Python code has made keeps its name; NULL: the attribute is another, or its metaclass may answer.
   A class of plain `type` stays one. */
static PyObject **
name_of_class(const Node *node, PyTypeObject *type)
{
    bool qualified = is_named(node, "__qualname__");
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || Py_TYPE(type) != &PyType_Type
        || !(qualified || is_named(node, "__name__"))) {
        return NULL;
    }
    PyHeapTypeObject *heap = (PyHeapTypeObject *)type;
    return qualified ? &heap->ht_qualname : &heap->ht_name;
}

/* An attribute of a plain class that is no descriptor, or a function, which reads as itself. */
static Reach
reach_class_attribute(Builder *builder, const Node *node, Level *parent, Level *level)
{
    PyTypeObject *type = (PyTypeObject *)parent->value;
    PyObject **name = name_of_class(node, type);
    if (name) {
        add_pointer(builder, level->node, name);
        return fixed(level, *name, false);
    }
    PyObject *attribute = _PyType_Lookup(type, node->operand);
    bool plain = attribute && (Py_TYPE(attribute)->tp_descr_get == NULL || PyFunction_Check(attribute));
    if (!plain || Py_TYPE(type) != &PyType_Type || _PyType_Lookup(&PyType_Type, node->operand) != NULL
        || !note_class(builder, parent)) {
        return ASK;
    }
    return fixed(level, attribute, true);
}

static Reach
reach_attribute(Builder *builder, const Node *node, Level *parent, Level *level)
{
    if (PyType_Check(parent->value) && parent->identity_proved) {
        return reach_class_attribute(builder, node, parent, level);
    }
    if (PyFunction_Check(parent->value) && ensure_type(builder, parent)) {
        PyFunctionObject *function = (PyFunctionObject *)parent->value;
        if (is_named(node, "__code__")) {
            return reach_field(builder, &function->func_code, level);
        }
        if (is_named(node, "__defaults__")) {
            return reach_field(builder, &function->func_defaults, level);
        }
        if (is_named(node, "__kwdefaults__")) {
            return reach_field(builder, &function->func_kwdefaults, level);
        }
    }
    if (PyMethod_Check(parent->value) && ensure_type(builder, parent)) {
        PyMethodObject *method = (PyMethodObject *)parent->value;
        if (is_named(node, "__func__")) {
            return reach_constant_field(builder, &method->im_func, parent, level);
        }
        if (is_named(node, "__self__")) {
            return reach_constant_field(builder, &method->im_self, parent, level);
        }
    }
    return ASK;
}

static Reach
reach(Builder *builder, const Node *node, Level *parent, Level *level)
{
    if (node->changes >= (node->access->rule == FROM_NOWHERE ? UCHAR_MAX : 2 * TOO_OFTEN)
        || (node->access->wants_parent && (parent == NULL || parent->value == NULL))) {
        return ASK;
    }
    switch (node->access->rule) {
    case FROM_SLOT:
        return node->changes < TOO_OFTEN ? reach_slot(builder, node, level) : ASK;
    case FROM_ATTRIBUTE:
        return reach_attribute(builder, node, parent, level);
    case FROM_INSTANCE:
        return reach_instance(builder, parent, level);
    case FROM_DICT:
        return reach_key(builder, node, parent, level);
    case FROM_SEQUENCE:
        return reach_item(builder, node, parent, level);
    case FROM_CELL:
        return reach_cell(builder, parent, level);
    case FROM_OBJECT:
        add_pointer(builder, level->node, &parent->value->ob_type);
        return fixed(level, (PyObject *)Py_TYPE(parent->value), false);
    case FROM_FUNCTION:
        return reach_of_function(builder, node, parent, level);
    default:
        return fixed(level, node->operand, true);
    }
}

/* --- checks that facts cover ------------------------------------------------------------------ */

static bool
looks_inside(const Builder *builder, Py_ssize_t node)
{
    const Node *nodes = builder->guards->nodes;
    for (Py_ssize_t i = node + 1; i < nodes[node].end; i = nodes[i].end) {
        if (nodes[i].access->rule == FROM_DICT) {
            return true;
        }
    }
    for (Py_ssize_t i = nodes[node].first_check; i < nodes[node].end_check; i++) {
        CheckRule rule = builder->guards->checks[i].kind->rule;
        if (rule == BY_ORDER || rule == BY_DICT) {
            return true;
        }
    }
    return false;
}

#if PY_VERSION_HEX >= 0x030D0000
/* From 3.13 on attributes are kept in the object itself and written past its dict, until the dict has a table of its
   own: what makes CPython give it one, for good, is popping an item. This one is put there for it. */
static bool
ensure_own_table(PyDictObject *dict)
{
    if (dict->ma_values == NULL) {
        return true;
    }
    PyObject *visitor = PyUnicode_FromString("a visit of smelt");
    if (visitor && PyDict_Contains((PyObject *)dict, visitor) == 0
        && PyDict_SetItem((PyObject *)dict, visitor, Py_None) == 0) {
        PyObject *item = PyObject_CallMethod((PyObject *)dict, "popitem", NULL);
        if (item == NULL) { /* out of memory before anything was changed */
            PyErr_Clear();
            PyDict_DelItem((PyObject *)dict, visitor);
        }
        Py_XDECREF(item);
    }
    PyErr_Clear();
    Py_XDECREF(visitor);
    return dict->ma_values == NULL;
}
#endif

/* Where a dict keeps its version, which every change renews; NULL: some changes do not. */
static uint64_t *
version_of(PyDictObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    if (!ensure_own_table(dict)) {
        return NULL;
    }
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return &dict->ma_version_tag; /* until 3.13 it is there and does what it did */
#pragma GCC diagnostic pop
}

/* Before anything is read from a dict: its version, by which a change from now on shows. */
static void
note_version(Builder *builder, Level *level)
{
    if (!is_plain_dict(level->value) || !looks_inside(builder, level->node) || !ensure_type(builder, level)
        || node_at(builder, level->node)->changes >= TOO_OFTEN) {
        return;
    }
    const uint64_t *version = version_of((PyDictObject *)level->value);
    if (version) {
        add_word(builder, level->node, version, *version);
        level->versioned = true;
    }
}

/* Whether nothing can ever make the value compare otherwise. */
static bool
is_frozen(PyObject *value)
{
    if (PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            PyObject *item = PyTuple_GET_ITEM(value, i);
            if (PyTuple_CheckExact(item) || !is_frozen(item)) { /* no deeper: this is for short keys and sizes */
                return false;
            }
        }
        return true;
    }
    return value == Py_None || PyLong_CheckExact(value) || PyBool_Check(value) || PyFloat_CheckExact(value)
           || PyUnicode_CheckExact(value) || PyComplex_CheckExact(value) || PyBytes_CheckExact(value);
}

static bool
cover_type(Builder *builder, Level *level)
{
    bool is_mutable = Py_TYPE(level->value)->tp_flags & Py_TPFLAGS_HEAPTYPE || PyModule_Check(level->value);
    if (!level->typed && (is_mutable || !level->identity_proved)) { /* even if its identity is proved: __class__ can be assigned */
        add_pointer(builder, level->node, &level->value->ob_type);
    }
    level->typed = true;
    return true;
}

static bool
cover_length(Builder *builder, Level *level)
{
    PyObject *value = level->value;
    if (level->versioned) {
        return true;
    }
    if (PyTuple_CheckExact(value) || PyUnicode_CheckExact(value)) {
        return level->identity_proved;
    }
    if ((!PyList_CheckExact(value) && !is_plain_dict(value)) || !ensure_type(builder, level)) {
        return false;
    }
    const void *place = PyList_CheckExact(value) ? (void *)&((PyVarObject *)value)->ob_size
                                                 : (void *)&((PyDictObject *)value)->ma_used;
    add_word(builder, level->node, place, *(const uint64_t *)place);
    return true;
}

static bool
cover_class(Builder *builder, Level *level)
{
    return level->identity_proved && PyType_Check(level->value) && note_class(builder, level);
}

static bool
cover_tensor(Builder *builder, const Check *check, const Level *level)
{
    if (!tensor_memory_holds(check->tensor, level->value)) {
        return false;
    }
    TensorFact *fact = add_fact(builder, &builder->fastpath->tensors, level->node, sizeof *fact);
    if (fact) {
        *fact = (TensorFact){.value = level->value, .spec = check->tensor};
    }
    return true;
}

/* Of an object whose type another check owns: what its __dict__ holds, if there is one. */
static bool
cover_members(Builder *builder, Level *level)
{
    if (level->versioned) {
        return true;
    }
    PyObject **place = node_at(builder, level->node)->changes < TOO_OFTEN ? _PyObject_GetDictPtr(level->value) : NULL;
    const uint64_t *version = place && *place && PyDict_CheckExact(*place) ? version_of((PyDictObject *)*place) : NULL;
    if (version == NULL || !cover_type(builder, level)) {
        return false;
    }
    add_pointer(builder, level->node, place);
    add_word(builder, level->node, version, *version);
    level->versioned = true;
    return true;
}

/* Whether facts prove, from now on, a check that holds now. */
static bool
cover(Builder *builder, const Check *check, Level *level)
{
    switch (check->kind->rule) {
    case BY_IDENTITY:
    case BY_ABSENCE:
        return true;
    case BY_TYPE:
        return cover_type(builder, level);
    case BY_VALUE: /* the very object that the check owns, or one that is proved to be the same and cannot change */
        return level->value == operand(check, 0) || (level->identity_proved && is_frozen(level->value));
    case BY_LENGTH:
        return cover_length(builder, level);
    case BY_ORDER:
        return level->versioned && PyDict_CheckExact(level->value);
    case BY_DICT:
        return level->versioned && is_plain_key(operand(check, 0));
    case BY_CLASS:
        return cover_class(builder, level);
    case BY_TENSOR:
        return cover_tensor(builder, check, level);
    case BY_MEMBERS:
        return cover_members(builder, level);
    default:
        return false;
    }
}

/* Whether asking it now runs no code of the user's. */
static bool
is_harmless(const Check *check, const Level *level)
{
    switch (check->kind->rule) {
    case ASK_AGAIN:
    case BY_PROCESS:
    case BY_TENSOR:
        return false;
    case BY_VALUE:
        return level->value == operand(check, 0) || is_frozen(level->value);
    case BY_LENGTH:
        return PyList_CheckExact(level->value) || PyTuple_CheckExact(level->value) || is_plain_dict(level->value)
               || PyUnicode_CheckExact(level->value);
    case BY_DICT:
        return is_plain_key(operand(check, 0));
    default:
        return true;
    }
}

static void
cover_checks(Builder *builder, Level *level)
{
    const Node *node = node_at(builder, level->node);
    const Check *checks = builder->guards->checks;
    for (Py_ssize_t i = node->first_check; i < node->end_check; i++) {
        level->identity_proved |= checks[i].kind->rule == BY_IDENTITY && level->value == operand(&checks[i], 0);
    }
    for (Py_ssize_t i = node->first_check; i < node->end_check && !builder->broken; i++) {
        const Check *check = &checks[i];
        if (check->kind->rule == BY_PROCESS) {
            add_question(builder, &builder->fastpath->states, level->node, (Question){.check = check});
            continue;
        }
        bool unbound = level->value == NULL && check->kind->rule != BY_ABSENCE;
        if (unbound || (is_harmless(check, level) && !check_holds(check, level->value))) {
            builder->broken = true;
        }
        else if (!cover(builder, check, level)) {
            Question question = {.check = check, .value = level->value};
            add_question(builder, &builder->fastpath->questions, level->node, question);
        }
    }
}

/* --- the whole tree --------------------------------------------------------------------------- */

/* Writes down what there is to say of one node; returns the next to look at. */
static Py_ssize_t
build_node(Builder *builder, Py_ssize_t index, Level *parent, Level *level)
{
    const Node *node = node_at(builder, index);
    *level = (Level){.node = index};
    if (reach(builder, node, parent, level) == ASK) {
        Question question = {.value = parent ? parent->value : NULL, .first = index, .end = node->end};
        add_question(builder, &builder->fastpath->questions, index, question);
        return node->end;
    }
    if (level->value) {
        note_version(builder, level);
    }
    cover_checks(builder, level);
    if (node->collect && level->value) {
        Collected *fact = add_fact(builder, &builder->fastpath->collected, index, sizeof *fact);
        if (fact) {
            *fact = (Collected){.value = level->value, .place = node->place};
        }
    }
    builder->broken |= node->collect && level->value == NULL;
    return index + 1;
}

static void
build_nodes(Builder *builder)
{
    Py_ssize_t length = 0;
    for (Py_ssize_t i = 0; i < builder->guards->node_count && !builder->broken;) {
        while (length > node_at(builder, i)->depth) {
            Py_XDECREF(builder->levels[--length].value);
        }
        Level *level = &builder->levels[length++];
        i = build_node(builder, i, length > 1 ? level - 1 : NULL, level);
    }
    while (length > 0) {
        Py_XDECREF(builder->levels[--length].value);
    }
}

FastPath *
fastpath_build(Guards *guards, const GuardSource *source)
{
#if SIZEOF_VOID_P != 8
    return NULL;
#endif
    Builder builder = {.guards = guards, .source = source};
    builder.fastpath = PyMem_Calloc(1, sizeof *builder.fastpath);
    builder.levels = PyMem_New(Level, guards->depth);
    if (builder.fastpath == NULL || builder.levels == NULL) {
        PyMem_Free(builder.fastpath);
        PyMem_Free(builder.levels);
        return NULL;
    }
    builder.fastpath->users = 1;
    build_nodes(&builder);
    PyMem_Free(builder.levels);
    if (builder.broken) {
        fastpath_drop(builder.fastpath);
        return NULL;
    }
    return builder.fastpath;
}
