/* How a guard reaches a value from its parent: the table at the end of the file has one row per kind. */
#include "guards/guards.h"

#include "frame/unbound.h"

static int
new_reference(PyObject *borrowed, PyObject **value)
{
    *value = Py_NewRef(borrowed);
    return 1;
}

static int
read_slot(const Node *node, const GuardSource *source, PyObject *Py_UNUSED(parent), PyObject **value)
{
    if (node->index < source->count) {
        *value = Py_XNewRef(source->slots[node->index] ? slot_from_python(source->slots[node->index]) : NULL);
        return 1;
    }
    return node->index == source->count && source->function ? new_reference(source->function, value) : 0;
}

static int
read_attr(const Node *node, const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    *value = PyObject_GetAttr(parent, node->operand);
    return *value ? 1 : -1;
}

static int
read_dict(const Node *Py_UNUSED(node), const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    if (PyType_Check(parent)) { /* its generic __dict__ would be created, wrongly, for a static type */
#if PY_VERSION_HEX >= 0x030C0000
        *value = PyType_GetDict((PyTypeObject *)parent);
#else
        *value = Py_XNewRef(((PyTypeObject *)parent)->tp_dict);
#endif
        return *value != NULL;
    }
    *value = PyObject_GenericGetDict(parent, NULL);
    return *value ? 1 : -1;
}

static int
read_key(const Node *node, const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    if (!PyDict_Check(parent)) {
        return 0;
    }
    PyObject *item = PyDict_GetItemWithError(parent, node->operand); /* what a class of dicts holds, not what it says */
    if (item == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return new_reference(item, value);
}

static int
read_item(const Node *node, const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    if (PyTuple_Check(parent)) {
        return node->index < PyTuple_GET_SIZE(parent) ? new_reference(PyTuple_GET_ITEM(parent, node->index), value) : 0;
    }
    if (PyList_Check(parent)) {
        return node->index < PyList_GET_SIZE(parent) ? new_reference(PyList_GET_ITEM(parent, node->index), value) : 0;
    }
    if (!PySequence_Check(parent) || PyDict_Check(parent) || node->index >= PySequence_Size(parent)) { /* a deque */
        return PyErr_Occurred() ? -1 : 0;
    }
    *value = PySequence_GetItem(parent, node->index);
    return *value ? 1 : -1;
}

static int
read_cell(const Node *Py_UNUSED(node), const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    if (!PyCell_Check(parent)) {
        return 0;
    }
    *value = PyCell_Get(parent); /* NULL: empty */
    return 1;
}

static int
read_type(const Node *Py_UNUSED(node), const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    return new_reference((PyObject *)Py_TYPE(parent), value);
}

static int
read_globals(const Node *Py_UNUSED(node), const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    return PyFunction_Check(parent) ? new_reference(PyFunction_GET_GLOBALS(parent), value) : 0;
}

static int
read_builtins(const Node *Py_UNUSED(node), const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    return PyFunction_Check(parent) ? new_reference(((PyFunctionObject *)parent)->func_builtins, value) : 0;
}

static int
read_closure(const Node *node, const GuardSource *Py_UNUSED(source), PyObject *parent, PyObject **value)
{
    PyObject *closure = PyFunction_Check(parent) ? PyFunction_GET_CLOSURE(parent) : NULL;
    if (closure == NULL || node->index >= PyTuple_GET_SIZE(closure)) {
        return 0;
    }
    return new_reference(PyTuple_GET_ITEM(closure, node->index), value);
}

static int
read_value(const Node *node, const GuardSource *Py_UNUSED(source), PyObject *Py_UNUSED(parent), PyObject **value)
{
    return new_reference(node->operand, value);
}

static const AccessKind kinds[] = {
    {"slot", INDEX_OPERAND, read_slot, false, FROM_SLOT},
    {"attr", NAME_OPERAND, read_attr, true, FROM_ATTRIBUTE},
    {"dict", NO_OPERAND, read_dict, true, FROM_INSTANCE},
    {"key", OBJECT_OPERAND, read_key, true, FROM_DICT},
    {"item", INDEX_OPERAND, read_item, true, FROM_SEQUENCE},
    {"cell", NO_OPERAND, read_cell, true, FROM_CELL},
    {"type", NO_OPERAND, read_type, true, FROM_OBJECT},
    {"globals", NO_OPERAND, read_globals, true, FROM_FUNCTION},
    {"builtins", NO_OPERAND, read_builtins, true, FROM_FUNCTION},
    {"closure", INDEX_OPERAND, read_closure, true, FROM_FUNCTION},
    {"value", OBJECT_OPERAND, read_value, false, FROM_NOWHERE},
};

const AccessKind *
find_access(PyObject *name)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < Py_ARRAY_LENGTH(kinds); i++) {
        if (PyUnicode_CompareWithASCIIString(name, kinds[i].name) == 0) {
            return &kinds[i];
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "unknown guard accessor %R; one of slot, attr, dict, key, item, cell, type, globals, builtins, "
                 "closure, value", name);
    return NULL;
}
