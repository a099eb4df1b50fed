/* Walks a guard tree: whether everything holds, and if not, what failed first. */
#include "guards/guards.h"

enum { USUAL_DEPTH = 24 };

Py_ssize_t
guards_collected(const Guards *guards)
{
    return guards->collected;
}

/* Notes the failure, with the exception in flight, if any; leaves none. Always false. */
bool
guard_failed(GuardFailure *failure, const Node *node, const Check *check, PyObject *value)
{
    if (failure) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        *failure = (GuardFailure){.node = node, .check = check, .value = Py_XNewRef(value), .error = error};
    }
    PyErr_Clear();
    return false;
}

bool
check_holds(const Check *check, PyObject *value)
{
    bool applies = value || check->kind->takes_unbound;
    if (applies && check->kind->holds(check, value) == 1) {
        return true;
    }
    PyErr_Clear();
    return false;
}

static bool
checks_hold(const Guards *guards, const Node *node, PyObject *value, GuardFailure *failure)
{
    for (Py_ssize_t i = node->first_check; i < node->end_check; i++) {
        const Check *check = &guards->checks[i];
        bool applies = value || check->kind->takes_unbound;
        if (!applies || check->kind->holds(check, value) != 1) {
            return guard_failed(failure, node, check, value);
        }
    }
    return true;
}

/* Visits one node. Leaves its value (a new reference or NULL) in *value even if something fails. */
static bool
visit(const Guards *guards, const Node *node, const GuardSource *source, PyObject *parent, PyObject **value,
      GuardFailure *failure)
{
    *value = NULL;
    bool reachable = parent || !node->access->wants_parent;
    if (!reachable || node->access->read(node, source, parent, value) != 1) {
        return guard_failed(failure, node, NULL, NULL);
    }
    if (!checks_hold(guards, node, *value, failure)) {
        return false;
    }
    return !node->collect || *value ? true : guard_failed(failure, node, NULL, NULL);
}

/* `path` has room for the values from the first node down to any node. */
static bool
walk_along(const Guards *guards, Py_ssize_t first, Py_ssize_t end, const GuardSource *source, PyObject *parent,
           PyObject **path, PyObject **collected, GuardFailure *failure)
{
    Py_ssize_t base = guards->nodes[first].depth, length = 0;
    bool holds = true;
    for (Py_ssize_t i = first; i < end && holds; i++) {
        const Node *node = &guards->nodes[i];
        while (length > node->depth - base) {
            Py_XDECREF(path[--length]);
        }
        holds = visit(guards, node, source, length ? path[length - 1] : parent, &path[length], failure);
        PyObject *value = path[length++];
        if (holds && node->collect) {
            collected[node->place] = Py_NewRef(value);
        }
    }
    while (length > 0) {
        Py_XDECREF(path[--length]);
    }
    return holds;
}

bool
walk_nodes(Guards *guards, Py_ssize_t first, Py_ssize_t end, const GuardSource *source, PyObject *parent,
           PyObject **collected, GuardFailure *failure)
{
    if (first == end) {
        return true;
    }
    PyObject *usual[USUAL_DEPTH];
    PyObject **path = usual;
    Py_ssize_t depth = guards->depth - guards->nodes[first].depth;
    if (depth > USUAL_DEPTH) {
        path = PyMem_New(PyObject *, depth);
        if (path == NULL) {
            return guard_failed(failure, NULL, NULL, NULL);
        }
    }
    bool holds = walk_along(guards, first, end, source, parent, path, collected, failure);
    if (path != usual) {
        PyMem_Free(path);
    }
    return holds;
}

PyObject *
explain_failure(const GuardFailure *failure)
{
    if (failure->text) {
        return Py_NewRef(failure->text);
    }
    if (failure->node == NULL) {
        return PyUnicode_FromString("the guards could not be checked");
    }
    PyObject *text = failure->node->text;
    if (failure->same) {
        return PyUnicode_FromFormat("%U and %U: expected different objects, got the same one", text,
                                    failure->same->text);
    }
    if (failure->error) {
        return PyUnicode_FromFormat("%U: %s raised %s: %S", text, failure->check ? "checking it" : "reading it",
                                    Py_TYPE(failure->error)->tp_name, failure->error);
    }
    if (failure->check == NULL) {
        return PyUnicode_FromFormat("%U: not there any more", text);
    }
    PyObject *words = failure->check->kind->explain(failure->check, failure->value);
    PyObject *sentence = words ? PyUnicode_FromFormat("%U: %U", text, words) : NULL;
    Py_XDECREF(words);
    return sentence;
}
