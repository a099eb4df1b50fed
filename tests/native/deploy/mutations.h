/* Files of artifacts taken apart, changed and put together again: what mutate.c tries. It has `draw` and `below`. */
#ifndef SMELT_TEST_MUTATIONS_H
#define SMELT_TEST_MUTATIONS_H

/* --- files in parts ------------------------------------------------------------------------------------------- */

typedef struct {
    FileSection section;
    unsigned char *data;
    size_t size, room;
} Part;

typedef struct {
    Part parts[MOST_PARTS];
    int count;
} Parts;

static struct { unsigned char *data; size_t size; } seeds[MOST_FILES];
static int seed_count;

static void
take_apart(int seed, Parts *parts)
{
    const FileHeader *header = (const FileHeader *)seeds[seed].data;
    const FileSection *sections = (const FileSection *)(header + 1);
    parts->count = (int)header->sections;
    for (int i = 0; i < parts->count; i++) {
        Part *part = &parts->parts[i];
        part->section = sections[i];
        part->size = (size_t)sections[i].bytes;
        part->room = part->size + ROOM;
        part->data = calloc(1, part->room);
        memcpy(part->data, seeds[seed].data + sections[i].offset, part->size);
    }
}

static unsigned char *
put_together(const Parts *parts, size_t *size)
{
    FileHeader header = {FILE_MAGIC, FILE_VERSION, 0, parts->count, 0, 0};
    FileSection sections[MOST_PARTS];
    size_t end = sizeof header + (size_t)parts->count * sizeof *sections;
    for (int i = 0; i < parts->count; i++) {
        const int64_t kind = parts->parts[i].section.kind;
        const size_t step = kind == CODE_SECTION || kind == WEIGHTS_SECTION || kind == STATE_SECTION ? FILE_PAGE : FILE_ALIGN;
        sections[i] = parts->parts[i].section;
        sections[i].offset = (int64_t)((end + step - 1) / step * step);
        sections[i].bytes = (int64_t)parts->parts[i].size;
        sections[i].checksum = (int64_t)smelt_checksum(parts->parts[i].data, parts->parts[i].size);
        end = (size_t)sections[i].offset + parts->parts[i].size;
    }
    header.bytes = (int64_t)end;
    unsigned char *data = NULL;
    if (posix_memalign((void **)&data, 64, end)) {
        abort();
    }
    memset(data, 0, end);
    memcpy(data + sizeof header, sections, (size_t)parts->count * sizeof *sections);
    for (int i = 0; i < parts->count; i++) {
        memcpy(data + sections[i].offset, parts->parts[i].data, parts->parts[i].size);
    }
    memcpy(data, &header, sizeof header);
    header.checksum = (int64_t)smelt_checksum(data, sizeof header + (size_t)parts->count * sizeof *sections);
    memcpy(data, &header, sizeof header);
    *size = end;
    return data;
}

/* --- changes -------------------------------------------------------------------------------------------------- */

static int64_t
odd_number(void)
{
    static const int64_t numbers[] = {0, 1, 2, 3, -1, -2, 7, 8, 16, 64, 255, 4096, INT32_MAX, INT64_C(1) << 32,
                                      INT64_C(1) << 47, INT64_C(1) << 62, INT64_MAX, INT64_MIN, INT64_MAX - 7};
    const uint64_t which = below(7);
    if (which == 6) {
        return 16 * (int64_t)below(300); /* often a place in a section of data */
    }
    if (which > 2) {
        return (int64_t)below(which == 3 ? 8 : which == 4 ? 40 : 200); /* often the number of another record */
    }
    return which == 0 ? (int64_t)draw() : numbers[below(sizeof numbers / sizeof *numbers)];
}

static void
change_word(unsigned char *data, size_t size)
{
    if (size < 8) {
        return;
    }
    const size_t place = below(size / 8) * 8;
    int64_t word;
    memcpy(&word, data + place, 8);
    switch (below(5)) {
    case 0: word = (int64_t)((uint64_t)word + below(7) - 3); break;
    case 1: word ^= (int64_t)(UINT64_C(1) << below(64)); break;
    case 2: word = word > 0 ? (int64_t)below((uint64_t)word) : word; break;
    default: word = odd_number();
    }
    memcpy(data + place, &word, 8);
}

static void
swap_words(unsigned char *data, size_t size)
{
    if (size >= 16) {
        const size_t one = below(size / 8) * 8, other = below(size / 8) * 8;
        unsigned char kept[8];
        memcpy(kept, data + one, 8);
        memcpy(data + one, data + other, 8);
        memcpy(data + other, kept, 8);
    }
}

/* --- changes that know the rules of a table --------------------------------------------------------------------- */

typedef enum { FREE, INDEX, OPTIONAL, SPAN, LAYOUT } Rule;
typedef struct { Rule rule; int section; } Field;

/* Lists are spans of references; members of enumerations are any number. */
#define AS_FREE(section) FREE, 0
#define AS_BELOW(section) FREE, 0
#define AS_INDEX(section) INDEX, section
#define AS_OPTIONAL(section) OPTIONAL, section
#define AS_SPAN(section) SPAN, section
#define AS_LAYOUT(section) LAYOUT, section
#define AS_LIST(section) SPAN, REFERENCES
#define AS_OPTIONAL_LIST(section) SPAN, REFERENCES
#define FIELD_ROW(field, rule, section) {AS_##rule(section)},
#define FIELD_ROWS(section, NUMBER, Type, FIELDS) static const Field section##_fields[] = {FIELDS(FIELD_ROW)};
TABLE_SECTIONS(FIELD_ROWS)
#define SECTION_ROW(section, NUMBER, Type, FIELDS) {section##_fields, sizeof(Type) / 8},
static const struct { const Field *fields; size_t width; } layout[] = {TABLE_SECTIONS(SECTION_ROW)};

/* Whether the sections of a table are still where they should be. */
static bool
is_in_order(const Part *part)
{
    const TableHeader *header = (const TableHeader *)part->data;
    int64_t next = sizeof *header / 8;
    const int64_t limit = (int64_t)part->size / 8;
    if (part->section.kind != TABLE_SECTION || part->size < sizeof *header) {
        return false;
    }
    for (int i = 0; i < SECTION_COUNT; i++) {
        const int64_t count = header->sections[i].count, width = (int64_t)layout[i].width;
        if (header->sections[i].width != width || header->sections[i].first != next || count < 0
            || count > (limit - next) / width) {
            return false;
        }
        next += count * width;
    }
    return header->blob == 8 * next && header->bytes == (int64_t)part->size;
}

static int64_t *
record_of(Part *part, int section, int64_t record)
{
    const TableHeader *header = (const TableHeader *)part->data;
    return (int64_t *)part->data + header->sections[section].first + record * (int64_t)layout[section].width;
}

/* One field of some record, each kind of record as often as others: to an end of what it may be, or just beyond. */
static void
change_field(Part *part)
{
    const TableHeader *header = (const TableHeader *)part->data;
    const int section = (int)below(SECTION_COUNT);
    const int64_t count = header->sections[section].count;
    if (count == 0) {
        return;
    }
    int64_t *words = record_of(part, section, (int64_t)below((uint64_t)count));
    const size_t which = below(layout[section].width);
    const Field *field = &layout[section].fields[which];
    const int64_t limit = header->sections[field->section].count, edge = (int64_t)below(3) - 1;
    int64_t *word = &words[which];
    if (section == STRINGS) { /* up to the end of the strings */
        const int64_t blob = header->bytes - header->blob;
        *word = (int64_t)((uint64_t)blob - (below(2) ? (uint64_t)words[1 - which] : 0) + (uint64_t)edge);
    }
    else if (field->rule == SPAN && below(2)) {
        *word = (int64_t)((uint64_t)limit - (uint64_t)word[1] + (uint64_t)edge);
    }
    else if (field->rule == SPAN) {
        word[1] = (int64_t)((uint64_t)limit - (uint64_t)word[0] + (uint64_t)edge);
    }
    else if (field->rule != FREE) {
        *word = below(3) ? (int64_t)below((uint64_t)limit) : below(2) ? limit + edge : edge;
    }
    else {
        static const int often[] = {STRINGS, EXPRESSIONS, REGISTERS, VALUES}; /* whose numbers are in such fields too */
        const int other = below(2) ? often[below(4)] : (int)below(SECTION_COUNT);
        const uint64_t which_way = below(3);
        *word = which_way == 0   ? odd_number()
                : which_way == 1 ? header->sections[other].count + edge
                                 : (int64_t)((uint64_t)*word + (uint64_t)edge);
    }
}

/* Room for one more record, a copy of the one before it; what refers to it or to those behind it goes on doing so, and lists
   that have it become longer. */
static bool
insert_record(Part *part, int section, int64_t record)
{
    const size_t width = layout[section].width * 8;
    TableHeader *header = (TableHeader *)part->data;
    if (header->sections[section].count >= 4096 || part->size + width > part->room) {
        return false;
    }
    unsigned char *at = (unsigned char *)record_of(part, section, record);
    memmove(at + width, at, part->size - (size_t)(at - part->data));
    part->size += width;
    header->sections[section].count++;
    for (int i = section + 1; i < SECTION_COUNT; i++) {
        header->sections[i].first += (int64_t)layout[section].width;
    }
    header->blob += (int64_t)width;
    header->bytes += (int64_t)width;
    for (int i = 0; i < SECTION_COUNT; i++) {
        int64_t *word = record_of(part, i, 0);
        for (int64_t k = 0; k < header->sections[i].count; k++) {
            for (size_t f = 0; f < layout[i].width; f++, word++) {
                const Field *field = &layout[i].fields[f];
                if (field->rule == FREE || field->section != section) {
                    continue;
                }
                if (*word > record && *word < INT64_MAX) {
                    ++*word;
                }
                else if (field->rule == SPAN && *word >= 0 && word[1] > record - *word && word[1] < INT64_MAX) {
                    word[1]++;
                }
            }
        }
    }
    return true;
}

static int
stack_change(const InstructionRecord *instruction)
{
#define OP_ARITY(name, arity) arity,
    static const int arities[] = {EXPRESSION_OPS(OP_ARITY)};
    return instruction->op >= 0 && instruction->op < OP_COUNT ? 1 - arities[instruction->op] : 0;
}

/* An expression that needs about as much of the stack as there is: so many more numbers, and what takes them off again. */
static void
deepen_expression(Part *part)
{
    const TableHeader *header = (const TableHeader *)part->data;
    const int64_t expressions = header->sections[EXPRESSIONS].count, instructions = header->sections[INSTRUCTIONS].count;
    const int64_t number = (int64_t)below((uint64_t)expressions);
    if (expressions == 0) {
        return;
    }
    const ExpressionRecord record = *(ExpressionRecord *)record_of(part, EXPRESSIONS, number);
    if (record.code < 0 || record.code_count <= 0 || record.code_count > 1024
        || record.code > instructions - record.code_count) {
        return;
    }
    int depth = 0, most = 0;
    for (int64_t i = 0; i < record.code_count; i++) {
        depth += stack_change((InstructionRecord *)record_of(part, INSTRUCTIONS, record.code + i));
        most = depth > most ? depth : most;
    }
    const int more = MOST_DEPTH + (int)below(4) - 1 - most;
    const bool balanced = below(4) != 0;
    for (int i = 0; i < more && insert_record(part, INSTRUCTIONS, record.code); i++) {
        *(InstructionRecord *)record_of(part, INSTRUCTIONS, record.code) = (InstructionRecord){OP_PUSH, (int64_t)below(3)};
    }
    const ExpressionRecord *now = (ExpressionRecord *)record_of(part, EXPRESSIONS, number);
    for (int64_t i = 0, last = now->code + now->code_count - 1; balanced && i < more; i++, last++) {
        if (!insert_record(part, INSTRUCTIONS, last)) {
            return;
        }
        *(InstructionRecord *)record_of(part, INSTRUCTIONS, last + 1) = (InstructionRecord){OP_ADD + (int64_t)below(2), 0};
        now = (ExpressionRecord *)record_of(part, EXPRESSIONS, number);
    }
}

static void
change_by_rules(Part *part)
{
    if (!is_in_order(part)) {
        return;
    }
    const TableHeader *header = (const TableHeader *)part->data;
    const int section = (int)below(SECTION_COUNT);
    switch (below(8)) {
    case 0: deepen_expression(part); break;
    case 1: case 2:
        if (header->sections[section].count) {
            insert_record(part, section, (int64_t)below((uint64_t)header->sections[section].count));
        }
        break;
    default: change_field(part);
    }
}

/* Slots and entries of code: to the ends of the image and of the names. */
static void
change_code(Part *part)
{
    const CodeHeader *header = (const CodeHeader *)part->data;
    const int64_t limit = (int64_t)part->size / 8;
    if (part->section.kind != CODE_SECTION || part->size < sizeof *header || header->kernels < 0 || header->kernels > limit
        || header->slots < 0 || header->slots > limit) {
        return;
    }
    int64_t *words = (int64_t *)(header + 1);
    const int64_t count = header->kernels + 4 * header->slots, which = (int64_t)below((uint64_t)count);
    if (count == 0 || count > limit - (int64_t)sizeof *header / 8) {
        return;
    }
    const int64_t ends[] = {header->image_bytes, (int64_t)((uint64_t)header->image - (uint64_t)header->blob), 8, 0};
    const uint64_t end = (uint64_t)ends[below(3)] - (below(2) ? (uint64_t)ends[2 + below(2)] : 0);
    words[which] = (int64_t)(end + below(10) - 5);
}

/* A record of a table more or less, all that comes behind it moved, and said so in its header. */
static void
change_length(Part *part)
{
    TableHeader *header = (TableHeader *)part->data;
    if (part->size < sizeof *header) {
        return;
    }
    const int section = (int)below(SECTION_COUNT);
    const int64_t width = header->sections[section].width, count = header->sections[section].count;
    const int64_t first = header->sections[section].first;
    const int64_t words = (int64_t)part->size / 8;
    if (width <= 0 || width > 64 || first < 0 || first > words || count < 0 || count > (words - first) / width) {
        return;
    }
    const bool more = below(2) == 0 || count == 0;
    const size_t record = (size_t)width * 8, place = (size_t)first * 8 + below((uint64_t)count) * record;
    if (more && part->size + record > part->room) {
        return;
    }
    if (more) {
        memmove(part->data + place + record, part->data + place, part->size - place);
        for (size_t i = 0; i < record && below(2); i += 8) {
            const int64_t word = odd_number();
            memcpy(part->data + place + i, &word, 8);
        }
        part->size += record;
    }
    else {
        memmove(part->data + place, part->data + place + record, part->size - place - record);
        part->size -= record;
    }
    const int64_t moved = more ? 1 : -1;
    header->sections[section].count = (int64_t)((uint64_t)count + (uint64_t)moved);
    for (int i = section + 1; i < SECTION_COUNT; i++) {
        header->sections[i].first = (int64_t)((uint64_t)header->sections[i].first + (uint64_t)(moved * width));
    }
    header->blob = (int64_t)((uint64_t)header->blob + (uint64_t)(moved * width * 8));
    header->bytes = (int64_t)((uint64_t)header->bytes + (uint64_t)(moved * width * 8));
}

static void
copy_block(unsigned char *data, size_t size)
{
    if (size >= 16) {
        const size_t from = below(size / 8) * 8, to = below(size / 8) * 8;
        size_t length = below(32) * 8;
        length = length < size - from ? length : size - from;
        length = length < size - to ? length : size - to;
        memmove(data + to, data + from, length);
    }
}

static void
change_part(Part *part, const Parts *all)
{
    switch (below(24)) {
    case 0:
        if (part->size) {
            part->data[below(part->size)] ^= (unsigned char)(1u << below(8));
        }
        break;
    case 1: swap_words(part->data, part->size); break;
    case 2: copy_block(part->data, part->size); break;
    case 3: part->size = below(part->size + 1); break;
    case 4:
        part->size += below(64);
        part->size = part->size < part->room ? part->size : part->room;
        break;
    case 5: {
        const Part *other = &all->parts[below((uint64_t)all->count)];
        const size_t length = other->size < part->size ? other->size : part->size;
        memmove(part->data, other->data, below(length + 1));
        break;
    }
    case 6: case 7: case 8:
        if (part->section.kind == TABLE_SECTION) {
            change_length(part);
            break;
        }
        change_word(part->data, part->size);
        break;
    case 9: case 10: case 11: case 12: case 13: case 14: case 15:
        change_by_rules(part);
        change_code(part);
        break;
    default: change_word(part->data, part->section.kind == CODE_SECTION && part->size > 512 ? 512 : part->size);
    }
}

static void
change_directory(Parts *parts)
{
    FileSection *section = &parts->parts[below((uint64_t)parts->count)].section;
    const int one = (int)below((uint64_t)parts->count), other = (int)below((uint64_t)parts->count);
    const Part kept = parts->parts[one];
    switch (below(6)) {
    case 0: section->kind = odd_number(); break;
    case 1: section->target = odd_number(); break;
    case 2: section->machine = odd_number(); break;
    case 3: section->features = odd_number(); break;
    case 4:
        parts->parts[one] = parts->parts[other];
        parts->parts[other] = kept;
        break;
    default: parts->parts[one].section = parts->parts[other].section;
    }
}

/* The whole file, its checksums left as they are. */
static void
change_whole(unsigned char *data, size_t *size)
{
    for (uint64_t i = 1 + below(4); i-- > 0 && *size;) {
        switch (below(4)) {
        case 0: data[below(*size)] ^= (unsigned char)(1u << below(8)); break;
        case 1: *size = below(*size + 1); break;
        case 2: change_word(data, *size < 512 ? *size : 512); break;
        default: swap_words(data, *size);
        }
    }
}

#endif
