/* Which programs can become CUDA graphs, and what the table says of their values. */
#include "gpu/replay_plan.h"

#include "gpu/grid.h"
#include "gpu/grid_launcher.h"

enum { FEW_BYTES = 64 << 20, LARGE_PART = 8 }; /* see is_much */
enum { FEW_STEPS = 3 };

/* From the first byte of a value to its last; -1 where that is not known (ir/tensorspec.py, WORKSPACE). */
static int64_t
extent(const Runner *program, int64_t value)
{
    const TensorRecord *tensor = &program->table.tensors[value];
    const int64_t *sizes = &program->table.numbers->number + tensor->numbers, *strides = sizes + tensor->rank;
    const int64_t element = (int64_t)library.element_size((int32_t)program->table.dtypes[tensor->dtype].code);
    int64_t last = 0;
    if (tensor->rank == 3 && sizes[0] == 0 && sizes[1] == 0 && sizes[2] == 0) {
        return -1;
    }
    for (int64_t i = 0; i < tensor->rank; i++) {
        if (sizes[i] <= 0) {
            return 0;
        }
        last += (sizes[i] - 1) * strides[i];
    }
    return (last + 1) * element;
}

bool
is_host_call(const Table *table, const CallRecord *call)
{
    return strncmp(table_string(table, call->name), "smelt::philox_state", strlen("smelt::philox_state")) == 0;
}

/* Calls a function for every tensor among the items, until one returns something else than NULL: that. */
typedef const char *(*ForValue)(void *of, int64_t value);

static const char *
for_values(const Table *table, int64_t first, int64_t count, ForValue function, void *of)
{
    const char *answer = NULL;
    for (int64_t i = first; answer == NULL && i < first + count; i++) {
        const ItemRecord *item = &table->items[i];
        if (item->kind == VALUE_ITEM) {
            answer = function(of, item->what);
        }
        else if (item->kind == TUPLE_ITEM || item->kind == LIST_ITEM) {
            answer = for_values(table, item->what, item->length, function, of);
        }
    }
    return answer;
}

static const char *
why_not_argument(void *of, int64_t value)
{
    const Table *table = of;
    return is_on_gpu(table, value) ? NULL : "a library call uses tensors of the host";
}

static const char *
why_not_host_argument(void *of, int64_t value)
{
    const Table *table = of;
    const int64_t constants = table->programs->inputs + table->programs->constants;
    return value < constants ? NULL : "dropout depends on where the program has its memory";
}

static const char *
why_no_call(const Table *table, const CallRecord *call)
{
    const bool is_host = is_host_call(table, call);
    if (call->unless >= 0) {
        return "it raises by what it computes";
    }
    if (draws_unread(call)) {
        return NULL;
    }
    if (call->draws && !is_host) {
        return "a library call draws random numbers";
    }
    if (!is_host && strncmp(table_string(table, call->name), "aten::", strlen("aten::"))) {
        return "an operator that is not PyTorch's may do more than compute";
    }
    for (int64_t k = 0; !is_host && k < call->result_count; k++) {
        const int64_t value = table->references[call->results + k].number;
        if (value >= 0 && !is_on_gpu(table, value)) {
            return "a library call returns tensors of the host";
        }
    }
    return for_values(table, call->arguments, call->argument_count, is_host ? why_not_host_argument : why_not_argument,
                      (void *)(uintptr_t)table);
}

static const char *
why_no_launch(const Runner *program, const LaunchRecord *launch)
{
    const Table *table = &program->table;
    const AnyLauncher *launcher = launcher_at(program, launch);
    if (launcher == NULL || Py_TYPE(launcher) != &GridLauncherType || ((const GridLauncher *)launcher)->support == NULL) {
        return "it has kernels for the host";
    }
    const bool has_sizes = ((const GridLauncher *)launcher)->size_count > 0;
    const int64_t last = table->references[launch->values + launch->value_count - 1].number;
    return has_sizes && last < table->programs->inputs ? "its sizes come with each call" : NULL;
}

const char *
why_no_graph(const Runner *program)
{
    const Table *table = &program->table;
    int64_t work = 0, device = -2;
    for (int64_t i = 0; i < table->counts[TENSORS]; i++) {
        const DeviceRecord *on = &table->devices[table->tensors[i].device];
        if (on->kind == CUDA_KIND && device != -2 && device != on->number) {
            return "it uses several GPUs";
        }
        device = on->kind == CUDA_KIND ? on->number : device;
    }
    if (device == -2 || library.element_size == NULL || library.device_index == NULL) {
        return "it uses no GPU";
    }
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        const char *why = NULL;
        work += step->kind == LAUNCH_STEP || step->kind == CALL_STEP;
        if (step->kind == ALLOCATE_STEP && !is_on_gpu(table, step->place)) {
            why = "it has tensors of the host";
        }
        if (step->kind == LAUNCH_STEP) {
            why = why_no_launch(program, &table->launches[step->place]);
        }
        if (step->kind == CALL_STEP) {
            why = why_no_call(table, &table->calls[step->place]);
        }
        if (why) {
            return why;
        }
    }
    return work < FEW_STEPS ? "it has few steps" : NULL;
}

static const char *
mark(void *of, int64_t value)
{
    ((bool *)of)[value] = true;
    return NULL;
}

bool
fill(Replay *replay, const Runner *program)
{
    const Table *table = &program->table;
    const ProgramRecord *counts = table->programs;
    const int64_t count = replay->value_count, first_arena = count - counts->arena;
    bool *leaves = replay->is_outside; /* at first */
    for_values(table, counts->output, 1, mark, leaves);
    for (int64_t i = counts->inputs + counts->constants; i < first_arena; i++) {
        if (leaves[i] && is_on_gpu(table, i)) {
            replay->results[replay->result_count++] =
                (Result){.value = i, .bytes = extent(program, i), .is_library = true};
        }
    }
    for (int64_t i = 0; i < count; i++) {
        replay->is_outside[i] = i < counts->inputs + counts->constants || i >= first_arena;
    }
    for (int64_t i = 0; i < table->counts[STEPS]; i++) {
        const StepRecord *step = &table->steps[i];
        for (int64_t k = 0; step->kind == ALLOCATE_STEP && k < replay->result_count; k++) {
            Result *result = &replay->results[k];
            result->is_library = result->is_library && result->value != step->place;
            replay->is_outside[step->place] = replay->is_outside[step->place] || result->value == step->place;
        }
        const CallRecord *call = step->kind == CALL_STEP ? &table->calls[step->place] : NULL;
        if (call) {
            for_values(table, call->arguments, call->argument_count, mark, replay->is_used);
        }
        for (int64_t k = 0; call && is_host_call(table, call) && k < call->result_count; k++) {
            const int64_t value = table->references[call->results + k].number;
            if (value >= 0) {
                replay->is_asked[value] = replay->is_outside[value] = true;
            }
        }
    }
    bool is_known = true;
    for (int64_t k = 0; k < replay->result_count; k++) {
        const Result *result = &replay->results[k];
        replay->is_result[result->value] = !result->is_library && replay->is_used[result->value];
        is_known = is_known && result->bytes >= 0;
    }
    return is_known;
}

static bool
is_much(int64_t bytes, int64_t all)
{
    return bytes > FEW_BYTES && bytes > all / LARGE_PART;
}

const char *
why_too_large(const Replay *replay, const Runner *program)
{
    int64_t copied = 0, returned = 0, dropped = 0;
    for (int64_t i = 0; i < replay->result_count; i++) {
        returned += replay->results[i].bytes;
        copied += replay->results[i].is_library ? replay->results[i].bytes : 0;
    }
    for (int64_t i = 0; program->consumed && i < program->table.programs->inputs; i++) {
        const int64_t bytes = program->consumed[i] && is_on_gpu(&program->table, i) ? extent(program, i) : 0;
        dropped += bytes > 0 ? bytes : 0;
    }
    const int64_t overlap = returned < dropped ? returned : dropped;
    return is_much(copied, returned)               ? "library calls return much that would be copied"
           : is_much(overlap, returned + dropped) ? "its results and the inputs that it frees would take memory together"
                                                  : NULL;
}
