/* Which values of a recording the nodes of autograd's graph have saved: see _native.pyi. */
#include "guards/guards.h"
#include "lazy/lazy.h"

typedef struct {
    LazyRecorder *recorder;
    int64_t *values;
    Py_ssize_t count, room;
} Values;

enum { NOTHING = -1, ELSEWHERE = -2, LIST = -3 };

static int
put(Values *values, int64_t value)
{
    if (values->count == values->room) {
        const Py_ssize_t room = values->room ? 2 * values->room : 128;
        int64_t *grown = PyMem_Realloc(values->values, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        values->values = grown;
        values->room = room;
    }
    values->values[values->count++] = value;
    return 1;
}

/* 1: noted; 0: a tensor of the device that is no value of the recording; -1: an exception. */
static int
put_saved(Values *values, PyObject *saved)
{
    if (saved == Py_None) {
        return put(values, NOTHING);
    }
    if (PyTuple_Check(saved) || PyList_Check(saved)) {
        int status = put(values, LIST - PySequence_Fast_GET_SIZE(saved));
        for (Py_ssize_t i = 0; status > 0 && i < PySequence_Fast_GET_SIZE(saved); i++) {
            status = put_saved(values, PySequence_Fast_GET_ITEM(saved, i));
        }
        return status;
    }
    if (!PyObject_TypeCheck(saved, (PyTypeObject *)values->recorder->tensor_class) || device_memory_of(saved) == NULL) {
        return put(values, ELSEWHERE);
    }
    const int64_t value = recorded_value(values->recorder, saved);
    return value < 0 ? 0 : put(values, value);
}

/* A tuple: the attributes of a node that are looked at. Borrowed. */
static PyObject *
attributes_of(PyObject *known, PyObject *learn, PyObject *node)
{
    PyObject *class = (PyObject *)Py_TYPE(node), *names = PyDict_GetItemWithError(known, class);
    if (names || PyErr_Occurred()) {
        return names;
    }
    PyObject *learned = PyObject_CallOneArg(learn, node);
    const int failed = learned == NULL || !PyTuple_Check(learned) || PyDict_SetItem(known, class, learned) < 0;
    Py_XDECREF(learned);
    return failed ? NULL : PyDict_GetItemWithError(known, class);
}

static int
put_node(Values *values, PyObject *node, PyObject *names)
{
    int status = names ? 1 : -1;
    for (Py_ssize_t i = 0; status > 0 && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *saved = PyObject_GetAttr(node, PyTuple_GET_ITEM(names, i));
        if (saved == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* freed, or written since: the engine raises */
            PyErr_Clear();
            return 0;
        }
        status = saved ? put_saved(values, saved) : -1;
        Py_XDECREF(saved);
    }
    return status;
}

PyObject *
saved_values(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *recorder, *nodes, *known, *learn, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!O:saved_values", &LazyRecorderType, &recorder, &PyList_Type, &nodes, &PyDict_Type,
                          &known, &learn)) {
        return NULL;
    }
    Values values = {.recorder = (LazyRecorder *)recorder};
    int status = 1;
    for (Py_ssize_t i = 0; status > 0 && i < PyList_GET_SIZE(nodes); i++) {
        PyObject *node = PyList_GET_ITEM(nodes, i);
        status = put_node(&values, node, attributes_of(known, learn, node));
    }
    if (status > 0) {
        result = PyBytes_FromStringAndSize((const char *)values.values, values.count * (Py_ssize_t)sizeof *values.values);
    }
    PyMem_Free(values.values);
    return status ? result : Py_NewRef(Py_None);
}
