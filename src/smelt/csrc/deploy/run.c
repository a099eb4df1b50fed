/* Runs a model from state to state: in each state the first variant whose checks hold, and its steps.

     try_variant     symbols are read of registers; other values than last time: checks and sizes are computed anew
     prepare         room for the arena, what is produced, the largest workspace; pointers of all values, each inside
                     of its memory
     commit          what is produced becomes what its registers hold
     run_steps       kernels and copies

   A call that fails leaves state unchanged. A variant that returns has all the memory it needs before its first step.
   Before any other variant runs, the registers that it writes are copied; a later failure restores them.

   Every offset and length that an expression computes is checked, so no kernel gets memory that does not exist. */
#include "deploy/run.h"

#include "executor/check.h"
#include "deploy/memory.h"
#include "deploy/outputs.h"

#include <stdio.h>
#include <string.h>

#ifdef SMELT_TEST_LAUNCH
/* Tests run any table, whatever its code: they take the place of every kernel, and look at every copy. */
void SMELT_TEST_LAUNCH(const Table *table, const LaunchRecord *launch, const ValueRecord *records,
                       const PlannedValue *values, char *workspace, int64_t workspace_bytes);
void SMELT_TEST_COPY(const PlannedValue *to, const PlannedValue *source, int64_t bytes);
#endif

/* Why a variant does not hold: a symbol out of its bounds, or a check. */
typedef struct {
    const SymbolRecord *symbol;
    int64_t value;
    bool missing;
    const CheckRecord *check;
    bool overflow;
} Reason;

/* --- variants ------------------------------------------------------------------------------------------------ */

/* A number is what a register holds: of an input it is known, others are fetched, if from a GPU then later on. */
static smelt_status
read_symbol(smelt_session *session, const SymbolRecord *symbol, int64_t *value, smelt_error *error)
{
    const Register *source = &session->registers[symbol->register_];
    const RegisterRecord *record = &session->model->table.registers[symbol->register_];
    *value = 0;
    if (symbol->bind == BIND_GIVEN) {
        *value = source->ready;
    }
    else if (source->ready && symbol->bind == BIND_SIZE) {
        *value = source->sizes[symbol->dimension];
    }
    else if (source->ready && record->kind == INPUT_REGISTER && session->model->on_cuda) {
        *value = source->number;
    }
    else if (source->ready) {
        return smelt_begin_fetch(session, value, source->data, smelt_item_size(record->dtype), error);
    }
    return SMELT_OK;
}

static bool
are_within(smelt_session *session, const SymbolRecord *symbols, int64_t count, Reason *reason)
{
    for (int64_t i = 0; i < count; i++) {
        const SymbolRecord *symbol = &symbols[i];
        const bool has_value = symbol->bind == BIND_GIVEN || session->registers[symbol->register_].ready;
        int64_t *value = &session->symbols[i];
        if (symbol->bind == BIND_VALUE && session->model->table.registers[symbol->register_].dtype == SMELT_BOOL) {
            *value = *value != 0;
        }
        if (!has_value || *value < symbol->low || *value > symbol->high) {
            *reason = (Reason){.symbol = symbol, .value = *value, .missing = !has_value};
            return false;
        }
    }
    return true;
}

/* All of a variant's symbols, then whether they are what it is for. */
static smelt_status
read_symbols(smelt_session *session, const VariantRecord *variant, bool *held, Reason *reason, smelt_error *error)
{
    const Table *table = &session->model->table;
    const SymbolRecord *symbols = &table->symbols[variant->symbols];
    bool is_fetched = false;
    for (int64_t i = 0; i < variant->symbol_count; i++) {
        const smelt_status status = read_symbol(session, &symbols[i], &session->symbols[i], error);
        if (status) {
            return status;
        }
        is_fetched = is_fetched || symbols[i].bind == BIND_VALUE;
    }
    const smelt_status status = is_fetched ? smelt_settle(session, error) : SMELT_OK;
    *held = !status && are_within(session, symbols, variant->symbol_count, reason);
    return status;
}
static bool
checks_hold(const smelt_session *session, const VariantRecord *variant, Reason *reason)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < variant->check_count; i++) {
        const CheckRecord *check = &table->checks[variant->checks + i];
        int64_t value;
        if (!table_evaluate(table, check->expression, session->symbols, &value) || value == 0) {
            *reason = (Reason){.check = check};
            return false;
        }
    }
    return true;
}

/* --- plans --------------------------------------------------------------------------------------------------- */

/* Room for a plan, one allocation for all of its arrays. */
static bool
make_plan(smelt_session *session, const VariantRecord *variant, Plan *plan)
{
    const Table *table = &session->model->table;
    size_t dims = 0, numbers = 0;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        dims += (size_t)table->produced[variant->produced + i].rank;
    }
    for (int64_t i = 0; i < variant->value_count; i++) {
        numbers += (size_t)table->values[variant->values + i].number_count;
    }
    const size_t values = (size_t)variant->value_count * (sizeof(PlannedValue) / sizeof(int64_t));
    const size_t words = (size_t)(variant->symbol_count + variant->produced_count + variant->step_count) + dims + numbers
                         + values;
    int64_t *memory = smelt_allocate(&session->allocator, words, sizeof(int64_t));
    if (memory == NULL) {
        return false;
    }
    *plan = (Plan){.memory = memory, .words = words, .symbols = memory};
    plan->produced_bytes = plan->symbols + variant->symbol_count;
    plan->produced_sizes = plan->produced_bytes + variant->produced_count;
    plan->step_bytes = plan->produced_sizes + dims;
    plan->numbers = plan->step_bytes + variant->step_count;
    plan->values = (PlannedValue *)(plan->numbers + numbers);
    return true;
}

/* Not negative, and not more than memory can have. */
static bool
evaluate_bytes(const smelt_session *session, int64_t expression, int64_t *bytes)
{
    return table_evaluate(&session->model->table, expression, session->symbols, bytes) && *bytes >= 0
           && *bytes <= MOST_BYTES;
}

static bool
plan_produced(const smelt_session *session, const VariantRecord *variant, Plan *plan)
{
    const Table *table = &session->model->table;
    int64_t *sizes = plan->produced_sizes;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        const ProducedRecord *produced = &table->produced[variant->produced + i];
        for (int64_t k = 0; k < produced->rank; k++) {
            if (!table_evaluate(table, table->references[produced->dims + k].number, session->symbols, &sizes[k])) {
                return false;
            }
        }
        const int64_t item = smelt_item_size(table->registers[produced->register_].dtype);
        plan->produced_bytes[i] = smelt_sized_bytes(sizes, produced->rank, item);
        if (plan->produced_bytes[i] < 0) {
            return false;
        }
        sizes += produced->rank;
    }
    return true;
}

/* Values of the arena and of what is produced lie inside of it; those of registers are looked at when it runs. */
static bool
plan_values(const smelt_session *session, const VariantRecord *variant, Plan *plan)
{
    const Table *table = &session->model->table;
    int64_t *numbers = plan->numbers;
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        PlannedValue *planned = &plan->values[i];
        if (value->kind == SIZES_VALUE) {
            for (int64_t k = 0; k < value->number_count; k++) {
                if (!table_evaluate(table, table->references[value->numbers + k].number, session->symbols, &numbers[k])) {
                    return false;
                }
            }
            *planned = (PlannedValue){.offset = numbers - plan->numbers, .bytes = 8 * value->number_count};
            numbers += value->number_count;
            continue;
        }
        if (!evaluate_bytes(session, value->offset, &planned->offset)
            || !evaluate_bytes(session, value->bytes, &planned->bytes)) {
            return false;
        }
        const int64_t limit = value->kind == ARENA_VALUE      ? plan->arena_bytes
                              : value->kind == PRODUCED_VALUE ? plan->produced_bytes[value->place]
                                                              : MOST_BYTES;
        if (planned->offset > limit || planned->bytes > limit - planned->offset) {
            return false;
        }
    }
    return true;
}

static bool
plan_steps(const smelt_session *session, const VariantRecord *variant, Plan *plan)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < variant->step_count; i++) {
        const StepRecord *step = &table->steps[variant->steps + i];
        if (step->kind == COPY_STEP) {
            const CopyRecord *copy = &table->copies[step->place];
            if (!evaluate_bytes(session, copy->bytes, &plan->step_bytes[i])
                || plan->step_bytes[i] > plan->values[copy->to].bytes
                || plan->step_bytes[i] > plan->values[copy->source].bytes) {
                return false;
            }
            continue;
        }
        const LaunchRecord *launch = &table->launches[step->place];
        int64_t fixed, each;
        if (!evaluate_bytes(session, launch->fixed, &fixed) || !evaluate_bytes(session, launch->per_thread, &each)
            || each > (MOST_BYTES - fixed) / session->threads.threads) {
            return false;
        }
        plan->step_bytes[i] = fixed + each * session->threads.threads;
    }
    return true;
}

/* SMELT_OK with `held` false: the variant is for others. */
static smelt_status
try_variant(smelt_session *session, const VariantRecord *variant, Plan *plan, bool *held, Reason *reason,
            smelt_error *error)
{
    const size_t symbols = sizeof(int64_t) * (size_t)variant->symbol_count;
    const smelt_status status = read_symbols(session, variant, held, reason, error);
    if (status) {
        return status;
    }
    if (!*held || (plan->valid && memcmp(plan->symbols, session->symbols, symbols) == 0)) {
        return SMELT_OK;
    }
    *held = checks_hold(session, variant, reason);
    if (!*held) {
        return SMELT_OK;
    }
    if (plan->memory == NULL && !make_plan(session, variant, plan)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to run the model");
    }
    plan->valid = false;
    if (!evaluate_bytes(session, variant->arena_bytes, &plan->arena_bytes) || !plan_produced(session, variant, plan)
        || !plan_values(session, variant, plan) || !plan_steps(session, variant, plan)) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "with these inputs the model has sizes that do not fit memory (%s)",
                          table_string(&session->model->table, variant->name));
    }
    memcpy(plan->symbols, session->symbols, symbols);
    plan->valid = true;
    return SMELT_OK;
}

/* --- one variant --------------------------------------------------------------------------------------------- */

static smelt_status
prepare(smelt_session *session, const VariantRecord *variant, Plan *plan, smelt_error *error)
{
    const Table *table = &session->model->table;
    int64_t workspace = 0;
    for (int64_t i = 0; i < variant->step_count; i++) {
        const bool is_launch = table->steps[variant->steps + i].kind != COPY_STEP;
        workspace = is_launch && plan->step_bytes[i] > workspace ? plan->step_bytes[i] : workspace;
    }
    bool fits = smelt_block_fits(&session->memory, &session->arena, plan->arena_bytes)
                && smelt_block_fits(&session->memory, &session->workspace, workspace);
    for (int64_t i = 0; fits && i < variant->produced_count; i++) {
        Register *output = &session->registers[table->produced[variant->produced + i].register_];
        fits = smelt_block_fits(&session->memory, &output->spare, plan->produced_bytes[i]);
    }
    if (!fits) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to run the model: %lld bytes are needed at a time",
                          (long long)(plan->arena_bytes + workspace));
    }
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        PlannedValue *planned = &plan->values[i];
        char *base = session->empty;
        if (value->kind == SIZES_VALUE) {
            planned->pointer = (char *)(plan->numbers + planned->offset);
            continue;
        }
        if (value->kind == ARENA_VALUE) {
            base = session->arena.memory;
        }
        else if (value->kind == PRODUCED_VALUE) {
            base = session->registers[table->produced[variant->produced + value->place].register_].spare.memory;
        }
        else {
            const Register *source = &session->registers[value->register_];
            if (!source->ready || planned->offset > source->bytes || planned->bytes > source->bytes - planned->offset) {
                return smelt_fail(error, SMELT_ERROR_FILE, "the model reads %s where it has nothing",
                                  table_string(table, table->registers[value->register_].name));
            }
            base = source->data;
        }
        planned->pointer = planned->bytes ? base + planned->offset : session->empty;
    }
    return SMELT_OK;
}

static smelt_status
launch(smelt_session *session, const VariantRecord *variant, const Plan *plan, const LaunchRecord *launch, int64_t bytes,
       smelt_error *error)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < launch->value_count; i++) {
        session->buffers[i] = plan->values[table->references[launch->values + i].number].pointer;
    }
#ifdef SMELT_TEST_LAUNCH
    (void)error;
    SMELT_TEST_LAUNCH(table, launch, &table->values[variant->values], plan->values, session->workspace.memory, bytes);
#else
    (void)bytes; /* prepare has made room for them */
    if (session->model->on_cuda) {
        return smelt_launch_grids(session, variant, plan, launch, error);
    }
    code_kernel(&session->model->code, launch->kernel)(session->buffers, session->threads.threads,
                                                       session->workspace.memory);
#endif
    return SMELT_OK;
}

/* Numbers are the host's, all else is where registers are. */
static smelt_status
copy(smelt_session *session, const VariantRecord *variant, const Plan *plan, const CopyRecord *copy, int64_t bytes,
     smelt_error *error)
{
    const PlannedValue *to = &plan->values[copy->to], *source = &plan->values[copy->source];
    const bool is_number = session->model->table.values[variant->values + copy->source].kind == SIZES_VALUE;
#ifdef SMELT_TEST_COPY
    SMELT_TEST_COPY(to, source, bytes);
#endif
    return is_number ? smelt_put(session, to->pointer, source->pointer, bytes, error)
                     : smelt_move(session, to->pointer, source->pointer, bytes, error);
}

static smelt_status
run_steps(smelt_session *session, const VariantRecord *variant, const Plan *plan, smelt_error *error)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < variant->step_count; i++) {
        const StepRecord *step = &table->steps[variant->steps + i];
        const smelt_status status
            = step->kind == COPY_STEP
                  ? copy(session, variant, plan, &table->copies[step->place], plan->step_bytes[i], error)
                  : launch(session, variant, plan, &table->launches[step->place], plan->step_bytes[i], error);
        if (status) {
            return status;
        }
    }
    return SMELT_OK;
}

static void
commit(smelt_session *session, const VariantRecord *variant, const Plan *plan)
{
    const Table *table = &session->model->table;
    const int64_t *sizes = plan->produced_sizes;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        const ProducedRecord *produced = &table->produced[variant->produced + i];
        Register *output = &session->registers[produced->register_];
        const Block before = output->current;
        output->current = output->spare;
        output->spare = before;
        output->bytes = plan->produced_bytes[i];
        output->data = output->bytes ? output->current.memory : session->empty;
        output->ready = true;
        memcpy(output->sizes, sizes, sizeof(int64_t) * (size_t)produced->rank);
        sizes += produced->rank;
    }
}

/* --- undo ------------------------------------------------------------------------------------------------------ */

/* Copies of what a variant writes that outlives the call. */
static smelt_status
save_written(smelt_session *session, const VariantRecord *variant, smelt_error *error)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        if (value->kind != REGISTER_VALUE || !value->writes || table->registers[value->register_].kind == LOCAL_REGISTER) {
            continue;
        }
        Register *written = &session->registers[value->register_];
        if (written->is_saved || written->bytes == 0) {
            continue;
        }
        if (!smelt_block_fits(&session->memory, &written->spare, written->bytes)) {
            return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to keep state as it was before the call: %lld bytes",
                              (long long)written->bytes);
        }
        const smelt_status status = smelt_move(session, written->spare.memory, written->data, written->bytes, error);
        if (status) {
            return status;
        }
        written->is_saved = true;
        session->saved[session->saved_count++] = value->register_;
    }
    return SMELT_OK;
}

/* In the opposite order: registers of state may share memory. */
static void
end_undo(smelt_session *session, bool has_failed)
{
    while (session->saved_count > 0) {
        Register *written = &session->registers[session->saved[--session->saved_count]];
        if (has_failed) {
            smelt_move(session, written->data, written->spare.memory, written->bytes, NULL);
        }
        written->is_saved = false;
    }
}

/* --- from state to state -------------------------------------------------------------------------------------- */

/* The first variant of a state does not hold, nor do the others: why the first does not. */
static smelt_status
tell_reason(const smelt_session *session, const StateRecord *state, const Reason *reason, smelt_error *error)
{
    const Table *table = &session->model->table;
    if (reason->check) {
        return smelt_fail(error, SMELT_ERROR_UNSUPPORTED, "the model was not exported for these inputs: %s does not hold",
                          table_string(table, reason->check->text));
    }
    const SymbolRecord *symbol = reason->symbol;
    const RegisterRecord *record = &table->registers[symbol->register_];
    const char *name = table_string(table, record->name), *of = table_string(table, state->name);
    if (reason->missing) {
        return smelt_fail(error, SMELT_ERROR_UNSUPPORTED, "the model was not exported for calls without %s (%s)", name, of);
    }
    char dimension[40] = "";
    if (symbol->bind == BIND_SIZE) {
        snprintf(dimension, sizeof dimension, ", dimension %lld,", (long long)symbol->dimension);
    }
    return smelt_fail(error, SMELT_ERROR_UNSUPPORTED, "%s%s is %lld, and must be from %lld to %lld (%s)", name, dimension,
                      (long long)reason->value, (long long)symbol->low, (long long)symbol->high, of);
}

/* The number of the variant that holds. */
static smelt_status
choose(smelt_session *session, const StateRecord *state, int64_t *variant, smelt_error *error)
{
    const Table *table = &session->model->table;
    Reason first = {0};
    for (int64_t i = 0; i < state->variant_count; i++) {
        Reason reason = {0};
        bool held;
        *variant = state->variants + i;
        const smelt_status status = try_variant(session, &table->variants[*variant], &session->plans[*variant], &held,
                                                &reason, error);
        if (status || held) {
            return status;
        }
        first = i == 0 ? reason : first;
    }
    return tell_reason(session, state, &first, error);
}

static smelt_status
raise(const smelt_session *session, const VariantRecord *variant, smelt_error *error)
{
    const Table *table = &session->model->table;
    return smelt_fail(error, SMELT_ERROR_RAISED, "%s: %s", table_string(table, variant->error),
                      table_string(table, variant->message));
}

/* The state that follows; -1: the call has returned. */
static smelt_status
go_on(smelt_session *session, const VariantRecord *variant, int64_t *state, smelt_error *error)
{
    const Register *condition;
    char holds = 0;
    smelt_status status;
    switch (variant->next) {
    case RETURN_NEXT:
        *state = -1;
        return smelt_take_outputs(session, variant, error);
    case RAISE_NEXT:
        return raise(session, variant, error);
    case JUMP_NEXT:
        *state = variant->state;
        return SMELT_OK;
    default:
        condition = &session->registers[variant->register_];
        if (!condition->ready) {
            return smelt_fail(error, SMELT_ERROR_FILE, "the model branches on %s, which it never made",
                              table_string(&session->model->table,
                                           session->model->table.registers[variant->register_].name));
        }
        status = smelt_fetch(session, &holds, condition->data, sizeof holds, error);
        *state = holds ? variant->if_true : variant->if_false;
        return status;
    }
}

/* What the last call made is no longer needed: its memory is where this call makes it first. */
static void
clear_locals(smelt_session *session)
{
    const Table *table = &session->model->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        Register *local = &session->registers[i];
        if (table->registers[i].kind != LOCAL_REGISTER) {
            continue;
        }
        local->ready = false;
        if (local->spare.size < local->current.size) {
            const Block larger = local->current;
            local->current = local->spare;
            local->spare = larger;
        }
    }
}

/* One variant of a state, and which state follows. */
static smelt_status
run_state(smelt_session *session, int64_t *state, smelt_error *error)
{
    const Table *table = &session->model->table;
    int64_t number = 0;
    smelt_status status = choose(session, &table->states[*state], &number, error);
    if (status) {
        return status;
    }
    const VariantRecord *variant = &table->variants[number];
    Plan *plan = &session->plans[number];
    status = prepare(session, variant, plan, error);
    if (status) {
        return status;
    }
    commit(session, variant, plan); /* steps have their pointers already */
    status = variant->next == RETURN_NEXT ? smelt_reserve_outputs(session, variant, plan->symbols, error)
                                          : save_written(session, variant, error);
    status = status ? status : run_steps(session, variant, plan, error);
    if (status) {
        return status;
    }
    session->state = *state;
    session->variant = number - table->states[*state].variants;
    return go_on(session, variant, state, error);
}

smelt_status
smelt_run_states(smelt_session *session, smelt_error *error)
{
    clear_locals(session);
    smelt_status status = SMELT_OK;
    int64_t state = 0;
    for (int64_t rounds = 1; !status && state >= 0; rounds++) {
        status = session->most_states && rounds > session->most_states
                     ? smelt_fail(error, SMELT_ERROR_LIMIT, "the model went through %lld states and did not end",
                                  (long long)session->most_states)
                     : run_state(session, &state, error);
    }
    end_undo(session, status != SMELT_OK);
    return status;
}
