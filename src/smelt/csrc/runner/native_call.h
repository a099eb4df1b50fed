/* Library calls without Python: an operator through PyTorch's dispatcher, boxed, or a C function that libtorch
   exports.

   The arguments of a call are encoded as numbers (torch_abi/boxed_calls.py), each argument a kind and its data:

     NONE                   nothing
     WORD    w              an integer, a bool, a dtype, or the bits of a double
     DOUBLE  w              the same bits, for a function that takes a double
     TENSOR  i              the call's tensor number i
     SOME    argument       what is optional and given
     LIST    n, arguments   n of them
     STRING  i              the call's text number i */
#ifndef SMELT_NATIVE_CALL_H
#define SMELT_NATIVE_CALL_H

#include "runner/aoti_library.h"
#include "executor/table.h"

enum { NONE_CODE, WORD_CODE, DOUBLE_CODE, TENSOR_CODE, SOME_CODE, LIST_CODE, STRING_CODE };
enum { MOST_WORDS = 8, MOST_DOUBLES = 4 }; /* of a function */

typedef struct {
    bool is_known;          /* false: the interface does not have it */
    void (*function)(void); /* NULL: by the dispatcher */
    const char *name, *overload;
    int tensor_count, code_count;
    int64_t texts, text_count; /* where in the table's references they are */
    int stack;   /* how many words the dispatcher needs: arguments or results, whichever are more */
    int returns; /* how many tensors it returns; -1: one list of them */
} NativeCall;

/* Whether the code can be read to its end: fills in `stack`. False: it is no code of such a call. */
bool native_call_fits(NativeCall *call, const int64_t *code);

/* Makes the call; `tensors` stay the caller's. By the dispatcher, `stack` holds what it returned: handles that are the
   caller's. Not 0: it did not work, and nothing was returned. Needs no GIL. */
int32_t native_call(const NativeCall *call, const int64_t *code, const Table *table, const Handle *tensors,
                    uint64_t *stack);

/* The tensors that a call returned, taken out of its stack: how many, or -1 if they are not `count`. Then none is left. */
int native_call_returned(const NativeCall *call, const uint64_t *stack, Handle *returned, int count);

#endif
