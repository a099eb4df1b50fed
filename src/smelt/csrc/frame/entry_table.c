/* The table of compiled entries of a region, by code object. */
#include "frame/entry_table.h"

#include <stddef.h>
#include <stdint.h>

static CodeRecord *
place_of(CodeRecord *table, size_t size, PyCodeObject *code)
{
    size_t mask = size - 1;
    size_t place = ((uintptr_t)code >> 4) * (size_t)0x9E3779B97F4A7C15u >> 20;
    for (place &= mask; table[place].code && table[place].code != code; place = (place + 1) & mask) {
    }
    return &table[place];
}

static int
grow(Region *self)
{
    size_t size = self->size ? self->size * 2 : 16;
    CodeRecord *table = PyMem_Calloc(size, sizeof(CodeRecord));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->size; i++) {
        if (self->table[i].code) {
            *place_of(table, size, self->table[i].code) = self->table[i];
        }
    }
    PyMem_Free(self->table);
    self->table = table;
    self->size = size;
    return 0;
}

CodeRecord *
region_find_record(Region *self, PyCodeObject *code)
{
    if (self->size == 0) {
        return NULL;
    }
    CodeRecord *record = place_of(self->table, self->size, code);
    return record->code ? record : NULL;
}

CodeRecord *
region_find_or_make_record(Region *self, PyCodeObject *code)
{
    CodeRecord *record = region_find_record(self, code);
    if (record) {
        return record;
    }
    if (4 * (self->used + 1) > 3 * self->size && grow(self) < 0) {
        return NULL;
    }
    record = place_of(self->table, self->size, code);
    record->code = (PyCodeObject *)Py_NewRef(code);
    self->used++;
    return record;
}

FrameTreatment
region_treatment(Region *self, PyCodeObject *code)
{
    CodeRecord *record = region_find_record(self, code);
    return record ? record->treatment : FRAME_ASKED;
}

FrameTreatment
region_find(Region *self, PyCodeObject *code, PyObject **entries)
{
    *entries = NULL;
    CodeRecord *record = region_find_record(self, code);
    if (record == NULL) {
        return FRAME_ASKED;
    }
    if (record->treatment == FRAME_ASKED) {
        *entries = Py_XNewRef(record->entries);
    }
    return record->treatment;
}

/* `entries` (a tuple or NULL) with the entry at its end; itself if the entry is in it. New reference. */
static PyObject *
with_entry(PyObject *entries, Entry *entry)
{
    Py_ssize_t count = entries ? PyTuple_GET_SIZE(entries) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyTuple_GET_ITEM(entries, i) == (PyObject *)entry) {
            return Py_NewRef(entries);
        }
    }
    PyObject *longer = PyTuple_New(count + 1);
    if (longer == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(longer, i, Py_NewRef(PyTuple_GET_ITEM(entries, i)));
    }
    PyTuple_SET_ITEM(longer, count, Py_NewRef(entry));
    return longer;
}

int
region_add(Region *self, PyCodeObject *code, Entry *entry)
{
    CodeRecord *record = region_find_or_make_record(self, code);
    if (record == NULL) {
        return -1;
    }
    PyObject *old = Py_XNewRef(record->entries);
    PyObject *entries = with_entry(old, entry);
    record = entries ? region_find_or_make_record(self, code) : NULL; /* again: allocating may have run a finalizer */
    bool changed_meanwhile = record && record->entries != old;
    if (record && !changed_meanwhile) {
        record->entries = Py_NewRef(entries);
        Py_XDECREF(old); /* the record's own reference */
    }
    Py_XDECREF(old);
    Py_XDECREF(entries);
    if (changed_meanwhile) {
        return region_add(self, code, entry);
    }
    return record ? 0 : -1;
}
