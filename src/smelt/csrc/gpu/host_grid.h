/* Grids run by the host, one warp at a time, for machines without a GPU. Nothing here needs Python. */
#ifndef SMELT_HOST_GRID_H
#define SMELT_HOST_GRID_H

#include "executor/table.h"

typedef void (*WarpFunction)(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared);

/* One phase of a kernel: its grid, and what the host runs for each of its warps. */
typedef struct {
    GridRecord grid;
    WarpFunction function;
    bool has_barriers;
    bool overlaps; /* it waits for earlier launches by itself */
} GridPhase;

/* Why a launch did not work. */
enum { GRID_MEMORY = 1, GRID_BLOCKS, GRID_DIVERGED, GRID_STRAY_BARRIER, GRID_OVERRUN, GRID_PYTHON, GRID_DRIVER, GRID_UNALIGNED };

/* All blocks of a phase, whose warps are so many threads. 0, or one of the faults up to GRID_OVERRUN. */
int host_grid_run(const GridPhase *phase, unsigned warp, int64_t blocks, void **buffers, void *workspace);

/* What generated code calls as `smelt_simt_barrier`. */
void host_grid_barrier(void);

/* What is not written yet is filled with ones, so that it shows. */
void host_grid_fill(void *memory, size_t bytes);

/* "forward", "reverse" or "shuffled". False: there is no such order. While no grid runs. */
bool host_grid_set_order(const char *name, uint64_t seed);

#endif
