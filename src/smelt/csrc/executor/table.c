/* Checks tables: where their sections are, and that every reference is to an existing record. */
#include "executor/table.h"

#include <string.h>

bool
smelt_sections_hold(const TablePlace *places, const TableSection *sections, int count, int64_t first, int64_t bytes,
                    int64_t blob, TableFault *fault)
{
    int64_t next = first;
    for (int i = 0; i < count; i++) {
        if (places[i].width != sections[i].width) {
            *fault = (TableFault){"header", i, "width: records of another layout"};
            return false;
        }
        if (places[i].first != next || places[i].count < 0 || places[i].count > (bytes / 8 - next) / places[i].width) {
            *fault = (TableFault){"header", i, sections[i].name};
            return false;
        }
        next += places[i].count * places[i].width;
    }
    *fault = (TableFault){"header", 0, "place of its strings"};
    return blob == 8 * next;
}

bool
smelt_is_span(int64_t limit, int64_t first, int64_t count)
{
    return first >= 0 && first <= limit && count >= 0 && count <= limit - first;
}

bool
smelt_is_layout(int64_t limit, int64_t first, int64_t rank)
{
    return rank >= 0 && rank < limit && smelt_is_span(limit, first, 2 * rank + 1);
}

static bool
keeps_rule(const TableField *field, const int64_t *word, const int64_t *counts)
{
    switch (field->rule) {
    case INDEX:
        return *word >= 0 && *word < counts[field->section];
    case OPTIONAL:
        return *word >= -1 && *word < counts[field->section];
    case SPAN:
        return smelt_is_span(counts[field->section], word[0], word[1]);
    case LAYOUT:
        return smelt_is_layout(counts[field->section], word[0], word[1]);
    default:
        return true;
    }
}

bool
smelt_rules_hold(const TableSection *section, const int64_t *words, int64_t count, const int64_t *counts,
                 int64_t *budget, TableFault *fault)
{
    for (int64_t record = 0; record < count; record++) {
        for (int64_t i = 0; i < section->width; i++, words++) {
            const TableField *field = &section->fields[i];
            if (!keeps_rule(field, words, counts)) {
                *fault = (TableFault){section->name, record, field->name};
                return false;
            }
            if (field->rule == SPAN) {
                *budget -= words[1];
            }
        }
        if (*budget < 0) {
            *fault = (TableFault){section->name, record, "length of its lists"};
            return false;
        }
    }
    return true;
}

bool
smelt_strings_hold(const int64_t *strings, int64_t count, const char *bytes, int64_t size, TableFault *fault)
{
    int64_t budget = 16 * size; /* many could be the same long one */
    for (int64_t i = 0; i < count; i++) {
        const int64_t offset = strings[2 * i], length = strings[2 * i + 1];
        *fault = (TableFault){"strings", i, "length"};
        if (offset < 0 || offset >= size || length < 0 || length >= size - offset || (budget -= length) < 0) {
            return false;
        }
        fault->field = "end";
        if (bytes[offset + length] || memchr(bytes + offset, 0, (size_t)length)) {
            return false;
        }
    }
    return true;
}
