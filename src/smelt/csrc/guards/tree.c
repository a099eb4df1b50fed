/* Guards as a Python type: builds the tree from nested tuples, and checks it against slots. */
#include "guards/guards.h"

#include <stddef.h>
#include <structmember.h>

/* --- building --------------------------------------------------------------------------------- */

/* Makes room for one more in an array that doubles. 0, or -1 with an exception. */
static int
make_room(void **array, Py_ssize_t count, size_t item)
{
    if (count & (count - 1)) { /* grows when the count is zero or a power of two */
        return 0;
    }
    void *larger = PyMem_Realloc(*array, (count ? 2 * (size_t)count : 1) * item);
    if (larger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *array = larger;
    return 0;
}

static int
add_check(Guards *self, PyObject *spec)
{
    if (!PyTuple_Check(spec) || PyTuple_GET_SIZE(spec) < 1) {
        PyErr_Format(PyExc_TypeError, "a guard check must be a tuple (kind, ...), not %R", spec);
        return -1;
    }
    const CheckKind *kind = find_check(PyTuple_GET_ITEM(spec, 0));
    if (kind == NULL || make_room((void **)&self->checks, self->check_count, sizeof(Check)) < 0) {
        return -1;
    }
    if (PyTuple_GET_SIZE(spec) != kind->operands + 1) {
        PyErr_Format(PyExc_TypeError, "guard check \"%s\" takes %zd operands, got %R", kind->name, kind->operands,
                     spec);
        return -1;
    }
    Check *check = &self->checks[self->check_count++];
    *check = (Check){.kind = kind, .spec = spec};
    return kind->prepare ? kind->prepare(check) : 0;
}

static int
set_access(Node *node, PyObject *accessor)
{
    if (!PyTuple_Check(accessor) || PyTuple_GET_SIZE(accessor) < 1) {
        PyErr_Format(PyExc_TypeError, "a guard accessor must be a tuple (kind, ...), not %R", accessor);
        return -1;
    }
    node->access = find_access(PyTuple_GET_ITEM(accessor, 0));
    if (node->access == NULL) {
        return -1;
    }
    Py_ssize_t operands = node->access->operand == NO_OPERAND ? 0 : 1;
    PyObject *operand = PyTuple_GET_SIZE(accessor) == 2 ? PyTuple_GET_ITEM(accessor, 1) : NULL;
    if (PyTuple_GET_SIZE(accessor) != operands + 1
        || (node->access->operand == NAME_OPERAND && !PyUnicode_CheckExact(operand))) {
        PyErr_Format(PyExc_TypeError, "wrong operand in guard accessor %R", accessor);
        return -1;
    }
    if (node->access->operand == INDEX_OPERAND) {
        node->index = PyNumber_AsSsize_t(operand, PyExc_OverflowError);
        if (node->index < 0) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "negative index in guard accessor %R", accessor);
            }
            return -1;
        }
        return 0;
    }
    node->operand = Py_XNewRef(operand);
    if (node->access->operand == NAME_OPERAND) {
        PyUnicode_InternInPlace(&node->operand);
    }
    return 0;
}

/* Appends one node; *children is borrowed from it. */
static int
add_node(Guards *self, PyObject *spec, Py_ssize_t depth, PyObject **children)
{
    if (!PyTuple_Check(spec) || PyTuple_GET_SIZE(spec) != 5) {
        PyErr_Format(PyExc_TypeError, "a guard node must be (accessor, checks, children, collect, text), not %R", spec);
        return -1;
    }
    PyObject *checks = PyTuple_GET_ITEM(spec, 1), *text = PyTuple_GET_ITEM(spec, 4);
    *children = PyTuple_GET_ITEM(spec, 2);
    if (!PyTuple_Check(checks) || !PyTuple_Check(*children) || !PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "a guard node needs tuples of checks and children and a str, got %R", spec);
        return -1;
    }
    int collect = PyObject_IsTrue(PyTuple_GET_ITEM(spec, 3));
    if (collect < 0 || make_room((void **)&self->nodes, self->node_count, sizeof(Node)) < 0) {
        return -1;
    }
    Node *node = &self->nodes[self->node_count++];
    *node = (Node){.depth = depth, .text = text, .collect = collect, .place = self->collected, .first_check = self->check_count};
    if (set_access(node, PyTuple_GET_ITEM(spec, 0)) < 0) {
        return -1;
    }
    if (depth == 0 && node->access->wants_parent) {
        PyErr_Format(PyExc_ValueError, "guard accessor %R cannot stand at the root", PyTuple_GET_ITEM(spec, 0));
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
        if (add_check(self, PyTuple_GET_ITEM(checks, i)) < 0) {
            return -1;
        }
    }
    node->end_check = self->check_count;
    self->collected += collect;
    self->depth = depth + 1 > self->depth ? depth + 1 : self->depth;
    return 0;
}

/* Where the building stands on each level: trees can be deeper than the C stack. */
typedef struct {
    PyObject *siblings; /* borrowed */
    Py_ssize_t next;
} Level;

/* Where each node's subtree ends: at the next node that is no deeper. */
static int
find_ends(Guards *self)
{
    Py_ssize_t *open = PyMem_New(Py_ssize_t, self->depth); /* the node on each level that has not ended yet */
    Py_ssize_t levels = 0;
    if (open == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i <= self->node_count; i++) {
        Py_ssize_t depth = i < self->node_count ? self->nodes[i].depth : 0;
        while (levels > depth) {
            self->nodes[open[--levels]].end = i;
        }
        if (i < self->node_count) {
            open[levels++] = i;
        }
    }
    PyMem_Free(open);
    return 0;
}

static int
build(Guards *self)
{
    Level *levels = NULL;
    Py_ssize_t depth = 0;
    PyObject *descend = self->roots;
    int status = 0;
    while (status == 0) {
        if (descend) {
            status = make_room((void **)&levels, depth, sizeof(Level));
            if (status == 0) {
                levels[depth++] = (Level){.siblings = descend};
            }
        }
        while (status == 0 && depth > 0 && levels[depth - 1].next == PyTuple_GET_SIZE(levels[depth - 1].siblings)) {
            depth--;
        }
        if (status < 0 || depth == 0) {
            break;
        }
        Level *level = &levels[depth - 1];
        PyObject *children = NULL;
        status = add_node(self, PyTuple_GET_ITEM(level->siblings, level->next++), depth - 1, &children);
        descend = children && PyTuple_GET_SIZE(children) ? children : NULL;
    }
    PyMem_Free(levels);
    return status < 0 ? status : find_ends(self);
}

/* --- the Python type -------------------------------------------------------------------------- */

static PyObject *
guards_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"roots", "distinct", "sizes", NULL};
    PyObject *roots, *sizes = Py_None;
    int distinct = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|pO:Guards", keywords, &PyTuple_Type, &roots, &distinct,
                                     &sizes)) {
        return NULL;
    }
    Guards *self = (Guards *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->roots = Py_NewRef(roots);
    self->distinct = distinct;
    if (build(self) < 0 || (sizes != Py_None && !(self->sizes = size_facts_make(sizes, self->collected)))) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
guards_traverse(Guards *self, visitproc visit, void *arg)
{
    Py_VISIT(self->roots);
    for (Py_ssize_t i = 0; i < self->node_count; i++) {
        Py_VISIT(self->nodes[i].operand);
    }
    return 0;
}

/* All at once, and unreachable before anything is let go: what nodes and checks borrow lives in the roots. */
static int
guards_clear(Guards *self)
{
    PyObject *roots = self->roots;
    Node *nodes = self->nodes;
    Py_ssize_t node_count = self->node_count;
    Check *checks = self->checks;
    Py_ssize_t check_count = self->check_count;
    SizeFacts *sizes = self->sizes;
    self->sizes = NULL;
    fastpath_drop(self->fastpath);
    self->fastpath = NULL;
    self->roots = NULL;
    self->nodes = NULL;
    self->checks = NULL;
    self->node_count = self->check_count = self->collected = 0;
    for (Py_ssize_t i = 0; i < node_count; i++) {
        Py_XDECREF(nodes[i].operand);
    }
    for (Py_ssize_t i = 0; i < check_count; i++) {
        PyMem_Free(checks[i].tensor);
    }
    PyMem_Free(nodes);
    PyMem_Free(checks);
    size_facts_drop(sizes);
    Py_XDECREF(roots);
    return 0;
}

static void
guards_dealloc(Guards *self)
{
    PyObject_GC_UnTrack(self);
    guards_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
guards_check(Guards *self, PyObject *sequence)
{
    PyObject *slots = PySequence_Tuple(sequence);
    PyObject **collected = slots ? PyMem_New(PyObject *, self->collected) : NULL;
    PyObject *result = NULL;
    if (collected == NULL) {
        Py_XDECREF(slots);
        return slots ? PyErr_NoMemory() : NULL;
    }
    GuardSource source = {.slots = &PyTuple_GET_ITEM(slots, 0), .count = PyTuple_GET_SIZE(slots)};
    if (!guards_hold(self, &source, collected, NULL)) {
        result = Py_NewRef(Py_None);
    }
    else {
        result = PyTuple_New(self->collected);
        for (Py_ssize_t i = 0; i < self->collected; i++) {
            if (result) {
                PyTuple_SET_ITEM(result, i, collected[i]);
            }
            else {
                Py_DECREF(collected[i]);
            }
        }
    }
    PyMem_Free(collected);
    Py_DECREF(slots);
    return result;
}

static PyObject *
guards_explain(Guards *self, PyObject *sequence)
{
    PyObject *slots = PySequence_Tuple(sequence);
    if (slots == NULL) {
        return NULL;
    }
    Py_ssize_t count = self->collected;
    PyObject **collected = PyMem_New(PyObject *, count);
    if (collected == NULL) {
        Py_DECREF(slots);
        return PyErr_NoMemory();
    }
    GuardSource source = {.slots = &PyTuple_GET_ITEM(slots, 0), .count = PyTuple_GET_SIZE(slots)};
    GuardFailure failure = {0};
    PyObject *text = NULL;
    if (guards_hold(self, &source, collected, &failure)) {
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_DECREF(collected[i]);
        }
        text = Py_NewRef(Py_None);
    }
    else {
        text = explain_failure(&failure);
    }
    Py_XDECREF(failure.value);
    Py_XDECREF(failure.error);
    Py_XDECREF(failure.text);
    PyMem_Free(collected);
    Py_DECREF(slots);
    return text;
}

static PyMethodDef guards_methods[] = {
    {"check", (PyCFunction)guards_check, METH_O,
     PyDoc_STR("The collected values in tree order, or None if a check fails.")},
    {"explain", (PyCFunction)guards_explain, METH_O,
     PyDoc_STR("The first check that fails, in words; None if all hold.")},
    {NULL, NULL, 0, NULL},
};

static PyObject *
guards_fast_path(Guards *self, void *Py_UNUSED(closure))
{
    return self->fastpath ? fastpath_size(self->fastpath) : Py_NewRef(Py_None);
}

static PyGetSetDef guards_properties[] = {
    {"fast_path", (getter)guards_fast_path, NULL,
     PyDoc_STR("How many facts and how many questions the next check can do with, or None."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef guards_members[] = {
    {"roots", T_OBJECT, offsetof(Guards, roots), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject GuardsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.Guards",
    .tp_basicsize = sizeof(Guards),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = guards_new,
    .tp_dealloc = (destructor)guards_dealloc,
    .tp_traverse = (traverseproc)guards_traverse,
    .tp_clear = (inquiry)guards_clear,
    .tp_methods = guards_methods,
    .tp_members = guards_members,
    .tp_getset = guards_properties,
    .tp_doc = PyDoc_STR("A guard tree compiled to C structs."),
};
