/* Products by cuBLASLt: opens the library, plans a product for its sizes, and computes it.

   float32 is summed in float32 and never rounded to TF32, narrower floats in float32 as well, and parts of a sum are added
   in that dtype. The library has matrices column by column: where rows of a result are contiguous, the transposed product
   is computed. */
#include "deploy/cublas.h"

#include "executor/platform/platform.h"

#include <string.h>

/* Numbers of the library's manual. */
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS_POINTER = 8, BATCH_COUNT = 5, BATCH_STRIDE = 6 };
enum { MOST_WORKSPACE = 1, REDUCTIONS = 3, ALIGNMENT_A = 5 };
enum { WITH_BIAS = 4, REDUCED_IN_COMPUTE_TYPE = 2, MOST_ALIGNMENT = 256, LEFT = 0, RIGHT, RESULT, BIAS };

#define CUBLAS_ROW(name, field, parameters) {"cublasLt" #name, offsetof(Cublas, field)},
static const struct {
    const char *name;
    size_t place;
} functions[] = {CUBLAS_FUNCTIONS(CUBLAS_ROW)};

static bool
find_functions(Cublas *cublas)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = smelt_library_function(cublas->library, functions[i].name);
        if (function == NULL) {
            return false;
        }
        memcpy((char *)cublas + functions[i].place, &function, sizeof function);
    }
    return true;
}

/* One that the process has already is taken first. */
void
smelt_cublas_open(Cublas *cublas)
{
    static const char *const names[] = {CUBLAS_NAMES};
    enum { COUNT = sizeof names / sizeof *names };
    *cublas = (Cublas){.library = NULL};
    for (int i = 0; i < 2 * COUNT && cublas->library == NULL; i++) {
        cublas->library = smelt_library_open(names[i % COUNT], i < COUNT);
    }
    if (cublas->library && (!find_functions(cublas) || cublas->create(&cublas->handle))) {
        cublas->handle = NULL;
        smelt_cublas_close(cublas);
    }
}

void
smelt_cublas_close(Cublas *cublas)
{
    if (cublas->handle) {
        cublas->destroy(cublas->handle);
    }
    if (cublas->library) {
        smelt_library_close(cublas->library);
    }
    *cublas = (Cublas){.library = NULL};
}

/* --- plans ---------------------------------------------------------------------------------------------------- */

static void
drop_plan(const Cublas *cublas, ProductPlan *plan)
{
    const CublasLayout layouts[] = {plan->a, plan->b, plan->c};
    for (int i = 0; i < 3; i++) {
        if (layouts[i]) {
            cublas->layout_destroy(layouts[i]);
        }
    }
    if (plan->matmul) {
        cublas->matmul_destroy(plan->matmul);
    }
    plan->a = plan->b = plan->c = NULL;
    plan->matmul = NULL;
}

void
smelt_cublas_drop_plans(const Cublas *cublas, const CudaDriver *driver, ProductPlans *plans, int64_t count)
{
    for (int64_t i = 0; plans->plans && i < count * PRODUCT_WAYS; i++) {
        drop_plan(cublas, &plans->plans[i / PRODUCT_WAYS][i % PRODUCT_WAYS]);
    }
    if (plans->workspace) {
        driver->release(plans->workspace);
        plans->workspace = 0;
    }
}

static int
dtype_of(int64_t dtype)
{
    return dtype == SMELT_FLOAT64 ? R_64F : dtype == SMELT_FLOAT16 ? R_16F : dtype == SMELT_BFLOAT16 ? R_16BF : R_32F;
}

/* A matrix of rows × cols as the library has it: `line` elements from column to column, or if it is transposed from row to
   row. */
typedef struct {
    int64_t rows, cols, line;
    bool is_transposed;
} Layout;

static bool
lay_out(Layout *layout, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    *layout = (Layout){rows, cols, cols == 1 ? rows : col, false};
    if ((row == 1 || rows == 1) && layout->line >= rows) {
        return true;
    }
    *layout = (Layout){cols, rows, rows == 1 ? cols : row, true};
    return (col == 1 || cols == 1) && layout->line >= cols;
}

static bool
make_layout(const Cublas *cublas, CublasLayout *created, const Layout *layout, int64_t dtype, int64_t batch, int64_t stride)
{
    if (cublas->layout_create(created, dtype_of(dtype), (uint64_t)layout->rows, (uint64_t)layout->cols, layout->line)) {
        *created = NULL;
        return false;
    }
    const int32_t count = (int32_t)batch;
    return batch == 1
           || (cublas->layout_set(*created, BATCH_COUNT, &count, sizeof count) == 0
               && cublas->layout_set(*created, BATCH_STRIDE, &stride, sizeof stride) == 0);
}

static bool
make_matmul(const Cublas *cublas, ProductPlan *plan, int64_t dtype, const Layout *a, const Layout *b, const void *bias)
{
    const bool is_double = dtype == SMELT_FLOAT64;
    const int32_t of_a = a->is_transposed, of_b = b->is_transposed;
    const uint32_t epilogue = WITH_BIAS;
    if (cublas->matmul_create(&plan->matmul, is_double ? COMPUTE_64F : COMPUTE_32F, is_double ? R_64F : R_32F)) {
        plan->matmul = NULL;
        return false;
    }
    return cublas->matmul_set(plan->matmul, TRANSPOSE_A, &of_a, sizeof of_a) == 0
           && cublas->matmul_set(plan->matmul, TRANSPOSE_B, &of_b, sizeof of_b) == 0
           && (bias == NULL
               || (cublas->matmul_set(plan->matmul, EPILOGUE, &epilogue, sizeof epilogue) == 0
                   && cublas->matmul_set(plan->matmul, BIAS_POINTER, &bias, sizeof bias) == 0));
}

/* The algorithm that the library takes for the fastest. */
static bool
choose(const Cublas *cublas, ProductPlan *plan, uint64_t most)
{
    const int64_t *aligned = plan->numbers.alignments;
    const int64_t of[] = {aligned[plan->swapped ? RIGHT : LEFT], aligned[plan->swapped ? LEFT : RIGHT], aligned[RESULT],
                          aligned[RESULT]};
    const uint32_t reductions = REDUCED_IN_COMPUTE_TYPE;
    CublasPreference preference;
    CublasChoice choice = {.workspace = 0};
    int choices = 0;
    if (cublas->preference_create(&preference)) {
        return false;
    }
    bool works = cublas->preference_set(preference, MOST_WORKSPACE, &most, sizeof most) == 0
                 && cublas->preference_set(preference, REDUCTIONS, &reductions, sizeof reductions) == 0;
    for (int i = 0; works && i < 4; i++) {
        const uint32_t bytes = (uint32_t)of[i];
        works = cublas->preference_set(preference, ALIGNMENT_A + i, &bytes, sizeof bytes) == 0;
    }
    works = works
            && cublas->choose(cublas->handle, plan->matmul, plan->a, plan->b, plan->c, plan->c, preference, 1, &choice,
                              &choices) == 0
            && choices == 1 && choice.state == 0 && choice.workspace <= most;
    cublas->preference_destroy(preference);
    plan->algorithm = choice.algorithm;
    plan->workspace = choice.workspace;
    return works;
}

static bool
make_plan(const Cublas *cublas, ProductPlan *plan, const OperandRecord *operands, const void *bias, uint64_t most)
{
    const ProductNumbers *p = &plan->numbers;
    const int64_t dtype = operands[LEFT].dtype;
    Layout a, b, c;
    plan->swapped = lay_out(&c, p->cols, p->rows, p->strides[RESULT].col, p->strides[RESULT].row) && !c.is_transposed;
    if (!plan->swapped
        && (bias || !lay_out(&c, p->rows, p->cols, p->strides[RESULT].row, p->strides[RESULT].col) || c.is_transposed)) {
        return false;
    }
    const int first = plan->swapped ? RIGHT : LEFT, second = plan->swapped ? LEFT : RIGHT;
    const bool fit = plan->swapped ? lay_out(&a, p->cols, p->terms, p->strides[RIGHT].col, p->strides[RIGHT].row)
                                         && lay_out(&b, p->terms, p->rows, p->strides[LEFT].col, p->strides[LEFT].row)
                                   : lay_out(&a, p->rows, p->terms, p->strides[LEFT].row, p->strides[LEFT].col)
                                         && lay_out(&b, p->terms, p->cols, p->strides[RIGHT].row, p->strides[RIGHT].col);
    return fit && make_layout(cublas, &plan->a, &a, dtype, p->batch, p->strides[first].batch)
           && make_layout(cublas, &plan->b, &b, dtype, p->batch, p->strides[second].batch)
           && make_layout(cublas, &plan->c, &c, operands[RESULT].dtype, p->batch, p->strides[RESULT].batch)
           && make_matmul(cublas, plan, dtype, &a, &b, bias) && choose(cublas, plan, most);
}

/* --- products --------------------------------------------------------------------------------------------------- */

static int64_t
resolve(int64_t number, const int64_t *sizes)
{
    return number < 0 ? sizes[~number] : number;
}

static int64_t
alignment_of(uint64_t address)
{
    const uint64_t lowest = address & -address;
    return lowest == 0 || lowest > MOST_ALIGNMENT ? MOST_ALIGNMENT : (int64_t)lowest;
}

/* False: what no library computes, such as nothing. */
static bool
read_numbers(ProductNumbers *numbers, const ProductRecord *product, const OperandRecord *operands,
             const ProductLaunch *launch, char **addresses)
{
    const int64_t *sizes = launch->sizes;
    const int64_t extents[] = {product->rows, product->cols, product->terms, product->batch, product->outer};
    int64_t counts[5];
    for (int i = 0; i < 5; i++) {
        counts[i] = resolve(extents[i], sizes);
        if (counts[i] < 1 || counts[i] > INT32_MAX) {
            return false;
        }
    }
    *numbers = (ProductNumbers){counts[0], counts[1], counts[2], counts[3], counts[4], {{0}}, {0}};
    for (int64_t i = 0; i < product->operand_count; i++) {
        const OperandRecord *operand = &operands[i];
        const int64_t steps[] = {operand->row, operand->col, operand->batch, operand->outer, operand->offset};
        int64_t places[5];
        for (int k = 0; k < 5; k++) {
            places[k] = resolve(steps[k], sizes);
            if (places[k] < 0 || places[k] > MOST_BYTES / 16) {
                return false;
            }
        }
        if (places[3] && counts[4] > MOST_BYTES / 16 / places[3]) {
            return false;
        }
        void *memory = operand->buffer < launch->count ? launch->buffers[operand->buffer] : launch->workspace;
        addresses[i] = (char *)memory + places[4];
        const uint64_t apart = (uint64_t)(places[3] * table_item_size(operand->dtype));
        numbers->alignments[i] = alignment_of((uint64_t)(uintptr_t)addresses[i] | apart);
        if (i < BIAS) {
            memcpy(&numbers->strides[i], places, sizeof numbers->strides[i]);
        }
    }
    return true;
}

static ProductPlan *
find_plan(const Cublas *cublas, const CudaDriver *driver, ProductPlans *plans, int64_t product,
          const ProductNumbers *numbers, const OperandRecord *operands, const void *bias)
{
    ProductPlan *ways = plans->plans[product];
    for (int i = 0; i < PRODUCT_WAYS; i++) {
        if (memcmp(&ways[i].numbers, numbers, sizeof *numbers) == 0) {
            return &ways[i];
        }
    }
    if (plans->workspace == 0 && driver->allocate(&plans->workspace, PRODUCT_WORKSPACE_BYTES)) {
        plans->workspace = 0;
    }
    ProductPlan *plan = &ways[plans->next[product]++ % PRODUCT_WAYS];
    drop_plan(cublas, plan);
    *plan = (ProductPlan){.numbers = *numbers};
    if (!make_plan(cublas, plan, operands, bias, plans->workspace ? PRODUCT_WORKSPACE_BYTES : 0)) {
        drop_plan(cublas, plan);
    }
    return plan;
}

bool
smelt_cublas_multiply(const Cublas *cublas, const CudaDriver *driver, ProductPlans *plans, const Table *table,
                      int64_t product, const ProductLaunch *launch)
{
    const ProductRecord *record = &table->products[product];
    const OperandRecord *operands = &table->operands[record->operands];
    ProductNumbers numbers;
    char *at[BIAS + 1] = {NULL};
    if (!read_numbers(&numbers, record, operands, launch, at)) {
        return false;
    }
    const ProductPlan *plan = find_plan(cublas, driver, plans, product, &numbers, operands, at[BIAS]);
    if (plan->matmul == NULL || (at[BIAS] && cublas->matmul_set(plan->matmul, BIAS_POINTER, &at[BIAS], sizeof(void *)))) {
        return false;
    }
    const float one = 1, zero = 0;
    const double one_wide = 1, zero_wide = 0;
    const bool is_double = operands[LEFT].dtype == SMELT_FLOAT64;
    const int first = plan->swapped ? RIGHT : LEFT, second = plan->swapped ? LEFT : RIGHT;
    for (int64_t i = 0; i < numbers.outer; i++) {
        char *each[RESULT + 1];
        for (int k = 0; k <= RESULT; k++) {
            each[k] = at[k] + i * numbers.strides[k].outer * table_item_size(operands[k].dtype);
        }
        if (cublas->multiply(cublas->handle, plan->matmul, is_double ? (const void *)&one_wide : &one, each[first], plan->a,
                             each[second], plan->b, is_double ? (const void *)&zero_wide : &zero, each[RESULT], plan->c,
                             each[RESULT], plan->c, &plan->algorithm, (void *)(uintptr_t)plans->workspace, plan->workspace,
                             launch->stream)) {
            return false;
        }
    }
    return true;
}
