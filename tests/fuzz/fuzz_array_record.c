/* fuzz_array_record.c - hostile records of named arrays.
 *
 * Property: mds_array_record refuses a record, or every field it finds lies inside the record, after the field before it,
 * arrays at multiples of 64 bytes and of just the size that their shape says; it accepts a record of just the size it needs.
 * Input: a byte that chooses how many fields, a byte for each of six fields, then the record. */
#include "fuzz.h"

#define FIELDS 6

static size_t choose(const uint8_t *choice, mds_array_field *fields)
{
    static const uint64_t items[] = {1, 2, 4, 8, 16};
    const size_t count = choice[0] % (FIELDS + 1);
    for (size_t f = 0; f < count; f++) {
        const uint8_t byte = choice[1 + f];
        fields[f] =
            (mds_array_field){.kind = (mds_array_kind)(byte % 3), .item = items[byte / 3 % 5], .dims = byte / 15 % 4};
        for (size_t d = 0; d < fields[f].dims; d++)
            fields[f].shape[d] = byte >> d & 1 ? MDS_NONE : (uint64_t)byte % 5;
    }
    return count;
}

static void check(const mds_array_field *fields, size_t count, const uint8_t *data, uint64_t n)
{
    mds_array_value values[FIELDS];
    uint64_t size = 0, at = 8;
    size_t failed = 0;
    if (!mds_array_record(fields, count, data, n, values, &size, &failed)) {
        CHECK(failed <= count);
        return;
    }
    CHECK(size <= n);
    for (int arrays = 0; arrays < 2; arrays++) {
        for (size_t f = 0; f < count; f++) {
            if (fields[f].kind != (arrays ? MDS_ARRAY_ITEMS : MDS_ARRAY_BYTES))
                continue;
            CHECK(values[f].begin >= at && values[f].begin <= size && values[f].size <= size - values[f].begin);
            CHECK(!arrays || values[f].begin % MDS_ARRAY_ALIGNMENT == 0);
            at = values[f].begin + values[f].size;
            uint64_t items = arrays ? fields[f].item : values[f].size;
            for (size_t d = 0; arrays && d < fields[f].dims; d++)
                items *= values[f].shape[d]; /* wraps only where an axis is 0 and makes it 0 in the end */
            CHECK(items == values[f].size);
        }
    }
    CHECK(at == size || at == 8);
}

/* Whether mds_array_record accepts a record of some size. */
static int accepts(const mds_array_field *fields, size_t count, uint8_t *data, uint64_t size)
{
    mds_array_value values[FIELDS];
    size_t failed;
    memcpy(data, &size, 8);
    check(fields, count, data, size);
    return mds_array_record(fields, count, data, size, values, &size, &failed);
}

/* Records with a table of small numbers: of the size that their fields need they are accepted, of others refused. */
static void make(const mds_array_field *fields, size_t count, const uint8_t *input, size_t n)
{
    uint8_t data[1024] = {0};
    uint64_t words = 1;
    for (size_t f = 0; f < count; f++) {
        words += fields[f].kind != MDS_ARRAY_ITEMS;
        for (size_t d = 0; fields[f].kind == MDS_ARRAY_ITEMS && d < fields[f].dims; d++)
            words += fields[f].shape[d] == MDS_NONE;
    }
    for (uint64_t w = 1; w < words; w++)
        data[8 * w] = n ? input[w % n] % 7 : 0;
    uint64_t need = 8 * words, sizes[FIELDS] = {0};
    for (size_t f = 0, w = 1; f < count; f++) {
        sizes[f] = fields[f].kind == MDS_ARRAY_ITEMS ? fields[f].item : data[8 * w++];
        for (size_t d = 0; fields[f].kind == MDS_ARRAY_ITEMS && d < fields[f].dims; d++)
            sizes[f] *= fields[f].shape[d] == MDS_NONE ? data[8 * w++] : fields[f].shape[d];
        need += fields[f].kind == MDS_ARRAY_BYTES ? sizes[f] : 0;
    }
    for (size_t f = 0; f < count; f++)
        if (fields[f].kind == MDS_ARRAY_ITEMS)
            need = (need + MDS_ARRAY_ALIGNMENT - 1) / MDS_ARRAY_ALIGNMENT * MDS_ARRAY_ALIGNMENT + sizes[f];
    if (need >= sizeof data - 64)
        return;
    CHECK(accepts(fields, count, data, need));
    for (uint64_t off = 1; off <= 64; off *= 4) {
        CHECK(!accepts(fields, count, data, need + off));
        CHECK(need < 8 + off || !accepts(fields, count, data, need - off));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    if (n < 1 + FIELDS)
        return 0;
    mds_array_field fields[FIELDS] = {{.dims = 0}};
    const size_t count = choose(input, fields), rest = n - 1 - FIELDS;
    uint8_t *data = fuzz_copy(input + 1 + FIELDS, rest);
    check(fields, count, data, rest);
    if (rest >= 8) {
        const uint64_t size = rest - data[0] % 8;
        memcpy(data, &size, 8);
        check(fields, count, data, rest);
    }
    make(fields, count, data, rest);
    free(data);
    return 0;
}
