/* Runs a model from state to state: in each state the first variant whose checks hold, and its steps.

     try_variant     symbols are read of registers; other values than last time: checks and sizes are computed anew
     prepare         room for the arena, what is produced, the largest workspace; pointers of all values, each inside
                     of its memory
     commit          what is produced becomes what its registers hold
     run_steps       kernels and copies

   A call that fails leaves state unchanged. A variant that returns has all the memory it needs before its first step.
   Before any other variant runs, the registers that it writes are copied; a later failure restores them.

   Every offset and length that an expression computes is checked, so no kernel gets memory that does not exist. */
#include "executor/run/run.h"

#include "executor/run/outputs.h"
#include "executor/steps.h"

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
read_symbol(Run *run, const SymbolRecord *symbol, int64_t *value, smelt_error *error)
{
    const RegisterRecord *record = &run->table->registers[symbol->register_];
    int64_t bytes;
    const char *data = run_data(run, symbol->register_, &bytes);
    *value = 0;
    if (symbol->bind == BIND_GIVEN) {
        *value = data != NULL;
    }
    else if (data && symbol->bind == BIND_SIZE) {
        *value = run_size(run, symbol->register_, symbol->dimension);
    }
    else if (data && record->kind == INPUT_REGISTER && run->device) {
        *value = run->registers[symbol->register_].number;
    }
    else if (data) {
        return run_copy(run, TO_HOST, value, data, table_item_size(record->dtype), error);
    }
    return SMELT_OK;
}

static bool
are_within(Run *run, const SymbolRecord *symbols, int64_t count, Reason *reason)
{
    for (int64_t i = 0; i < count; i++) {
        const SymbolRecord *symbol = &symbols[i];
        int64_t bytes;
        const bool has_value = symbol->bind == BIND_GIVEN || run_data(run, symbol->register_, &bytes);
        int64_t *value = &run->symbols[i];
        if (symbol->bind == BIND_VALUE && run->table->registers[symbol->register_].dtype == SMELT_BOOL) {
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
read_symbols(Run *run, const VariantRecord *variant, bool *held, Reason *reason, smelt_error *error)
{
    const Table *table = run->table;
    const SymbolRecord *symbols = &table->symbols[variant->symbols];
    bool is_fetched = false;
    for (int64_t i = 0; i < variant->symbol_count; i++) {
        const smelt_status status = read_symbol(run, &symbols[i], &run->symbols[i], error);
        if (status) {
            return status;
        }
        is_fetched = is_fetched || symbols[i].bind == BIND_VALUE;
    }
    const smelt_status status = is_fetched ? run_settle(run, error) : SMELT_OK;
    *held = !status && are_within(run, symbols, variant->symbol_count, reason);
    return status;
}
static bool
checks_hold(const Run *run, const VariantRecord *variant, Reason *reason)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < variant->check_count; i++) {
        const CheckRecord *check = &table->checks[variant->checks + i];
        int64_t value;
        if (!table_evaluate(table, check->expression, run->symbols, &value) || value == 0) {
            *reason = (Reason){.check = check};
            return false;
        }
    }
    return true;
}

/* --- plans --------------------------------------------------------------------------------------------------- */

/* Not negative, and not more than memory can have. */
static bool
evaluate_bytes(const Run *run, int64_t expression, int64_t *bytes)
{
    return table_evaluate(run->table, expression, run->symbols, bytes) && *bytes >= 0
           && *bytes <= MOST_BYTES;
}

static bool
plan_produced(const Run *run, const VariantRecord *variant, Plan *plan)
{
    const Table *table = run->table;
    int64_t *sizes = plan->produced_sizes;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        const ProducedRecord *produced = &table->produced[variant->produced + i];
        for (int64_t k = 0; k < produced->rank; k++) {
            if (!table_evaluate(table, table->references[produced->dims + k].number, run->symbols, &sizes[k])) {
                return false;
            }
        }
        const int64_t item = table_item_size(table->registers[produced->register_].dtype);
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
plan_values(const Run *run, const VariantRecord *variant, Plan *plan)
{
    const Table *table = run->table;
    int64_t *numbers = plan->numbers;
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        PlannedValue *planned = &plan->values[i];
        if (value->kind == SIZES_VALUE) {
            for (int64_t k = 0; k < value->number_count; k++) {
                if (!table_evaluate(table, table->references[value->numbers + k].number, run->symbols, &numbers[k])) {
                    return false;
                }
            }
            *planned = (PlannedValue){.offset = numbers - plan->numbers, .bytes = 8 * value->number_count};
            numbers += value->number_count;
            continue;
        }
        if (!evaluate_bytes(run, value->offset, &planned->offset)
            || !evaluate_bytes(run, value->bytes, &planned->bytes)) {
            return false;
        }
        const int64_t limit = value->kind == ARENA_VALUE      ? *plan->arena_bytes
                              : value->kind == PRODUCED_VALUE ? plan->produced_bytes[value->place]
                                                              : MOST_BYTES;
        if (planned->offset > limit || planned->bytes > limit - planned->offset) {
            return false;
        }
    }
    return true;
}

static bool
plan_steps(const Run *run, const VariantRecord *variant, Plan *plan)
{
    const Table *table = run->table;
    *plan->workspace_bytes = 0;
    for (int64_t i = 0; i < variant->step_count; i++) {
        const StepRecord *step = &table->steps[variant->steps + i];
        if (step->kind == COPY_STEP) {
            const CopyRecord *copy = &table->copies[step->place];
            if (!evaluate_bytes(run, copy->bytes, &plan->step_bytes[i])
                || plan->step_bytes[i] > plan->values[copy->to].bytes
                || plan->step_bytes[i] > plan->values[copy->source].bytes) {
                return false;
            }
            continue;
        }
        const LaunchRecord *launch = &table->launches[step->place];
        int64_t fixed, each;
        if (!evaluate_bytes(run, launch->fixed, &fixed) || !evaluate_bytes(run, launch->per_thread, &each)
            || each > (MOST_BYTES - fixed) / run->threads) {
            return false;
        }
        const int64_t bytes = fixed + each * run->threads;
        plan->step_bytes[i] = bytes;
        *plan->workspace_bytes = bytes > *plan->workspace_bytes ? bytes : *plan->workspace_bytes;
    }
    return true;
}

bool
smelt_run_plan(const Run *run, const VariantRecord *variant, Plan *plan)
{
    smelt_copy_bytes(plan->symbols, run->symbols, (int64_t)sizeof(int64_t) * variant->symbol_count);
    plan->valid = evaluate_bytes(run, variant->arena_bytes, plan->arena_bytes) && plan_produced(run, variant, plan)
                  && plan_values(run, variant, plan) && plan_steps(run, variant, plan);
    return plan->valid;
}

static bool
are_same(const int64_t *numbers, const int64_t *others, int64_t count)
{
    while (count > 0 && numbers[count - 1] == others[count - 1]) {
        count--;
    }
    return count == 0;
}

/* SMELT_OK with `held` false: the variant is for others. */
static smelt_status
try_variant(Run *run, const VariantRecord *variant, Plan *plan, bool *held, Reason *reason,
            smelt_error *error)
{
    const smelt_status status = read_symbols(run, variant, held, reason, error);
    if (status) {
        return status;
    }
    if (!*held || (plan->valid && are_same(plan->symbols, run->symbols, variant->symbol_count))) {
        return SMELT_OK;
    }
    *held = checks_hold(run, variant, reason);
    if (!*held) {
        return SMELT_OK;
    }
    if (plan->memory == NULL && !smelt_run_make_plan(run, variant, plan)) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to run the model");
    }
    const int64_t *made = run->made_plans ? run->made_plans[plan - run->plans] : NULL;
    if (made) {
        smelt_copy_bytes(plan->memory, made, 8 * (int64_t)plan->words);
        plan->valid = true;
    }
    else if (!smelt_run_plan(run, variant, plan)) {
        return smelt_fail(error, SMELT_ERROR_SIZE, "with these inputs the model has sizes that do not fit memory (%s)",
                          table_string(run->table, variant->name));
    }
    return SMELT_OK;
}

/* --- one variant --------------------------------------------------------------------------------------------- */

static smelt_status
prepare(Run *run, const VariantRecord *variant, Plan *plan, smelt_error *error)
{
    const Table *table = run->table;
    bool fits = smelt_block_fits(run->memory, &run->arena, *plan->arena_bytes)
                && smelt_block_fits(run->memory, &run->workspace, *plan->workspace_bytes);
    for (int64_t i = 0; fits && i < variant->produced_count; i++) {
        Register *output = &run->registers[table->produced[variant->produced + i].register_];
        fits = smelt_block_fits(run->memory, &output->spare, plan->produced_bytes[i]);
    }
    if (!fits) {
        return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to run the model: %lld bytes are needed at a time",
                          (long long)(*plan->arena_bytes + *plan->workspace_bytes));
    }
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        PlannedValue *planned = &plan->values[i];
        char *base = run->empty;
        if (value->kind == SIZES_VALUE) {
            planned->pointer = (char *)(plan->numbers + planned->offset);
            continue;
        }
        if (value->kind == ARENA_VALUE) {
            base = run->arena.memory;
        }
        else if (value->kind == PRODUCED_VALUE) {
            base = run->registers[table->produced[variant->produced + value->place].register_].spare.memory;
        }
        else {
            int64_t bytes;
            base = run_data(run, value->register_, &bytes);
            if (!base || planned->offset > bytes || planned->bytes > bytes - planned->offset) {
                return smelt_fail(error, SMELT_ERROR_FILE, "the model reads %s where it has nothing",
                                  table_string(table, table->registers[value->register_].name));
            }
        }
        planned->pointer = planned->bytes ? base + planned->offset : run->empty;
    }
    return SMELT_OK;
}

/* A variant at work: at a step of the table. */
typedef struct {
    Run *run;
    const VariantRecord *variant;
    const Plan *plan;
    smelt_error *error;
    int64_t step;
} VariantRun;

static int
launch(void *pointer, const LaunchRecord *launch)
{
    const VariantRun *at = pointer;
    const Table *table = at->run->table;
    for (int64_t i = 0; i < launch->value_count; i++) {
        at->run->buffers[i] = at->plan->values[table->references[launch->values + i].number].pointer;
    }
#ifdef SMELT_TEST_LAUNCH
    SMELT_TEST_LAUNCH(table, launch, &table->values[at->variant->values], at->plan->values, at->run->workspace.memory,
                      at->plan->step_bytes[at->step - at->variant->steps]);
    return SMELT_OK;
#else
    return at->run->launch(at->run, at->variant, at->plan, launch, at->error); /* prepare has made room */
#endif
}

/* Numbers are the host's, all else is where registers are. */
static int
copy(void *pointer, const CopyRecord *copy)
{
    const VariantRun *at = pointer;
    const PlannedValue *to = &at->plan->values[copy->to], *source = &at->plan->values[copy->source];
    const bool is_number = at->run->table->values[at->variant->values + copy->source].kind == SIZES_VALUE;
    const int64_t bytes = at->plan->step_bytes[at->step - at->variant->steps];
#ifdef SMELT_TEST_COPY
    SMELT_TEST_COPY(to, source, bytes);
#endif
    return run_copy(at->run, is_number ? TO_REGISTERS : WITHIN_REGISTERS, to->pointer, source->pointer, bytes,
                    at->error);
}

static smelt_status
run_steps(Run *run, const VariantRecord *variant, const Plan *plan, smelt_error *error)
{
    static const StepFunctions functions = {.launch = launch, .copy = copy};
    VariantRun at = {.run = run, .variant = variant, .plan = plan, .error = error};
    return (smelt_status)smelt_run_steps(run->table, variant->steps, variant->step_count, &functions, &at, &at.step);
}

static void
commit(Run *run, const VariantRecord *variant, const Plan *plan)
{
    const Table *table = run->table;
    const int64_t *sizes = plan->produced_sizes;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        const ProducedRecord *produced = &table->produced[variant->produced + i];
        Register *output = &run->registers[produced->register_];
        const Block before = output->current;
        output->current = output->spare;
        output->spare = before;
        output->bytes = plan->produced_bytes[i];
        output->data = output->bytes ? output->current.memory : run->empty;
        output->ready = true;
        for (int64_t k = 0; k < produced->rank; k++) {
            output->sizes[k] = *sizes++;
        }
    }
}

/* --- undo ------------------------------------------------------------------------------------------------------ */

/* Copies of what a variant writes that outlives the call. */
static smelt_status
save_written(Run *run, const VariantRecord *variant, smelt_error *error)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < variant->value_count; i++) {
        const ValueRecord *value = &table->values[variant->values + i];
        if (value->kind != REGISTER_VALUE || !value->writes || table->registers[value->register_].kind == LOCAL_REGISTER) {
            continue;
        }
        Register *written = &run->registers[value->register_];
        if (written->is_saved || written->bytes == 0) {
            continue;
        }
        if (!smelt_block_fits(run->memory, &written->spare, written->bytes)) {
            return smelt_fail(error, SMELT_ERROR_MEMORY, "no memory to keep state as it was before the call: %lld bytes",
                              (long long)written->bytes);
        }
        const smelt_status status = run_copy(run, WITHIN_REGISTERS, written->spare.memory, written->data, written->bytes, error);
        if (status) {
            return status;
        }
        written->is_saved = true;
        run->saved[run->saved_count++] = value->register_;
    }
    return SMELT_OK;
}

/* In the opposite order: registers of state may share memory. */
static void
end_undo(Run *run, bool has_failed)
{
    while (run->saved_count > 0) {
        Register *written = &run->registers[run->saved[--run->saved_count]];
        if (has_failed) {
            run_copy(run, WITHIN_REGISTERS, written->data, written->spare.memory, written->bytes, NULL);
        }
        written->is_saved = false;
    }
}

/* --- from state to state -------------------------------------------------------------------------------------- */

/* The first variant of a state does not hold, nor do the others: why the first does not. */
static smelt_status
tell_reason(const Run *run, const StateRecord *state, const Reason *reason, smelt_error *error)
{
    const Table *table = run->table;
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
    const long long value = reason->value, low = symbol->low, high = symbol->high;
    if (symbol->bind == BIND_SIZE) {
        return smelt_fail(error, SMELT_ERROR_UNSUPPORTED, "%s, dimension %lld, is %lld, and must be from %lld to %lld (%s)",
                          name, (long long)symbol->dimension, value, low, high, of);
    }
    return smelt_fail(error, SMELT_ERROR_UNSUPPORTED, "%s is %lld, and must be from %lld to %lld (%s)", name, value, low,
                      high, of);
}

/* The number of the variant that holds. */
static smelt_status
choose(Run *run, const StateRecord *state, int64_t *variant, smelt_error *error)
{
    const Table *table = run->table;
    Reason first = {0};
    for (int64_t i = 0; i < state->variant_count; i++) {
        Reason reason = {0};
        bool held;
        *variant = state->variants + i;
        const smelt_status status = try_variant(run, &table->variants[*variant], &run->plans[*variant], &held,
                                                &reason, error);
        if (status || held) {
            return status;
        }
        first = i == 0 ? reason : first;
    }
    return tell_reason(run, state, &first, error);
}

static smelt_status
raise(const Run *run, const VariantRecord *variant, smelt_error *error)
{
    const Table *table = run->table;
    return smelt_fail(error, SMELT_ERROR_RAISED, "%s: %s", table_string(table, variant->error),
                      table_string(table, variant->message));
}

/* The state that follows; -1: the call has returned. */
static smelt_status
go_on(Run *run, const VariantRecord *variant, int64_t *state, smelt_error *error)
{
    const char *condition;
    int64_t bytes;
    char holds = 0;
    smelt_status status;
    switch (variant->next) {
    case RETURN_NEXT:
        *state = -1;
        return smelt_take_outputs(run, variant, error);
    case RAISE_NEXT:
        return raise(run, variant, error);
    case JUMP_NEXT:
        *state = variant->state;
        return SMELT_OK;
    default:
        condition = run_data(run, variant->register_, &bytes);
        if (!condition) {
            return smelt_fail(error, SMELT_ERROR_FILE, "the model branches on %s, which it never made",
                              table_string(run->table,
                                           run->table->registers[variant->register_].name));
        }
        status = run_fetch(run, &holds, condition, sizeof holds, error);
        *state = holds ? variant->if_true : variant->if_false;
        return status;
    }
}

/* What the last call made is no longer needed: its memory is where this call makes it first. */
static void
clear_locals(Run *run)
{
    const Table *table = run->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        if (table->registers[i].kind != LOCAL_REGISTER) {
            continue;
        }
        Register *local = &run->registers[i];
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
run_state(Run *run, int64_t *state, smelt_error *error)
{
    const Table *table = run->table;
    int64_t number = 0;
    smelt_status status = choose(run, &table->states[*state], &number, error);
    if (status) {
        return status;
    }
    const VariantRecord *variant = &table->variants[number];
    Plan *plan = &run->plans[number];
    status = prepare(run, variant, plan, error);
    if (status) {
        return status;
    }
    commit(run, variant, plan); /* steps have their pointers already */
    status = variant->next == RETURN_NEXT ? smelt_reserve_outputs(run, variant, plan->symbols, error)
                                          : save_written(run, variant, error);
    status = status ? status : run_steps(run, variant, plan, error);
    if (status) {
        return status;
    }
    run->state = *state;
    run->variant = number - table->states[*state].variants;
    return go_on(run, variant, state, error);
}

smelt_status
smelt_run_states(Run *run, smelt_error *error)
{
    clear_locals(run);
    smelt_status status = SMELT_OK;
    int64_t state = 0;
    for (int64_t rounds = 1; !status && state >= 0; rounds++) {
        status = run->most_states && rounds > run->most_states
                     ? smelt_fail(error, SMELT_ERROR_LIMIT, "the model went through %lld states and did not end",
                                  (long long)run->most_states)
                     : run_state(run, &state, error);
    }
    end_undo(run, status != SMELT_OK);
    return status;
}
