/* Checks a fast path: first the words of memory that must be unchanged, then the checks that need calls.

   The first part reads memory and runs no code, so nothing moves meanwhile. Its facts are ordered so that each one
   justifies the next: the variable in the slot is the same object, so its dict is where it was; the dict's version is
   the same, so it holds the same values; one of those is a module, whose dict ... Dict versions are never reused, so a
   freed object cannot be confused with another at its address. Where a fact is a bare pointer, guards/fastpath_build.c
   relies on nothing that another object at that address would not have to prove as well.

   If a fact does not hold, the full walk decides. If everything holds there, the fast path is rebuilt, and a node that
   keeps changing is from then on covered by calls and look-ups (`Node.changes`). */
#include "guards/fastpath.h"

#define ITEMS(facts, type) ((const type *)(facts).items)

static Py_ssize_t
changed_slot(const FastPath *fastpath, const GuardSource *source)
{
    for (Py_ssize_t i = 0; i < fastpath->slots.count; i++) {
        const SlotFact *fact = &ITEMS(fastpath->slots, SlotFact)[i];
        PyObject *value = fact->slot < source->count ? source->slots[fact->slot]
                          : fact->slot == source->count ? source->function : NULL;
        if (value != fact->value || value == NULL) {
            return fastpath->slots.nodes[i];
        }
    }
    return -1;
}

static bool
still_finds(const LookupFact *fact, uint64_t expected)
{
    PyObject *item = PyDict_GetItemWithError(fact->dict, fact->key);
    if (item == NULL) {
        PyErr_Clear();
    }
    return (uint64_t)(uintptr_t)item == expected;
}

/* For what is not a whole word. */
static bool
is_same(const WordFact *fact)
{
    uintptr_t place = fact->place & ~(uintptr_t)WORD_KINDS;
    return fact->place & HALF_WORD ? *(const unsigned *)place == fact->expected
                                   : still_finds((const LookupFact *)place, fact->expected);
}

static Py_ssize_t
changed_word(const FastPath *fastpath)
{
    const WordFact *facts = fastpath->words.items;
    for (Py_ssize_t i = 0; i < fastpath->words.count; i++) {
        uintptr_t place = facts[i].place;
        bool whole = (place & WORD_KINDS) == WHOLE_WORD;
        if (whole ? *(const uint64_t *)place != facts[i].expected : !is_same(&facts[i])) {
            return fastpath->words.nodes[i];
        }
    }
    return -1;
}

/* The first node whose facts do not hold any more, or -1. */
static Py_ssize_t
changed_node(const FastPath *fastpath, const GuardSource *source)
{
    Py_ssize_t changed = changed_slot(fastpath, source);
    changed = changed < 0 ? changed_word(fastpath) : changed;
    for (Py_ssize_t i = 0; changed < 0 && i < fastpath->tensors.count; i++) {
        const TensorFact *fact = &ITEMS(fastpath->tensors, TensorFact)[i];
        changed = tensor_memory_holds(fact->spec, fact->value) ? -1 : fastpath->tensors.nodes[i];
    }
    return changed;
}

static void
hold_values(const Facts *questions)
{
    for (Py_ssize_t i = 0; i < questions->count; i++) {
        Py_XINCREF(ITEMS(*questions, Question)[i].value);
    }
}

static void
release_values(const Facts *questions)
{
    for (Py_ssize_t i = 0; i < questions->count; i++) {
        Py_XDECREF(ITEMS(*questions, Question)[i].value);
    }
}

static bool
answers(Guards *guards, const Facts *questions, const GuardSource *source, PyObject **collected)
{
    for (Py_ssize_t i = 0; i < questions->count; i++) {
        const Question *question = &ITEMS(*questions, Question)[i];
        bool holds = question->check
            ? check_holds(question->check, question->value)
            : walk_nodes(guards, question->first, question->end, source, question->value, collected, NULL);
        if (!holds || guards->roots == NULL) {
            return false;
        }
    }
    return true;
}

static FastPathAnswer
follow(Guards *guards, const FastPath *fastpath, const GuardSource *source, PyObject **collected, Py_ssize_t *stale)
{
    if (!answers(guards, &fastpath->states, source, collected)) {
        return FASTPATH_FAILS;
    }
    Py_ssize_t changed = changed_node(fastpath, source);
    if (changed >= 0) {
        *stale = changed;
        return FASTPATH_STALE;
    }
    for (Py_ssize_t i = 0; i < fastpath->collected.count; i++) {
        const Collected *fact = &ITEMS(fastpath->collected, Collected)[i];
        collected[fact->place] = Py_NewRef(fact->value);
    }
    hold_values(&fastpath->questions); /* the first answer may run code that lets go of the others' values */
    bool holds = answers(guards, &fastpath->questions, source, collected);
    release_values(&fastpath->questions);
    return holds ? FASTPATH_HOLDS : FASTPATH_FAILS;
}

FastPathAnswer
fastpath_follow(Guards *guards, const GuardSource *source, PyObject **collected, Py_ssize_t *stale)
{
    FastPath *fastpath = guards->fastpath;
    fastpath->users++;
    FastPathAnswer answer = follow(guards, fastpath, source, collected, stale);
    fastpath_drop(fastpath);
    return answer;
}

PyObject *
fastpath_size(const FastPath *fastpath)
{
    Py_ssize_t facts = fastpath->slots.count + fastpath->words.count + fastpath->tensors.count;
    return Py_BuildValue("nn", facts, fastpath->states.count + fastpath->questions.count);
}

static void
drop_facts(Facts *facts)
{
    PyMem_Free(facts->items);
    PyMem_Free(facts->nodes);
}

void
fastpath_drop(FastPath *fastpath)
{
    if (fastpath == NULL || --fastpath->users > 0) {
        return;
    }
    for (Py_ssize_t i = 0; i < fastpath->words.count; i++) {
        uintptr_t place = ITEMS(fastpath->words, WordFact)[i].place;
        if ((place & WORD_KINDS) == LOOKUP) {
            PyMem_Free((void *)(place - LOOKUP));
        }
    }
    Facts *all[] = {&fastpath->states,  &fastpath->slots,     &fastpath->words,
                    &fastpath->tensors, &fastpath->collected, &fastpath->questions};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(all); i++) {
        drop_facts(all[i]);
    }
    PyMem_Free(fastpath);
}
