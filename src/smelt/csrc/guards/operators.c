/* Which of PyTorch's operators the program has replaced, as `torch.library` notes it in a set of registrations.

   Python reads the set again when it has changed, which its fields say: an addition uses a place, a removal leaves a
   dummy there. As an addition may take a dummy's place, the set is made anew before it is read: then it has none. */
#include "guards/guards.h"

static PyObject *registrations, *read_replaced, *replaced; /* a set, a function of it, and its last answer */
static Py_ssize_t known_fill, known_used;
static const setentry *known_table;

/* Removes the dummies of the set; nothing but strings is in it, so no other code runs. 0, or -1 with an exception. */
static int
without_dummies(PyObject *set)
{
    if (((PySetObject *)set)->fill == ((PySetObject *)set)->used) {
        return 0;
    }
    PyObject *items = PySequence_List(set);
    if (items == NULL || PySet_Clear(set) < 0) {
        Py_XDECREF(items);
        return -1;
    }
    int status = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        status |= PySet_Add(set, PyList_GET_ITEM(items, i));
    }
    Py_DECREF(items);
    return status;
}

/* Borrowed; NULL with an exception. */
static PyObject *
now_replaced(void)
{
    const PySetObject *set = (PySetObject *)registrations;
    if (set == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "watch_operators() has not been called");
        return NULL;
    }
    if (set->fill == known_fill && set->used == known_used && set->table == known_table) {
        return replaced;
    }
    if (without_dummies(registrations) < 0) {
        return NULL;
    }
    const Py_ssize_t fill = set->fill, used = set->used;
    const setentry *table = set->table; /* before it is read: another thread may change it meanwhile */
    PyObject *answer = PyObject_CallOneArg(read_replaced, registrations);
    if (answer == NULL) {
        return NULL;
    }
    const int is_same = replaced == NULL ? 0 : PyObject_RichCompareBool(replaced, answer, Py_EQ);
    if (is_same < 0) {
        Py_DECREF(answer);
        return NULL;
    }
    if (is_same) { /* guards compare identities first: keep the object they have */
        Py_DECREF(answer);
    }
    else {
        Py_XSETREF(replaced, answer);
    }
    known_fill = fill;
    known_used = used;
    known_table = table;
    return replaced;
}

PyObject *
watch_operators(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *set, *read;
    if (!PyArg_ParseTuple(args, "O!O:watch_operators", &PySet_Type, &set, &read)) {
        return NULL;
    }
    Py_XSETREF(registrations, Py_NewRef(set));
    Py_XSETREF(read_replaced, Py_NewRef(read));
    known_table = NULL;
    Py_RETURN_NONE;
}

PyObject *
replaced_operators(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return Py_XNewRef(now_replaced());
}

int
replaced_holds(const Check *check, PyObject *Py_UNUSED(value))
{
    PyObject *now = now_replaced();
    return now ? strictly_equal(now, operand(check, 0)) : -1;
}

PyObject *
replaced_explain(const Check *check, PyObject *Py_UNUSED(value))
{
    PyObject *now = now_replaced();
    return now ? expected_got("", operand(check, 0), now) : NULL;
}
