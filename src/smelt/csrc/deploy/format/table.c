/* Reads a TABLE: checks that its sections are in place, and that every reference is to an existing record. */
#include "deploy/format/table.h"

TABLE_SECTIONS(FIELD_ROWS)
static const TableSection sections[] = {TABLE_SECTIONS(SECTION_ROW)};

static smelt_status
check_header(const TableHeader *header, int64_t size, smelt_error *error)
{
    if (size < (int64_t)sizeof *header || header->magic != TABLE_MAGIC) {
        return smelt_fail(error, SMELT_ERROR_FILE, "a table does not begin like one");
    }
    if (header->version != FORMAT_VERSION) {
        return smelt_fail(error, SMELT_ERROR_VERSION, "a table has version %lld, this runtime reads version %d",
                          (long long)header->version, FORMAT_VERSION);
    }
    TableFault fault = {"header", 0, "length"};
    if (header->bytes != size
        || !smelt_sections_hold(header->sections, sections, SECTION_COUNT, sizeof *header / 8, size, header->blob, &fault)) {
        return smelt_refuse(error, fault.section, fault.record, fault.field);
    }
    return SMELT_OK;
}

smelt_status
smelt_table_read(Table *table, const void *data, int64_t size, smelt_error *error)
{
    const TableHeader *header = data;
    smelt_status status = check_header(header, size, error);
    if (status) {
        return status;
    }
    *table = (Table){.header = header, .blob = (const char *)data + header->blob};
    TABLE_SECTIONS(SET_SECTION)
    TableFault fault = {"header", 0, "name"};
    int64_t budget = 64 * (size / 8) + (1 << 20);
    bool holds = header->name >= 0 && header->name < table->counts[STRINGS];
    for (int i = 0; holds && i < SECTION_COUNT; i++) {
        const int64_t *first = (const int64_t *)data + header->sections[i].first;
        holds = smelt_rules_hold(&sections[i], first, table->counts[i], table->counts, &budget, &fault);
    }
    holds = holds && smelt_strings_hold(&table->strings->offset, table->counts[STRINGS], table->blob,
                                        header->bytes - header->blob, &fault);
    return holds ? SMELT_OK : smelt_refuse(error, fault.section, fault.record, fault.field);
}
