/* The flat program: one table of 64-bit words that describes all that a Runner does. ir/flat/layout.py declares the
   same records.

   A header, a section of records for each kind of thing, then the bytes of all strings. A record refers to others by
   their numbers, and to Python objects by their places in a tuple beside the table. It contains no address: the same
   bytes work in another process. executor/table.h explains fields and their rules. */
#ifndef SMELT_TABLE_H
#define SMELT_TABLE_H

#include <Python.h>

#include "executor/table.h"

#define TABLE_MAGIC INT64_C(0x677270746c656d73) /* "smeltprg" */
#define TABLE_VERSION 1

/* Values are numbered: inputs, constants, what steps make, what the arena lends. `bytes` and `blob` count bytes. */
#define HEADER_FIELDS(F)                                                                                               \
    F(magic, FREE, 0) F(version, FREE, 0) F(bytes, FREE, 0) F(blob, FREE, 0) F(name, INDEX, STRINGS)                   \
    F(inputs, FREE, 0) F(constants, FREE, 0) F(arena, FREE, 0) F(arena_bytes, FREE, 0) F(consuming, FREE, 0)           \
    F(output, INDEX, ITEMS) F(writes_from, OPTIONAL, STEPS)

/* Bytes of the blob, and a zero byte after them. */
#define STRING_FIELDS(F) F(offset, FREE, 0) F(length, FREE, 0)

/* code: the number of a dtype, kind: of a sort of device, in PyTorch's C interface; -1 where Python is to be asked.
   number: which device of its kind, -1: the current one. */
#define DTYPE_FIELDS(F) F(name, INDEX, STRINGS) F(code, FREE, 0) F(object, INDEX, OBJECTS)
#define DEVICE_FIELDS(F) F(name, INDEX, STRINGS) F(kind, FREE, 0) F(number, FREE, 0) F(object, INDEX, OBJECTS)

/* Sizes, strides, offsets, and what native calls are given. */
#define NUMBER_FIELDS(F) F(number, FREE, 0)

/* What a tensor of the program is, in the layout that steps rely on. arena_offset: where its buffer begins in the arena,
   in bytes. */
#define VALUE_FIELDS(F)                                                                                                \
    F(name, INDEX, STRINGS) F(dtype, INDEX, DTYPES) F(device, INDEX, DEVICES) F(numbers, LAYOUT, NUMBERS)              \
    F(rank, FREE, 0) F(arena_offset, FREE, 0)

/* Lists of values; -1 stands for a result that nobody reads. */
#define REFERENCE_FIELDS(F) F(value, OPTIONAL, VALUES)

/* A part of an argument list or of the results, by `kind`: see ItemKind. */
#define ITEM_FIELDS(F) F(kind, FREE, 0) F(what, FREE, 0) F(length, FREE, 0) F(numbers, FREE, 0)

/* Machine code by its name, what it runs on, and how many values it takes. What else a launch must know is said with
   the code. */
#define KERNEL_FIELDS(F) F(name, INDEX, STRINGS) F(target, INDEX, STRINGS) F(object, INDEX, OBJECTS) F(buffers, FREE, 0)

#define LAUNCH_FIELDS(F) F(kernel, INDEX, KERNELS) F(values, SPAN, REFERENCES) F(value_count, FREE, 0)

/* A library call without Python: by the dispatcher or, without an overload, by the C function of this name. code: its
   arguments (runner/native_call.h). returns: how many tensors, -1: one list of them. product: what describes a product
   of small matrices, which is made without a call (runner/small_matmul.h), if there are any numbers of it. */
#define NATIVE_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(overload, OPTIONAL, STRINGS) F(tensors, SPAN, ITEMS) F(tensor_count, FREE, 0)            \
    F(code, SPAN, NUMBERS) F(code_count, FREE, 0) F(returns, FREE, 0) F(product, SPAN, NUMBERS)                        \
    F(product_count, FREE, 0) F(beta, FREE, 0) F(alpha, FREE, 0)

/* function(*arguments), the last of them by the strings of the tuple `names`. is_one: what is returned is the result,
   not a sequence of results; without results it is not looked at. unless: a value, one bool: the call is there to raise,
   and made if that is false; of several in a row for one value, one raises. */
#define CALL_FIELDS(F)                                                                                                 \
    F(name, INDEX, STRINGS) F(function, INDEX, OBJECTS) F(arguments, SPAN, ITEMS) F(argument_count, FREE, 0)           \
    F(names, INDEX, OBJECTS) F(results, SPAN, REFERENCES) F(result_count, FREE, 0) F(is_one, FREE, 0)                  \
    F(native, OPTIONAL, NATIVES) F(unless, OPTIONAL, VALUES)

#define DROP_FIELDS(F) F(values, SPAN, REFERENCES) F(value_count, FREE, 0)

/* place: of a value, a launch, a call or a drop, by `kind`: see StepKind. */
#define STEP_FIELDS(F) F(kind, FREE, 0) F(place, FREE, 0)

/* S(section, its number, type of its records, their fields) */
#define TABLE_SECTIONS(S)                                                                                              \
    S(strings, STRINGS, StringRecord, STRING_FIELDS)                                                                   \
    S(dtypes, DTYPES, DtypeRecord, DTYPE_FIELDS)                                                                       \
    S(devices, DEVICES, DeviceRecord, DEVICE_FIELDS)                                                                   \
    S(numbers, NUMBERS, NumberRecord, NUMBER_FIELDS)                                                                   \
    S(values, VALUES, ValueRecord, VALUE_FIELDS)                                                                       \
    S(references, REFERENCES, ReferenceRecord, REFERENCE_FIELDS)                                                       \
    S(items, ITEMS, ItemRecord, ITEM_FIELDS)                                                                           \
    S(kernels, KERNELS, KernelRecord, KERNEL_FIELDS)                                                                   \
    S(launches, LAUNCHES, LaunchRecord, LAUNCH_FIELDS)                                                                 \
    S(natives, NATIVES, NativeRecord, NATIVE_FIELDS)                                                                   \
    S(calls, CALLS, CallRecord, CALL_FIELDS)                                                                           \
    S(drops, DROPS, DropRecord, DROP_FIELDS)                                                                           \
    S(steps, STEPS, StepRecord, STEP_FIELDS)

enum { TABLE_SECTIONS(SECTION_NUMBER) SECTION_COUNT, OBJECTS = SECTION_COUNT };

TABLE_SECTIONS(RECORD_TYPE)

/* Behind its own fields the header has for each section where it begins, in words, and how many records of how many
   words it has. */
typedef struct {
    HEADER_FIELDS(RECORD_FIELD)
    TablePlace sections[SECTION_COUNT];
} Header;

/* OBJECT: `what` is the place of an object. VALUE: a value, or a view of it where `numbers` is not -1: then sizes,
   strides and offset begin there, and `length` is the rank. TUPLE, LIST: `length` items from `what` on, which come later.
   The others: `what` is the number, or the bits of a double. */
typedef enum { OBJECT_ITEM, VALUE_ITEM, TUPLE_ITEM, LIST_ITEM, NONE_ITEM, BOOL_ITEM, INTEGER_ITEM, DOUBLE_ITEM } ItemKind;

typedef enum { ALLOCATE_STEP, LAUNCH_STEP, CALL_STEP, DROP_STEP } StepKind;

/* A table that keeps to the rules. It is read where it lies. */
typedef struct {
    const Header *header;
    const char *blob;
    int64_t counts[SECTION_COUNT + 1]; /* records of each section, and objects */
    TABLE_SECTIONS(SECTION_POINTER)
} Table;

static inline const char *
table_string(const Table *table, int64_t number)
{
    return table->blob + table->strings[number].offset;
}

/* Reads a table off a bytes object, which must outlive it. 0, or -1 with an exception that says what is wrong with it. */
int table_read(Table *table, PyObject *bytes, Py_ssize_t objects);

#endif
