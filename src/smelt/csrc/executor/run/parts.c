/* Makes and frees the parts of a run, and holds the sizes of inputs against their bounds. */
#include "executor/run/parts.h"

static void
raise_to(int64_t *most, int64_t count)
{
    *most = count > *most ? count : *most;
}

static void
count_parts(Run *run)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        run->size_count += table->registers[i].rank;
        raise_to(&run->most_rank, table->registers[i].rank);
    }
    for (int64_t i = 0; i < table->counts[RETURNED]; i++) { /* one that nobody names has any rank */
        const int64_t rank = table->returned[i].rank;
        raise_to(&run->most_rank, rank < SMELT_MAX_RANK ? rank : SMELT_MAX_RANK);
    }
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        raise_to(&run->most_symbols, table->variants[i].symbol_count);
    }
    for (int64_t i = 0; i < table->counts[KERNELS]; i++) {
        raise_to(&run->most_buffers, table->kernels[i].buffers);
    }
}

/* The arrays one after the other, from an address on; how many bytes they take. */
static size_t
place_parts(Run *run, uintptr_t begin)
{
    uintptr_t end = begin;
    const int64_t *counts = run->table->counts;
#define PART(array, count) (run->array = (void *)end, end += ((size_t)(count) * sizeof *run->array + 7) / 8 * 8)
    PART(registers, counts[REGISTERS]);
    PART(plans, counts[VARIANTS]);
    PART(outputs, counts[OUTPUTS]);
    PART(sizes, run->size_count);
    PART(output_sizes, 2 * run->most_rank * counts[OUTPUTS]);
    PART(saved, counts[REGISTERS]);
    PART(symbols, run->most_symbols);
    PART(named, counts[STRINGS]);
    PART(buffers, run->most_buffers);
    return end - begin;
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
    count_parts(run);
    run->part_bytes = place_parts(run, 0);
    run->parts = run->allocator->allocate(run->allocator->context, run->part_bytes, FILE_ALIGN);
    if (run->parts == NULL) {
        return false;
    }
    place_parts(run, (uintptr_t)run->parts);
    for (int64_t i = 0; i < table->counts[OUTPUTS]; i++) {
        int64_t *sizes = run->output_sizes + 2 * i * run->most_rank;
        run->outputs[i] = (Output){.sizes = sizes, .strides = sizes + run->most_rank};
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
        run->allocator->release(run->allocator->context, run->parts, run->part_bytes);
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
    room.words = 2 + (size_t)(variant->symbol_count + variant->produced_count + variant->step_count) + room.dims + room.numbers
                 + (size_t)variant->value_count * (sizeof(PlannedValue) / sizeof(int64_t));
    return room;
}

bool
smelt_run_make_plan(const Run *run, const VariantRecord *variant, Plan *plan)
{
    const PlanRoom room = plan_room(run->table, variant);
    int64_t *memory = run->allocator->allocate(run->allocator->context, 8 * room.words, FILE_ALIGN);
    if (memory == NULL) {
        return false;
    }
    *plan = (Plan){.memory = memory, .words = room.words};
    plan->arena_bytes = memory;
    plan->workspace_bytes = memory + 1;
    plan->symbols = memory + 2;
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
    Run run = {.table = table};
    count_parts(&run);
    int64_t bytes = (int64_t)(sizeof run + place_parts(&run, 0)) + 4 * FILE_ALIGN;
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
