/* Autograd's graph, read where it lies: what the engine would run, in one pass. See _native.pyi, and
   autograd/nodelayout.py for how the places are found. */
#define PY_SSIZE_T_CLEAN
#include "nodes.h"

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
        if (put(walk, word_at(input, layout.options)) < 0 || put(walk, rank) < 0) {
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
    PyObject *found = PyObject_GetAttrString(wrapper, "next_functions");
    if (found == NULL || !PyTuple_Check(found) || PyTuple_GET_SIZE(found) != count) {
        if (found != NULL) {
            PyErr_SetString(PyExc_RuntimeError, "a node's edges are not where they were found to be");
            Py_DECREF(found);
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
            Py_ssize_t number = number_of(walk, next, PyTuple_GET_ITEM(PyTuple_GET_ITEM(found, i), 0));
            if (number < 0) {
                Py_DECREF(found);
                return -1;
            }
            text = (Word)(number + 1) << 32 | input;
        }
        if (put(walk, text) < 0) {
            Py_DECREF(found);
            return -1;
        }
    }
    Py_DECREF(found);
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

PyObject *
walk_graph(PyObject *Py_UNUSED(module), PyObject *roots)
{
    if (layout.python_base == NULL || !PyTuple_Check(roots)) {
        PyErr_SetString(PyExc_RuntimeError, "walk_graph() needs a node layout and a tuple of nodes");
        return NULL;
    }
    Walk walk = {.wrappers = PyList_New(0)};
    PyObject *result = NULL;
    if (walk.wrappers != NULL && walk_from(&walk, roots) == 0) {
        result = walk.refused ? Py_NewRef(walk.refused)
                              : Py_BuildValue("(Oy#y#i)", walk.wrappers, (char *)walk.text, walk.length * 8,
                                              (char *)walk.addresses, walk.count * 8, walk.hooked);
    }
    PyMem_Free(walk.addresses);
    PyMem_Free(walk.table);
    PyMem_Free(walk.text);
    Py_XDECREF(walk.wrappers);
    Py_XDECREF(walk.refused);
    return result;
}

static int
add_hooks(PyObject *found, const char *node, Py_ssize_t place, Word known, const char *kind)
{
    const char *first = pointer_at(node, place);
    for (Py_ssize_t i = 0; i < vector_bytes(node, place) / 8; i++) {
        const char *hook = pointer_at(first, 8 * i);
        int is_known = word_at(hook, 0) == known;
        PyObject *functions = is_known ? (PyObject *)(uintptr_t)word_at(hook, 8) : Py_None;
        Word index = is_known && place == layout.tensor_pre ? word_at(hook, 16) : 0;
        PyObject *entry = Py_BuildValue("(sOK)", kind, functions, (unsigned long long)index);
        if (entry == NULL || PyList_Append(found, entry) < 0) {
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
    PyObject *found = PyList_New(0);
    if (found == NULL || add_hooks(found, node, layout.tensor_pre, layout.tensor_pre_class, "tensor_pre_hook") < 0 ||
        add_hooks(found, node, layout.pre, layout.pre_class, "pre_hook") < 0 ||
        add_hooks(found, node, layout.post, layout.post_class, "post_hook") < 0) {
        Py_XDECREF(found);
        return NULL;
    }
    PyObject *result = Py_BuildValue("(NK)", found, (unsigned long long)word_at(node, layout.retained));
    return result;
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
                            "shape_kind", "release", "pre_class", "tensor_pre_class", "post_class", NULL};
    PyObject *base;
    unsigned long long pre, tensor_pre, post;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!nnnnnnnnnnnnnnnnKKK", names, &PyType_Type, &base, &layout.wrapped, &layout.python_wrapped,
            &layout.sequence, &layout.edges, &layout.edge_size, &layout.edge_input, &layout.pre, &layout.tensor_pre,
            &layout.retained, &layout.post, &layout.inputs, &layout.input_size, &layout.options, &layout.shape,
            &layout.shape_kind, &layout.release, &pre, &tensor_pre, &post)) {
        return NULL;
    }
    layout.pre_class = pre;
    layout.tensor_pre_class = tensor_pre;
    layout.post_class = post;
    layout.python_base = (PyTypeObject *)Py_NewRef(base);
    Py_RETURN_NONE;
}
