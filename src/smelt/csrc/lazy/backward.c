/* LazyBackward: a backward whose operators were recorded before, taken as a whole.

   The same calls were recorded before it, autograd made the same nodes between the same calls, and the graph has the
   same shape: so the engine would record the same operators again. `run` goes on to the step where the recording stood
   after them, and gives the leaves gradients that are the same values. With nothing done, it returns None for other
   leaves or leaves with hooks, and False where a leaf has a gradient or a number differs. */
#include "autograd/graph_read.h"
#include "lazy/lazy.h"
#include "runner/aoti_library.h"

#include <string.h>

/* Memory that gradients lie in. */
typedef struct {
    SeenView *views; /* the first is the whole */
    Py_ssize_t view_count;
    int64_t value;
} GradientMemory;

typedef struct {
    PyObject *reference; /* a weak one to the tensor */
    StridedLayout *layout;
    int64_t node, memory;
} Leaf;

typedef struct {
    PyObject_HEAD
    Step *end;
    PyObject *numbers, *added; /* of the recording at its beginning, and what it adds */
    int64_t count, bytes;      /* of operators and of results */
    GradientMemory *memories;
    Leaf *leaves;
    Py_ssize_t memory_count, leaf_count, accumulator;
} LazyBackward;

static PyObject *name_grad, *name_requires_grad;

int
lazy_backward_init(void)
{
    name_grad = PyUnicode_InternFromString("grad");
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    return name_grad && name_requires_grad ? 0 : -1;
}

/* --- made from Python ----------------------------------------------------------------------------- */

static int
read_memory(GradientMemory *memory, PyObject *described)
{
    PyObject *views;
    long long value;
    if (!PyArg_ParseTuple(described, "LO!", &value, &PyTuple_Type, &views)) {
        return -1;
    }
    memory->value = value;
    memory->views = PyMem_Calloc((size_t)PyTuple_GET_SIZE(views) + 1, sizeof *memory->views);
    if (memory->views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(views); i++) {
        PyObject *parts;
        long long number;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(views, i), "OL", &parts, &number)) {
            return -1;
        }
        memory->views[i] = (SeenView){.layout = strided_layout(parts), .value = number};
        if (memory->views[i].layout == NULL) {
            return -1;
        }
        memory->view_count++;
    }
    if (memory->view_count == 0 || value < 0) {
        PyErr_SetString(PyExc_ValueError, "memory has a value and a layout");
        return -1;
    }
    return 0;
}

static int
read_leaf(const LazyBackward *self, Leaf *leaf, PyObject *described)
{
    PyObject *reference, *parts;
    long long node, memory;
    if (!PyArg_ParseTuple(described, "OLLO", &reference, &node, &memory, &parts)) {
        return -1;
    }
    if (!PyWeakref_Check(reference) || node < 0 || memory < 0 || memory >= self->memory_count) {
        PyErr_SetString(PyExc_ValueError, "a leaf is a weak reference, a node, a memory and a layout");
        return -1;
    }
    *leaf = (Leaf){.layout = strided_layout(parts), .node = node, .memory = memory};
    if (leaf->layout == NULL) {
        return -1;
    }
    leaf->reference = Py_NewRef(reference);
    return 0;
}

/* The tensor of a leaf, a new reference; NULL without an exception: it is gone, or no plain tensor. */
static PyObject *
tensor_of(const Leaf *leaf)
{
    PyObject *tensor = PyObject_CallNoArgs(leaf->reference);
    if (tensor == NULL) {
        PyErr_Clear();
    }
    else if (library_handle(tensor) == NULL) {
        Py_CLEAR(tensor);
    }
    return tensor;
}

/* The address of a leaf's node; 0: there are not so many. */
static uint64_t
address_of(const Leaf *leaf, PyObject *addresses)
{
    uint64_t address = 0;
    if ((leaf->node + 1) * (int64_t)sizeof address <= PyBytes_GET_SIZE(addresses)) {
        memcpy(&address, PyBytes_AS_STRING(addresses) + leaf->node * (int64_t)sizeof address, sizeof address);
    }
    return address;
}

/* Where the records of all leaves have the addresses of their nodes; -1: they differ, or have not. */
static Py_ssize_t
find_accumulator(const LazyBackward *self, PyObject *addresses)
{
    Py_ssize_t place = -1;
    for (Py_ssize_t i = 0; i < self->leaf_count; i++) {
        const uint64_t address = address_of(&self->leaves[i], addresses);
        PyObject *tensor = address ? tensor_of(&self->leaves[i]) : NULL;
        const Py_ssize_t here = tensor ? accumulator_place(tensor, address) : -1;
        Py_XDECREF(tensor);
        if (here < 0 || (i && here != place)) {
            return -1;
        }
        place = here;
    }
    return place;
}

static PyObject *
backward_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"end", "numbers", "added", "count", "bytes", "memories", "leaves", "addresses", NULL};
    PyObject *end, *numbers, *added, *memories, *leaves, *addresses;
    long long count, bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!LLO!O!S:LazyBackward", names, &StepType, &end, &PyTuple_Type,
                                     &numbers, &PyTuple_Type, &added, &count, &bytes, &PyTuple_Type, &memories,
                                     &PyTuple_Type, &leaves, &addresses)) {
        return NULL;
    }
    LazyBackward *self = (LazyBackward *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->end = (Step *)Py_NewRef(end);
    self->numbers = Py_NewRef(numbers);
    self->added = Py_NewRef(added);
    self->count = count, self->bytes = bytes;
    self->memories = PyMem_Calloc((size_t)PyTuple_GET_SIZE(memories) + 1, sizeof *self->memories);
    self->leaves = PyMem_Calloc((size_t)PyTuple_GET_SIZE(leaves) + 1, sizeof *self->leaves);
    int failed = self->memories == NULL || self->leaves == NULL;
    if (failed) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(memories); i++) {
        self->memory_count++;
        failed = read_memory(&self->memories[i], PyTuple_GET_ITEM(memories, i)) < 0;
    }
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(leaves); i++) {
        self->leaf_count++;
        failed = read_leaf(self, &self->leaves[i], PyTuple_GET_ITEM(leaves, i)) < 0;
    }
    if (!failed && (self->accumulator = find_accumulator(self, addresses)) < 0) {
        PyErr_SetString(PyExc_ValueError, "autograd has the nodes of leaves elsewhere");
        failed = 1;
    }
    if (failed) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* --- what must be as it was ------------------------------------------------------------------------ */

static bool
has_attribute(PyObject *object, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(value);
    return value == wanted;
}

enum { OTHERS = -1, NOT_READY = 0, READY = 1 };

/* Whether the nodes are those of the same leaves, and these have no gradients. */
static int
look_at_leaves(const LazyBackward *self, PyObject *addresses)
{
    int status = READY;
    for (Py_ssize_t i = 0; status != OTHERS && i < self->leaf_count; i++) {
        const uint64_t address = address_of(&self->leaves[i], addresses);
        PyObject *tensor = address ? tensor_of(&self->leaves[i]) : NULL;
        if (tensor == NULL || !leaf_is_plain(tensor, self->accumulator, address)) {
            status = OTHERS;
        }
        else if (!has_attribute(tensor, name_grad, Py_None) || !has_attribute(tensor, name_requires_grad, Py_True)) {
            status = NOT_READY;
        }
        Py_XDECREF(tensor);
    }
    return status;
}

static bool
have_numbers_recurred(const LazyBackward *self, PyObject *numbers)
{
    bool is_same = PyList_GET_SIZE(numbers) == PyTuple_GET_SIZE(self->numbers);
    for (Py_ssize_t i = 0; is_same && i < PyTuple_GET_SIZE(self->numbers); i++) {
        is_same = is_same_number(PyList_GET_ITEM(numbers, i), PyTuple_GET_ITEM(self->numbers, i));
    }
    return is_same;
}

/* --- the call --------------------------------------------------------------------------------------- */

/* A tensor over memory that is a value of the recording. */
static PyObject *
make_memory(LazyRecorder *recorder, Recording *now, const GradientMemory *described)
{
    LazyMemory *memory = lazy_memory_new((PyTypeObject *)recorder->memory_class, described->views[0].layout);
    if (memory == NULL) {
        return NULL;
    }
    int failed = lazy_memory_enter(memory, now->serial, described->views[0].value) < 0;
    for (Py_ssize_t i = 1; !failed && i < described->view_count; i++) {
        failed = lazy_memory_see(memory, described->views[i].layout, described->views[i].value) < 0;
    }
    failed = failed || recording_watch(now, described->value, memory) < 0;
    PyObject *tensor = failed ? NULL : new_tensor(recorder, memory);
    Py_DECREF(memory);
    return tensor;
}

static bool
is_whole(const StridedLayout *layout, const StridedLayout *whole)
{
    return layout->rank == whole->rank && layout->offset == whole->offset && layout->dtype == whole->dtype
           && !memcmp(layout->words, whole->words, (size_t)(2 * whole->rank) * sizeof *whole->words);
}

/* The gradient of a leaf. `whole` is taken by the first leaf that it is laid out for. */
static PyObject *
gradient_of(const LazyBackward *self, const Leaf *leaf, PyObject **whole, bool *is_taken)
{
    if (!*is_taken && is_whole(leaf->layout, self->memories[leaf->memory].views[0].layout)) {
        *is_taken = true;
        return Py_NewRef(*whole);
    }
    PyObject *view = view_of(*whole, leaf->layout, leaf->layout->offset);
    if (view == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "PyTorch cannot make a view of a gradient");
    }
    return view;
}

static int
give_gradients(const LazyBackward *self, LazyRecorder *recorder, Recording *now)
{
    PyObject **wholes = PyMem_Calloc((size_t)self->memory_count + 1, sizeof *wholes);
    bool *are_taken = PyMem_Calloc((size_t)self->memory_count + 1, sizeof *are_taken);
    int failed = wholes == NULL || are_taken == NULL;
    if (failed) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; !failed && i < self->memory_count; i++) {
        wholes[i] = make_memory(recorder, now, &self->memories[i]);
        failed = wholes[i] == NULL;
    }
    for (Py_ssize_t i = 0; !failed && i < self->leaf_count; i++) {
        const Leaf *leaf = &self->leaves[i];
        PyObject *tensor = tensor_of(leaf);
        PyObject *gradient = gradient_of(self, leaf, &wholes[leaf->memory], &are_taken[leaf->memory]);
        failed = gradient == NULL || (tensor && PyObject_SetAttr(tensor, name_grad, gradient) < 0);
        Py_XDECREF(gradient);
        Py_XDECREF(tensor);
    }
    for (Py_ssize_t i = 0; wholes && i < self->memory_count; i++) {
        Py_XDECREF(wholes[i]);
    }
    PyMem_Free(wholes);
    PyMem_Free(are_taken);
    return failed ? -1 : 0;
}

static PyObject *
backward_run(LazyBackward *self, PyObject *args)
{
    PyObject *recorder, *addresses;
    if (!PyArg_ParseTuple(args, "O!S:run", &LazyRecorderType, &recorder, &addresses)) {
        return NULL;
    }
    Recording *now = (Recording *)((LazyRecorder *)recorder)->now;
    const int leaves = look_at_leaves(self, addresses);
    if (leaves == OTHERS) {
        Py_RETURN_NONE;
    }
    if (leaves == NOT_READY || !have_numbers_recurred(self, now->numbers)) {
        Py_RETURN_FALSE;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->added); i++) {
        if (PyList_Append(now->numbers, PyTuple_GET_ITEM(self->added, i)) < 0) {
            return NULL;
        }
    }
    Py_SETREF(now->step, Py_NewRef(self->end));
    now->count += self->count;
    now->bytes += self->bytes;
    recording_note(now);
    if (give_gradients(self, (LazyRecorder *)recorder, now) < 0) {
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* --- the type ----------------------------------------------------------------------------------------- */

static int
backward_traverse(LazyBackward *self, visitproc visit, void *arg)
{
    Py_VISIT(self->end);
    for (Py_ssize_t i = 0; i < self->leaf_count; i++) {
        Py_VISIT(self->leaves[i].reference);
    }
    return 0;
}

static int
backward_clear(LazyBackward *self)
{
    Py_CLEAR(self->end);
    return 0;
}

static void
backward_dealloc(LazyBackward *self)
{
    PyObject_GC_UnTrack(self);
    backward_clear(self);
    Py_CLEAR(self->numbers);
    Py_CLEAR(self->added);
    for (Py_ssize_t i = 0; i < self->leaf_count; i++) {
        Py_CLEAR(self->leaves[i].reference);
        Py_CLEAR(self->leaves[i].layout);
    }
    for (Py_ssize_t i = 0; i < self->memory_count; i++) {
        for (Py_ssize_t k = 0; k < self->memories[i].view_count; k++) {
            Py_CLEAR(self->memories[i].views[k].layout);
        }
        PyMem_Free(self->memories[i].views);
    }
    PyMem_Free(self->memories);
    PyMem_Free(self->leaves);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef backward_methods[] = {
    {"run", (PyCFunction)backward_run, METH_VARARGS,
     PyDoc_STR("Record a backward that has recurred; False or None: it has not, and nothing is done.")},
    {NULL, NULL, 0, NULL},
};

PyTypeObject LazyBackwardType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "smelt._native.LazyBackward",
    .tp_doc = PyDoc_STR("The recorded operators of a backward that recurs, and the gradients of its leaves."),
    .tp_basicsize = sizeof(LazyBackward),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = backward_new,
    .tp_dealloc = (destructor)backward_dealloc,
    .tp_traverse = (traverseproc)backward_traverse,
    .tp_clear = (inquiry)backward_clear,
    .tp_methods = backward_methods,
};
