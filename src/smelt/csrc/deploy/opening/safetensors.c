/* Reads the header of a safetensors file: JSON of one form. Anything else is refused.

     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"key": "value"}} */
#include "deploy/opening/safetensors.h"

#include "executor/table.h"

#include <string.h>

typedef struct {
    const char *at, *end;
    bool is_wrong;
} Text;

static const struct {
    const char *name;
    smelt_dtype dtype;
} dtypes[] = {
    {"F32", SMELT_FLOAT32}, {"F16", SMELT_FLOAT16}, {"BF16", SMELT_BFLOAT16}, {"F64", SMELT_FLOAT64}, {"I64", SMELT_INT64},
    {"I32", SMELT_INT32}, {"I16", SMELT_INT16}, {"I8", SMELT_INT8}, {"U8", SMELT_UINT8}, {"U16", SMELT_UINT16},
    {"U32", SMELT_UINT32}, {"U64", SMELT_UINT64}, {"BOOL", SMELT_BOOL}, {"C64", SMELT_COMPLEX64},
    {"F8_E4M3", SMELT_FLOAT8_E4M3FN}, {"F8_E5M2", SMELT_FLOAT8_E5M2},
};

static char
peek(Text *text)
{
    while (text->at < text->end && memchr(" \t\r\n", *text->at, 4)) {
        text->at++;
    }
    return text->at < text->end ? *text->at : 0;
}

static bool
take(Text *text, char letter)
{
    const bool is_there = peek(text) == letter;
    text->at += is_there;
    return is_there;
}

static void
expect(Text *text, char letter)
{
    if (!take(text, letter)) {
        text->is_wrong = true;
        text->at = text->end;
    }
}

/* A string as it is written; `bytes` is SIZE_MAX if it has escapes, which no name of a weight needs. */
static const char *
take_string(Text *text, size_t *bytes)
{
    bool has_escapes = false;
    expect(text, '"');
    const char *const begin = text->at;
    while (text->at < text->end && *text->at != '"') {
        const bool is_escape = *text->at == '\\' && text->at + 1 < text->end;
        has_escapes = has_escapes || is_escape;
        text->at += is_escape ? 2 : 1;
    }
    *bytes = has_escapes ? SIZE_MAX : (size_t)(text->at - begin);
    expect(text, '"');
    return begin;
}

static bool
is_string(const char *begin, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(begin, wanted, bytes) == 0;
}

/* [1, 2, 3]: how many there are, -1 if they are more than `room` or no numbers. */
static int
take_numbers(Text *text, int64_t *numbers, int room)
{
    int count = 0;
    expect(text, '[');
    while (!text->is_wrong && peek(text) != ']') {
        if (count) {
            expect(text, ',');
        }
        int64_t number = 0;
        bool is_number = peek(text) >= '0' && *text->at <= '9';
        for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
            is_number = is_number && number <= MOST_BYTES;
            number = is_number ? 10 * number + (*text->at - '0') : 0;
        }
        if (!is_number || count == room) {
            text->is_wrong = true;
            return -1;
        }
        numbers[count++] = number;
    }
    expect(text, ']');
    return count;
}

/* Of an entry's object: dtype, shape and place, each once. What is wrong with it, or NULL. */
static const char *
take_entry(Text *text, const char *data, size_t size, WeightTensor *tensor)
{
    int64_t place[2];
    tensor->dtype = SMELT_NONE;
    tensor->rank = -1;
    int places = 0;
    expect(text, '{');
    do {
        size_t bytes;
        const char *key = take_string(text, &bytes);
        expect(text, ':');
        if (is_string(key, bytes, "dtype")) {
            key = take_string(text, &bytes);
            for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
                tensor->dtype = is_string(key, bytes, dtypes[i].name) ? dtypes[i].dtype : tensor->dtype;
            }
        }
        else if (is_string(key, bytes, "shape")) {
            tensor->rank = take_numbers(text, tensor->sizes, SMELT_MAX_RANK);
        }
        else if (is_string(key, bytes, "data_offsets")) {
            places = take_numbers(text, place, 2);
        }
        else {
            return "a key that is not known";
        }
    } while (!text->is_wrong && take(text, ','));
    expect(text, '}');
    int64_t count = table_item_size(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++) {
        if (__builtin_mul_overflow(count, tensor->sizes[i], &count)) {
            return "a wrong shape";
        }
    }
    if (text->is_wrong || tensor->dtype == SMELT_NONE || tensor->rank < 0 || places != 2) {
        return "no dtype, shape or data_offsets that are known";
    }
    if (place[0] > place[1] || (uint64_t)place[1] > size || place[1] - place[0] != count) {
        return "data_offsets that are not its bytes";
    }
    tensor->data = data + place[0];
    tensor->bytes = (size_t)count;
    return NULL;
}

static void
skip_metadata(Text *text)
{
    size_t bytes;
    expect(text, '{');
    while (!text->is_wrong && peek(text) == '"') {
        take_string(text, &bytes);
        expect(text, ':');
        take_string(text, &bytes);
        if (!take(text, ',')) {
            break;
        }
    }
    expect(text, '}');
}

smelt_status
smelt_safetensors_read(const void *file, size_t size, WeightTensor *tensors, size_t room, size_t *count, smelt_error *error)
{
    uint64_t header;
    const char *const begin = (const char *)file + sizeof header;
    *count = 0;
    if (size < sizeof header || (memcpy(&header, file, sizeof header), header > size - sizeof header)) {
        return smelt_fail(error, SMELT_ERROR_FILE, "the file of weights is no safetensors file: its header is cut");
    }
    const char *const data = begin + header;
    Text text = {begin, data, false};
    expect(&text, '{');
    while (!text.is_wrong && peek(&text) == '"') {
        WeightTensor tensor = {.is_used = false};
        tensor.name = take_string(&text, &tensor.name_bytes);
        expect(&text, ':');
        if (is_string(tensor.name, tensor.name_bytes, "__metadata__")) {
            skip_metadata(&text);
        }
        else {
            const char *wrong = tensor.name_bytes == SIZE_MAX ? "escapes in its name"
                                                              : take_entry(&text, data, size - sizeof header - header, &tensor);
            if (wrong) {
                const size_t shown = tensor.name_bytes < 100 ? tensor.name_bytes : 100;
                return smelt_fail(error, SMELT_ERROR_FILE, "weight %.*s has %s", (int)shown, tensor.name, wrong);
            }
            if (*count < room) {
                tensors[*count] = tensor;
            }
            ++*count;
        }
        if (!take(&text, ',')) {
            break;
        }
    }
    expect(&text, '}');
    if (text.is_wrong || peek(&text)) {
        return smelt_fail(error, SMELT_ERROR_FILE, "the file of weights is no safetensors file: its header is damaged");
    }
    return SMELT_OK;
}
