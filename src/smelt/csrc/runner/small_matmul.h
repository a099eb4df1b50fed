/* Products of small matrices, for which a call into a library costs more than the work (runner/small_matmul.c). */
#ifndef SMELT_PRODUCT_H
#define SMELT_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers describe a product: whether elements are doubles (else floats), rows, columns and depth; then per matrix the
   strides of its rows and columns and where it begins, in elements. */
enum { PRODUCT_HEAD = 4, PRODUCT_PART = 3, PRODUCT_WIDTH = 1024, PRODUCT_MATRICES = 4 };

/* Whether so many numbers describe a product of three matrices, out = left @ right, or of four, out = beta * given +
   alpha * left @ right, with no more rows or columns than PRODUCT_WIDTH. */
bool product_fits(const int64_t *numbers, int64_t count, int64_t matrices);

/* `data`: where the tensors lie, in the order of the matrices. */
void product_run(const int64_t *numbers, int matrices, void *const *data, double beta, double alpha);

#endif
