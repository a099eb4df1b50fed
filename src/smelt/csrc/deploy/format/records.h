/* The file of an artifact, record by record, as ir/artifact_file/layout.py declares it; its package explains the format.

   Everything is a little-endian 64-bit word. executor/table.h explains fields and their rules; what is FREE is checked
   by check.c. */
#ifndef SMELT_FORMAT_H
#define SMELT_FORMAT_H

#include "executor/table.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "artifacts are read where they lie, in little-endian words"
#endif

#define FILE_MAGIC INT64_C(0x747261746c656d73)  /* "smeltart" */
#define TABLE_MAGIC INT64_C(0x626174746c656d73) /* "smelttab" */

enum {
    FORMAT_VERSION = 1,
    FILE_PAGE = 4096,
    FILE_ALIGN = 64,
    MOST_SECTIONS = 256,
    MOST_CODE = 4096,   /* instructions of an expression */
    MOST_BUFFERS = 4096, /* of a kernel */
    MOST_CAPABILITY = 999, /* of a GPU */
    MOST_BLOCKS = 0x7fffffff, /* of a grid */
    MOST_GRID_THREADS = 1024, /* of a block */
    MOST_SHARED = 1 << 20 /* bytes of a block */
};
#define MOST_BYTES (INT64_C(1) << 47) /* of anything in memory */

typedef enum { MANIFEST_SECTION = 1, TABLE_SECTION, CODE_SECTION, WEIGHTS_SECTION, STATE_SECTION } SectionKind;
typedef enum { ANY_MACHINE, X86_64_MACHINE, AARCH64_MACHINE, RISCV64_MACHINE, CUDA_MACHINE, MACHINE_COUNT } Machine;

typedef struct {
    int64_t magic, version, bytes, sections, reserved, checksum;
} FileHeader;

typedef struct {
    int64_t kind, target, machine, features, offset, bytes, checksum;
} FileSection;

#define TABLE_HEADER_FIELDS(F) F(magic, FREE, 0) F(version, FREE, 0) F(bytes, FREE, 0) F(blob, FREE, 0) F(name, INDEX, STRINGS)
#define STRING_FIELDS(F) F(offset, FREE, 0) F(length, FREE, 0)
#define INSTRUCTION_FIELDS(F) F(op, FREE, 0) F(operand, FREE, 0)
#define EXPRESSION_FIELDS(F) F(code, SPAN, INSTRUCTIONS) F(code_count, FREE, 0)
#define DIM_FIELDS(F) F(name, OPTIONAL, STRINGS) F(low, FREE, 0) F(high, FREE, 0)
#define REGISTER_FIELDS(F)                                                                                             \
    F(name, INDEX, STRINGS) F(kind, FREE, 0) F(dtype, FREE, 0) F(dims, SPAN, DIMS) F(rank, FREE, 0) F(flags, FREE, 0)  \
    F(choices, SPAN, REFERENCES) F(choice_count, FREE, 0) F(strides, SPAN, REFERENCES) F(stride_count, FREE, 0)        \
    F(data, FREE, 0) F(bytes, FREE, 0)
#define OUTPUT_FIELDS(F) F(name, INDEX, STRINGS) F(dtype, FREE, 0) F(dims, SPAN, DIMS) F(rank, FREE, 0)
#define REFERENCE_FIELDS(F) F(number, FREE, 0)
#define KERNEL_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(buffers, FREE, 0) F(sizes, FREE, 0) F(grids, SPAN, GRIDS) F(grid_count, FREE, 0)
#define GRID_FIELDS(F)                                                                                                 \
    F(name, INDEX, STRINGS) F(blocks, FREE, 0) F(slot, FREE, 0) F(threads, FREE, 0) F(shared_bytes, FREE, 0)
#define SYMBOL_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(bind, FREE, 0) F(register_, INDEX, REGISTERS) F(dimension, FREE, 0) F(low, FREE, 0)      \
    F(high, FREE, 0)
#define CHECK_FIELDS(F) F(expression, INDEX, EXPRESSIONS) F(text, INDEX, STRINGS)
#define PRODUCED_FIELDS(F) F(register_, INDEX, REGISTERS) F(dims, SPAN, REFERENCES) F(rank, FREE, 0)
#define VALUE_FIELDS(F)                                                                                                \
    F(kind, FREE, 0) F(place, FREE, 0) F(number_count, FREE, 0) F(offset, OPTIONAL, EXPRESSIONS)                       \
    F(bytes, OPTIONAL, EXPRESSIONS) F(writes, FREE, 0)
#define LAUNCH_FIELDS(F)                                                                                               \
    F(kernel, INDEX, KERNELS) F(values, SPAN, REFERENCES) F(value_count, FREE, 0) F(fixed, INDEX, EXPRESSIONS)         \
    F(per_thread, INDEX, EXPRESSIONS)
#define COPY_FIELDS(F) F(to, FREE, 0) F(source, FREE, 0) F(bytes, INDEX, EXPRESSIONS)
#define STEP_FIELDS(F) F(kind, FREE, 0) F(place, FREE, 0)
#define RETURNED_FIELDS(F)                                                                                             \
    F(register_, OPTIONAL, REGISTERS) F(dims, SPAN, REFERENCES) F(rank, FREE, 0) F(strides, SPAN, REFERENCES)          \
    F(stride_count, FREE, 0) F(offset, OPTIONAL, EXPRESSIONS)
#define VARIANT_FIELDS(F)                                                                                              \
    F(name, INDEX, STRINGS) F(symbols, SPAN, SYMBOLS) F(symbol_count, FREE, 0) F(checks, SPAN, CHECKS)                 \
    F(check_count, FREE, 0) F(produced, SPAN, PRODUCED) F(produced_count, FREE, 0) F(values, SPAN, VALUES)             \
    F(value_count, FREE, 0) F(steps, SPAN, STEPS) F(step_count, FREE, 0) F(arena_bytes, INDEX, EXPRESSIONS)            \
    F(next, FREE, 0) F(register_, OPTIONAL, REGISTERS) F(if_true, OPTIONAL, STATES) F(if_false, OPTIONAL, STATES)      \
    F(error, OPTIONAL, STRINGS) F(message, OPTIONAL, STRINGS) F(outputs, SPAN, RETURNED) F(output_count, FREE, 0)
#define STATE_FIELDS(F) F(name, INDEX, STRINGS) F(variants, SPAN, VARIANTS) F(variant_count, FREE, 0)

/* S(section, its number, type of its records, their fields) */
#define TABLE_SECTIONS(S)                                                                                              \
    S(strings, STRINGS, StringRecord, STRING_FIELDS)                                                                   \
    S(instructions, INSTRUCTIONS, InstructionRecord, INSTRUCTION_FIELDS)                                               \
    S(expressions, EXPRESSIONS, ExpressionRecord, EXPRESSION_FIELDS)                                                   \
    S(dims, DIMS, DimRecord, DIM_FIELDS)                                                                               \
    S(registers, REGISTERS, RegisterRecord, REGISTER_FIELDS)                                                           \
    S(outputs, OUTPUTS, OutputRecord, OUTPUT_FIELDS)                                                                   \
    S(references, REFERENCES, ReferenceRecord, REFERENCE_FIELDS)                                                       \
    S(kernels, KERNELS, KernelRecord, KERNEL_FIELDS)                                                                   \
    S(grids, GRIDS, GridRecord, GRID_FIELDS)                                                                           \
    S(symbols, SYMBOLS, SymbolRecord, SYMBOL_FIELDS)                                                                   \
    S(checks, CHECKS, CheckRecord, CHECK_FIELDS)                                                                       \
    S(produced, PRODUCED, ProducedRecord, PRODUCED_FIELDS)                                                             \
    S(values, VALUES, ValueRecord, VALUE_FIELDS)                                                                       \
    S(launches, LAUNCHES, LaunchRecord, LAUNCH_FIELDS)                                                                 \
    S(copies, COPIES, CopyRecord, COPY_FIELDS)                                                                         \
    S(steps, STEPS, StepRecord, STEP_FIELDS)                                                                           \
    S(returned, RETURNED, ReturnedRecord, RETURNED_FIELDS)                                                             \
    S(variants, VARIANTS, VariantRecord, VARIANT_FIELDS)                                                               \
    S(states, STATES, StateRecord, STATE_FIELDS)

enum { TABLE_SECTIONS(SECTION_NUMBER) SECTION_COUNT };

TABLE_SECTIONS(RECORD_TYPE)

typedef struct {
    TABLE_HEADER_FIELDS(RECORD_FIELD)
    TablePlace sections[SECTION_COUNT];
} TableHeader;

typedef struct {
    int64_t kernels, slots, blob, image, image_bytes;
} CodeHeader;

typedef struct {
    int64_t offset, name, length, addend;
} SlotRecord;

typedef enum { INPUT_REGISTER, STATE_REGISTER, CONSTANT_REGISTER, LOCAL_REGISTER } RegisterKind;
enum { OPTIONAL_FLAG = 1, WRITTEN_FLAG = 2 };
typedef enum { BIND_SIZE, BIND_VALUE, BIND_GIVEN } Bind;
typedef enum { REGISTER_VALUE, PRODUCED_VALUE, ARENA_VALUE, SIZES_VALUE } ValueKind;
typedef enum { LAUNCH_STEP, COPY_STEP } StepKind;
typedef enum { RETURN_NEXT, BRANCH_NEXT, JUMP_NEXT, RAISE_NEXT } NextKind;

#endif
