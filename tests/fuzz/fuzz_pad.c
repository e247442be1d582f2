/* fuzz_pad.c - hostile records of arrays on their way into one array, joined.
 *
 * Property: of records that mds_array_records accepts, every piece lies inside its record; joined pieces are those that plain
 * loops write; arrays whose entries differ in size are refused.
 * Input: the fields, what to cut to, how many records and where they end; then the records. */
#include "fuzz.h"

#define FIELDS 3
#define RECORDS 6

static uint64_t row_of(const mds_array_field *field, const mds_array_value *value)
{
    uint64_t row = field->item;
    for (size_t d = 1; d < field->dims; d++)
        if (__builtin_mul_overflow(row, value->shape[d], &row))
            return MDS_NONE;
    return row;
}

/* Join pieces with gaps between them, each as wide as some bits of `gaps` say. */
static void check_joined(const mds_piece *pieces, size_t n, size_t row, uint64_t gaps, uint64_t fill)
{
    uint64_t *begins = fuzz_room(n, sizeof *begins);
    size_t total = 0;
    for (size_t k = 0; k < n; k++) {
        begins[k] = total + row * (gaps >> 2 * k & 3);
        total = (size_t)begins[k] + pieces[k].size;
    }
    const size_t whole = total + row * (gaps >> 12 & 3);
    uint8_t *out = fuzz_room(whole, 1), bytes[8];
    memcpy(bytes, &fill, 8);
    CHECK(mds_pieces_follow(pieces, begins, n, whole) == n);
    mds_join_pieces(pieces, begins, n, whole, fill, out);
    for (size_t k = 0, at = 0; k <= n; k++) {
        const size_t begin = k < n ? (size_t)begins[k] : whole;
        for (size_t i = at; i < begin; i++)
            CHECK(out[i] == bytes[(i - at) % sizeof bytes]);
        if (k < n && pieces[k].size)
            CHECK(memcmp(out + begin, pieces[k].data, pieces[k].size) == 0);
        at = k < n ? begin + pieces[k].size : whole;
    }
    if (total)
        CHECK(mds_pieces_follow(pieces, begins, n, total - 1) < n);
    if (n > 1 && pieces[n - 2].size) {
        begins[n - 1] = begins[n - 2] + (gaps >> 14) % pieces[n - 2].size;
        CHECK(mds_pieces_follow(pieces, begins, n, whole) == n - 1);
    }
    begins[n - 1] = UINT64_MAX - gaps % 9;
    CHECK(mds_pieces_follow(pieces, begins, n, whole) == n - 1);
    free(out);
    free(begins);
}

/* Number tokens as a plain loop does, in both widths. */
static void check_numbered(const mds_piece *pieces, size_t n)
{
    uint64_t bounds[RECORDS + 1] = {0}, wide[RECORDS * 64];
    uint32_t narrow[RECORDS * 64];
    int32_t numbers[RECORDS], ids[RECORDS * 64];
    for (size_t k = 0; k < n; k++) {
        bounds[k + 1] = bounds[k] + pieces[k].size % 64;
        numbers[k] = (int32_t)k - 1;
    }
    mds_number_tokens(bounds, n, 8, wide, NULL, NULL);
    mds_number_tokens(bounds, n, 4, narrow, numbers, ids);
    for (size_t k = 0; k < n; k++)
        for (uint64_t i = bounds[k]; i < bounds[k + 1]; i++)
            CHECK(wide[i] == i - bounds[k] && narrow[i] == wide[i] && ids[i] == numbers[k]);
}

static void pad(const mds_array_field *fields, size_t count, size_t f, const mds_request *requests, size_t n,
                const mds_array_value *values, uint64_t longest, int left)
{
    const uint64_t row = row_of(&fields[f], &values[f]);
    if (row == MDS_NONE || row > 4096)
        return;
    mds_piece *pieces = fuzz_room(n, sizeof *pieces);
    const size_t same = mds_array_pieces(requests, values + f, count, n, longest, left, row, pieces);
    CHECK(same <= n);
    for (size_t k = 0; k < same; k++) {
        const mds_array_value *value = &values[k * count + f];
        const uint8_t *begin = requests[k].data + value->begin;
        CHECK(pieces[k].size <= longest * row && pieces[k].size <= value->size);
        if (pieces[k].size)
            CHECK(left ? pieces[k].data + pieces[k].size == begin + value->size : pieces[k].data == begin);
    }
    if (same) {
        check_joined(pieces, same, (size_t)row, longest * 0x9e3779b97f4a7c15 >> 20, UINT64_C(0x0807060504030201));
        check_numbered(pieces, same);
    }
    uint64_t *words = fuzz_room(n, sizeof *words), *shapes = fuzz_room(n * fields[f].dims, sizeof *shapes);
    mds_array_words(values + f, count, n, words);
    mds_array_shapes(values + f, count, n, fields[f].dims, shapes);
    for (size_t k = 0; k < n; k++) {
        CHECK(words[k] == shapes[k * fields[f].dims]);
        CHECK(memcmp(shapes + k * fields[f].dims, values[k * count + f].shape, fields[f].dims * 8) == 0);
    }
    free(words);
    free(shapes);
    free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint64_t items[] = {1, 2, 4, 8};
    fuzz_input input = {data, size};
    mds_array_field fields[FIELDS] = {{.dims = 0}};
    const size_t count = (size_t)fuzz_between(&input, 1, FIELDS), n = (size_t)fuzz_between(&input, 1, RECORDS);
    for (size_t f = 0; f < count; f++) {
        const uint64_t choice = fuzz_take(&input, 1);
        fields[f] =
            (mds_array_field){.kind = choice % 8 ? MDS_ARRAY_ITEMS : MDS_ARRAY_WORD, .item = items[choice / 8 % 4]};
        fields[f].dims = fields[f].kind == MDS_ARRAY_ITEMS ? 1 + choice / 32 % 2 : 0;
        fields[f].shape[0] = MDS_NONE;
        fields[f].shape[1] = choice >> 6 & 1 ? MDS_NONE : choice >> 7 ? 3 : 0;
    }
    const uint64_t longest = fuzz_between(&input, 0, 12);
    const int mend = (int)fuzz_take(&input, 1) & 1, left = (int)fuzz_take(&input, 1) & 1;
    uint64_t ends[RECORDS] = {0}, words = 1;
    for (size_t k = 0; k < n; k++)
        ends[k] = fuzz_take(&input, 1) * 4 + (k ? ends[k - 1] : 0);
    uint8_t *bytes = fuzz_copy(input.data, input.left);
    for (size_t f = 0; f < count; f++)
        words += fields[f].dims == 2 && fields[f].shape[1] == MDS_NONE ? 2 : 1;
    const mds_map map = {bytes, input.left, 0, NULL};
    const mds_source source = {.map = &map, .stride = 1, .count = n};
    mds_request requests[RECORDS];
    for (size_t k = 0; k < n; k++) {
        const uint64_t begin = k ? requests[k - 1].span.end : 0;
        uint64_t end = ends[k] < input.left ? ends[k] : input.left;
        end = end > begin ? end : begin;
        if (mend && end - begin >= 8 * words) { /* small lengths, and the size that they need */
            uint64_t word, at = 8 * words;
            for (size_t w = 1; w < words; w++) {
                word = bytes[begin + 8 * w] % 5;
                memcpy(bytes + begin + 8 * w, &word, 8);
            }
            for (size_t f = 0, w = 1; f < count; f++) {
                uint64_t length = fields[f].item;
                for (size_t d = 0; d < fields[f].dims; d++)
                    length *= fields[f].shape[d] == MDS_NONE ? bytes[begin + 8 * w++] : fields[f].shape[d];
                w += fields[f].kind == MDS_ARRAY_WORD;
                at = fields[f].kind == MDS_ARRAY_WORD ? at : (at + 63) / 64 * 64 + length;
            }
            if (at <= input.left - begin)
                end = begin + at;
            memcpy(bytes + begin, &at, 8);
        }
        requests[k] = (mds_request){&source, k, {begin, end}, bytes + begin};
    }
    mds_array_value *values = fuzz_room(n * count, sizeof *values);
    size_t failed = 0;
    const size_t good = mds_array_records(fields, count, requests, n, values, &failed);
    CHECK(good <= n && (good == n || failed <= count));
    for (size_t f = 0; good && f < count; f++)
        if (fields[f].kind == MDS_ARRAY_ITEMS)
            pad(fields, count, f, requests, good, values, longest, left);
    free(values);
    free(bytes);
    return 0;
}
