/* Makes library calls without Python: decodes arguments and puts them where the callee expects them. */
#include "runner/native_call.h"

#include <string.h>

/* --- checking ----------------------------------------------------------------------------------- */

typedef struct {
    const int64_t *next, *end;
    int64_t texts;
} Reader;

static bool
read_word(Reader *reader, int64_t *word)
{
    if (reader->next == reader->end) {
        return false;
    }
    *word = *reader->next++;
    return true;
}

static bool
is_argument(const NativeCall *call, Reader *reader, int depth)
{
    int64_t kind, word;
    if (depth > 4 || !read_word(reader, &kind)) {
        return false;
    }
    switch (kind) {
    case NONE_CODE:
        return true;
    case WORD_CODE:
    case DOUBLE_CODE:
        return read_word(reader, &word);
    case TENSOR_CODE:
        return read_word(reader, &word) && word >= 0 && word < call->tensor_count;
    case STRING_CODE:
        return read_word(reader, &word) && word >= 0 && word < reader->texts;
    case SOME_CODE:
        return is_argument(call, reader, depth + 1);
    case LIST_CODE:
        if (!read_word(reader, &word) || word < 0) {
            return false;
        }
        for (; word > 0; word--) {
            if (!is_argument(call, reader, depth + 1)) {
                return false;
            }
        }
        return true;
    default:
        return false;
    }
}

bool
native_call_fits(NativeCall *call, const int64_t *code)
{
    Reader reader = {code, code + call->code_count, call->text_count};
    int arguments = 0, doubles = 0;
    while (reader.next != reader.end) {
        int64_t kind = *reader.next;
        bool is_plain = kind == WORD_CODE || kind == DOUBLE_CODE || kind == TENSOR_CODE;
        if ((call->function && !is_plain) || (!call->function && kind == DOUBLE_CODE)
            || !is_argument(call, &reader, 0)) {
            return false;
        }
        arguments++;
        doubles += kind == DOUBLE_CODE;
    }
    call->stack = arguments > call->returns ? arguments : call->returns;
    call->stack = call->stack > 0 ? call->stack : 1;
    return call->function == NULL || (arguments - doubles <= MOST_WORDS && doubles <= MOST_DOUBLES);
}

/* --- by a function ------------------------------------------------------------------------------ */

/* Where the functions that libtorch exports are called from, integers and pointers have registers of their own, and so
   have doubles (System V on x86-64, AAPCS64): a function finds its arguments whatever comes after the last of either. */
typedef int32_t (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double,
                            double, double, double);

static int32_t
call_function(const NativeCall *call, const int64_t *code, const Handle *tensors)
{
    uint64_t words[MOST_WORDS] = {0};
    double doubles[MOST_DOUBLES] = {0};
    int word_count = 0, double_count = 0;
    for (int i = 0; i < call->code_count; i += 2) {
        if (code[i] == DOUBLE_CODE) {
            memcpy(&doubles[double_count++], &code[i + 1], sizeof(double));
        }
        else {
            words[word_count++] = code[i] == WORD_CODE ? (uint64_t)code[i + 1] : (uintptr_t)tensors[code[i + 1]];
        }
    }
    return ((Function)call->function)(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7],
                                      doubles[0], doubles[1], doubles[2], doubles[3]);
}

/* --- by the dispatcher -------------------------------------------------------------------------- */

/* What a call is given, read up to `code`. */
typedef struct {
    const int64_t *code;
    const Table *table;
    int64_t texts;
    const Handle *tensors;
} ArgumentReader;

static int32_t argument(ArgumentReader *reader, uint64_t *word);

static int32_t
some(ArgumentReader *reader, uint64_t *word)
{
    uint64_t inner = 0, *value = NULL;
    int32_t status = argument(reader, &inner);
    if (status == 0) {
        status = library.new_value ? library.new_value(&value) : 0;
        value = library.new_value ? value : library.operator_new(sizeof *value);
    }
    if (status || value == NULL) {
        return -1;
    }
    *value = inner;
    *word = (uintptr_t)value;
    return 0;
}

static int32_t
list(ArgumentReader *reader, uint64_t *word)
{
    int64_t count = *reader->code++;
    ListHandle list = NULL;
    int32_t status = library.new_list((size_t)count, &list);
    for (int64_t i = 0; status == 0 && i < count; i++) {
        uint64_t item = 0;
        status = argument(reader, &item);
        status = status ? status : library.push_back(list, item);
    }
    *word = (uintptr_t)list;
    return status;
}

static int32_t
string(const Table *table, int64_t number, uint64_t *word)
{
    void *handle = NULL;
    int32_t status = library.new_string(table_string(table, number), (size_t)table->strings[number].length, &handle);
    *word = (uintptr_t)handle;
    return status;
}

/* One argument as the dispatcher takes it, which frees it. Only for want of memory is there an error, and then what was
   made so far stays where it is. */
static int32_t
argument(ArgumentReader *reader, uint64_t *word)
{
    Handle handle;
    int32_t status;
    *word = 0;
    switch (*reader->code++) {
    case WORD_CODE:
        *word = (uint64_t)*reader->code++;
        return 0;
    case TENSOR_CODE:
        status = library.new_handle(reader->tensors[*reader->code++], &handle);
        *word = (uintptr_t)handle;
        return status;
    case SOME_CODE:
        return some(reader, word);
    case LIST_CODE:
        return list(reader, word);
    case STRING_CODE:
        return string(reader->table, reader->table->references[reader->texts + *reader->code++].number, word);
    default:
        return 0;
    }
}

int32_t
native_call(const NativeCall *call, const int64_t *code, const Table *table, const Handle *tensors, uint64_t *stack)
{
    if (call->function) {
        return call_function(call, code, tensors);
    }
    ArgumentReader reader = {code, table, call->texts, tensors};
    for (int i = 0; reader.code < code + call->code_count; i++) {
        int32_t status = argument(&reader, &stack[i]);
        if (status) {
            return status;
        }
    }
    return library.call_dispatcher(call->name, call->overload, stack, library.version());
}

/* --- results ------------------------------------------------------------------------------------ */

static int
from_list(ListHandle list, Handle *returned, int count)
{
    size_t size = 0;
    int32_t status = library.list_size(list, &size);
    for (size_t i = 0; status == 0 && i < size; i++) {
        uint64_t item = 0;
        status = library.list_get(list, i, &item);
        if (status == 0 && (int64_t)i < count) {
            returned[i] = (Handle)(uintptr_t)item;
        }
        else if (status == 0) {
            library.drop((Handle)(uintptr_t)item);
        }
    }
    library.drop_list(list);
    return status ? -1 : (int)size;
}

int
native_call_returned(const NativeCall *call, const uint64_t *stack, Handle *returned, int count)
{
    memset(returned, 0, (size_t)count * sizeof *returned);
    int returned_count = call->returns;
    if (call->returns < 0) {
        returned_count = from_list((ListHandle)(uintptr_t)stack[0], returned, count);
    }
    for (int i = 0; i < call->returns; i++) {
        Handle handle = (Handle)(uintptr_t)stack[i];
        if (i < count) {
            returned[i] = handle;
        }
        else {
            library.drop(handle);
        }
    }
    if (returned_count == count || count == 0) {
        return count;
    }
    for (int i = 0; i < count; i++) {
        if (returned[i]) {
            library.drop(returned[i]);
        }
    }
    return -1;
}
