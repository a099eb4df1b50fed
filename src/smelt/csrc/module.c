/* The module smelt._native: see _native.pyi for what each name does. */
#include "frame/frame.h"

#include "runner/code.h"
#include "frame/entry.h"
#include "guards/guards.h"
#include "frame/hook.h"
#include "autograd/forward_call.h"
#include "runner/launcher.h"
#include "autograd/graph_read.h"
#include "runner/aoti_library.h"
#include "frame/unbound.h"
#include "frame/region.h"
#include "frame/resume.h"
#include "runner/program.h"
#include "state/deferred_signals.h"
#include "state/preserved_state.h"
#include "runner/openmp.h"
#include "executor/check.h"
#include "executor/expression.h"
#include "executor/run/run.h"
#include "executor/format/checksum.h"
#include "executor/format/signature.h"
#include "executor/format/file.h"
#include "gpu/cuda_module.h"
#include "gpu/grid_launcher.h"
#include "lazy/accelerator.h"
#include "lazy/lazy.h"

#include <stdint.h>
#include <string.h>

static PyObject *
active(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *region = (PyObject *)hook_active();
    return Py_NewRef(region ? region : Py_None);
}

/* Calls args[0](*args[1:]) with this region active on the thread; its frames are the program's, or smelt's own. */
static PyObject *
call_within(Region *region, HookRoom (*begin)(void), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Region *outer = hook_activate(region);
    HookRoom room = begin();
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), names);
    hook_end(room);
    hook_activate(outer);
    return result;
}

static PyObject *
suspended(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return count < 1 ? PyErr_Format(PyExc_TypeError, "suspended() needs the function to call")
                     : call_within(NULL, hook_begin_program, args, count, names);
}

static PyObject *
aside(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return count < 1 ? PyErr_Format(PyExc_TypeError, "aside() needs the function to call")
                     : call_within(NULL, hook_begin_own, args, count, names);
}

static PyObject *
stack_left(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSsize_t(frame_stack_left());
}

static PyObject *
resumed(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (count < 2 || !PyObject_TypeCheck(args[0], &RegionType)) {
        return PyErr_Format(PyExc_TypeError, "resumed() needs a Region and the function to call");
    }
    return call_within((Region *)args[0], hook_begin_program, args + 1, count - 1, names);
}

static PyObject *
hook_installed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(hook_is_installed());
}

static PyObject *
checksum(PyObject *Py_UNUSED(module), PyObject *data)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    uint64_t sum;
    Py_BEGIN_ALLOW_THREADS
    sum = smelt_checksum(buffer.buf, (size_t)buffer.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    return PyLong_FromUnsignedLongLong(sum);
}

/* sign(secret, data, is_weights=False): see _native.pyi. */
static PyObject *
sign(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer secret, data;
    int is_weights = 0;
    if (!PyArg_ParseTuple(args, "y*y*|p:sign", &secret, &data, &is_weights)) {
        return NULL;
    }
    Signature record = {.version = SIGNATURE_VERSION};
    memcpy(record.magic, is_weights ? WEIGHTS_SIGNATURE_MAGIC : SIGNATURE_MAGIC, sizeof record.magic);
    const bool is_key = secret.len == ED25519_KEY_BYTES;
    if (is_key) {
        Py_BEGIN_ALLOW_THREADS
        SignedMessage message;
        smelt_ed25519_public_key(record.key, secret.buf);
        smelt_signed_message(&message, &record, data.buf, (size_t)data.len);
        smelt_ed25519_sign(record.signature, secret.buf, &message, sizeof message);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&secret);
    PyBuffer_Release(&data);
    return is_key ? PyBytes_FromStringAndSize((const char *)&record, sizeof record)
                  : PyErr_Format(PyExc_ValueError, "a key has %d bytes", ED25519_KEY_BYTES);
}

/* Where the bytes of a buffer begin at a whole word: in a copy, to be freed, if they begin elsewhere. NULL with an
   exception. */
static const void *
at_whole_word(const Py_buffer *buffer, void **copy)
{
    *copy = NULL;
    if ((uintptr_t)buffer->buf % sizeof(int64_t) == 0) {
        return buffer->buf;
    }
    *copy = PyMem_Malloc((size_t)buffer->len);
    return *copy ? memcpy(*copy, buffer->buf, (size_t)buffer->len) : PyErr_NoMemory();
}

/* read_sections(data, is_artifact): see _native.pyi. */
static PyObject *
read_sections(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer buffer;
    int is_artifact;
    if (!PyArg_ParseTuple(args, "y*p:read_sections", &buffer, &is_artifact)) {
        return NULL;
    }
    void *copy;
    PyObject *sections = NULL;
    File file = {.data = at_whole_word(&buffer, &copy), .size = (size_t)buffer.len, .descriptor = -1};
    if (file.data) {
        smelt_error error;
        smelt_status status;
        Py_BEGIN_ALLOW_THREADS
        status = (is_artifact ? smelt_file_check : smelt_file_check_sections)(&file, false, &error);
        Py_END_ALLOW_THREADS
        sections = status ? PyErr_Format(PyExc_ValueError, "%s", error.message)
                          : PyBytes_FromStringAndSize((const char *)file.sections,
                                                      (Py_ssize_t)file.header->sections * (Py_ssize_t)sizeof *file.sections);
    }
    PyMem_Free(copy);
    PyBuffer_Release(&buffer);
    return sections;
}

/* A table of an artifact that nothing is wrong with, in a buffer of whole words. */
static smelt_status
read_checked(Table *table, const void *data, Py_ssize_t size, const long long counts[3], smelt_error *error)
{
    smelt_status status = smelt_table_read(table, data, size, 0, error);
    if (!status) {
        int64_t *scratch = PyMem_Calloc(smelt_table_scratch(table), sizeof *scratch);
        status = scratch ? smelt_table_check(table, counts[0], counts[1], counts[2], scratch, error)
                         : smelt_fail(error, SMELT_ERROR_MEMORY, "there is no memory to check a table");
        PyMem_Free(scratch);
    }
    return status;
}

static void *
allocate_words(void *Py_UNUSED(context), size_t size, size_t Py_UNUSED(alignment))
{
    return PyMem_Calloc(1, size); /* plans have places for pointers, which objects have as zeros */
}

/* Of each variant that has neither symbols nor checks its plan on one thread, else None. */
static PyObject *
constant_plans(const Table *table)
{
    const smelt_allocator allocator = {.allocate = allocate_words};
    const Run run = {.table = table, .allocator = &allocator, .threads = 1};
    PyObject *plans = PyTuple_New((Py_ssize_t)table->counts[VARIANTS]);
    for (int64_t i = 0; plans && i < table->counts[VARIANTS]; i++) {
        const VariantRecord *variant = &table->variants[i];
        Plan plan = {.memory = NULL};
        const bool is_constant = variant->symbol_count == 0 && variant->check_count == 0;
        const bool is_planned = is_constant && smelt_run_make_plan(&run, variant, &plan)
                                && smelt_run_plan(&run, variant, &plan);
        PyObject *words = is_planned ? PyBytes_FromStringAndSize((const char *)plan.memory, 8 * (Py_ssize_t)plan.words)
                                     : Py_NewRef(Py_None);
        PyMem_Free(plan.memory);
        PyTuple_SET_ITEM(plans, (Py_ssize_t)i, words);
        if (words == NULL) {
            Py_CLEAR(plans);
        }
    }
    return plans;
}

static PyObject *
checked(PyObject *args, const char *format, bool wants_plans)
{
    Py_buffer buffer;
    long long counts[3]; /* bytes of weights and of state, kernels */
    if (!PyArg_ParseTuple(args, format, &buffer, &counts[0], &counts[1], &counts[2])) {
        return NULL;
    }
    void *copy;
    PyObject *answer = NULL;
    const void *data = at_whole_word(&buffer, &copy);
    if (data) {
        Table table;
        smelt_error error;
        if (read_checked(&table, data, buffer.len, counts, &error)) {
            PyErr_SetString(PyExc_ValueError, error.message);
        }
        else if (wants_plans) {
            answer = Py_BuildValue("(LN)", (long long)smelt_run_bytes(&table), constant_plans(&table));
        }
        else {
            answer = Py_NewRef(Py_None);
        }
    }
    PyMem_Free(copy);
    PyBuffer_Release(&buffer);
    return answer;
}

/* evaluate(code, symbols) → the value of an expression, or None: see _native.pyi. */
static PyObject *
evaluate(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer code, symbols;
    if (!PyArg_ParseTuple(args, "y*y*:evaluate", &code, &symbols)) {
        return NULL;
    }
    void *code_copy, *symbols_copy = NULL;
    PyObject *answer = NULL;
    const int64_t *words = at_whole_word(&code, &code_copy);
    const int64_t *numbers = words ? at_whole_word(&symbols, &symbols_copy) : NULL;
    const int64_t count = code.len / (Py_ssize_t)(2 * sizeof *words);
    int64_t needed, value;
    if (numbers && (!smelt_expression_holds(words, count, &needed) || needed > symbols.len / (Py_ssize_t)sizeof *words)) {
        PyErr_SetString(PyExc_ValueError, "not an expression over so many symbols");
    }
    else if (numbers) {
        answer = smelt_evaluate(words, count, numbers, &value) ? PyLong_FromLongLong(value) : Py_NewRef(Py_None);
    }
    PyMem_Free(code_copy);
    PyMem_Free(symbols_copy);
    PyBuffer_Release(&code);
    PyBuffer_Release(&symbols);
    return answer;
}

/* check_table(table, weights, state, kernels), and the same of plan_table: see _native.pyi. */
static PyObject *
check_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    return checked(args, "y*LLL:check_table", false);
}

static PyObject *
plan_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    return checked(args, "y*LLL:plan_table", true);
}

static PyMethodDef functions[] = {
    {"active", active, METH_NOARGS, PyDoc_STR("The region active on this thread, or None.")},
    {"suspended", (PyCFunction)(void (*)(void))suspended, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function with no region active on this thread.")},
    {"aside", (PyCFunction)(void (*)(void))aside, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function of smelt's own: no region is active, and its frames do not count as the program's.")},
    {"free_cuda_graphs", free_cuda_graphs, METH_NOARGS, PyDoc_STR("Free the CUDA graphs of all programs; how many.")},
    {"stack_left", stack_left, METH_NOARGS, PyDoc_STR("Bytes of C stack that are left on this thread.")},
    {"resumed", (PyCFunction)(void (*)(void))resumed, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function with the given region active.")},
    {"run_from", (PyCFunction)(void (*)(void))run_from, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("Run a function's code from a byte offset, with given slots and stack.")},
    {"new_frame", (PyCFunction)(void (*)(void))new_frame, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("A frame object that stands at an offset, for building tracebacks.")},
    {"suspended_generator", (PyCFunction)(void (*)(void))suspended_generator, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("A generator that stands behind a yield, with given slots and stack.")},
    {"set_tensor_layout", (PyCFunction)(void (*)(void))set_tensor_layout, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("Say where tensors keep what they are, so that guards can look there.")},
    {"set_library", set_library, METH_VARARGS,
     PyDoc_STR("Say where the functions of PyTorch's C interface lie, so that programs can call them.")},
    {"checksum", checksum, METH_O, PyDoc_STR("XXH64 of bytes, which the sections of an artifact's file are held against.")},
    {"sign", sign, METH_VARARGS, PyDoc_STR("The signature of bytes, as the record that a file ends with.")},
    {"read_sections", read_sections, METH_VARARGS,
     PyDoc_STR("The directory of an artifact, or of a file of the disk cache, that nothing is wrong with.")},
    {"evaluate", evaluate, METH_VARARGS, PyDoc_STR("The value of an expression over these symbols, or None.")},
    {"check_table", check_table, METH_VARARGS, PyDoc_STR("Refuse a table of an artifact that breaks a rule.")},
    {"plan_table", plan_table, METH_VARARGS, PyDoc_STR("The same; what a static model of it has of its runs.")},
    {"storages", library_storages, METH_O, PyDoc_STR("Which memory each of these tensors lies in.")},
    {"overlap", library_overlap, METH_VARARGS,
     PyDoc_STR("Whether tensors that are written lie in memory of others.")},
    {"parallel_for_address", parallel_for_address, METH_VARARGS,
     PyDoc_STR("The address of what shares a kernel's points out between threads; says where OpenMP's functions are.")},
    {"set_node_stream", set_node_stream, METH_O, "Where the inputs of nodes keep the stream they were made on."},
    {"set_node_layout", (PyCFunction)(void (*)(void))set_node_layout, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("Say where nodes of autograd's graph keep what they are, so that they can be read there.")},
    {"read_graph", read_graph, METH_VARARGS, PyDoc_STR("All that a backward from these nodes depends on.")},
    {"outline_graph", outline_graph, METH_VARARGS, PyDoc_STR("The shape of autograd's graph, without what nodes saved.")},
    {"saved_values", saved_values, METH_VARARGS, PyDoc_STR("Which values of a recording nodes of autograd's graph saved.")},
    {"watch_nodes", watch_nodes, METH_VARARGS, PyDoc_STR("Say how to ask for the number of autograd's next node.")},
    {"node_hooks", node_hooks, METH_O, PyDoc_STR("The hooks of the node at an address.")},
    {"leaf_hooks", leaf_hooks, METH_O, PyDoc_STR("The hooks of a leaf.")},
    {"release_nodes", release_nodes, METH_O, PyDoc_STR("Free what nodes saved, as after a backward.")},
    {"accumulate_grads", accumulate_grads, METH_VARARGS,
     PyDoc_STR("Put gradients into the .grad of leaves, or add them to it.")},
    {"class_version", class_version, METH_O,
     PyDoc_STR("A number that is another once look-ups in a class may find something else; 0 if it has none.")},
    {"watch_operators", watch_operators, METH_VARARGS,
     PyDoc_STR("Say where replaced operators are registered, and what reads them there.")},
    {"replaced_operators", replaced_operators, METH_NOARGS, PyDoc_STR("PyTorch's operators that the program replaced.")},
    {"install_preserved_state", install_preserved_state, METH_VARARGS,
     PyDoc_STR("Say what preserving_state() is to put back, and how.")},
    {"preserving_state", (PyCFunction)(void (*)(void))preserving_state, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function, and put PyTorch's state on this thread back, whatever is raised and wherever.")},
    {"undoing", (PyCFunction)(void (*)(void))undoing, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function, then another that undoes what it did, and that again if it is interrupted.")},
    {"restoring", (PyCFunction)(void (*)(void))restoring, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function; if it raises, another that puts back what it may have changed.")},
    {"recorded", (PyCFunction)(void (*)(void))recorded, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function with autograd's recording.")},
    {"unrecorded", (PyCFunction)(void (*)(void))unrecorded, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function without autograd's recording.")},
    {"offering_errors", (PyCFunction)(void (*)(void))offering_errors, METH_FASTCALL,
     PyDoc_STR("Call a function; what it raises is offered to another, which may have it called again.")},
    {"within", (PyCFunction)(void (*)(void))within, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("Call a function in a context that is entered and left by C functions.")},
    {"set_storage_layout", set_storage_layout, METH_VARARGS,
     PyDoc_STR("Say where storages keep the address and the size of their memory, and who frees it.")},
    {"place_device_memory", place_device_memory, METH_VARARGS,
     PyDoc_STR("Give the storage of a new tensor its memory, the memory's address, and a size.")},
    {"reads_storages", reads_storages, METH_NOARGS,
     PyDoc_STR("Whether it is known where tensors and storages keep the address and the size of their memory.")},
    {"device_memory_of", device_memory_of_tensor, METH_O,
     PyDoc_STR("What stands behind the storage of a tensor of a device of our own; None where that cannot be read.")},
    {"device_memory_at", device_memory_at, METH_O, PyDoc_STR("The memory at an address, None if none lives there.")},
    {"leave_accelerator", leave_accelerator, METH_NOARGS,
     PyDoc_STR("Let PyTorch's accelerator be its GPU, though a device of our own has a name.")},
    {"hook_installed", hook_installed, METH_NOARGS, PyDoc_STR("Whether the frame hook is in place now.")},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "smelt._native",
    .m_doc = PyDoc_STR("The C part: the frame hook, the guard checker, and the kernel launcher."),
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    PyTypeObject *types[] = {&NullType, &GuardsType, &EntryType, &RegionType, &AnyLauncherType,
                             &LauncherType, &RunnerType, &PausedRunType, &ForwardCallType, &CodeType, &HeldType,
                             &PausedGCType,
                             &DeviceMemoryType, &StridedLayoutType, &LazyMemoryType, &RecordingType, &StepType,
                             &RecordedOperatorType, &LazyRecorderType, &LazyKernelType, &LazyLaunchType,
                             &LazyBackwardType, &RecordingLockType, &DeviceTypeAnswerType};
    if (guard_tensor_init() < 0 || guard_classes_init() < 0 || launcher_init() < 0
        || hook_init() < 0 || nodes_init() < 0 || accumulate_grad_init() < 0 || preserved_state_init() < 0
        || deferred_signals_init() < 0 || openmp_init() < 0 || device_memory_init() < 0 || recorder_init() < 0
        || lazy_backward_init() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    if (PyModule_AddObjectRef(module, "NULL", &smelt_null) < 0 || cuda_module_init(module) < 0
        || grid_launcher_init(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
