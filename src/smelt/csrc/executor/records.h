/* Tables of programs, and the files of artifacts, record by record. Written by tools/table_header.py: this is declared
   and explained in ir/table/{records,layout}.py and ir/artifact_file/layout.py.

   Everything is a little-endian 64-bit word. A field is F(name, rule, section or limit). FREE: any number, or one that
   has a check of its own. */
#ifndef SMELT_RECORDS_H
#define SMELT_RECORDS_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tables are read where they lie, in little-endian words"
#endif

#define FILE_MAGIC INT64_C(0x747261746c656d73)
#define TABLE_MAGIC INT64_C(0x626174746c656d73)

enum {
    FILE_VERSION = 2, TABLE_VERSION = 3, FILE_PAGE = 4096, FILE_ALIGN = 64, MOST_SECTIONS = 256,
    MOST_CAPABILITY = 999, MOST_DEPTH = 32, MOST_CODE = 4096, MOST_BUFFERS = 4096, MOST_BLOCKS = 2147483647,
    MOST_GRID_THREADS = 1024, MOST_SHARED = 1048576,
};
#define MOST_BYTES INT64_C(140737488355328)

typedef enum {
    MANIFEST_SECTION = 1, TABLE_SECTION = 2, CODE_SECTION = 3, WEIGHTS_SECTION = 4, STATE_SECTION = 5,
} SectionKind;

typedef enum {
    ANY_MACHINE = 0, X86_64_MACHINE = 1, AARCH64_MACHINE = 2, RISCV64_MACHINE = 3, CUDA_MACHINE = 4,
} Machine;

typedef enum {
    INPUT_REGISTER = 0, STATE_REGISTER = 1, CONSTANT_REGISTER = 2, LOCAL_REGISTER = 3,
} RegisterKind;

typedef enum {
    BIND_SIZE = 0, BIND_VALUE = 1, BIND_GIVEN = 2,
} Bind;

typedef enum {
    REGISTER_VALUE = 0, PRODUCED_VALUE = 1, ARENA_VALUE = 2, SIZES_VALUE = 3,
} ValueKind;

typedef enum {
    OBJECT_ITEM = 0, VALUE_ITEM = 1, TUPLE_ITEM = 2, LIST_ITEM = 3, NONE_ITEM = 4, BOOL_ITEM = 5, INTEGER_ITEM = 6,
    DOUBLE_ITEM = 7,
} ItemKind;

typedef enum {
    DRAWS_NOTHING = 0, DRAWS_NUMBERS = 1, DRAWS_UNREAD = 2,
} Draws;

typedef enum {
    ALLOCATE_STEP = 0, LAUNCH_STEP = 1, COPY_STEP = 2, CALL_STEP = 3, DROP_STEP = 4,
} StepKind;

typedef enum {
    RETURN_NEXT = 0, BRANCH_NEXT = 1, JUMP_NEXT = 2, RAISE_NEXT = 3,
} NextKind;

typedef struct {
    int64_t magic, version, bytes, sections, reserved, checksum;
} FileHeader;

typedef struct {
    int64_t kind, target, machine, features, offset, bytes, checksum;
} FileSection;

typedef struct {
    int64_t kernels, slots, blob, image, image_bytes;
} CodeHeader;

typedef struct {
    int64_t offset, name, length, addend;
} SlotRecord;

#define TABLE_HEADER_FIELDS(F)                                                                                         \
    F(magic, FREE, 0) F(version, FREE, 0) F(bytes, FREE, 0) F(blob, FREE, 0) F(name, INDEX, STRINGS)
#define STRING_FIELDS(F)                                                                                               \
    F(offset, FREE, 0) F(length, FREE, 0)
#define INSTRUCTION_FIELDS(F)                                                                                          \
    F(op, BELOW, 42) F(operand, FREE, 0)
#define EXPRESSION_FIELDS(F)                                                                                           \
    F(code, SPAN, INSTRUCTIONS) F(code_count, FREE, 0)
#define DIM_FIELDS(F)                                                                                                  \
    F(low, FREE, 0) F(high, FREE, 0) F(name, OPTIONAL, STRINGS)
#define REGISTER_FIELDS(F)                                                                                             \
    F(name, INDEX, STRINGS) F(kind, BELOW, 4) F(dtype, BELOW, 17) F(dims, SPAN, DIMS) F(rank, FREE, 0)                 \
    F(data, FREE, 0) F(bytes, FREE, 0) F(optional, BELOW, 2) F(written, BELOW, 2) F(choices, LIST, STRINGS)            \
    F(choice_count, FREE, 0) F(strides, SPAN, REFERENCES) F(stride_count, FREE, 0)
#define OUTPUT_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(dtype, FREE, 0) F(dims, SPAN, DIMS) F(rank, FREE, 0)
#define REFERENCE_FIELDS(F)                                                                                            \
    F(number, FREE, 0)
#define KERNEL_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(buffers, FREE, 0) F(sizes, FREE, 0) F(grids, SPAN, GRIDS) F(grid_count, FREE, 0)         \
    F(target, OPTIONAL, STRINGS) F(object, OPTIONAL, OBJECTS)
#define GRID_FIELDS(F)                                                                                                 \
    F(name, INDEX, STRINGS) F(blocks, FREE, 0) F(slot, FREE, 0) F(threads, FREE, 0) F(shared_bytes, FREE, 0)           \
    F(product, OPTIONAL, PRODUCTS)
#define PRODUCT_FIELDS(F)                                                                                              \
    F(rows, FREE, 0) F(cols, FREE, 0) F(terms, FREE, 0) F(batch, FREE, 0) F(outer, FREE, 0) F(grids, FREE, 0)          \
    F(operands, SPAN, OPERANDS) F(operand_count, FREE, 0)
#define OPERAND_FIELDS(F)                                                                                              \
    F(buffer, FREE, 0) F(dtype, BELOW, 17) F(offset, FREE, 0) F(row, FREE, 0) F(col, FREE, 0) F(batch, FREE, 0)        \
    F(outer, FREE, 0)
#define SYMBOL_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(bind, BELOW, 3) F(register_, INDEX, REGISTERS) F(dimension, FREE, 0) F(low, FREE, 0)     \
    F(high, FREE, 0)
#define CHECK_FIELDS(F)                                                                                                \
    F(expression, INDEX, EXPRESSIONS) F(text, INDEX, STRINGS)
#define PRODUCED_FIELDS(F)                                                                                             \
    F(register_, INDEX, REGISTERS) F(dims, LIST, EXPRESSIONS) F(rank, FREE, 0)
#define VALUE_FIELDS(F)                                                                                                \
    F(kind, BELOW, 4) F(register_, OPTIONAL, REGISTERS) F(bytes, OPTIONAL, EXPRESSIONS)                                \
    F(offset, OPTIONAL, EXPRESSIONS) F(writes, BELOW, 2) F(place, FREE, 0) F(numbers, LIST, EXPRESSIONS)               \
    F(number_count, FREE, 0)
#define DTYPE_FIELDS(F)                                                                                                \
    F(name, INDEX, STRINGS) F(code, FREE, 0) F(object, INDEX, OBJECTS)
#define DEVICE_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(kind, FREE, 0) F(number, FREE, 0) F(object, INDEX, OBJECTS)
#define NUMBER_FIELDS(F)                                                                                               \
    F(number, FREE, 0)
#define TENSOR_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(dtype, INDEX, DTYPES) F(device, INDEX, DEVICES) F(numbers, LAYOUT, NUMBERS)              \
    F(rank, FREE, 0) F(arena_offset, FREE, 0)
#define ITEM_FIELDS(F)                                                                                                 \
    F(kind, BELOW, 8) F(what, FREE, 0) F(length, FREE, 0) F(numbers, FREE, 0)
#define LAUNCH_FIELDS(F)                                                                                               \
    F(kernel, INDEX, KERNELS) F(values, SPAN, REFERENCES) F(value_count, FREE, 0) F(fixed, INDEX, EXPRESSIONS)         \
    F(per_thread, INDEX, EXPRESSIONS)
#define COPY_FIELDS(F)                                                                                                 \
    F(to, FREE, 0) F(source, FREE, 0) F(bytes, INDEX, EXPRESSIONS)
#define NATIVE_FIELDS(F)                                                                                               \
    F(name, INDEX, STRINGS) F(overload, OPTIONAL, STRINGS) F(tensors, SPAN, ITEMS) F(tensor_count, FREE, 0)            \
    F(code, SPAN, NUMBERS) F(code_count, FREE, 0) F(texts, LIST, STRINGS) F(text_count, FREE, 0) F(returns, FREE, 0)   \
    F(product, SPAN, NUMBERS) F(product_count, FREE, 0) F(beta, FREE, 0) F(alpha, FREE, 0)
#define CALL_FIELDS(F)                                                                                                 \
    F(name, INDEX, STRINGS) F(function, INDEX, OBJECTS) F(arguments, SPAN, ITEMS) F(argument_count, FREE, 0)           \
    F(names, INDEX, OBJECTS) F(results, OPTIONAL_LIST, TENSORS) F(result_count, FREE, 0) F(is_one, BELOW, 2)           \
    F(native, OPTIONAL, NATIVES) F(unless, OPTIONAL, TENSORS) F(draws, BELOW, 3)
#define DROP_FIELDS(F)                                                                                                 \
    F(values, LIST, TENSORS) F(value_count, FREE, 0)
#define STEP_FIELDS(F)                                                                                                 \
    F(kind, BELOW, 5) F(place, FREE, 0)
#define RETURNED_FIELDS(F)                                                                                             \
    F(register_, OPTIONAL, REGISTERS) F(dims, LIST, EXPRESSIONS) F(rank, FREE, 0) F(strides, LIST, EXPRESSIONS)        \
    F(stride_count, FREE, 0) F(offset, OPTIONAL, EXPRESSIONS)
#define VARIANT_FIELDS(F)                                                                                              \
    F(name, INDEX, STRINGS) F(next, BELOW, 4) F(outputs, SPAN, RETURNED) F(output_count, FREE, 0)                      \
    F(register_, OPTIONAL, REGISTERS) F(if_true, OPTIONAL, STATES) F(if_false, OPTIONAL, STATES)                       \
    F(state, OPTIONAL, STATES) F(error, OPTIONAL, STRINGS) F(message, OPTIONAL, STRINGS) F(symbols, SPAN, SYMBOLS)     \
    F(symbol_count, FREE, 0) F(checks, SPAN, CHECKS) F(check_count, FREE, 0) F(produced, SPAN, PRODUCED)               \
    F(produced_count, FREE, 0) F(values, SPAN, VALUES) F(value_count, FREE, 0) F(steps, SPAN, STEPS)                   \
    F(step_count, FREE, 0) F(arena_bytes, INDEX, EXPRESSIONS)
#define STATE_FIELDS(F)                                                                                                \
    F(name, INDEX, STRINGS) F(variants, SPAN, VARIANTS) F(variant_count, FREE, 0)
#define PROGRAM_FIELDS(F)                                                                                              \
    F(inputs, FREE, 0) F(constants, FREE, 0) F(arena, FREE, 0) F(arena_bytes, FREE, 0) F(consuming, BELOW, 2)          \
    F(output, INDEX, ITEMS) F(writes_from, OPTIONAL, STEPS)

/* S(section, its number, type of its records, their fields) */
#define TABLE_SECTIONS(S)                                                                                              \
    S(strings, STRINGS, StringRecord, STRING_FIELDS)                                                                   \
    S(instructions, INSTRUCTIONS, InstructionRecord, INSTRUCTION_FIELDS)                                               \
    S(expressions, EXPRESSIONS, ExpressionRecord, EXPRESSION_FIELDS) S(dims, DIMS, DimRecord, DIM_FIELDS)              \
    S(registers, REGISTERS, RegisterRecord, REGISTER_FIELDS) S(outputs, OUTPUTS, OutputRecord, OUTPUT_FIELDS)          \
    S(references, REFERENCES, ReferenceRecord, REFERENCE_FIELDS) S(kernels, KERNELS, KernelRecord, KERNEL_FIELDS)      \
    S(grids, GRIDS, GridRecord, GRID_FIELDS) S(products, PRODUCTS, ProductRecord, PRODUCT_FIELDS)                      \
    S(operands, OPERANDS, OperandRecord, OPERAND_FIELDS) S(symbols, SYMBOLS, SymbolRecord, SYMBOL_FIELDS)              \
    S(checks, CHECKS, CheckRecord, CHECK_FIELDS) S(produced, PRODUCED, ProducedRecord, PRODUCED_FIELDS)                \
    S(values, VALUES, ValueRecord, VALUE_FIELDS) S(dtypes, DTYPES, DtypeRecord, DTYPE_FIELDS)                          \
    S(devices, DEVICES, DeviceRecord, DEVICE_FIELDS) S(numbers, NUMBERS, NumberRecord, NUMBER_FIELDS)                  \
    S(tensors, TENSORS, TensorRecord, TENSOR_FIELDS) S(items, ITEMS, ItemRecord, ITEM_FIELDS)                          \
    S(launches, LAUNCHES, LaunchRecord, LAUNCH_FIELDS) S(copies, COPIES, CopyRecord, COPY_FIELDS)                      \
    S(natives, NATIVES, NativeRecord, NATIVE_FIELDS) S(calls, CALLS, CallRecord, CALL_FIELDS)                          \
    S(drops, DROPS, DropRecord, DROP_FIELDS) S(steps, STEPS, StepRecord, STEP_FIELDS)                                  \
    S(returned, RETURNED, ReturnedRecord, RETURNED_FIELDS) S(variants, VARIANTS, VariantRecord, VARIANT_FIELDS)        \
    S(states, STATES, StateRecord, STATE_FIELDS) S(programs, PROGRAMS, ProgramRecord, PROGRAM_FIELDS)

/* O(instruction, how many numbers it takes off the stack), in the order of their numbers. */
#define EXPRESSION_OPS(O)                                                                                              \
    O(PUSH, 0) O(SYMBOL, 0) O(ADD, 2) O(SUB, 2) O(MUL, 2) O(DIV, 2) O(MOD, 2) O(MIN, 2) O(MAX, 2) O(NEG, 1) O(EQ, 2)   \
    O(NE, 2) O(LT, 2) O(LE, 2) O(GT, 2) O(GE, 2) O(AND, 2) O(OR, 2) O(NOT, 1) O(FLOAT, 1) O(INT, 1) O(FADD, 2)         \
    O(FSUB, 2) O(FMUL, 2) O(FDIV, 2) O(FNEG, 1) O(FABS, 1) O(FPOW, 2) O(FSQRT, 1) O(FEXP, 1) O(FLOG, 1) O(FSIN, 1)     \
    O(FCOS, 1) O(FTANH, 1) O(FFLOOR, 1) O(FCEIL, 1) O(FMIN, 2) O(FMAX, 2) O(FEQ, 2) O(FLT, 2) O(FLE, 2) O(FMOD, 2)

/* D(dtype, bytes of an element), in the order of their numbers. */
#define TABLE_DTYPES(D)                                                                                                \
    D(bool, 1) D(uint8, 1) D(int8, 1) D(int16, 2) D(int32, 4) D(int64, 8) D(float16, 2) D(bfloat16, 2) D(float32, 4)   \
    D(float64, 8) D(complex64, 8) D(complex128, 16) D(uint16, 2) D(uint32, 4) D(uint64, 8) D(float8_e4m3fn, 1)         \
    D(float8_e5m2, 1)

#endif
