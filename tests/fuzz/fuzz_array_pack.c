/* fuzz_array_pack.c - hostile columns on their way into records of named arrays.
 *
 * Property: mds_array_pack writes the records that a plain loop writes, up to the first that has a part outside its data;
 * in pieces, whatever room each has, as at once; and mds_array_record finds every part of a record where it was put.
 * Input: how many records, numbers, runs and arrays; the data of each run or array and where each record's lie, as they are
 * or mended so that they lie inside; the numbers; the room of each piece. */
#include "fuzz.h"

#define NUMBERS 2
#define PARTS 3
#define RECORDS 6
#define LARGEST 255 /* bytes of a part's data */

/* Columns of numbers, runs and arrays, in this order, in memory of their own. */
typedef struct {
    size_t records, numbers, runs, parts;
    uint64_t *words[NUMBERS + PARTS], *begins[PARTS];
    mds_array_part described[PARTS];
    mds_array_columns columns;
} made;

static uint64_t aligned(uint64_t size)
{
    return (size + 63) / 64 * 64;
}

static void make_part(made *m, size_t p, fuzz_input *input)
{
    const uint64_t size = fuzz_between(input, 0, LARGEST), is_mended = fuzz_take(input, 1) % 4 != 0;
    const size_t held = size < input->left ? (size_t)size : input->left;
    uint64_t *begins = m->begins[p] = fuzz_room(m->records, 8);
    uint64_t *sizes = m->words[m->numbers + p] = fuzz_room(m->records, 8);
    m->described[p] = (mds_array_part){fuzz_copy(input->data, held), held, begins, sizes, p >= m->runs};
    input->data += held;
    input->left -= held;
    for (size_t k = 0; k < m->records; k++) {
        begins[k] = is_mended ? fuzz_between(input, 0, held) : fuzz_magnitude(input, 0, UINT64_MAX);
        sizes[k] = is_mended ? fuzz_between(input, 0, held - begins[k]) : fuzz_magnitude(input, 0, UINT64_MAX);
    }
}

static void make(made *m, fuzz_input *input)
{
    m->records = (size_t)fuzz_between(input, 0, RECORDS);
    m->numbers = (size_t)fuzz_between(input, 0, NUMBERS);
    m->parts = (size_t)fuzz_between(input, 0, PARTS);
    m->runs = (size_t)fuzz_between(input, 0, m->parts);
    for (size_t p = 0; p < m->parts; p++)
        make_part(m, p, input);
    for (size_t w = 0; w < m->numbers; w++) {
        m->words[w] = fuzz_room(m->records, 8);
        for (size_t k = 0; k < m->records; k++)
            m->words[w][k] = fuzz_magnitude(input, 0, UINT64_MAX);
    }
    m->columns = (mds_array_columns){(const uint64_t *const *)m->words, m->numbers + m->parts, m->described, m->parts};
}

static void give_back(made *m)
{
    for (size_t w = 0; w < m->numbers + m->parts; w++)
        free(m->words[w]);
    for (size_t p = 0; p < m->parts; p++) {
        free((void *)m->described[p].data);
        free(m->begins[p]);
    }
}

/* Write record k as docs/array-file.md has it; return where it ends, a multiple of 64, or 0 if a part lies outside its data. */
static uint64_t write_plainly(const made *m, size_t k, uint8_t *record)
{
    uint64_t at = 8;
    for (size_t w = 0; w < m->numbers + m->parts; w++, at += 8)
        memcpy(record + at, &m->words[w][k], 8);
    for (size_t p = 0; p < m->parts; p++) {
        const mds_array_part *part = &m->described[p];
        if (part->begins[k] > part->size || part->sizes[k] > part->size - part->begins[k])
            return 0;
        at = part->is_array ? aligned(at) : at;
        for (uint64_t i = 0; i < part->sizes[k]; i++)
            record[at++] = part->data[part->begins[k] + i];
    }
    memcpy(record, &at, 8);
    return aligned(at);
}

/* Read a record, and compare every part with where it came from. */
static void check_read(const made *m, size_t k, const uint8_t *record, uint64_t n)
{
    mds_array_field fields[NUMBERS + PARTS];
    mds_array_value values[NUMBERS + PARTS];
    const size_t count = m->numbers + m->parts;
    for (size_t f = 0; f < count; f++) {
        const size_t p = f - m->numbers;
        fields[f] = f < m->numbers ? (mds_array_field){.kind = MDS_ARRAY_WORD}
                    : p < m->runs  ? (mds_array_field){.kind = MDS_ARRAY_BYTES}
                                   : (mds_array_field){MDS_ARRAY_ITEMS, 1, 1, {MDS_NONE}};
    }
    uint64_t size = 0;
    size_t failed = 0;
    CHECK(mds_array_record(fields, count, record, n, values, &size, &failed));
    CHECK(aligned(size) == n);
    for (size_t f = 0; f < count; f++)
        CHECK(values[f].word == m->words[f][k]);
    for (size_t p = 0; p < m->parts; p++) {
        const mds_array_value *value = &values[m->numbers + p];
        const mds_array_part *part = &m->described[p];
        CHECK(value->size == part->sizes[k]);
        CHECK(memcmp(record + value->begin, part->data + part->begins[k], (size_t)value->size) == 0);
    }
}

/* Pack all records in pieces, as columns.py does, and compare each piece with the bytes wanted of it. */
static void pack(const made *m, size_t good, const uint64_t *wanted_ends, const uint8_t *wanted, fuzz_input *input)
{
    size_t first = 0;
    uint64_t at = 0;
    for (uint64_t room = fuzz_between(input, 0, 2048); first < m->records;) {
        uint8_t *out = fuzz_room((size_t)room, 1);
        memset(out, 0xa5, (size_t)room);
        uint64_t *ends = fuzz_room(m->records - first, 8);
        const mds_array_packed packed = mds_array_pack(&m->columns, first, m->records, out, room, ends);
        CHECK(packed.count <= good - first);
        for (size_t k = 0; k < packed.count; k++)
            CHECK(ends[k] == wanted_ends[first + k] - at && ends[k] <= room);
        const uint64_t size = packed.count ? ends[packed.count - 1] : 0;
        CHECK(memcmp(out, wanted + at, (size_t)size) == 0);
        first += packed.count;
        at += size;
        free(out);
        free(ends);
        CHECK(packed.is_bad == (first == good && good < m->records));
        if (packed.is_bad)
            break;
        CHECK(first == m->records || packed.needed == wanted_ends[first] - at);
        CHECK(first == m->records || packed.needed > room - size);
        room = packed.count ? fuzz_between(input, 0, 2048) : packed.needed;
    }
    CHECK(first == good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input input = {data, n};
    made m = {0};
    make(&m, &input);
    uint8_t wanted[RECORDS * (8 * (1 + NUMBERS + PARTS) + PARTS * (LARGEST + 64) + 64)] = {0};
    uint64_t ends[RECORDS] = {0}, at = 0;
    size_t good = 0;
    for (uint64_t size; good < m.records && (size = write_plainly(&m, good, wanted + at)); good++) {
        check_read(&m, good, wanted + at, size);
        ends[good] = at += size;
    }
    pack(&m, good, ends, wanted, &input);
    give_back(&m);
    return 0;
}
