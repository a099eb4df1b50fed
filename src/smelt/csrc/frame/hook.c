/* The frame hook (PEP 523). See frame/hook.h. */
#include "frame/frame.h"

#include <pthread.h>

#include "frame/entry.h"
#include "guards/guards.h"
#include "frame/hook.h"
#include "frame/unbound.h"
#include "frame/entry_table.h"

/* Under the GIL. */
static struct {
    _PyFrameEvalFunction next; /* what evaluates the frames that are left alone: see pass_on() */
    Py_ssize_t active_threads;
    Py_ssize_t deep_threads; /* times any thread ran low on C stack: see evaluate_deep() */
} hook = {.next = _PyEval_EvalFrameDefault};

struct Pending;

static _Thread_local struct {
    Region *active;
    Py_ssize_t held; /* while above zero no region becomes active on this thread */
    Py_ssize_t deep; /* how often this thread counts in deep_threads */
    struct Pending *pending;
    bool own;       /* smelt's own code runs: */
    int theirs;     /* how many frames the program had left when that began */
    Frame *passing; /* the frame that was last given to another tool's hook, while that has it */
    uintptr_t stack_limit;
} here;

static PyObject *evaluate(PyThreadState *tstate, Frame *frame, int throwflag);

static void
install(PyInterpreterState *interpreter)
{
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (current != evaluate) { /* may be another tool's: it goes on seeing the frames we leave alone */
        hook.next = current;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
}

static void
uninstall(PyInterpreterState *interpreter)
{
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook.next);
    }
}

static void
install_or_uninstall(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    if (hook.active_threads > 0 && hook.deep_threads == 0) {
        install(interpreter);
    }
    else {
        uninstall(interpreter);
    }
}

Region *
hook_activate(Region *region)
{
    Region *replaced = here.active;
    region = here.held ? NULL : region;
    here.active = region;
    if ((replaced == NULL) != (region == NULL)) {
        hook.active_threads += region ? 1 : -1;
        if (region || hook.active_threads == 0) { /* another tool may have taken ours off meanwhile */
            install_or_uninstall();
        }
    }
    return replaced;
}

Region *
hook_active(void)
{
    return here.active;
}

void
hook_hold(void)
{
    here.held++;
    hook_activate(NULL);
}

void
hook_release(void)
{
    here.held -= here.held > 0;
}

bool
hook_is_held(void)
{
    return here.held > 0;
}

enum { OWN_FRAMES = 1000 }; /* what smelt's own code may count on: all that Python gives a program */

static HookRoom
begin(bool own, int lent)
{
    HookRoom room = {.lent = lent, .theirs = here.theirs, .own = here.own};
    if (lent) {
        *frame_recursion_left(PyThreadState_Get()) += lent;
    }
    here.own = own;
    return room;
}

HookRoom
hook_begin_own(void)
{
    int left = *frame_recursion_left(PyThreadState_Get());
    HookRoom room = begin(true, left < OWN_FRAMES ? OWN_FRAMES - left : 0);
    here.theirs = room.own ? room.theirs : left;
    return room;
}

HookRoom
hook_begin_program(void)
{
    return begin(false, here.own ? here.theirs - *frame_recursion_left(PyThreadState_Get()) : 0);
}

void
hook_end(HookRoom room)
{
    if (room.lent) {
        *frame_recursion_left(PyThreadState_Get()) -= room.lent; /* the limit may be another by now */
    }
    here.own = room.own;
    here.theirs = room.theirs;
}

/* After fork() this thread is the only one. */
static void
forget_other_threads(void)
{
    hook.active_threads = here.active ? 1 : 0;
    hook.deep_threads = here.deep;
}

int
hook_init(void)
{
    if (pthread_atfork(NULL, NULL, forget_other_threads) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

bool
hook_is_installed(void)
{
    return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == evaluate;
}

/* Evaluates a frame that is left alone: by the hook below this one, in the end by CPython.

   Another tool's hook may be both below this one, which was put on it, and above it: it remembers what it found in place
   when it came, and that was this one. So a frame that comes back is CPython's, and one that comes from the topmost hook
   does not go there again. */
static PyObject *
pass_on(PyThreadState *tstate, Frame *frame, int throwflag)
{
    _PyFrameEvalFunction next = hook.next;
    if (next == _PyEval_EvalFrameDefault || frame == here.passing
        || next == _PyInterpreterState_GetEvalFrameFunc(tstate->interp)) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    Frame *passing = here.passing;
    here.passing = frame;
    PyObject *result = next(tstate, frame, throwflag);
    here.passing = passing;
    return result;
}

/* A hooked call uses C stack where a plain one does not. When that runs low, CPython goes on without the hook, so that
   a deep recursion ends where it would have ended: at the recursion limit, not in a crash. */
static PyObject *
evaluate_deep(PyThreadState *tstate, Frame *frame, int throwflag)
{
    hook.deep_threads++;
    here.deep++;
    install_or_uninstall();
    PyObject *result = pass_on(tstate, frame, throwflag);
    hook.deep_threads--;
    here.deep--;
    install_or_uninstall();
    return result;
}

/* Between run_from and the frame it makes. */
struct Pending {
    FrameContents *contents; /* NULL once the frame has them */
    bool uninstall;          /* the hook was put in place for this alone */
    bool enable_collection;  /* likewise collection switched off */
};

static void
end_pending(struct Pending *pending)
{
    here.pending = NULL;
    pending->contents = NULL;
    if (pending->uninstall) {
        uninstall(PyInterpreterState_Get());
    }
    if (pending->enable_collection) {
        PyGC_Enable();
    }
}

/* Fills a fresh frame with what run_from was given. Nothing here can fail or run other code. */
static void
take_pending(Frame *frame)
{
    FrameContents *contents = here.pending->contents;
    int locals = frame_code(frame)->co_nlocalsplus;
    for (Py_ssize_t i = 0; i < contents->count; i++) {
        PyObject *dummy = i < locals ? frame->localsplus[i] : NULL;
        frame->localsplus[i] = contents->values[i];
        contents->values[i] = NULL;
        Py_XDECREF(dummy);
    }
    frame->stacktop = (int)contents->count;
    frame_set_next(frame, contents->unit);
    end_pending(here.pending);
}

PyObject *
hook_call_with(FrameContents *contents, PyObject *const *dummies, size_t positional, PyObject *names)
{
    /* From here to take_pending() CPython only builds the frame. Collection is off, so that no finalizer can run
       another frame of the same function in between and be taken for ours. */
    struct Pending pending = {
        .contents = contents, .uninstall = !hook_is_installed(), .enable_collection = PyGC_Disable()};
    here.pending = &pending;
    install(PyInterpreterState_Get());
    PyObject *result = PyObject_Vectorcall(contents->function, dummies, positional, names);
    if (pending.contents == NULL) {
        return result;
    }
    end_pending(&pending);
    if (result) { /* a function whose vectorcall somebody replaced */
        Py_DECREF(result);
        PyErr_Format(PyExc_SystemError, "run_from: calling %R made no frame", contents->function);
    }
    return NULL;
}

/* The entry's result. Steals the collected references. */
static PyObject *
run_entry(Entry *entry, PyObject **collected, Py_ssize_t count)
{
    PyObject *result = NULL;
    if (!Py_EnterRecursiveCall(" in compiled code")) { /* it may come back here without any Python frame in between */
        result = entry_run(entry, collected, count);
        Py_LeaveRecursiveCall();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(collected[i]);
    }
    return result;
}

enum { USUAL_COLLECTED = 32 };

/* If the entry's guards hold for this frame: true, and its result (NULL: it raised). The caller holds the entry. */
static bool
try_entry(Entry *entry, Frame *frame, PyObject **result)
{
    if (entry->guards == NULL || entry->run == NULL) {
        return false;
    }
    Guards *guards = entry->guards;
    Py_ssize_t count = guards_collected(guards);
    PyObject *usual[USUAL_COLLECTED + 1];
    PyObject **room = usual; /* room[0] is scratch space for vectorcall */
    if (count > USUAL_COLLECTED) {
        room = PyMem_New(PyObject *, count + 1);
        if (room == NULL) {
            return false;
        }
    }
    GuardSource source = {
        .slots = frame->localsplus,
        .count = frame_code(frame)->co_nlocalsplus,
        .function = (PyObject *)frame_function(frame),
    };
    bool holds = guards_hold(guards, &source, room + 1, NULL);
    if (holds) {
        entry->hits++;
        *result = run_entry(entry, room + 1, count);
    }
    if (room != usual) {
        PyMem_Free(room);
    }
    return holds;
}

/* Asks the region's `missed`. 1: an entry (new reference); 0: none, evaluate the frame; -1: it raised. */
static int
ask_missed(Region *region, Frame *frame, Entry **entry)
{
    if (region->missed == NULL) {
        return 0;
    }
    Py_ssize_t count = frame_code(frame)->co_nlocalsplus;
    PyObject *slots = PyTuple_New(count);
    if (slots == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(slots, i, slot_to_python(frame->localsplus[i]));
    }
    PyObject *arguments[] = {NULL, (PyObject *)frame_function(frame), slots};
    PyObject *answer = PyObject_Vectorcall(region->missed, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(slots);
    if (answer == NULL) {
        return -1;
    }
    if (answer == Py_None) {
        Py_DECREF(answer);
        return 0;
    }
    if (!PyObject_TypeCheck(answer, &EntryType)) {
        PyErr_Format(PyExc_TypeError, "missed must return an Entry or None, not %.200s", Py_TYPE(answer)->tp_name);
        Py_DECREF(answer);
        return -1;
    }
    *entry = (Entry *)answer;
    return 1;
}

/* The first of the entries that fits, run. */
static bool
try_entries(PyObject *entries, Frame *frame, PyObject **result)
{
    Py_ssize_t count = entries ? PyTuple_GET_SIZE(entries) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (try_entry((Entry *)PyTuple_GET_ITEM(entries, i), frame, result)) {
            return true;
        }
    }
    return false;
}

/* Asks for a new entry, keeps and runs it. False: CPython is to evaluate the frame. */
static bool
try_new_entry(Region *region, Frame *frame, PyObject **result)
{
    Entry *entry;
    int answer = ask_missed(region, frame, &entry);
    if (answer != 1) {
        return answer < 0; /* raised: that is the frame's result */
    }
    if (region_add(region, frame_code(frame), entry) < 0) {
        Py_DECREF(entry);
        return true;
    }
    bool done = try_entry(entry, frame, result);
    Py_DECREF(entry);
    return done;
}

/* Whether a compiled entry, or an exception on the way to one, took the place of the frame; *result stays NULL for an exception.
   Guards, `missed` and compiled code all run with no region active: they are not the user's program. */
static bool
run_compiled(Region *region, Frame *frame, PyObject *entries, PyObject **result)
{
    region->pieces++;
    hook_activate(NULL);
    HookRoom room = hook_begin_own();
    bool done = try_entries(entries, frame, result) || try_new_entry(region, frame, result);
    hook_end(room);
    hook_activate(region);
    Py_XDECREF(entries);
    return done;
}

/* The frame and all that it calls belong to another tool. */
static PyObject *
evaluate_alone(PyThreadState *tstate, Frame *frame, Region *region)
{
    hook_activate(NULL);
    PyObject *result = pass_on(tstate, frame, 0);
    hook_activate(region);
    return result;
}

static PyObject *
evaluate(PyThreadState *tstate, Frame *frame, int throwflag)
{
    if (here.pending && frame_function(frame) == (PyFunctionObject *)here.pending->contents->function) {
        take_pending(frame);
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag); /* no other tool expects a frame half way through */
    }
    if (frame_stack_is_low(tstate, &here.stack_limit)) {
        return evaluate_deep(tstate, frame, throwflag);
    }
    Region *region = here.active;
    if (region == NULL) {
        if (hook.active_threads == 0) { /* put back by a tool that came after this hook and left after it */
            uninstall(tstate->interp);
        }
        return pass_on(tstate, frame, throwflag);
    }
    if (throwflag || !frame_is_fresh_call(frame) || frame == here.passing) {
        return pass_on(tstate, frame, throwflag);
    }
    PyObject *entries; /* a tuple that nobody changes, whatever happens to the region meanwhile */
    FrameTreatment treatment = region_find(region, frame_code(frame), &entries);
    if (treatment == FRAME_ASKED) {
        PyObject *result = NULL;
        if (run_compiled(region, frame, entries, &result)) {
            frame_dispose(tstate, frame);
            return result;
        }
        treatment = region_treatment(region, frame_code(frame)); /* `missed` may have decided it */
    }
    return treatment == FRAME_ALONE ? evaluate_alone(tstate, frame, region) : pass_on(tstate, frame, 0);
}
