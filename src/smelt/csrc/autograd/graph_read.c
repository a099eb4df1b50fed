/* Reads autograd's graph from PyTorch's memory in one pass: the nodes that the engine would run. See _native.pyi, and
   torch_abi/node_layout.py for how the offsets are determined. */
#define PY_SSIZE_T_CLEAN
#include "autograd/graph_read.h"

#include "guards/guards.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Word;

/* Offsets in bytes, from the start of a node unless said otherwise; release is a place in the table of its class. */
static struct {
    Py_ssize_t wrapped, python_wrapped; /* the pointer to the node, in Python's object for it */
    PyTypeObject *python_base;          /* the class of those that are written in Python; NULL: no layout known */
    Py_ssize_t sequence, edges, edge_size, edge_input;
    Py_ssize_t pre, tensor_pre, retained, post; /* vectors, and how many entries a map has */
    Py_ssize_t inputs, input_size, options, shape, shape_kind;
    Py_ssize_t release;
    Word pre_class, tensor_pre_class, post_class; /* of hooks that hold a dict of Python functions */
    Py_ssize_t body, record, leaf_pre, leaf_post; /* of a leaf: its tensor, what autograd knows of it, and there hooks */
    Word leaf_post_class;
    Py_ssize_t stream; /* of an input: the stream that was current when the node was made; 0: not known */
} layout;

typedef struct {
    const char **addresses;
    Py_ssize_t count, room;
    Py_ssize_t *table; /* address → number, open addressing; -1: free */
    size_t slots;
    Word *text;
    Py_ssize_t length, text_room;
    PyObject *wrappers;
    PyObject *refused; /* why the graph cannot be read, or NULL */
    int hooked;
} Walk;

#define LEAF_SEQUENCE (~(Word)0) /* of the nodes of leaves, which run as soon as they can */
enum { RECORD_WORDS = 14 }; /* of what autograd knows of a tensor: it is longer */

static PyObject *name_next;

static Word
word_at(const char *base, Py_ssize_t offset)
{
    Word word;
    memcpy(&word, base + offset, sizeof word);
    return word;
}

static const char *
pointer_at(const char *base, Py_ssize_t offset)
{
    return (const char *)(uintptr_t)word_at(base, offset);
}

static Py_ssize_t
vector_bytes(const char *base, Py_ssize_t offset)
{
    return pointer_at(base, offset + 8) - pointer_at(base, offset);
}

static int
put(Walk *walk, Word word)
{
    if (walk->length == walk->text_room) {
        Py_ssize_t room = walk->text_room ? 2 * walk->text_room : 512;
        Word *text = PyMem_Realloc(walk->text, (size_t)room * sizeof *text);
        if (text == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        walk->text = text;
        walk->text_room = room;
    }
    walk->text[walk->length++] = word;
    return 0;
}

static size_t
slot_of(const Walk *walk, const char *address)
{
    size_t slot = ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15u >> 20 & (walk->slots - 1);
    while (walk->table[slot] >= 0 && walk->addresses[walk->table[slot]] != address) {
        slot = (slot + 1) & (walk->slots - 1);
    }
    return slot;
}

static int
grow(Walk *walk)
{
    Py_ssize_t room = walk->room ? 2 * walk->room : 64;
    const char **addresses = PyMem_Realloc(walk->addresses, (size_t)room * sizeof *addresses);
    if (addresses == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    walk->addresses = addresses;
    walk->room = room;
    PyMem_Free(walk->table);
    walk->slots = 4 * (size_t)room;
    walk->table = PyMem_Malloc(walk->slots * sizeof *walk->table);
    if (walk->table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(walk->table, 0xFF, walk->slots * sizeof *walk->table);
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        walk->table[slot_of(walk, addresses[i])] = i;
    }
    return 0;
}

/* The number of a node, which is noted if it is new; -1 with an exception. */
static Py_ssize_t
number_of(Walk *walk, const char *address, PyObject *wrapper)
{
    if (walk->count == walk->room && grow(walk) < 0) {
        return -1;
    }
    size_t slot = slot_of(walk, address);
    if (walk->table[slot] < 0) {
        if (PyList_Append(walk->wrappers, wrapper) < 0) {
            return -1;
        }
        walk->table[slot] = walk->count;
        walk->addresses[walk->count++] = address;
    }
    return walk->table[slot];
}

static const char *
wrapped_node(PyObject *wrapper)
{
    Py_ssize_t place = PyObject_TypeCheck(wrapper, layout.python_base) ? layout.python_wrapped : layout.wrapped;
    return pointer_at((const char *)wrapper, place);
}

static int
put_inputs(Walk *walk, const char *node)
{
    const char *inputs = pointer_at(node, layout.inputs);
    uint32_t count;
    memcpy(&count, node + layout.inputs + 8, sizeof count);
    if (put(walk, count) < 0) {
        return -1;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *input = inputs + i * layout.input_size;
        if ((word_at(input, layout.shape_kind) & 0xFF) != 0) {
            walk->refused = PyUnicode_FromString("a nested tensor takes part");
            return walk->refused ? 0 : -1;
        }
        const char *sizes = pointer_at(input, layout.shape);
        uint32_t rank;
        memcpy(&rank, input + layout.shape + 8, sizeof rank);
        Word stream = layout.stream ? word_at(input, layout.stream) : 0;
        if (put(walk, word_at(input, layout.options)) < 0 || put(walk, rank | (Word)(stream != 0) << 32) < 0 ||
            (stream != 0 && put(walk, stream) < 0)) {
            return -1;
        }
        for (uint32_t dimension = 0; dimension < rank; dimension++) {
            if (put(walk, word_at(sizes, 8 * (Py_ssize_t)dimension)) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

static int
put_edges(Walk *walk, const char *node, PyObject *wrapper)
{
    const char *edges = pointer_at(node, layout.edges);
    Py_ssize_t count = vector_bytes(node, layout.edges) / layout.edge_size;
    if (put(walk, (Word)count) < 0) {
        return -1;
    }
    if (count == 0) {
        return 0;
    }
    PyObject *functions = PyObject_GetAttr(wrapper, name_next);
    if (functions == NULL || !PyTuple_Check(functions) || PyTuple_GET_SIZE(functions) != count) {
        if (functions != NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a node's edges are not where they were found to be");
            Py_DECREF(functions);
        }
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *edge = edges + i * layout.edge_size;
        const char *next = pointer_at(edge, 0);
        uint32_t input;
        memcpy(&input, edge + layout.edge_input, sizeof input);
        Word text = 0;
        if (next != NULL) {
            Py_ssize_t number = number_of(walk, next, PyTuple_GET_ITEM(PyTuple_GET_ITEM(functions, i), 0));
            if (number < 0) {
                Py_DECREF(functions);
                return -1;
            }
            text = (Word)(number + 1) << 32 | input;
        }
        if (put(walk, text) < 0) {
            Py_DECREF(functions);
            return -1;
        }
    }
    Py_DECREF(functions);
    return 0;
}

static int
put_node(Walk *walk, const char *node, PyObject *wrapper)
{
    Word retained = word_at(node, layout.retained);
    Word hooks = (Word)(vector_bytes(node, layout.pre) / 8) | (Word)(vector_bytes(node, layout.tensor_pre) / 8) << 16 |
                 (Word)(vector_bytes(node, layout.post) / 8) << 32 | retained << 48;
    walk->hooked |= hooks != 0;
    if (put(walk, word_at(node, 0)) < 0 || put(walk, hooks) < 0 || put_inputs(walk, node) < 0) {
        return -1;
    }
    return walk->refused ? 0 : put_edges(walk, node, wrapper);
}

typedef struct {
    Word sequence;
    Py_ssize_t number;
} Rank;

static int
by_sequence(const void *left, const void *right)
{
    const Rank *one = left, *other = right;
    if (one->sequence != other->sequence) {
        return one->sequence < other->sequence ? -1 : 1;
    }
    return one->number < other->number ? -1 : one->number > other->number;
}

/* The engine runs later nodes first: the order in which they came about is part of what it does. */
static int
put_order(Walk *walk)
{
    Rank *ranks = PyMem_Malloc((size_t)(walk->count + 1) * sizeof *ranks);
    if (ranks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int sorted = 1;
    for (Py_ssize_t i = 0; i < walk->count; i++) {
        ranks[i] = (Rank){word_at(walk->addresses[i], layout.sequence), i};
        sorted &= i == 0 || by_sequence(&ranks[i - 1], &ranks[i]) < 0;
    }
    if (!sorted) {
        qsort(ranks, (size_t)walk->count, sizeof *ranks, by_sequence);
    }
    int failed = 0;
    for (Py_ssize_t i = 0; i < walk->count && !failed; i++) {
        failed = put(walk, (Word)ranks[i].number) < 0;
    }
    PyMem_Free(ranks);
    return failed ? -1 : 0;
}

static int
walk_from(Walk *walk, PyObject *roots)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
        PyObject *wrapper = PyTuple_GET_ITEM(roots, i);
        Py_ssize_t number = number_of(walk, wrapped_node(wrapper), wrapper);
        if (number < 0 || put(walk, (Word)number) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < walk->count && !walk->refused; i++) {
        if (put_node(walk, walk->addresses[i], PyList_GET_ITEM(walk->wrappers, i)) < 0) {
            return -1;
        }
    }
    return walk->refused ? 0 : put_order(walk);
}

static void
drop_walk(Walk *walk)
{
    PyMem_Free(walk->addresses);
    PyMem_Free(walk->table);
    PyMem_Free(walk->text);
    Py_XDECREF(walk->wrappers);
    Py_XDECREF(walk->refused);
}

/* What is read of nodes, besides: plain values that they saved, and the tensors. */
typedef struct {
    PyObject *kinds, *learn, *exactly, *describe, *number; /* borrowed */
    PyObject *values;                             /* those that are compared as objects */
    PyObject *tensors;
    PyObject *special; /* the numbers of nodes that Python looks at itself */
} Reading;

static PyObject *name_variable, *name_unpack_hook, *name_data_ptr, *name_grad_dtype, *name_requires_grad;

static int
is_exact(PyObject *value)
{
    if (value == Py_None || PyLong_CheckExact(value)) {
        return 1;
    }
    if (!PyTuple_CheckExact(value)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, i))) {
            return 0;
        }
    }
    return 1;
}

/* Appends a new reference, or what a Python function makes of it; takes the reference over. */
static int
append_value(PyObject *list, PyObject *value, PyObject *through)
{
    if (value != NULL && through != NULL) {
        PyObject *converted = PyObject_CallOneArg(through, value);
        Py_DECREF(value);
        value = converted;
    }
    int failed = value == NULL || PyList_Append(list, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* The layout of a tensor: from memory, or asked. */
static int
put_tensor(Walk *walk, Reading *reading, PyObject *tensor)
{
    uint64_t words[TENSOR_WORDS];
    int count = tensor_memory_words(tensor, words);
    if (put(walk, (Word)(uintptr_t)Py_TYPE(tensor)) < 0 || put(walk, (Word)count) < 0) {
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (put(walk, words[i]) < 0) {
            return -1;
        }
    }
    if (count && words[0] == 0 && append_value(reading->values, Py_NewRef(tensor), reading->number) < 0) {
        return -1;
    }
    return count ? 0 : append_value(reading->values, Py_NewRef(tensor), reading->describe);
}

static int
put_saved(Walk *walk, Reading *reading, PyObject *saved)
{
    if (saved == Py_None) {
        return put(walk, ~(Word)0);
    }
    if (!PyTuple_Check(saved) && !PyList_Check(saved)) {
        return put_tensor(walk, reading, saved) < 0 ? -1 : PyList_Append(reading->tensors, saved);
    }
    PyObject *items = PySequence_Fast(saved, "");
    int failed = items == NULL || put(walk, (Word)PySequence_Fast_GET_SIZE(items)) < 0;
    for (Py_ssize_t i = 0; !failed && i < PySequence_Fast_GET_SIZE(items); i++) {
        failed = put_saved(walk, reading, PySequence_Fast_GET_ITEM(items, i)) < 0;
    }
    Py_XDECREF(items);
    return failed ? -1 : 0;
}

/* Whether hooks have packed what a node saved; `raw` is the attribute that tells. -1: an exception. */
static int
is_packed(PyObject *node, PyObject *raw)
{
    PyObject *saved = PyObject_GetAttr(node, raw);
    if (saved != NULL && (PyTuple_Check(saved) || PyList_Check(saved))) {
        PyObject *first = PySequence_Size(saved) > 0 ? PySequence_GetItem(saved, 0) : Py_NewRef(Py_None);
        Py_SETREF(saved, first);
    }
    if (saved == NULL || saved == Py_None) {
        Py_XDECREF(saved);
        return saved == NULL ? -1 : 0;
    }
    PyObject *hook = PyObject_GetAttr(saved, name_unpack_hook);
    Py_DECREF(saved);
    if (hook == NULL) { /* a PyTorch that does not tell: it may be */
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 1;
    }
    Py_DECREF(hook);
    return hook != Py_None;
}

/* Which of a node's tensors are one: the tracer tells them apart by where they lie. */
static int
put_places(Reading *reading, Py_ssize_t first)
{
    Py_ssize_t count = PyList_GET_SIZE(reading->tensors) - first;
    if (count < 2) {
        return 0;
    }
    PyObject *places = PyTuple_New(count), *same = PyTuple_New(count);
    int failed = places == NULL || same == NULL;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *place = PyObject_CallMethodNoArgs(PyList_GET_ITEM(reading->tensors, first + i), name_data_ptr);
        if (place == NULL) {
            failed = 1;
            break;
        }
        PyTuple_SET_ITEM(places, i, place);
        Py_ssize_t index = PySequence_Index(places, place);
        PyObject *number = index < 0 ? NULL : PyLong_FromSsize_t(index);
        failed = number == NULL;
        if (!failed) {
            PyTuple_SET_ITEM(same, i, number);
        }
    }
    Py_XDECREF(places);
    if (failed) {
        Py_XDECREF(same);
        return -1;
    }
    return append_value(reading->values, same, NULL);
}

static int
read_saved(Walk *walk, Reading *reading, PyObject *node, PyObject *kind)
{
    PyObject *plain = PyTuple_GET_ITEM(kind, 1), *tensors = PyTuple_GET_ITEM(kind, 2), *raw = PyTuple_GET_ITEM(kind, 3);
    if (raw != Py_None) {
        int packed = is_packed(node, raw);
        if (packed) {
            if (packed > 0) {
                walk->refused =
                    PyUnicode_FromString("saved tensors were packed by hooks, as by torch.utils.checkpoint");
            }
            return packed > 0 && walk->refused ? 0 : -1;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); i++) {
        PyObject *value = PyObject_GetAttr(node, PyTuple_GET_ITEM(plain, i));
        if (append_value(reading->values, value, value == NULL || is_exact(value) ? NULL : reading->exactly) < 0) {
            return -1;
        }
    }
    Py_ssize_t first = PyList_GET_SIZE(reading->tensors);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); i++) {
        PyObject *saved = PyObject_GetAttr(node, PyTuple_GET_ITEM(tensors, i));
        int failed = saved == NULL || put_saved(walk, reading, saved) < 0;
        Py_XDECREF(saved);
        if (failed) {
            return -1;
        }
    }
    return put_places(reading, first);
}

static int
note_special(Reading *reading, Py_ssize_t number)
{
    return append_value(reading->special, PyLong_FromSsize_t(number), NULL);
}

/* What autograd knows of a leaf. */
static const char *
record_of(PyObject *leaf)
{
    return pointer_at(pointer_at((const char *)leaf, layout.body), layout.record);
}

static int
read_leaf(Walk *walk, Reading *reading, PyObject *node, Py_ssize_t number)
{
    PyObject *leaf = PyObject_GetAttr(node, name_variable);
    if (leaf == NULL) {
        return -1;
    }
    PyObject *dtype = PyObject_GetAttr(leaf, name_grad_dtype);
    if (dtype == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear(); /* a PyTorch in which it is that of the leaf */
        dtype = Py_NewRef(Py_None);
    }
    const char *record = record_of(leaf);
    int hooked = record == NULL || vector_bytes(record, layout.leaf_pre) || word_at(record, layout.leaf_post);
    PyObject *taking = dtype == NULL ? NULL : PyObject_GetAttr(leaf, name_requires_grad); /* it may have ceased to */
    int failed = append_value(reading->values, dtype, NULL) < 0 || taking == NULL ||
                 put_tensor(walk, reading, leaf) < 0 ||
                 ((hooked || taking != Py_True) && note_special(reading, number) < 0);
    Py_XDECREF(taking);
    Py_DECREF(leaf);
    return failed ? -1 : 0;
}

/* Kinds are (what to do, plain attributes, attributes with tensors, one that tells of hooks): 0 a leaf, 1 read it, 2 for
   Python to look at. */
static int
read_node(Walk *walk, Reading *reading, Py_ssize_t number)
{
    PyObject *node = PyList_GET_ITEM(walk->wrappers, number);
    if (PyObject_TypeCheck(node, layout.python_base)) {
        return note_special(reading, number);
    }
    PyObject *kind = PyDict_GetItemWithError(reading->kinds, (PyObject *)Py_TYPE(node));
    if (kind == NULL) {
        if (PyErr_Occurred()) {
            return -1;
        }
        PyObject *learned = PyObject_CallOneArg(reading->learn, node);
        int kept = learned == NULL ? -1 : PyDict_SetItem(reading->kinds, (PyObject *)Py_TYPE(node), learned);
        Py_XDECREF(learned);
        if (kept < 0) {
            return -1;
        }
        kind = PyDict_GetItemWithError(reading->kinds, (PyObject *)Py_TYPE(node));
    }
    long what = kind == NULL ? -1 : PyLong_AsLong(PyTuple_GET_ITEM(kind, 0));
    if (what < 0) {
        return -1;
    }
    return what == 0   ? read_leaf(walk, reading, node, number)
           : what == 1 ? read_saved(walk, reading, node, kind)
                       : note_special(reading, number);
}

PyObject *
read_graph(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *roots;
    Reading reading = {0};
    if (!PyArg_ParseTuple(args, "O!O!OOOO", &PyTuple_Type, &roots, &PyDict_Type, &reading.kinds, &reading.learn,
                          &reading.exactly, &reading.describe, &reading.number)) {
        return NULL;
    }
    if (layout.python_base == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "read_graph() needs a node layout");
        return NULL;
    }
    Walk walk = {.wrappers = PyList_New(0)};
    reading.values = PyList_New(0);
    reading.tensors = PyList_New(0);
    reading.special = PyList_New(0);
    PyObject *result = NULL;
    int failed = !walk.wrappers || !reading.values || !reading.tensors || !reading.special || walk_from(&walk, roots) < 0;
    for (Py_ssize_t i = 0; !failed && !walk.refused && i < walk.count; i++) {
        failed = read_node(&walk, &reading, i) < 0;
    }
    if (!failed && walk.refused) {
        result = Py_NewRef(walk.refused);
    }
    else if (!failed) {
        result = Py_BuildValue("(Oy#Oy#iOO)", walk.wrappers, (char *)walk.text, walk.length * 8, reading.values,
                               (char *)walk.addresses, walk.count * 8, walk.hooked, reading.tensors, reading.special);
    }
    drop_walk(&walk);
    Py_XDECREF(reading.values);
    Py_XDECREF(reading.tensors);
    Py_XDECREF(reading.special);
    return result;
}

/* A node, and when it was made: false where it was made too early, has hooks or is written in Python. */
static bool
put_outline(Walk *walk, Py_ssize_t number, Word first)
{
    const char *node = walk->addresses[number];
    PyObject *wrapper = PyList_GET_ITEM(walk->wrappers, number);
    const Word made = word_at(node, layout.sequence);
    if ((made != LEAF_SEQUENCE && made < first) || PyObject_TypeCheck(wrapper, layout.python_base)) {
        return false;
    }
    return put(walk, made == LEAF_SEQUENCE ? made : made - first) == 0 && put_node(walk, node, wrapper) == 0
           && walk->refused == NULL && !walk->hooked;
}

PyObject *
outline_graph(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *root, *result = NULL;
    unsigned long long first;
    if (!PyArg_ParseTuple(args, "OK:outline_graph", &root, &first)) {
        return NULL;
    }
    if (layout.python_base == NULL) {
        Py_RETURN_NONE;
    }
    Walk walk = {.wrappers = PyList_New(0)};
    bool is_read = walk.wrappers && number_of(&walk, wrapped_node(root), root) == 0;
    for (Py_ssize_t i = 0; is_read && i < walk.count; i++) {
        is_read = put_outline(&walk, i, first);
    }
    if (is_read) {
        result = Py_BuildValue("(y#y#O)", (char *)walk.text, walk.length * 8, (char *)walk.addresses, walk.count * 8,
                               walk.wrappers);
    }
    drop_walk(&walk);
    return result || PyErr_Occurred() ? result : Py_NewRef(Py_None);
}

Py_ssize_t
accumulator_place(PyObject *leaf, uint64_t address)
{
    const char *record = record_of(leaf);
    for (Py_ssize_t place = 0; record && place < RECORD_WORDS * 8; place += 8) {
        if (word_at(record, place) == address) {
            return place;
        }
    }
    return -1;
}

bool
leaf_is_plain(PyObject *leaf, Py_ssize_t place, uint64_t address)
{
    const char *record = layout.python_base ? record_of(leaf) : NULL;
    return record && word_at(record, place) == address && vector_bytes(record, layout.leaf_pre) == 0
           && word_at(record, layout.leaf_post) == 0;
}

int
nodes_init(void)
{
    name_variable = PyUnicode_InternFromString("variable");
    name_unpack_hook = PyUnicode_InternFromString("unpack_hook");
    name_data_ptr = PyUnicode_InternFromString("data_ptr");
    name_grad_dtype = PyUnicode_InternFromString("grad_dtype");
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    name_next = PyUnicode_InternFromString("next_functions");
    return name_variable && name_unpack_hook && name_data_ptr && name_grad_dtype && name_requires_grad && name_next
               ? 0
               : -1;
}

static int
add_hooks(PyObject *hooks, const char *node, Py_ssize_t place, Word known, const char *kind)
{
    const char *first = pointer_at(node, place);
    for (Py_ssize_t i = 0; i < vector_bytes(node, place) / 8; i++) {
        const char *hook = pointer_at(first, 8 * i);
        int is_known = word_at(hook, 0) == known;
        PyObject *functions = is_known ? (PyObject *)(uintptr_t)word_at(hook, 8) : Py_None;
        Word index = is_known && known == layout.tensor_pre_class ? word_at(hook, 16) : 0;
        PyObject *entry = Py_BuildValue("(sOK)", kind, functions, (unsigned long long)index);
        if (entry == NULL || PyList_Append(hooks, entry) < 0) {
            Py_XDECREF(entry);
            return -1;
        }
        Py_DECREF(entry);
    }
    return 0;
}

PyObject *
node_hooks(PyObject *Py_UNUSED(module), PyObject *address)
{
    const char *node = PyLong_AsVoidPtr(address);
    if (node == NULL) {
        return NULL;
    }
    PyObject *hooks = PyList_New(0);
    if (hooks == NULL || add_hooks(hooks, node, layout.tensor_pre, layout.tensor_pre_class, "tensor_pre_hook") < 0 ||
        add_hooks(hooks, node, layout.pre, layout.pre_class, "pre_hook") < 0 ||
        add_hooks(hooks, node, layout.post, layout.post_class, "post_hook") < 0) {
        Py_XDECREF(hooks);
        return NULL;
    }
    PyObject *result = Py_BuildValue("(NK)", hooks, (unsigned long long)word_at(node, layout.retained));
    return result;
}

PyObject *
leaf_hooks(PyObject *Py_UNUSED(module), PyObject *leaf)
{
    const char *record = record_of(leaf);
    PyObject *hooks = PyList_New(0);
    if (hooks == NULL || record == NULL) {
        return hooks;
    }
    if (add_hooks(hooks, record, layout.leaf_pre, layout.tensor_pre_class, "tensor_pre_hook") < 0) {
        Py_DECREF(hooks);
        return NULL;
    }
    const char *later = pointer_at(record, layout.leaf_post);
    if (later != NULL) {
        int is_known = word_at(later, 0) == layout.leaf_post_class;
        PyObject *functions = is_known ? (PyObject *)(uintptr_t)word_at(later, 8) : Py_None;
        PyObject *entry = Py_BuildValue("(sOK)", "post_accumulate_grad_hook", functions, 0ULL);
        if (append_value(hooks, entry, NULL) < 0) {
            Py_DECREF(hooks);
            return NULL;
        }
    }
    return hooks;
}

PyObject *
release_nodes(PyObject *Py_UNUSED(module), PyObject *addresses)
{
    if (!PyBytes_Check(addresses)) {
        PyErr_SetString(PyExc_TypeError, "release_nodes() needs the addresses that walk_graph() gave");
        return NULL;
    }
    const char *nodes = PyBytes_AS_STRING(addresses);
    Py_ssize_t count = PyBytes_GET_SIZE(addresses) / 8;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        char *node = (char *)(uintptr_t)word_at(nodes, 8 * i);
        void (*release)(void *) = ((void (**)(void *))pointer_at(node, 0))[layout.release];
        release(node);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
set_node_layout(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"python_base", "wrapped", "python_wrapped", "sequence", "edges", "edge_size", "edge_input",
                            "pre", "tensor_pre", "retained", "post", "inputs", "input_size", "options", "shape",
                            "shape_kind", "release", "pre_class", "tensor_pre_class", "post_class", "body", "record",
                            "leaf_pre", "leaf_post", "leaf_post_class", NULL};
    PyObject *base;
    unsigned long long pre, tensor_pre, post, leaf_post;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!nnnnnnnnnnnnnnnnKKKnnnnK", names, &PyType_Type, &base, &layout.wrapped, &layout.python_wrapped,
            &layout.sequence, &layout.edges, &layout.edge_size, &layout.edge_input, &layout.pre, &layout.tensor_pre,
            &layout.retained, &layout.post, &layout.inputs, &layout.input_size, &layout.options, &layout.shape,
            &layout.shape_kind, &layout.release, &pre, &tensor_pre, &post, &layout.body,
            &layout.record, &layout.leaf_pre, &layout.leaf_post, &leaf_post)) {
        return NULL;
    }
    layout.pre_class = pre;
    layout.tensor_pre_class = tensor_pre;
    layout.post_class = post;
    layout.leaf_post_class = leaf_post;
    layout.python_base = (PyTypeObject *)Py_NewRef(base);
    Py_RETURN_NONE;
}

PyObject *
set_node_stream(PyObject *Py_UNUSED(module), PyObject *offset)
{
    Py_ssize_t place = PyLong_AsSsize_t(offset);
    if (place == -1 && PyErr_Occurred()) {
        return NULL;
    }
    layout.stream = place;
    Py_RETURN_NONE;
}
