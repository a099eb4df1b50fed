/* The part of DLPack's C exchange interface (version 1) that guards use: a function that describes a tensor without
   creating a Python object. A tensor type offers it as the attribute `__dlpack_c_exchange_api__`, a capsule that lives
   as long as the process. The DLPack standard fixes the layouts. */
#ifndef SMELT_EXCHANGE_H
#define SMELT_EXCHANGE_H

#include <Python.h>
#include <stdint.h>

typedef struct {
    int32_t kind, index;
} ExchangeDevice;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} ExchangeType;

enum { EXCHANGE_INT = 0, EXCHANGE_UINT = 1, EXCHANGE_FLOAT = 2, EXCHANGE_BFLOAT = 4, EXCHANGE_BOOL = 6 };
enum { EXCHANGE_CPU = 1, EXCHANGE_CUDA = 2, EXCHANGE_ROCM = 10 };

typedef struct {
    void *data;
    ExchangeDevice device;
    int32_t rank;
    ExchangeType type;
    int64_t *shape, *stride; /* the tensor's own memory; stride in elements */
    uint64_t byte_offset;
} ExchangeTensor;

/* 0, or -1 with an exception. */
typedef int (*DescribeTensor)(void *object, ExchangeTensor *description);

typedef struct {
    uint32_t major_version, minor_version;
    void *older;
    void *allocate, *export, *import; /* functions we have no use for */
    DescribeTensor describe;          /* may be NULL */
    void *current_stream;
} ExchangeInterface;

#endif
