/* Products of small matrices: a row of the result is summed up over the depth in order, as by a BLAS kernel, so that no
   more is rounded than there. The longer side of the result is what is vectorized. */
#include "product.h"

#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((optimize("O3")))
#else
#define VECTORIZED
#endif

typedef struct {
    void *data; /* of the tensor it lies in */
    int64_t row, column, begin;
} Matrix;

typedef struct {
    int64_t rows, columns, depth;
    Matrix out, given, left, right; /* given.data NULL: there is none */
    double beta, alpha;
} Product;

bool
product_fits(const int64_t *numbers, int count, int matrices)
{
    if (count != PRODUCT_HEAD + PRODUCT_PART * matrices || matrices < 3 || matrices > 4) {
        return false;
    }
    int64_t rows = numbers[1], columns = numbers[2];
    return rows >= 0 && columns >= 0 && numbers[3] >= 0 && rows <= PRODUCT_WIDTH && columns <= PRODUCT_WIDTH;
}

#define DEFINE_PRODUCT(NAME, TYPE)                                                                                     \
    VECTORIZED static void NAME(const Product *product)                                                                \
    {                                                                                                                  \
        const int64_t columns = product->columns;                                                                      \
        const Matrix left = product->left, right = product->right, given = product->given, out = product->out;         \
        const TYPE beta = (TYPE)product->beta, alpha = (TYPE)product->alpha;                                           \
        TYPE sums[PRODUCT_WIDTH];                                                                                      \
        for (int64_t row = 0; row < product->rows; row++) {                                                            \
            for (int64_t column = 0; column < columns; column++) {                                                     \
                sums[column] = 0;                                                                                      \
            }                                                                                                          \
            for (int64_t step = 0; step < product->depth; step++) {                                                    \
                const TYPE factor = ((const TYPE *)left.data)[left.begin + row * left.row + step * left.column];       \
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
            const TYPE *before = given.data ? (const TYPE *)given.data + given.begin + row * given.row : sums;         \
            for (int64_t column = 0; column < columns; column++) {                                                     \
                TYPE sum = given.data ? alpha * sums[column] : sums[column];                                           \
                /* What is multiplied by zero is not looked at: it may be anything. */                                 \
                place[column * out.column] = given.data && beta != 0 ? sum + beta * before[column * given.column] : sum;\
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
turned(Matrix matrix)
{
    return (Matrix){.data = matrix.data, .row = matrix.column, .column = matrix.row, .begin = matrix.begin};
}

void
product_run(const int64_t *numbers, int matrices, void *const *data, const double *factors)
{
    Product product = {
        .rows = numbers[1], .columns = numbers[2], .depth = numbers[3],
        .out = matrix_at(numbers, data, 0),
        .left = matrix_at(numbers, data, matrices - 2), .right = matrix_at(numbers, data, matrices - 1),
    };
    if (matrices == 4) {
        product.given = matrix_at(numbers, data, 1);
        product.beta = factors[0];
        product.alpha = factors[1];
    }
    if (product.columns < product.rows) {
        product = (Product){
            .rows = product.columns, .columns = product.rows, .depth = product.depth,
            .out = turned(product.out), .given = turned(product.given),
            .left = turned(product.right), .right = turned(product.left),
            .beta = product.beta, .alpha = product.alpha,
        };
    }
    (numbers[0] ? product_of_doubles : product_of_floats)(&product);
}
