/* Makes and frees the parts of a run, and holds the sizes of inputs against their bounds. */
#include "executor/run/parts.h"

/* How many words each array of a run takes. */
typedef struct {
    int64_t registers, plans, outputs, sizes, saved, symbols, named, buffers;
    int64_t output_rank; /* room for sizes and strides of each output */
} Words;

static int64_t
larger(int64_t one, int64_t other)
{
    return one > other ? one : other;
}

static int64_t
words_of(int64_t count, size_t size)
{
    return (count * (int64_t)size + 7) / 8;
}

static Words
count_words(const Table *table)
{
    Words words = {0};
    int64_t symbols = 0, buffers = 0, rank = 0;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        words.sizes += table->registers[i].rank;
        rank = larger(rank, table->registers[i].rank);
    }
    for (int64_t i = 0; i < table->counts[RETURNED]; i++) {
        rank = larger(rank, table->returned[i].rank);
    }
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        symbols = larger(symbols, table->variants[i].symbol_count);
    }
    for (int64_t i = 0; i < table->counts[KERNELS]; i++) {
        buffers = larger(buffers, table->kernels[i].buffers);
    }
    rank = rank < SMELT_MAX_RANK ? rank : SMELT_MAX_RANK; /* records that nobody names have any */
    words.registers = words_of(table->counts[REGISTERS], sizeof(Register));
    words.plans = words_of(table->counts[VARIANTS], sizeof(Plan));
    words.outputs = words_of(table->counts[OUTPUTS], sizeof(Output));
    words.output_rank = rank;
    words.sizes += 2 * rank * table->counts[OUTPUTS];
    words.saved = table->counts[REGISTERS];
    words.symbols = symbols;
    words.named = table->counts[STRINGS];
    words.buffers = words_of(buffers, sizeof(void *));
    return words;
}

static int64_t
sum_of(const Words *words)
{
    return 1 + words->registers + words->plans + words->outputs + words->sizes + words->saved + words->symbols + words->named
           + words->buffers;
}

void
smelt_run_forget(Run *run, const RegisterRecord *record)
{
    for (int64_t i = 0; i < record->rank; i++) {
        const int64_t name = run->table->dims[record->dims + i].name;
        if (name >= 0) {
            run->named[name] = 0;
        }
    }
}

/* State has its place and sizes from the beginning. */
static void
begin_registers(Run *run)
{
    const Table *table = run->table;
    int64_t *sizes = run->sizes;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const RegisterRecord *record = &table->registers[i];
        if (record->kind == CONSTANT_REGISTER) {
            continue;
        }
        const bool is_state = record->kind == STATE_REGISTER;
        run->registers[i] = (Register){.sizes = sizes, .ready = is_state};
        if (is_state) {
            run->registers[i].data = run->state_data + record->data;
            run->registers[i].bytes = record->bytes;
            for (int64_t k = 0; k < record->rank; k++) {
                sizes[k] = table->dims[record->dims + k].low;
            }
        }
        else if (record->kind == INPUT_REGISTER) {
            smelt_run_forget(run, record);
        }
        sizes += record->rank;
    }
}

bool
smelt_run_begin(Run *run)
{
    const Table *table = run->table;
    const Words words = count_words(table);
    run->part_words = (size_t)sum_of(&words);
    int64_t *memory = run->allocator->allocate(run->allocator->context, 8 * run->part_words, FILE_ALIGN);
    run->parts = memory;
    if (memory == NULL) {
        return false;
    }
    run->registers = (Register *)memory;
    run->plans = (Plan *)(memory += words.registers);
    run->outputs = (Output *)(memory += words.plans);
    run->buffers = (void **)(memory += words.outputs);
    run->sizes = memory += words.buffers;
    run->saved = memory += words.sizes;
    run->symbols = memory += words.saved;
    run->named = memory += words.symbols;
    int64_t *sizes = run->saved - 2 * words.output_rank * table->counts[OUTPUTS];
    for (int64_t i = 0; i < table->counts[OUTPUTS]; i++, sizes += 2 * words.output_rank) {
        run->outputs[i] = (Output){.sizes = sizes, .strides = sizes + words.output_rank};
    }
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        run->plans[i] = (Plan){.memory = NULL};
    }
    begin_registers(run);
    return true;
}

void
smelt_run_end(Run *run)
{
    for (int64_t i = 0; run->parts && i < run->table->counts[REGISTERS]; i++) {
        if (run->table->registers[i].kind != CONSTANT_REGISTER) {
            smelt_block_drop(run->memory, &run->registers[i].current);
            smelt_block_drop(run->memory, &run->registers[i].spare);
        }
    }
    for (int64_t i = 0; run->parts && i < run->table->counts[VARIANTS]; i++) {
        smelt_release(run->allocator, run->plans[i].memory, run->plans[i].words, 8);
    }
    for (int64_t i = 0; run->parts && i < run->table->counts[OUTPUTS]; i++) {
        smelt_block_drop(run->allocator, &run->outputs[i].copy);
    }
    smelt_block_drop(run->allocator, &run->fetched);
    smelt_block_drop(run->memory, &run->arena);
    smelt_block_drop(run->memory, &run->workspace);
    if (run->parts) {
        run->allocator->release(run->allocator->context, run->parts, 8 * run->part_words);
    }
}

/* --- plans --------------------------------------------------------------------------------------------------- */

/* Numbers that a plan has room for. */
typedef struct {
    size_t dims, numbers, words;
} PlanRoom;

static PlanRoom
plan_room(const Table *table, const VariantRecord *variant)
{
    PlanRoom room = {0};
    for (int64_t i = 0; i < variant->produced_count; i++) {
        room.dims += (size_t)table->produced[variant->produced + i].rank;
    }
    for (int64_t i = 0; i < variant->value_count; i++) {
        room.numbers += (size_t)table->values[variant->values + i].number_count;
    }
    room.words = 1 + (size_t)(variant->symbol_count + variant->produced_count + variant->step_count) + room.dims + room.numbers
                 + (size_t)variant->value_count * (sizeof(PlannedValue) / sizeof(int64_t));
    return room;
}

bool
smelt_run_make_plan(Run *run, const VariantRecord *variant, Plan *plan)
{
    const PlanRoom room = plan_room(run->table, variant);
    int64_t *memory = run->allocator->allocate(run->allocator->context, 8 * room.words, FILE_ALIGN);
    if (memory == NULL) {
        return false;
    }
    *plan = (Plan){.memory = memory, .words = room.words, .symbols = memory};
    plan->produced_bytes = plan->symbols + variant->symbol_count;
    plan->produced_sizes = plan->produced_bytes + variant->produced_count;
    plan->step_bytes = plan->produced_sizes + room.dims;
    plan->numbers = plan->step_bytes + variant->step_count;
    plan->values = (PlannedValue *)(plan->numbers + room.numbers);
    return true;
}

int64_t
smelt_run_bytes(const Table *table)
{
    const Words words = count_words(table);
    int64_t bytes = (int64_t)sizeof(Run) + 8 * sum_of(&words) + 4 * FILE_ALIGN;
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        bytes += 8 * (int64_t)plan_room(table, &table->variants[i]).words + 2 * FILE_ALIGN;
    }
    return bytes;
}

/* --- sizes of inputs ----------------------------------------------------------------------------------------- */

int64_t
smelt_run_wrong_dimension(Run *run, const RegisterRecord *record, const int64_t *sizes)
{
    for (int64_t i = 0; i < record->rank; i++) {
        const DimRecord *dim = &run->table->dims[record->dims + i];
        if (sizes[i] < dim->low || sizes[i] > dim->high) {
            return i;
        }
        if (dim->name >= 0) {
            int64_t *named = &run->named[dim->name];
            if (*named && *named != ~sizes[i]) {
                return i;
            }
            *named = ~sizes[i];
        }
    }
    return -1;
}
