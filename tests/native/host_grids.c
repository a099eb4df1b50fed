/* Phases of grids for the host, as generated code would be: a warp is eight lanes wide. */
#include <stdint.h>
#include <string.h>

enum { WARP = 8 };

void (*barrier)(void);
int64_t calls[4096][2];
int64_t call_count;

/* Notes who was called. */
void
note(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)buffers, (void)workspace, (void)shared;
    calls[call_count][0] = block;
    calls[call_count++][1] = warp;
}

/* out[block * n + i] = in[block * n + (n - 1 - i)], through shared memory; n = 4 warps. */
void
reverse(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    const float *in = buffers[0];
    float *out = buffers[1], *tile = shared;
    int64_t n = 4 * WARP;
    for (int64_t lane = 0; lane < WARP; lane++) {
        tile[warp * WARP + lane] = in[block * n + warp * WARP + lane];
    }
    barrier();
    for (int64_t lane = 0; lane < WARP; lane++) {
        out[block * n + warp * WARP + lane] = tile[n - 1 - (warp * WARP + lane)];
    }
}

/* The same without the barrier. */
void
reverse_wrong(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    const float *in = buffers[0];
    float *out = buffers[1], *tile = shared;
    int64_t n = 4 * WARP;
    for (int64_t lane = 0; lane < WARP; lane++) {
        tile[warp * WARP + lane] = in[block * n + warp * WARP + lane];
    }
    for (int64_t lane = 0; lane < WARP; lane++) {
        out[block * n + warp * WARP + lane] = tile[n - 1 - (warp * WARP + lane)];
    }
}

/* Many barriers: a tree over warps in shared memory; the block's sum goes to the workspace. */
void
sum_blocks(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    const int64_t *sizes = buffers[2];
    const float *in = buffers[0];
    float *partial = shared, sum = 0;
    for (int64_t i = warp; i < sizes[0]; i += 4) {
        sum += in[block * sizes[0] + i];
    }
    partial[warp] = sum;
    for (int64_t half = 2; half; half /= 2) {
        barrier();
        if (warp < half) {
            partial[warp] += partial[warp + half];
        }
    }
    if (warp == 0) {
        ((float *)workspace)[block] = partial[0];
    }
}

void
sum_workspace(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    const int64_t *sizes = buffers[2];
    float *out = buffers[1], sum = 0;
    (void)block, (void)warp, (void)shared;
    for (int64_t i = 0; i < sizes[1]; i++) {
        sum += ((const float *)workspace)[i];
    }
    out[0] = sum;
}

/* Warp 1 ends early, the others wait. */
void
diverge(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)buffers, (void)workspace, (void)block, (void)shared;
    if (warp != 1) {
        barrier();
    }
}

/* One more barrier than the others. */
void
wait_twice(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)buffers, (void)workspace, (void)block, (void)shared;
    barrier();
    if (warp == 2) {
        barrier();
    }
}

void
overrun(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)buffers, (void)workspace, (void)block, (void)warp;
    ((char *)shared)[17] = 1;
}

/* Copies what it finds in shared memory and in the workspace. */
void
look(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)block, (void)warp;
    memcpy(buffers[0], shared, 16);
    memcpy((char *)buffers[0] + 16, workspace, 16);
    memset(shared, 0, 16);
    memset(workspace, 0, 16);
}

/* Uses a good part of its stack at each barrier. */
static int64_t
deep(int64_t left, volatile char *above)
{
    volatile char room[1024];
    memset((void *)room, (int)left, sizeof room);
    if (left == 0) {
        barrier();
        return above[0];
    }
    return deep(left - 1, room) + room[512];
}

void
recurse(void **buffers, void *workspace, int64_t block, int64_t warp, void *shared)
{
    (void)workspace, (void)block, (void)shared;
    volatile char first = 1;
    ((int64_t *)buffers[0])[warp] = deep(100, &first);
}
