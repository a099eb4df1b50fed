/* Allocates and releases pieces of a static model's memory at random, and checks that none overlaps another. */
#include "static/static.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES = 40, BYTES = 1 << 16 };

void smelt_launch(int64_t number, void **buffers, void *workspace) { (void)number, (void)buffers, (void)workspace; }

static void
check(const unsigned char *memory, size_t size, unsigned char mark)
{
    for (size_t i = 0; i < size; i++) {
        if (memory[i] != mark) {
            printf("a piece was overwritten\n");
            exit(1);
        }
    }
}

int
main(void)
{
    static _Alignas(FILE_ALIGN) char memory[BYTES + FILE_ALIGN];
    Region region = {.memory = memory, .bytes = BYTES};
    unsigned char *pieces[PIECES] = {NULL};
    size_t sizes[PIECES];
    int refused = 0;
    srand(7);
    for (int round = 0; round < 200000; round++) {
        const int i = rand() % PIECES;
        if (pieces[i]) {
            check(pieces[i], sizes[i], (unsigned char)i);
            release_piece(&region, pieces[i], sizes[i]);
            pieces[i] = NULL;
            continue;
        }
        sizes[i] = (size_t)(rand() % 6000);
        pieces[i] = allocate_piece(&region, sizes[i], FILE_ALIGN);
        if (pieces[i] == NULL) {
            refused++;
            if (region.needed <= BYTES) {
                printf("memory was refused, and %lld are enough\n", (long long)region.needed);
                return 1;
            }
            continue;
        }
        if ((uintptr_t)pieces[i] % FILE_ALIGN || (char *)pieces[i] + sizes[i] > memory + BYTES) {
            printf("a piece is outside, or not aligned\n");
            return 1;
        }
        memset(pieces[i], i, sizes[i]);
    }
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i]) {
            release_piece(&region, pieces[i], sizes[i]);
        }
    }
    void *all = allocate_piece(&region, BYTES - FILE_ALIGN, FILE_ALIGN);
    printf("%d %d\n", refused > 1000 && refused < 100000, all != NULL);
    return 0;
}
