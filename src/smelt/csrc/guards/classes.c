/* Checks of classes beyond their attributes: subclass relations, what `super()` finds, what a predicate says. */
#include "guards/guards.h"

/* --- subclass, not registered ----------------------------------------------------------------- */

int
subclass_prepare(Check *check)
{
    if (PyType_Check(operand(check, 0))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check %R needs a type, not %R", PyTuple_GET_ITEM(check->spec, 0),
                 operand(check, 0));
    return -1;
}

int
subclass_holds(const Check *check, PyObject *value)
{
    bool wanted = operand(check, 1) == Py_True;
    return PyType_Check(value)
           && (bool)PyType_IsSubtype((PyTypeObject *)value, (PyTypeObject *)operand(check, 0)) == wanted;
}

PyObject *
subclass_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    const char *words = operand(check, 1) == Py_True ? "expected a subclass of %R, got none"
                                                     : "expected no subclass of %R, got one";
    return PyUnicode_FromFormat(words, operand(check, 0));
}

static PyObject *get_cache_token;

int
guard_classes_init(void)
{
    PyObject *abc = PyImport_ImportModule("_abc");
    get_cache_token = abc ? PyObject_GetAttrString(abc, "get_cache_token") : NULL;
    Py_XDECREF(abc);
    return get_cache_token ? 0 : -1;
}

/* How often anything was registered with an abstract class; -1: unknown. */
static Py_ssize_t
registrations(void)
{
    PyObject *token = PyObject_CallNoArgs(get_cache_token);
    Py_ssize_t count = token ? PyLong_AsSsize_t(token) : -1;
    Py_XDECREF(token);
    PyErr_Clear();
    return count;
}

int
unregistered_prepare(Check *check)
{
    check->number = -1;
    return subclass_prepare(check);
}

/* An abstract class remembers to whom it said no until the next registration, and so does the check. */
int
unregistered_holds(const Check *check, PyObject *value)
{
    Py_ssize_t now = registrations();
    if (now >= 0 && now == check->number) {
        return 1;
    }
    int answer = PyObject_IsSubclass(value, operand(check, 0));
    if (answer == 0) {
        ((Check *)check)->number = now;
    }
    return answer < 0 ? -1 : !answer;
}

PyObject *
unregistered_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    return PyUnicode_FromFormat("expected none that %R takes for a subclass, got one", operand(check, 0));
}

/* --- next has, next lacks --------------------------------------------------------------------- */

int
next_prepare(Check *check)
{
    if (PyUnicode_CheckExact(operand(check, 0)) && PyType_Check(operand(check, 1))) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "guard check %R needs a name and a type", PyTuple_GET_ITEM(check->spec, 0));
    return -1;
}

/* What the classes after the given one hold under the name, in the order of the value's bases; borrowed. */
static PyObject *
look_up_next(const Check *check, PyObject *value)
{
    PyObject *order = PyType_Check(value) ? ((PyTypeObject *)value)->tp_mro : NULL;
    bool after = false;
    for (Py_ssize_t i = 0; order && i < PyTuple_GET_SIZE(order); i++) {
        PyObject *base = PyTuple_GET_ITEM(order, i);
        if (after) {
#if PY_VERSION_HEX >= 0x030C0000
            PyObject *names = PyType_GetDict((PyTypeObject *)base);
#else
            PyObject *names = Py_XNewRef(((PyTypeObject *)base)->tp_dict);
#endif
            PyObject *attribute = names ? PyDict_GetItemWithError(names, operand(check, 0)) : NULL;
            Py_XDECREF(names);
            if (attribute || PyErr_Occurred()) {
                return attribute;
            }
        }
        after |= base == operand(check, 1);
    }
    return NULL;
}

int
next_has_holds(const Check *check, PyObject *value)
{
    return look_up_next(check, value) == operand(check, 2);
}

int
next_lacks_holds(const Check *check, PyObject *value)
{
    return PyType_Check(value) && look_up_next(check, value) == NULL && !PyErr_Occurred();
}

PyObject *
next_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    return PyUnicode_FromFormat("expected super() to find under %R what it found", operand(check, 0));
}

/* --- of class --------------------------------------------------------------------------------- */

int
of_class_holds(const Check *check, PyObject *value)
{
    if (!PyType_Check(value)) {
        return 0;
    }
    PyObject *actual = PyObject_CallOneArg(operand(check, 0), value);
    int equal = actual ? strictly_equal(actual, operand(check, 1)) : -1;
    Py_XDECREF(actual);
    return equal;
}

PyObject *
of_class_explain(const Check *check, PyObject *value)
{
    PyObject *actual = value ? PyObject_CallOneArg(operand(check, 0), value) : NULL;
    PyObject *text = actual || !PyErr_Occurred() ? expected_got("", operand(check, 1), actual) : NULL;
    Py_XDECREF(actual);
    return text;
}

/* A number that is another once anything that look-ups in a class find has changed; 0: there is none. */
PyObject *
class_version(PyObject *Py_UNUSED(module), PyObject *value)
{
    if (!PyType_Check(value)) {
        return PyErr_Format(PyExc_TypeError, "class_version() needs a type, not %R", value);
    }
    PyTypeObject *type = (PyTypeObject *)value;
    PyObject *name = PyUnicode_InternFromString("__doc__");
    if (name == NULL) {
        return NULL;
    }
    _PyType_Lookup(type, name); /* which gives it one, while they last */
    Py_DECREF(name);
    return PyLong_FromUnsignedLong(type->tp_version_tag);
}
