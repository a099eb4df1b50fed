/* Rules of a file's table that depend on more than one record. What depends on sizes is checked when it runs. */
#include "executor/check.h"

#include <stdlib.h>
#include <string.h>

/* One check of a whole table; each function returns a status. */
typedef struct {
    const Table *table;
    int64_t weights, state;
    int64_t *needs;  /* of each expression: how many symbols it needs */
    int64_t *stamps; /* of each register: the last variant that produced it, counted from 1 */
    int64_t launches, copies; /* that steps have named so far */
    smelt_error *error;
} Checker;

/* --- registers and outputs -------------------------------------------------------------------------------- */

static bool
are_dims(const Table *table, int64_t first, int64_t rank)
{
    if (rank > SMELT_MAX_RANK) {
        return false;
    }
    for (int64_t i = 0; i < rank; i++) {
        const DimRecord *dim = &table->dims[first + i];
        if (dim->low < 0 || dim->low > dim->high) {
            return false;
        }
    }
    return true;
}

/* Bytes from the first element of what has data to the last; -1: too many. */
static int64_t
data_bytes(const Table *table, const RegisterRecord *record)
{
    int64_t count = 1, reach = 1;
    for (int64_t i = 0; i < record->rank; i++) {
        const int64_t size = table->dims[record->dims + i].low;
        const int64_t stride = record->stride_count ? table->references[record->strides + i].number : 1;
        int64_t step;
        if (size == 0) {
            return 0;
        }
        if (__builtin_mul_overflow(count, size, &count) || __builtin_mul_overflow(size - 1, stride, &step)
            || __builtin_add_overflow(reach, step, &reach)) {
            return -1;
        }
    }
    const int64_t elements = record->stride_count ? reach : count;
    int64_t bytes;
    return __builtin_mul_overflow(elements, table_item_size(record->dtype), &bytes) || bytes > MOST_BYTES ? -1 : bytes;
}

/* Of CONSTANT and STATE: fixed sizes, and bytes inside their section. */
static const char *
wrong_data(const Checker *checker, const RegisterRecord *record)
{
    const Table *table = checker->table;
    const int64_t limit = record->kind == CONSTANT_REGISTER ? checker->weights : checker->state;
    for (int64_t i = 0; i < record->rank; i++) {
        if (table->dims[record->dims + i].low != table->dims[record->dims + i].high) {
            return "dims: data has a fixed size";
        }
    }
    for (int64_t i = 0; i < record->stride_count; i++) {
        const int64_t stride = table->references[record->strides + i].number;
        if (stride < 0 || stride > MOST_BYTES) {
            return "strides";
        }
    }
    if (record->bytes < 0 || record->bytes != data_bytes(table, record)) {
        return "bytes: not as many as its sizes say";
    }
    if (record->data < 0 || record->data > limit || record->bytes > limit - record->data
        || record->data % table_item_size(record->dtype)) {
        return "data: outside of its section";
    }
    return NULL;
}

static const char *
wrong_register(const Checker *checker, const RegisterRecord *record)
{
    const Table *table = checker->table;
    if (!are_dims(table, record->dims, record->rank)) {
        return "dims";
    }
    if ((record->optional || record->written) && record->kind != INPUT_REGISTER) {
        return "optional or written";
    }
    if (record->choice_count && (record->kind != INPUT_REGISTER || record->rank || record->dtype != SMELT_INT64)) {
        return "choices";
    }
    if (record->kind == CONSTANT_REGISTER || record->kind == STATE_REGISTER) {
        return record->stride_count && record->stride_count != record->rank ? "strides" : wrong_data(checker, record);
    }
    if (record->stride_count || record->data != -1 || record->bytes) {
        return "data: it has none";
    }
    return NULL;
}

static int
by_text(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* `names`: room for as many pointers as there are registers. */
static bool
are_distinct(const Table *table, RegisterKind kind, const char **names)
{
    size_t count = 0;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        if (table->registers[i].kind == (int64_t)kind) {
            names[count++] = table_string(table, table->registers[i].name);
        }
    }
    if (count > 1) {
        qsort(names, count, sizeof *names, by_text);
    }
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            return false;
        }
    }
    return true;
}

static smelt_status
check_registers(const Checker *checker)
{
    const Table *table = checker->table;
    for (int64_t i = 0; i < table->counts[REGISTERS]; i++) {
        const char *wrong = wrong_register(checker, &table->registers[i]);
        if (wrong) {
            return smelt_refuse(checker->error, "registers", i, wrong);
        }
    }
    const char **names = (const char **)checker->stamps; /* which nobody has used yet */
    if (!are_distinct(table, INPUT_REGISTER, names) || !are_distinct(table, STATE_REGISTER, names)) {
        return smelt_refuse(checker->error, "registers", 0, "name: two have the same");
    }
    for (int64_t i = 0; i < table->counts[OUTPUTS]; i++) {
        const OutputRecord *output = &table->outputs[i];
        const bool differs = output->dtype == -1;
        if ((differs ? output->rank != 0 : table_item_size(output->dtype) == 0)
            || !are_dims(table, output->dims, output->rank)) {
            return smelt_refuse(checker->error, "outputs", i, "dtype or dims");
        }
    }
    return SMELT_OK;
}

/* --- kernels ------------------------------------------------------------------------------------------------ */

/* A number, or one of the kernel's sizes. */
static bool
is_number(const KernelRecord *kernel, int64_t number)
{
    return number >= -kernel->sizes && number <= MOST_BYTES;
}

static bool
is_product(const Table *table, const KernelRecord *kernel, const ProductRecord *product, int64_t grids)
{
    const int64_t pointers = kernel->buffers - (kernel->sizes > 0);
    bool is_right = product->grids >= 1 && product->grids <= grids
                    && (product->operand_count == 3 || product->operand_count == 4) && is_number(kernel, product->rows)
                    && is_number(kernel, product->cols) && is_number(kernel, product->terms)
                    && is_number(kernel, product->batch) && is_number(kernel, product->outer);
    for (int64_t i = 0; is_right && i < product->operand_count; i++) {
        const OperandRecord *operand = &table->operands[product->operands + i];
        const int64_t left = table->operands[product->operands].dtype;
        const int64_t result = table->operands[product->operands + 2].dtype;
        const bool is_factor = i < 2, is_bias = i == 3;
        is_right = operand->buffer >= 0 && operand->buffer <= pointers && operand->dtype >= SMELT_FLOAT16
                   && operand->dtype <= SMELT_FLOAT64 && (!is_factor || operand->dtype == left)
                   && (!is_bias || operand->dtype == result) && is_number(kernel, operand->offset)
                   && is_number(kernel, operand->row) && is_number(kernel, operand->col)
                   && is_number(kernel, operand->batch) && is_number(kernel, operand->outer);
    }
    return is_right;
}

static const char *
wrong_kernel(const Table *table, const KernelRecord *kernel)
{
    if (kernel->buffers < 0 || kernel->buffers > MOST_BUFFERS) {
        return "buffers";
    }
    if (kernel->sizes < 0 || kernel->sizes > MOST_BUFFERS || (kernel->sizes && kernel->buffers == 0)) {
        return "sizes";
    }
    for (int64_t i = 0; i < kernel->grid_count; i++) {
        const GridRecord *grid = &table->grids[kernel->grids + i];
        if (grid->blocks < 0 || grid->blocks > MOST_BLOCKS || grid->slot < -1 || grid->slot >= kernel->sizes
            || grid->threads < 1 || grid->threads > MOST_GRID_THREADS || grid->shared_bytes < 0
            || grid->shared_bytes > MOST_SHARED) {
            return "grids";
        }
        if (grid->product >= 0
            && !is_product(table, kernel, &table->products[grid->product], kernel->grid_count - i)) {
            return "products";
        }
    }
    return NULL;
}

/* --- variants ---------------------------------------------------------------------------------------------- */

static bool
may_evaluate(const Checker *checker, const VariantRecord *variant, int64_t expression)
{
    return checker->needs[expression] <= variant->symbol_count;
}

/* Several expressions, by references. */
static bool
are_expressions(const Checker *checker, const VariantRecord *variant, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!may_evaluate(checker, variant, checker->table->references[first + i].number)) {
            return false;
        }
    }
    return true;
}

static bool
is_symbol(const Table *table, const SymbolRecord *symbol)
{
    const RegisterRecord *record = &table->registers[symbol->register_];
    if (symbol->low > symbol->high) {
        return false;
    }
    switch (symbol->bind) {
    case BIND_SIZE:
        return symbol->dimension >= 0 && symbol->dimension < record->rank;
    case BIND_VALUE:
        return record->rank == 0
               && (record->dtype == SMELT_BOOL || record->dtype == SMELT_INT64 || record->dtype == SMELT_FLOAT64);
    default:
        return record->kind == INPUT_REGISTER;
    }
}

static const char *
wrong_symbols(const Checker *checker, const VariantRecord *variant)
{
    const Table *table = checker->table;
    for (int64_t i = 0; i < variant->symbol_count; i++) {
        if (!is_symbol(table, &table->symbols[variant->symbols + i])) {
            return "symbols";
        }
    }
    for (int64_t i = 0; i < variant->check_count; i++) {
        if (!may_evaluate(checker, variant, table->checks[variant->checks + i].expression)) {
            return "checks";
        }
    }
    return may_evaluate(checker, variant, variant->arena_bytes) ? NULL : "arena_bytes";
}

static const char *
wrong_produced(const Checker *checker, const VariantRecord *variant, int64_t stamp)
{
    const Table *table = checker->table;
    for (int64_t i = 0; i < variant->produced_count; i++) {
        const ProducedRecord *produced = &table->produced[variant->produced + i];
        const RegisterRecord *record = &table->registers[produced->register_];
        if (record->kind != LOCAL_REGISTER || produced->rank != record->rank
            || checker->stamps[produced->register_] == stamp
            || !are_expressions(checker, variant, produced->dims, produced->rank)) {
            return "produced";
        }
        checker->stamps[produced->register_] = stamp;
    }
    return NULL;
}

static bool
is_value(const Checker *checker, const VariantRecord *variant, const ValueRecord *value)
{
    const Table *table = checker->table;
    if (value->kind == SIZES_VALUE) {
        return value->number_count <= MOST_BUFFERS && value->offset == -1 && value->bytes == -1 && value->writes == 0
               && are_expressions(checker, variant, value->numbers, value->number_count);
    }
    if (value->offset < 0 || value->bytes < 0 || value->number_count || !may_evaluate(checker, variant, value->offset)
        || !may_evaluate(checker, variant, value->bytes)) {
        return false;
    }
    if (value->kind == REGISTER_VALUE) {
        if (value->register_ < 0) {
            return false;
        }
        const RegisterRecord *record = &table->registers[value->register_];
        return !value->writes || record->kind == STATE_REGISTER || record->kind == LOCAL_REGISTER || record->written;
    }
    if (value->kind == PRODUCED_VALUE) {
        return value->place >= 0 && value->place < variant->produced_count;
    }
    return value->kind == ARENA_VALUE && value->place == 0;
}

/* The matrices of a library's product are in memory of the GPU. */
static bool
are_matrices(const Table *table, const VariantRecord *variant, const LaunchRecord *launch, const GridRecord *grid)
{
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    const ProductRecord *product = &table->products[grid->product];
    for (int64_t i = 0; i < product->operand_count; i++) {
        const int64_t place = table->operands[product->operands + i].buffer;
        if (place < kernel->buffers - (kernel->sizes > 0)
            && table->values[variant->values + table->references[launch->values + place].number].kind == SIZES_VALUE) {
            return false;
        }
    }
    return true;
}

/* What a GPU's kernel is given by value is there. */
static bool
are_numbers(const Table *table, const VariantRecord *variant, const LaunchRecord *launch)
{
    const KernelRecord *kernel = &table->kernels[launch->kernel];
    for (int64_t i = 0; kernel->grid_count && i < launch->value_count - (kernel->sizes > 0); i++) {
        const ValueRecord *value = &table->values[variant->values + table->references[launch->values + i].number];
        if (value->kind == SIZES_VALUE && value->number_count == 0) {
            return false;
        }
    }
    for (int64_t i = kernel->grids; i < kernel->grids + kernel->grid_count; i++) {
        if (table->grids[i].product >= 0 && !are_matrices(table, variant, launch, &table->grids[i])) {
            return false;
        }
    }
    if (kernel->sizes == 0) {
        return true;
    }
    const int64_t last = table->references[launch->values + launch->value_count - 1].number;
    const ValueRecord *value = &table->values[variant->values + last];
    return value->kind == SIZES_VALUE && value->number_count == kernel->sizes;
}

static const char *
wrong_launch(const Checker *checker, const VariantRecord *variant, const LaunchRecord *launch)
{
    const Table *table = checker->table;
    if (launch->value_count != table->kernels[launch->kernel].buffers) {
        return "steps: a kernel gets another number of buffers than it takes";
    }
    for (int64_t i = 0; i < launch->value_count; i++) {
        const int64_t value = table->references[launch->values + i].number;
        if (value < 0 || value >= variant->value_count) {
            return "steps: there is no such value";
        }
    }
    if (!are_numbers(table, variant, launch)) {
        return "steps: a kernel gets other sizes or numbers than it takes";
    }
    return may_evaluate(checker, variant, launch->fixed) && may_evaluate(checker, variant, launch->per_thread)
               ? NULL
               : "steps: workspace";
}

static const char *
wrong_copy(const Checker *checker, const VariantRecord *variant, const CopyRecord *copy)
{
    if (copy->to < 0 || copy->to >= variant->value_count || copy->source < 0 || copy->source >= variant->value_count) {
        return "steps: there is no such value";
    }
    return checker->table->values[variant->values + copy->to].writes == 1 && may_evaluate(checker, variant, copy->bytes)
               ? NULL
               : "steps: a copy to what is not written";
}

/* Launches and copies are named once each, in order. */
static const char *
wrong_steps(Checker *checker, const VariantRecord *variant)
{
    const Table *table = checker->table;
    for (int64_t i = 0; i < variant->step_count; i++) {
        const StepRecord *step = &table->steps[variant->steps + i];
        const char *wrong = "steps";
        if (step->kind == LAUNCH_STEP && step->place == checker->launches) {
            wrong = wrong_launch(checker, variant, &table->launches[checker->launches++]);
        }
        else if (step->kind == COPY_STEP && step->place == checker->copies) {
            wrong = wrong_copy(checker, variant, &table->copies[checker->copies++]);
        }
        if (wrong) {
            return wrong;
        }
    }
    return NULL;
}

static bool
is_returned(const Checker *checker, const VariantRecord *variant, const ReturnedRecord *returned,
            const OutputRecord *output)
{
    const bool is_view = returned->offset >= 0;
    if (returned->register_ < 0) {
        return !is_view;
    }
    const RegisterRecord *record = &checker->table->registers[returned->register_];
    if (is_view
        && (returned->rank > SMELT_MAX_RANK || returned->stride_count != returned->rank
            || !may_evaluate(checker, variant, returned->offset)
            || !are_expressions(checker, variant, returned->dims, returned->rank)
            || !are_expressions(checker, variant, returned->strides, returned->rank))) {
        return false;
    }
    return output->dtype == -1
           || (record->dtype == output->dtype && (is_view ? returned->rank : record->rank) == output->rank);
}

static const char *
wrong_next(const Checker *checker, const VariantRecord *variant)
{
    const Table *table = checker->table;
    switch (variant->next) {
    case RETURN_NEXT:
        for (int64_t i = 0; i < variant->output_count; i++) {
            if (variant->output_count != table->counts[OUTPUTS]
                || !is_returned(checker, variant, &table->returned[variant->outputs + i], &table->outputs[i])) {
                return "outputs";
            }
        }
        return variant->output_count == table->counts[OUTPUTS] ? NULL : "outputs";
    case BRANCH_NEXT:
        if (variant->register_ < 0 || variant->if_true < 0 || variant->if_false < 0) {
            return "next";
        }
        return table->registers[variant->register_].dtype == SMELT_BOOL && table->registers[variant->register_].rank == 0
                   ? NULL
                   : "register: a branch is on one bool";
    case JUMP_NEXT:
        return variant->state >= 0 ? NULL : "next";
    default:
        return variant->error >= 0 && variant->message >= 0 ? NULL : "next";
    }
}

static smelt_status
check_variants(Checker *checker)
{
    const Table *table = checker->table;
    int64_t budget = 8 * table->header->bytes + (1 << 20); /* numbers in all: variants could share long arrays */
    memset(checker->stamps, 0, sizeof(int64_t) * (size_t)table->counts[REGISTERS]);
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        const VariantRecord *variant = &table->variants[i];
        const char *wrong = wrong_symbols(checker, variant);
        wrong = wrong ? wrong : wrong_produced(checker, variant, i + 1);
        for (int64_t k = 0; !wrong && k < variant->value_count; k++) {
            const ValueRecord *value = &table->values[variant->values + k];
            budget -= value->number_count > 0 ? value->number_count : 0;
            wrong = budget >= 0 && is_value(checker, variant, value) ? NULL : "values";
        }
        wrong = wrong ? wrong : wrong_steps(checker, variant);
        wrong = wrong ? wrong : wrong_next(checker, variant);
        if (wrong) {
            return smelt_refuse(checker->error, "variants", i, wrong);
        }
    }
    return SMELT_OK;
}

/* --- states ------------------------------------------------------------------------------------------------ */

/* The states that may follow a variant; how many. */
static int
successors(const VariantRecord *variant, int64_t next[2])
{
    next[0] = variant->next == JUMP_NEXT ? variant->state : variant->if_true;
    next[1] = variant->if_false;
    return variant->next == BRANCH_NEXT ? 2 : variant->next == JUMP_NEXT ? 1 : 0;
}

/* From each state some way leads to an end: backwards from the ends, all are found. `before` lists the states that each
   state follows: those of state i are from first[i] up to first[i + 1]. */
static smelt_status
check_ends(const Checker *checker, int64_t *scratch)
{
    const Table *table = checker->table;
    const int64_t states = table->counts[STATES];
    int64_t *first = scratch, *seen = first + states + 1, *place = seen + states, *before = place + states;
    int64_t next[2];
    memset(first, 0, sizeof(int64_t) * (size_t)(2 * states + 1));
    for (int64_t i = 0; i < table->counts[VARIANTS]; i++) {
        for (int n = successors(&table->variants[i], next); n-- > 0;) {
            first[next[n] + 1]++;
        }
    }
    for (int64_t i = 0; i < states; i++) {
        first[i + 1] += first[i];
        place[i] = first[i];
    }
    for (int64_t i = 0; i < states; i++) {
        for (int64_t k = 0; k < table->states[i].variant_count; k++) {
            const int following = successors(&table->variants[table->states[i].variants + k], next);
            for (int n = following; n-- > 0;) {
                before[place[next[n]]++] = i;
            }
            seen[i] |= following == 0;
        }
    }
    int64_t count = 0, ending = 0, *waiting = place;
    for (int64_t i = 0; i < states; i++) {
        if (seen[i]) {
            waiting[count++] = i;
        }
    }
    while (count > 0) {
        const int64_t state = waiting[--count];
        ending++;
        for (int64_t i = first[state]; i < first[state + 1]; i++) {
            if (!seen[before[i]]) {
                seen[before[i]] = 1;
                waiting[count++] = before[i];
            }
        }
    }
    return ending == states ? SMELT_OK : smelt_refuse(checker->error, "states", 0, "next: no way leads to an end");
}

static smelt_status
check_states(const Checker *checker, int64_t *scratch)
{
    const Table *table = checker->table;
    if (table->counts[STATES] == 0) {
        return smelt_refuse(checker->error, "states", 0, "count: there is none");
    }
    int64_t variant = 0; /* each variant is of one state, in order */
    for (int64_t i = 0; i < table->counts[STATES]; i++) {
        if (table->states[i].variant_count == 0 || table->states[i].variants != variant) {
            return smelt_refuse(checker->error, "states", i, "variants");
        }
        variant += table->states[i].variant_count;
    }
    return variant == table->counts[VARIANTS] ? check_ends(checker, scratch)
                                              : smelt_refuse(checker->error, "states", 0, "variants");
}

/* --- the whole --------------------------------------------------------------------------------------------- */

size_t
smelt_table_scratch(const Table *table)
{
    return (size_t)(table->counts[EXPRESSIONS] + table->counts[REGISTERS] + 3 * table->counts[STATES]
                    + 2 * table->counts[VARIANTS] + 1);
}

smelt_status
smelt_table_check(const Table *table, int64_t weights, int64_t state, int64_t kernels, int64_t *scratch,
                  smelt_error *error)
{
    Checker checker = {.table = table, .weights = weights, .state = state, .needs = scratch,
                       .stamps = scratch + table->counts[EXPRESSIONS], .error = error};
    static const int of_processes[] = {DTYPES, DEVICES, NUMBERS, TENSORS, ITEMS, NATIVES, CALLS, DROPS, PROGRAMS};
    for (size_t i = 0; i < sizeof of_processes / sizeof *of_processes; i++) {
        if (table->counts[of_processes[i]]) {
            return smelt_refuse(error, "header", of_processes[i], "count: no file has such records");
        }
    }
    if (kernels != table->counts[KERNELS]) {
        return smelt_refuse(error, "kernels", 0, "count: the code has another number of them");
    }
    for (int64_t i = 0; i < kernels; i++) {
        const char *wrong = wrong_kernel(table, &table->kernels[i]);
        if (wrong) {
            return smelt_refuse(error, "kernels", i, wrong);
        }
    }
    for (int64_t i = 0; i < table->counts[EXPRESSIONS]; i++) {
        const ExpressionRecord *record = &table->expressions[i];
        if (record->code_count > MOST_CODE
            || !smelt_expression_holds(&table->instructions[record->code].op, record->code_count, &checker.needs[i])) {
            return smelt_refuse(error, "expressions", i, "code");
        }
    }
    smelt_status status = check_registers(&checker);
    status = status ? status : check_variants(&checker);
    if (!status && (checker.launches != table->counts[LAUNCHES] || checker.copies != table->counts[COPIES])) {
        status = smelt_refuse(error, "steps", 0, "count: not every launch and copy is a step");
    }
    return status ? status : check_states(&checker, checker.stamps + table->counts[REGISTERS]);
}
