/* Products of small matrices. Each row of the result is summed over the depth in order, in doubles, where products of
   floats are exact: no library's order of summing, fused or not, is more accurate. The longer side of the result is
   vectorized. */
#include "runner/small_matmul.h"

#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((optimize("O3", "fp-contract=fast"))) /* -std=c11 contracts nothing by itself */
#else
#define VECTORIZED
#endif

typedef struct {
    void *data; /* of the tensor it lies in */
    int64_t row, column, begin;
} Matrix;

typedef struct {
    int64_t rows, columns, depth;
    Matrix out, addend, left, right; /* addend.data NULL: there is none */
    double beta, alpha;
} Product;

bool
product_fits(const int64_t *numbers, int64_t count, int64_t matrices)
{
    if (count != PRODUCT_HEAD + PRODUCT_PART * matrices || matrices < 3 || matrices > PRODUCT_MATRICES) {
        return false;
    }
    int64_t rows = numbers[1], columns = numbers[2];
    return rows >= 0 && columns >= 0 && numbers[3] >= 0 && rows <= PRODUCT_WIDTH && columns <= PRODUCT_WIDTH;
}

#define DEFINE_PRODUCT(NAME, TYPE)                                                                                     \
    VECTORIZED static void NAME(const Product *product)                                                                \
    {                                                                                                                  \
        const int64_t columns = product->columns;                                                                      \
        const Matrix left = product->left, right = product->right, addend = product->addend, out = product->out;       \
        const double beta = (TYPE)product->beta, alpha = (TYPE)product->alpha;                                         \
        /* What is multiplied by zero is not looked at, neither this nor what is given: it may be anything. */         \
        const int64_t depth = addend.data && alpha == 0 ? 0 : product->depth;                                          \
        double sums[PRODUCT_WIDTH];                                                                                    \
        for (int64_t row = 0; row < product->rows; row++) {                                                            \
            for (int64_t column = 0; column < columns; column++) {                                                     \
                sums[column] = 0;                                                                                      \
            }                                                                                                          \
            for (int64_t step = 0; step < depth; step++) {                                                             \
                const double factor = ((const TYPE *)left.data)[left.begin + row * left.row + step * left.column];     \
                const TYPE *line = (const TYPE *)right.data + right.begin + step * right.row;                          \
                if (right.column == 1) {                                                                               \
                    for (int64_t column = 0; column < columns; column++) {                                             \
                        sums[column] += factor * line[column];                                                         \
                    }                                                                                                  \
                }                                                                                                      \
                else {                                                                                                 \
                    for (int64_t column = 0; column < columns; column++) {                                             \
                        sums[column] += factor * line[column * right.column];                                          \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            TYPE *place = (TYPE *)out.data + out.begin + row * out.row;                                                \
            const TYPE *before = (const TYPE *)addend.data + addend.begin + row * addend.row;                          \
            for (int64_t column = 0; column < columns; column++) {                                                     \
                double sum = addend.data ? alpha * sums[column] : sums[column];                                        \
                if (addend.data && beta != 0) {                                                                        \
                    sum += beta * before[column * addend.column];                                                      \
                }                                                                                                      \
                place[column * out.column] = (TYPE)sum;                                                                \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_PRODUCT(product_of_floats, float)
DEFINE_PRODUCT(product_of_doubles, double)

static Matrix
matrix_at(const int64_t *numbers, void *const *data, int place)
{
    const int64_t *part = numbers + PRODUCT_HEAD + PRODUCT_PART * place;
    return (Matrix){.data = data[place], .row = part[0], .column = part[1], .begin = part[2]};
}

static Matrix
transposed(Matrix matrix)
{
    return (Matrix){.data = matrix.data, .row = matrix.column, .column = matrix.row, .begin = matrix.begin};
}

void
product_run(const int64_t *numbers, int matrices, void *const *data, double beta, double alpha)
{
    Product product = {
        .rows = numbers[1], .columns = numbers[2], .depth = numbers[3],
        .out = matrix_at(numbers, data, 0),
        .left = matrix_at(numbers, data, matrices - 2), .right = matrix_at(numbers, data, matrices - 1),
    };
    if (matrices == 4) {
        product.addend = matrix_at(numbers, data, 1);
        product.beta = beta;
        product.alpha = alpha;
    }
    if (product.columns < product.rows) {
        product = (Product){
            .rows = product.columns, .columns = product.rows, .depth = product.depth,
            .out = transposed(product.out), .addend = transposed(product.addend),
            .left = transposed(product.right), .right = transposed(product.left),
            .beta = product.beta, .alpha = product.alpha,
        };
    }
    (numbers[0] ? product_of_doubles : product_of_floats)(&product);
}
