/* Guards: a tree of values reached from a frame and the checks on them, flattened into C structs.

   A node says how to reach its value from its parent's (an Access), what must hold of it (Checks), and whether the
   value is collected as an input of the compiled code. Nodes are stored in preorder, so one loop with a short stack of
   values visits the tree, however deep it is. Access kinds are the rows of one table (guards/access.c), check kinds
   those of another (guards/checks.c). */
#ifndef SMELT_GUARDS_H
#define SMELT_GUARDS_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include "guards/dlpack_exchange.h"

/* --- from outside ----------------------------------------------------------------------------- */

typedef struct Guards Guards;

extern PyTypeObject GuardsType;

/* Where ("slot", i) looks. The caller keeps it all alive and unchanged. */
typedef struct {
    PyObject *const *slots; /* NULL pointers, and the NULL object, are unbound locals */
    Py_ssize_t count;
    PyObject *function; /* the slot after the last; NULL if there is none */
} GuardSource;

/* What failed first. */
typedef struct GuardFailure GuardFailure;

/* How many values the tree collects. */
Py_ssize_t guards_collected(const Guards *guards);

/* Whether all holds. If so, `collected` has new references to the collected values, in tree order; if not, nothing, and
   `failure`, where given, says what was wrong. Runs user code (properties, predicates); never leaves an exception. */
bool guards_hold(Guards *guards, const GuardSource *source, PyObject **collected, GuardFailure *failure);

/* Whether guards that hold say that function() returned this very object. */
bool guards_say(const Guards *guards, PyObject *function, PyObject *answer);

/* --- the tree, for the guard_*.c files -------------------------------------------------------- */

typedef struct Node Node;
typedef struct Check Check;
typedef struct FastPath FastPath;
typedef struct SizeFacts SizeFacts;

typedef struct {
    const char *name;
    enum { NO_OPERAND, INDEX_OPERAND, NAME_OPERAND, OBJECT_OPERAND } operand;
    /* 1: *value has a new reference, or NULL for "unbound"; 0: it cannot be reached; -1: nor without an exception. */
    int (*read)(const Node *node, const GuardSource *source, PyObject *parent, PyObject **value);
    bool wants_parent;
    enum {
        FROM_SLOT,
        FROM_ATTRIBUTE,
        FROM_INSTANCE,
        FROM_DICT,
        FROM_SEQUENCE,
        FROM_CELL,
        FROM_OBJECT,
        FROM_FUNCTION,
        FROM_NOWHERE,
    } rule; /* where the value is kept: see guards/fastpath_build.c */
} AccessKind;

/* How facts can prove a check for as long as nothing it depends on is written to: see guards/fastpath_build.c. */
typedef enum {
    ASK_AGAIN, /* it cannot: other things decide it */
    BY_IDENTITY,
    BY_TYPE,
    BY_VALUE,
    BY_LENGTH,
    BY_DICT,
    BY_ORDER,
    BY_CLASS,
    BY_TENSOR,
    BY_MEMBERS,
    BY_ABSENCE,
    BY_PROCESS, /* like ASK_AGAIN, and the value does not matter */
} CheckRule;

typedef struct {
    const char *name;
    Py_ssize_t operands;
    /* Turns the operands into what `holds` needs. 0, or -1 with an exception. May be NULL. */
    int (*prepare)(Check *check);
    /* 1, 0, or -1 with an exception. `value` is never NULL unless takes_unbound. */
    int (*holds)(const Check *check, PyObject *value);
    /* The failure in words, without the source: "expected True, got False". New reference. */
    PyObject *(*explain)(const Check *check, PyObject *value);
    bool takes_unbound;
    CheckRule rule;
} CheckKind;

struct Node {
    const AccessKind *access;
    PyObject *operand; /* owned (a name is interned here); NULL if the access has none or an index */
    Py_ssize_t index;
    Py_ssize_t depth;
    Py_ssize_t end; /* the first node that is not below this one */
    Py_ssize_t place; /* of its value among the collected, if it is collected */
    Py_ssize_t first_check, end_check; /* in Guards.checks */
    PyObject *text;                    /* borrowed from Guards.roots, like all that checks point at */
    bool collect;
    unsigned char changes; /* how often it made a fast path stale: see guards/fastpath.c */
};

#define ANY_SIZE INT64_MIN
enum { KIND_WORDS = 4 }; /* at most */

/* What a tensor must be, with the numbers taken out of their Python objects. */
typedef struct {
    PyObject *type, *dtype, *device; /* borrowed */
    int requires_grad;
    Py_ssize_t rank;
    bool any_stride;
    unsigned quirks;         /* a bit for each way in which tensors of the type may be more than their memory */
    DescribeTensor describe; /* the type's exchange function, NULL if there is none or it cannot be used */
    bool learned;            /* whether the next two are known */
    ExchangeType exchange_type;
    ExchangeDevice exchange_device;
    bool seen;                   /* whether the next is known */
    uint64_t kind[KIND_WORDS];   /* dtype, device and flags of the last tensor that passed, as they are in memory */
    int64_t sizes[]; /* shape, then stride; ANY_SIZE where anything goes */
} TensorSpec;


struct Check {
    const CheckKind *kind;
    PyObject *spec;     /* the whole tuple, borrowed: ("length", 3) */
    TensorSpec *tensor; /* owned; only for "tensor" */
    Py_ssize_t number;  /* of "length"; for "unregistered": how many registrations there were when it held */
};

/* The i-th thing after the check's name, borrowed. */
static inline PyObject *
operand(const Check *check, Py_ssize_t i)
{
    return PyTuple_GET_ITEM(check->spec, i + 1);
}

struct Guards {
    PyObject_HEAD
    PyObject *roots; /* NULL once the collector has cleared the guards: then nothing holds */
    Node *nodes;
    Py_ssize_t node_count;
    Check *checks;
    Py_ssize_t check_count;
    Py_ssize_t depth; /* of the deepest node, plus one */
    Py_ssize_t collected;
    bool distinct;
    unsigned char passes; /* how often all held, up to a few */
    FastPath *fastpath;   /* NULL: none */
    SizeFacts *sizes;     /* NULL: none */
};

struct GuardFailure {
    const Node *node;   /* NULL: the guards were cleared, or memory ran out */
    const Check *check; /* NULL: the value could not be reached, or two collected values are the same */
    PyObject *value;    /* owned; what was found (NULL: unbound) */
    PyObject *error;    /* owned; the exception that reading or checking it raised, or NULL */
    const Node *same;   /* the other node, if two collected values are the same */
    PyObject *text;     /* owned; the whole sentence, for what is no matter of one node; else NULL */
};

/* By name; NULL with an exception that lists the choices. */
const AccessKind *find_access(PyObject *name);
const CheckKind *find_check(PyObject *name);

/* Same exact type and ==, all the way down: 1 is not True or 1.0, -0.0 is not 0.0, nan is nan. 1, 0, or -1 with an
   exception. */
int strictly_equal(PyObject *left, PyObject *right);

/* "expected <what><repr>, got <repr>", reprs shortened; a NULL is said to be unbound. New reference. */
PyObject *expected_got(const char *what, PyObject *expected, PyObject *got);

/* The row for "tensor" (guards/tensor.c), and the names it looks up. */
int tensor_prepare(Check *check);
int tensor_holds(const Check *check, PyObject *value);
PyObject *tensor_explain(const Check *check, PyObject *value);
int guard_tensor_init(void); /* 0, or -1 with an exception */

/* The rows about classes (guards/classes.c). */
int subclass_prepare(Check *check);
int subclass_holds(const Check *check, PyObject *value);
PyObject *subclass_explain(const Check *check, PyObject *value);
int unregistered_prepare(Check *check);
int unregistered_holds(const Check *check, PyObject *value);
PyObject *unregistered_explain(const Check *check, PyObject *value);
int next_prepare(Check *check);
int next_has_holds(const Check *check, PyObject *value);
int next_lacks_holds(const Check *check, PyObject *value);
PyObject *next_explain(const Check *check, PyObject *value);
int of_class_holds(const Check *check, PyObject *value);
PyObject *of_class_explain(const Check *check, PyObject *value);
PyObject *class_version(PyObject *module, PyObject *value);
int guard_classes_init(void); /* 0, or -1 with an exception */

/* The row about replaced operators (guards/operators.c). */
int replaced_holds(const Check *check, PyObject *value);
PyObject *replaced_explain(const Check *check, PyObject *value);
PyObject *watch_operators(PyObject *module, PyObject *args);
PyObject *replaced_operators(PyObject *module, PyObject *nothing);

/* Where PyTorch keeps what a tensor is (guards/tensor_memory.c): whether memory says that the tensor passes. False: it may. */
bool tensor_memory_holds(const TensorSpec *spec, PyObject *value);
/* Notes what the memory of a tensor that passed looks like. */
void tensor_memory_learn(TensorSpec *spec, PyObject *value);
/* One size (or stride) of a tensor whose type and rank are known to be right; false if memory does not tell. */
bool tensor_memory_size(PyObject *value, bool stride, Py_ssize_t dimension, int64_t *size);
/* All of a tensor that code compiled for it relies on, as words of which there is room for TENSOR_WORDS; how many, or 0
   if memory does not tell. */
enum { TENSOR_DIMENSIONS = 8, TENSOR_WORDS = 1 + KIND_WORDS + 2 * TENSOR_DIMENSIONS };
int tensor_memory_words(PyObject *value, uint64_t *words);
/* Whether a value is a tensor of the class all this is true of, and of no subclass. */
bool tensor_memory_is_plain(PyObject *value);
/* Where in its storage a tensor begins, in elements. False: that cannot be read. */
bool tensor_memory_offset(PyObject *value, int64_t *offset);
PyObject *set_tensor_layout(PyObject *module, PyObject *args, PyObject *kwargs);

/* Visits the nodes from `first` up to `end`, which is the end of the first one's siblings or of itself; `parent` is the
   value above them (borrowed). Puts what is collected in its places, which must be NULL before. */
bool walk_nodes(Guards *guards, Py_ssize_t first, Py_ssize_t end, const GuardSource *source, PyObject *parent,
                PyObject **collected, GuardFailure *failure);
bool check_holds(const Check *check, PyObject *value);

/* A fast path (guards/fastpath.c) is what is left to look at once all held: the few words of memory that everything else
   depends on, and what only asking can tell. */
typedef enum { FASTPATH_HOLDS, FASTPATH_FAILS, FASTPATH_STALE } FastPathAnswer;
/* `stale`: the node that was found changed, for FASTPATH_STALE. Collects as walk_nodes does. */
FastPathAnswer fastpath_follow(Guards *guards, const GuardSource *source, PyObject **collected, Py_ssize_t *stale);
void fastpath_drop(FastPath *fastpath); /* NULL is fine */
PyObject *fastpath_size(const FastPath *fastpath); /* (facts, questions), a new reference */
/* Makes a fast path of the guards for what the source holds now; NULL, without an exception, if that does not work. */
FastPath *fastpath_build(Guards *guards, const GuardSource *source);

/* The same of any tensor, by its attributes where memory does not tell; false if it has no such size (guards/sizes.c). */
bool tensor_size(PyObject *value, bool stride, Py_ssize_t dimension, int64_t *size);

/* Facts about the sizes of collected values (guards/sizes.c), from (readings, definitions, facts); NULL with an exception. */
SizeFacts *size_facts_make(PyObject *spec, Py_ssize_t collected);
void size_facts_drop(SizeFacts *facts); /* NULL is fine */
bool size_facts_hold(const SizeFacts *facts, PyObject *const *collected);
PyObject *size_facts_explain(const SizeFacts *facts, PyObject *const *collected); /* new reference */

/* The failure as a sentence. New reference. */
PyObject *explain_failure(const GuardFailure *failure);

/* Notes what failed, where somebody asks (`failure`); always false. */
bool guard_failed(GuardFailure *failure, const Node *node, const Check *check, PyObject *value);

#endif
