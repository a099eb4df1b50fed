/* Records calls: turns arguments into a key, looks the key up after the last step, and creates the results. */
#include "lazy/lazy.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

static PyObject *bool_codes[2]; /* of the literals False and True */

int
recorder_init(void)
{
    for (int i = 0; i < 2; i++) {
        bool_codes[i] = Py_BuildValue("(OO)", &PyBool_Type, i ? Py_True : Py_False);
    }
    return bool_codes[0] && bool_codes[1] ? 0 : -1;
}

/* --- operators -------------------------------------------------------------------------------- */

static PyObject *
operator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"known", "names", "kinds", "writes", "is_view", "zero", NULL};
    PyObject *known, *names, *kinds, *zero = Py_None;
    int writes, is_view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!pp|O:RecordedOperator", words, &known, &PyTuple_Type, &names,
                                     &PyBytes_Type, &kinds, &writes, &is_view, &zero)) {
        return NULL;
    }
    if (PyTuple_GET_SIZE(names) != PyBytes_GET_SIZE(kinds)) {
        PyErr_SetString(PyExc_ValueError, "an operator has a kind for each name");
        return NULL;
    }
    Py_ssize_t position = zero == Py_None ? -1 : PySequence_Index(names, zero);
    if (position < 0 && zero != Py_None) {
        return NULL;
    }
    RecordedOperator *self = (RecordedOperator *)type->tp_alloc(type, 0);
    if (self) {
        self->known = Py_NewRef(known);
        self->names = Py_NewRef(names);
        self->kinds = Py_NewRef(kinds);
        self->writes = writes, self->is_view = is_view;
        self->zero = zero == Py_None ? NULL : Py_NewRef(zero);
        self->zero_position = position;
    }
    return (PyObject *)self;
}

static int
operator_traverse(RecordedOperator *self, visitproc visit, void *arg)
{
    Py_VISIT(self->known);
    Py_VISIT(self->names);
    Py_VISIT(self->zero);
    return 0;
}

static void
operator_dealloc(RecordedOperator *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->known);
    Py_CLEAR(self->names);
    Py_CLEAR(self->kinds);
    Py_CLEAR(self->zero);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
has_zero(RecordedOperator *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->zero != NULL);
}

static PyGetSetDef operator_properties[] = {
    {"has_zero", (getter)has_zero, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject RecordedOperatorType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.RecordedOperator",
    .tp_doc = PyDoc_STR("One overload, as recording needs it."),
    .tp_basicsize = sizeof(RecordedOperator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = operator_new,
    .tp_dealloc = (destructor)operator_dealloc,
    .tp_traverse = (traverseproc)operator_traverse,
    .tp_getset = operator_properties,
};

/* --- keys ------------------------------------------------------------------------------------- */

enum { KEY_ROOM = 64 };

/* One call that is being recorded. */
typedef struct {
    LazyRecorder *recorder;
    RecordedOperator *operator;
    PyObject *args, *kwargs;
    PyObject **key;
    Py_ssize_t count;
    PyObject *room[KEY_ROOM];
} Call;

/* The code of a tensor that memory tells nothing of, or that is to be resolved first. */
static int64_t
asked_value(Call *call, PyObject *tensor)
{
    LazyRecorder *recorder = call->recorder;
    if (call->operator->writes) {
        PyObject *done = PyObject_CallMethod((PyObject *)recorder, "check_bits", "OOO", call->operator->known,
                                             call->args, call->kwargs ? call->kwargs : Py_None);
        if (done == NULL) {
            return -2;
        }
        Py_DECREF(done);
    }
    const char *method = call->operator->is_view ? "value_of" : "read";
    PyObject *number = PyObject_CallMethod((PyObject *)recorder, method, "O", tensor);
    int64_t value = number ? PyLong_AsLongLong(number) : -2;
    Py_XDECREF(number);
    return value < 0 ? -2 : value;
}

static PyObject *
tensor_code(Call *call, PyObject *tensor)
{
    LazyRecorder *recorder = call->recorder;
    int64_t value = known_value(recorder, tensor);
    if (value == -1) {
        value = asked_value(call, tensor);
    }
    if (value < 0) {
        return NULL;
    }
    if (value < PyList_GET_SIZE(recorder->refs)) {
        return Py_NewRef(PyList_GET_ITEM(recorder->refs, value));
    }
    return PyObject_CallMethod(recorder->refs, "upto", "L", (long long)value);
}

static PyObject *
number_code(Call *call, PyObject *value)
{
    int done = PyList_Append(((Recording *)call->recorder->now)->numbers, value);
    return done < 0 ? NULL : Py_NewRef(Py_TYPE(value));
}

static PyObject *
literal_code(PyObject *value)
{
    if (PyBool_Check(value)) {
        return Py_NewRef(bool_codes[value == Py_True]);
    }
    if (!PyFloat_CheckExact(value)) {
        return Py_NewRef(value);
    }
    double number = PyFloat_AS_DOUBLE(value);
    unsigned long long bits;
    memcpy(&bits, &number, sizeof bits);
    return Py_BuildValue("(OK)", &PyFloat_Type, bits);
}

static PyObject *code_of(Call *call, ArgumentKind kind, PyObject *value);

static PyObject *
list_code(Call *call, ArgumentKind kind, PyObject *list)
{
    PyObject *codes = PyTuple_New(PySequence_Fast_GET_SIZE(list));
    for (Py_ssize_t i = 0; codes && i < PyTuple_GET_SIZE(codes) && i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        PyObject *code = kind == NUMBER_KIND    ? number_code(call, item)
                         : kind == TENSOR_KIND ? code_of(call, kind, item)
                                               : literal_code(item);
        if (code == NULL) {
            Py_CLEAR(codes);
            break;
        }
        PyTuple_SET_ITEM(codes, i, code);
    }
    return codes;
}

static PyObject *
code_of(Call *call, ArgumentKind kind, PyObject *value)
{
    if (value == Py_None || kind == DEVICE_KIND) {
        Py_RETURN_NONE;
    }
    if (PyList_Check(value) || PyTuple_Check(value)) {
        return list_code(call, kind, value);
    }
    if (kind == LITERAL_KIND) {
        return literal_code(value);
    }
    if (kind == TENSOR_KIND && PyObject_TypeCheck(value, (PyTypeObject *)call->recorder->tensor_class)) {
        return tensor_code(call, value);
    }
    return number_code(call, value);
}

static int
kind_of_name(RecordedOperator *operator, PyObject *name)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operator->names); i++) {
        if (PyTuple_GET_ITEM(operator->names, i) == name) {
            return PyBytes_AS_STRING(operator->kinds)[i];
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operator->names); i++) {
        int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(operator->names, i), name, Py_EQ);
        if (same) {
            return same < 0 ? -1 : PyBytes_AS_STRING(operator->kinds)[i];
        }
    }
    PyErr_Format(PyExc_TypeError, "there is no argument %R", name);
    return -1;
}

/* Adds a code, which it takes. */
static int
add_code(Call *call, PyObject *code)
{
    if (code) {
        call->key[call->count++] = code;
    }
    return code ? 0 : -1;
}

static int
encode(Call *call)
{
    RecordedOperator *operator= call->operator;
    add_code(call, Py_NewRef(operator));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call->args); i++) {
        ArgumentKind kind = i < PyBytes_GET_SIZE(operator->kinds) ? PyBytes_AS_STRING(operator->kinds)[i] : LITERAL_KIND;
        if (add_code(call, code_of(call, kind, PyTuple_GET_ITEM(call->args, i))) < 0) {
            return -1;
        }
    }
    PyObject *name, *value;
    Py_ssize_t place = 0;
    while (call->kwargs && PyDict_Next(call->kwargs, &place, &name, &value)) {
        int kind = kind_of_name(operator, name);
        add_code(call, Py_NewRef(name));
        if (kind < 0 || add_code(call, code_of(call, kind, value)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* The step that follows for a call that was not recorded before. */
static Step *
make_step(Call *call)
{
    Recording *now = (Recording *)call->recorder->now;
    PyObject *key = PyTuple_New(call->count);
    for (Py_ssize_t i = 0; key && i < call->count; i++) {
        PyTuple_SET_ITEM(key, i, Py_NewRef(call->key[i]));
    }
    PyObject *kwargs = call->kwargs ? Py_NewRef(call->kwargs) : PyDict_New();
    PyObject *step = key && kwargs ? PyObject_CallMethod((PyObject *)call->recorder, "make_step", "OOOO",
                                                         call->operator->known, call->args, kwargs, key)
                                   : NULL;
    if (step && !PyObject_TypeCheck(step, &StepType)) {
        PyErr_SetString(PyExc_TypeError, "make_step() returns a step");
        Py_CLEAR(step);
    }
    if (step && PyDict_SetItem(((Step *)now->step)->after, key, step) < 0) {
        Py_CLEAR(step);
    }
    Py_XDECREF(key);
    Py_XDECREF(kwargs);
    return (Step *)step;
}

static Step *
follow(Call *call)
{
    Step *step = step_after((Step *)((Recording *)call->recorder->now)->step, call->key, call->count);
    if (step || PyErr_Occurred()) {
        return (Step *)Py_XNewRef(step);
    }
    return make_step(call);
}

static void
forget_numbers(Recording *recording, Py_ssize_t before)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyList_SetSlice(recording->numbers, before, PyList_GET_SIZE(recording->numbers), NULL) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, traceback);
}

PyObject *
record_call(LazyRecorder *recorder, RecordedOperator *operator, PyObject *args, PyObject *kwargs)
{
    Recording *now = (Recording *)recorder->now;
    Py_ssize_t before = PyList_GET_SIZE(now->numbers);
    Py_ssize_t most = 1 + PyTuple_GET_SIZE(args) + (kwargs ? 2 * PyDict_GET_SIZE(kwargs) : 0);
    Call call = {.recorder = recorder, .operator= operator, .args = args, .kwargs = kwargs};
    call.key = most <= KEY_ROOM ? call.room : PyMem_Malloc((size_t)most * sizeof *call.key);
    if (call.key == NULL) {
        return PyErr_NoMemory();
    }
    Step *step = encode(&call) < 0 ? NULL : follow(&call);
    for (Py_ssize_t i = 0; i < call.count; i++) {
        Py_DECREF(call.key[i]);
    }
    if (call.key != call.room) {
        PyMem_Free(call.key);
    }
    if (step == NULL) {
        forget_numbers(now, before);
        return NULL;
    }
    Py_SETREF(now->step, (PyObject *)step);
    now->count++;
    recording_note(now);
    return step_results(recorder, step, args, kwargs);
}

/* --- the recorder ----------------------------------------------------------------------------- */

static PyObject *
recorder_record(LazyRecorder *self, PyObject *args)
{
    PyObject *operator, *positional, *kwargs;
    if (!PyArg_ParseTuple(args, "O!O!O!:record_call", &RecordedOperatorType, &operator, &PyTuple_Type, &positional,
                          &PyDict_Type, &kwargs)) {
        return NULL;
    }
    return record_call(self, (RecordedOperator *)operator, positional, kwargs);
}

static PyObject *
recorder_connect(LazyRecorder *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"now", "refs", "lock", "tensor_class", "memory_class", "create", "declined", NULL};
    PyObject *now, *refs, *lock, *tensor_class, *memory_class, *create, *declined;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!O!O!OO!:connect", names, &RecordingType, &now,
                                     &PyList_Type, &refs, &RecordingLockType, &lock, &PyType_Type, &tensor_class, &PyType_Type, &memory_class, &create,
                                     &PyTuple_Type, &declined)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)memory_class, &LazyMemoryType)) {
        return PyErr_Format(PyExc_TypeError, "%R is no class of memories", memory_class);
    }
    Py_XSETREF(self->now, Py_NewRef(now));
    Py_XSETREF(self->refs, Py_NewRef(refs));
    Py_XSETREF(self->lock, (RecordingLock *)Py_NewRef(lock));
    Py_XSETREF(self->tensor_class, Py_NewRef(tensor_class));
    Py_XSETREF(self->memory_class, Py_NewRef(memory_class));
    Py_XSETREF(self->create, Py_NewRef(create));
    Py_XSETREF(self->declined, Py_NewRef(declined));
    Py_RETURN_NONE;
}

static PyObject *
get_now(LazyRecorder *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->now ? self->now : Py_None);
}

static int
set_now(LazyRecorder *self, PyObject *now, void *Py_UNUSED(closure))
{
    if (now == NULL || !PyObject_TypeCheck(now, &RecordingType)) {
        PyErr_SetString(PyExc_TypeError, "what is recorded is a Recording");
        return -1;
    }
    Py_XSETREF(self->now, Py_NewRef(now));
    return 0;
}

static int
recorder_traverse(LazyRecorder *self, visitproc visit, void *arg)
{
    PyObject *held[] = {self->now,          self->refs,   (PyObject *)self->lock, self->tensor_class,
                        self->memory_class, self->create, self->declined};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(held); i++) {
        Py_VISIT(held[i]);
    }
    return 0;
}

static int
recorder_clear(LazyRecorder *self)
{
    Py_CLEAR(self->now);
    Py_CLEAR(self->refs);
    Py_CLEAR(self->lock);
    Py_CLEAR(self->tensor_class);
    Py_CLEAR(self->memory_class);
    Py_CLEAR(self->create);
    Py_CLEAR(self->declined);
    return 0;
}

static void
recorder_dealloc(LazyRecorder *self)
{
    PyObject_GC_UnTrack(self);
    recorder_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef recorder_methods[] = {
    {"connect", (PyCFunction)(void (*)(void))recorder_connect, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("Say what calls are recorded with.")},
    {"record_call", (PyCFunction)recorder_record, METH_VARARGS, PyDoc_STR("Record a call; what it returns.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef recorder_members[] = {
    {"lock", T_OBJECT_EX, offsetof(LazyRecorder, lock), READONLY, NULL},
    {"most_operators", T_LONGLONG, offsetof(LazyRecorder, most_operators), 0, NULL},
    {"most_bytes", T_LONGLONG, offsetof(LazyRecorder, most_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef recorder_properties[] = {
    {"now", (getter)get_now, (setter)set_now, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject LazyRecorderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.LazyRecorder",
    .tp_doc = PyDoc_STR("Records calls; its subclass in Python does what is rare."),
    .tp_basicsize = sizeof(LazyRecorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)recorder_dealloc,
    .tp_traverse = (traverseproc)recorder_traverse,
    .tp_clear = (inquiry)recorder_clear,
    .tp_methods = recorder_methods,
    .tp_members = recorder_members,
    .tp_getset = recorder_properties,
};
