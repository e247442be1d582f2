/* fuzz_json.c - hostile text through the JSON measurer and the validator.
 *
 * Property: all SIMD variants agree; nothing beyond the record is read; a record that is valid JSON is measured, missed or
 * found of another type, but never called invalid; lines measured in two blocks lose no record.
 * Input: a record, or several lines of them. */
#include "fuzz.h"

static mds_field field(mds_measure measure, const char *first, const char *second)
{
    mds_field f = {.measure = measure, .segments = second ? 2 : 1};
    f.keys[0] = (const uint8_t *)first;
    f.key_sizes[0] = strlen(first);
    if (second) {
        f.keys[1] = (const uint8_t *)second;
        f.key_sizes[1] = strlen(second);
    }
    f.escaped = mds_field_escaped(&f);
    return f;
}

/* The sum over the array at `first`, of `second` in each of its elements, or of these. */
static mds_field sum(mds_measure measure, const char *first, const char *second)
{
    mds_field f = field(measure, first, second);
    f.is_sum = 1;
    f.inside = f.segments - 1;
    f.segments = 1;
    return f;
}

static void measure_one(const uint8_t *data, size_t n)
{
    const mds_field fields[] = {
        field(MDS_MEASURE_NUMBER, "a", NULL),  field(MDS_MEASURE_BYTES, "a", NULL),
        field(MDS_MEASURE_CHARS, "len", NULL), field(MDS_MEASURE_ITEMS, "a", NULL),
        field(MDS_MEASURE_NUMBER, "a", "b"),   field(MDS_MEASURE_NUMBER, "x\"y", NULL),
        sum(MDS_MEASURE_NUMBER, "a", NULL),    sum(MDS_MEASURE_NUMBER, "a", "b"),
        sum(MDS_MEASURE_CHARS, "a", "b"),      sum(MDS_MEASURE_ITEMS, "a", NULL),
    };
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        mds_json_status first_status = MDS_JSON_OK;
        mds_number first_number = {MDS_U64, 0};
        for (size_t v = 0; mds_kernels_at(v); v++) {
            const mds_kernels *kernels = mds_kernels_at(v);
            size_t at = 0;
            mds_number number = {MDS_U64, 0};
            const int valid = mds_json_valid(kernels, data, n, &at);
            CHECK(at <= n);
            const mds_json_status status = mds_json_measure(kernels, data, n, n, &fields[f], &number, &at);
            CHECK(at <= n);
            CHECK(!valid || status != MDS_JSON_INVALID);
            if (kernels == mds_kernels_at(0)) {
                first_status = status;
                first_number = number;
            }
            CHECK(status == first_status);
            CHECK(status > MDS_JSON_PARTIAL || (number.type == first_number.type && number.bits == first_number.bits));
        }
    }
}

static void measure_lines(const uint8_t *data, size_t n)
{
    const mds_kernels *kernels = mds_kernels_at(0);
    uint64_t *starts = fuzz_room(MDS_LINES_CAPACITY(n), sizeof *starts);
    uint64_t *cells = fuzz_room(MDS_LINES_CAPACITY(n), sizeof *cells);
    const mds_field fields[] = {field(MDS_MEASURE_NUMBER, "a", NULL)};
    const mds_text text = {data, n, 0};
    for (int missing = MDS_MISSING_ERROR; missing <= MDS_MISSING_FILL; missing++) {
        const mds_measuring measuring = {fields, 1, (mds_missing)missing, {MDS_U64, 7}, missing == MDS_MISSING_FILL, 0};
        const uint64_t cut = n ? data[0] % (n + 1) : 0;
        size_t kept = 0, filled = 0;
        for (int part = 0; part < 2; part++) {
            const uint64_t begin = part ? cut : 0, end = part ? n : cut;
            mds_lines state = {begin, 0};
            mds_number_type type = MDS_U64;
            uint64_t *columns[] = {cells};
            uint64_t rounded = MDS_NONE;
            mds_measured measured = {.cells = columns, .types = &type, .filled = &filled, .rounded = &rounded};
            const mds_json_status status =
                mds_measure_lines(kernels, &text, begin, end, &measuring, &state, starts, &measured);
            const int stopped = status != MDS_JSON_OK && (status > MDS_JSON_MISSING || missing != MDS_MISSING_SKIP);
            CHECK(!stopped || (measured.failed < n && measured.at <= n));
            CHECK(measured.kept <= measured.records);
            kept += measured.kept;
        }
        CHECK(kept <= MDS_LINES_CAPACITY(n));
    }
    free(starts);
    free(cells);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    measure_one(data, n);
    measure_lines(data, n);
    free(data);
    return 0;
}
