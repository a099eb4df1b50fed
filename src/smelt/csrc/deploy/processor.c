/* What this processor is and can do, in the names of layout.FEATURES. */
#define _GNU_SOURCE
#include "deploy/processor.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const x86_names[] = {
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt",
    "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16",
    "avxvnni", "avx512vbmi", "avx512vbmi2", "avx512ifma", "avx512bitalg", "avx512vpopcntdq", "gfni", "vaes",
    "vpclmulqdq", "aes", "pclmul", NULL,
};
static const char *const aarch64_names[] = {
    "crc", "lse", "rdm", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve", "sve2", "rcpc", "jsconv", "complxnum",
    "aes", "sha2", "sha3", "flagm", NULL,
};
static const char *const riscv_names[] = {"v", "zba", "zbb", "zbs", "zfh", "zvfh", NULL};
static const char *const no_names[] = {NULL};

const char *const *
smelt_feature_names(Machine machine)
{
    static const char *const *const names[] = {no_names, x86_names, aarch64_names, riscv_names, no_names};
    return names[machine];
}

const char *
smelt_machine_name(Machine machine)
{
    static const char *const names[] = {"any", "x86-64", "aarch64", "riscv64", "cuda"};
    return names[machine];
}

#if defined(__x86_64__)

/* Which of four words of cpuid a feature is in: of leaf 1 (ecx), 7 (ebx, ecx, edx), 0x80000001 (ecx), 7.1 (eax). */
enum { LEAF1_C, LEAF7_B, LEAF7_C, LEAF7_D, EXTENDED_C, LEAF71_A, WORD_COUNT };
enum { PLAIN, NEEDS_YMM, NEEDS_ZMM };

static const struct {
    uint8_t word, bit, needs;
} x86_bits[] = {
    {LEAF1_C, 0, PLAIN}, {LEAF1_C, 9, PLAIN}, {LEAF1_C, 19, PLAIN}, {LEAF1_C, 20, PLAIN}, {LEAF1_C, 23, PLAIN},
    {LEAF1_C, 13, PLAIN}, {EXTENDED_C, 0, PLAIN}, {LEAF1_C, 28, NEEDS_YMM}, {LEAF7_B, 5, NEEDS_YMM},
    {LEAF7_B, 3, PLAIN}, {LEAF7_B, 8, PLAIN}, {LEAF1_C, 29, NEEDS_YMM}, {LEAF1_C, 12, NEEDS_YMM},
    {EXTENDED_C, 5, PLAIN}, {LEAF1_C, 22, PLAIN}, {LEAF7_B, 16, NEEDS_ZMM}, {LEAF7_B, 30, NEEDS_ZMM},
    {LEAF7_B, 28, NEEDS_ZMM}, {LEAF7_B, 17, NEEDS_ZMM}, {LEAF7_B, 31, NEEDS_ZMM}, {LEAF7_C, 11, NEEDS_ZMM},
    {LEAF71_A, 5, NEEDS_ZMM}, {LEAF7_D, 23, NEEDS_ZMM}, {LEAF71_A, 4, NEEDS_YMM}, {LEAF7_C, 1, NEEDS_ZMM},
    {LEAF7_C, 6, NEEDS_ZMM}, {LEAF7_B, 21, NEEDS_ZMM}, {LEAF7_C, 12, NEEDS_ZMM}, {LEAF7_C, 14, NEEDS_ZMM},
    {LEAF7_C, 8, PLAIN}, {LEAF7_C, 9, NEEDS_YMM}, {LEAF7_C, 10, NEEDS_YMM}, {LEAF1_C, 25, PLAIN}, {LEAF1_C, 1, PLAIN},
};

/* Which registers the system saves: the lower bits of XCR0. */
static unsigned
saved_registers(unsigned leaf1_c)
{
    unsigned low = 0, high = 0;
    if (leaf1_c & 1u << 27) {
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    }
    return low;
}

Machine
smelt_processor(uint64_t *features)
{
    unsigned words[WORD_COUNT] = {0}, unused, most, rest[4];
    __get_cpuid(1, &unused, &rest[0], &words[LEAF1_C], &rest[1]);
    if (__get_cpuid_count(7, 0, &most, &words[LEAF7_B], &words[LEAF7_C], &words[LEAF7_D]) && most >= 1) {
        __get_cpuid_count(7, 1, &words[LEAF71_A], &rest[0], &rest[1], &rest[2]);
    }
    __get_cpuid(0x80000001, &unused, &rest[0], &words[EXTENDED_C], &rest[1]);
    const unsigned saved = saved_registers(words[LEAF1_C]);
    const bool held[] = {[PLAIN] = true, [NEEDS_YMM] = (saved & 0x6) == 0x6, [NEEDS_ZMM] = (saved & 0xe6) == 0xe6};
    *features = 0;
    for (size_t i = 0; i < sizeof x86_bits / sizeof *x86_bits; i++) {
        if (words[x86_bits[i].word] >> x86_bits[i].bit & 1 && held[x86_bits[i].needs]) {
            *features |= UINT64_C(1) << i;
        }
    }
    return X86_64_MACHINE;
}

#elif defined(__aarch64__)

Machine
smelt_processor(uint64_t *features)
{
    *features = 0;
#if defined(__linux__)
    /* Bits of AT_HWCAP, or from 64 on of AT_HWCAP2, as the kernel's documentation lists them. A feature may be several. */
    static const int8_t bits[][3] = {
        {7, -1, -1}, {8, -1, -1}, {12, -1, -1}, {9, 10, -1}, {23, -1, -1}, {20, -1, -1}, {64 + 14, -1, -1},
        {64 + 13, -1, -1}, {22, -1, -1}, {64 + 1, -1, -1}, {15, -1, -1}, {13, -1, -1}, {14, -1, -1}, {3, 4, -1},
        {6, -1, -1}, {17, 21, -1}, {27, -1, -1},
    };
    const unsigned long words[] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        bool all = true;
        for (int k = 0; k < 3 && bits[i][k] >= 0; k++) {
            all = all && words[bits[i][k] / 64] >> bits[i][k] % 64 & 1;
        }
        *features |= (uint64_t)all << i;
    }
#endif
    return AARCH64_MACHINE;
}

#elif defined(__riscv) && __riscv_xlen == 64

Machine
smelt_processor(uint64_t *features)
{
    *features = 0;
#if defined(__linux__)
    *features |= getauxval(AT_HWCAP) >> ('v' - 'a') & 1;
    /* riscv_hwprobe, number 258: key 4 asks for extensions. An older kernel does not have it: nothing more is known. */
    struct { int64_t key; uint64_t value; } pair = {4, 0};
    if (syscall(258, &pair, (size_t)1, (size_t)0, NULL, 0u) == 0 && pair.key == 4) {
        static const int8_t bits[] = {3, 4, 5, 27, 30}; /* zba, zbb, zbs, zfh, zvfh */
        for (size_t i = 0; i < sizeof bits; i++) {
            *features |= (pair.value >> bits[i] & 1) << (i + 1);
        }
    }
#endif
    return RISCV64_MACHINE;
}

#else

Machine
smelt_processor(uint64_t *features)
{
    *features = 0;
    return ANY_MACHINE;
}

#endif
