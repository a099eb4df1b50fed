/* What a guard can check of a value: the table at the end of the file has one row per kind. */
#include "guards/guards.h"

#include <string.h>

#include "direct_call.h"

/* repr(object), shortened: objects that guards meet can be whole models. New reference. */
static PyObject *
short_repr(PyObject *object)
{
    if (object == NULL) {
        return PyUnicode_FromString("nothing: it is unbound");
    }
    PyObject *text = PyObject_Repr(object);
    if (text == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("a %s", Py_TYPE(object)->tp_name);
    }
    Py_ssize_t length = PyUnicode_GET_LENGTH(text), line = PyUnicode_FindChar(text, '\n', 0, length, 1);
    if (length > 120 || line >= 0) { /* a tensor's goes over many lines */
        Py_ssize_t most = line >= 0 && line < 117 ? line : 117;
        PyObject *start = PyUnicode_Substring(text, 0, most);
        PyObject *shortened = start ? PyUnicode_FromFormat("%U...", start) : NULL;
        Py_XDECREF(start);
        Py_DECREF(text);
        return shortened;
    }
    return text;
}

PyObject *
expected_got(const char *what, PyObject *expected, PyObject *got)
{
    PyObject *left = short_repr(expected);
    PyObject *right = short_repr(got);
    PyObject *text = left && right ? PyUnicode_FromFormat("expected %s%U, got %U", what, left, right) : NULL;
    Py_XDECREF(left);
    Py_XDECREF(right);
    return text;
}

/* --- type, is, equals ------------------------------------------------------------------------- */

static int
type_prepare(Check *check)
{
    if (PyType_Check(operand(check, 0))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check \"type\" needs a type, not %R", operand(check, 0));
    return -1;
}

static int
type_holds(const Check *check, PyObject *value)
{
    return (PyObject *)Py_TYPE(value) == operand(check, 0);
}

static PyObject *
type_explain(const Check *check, PyObject *value)
{
    return expected_got("type ", operand(check, 0), value ? (PyObject *)Py_TYPE(value) : NULL);
}

static int
is_holds(const Check *check, PyObject *value)
{
    return value == operand(check, 0);
}

static PyObject *
is_explain(const Check *check, PyObject *value)
{
    return expected_got("the very object ", operand(check, 0), value);
}

static int
items_strictly_equal(PyObject *left, PyObject *right)
{
    /* Held and re-measured at every step: comparing may run code that shortens a list. */
    for (Py_ssize_t i = 0;; i++) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(left);
        if (count != PySequence_Fast_GET_SIZE(right)) {
            return 0;
        }
        if (i >= count) {
            return 1;
        }
        PyObject *a = Py_NewRef(PySequence_Fast_GET_ITEM(left, i));
        PyObject *b = Py_NewRef(PySequence_Fast_GET_ITEM(right, i));
        int equal = strictly_equal(a, b);
        Py_DECREF(a);
        Py_DECREF(b);
        if (equal != 1) {
            return equal;
        }
    }
}

static int
dicts_strictly_equal(PyObject *left, PyObject *right)
{
    PyObject *a = PyDict_Items(left);
    PyObject *b = a ? PyDict_Items(right) : NULL;
    int equal = b ? items_strictly_equal(a, b) : -1;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return equal;
}

static bool
plain_items(PyObject *items)
{
    /* Equal strings and integers are alike in every respect; True, 1 and 1.0 are not. */
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!PyUnicode_CheckExact(item) && !PyLong_CheckExact(item)) {
            return false;
        }
    }
    return true;
}

static int
item_is_among(PyObject *item, PyObject *items)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        int equal = strictly_equal(item, PyList_GET_ITEM(items, i));
        if (equal != 0) {
            return equal;
        }
    }
    return 0;
}

static int
sets_strictly_equal(PyObject *left, PyObject *right)
{
    int equal = PyObject_RichCompareBool(left, right, Py_EQ);
    if (equal != 1) {
        return equal;
    }
    PyObject *ours = PySequence_List(left); /* lists of our own: comparing may run code that changes the sets */
    PyObject *theirs = ours ? PySequence_List(right) : NULL;
    equal = theirs ? 1 : -1;
    if (theirs && !(plain_items(ours) && plain_items(theirs))) {
        for (Py_ssize_t i = 0; equal == 1 && i < PyList_GET_SIZE(ours); i++) {
            equal = item_is_among(PyList_GET_ITEM(ours, i), theirs);
        }
    }
    Py_XDECREF(ours);
    Py_XDECREF(theirs);
    return equal;
}

static int
ranges_strictly_equal(PyObject *left, PyObject *right)
{
    /* range(0, 3, 2) == range(0, 4, 2), and they end elsewhere. */
    static const char *const parts[] = {"start", "stop", "step"};
    int equal = 1;
    for (int i = 0; equal == 1 && i < 3; i++) {
        PyObject *a = PyObject_GetAttrString(left, parts[i]);
        PyObject *b = a ? PyObject_GetAttrString(right, parts[i]) : NULL;
        equal = b ? strictly_equal(a, b) : -1;
        Py_XDECREF(a);
        Py_XDECREF(b);
    }
    return equal;
}

int
strictly_equal(PyObject *left, PyObject *right)
{
    if (left == right) {
        return 1;
    }
    if (Py_TYPE(left) != Py_TYPE(right)) {
        return 0;
    }
    if (PyFloat_CheckExact(left)) { /* by bits: == would confuse zeros and never accept nan */
        double a = PyFloat_AS_DOUBLE(left), b = PyFloat_AS_DOUBLE(right);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (PyComplex_CheckExact(left)) {
        Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
        return memcmp(&a, &b, sizeof a) == 0;
    }
    if (PyAnySet_CheckExact(left)) {
        return sets_strictly_equal(left, right);
    }
    if (Py_IS_TYPE(left, &PyRange_Type)) {
        return ranges_strictly_equal(left, right);
    }
    bool sequence = PyTuple_CheckExact(left) || PyList_CheckExact(left);
    if (!sequence && !PyDict_CheckExact(left)) {
        return PyObject_RichCompareBool(left, right, Py_EQ);
    }
    if (Py_EnterRecursiveCall(" in a guard")) {
        return -1;
    }
    int equal = sequence ? items_strictly_equal(left, right) : dicts_strictly_equal(left, right);
    Py_LeaveRecursiveCall();
    return equal;
}

static int
equals_holds(const Check *check, PyObject *value)
{
    return strictly_equal(value, operand(check, 0));
}

static PyObject *
equals_explain(const Check *check, PyObject *value)
{
    if (value && Py_TYPE(value) != Py_TYPE(operand(check, 0))) {
        PyObject *text = expected_got("", operand(check, 0), value);
        PyObject *whole = text ? PyUnicode_FromFormat("%U (a %s)", text, Py_TYPE(value)->tp_name) : NULL;
        Py_XDECREF(text);
        return whole;
    }
    return expected_got("", operand(check, 0), value);
}

/* --- length, keys, lacks ---------------------------------------------------------------------- */

static int
length_prepare(Check *check)
{
    check->number = PyNumber_AsSsize_t(operand(check, 0), PyExc_OverflowError);
    return check->number == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Of lists and tuples as they are: what a class of theirs says is code of the program. */
static Py_ssize_t
length_of(PyObject *value)
{
    return PyList_Check(value) || PyTuple_Check(value) ? Py_SIZE(value) : PyObject_Size(value);
}

static int
length_holds(const Check *check, PyObject *value)
{
    Py_ssize_t length = length_of(value);
    return length < 0 ? -1 : length == check->number;
}

static PyObject *
length_explain(const Check *check, PyObject *value)
{
    Py_ssize_t length = value ? length_of(value) : -1;
    if (length < 0) {
        PyErr_Clear();
        return expected_got("something of length ", operand(check, 0), value);
    }
    return PyUnicode_FromFormat("expected length %zd, got %zd", check->number, length);
}

static bool
is_plain_dict(PyObject *value)
{
    return PyDict_CheckExact(value) || PyODict_CheckExact(value);
}

static int
keys_prepare(Check *check)
{
    if (PyTuple_Check(operand(check, 0))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check \"keys\" needs a tuple, not %R", operand(check, 0));
    return -1;
}

static int
keys_hold(const Check *check, PyObject *value)
{
    PyObject *keys = operand(check, 0);
    if (!is_plain_dict(value) || PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(keys)) {
        return 0;
    }
    if (!PyDict_CheckExact(value)) { /* an OrderedDict's own order is not that of its dict */
        PyObject *actual = PySequence_Tuple(value);
        int equal = actual ? items_strictly_equal(actual, keys) : -1;
        Py_XDECREF(actual);
        return equal;
    }
    Py_ssize_t position = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(value, &position, &key, NULL)) {
        if (i == PyTuple_GET_SIZE(keys)) { /* grew while we compared */
            return 0;
        }
        Py_INCREF(key);
        int equal = strictly_equal(key, PyTuple_GET_ITEM(keys, i++));
        Py_DECREF(key);
        if (equal != 1) {
            return equal;
        }
    }
    return i == PyTuple_GET_SIZE(keys);
}

static PyObject *
keys_explain(const Check *check, PyObject *value)
{
    if (value == NULL || !is_plain_dict(value)) {
        return expected_got("a dict with keys ", operand(check, 0), value);
    }
    PyObject *keys = PySequence_Tuple(value);
    PyObject *text = keys ? expected_got("keys ", operand(check, 0), keys) : NULL;
    Py_XDECREF(keys);
    return text;
}

static int
lacks_holds(const Check *check, PyObject *value)
{
    if (!PyDict_Check(value)) {
        return 0;
    }
    int contains = PyDict_Contains(value, operand(check, 0));
    return contains < 0 ? -1 : !contains;
}

static PyObject *
lacks_explain(const Check *check, PyObject *value)
{
    if (value && PyDict_Check(value)) {
        PyObject *key = short_repr(operand(check, 0));
        PyObject *text = key ? PyUnicode_FromFormat("expected no key %U, found one", key) : NULL;
        Py_XDECREF(key);
        return text;
    }
    return expected_got("a dict without the key ", operand(check, 0), value);
}

/* --- unbound, calls, predicate ---------------------------------------------------------------- */

static int
unbound_holds(const Check *Py_UNUSED(check), PyObject *value)
{
    return value == NULL;
}

static PyObject *
unbound_explain(const Check *Py_UNUSED(check), PyObject *value)
{
    PyObject *got = short_repr(value);
    PyObject *text = got ? PyUnicode_FromFormat("expected it unbound, got %U", got) : NULL;
    Py_XDECREF(got);
    return text;
}

static int
callable_prepare(Check *check)
{
    if (PyCallable_Check(operand(check, 0))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check %R needs a callable, not %R", PyTuple_GET_ITEM(check->spec, 0),
                 operand(check, 0));
    return -1;
}

static int
calls_hold(const Check *check, PyObject *Py_UNUSED(value))
{
    PyObject *actual = call_directly(operand(check, 0));
    int equal = actual ? strictly_equal(actual, operand(check, 1)) : -1;
    Py_XDECREF(actual);
    return equal;
}

bool
guards_say(const Guards *guards, PyObject *function, PyObject *answer)
{
    for (Py_ssize_t i = 0; i < guards->check_count; i++) {
        const Check *check = &guards->checks[i];
        if (check->kind->holds == calls_hold && operand(check, 0) == function && operand(check, 1) == answer) {
            return true;
        }
    }
    return false;
}

static PyObject *
calls_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    PyObject *actual = PyObject_CallNoArgs(operand(check, 0));
    PyObject *text = actual ? expected_got("", operand(check, 1), actual) : NULL;
    Py_XDECREF(actual);
    return text;
}

static int
predicate_holds(const Check *check, PyObject *value)
{
    PyObject *answer = PyObject_CallOneArg(operand(check, 0), value);
    int holds = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return holds;
}

static PyObject *
predicate_explain(const Check *check, PyObject *value)
{
    PyObject *name = PyObject_GetAttrString(operand(check, 0), "__qualname__");
    if (name == NULL) {
        PyErr_Clear();
        name = short_repr(operand(check, 0));
    }
    PyObject *got = short_repr(value);
    PyObject *text = name && got ? PyUnicode_FromFormat("%S does not hold for %U", name, got) : NULL;
    Py_XDECREF(name);
    Py_XDECREF(got);
    return text;
}

/* --- class has, class lacks ------------------------------------------------------------------- */

/* What a class or its bases hold under the check's name, without running descriptors; borrowed, NULL: nothing. */
static PyObject *
look_up(const Check *check, PyObject *value)
{
    return PyType_Check(value) ? _PyType_Lookup((PyTypeObject *)value, operand(check, 0)) : NULL;
}

static int
class_prepare(Check *check)
{
    if (PyUnicode_CheckExact(operand(check, 0))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check %R needs a name, not %R", PyTuple_GET_ITEM(check->spec, 0),
                 operand(check, 0));
    return -1;
}

static int
class_has_holds(const Check *check, PyObject *value)
{
    return look_up(check, value) == operand(check, 1);
}

static PyObject *
class_has_explain(const Check *check, PyObject *value)
{
    PyObject *attribute = value ? look_up(check, value) : NULL;
    PyObject *got = attribute ? short_repr(attribute) : PyUnicode_FromString("nothing");
    PyObject *expected = short_repr(operand(check, 1));
    PyObject *text = got && expected
        ? PyUnicode_FromFormat("expected %U under %R, got %U", expected, operand(check, 0), got) : NULL;
    Py_XDECREF(got);
    Py_XDECREF(expected);
    return text;
}

static int
class_lacks_holds(const Check *check, PyObject *value)
{
    return PyType_Check(value) && look_up(check, value) == NULL;
}

static PyObject *
class_lacks_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    return PyUnicode_FromFormat("expected nothing under %R, found something", operand(check, 0));
}

/* --- method ----------------------------------------------------------------------------------- */

#if PY_VERSION_HEX >= 0x030D0000 /* exported, and declared among Python's own headers only */
PyAPI_FUNC(int) _PyObject_GetMethod(PyObject *obj, PyObject *name, PyObject **method);
#endif

/* Whether the name leads to a method of the class, not to an attribute of the object that hides it. Makes no __dict__
   for an object that has none, and runs no code: a class that looks names up itself, or has no such method, says no. */
static int
method_holds(const Check *check, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    PyObject *method = _PyType_Lookup(type, operand(check, 0)), *bound = NULL;
    if (method == NULL || !PyType_HasFeature(Py_TYPE(method), Py_TPFLAGS_METHOD_DESCRIPTOR)
        || type->tp_getattro != PyObject_GenericGetAttr) {
        return 0;
    }
    int is_method = _PyObject_GetMethod(value, operand(check, 0), &bound);
    if (bound == NULL) {
        return -1;
    }
    Py_DECREF(bound);
    return is_method;
}

static PyObject *
method_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    return PyUnicode_FromFormat("expected %R to be a method of its class", operand(check, 0));
}

static const CheckKind kinds[] = {
    {"type", 1, type_prepare, type_holds, type_explain, false, BY_TYPE},
    {"is", 1, NULL, is_holds, is_explain, false, BY_IDENTITY},
    {"equals", 1, NULL, equals_holds, equals_explain, false, BY_VALUE},
    {"length", 1, length_prepare, length_holds, length_explain, false, BY_LENGTH},
    {"keys", 1, keys_prepare, keys_hold, keys_explain, false, BY_ORDER},
    {"lacks", 1, NULL, lacks_holds, lacks_explain, false, BY_DICT},
    {"tensor", 6, tensor_prepare, tensor_holds, tensor_explain, false, BY_TENSOR},
    {"unbound", 0, NULL, unbound_holds, unbound_explain, true, BY_ABSENCE},
    {"calls", 2, callable_prepare, calls_hold, calls_explain, true, BY_PROCESS},
    {"replaced", 1, NULL, replaced_holds, replaced_explain, true, BY_PROCESS},
    {"class has", 2, class_prepare, class_has_holds, class_has_explain, false, BY_CLASS},
    {"class lacks", 1, class_prepare, class_lacks_holds, class_lacks_explain, false, BY_CLASS},
    {"subclass", 2, subclass_prepare, subclass_holds, subclass_explain, false, BY_CLASS},
    {"unregistered", 1, unregistered_prepare, unregistered_holds, unregistered_explain, false, ASK_AGAIN},
    {"next has", 3, next_prepare, next_has_holds, next_explain, false, BY_CLASS},
    {"next lacks", 2, next_prepare, next_lacks_holds, next_explain, false, BY_CLASS},
    {"of class", 2, callable_prepare, of_class_holds, of_class_explain, false, BY_CLASS},
    {"method", 1, class_prepare, method_holds, method_explain, false, BY_MEMBERS},
    {"predicate", 1, callable_prepare, predicate_holds, predicate_explain, false, ASK_AGAIN},
};

const CheckKind *
find_check(PyObject *name)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < Py_ARRAY_LENGTH(kinds); i++) {
        if (PyUnicode_CompareWithASCIIString(name, kinds[i].name) == 0) {
            return &kinds[i];
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "unknown guard check %R; one of type, is, equals, length, keys, lacks, tensor, unbound, calls, replaced, "
                 "class has, class lacks, subclass, unregistered, next has, next lacks, of class, method, predicate", name);
    return NULL;
}
