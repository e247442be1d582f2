/* fuzz_measure.c - columns of hostile lines, measured in blocks.
 *
 * Property: blocks, wherever they are cut and whatever the variant, keep the records that are right one by one, with the
 * numbers that these have alone, or stop at the first record that is wrong alone; cells keep their numbers where they are
 * converted, narrowed and widened.
 * Input: four bytes that choose what to measure, one that counts the cuts, the cuts, then the lines. */
#include "fuzz.h"

#define COLUMNS 3
#define CUTS 3

static const mds_field fields[] = {
    {MDS_MEASURE_NUMBER, 1, {(const uint8_t *)"a"}, {1}, .escaped = 0},
    {MDS_MEASURE_NUMBER, 1, {(const uint8_t *)"len"}, {3}, .escaped = 0},
    {MDS_MEASURE_BYTES, 1, {(const uint8_t *)"a"}, {1}, .escaped = 0},
    {MDS_MEASURE_CHARS, 1, {(const uint8_t *)"text"}, {4}, .escaped = 0},
    {MDS_MEASURE_ITEMS, 1, {(const uint8_t *)"a"}, {1}, .escaped = 0},
    {MDS_MEASURE_RECORD, .segments = 0},
    {MDS_MEASURE_NUMBER, 2, {(const uint8_t *)"a", (const uint8_t *)"b"}, {1, 1}, .escaped = 0},
    {MDS_MEASURE_NUMBER, 1, {(const uint8_t *)"a", (const uint8_t *)"b"}, {1, 1}, .is_sum = 1, .inside = 1},
};

/* What each record gives alone, by the portable variant. */
typedef struct {
    uint64_t *starts;                /* of the records that are kept */
    mds_number *numbers;             /* of each of them, one for each column */
    uint64_t *bad;                   /* starts of those that are left out: not JSON, or of another type */
    size_t kept, bad_count, records; /* up to the one that is wrong */
    size_t filled[COLUMNS];          /* of each column, how many lack it */
    mds_json_status status;          /* of the one that is wrong, if there is one */
    uint64_t failed, failed_column;  /* where it begins, and its column */
} expected;

static uint64_t payload(const uint8_t *data, uint64_t begin, uint64_t end)
{
    while (end > begin && data[end - 1] != '\n')
        end--;
    if (end == begin)
        return 0;
    return end - begin - 1 - (end - begin > 1 && data[end - 2] == '\r');
}

static void one_by_one(const mds_text *text, const mds_measuring *measuring, uint64_t first, expected *all)
{
    const mds_kernels *plain = mds_kernels_find("portable");
    const size_t n = (size_t)text->size;
    uint64_t *starts = fuzz_room(MDS_LINES_CAPACITY(n), sizeof *starts);
    mds_lines state = {first, 0};
    const size_t count =
        mds_lines_scan(plain, text->data + first, n - (size_t)first, first, &state, starts, MDS_LINES_CAPACITY(n));
    for (size_t k = 0; k < count && all->status == MDS_JSON_OK; k++) {
        const uint8_t *record = text->data + starts[k], *newline = memchr(record, '\n', n - (size_t)starts[k]);
        const size_t size = newline ? (size_t)(newline - record) + 1 : n - (size_t)starts[k];
        mds_json_status status = MDS_JSON_OK;
        size_t at, column = measuring->columns;
        if (measuring->validate && !mds_json_valid(plain, record, size, &at))
            status = MDS_JSON_INVALID;
        for (size_t c = 0; c < measuring->columns && status == MDS_JSON_OK; c++) {
            mds_number *number = &all->numbers[all->kept * COLUMNS + c];
            column = c;
            if (measuring->fields[c].measure == MDS_MEASURE_RECORD)
                *number = (mds_number){MDS_U64, newline ? payload(text->data, starts[k], starts[k] + size) : size};
            else
                status = mds_json_measure(plain, record, size, size, &measuring->fields[c], number, &at);
            const int lacks = status == MDS_JSON_MISSING, partly = status == MDS_JSON_PARTIAL;
            if ((lacks || partly) && measuring->missing == MDS_MISSING_FILL) {
                *number = lacks ? measuring->fill : *number;
                status = MDS_JSON_OK;
                all->filled[c] += lacks || !number->bits;
            }
        }
        if (status == MDS_JSON_OK) {
            all->starts[all->kept++] = starts[k];
        } else if ((status == MDS_JSON_INVALID || status == MDS_JSON_TYPE) && measuring->skip_bad) {
            all->bad[all->bad_count++] = starts[k];
        } else if (status > MDS_JSON_MISSING || measuring->missing != MDS_MISSING_SKIP) {
            all->status = status;
            all->failed = starts[k];
            all->failed_column = column;
        }
        all->records += all->status == MDS_JSON_OK;
    }
    free(starts);
}

static double as_double(mds_number number)
{
    double value;
    memcpy(&value, &number.bits, 8);
    return number.type == MDS_F64 ? value : number.type == MDS_I64 ? (double)(int64_t)number.bits : (double)number.bits;
}

/* Whether a cell of a column holds a number. */
static int holds(uint64_t cell, mds_number_type type, mds_number number)
{
    if (type == MDS_F64) {
        const double wanted = as_double(number), found = as_double((mds_number){MDS_F64, cell});
        return memcmp(&wanted, &found, 8) == 0;
    }
    if (type == MDS_I64 && number.type == MDS_U64 && number.bits > INT64_MAX)
        return 0;
    return cell == number.bits && number.type != MDS_F64 && (type == MDS_I64 || number.type == MDS_U64);
}

static int is_inexact(mds_number number)
{
    uint64_t magnitude = number.type == MDS_I64 && number.bits >> 63 ? 0 - number.bits : number.bits;
    while (magnitude && !(magnitude & 1))
        magnitude >>= 1;
    return number.type != MDS_F64 && magnitude >> 53;
}

/* The first of n numbers, COLUMNS apart, that is rounded in a column of a type, or MDS_NONE. */
static uint64_t first_rounded(const mds_number *numbers, size_t n, mds_number_type type)
{
    for (size_t k = 0; type == MDS_F64 && k < n; k++)
        if (is_inexact(numbers[k * COLUMNS]))
            return k;
    return MDS_NONE;
}

static void in_blocks(const mds_kernels *kernels, const mds_text *text, const mds_measuring *measuring,
                      const uint64_t *cuts, size_t blocks, const expected *all)
{
    const size_t room = MDS_LINES_CAPACITY(text->size);
    uint64_t *starts = fuzz_room(room, sizeof *starts), *cells[COLUMNS];
    for (size_t c = 0; c < COLUMNS; c++)
        cells[c] = fuzz_room(room, sizeof **cells);
    size_t kept = 0, bad = 0, records = 0, filled[COLUMNS] = {0};
    mds_json_status status = MDS_JSON_OK;
    for (size_t b = 0; b < blocks && status == MDS_JSON_OK; b++) {
        mds_lines state = {cuts[b], 0};
        mds_number_type types[COLUMNS] = {MDS_U64, MDS_U64, MDS_U64};
        uint64_t rounded[COLUMNS] = {MDS_NONE, MDS_NONE, MDS_NONE};
        mds_measured found = {.cells = cells, .types = types, .filled = filled, .rounded = rounded};
        status = mds_measure_lines(kernels, text, cuts[b], cuts[b + 1], measuring, &state, starts, &found);
        if (status != MDS_JSON_OK) {
            CHECK(status == all->status && found.failed == all->failed && found.column == all->failed_column);
            CHECK(found.at >= found.failed && found.at <= text->size && kept + found.kept == all->kept);
            break;
        }
        CHECK(found.kept <= found.records && kept + found.kept <= all->kept);
        CHECK(memcmp(starts, all->starts + kept, found.kept * sizeof *starts) == 0);
        for (size_t k = 0; k < found.kept; k++)
            for (size_t c = 0; c < measuring->columns; c++)
                CHECK(holds(cells[c][k], types[c], all->numbers[(kept + k) * COLUMNS + c]));
        for (size_t c = 0; c < measuring->columns; c++)
            CHECK(rounded[c] == first_rounded(&all->numbers[kept * COLUMNS + c], found.kept, types[c]));
        for (size_t k = 0; k < found.bad && k < MDS_BAD_LISTED; k++)
            CHECK(bad + k < all->bad_count && found.bad_starts[k] == all->bad[bad + k]);
        kept += found.kept;
        bad += found.bad;
        records += found.records;
    }
    CHECK(status == all->status && (status != MDS_JSON_OK || (kept == all->kept && records == all->records)));
    CHECK(status != MDS_JSON_OK || (bad == all->bad_count && memcmp(filled, all->filled, sizeof filled) == 0));
    for (size_t c = 0; c < COLUMNS; c++)
        free(cells[c]);
    free(starts);
}

static void check_cells(const uint64_t *numbers, size_t n)
{
    uint64_t *cells = fuzz_room(n, sizeof *cells), *wide = fuzz_room(n, sizeof *wide), largest = 0;
    uint32_t *narrow = fuzz_room(n, sizeof *narrow);
    for (int type = MDS_U64; type <= MDS_I64; type++) {
        memcpy(cells, numbers, n * sizeof *cells);
        mds_cells_convert(cells, n, (mds_number_type)type, MDS_F64);
        for (size_t k = 0; k < n; k++)
            CHECK(holds(cells[k], MDS_F64, (mds_number){(mds_number_type)type, numbers[k]}));
        const size_t first = mds_cells_inexact(numbers, n, (mds_number_type)type);
        CHECK(first == n || is_inexact((mds_number){(mds_number_type)type, numbers[first]}));
        for (size_t k = 0; k < first; k++)
            CHECK(!is_inexact((mds_number){(mds_number_type)type, numbers[k]}));
    }
    for (size_t k = 0; k < n; k++) {
        cells[k] = numbers[k] & UINT32_MAX;
        largest = numbers[k] > largest ? numbers[k] : largest;
    }
    CHECK(mds_cells_largest(numbers, n) == largest);
    mds_cells_narrow(cells, n, narrow);
    mds_cells_widen(narrow, n, wide);
    CHECK(memcmp(cells, wide, n * sizeof *wide) == 0);
    free(cells);
    free(wide);
    free(narrow);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input input = {data, size};
    mds_field chosen[COLUMNS];
    mds_measuring measuring = {.fields = chosen};
    measuring.missing = (mds_missing)fuzz_between(&input, MDS_MISSING_ERROR, MDS_MISSING_FILL);
    const int how = (int)fuzz_take(&input, 1);
    measuring.validate = how & 1;
    measuring.skip_bad = how >> 1 & 1;
    measuring.columns = (size_t)fuzz_between(&input, 0, COLUMNS);
    const uint64_t which = fuzz_take(&input, 1);
    for (size_t c = 0; c < measuring.columns; c++)
        chosen[c] = fields[(which >> c) % (sizeof fields / sizeof *fields)];
    const double half = 0.5;
    measuring.fill = (mds_number){(mds_number_type)(which % 3), which};
    if (measuring.fill.type != MDS_U64)
        measuring.fill.bits = UINT64_MAX; /* -1 */
    if (measuring.fill.type == MDS_F64)
        memcpy(&measuring.fill.bits, &half, 8);
    const size_t blocks = (size_t)fuzz_between(&input, 0, CUTS) + 1;
    uint64_t shares[CUTS] = {0};
    for (size_t b = 0; b + 1 < blocks; b++)
        shares[b] = fuzz_take(&input, 1);
    const size_t n = input.left;
    const int marked = n >= 3 && memcmp(input.data, "\xef\xbb\xbf", 3) == 0; /* by a byte order mark */
    uint64_t cuts[CUTS + 2] = {marked ? 3 : 0};
    for (size_t b = 1; b < blocks; b++) {
        const uint64_t cut = n * shares[b - 1] / 255;
        cuts[b] = cut > cuts[b - 1] ? cut : cuts[b - 1];
    }
    cuts[blocks] = n;
    uint8_t *lines = fuzz_copy(input.data, n);
    const mds_text text = {lines, n, 0};
    expected all = {.status = MDS_JSON_OK};
    all.starts = fuzz_room(MDS_LINES_CAPACITY(n), sizeof *all.starts);
    all.bad = fuzz_room(MDS_LINES_CAPACITY(n), sizeof *all.bad);
    all.numbers = fuzz_room(MDS_LINES_CAPACITY(n) * COLUMNS + COLUMNS, sizeof *all.numbers);
    one_by_one(&text, &measuring, cuts[0], &all);
    for (size_t v = 0; mds_kernels_at(v); v++)
        in_blocks(mds_kernels_at(v), &text, &measuring, cuts, blocks, &all);
    uint64_t *numbers = fuzz_room(n / 8, sizeof *numbers);
    memcpy(numbers, lines, n / 8 * 8);
    check_cells(numbers, n / 8);
    free(numbers);
    free(all.starts);
    free(all.bad);
    free(all.numbers);
    free(lines);
    return 0;
}
