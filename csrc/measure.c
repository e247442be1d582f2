/* measure.c - measures the columns of a block of lines while it is cut into records, and converts their numbers. */
#include "mmapds.h"

#include <string.h>

static int is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static double as_double(uint64_t bits, mds_number_type type)
{
    double value;
    if (type == MDS_F64)
        memcpy(&value, &bits, 8);
    else
        value = type == MDS_I64 ? (double)(int64_t)bits : (double)bits;
    return value;
}

void mds_cells_convert(uint64_t *cells, size_t n, mds_number_type from, mds_number_type to)
{
    if (from == to || to != MDS_F64) /* integers that fit both types have the same bits */
        return;
    for (size_t i = 0; i < n; i++) {
        const double value = as_double(cells[i], from);
        memcpy(&cells[i], &value, 8);
    }
}

/* Whether a double holds an integer exactly. */
static int is_exact(mds_number number)
{
    const int negative = number.type == MDS_I64 && number.bits > INT64_MAX;
    const uint64_t magnitude = negative ? 0 - number.bits : number.bits;
    const double value = (double)magnitude;
    return value < 18446744073709551616.0 && (uint64_t)value == magnitude;
}

size_t mds_cells_inexact(const uint64_t *cells, size_t n, mds_number_type type)
{
    size_t i = type == MDS_F64 ? n : 0;
    while (i < n && is_exact((mds_number){type, cells[i]}))
        i++;
    return i;
}

void mds_cells_widen(const uint32_t *numbers, size_t n, uint64_t *cells)
{
    for (size_t i = 0; i < n; i++)
        cells[i] = numbers[i];
}

void mds_cells_narrow(const uint64_t *cells, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)cells[i];
}

uint64_t mds_cells_largest(const uint64_t *cells, size_t n)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = cells[i] > largest ? cells[i] : largest;
    return largest;
}

/* Append a number to a column, and widen the type of the column if it does not hold the number. A non-negative number
 * below 2^63 also fits signed integers. *rounded becomes the first row whose integer is rounded, unless it is set
 * already. */
static void append(uint64_t *cells, size_t n, mds_number_type *type, mds_number number, uint64_t *rounded)
{
    if (number.type == *type) {
        cells[n] = number.bits;
        return;
    }
    mds_number_type own = number.type;
    if (own == MDS_U64 && *type == MDS_I64 && number.bits <= INT64_MAX)
        own = MDS_I64;
    if (own == MDS_I64 && *type == MDS_U64 && mds_cells_largest(cells, n) <= INT64_MAX)
        *type = MDS_I64;
    const mds_number_type both = own == *type ? own : MDS_F64;
    if (both == MDS_F64 && *rounded == MDS_NONE) {
        size_t first = mds_cells_inexact(cells, n, *type);
        if (first == n)
            first += mds_cells_inexact(&number.bits, 1, number.type);
        if (first < n + (number.type != MDS_F64))
            *rounded = first;
    }
    mds_cells_convert(cells, n, *type, both);
    *type = both;
    cells[n] = number.bits;
    mds_cells_convert(&cells[n], 1, number.type, both);
}

/* Bytes of a record without its end of line and what follows. */
static size_t payload_size(const uint8_t *record, size_t size)
{
    const uint8_t *newline = memchr(record, '\n', size);
    return newline ? (size_t)(newline - record) - (newline > record && newline[-1] == '\r') : size;
}

static int is_missing(mds_json_status status)
{
    return status == MDS_JSON_PARTIAL || status == MDS_JSON_MISSING;
}

/* Measure all columns of the record in [begin, end) as row `row` of the cells. */
static mds_json_status measure_record(const mds_kernels *kernels, const mds_text *text, const mds_measuring *measuring,
                                      uint64_t begin, uint64_t end, size_t row, mds_measured *measured)
{
    const uint8_t *record = text->data + (begin - text->base);
    const size_t size = (size_t)(end - begin), readable = text->size - (size_t)(begin - text->base);
    size_t where = 0;
    mds_number numbers[MDS_COLUMNS];
    mds_json_status status = MDS_JSON_OK;
    measured->column = measuring->columns;
    if (measuring->validate && !mds_json_valid(kernels, record, size, &where))
        status = MDS_JSON_INVALID;
    for (size_t c = 0; c < measuring->columns && status == MDS_JSON_OK; c++) {
        mds_number number = {MDS_U64, 0};
        if (measuring->fields[c].measure == MDS_MEASURE_RECORD) {
            number.bits = payload_size(record, size);
        } else {
            measured->column = c;
            status = mds_json_measure(kernels, record, size, readable, &measuring->fields[c], &number, &where);
            if (is_missing(status) && measuring->missing == MDS_MISSING_FILL) {
                number = status == MDS_JSON_PARTIAL ? number : measuring->fill;
                measured->filled[c] += status == MDS_JSON_MISSING || !number.bits;
                status = MDS_JSON_OK;
            }
        }
        numbers[c] = number;
    }
    for (size_t c = 0; c < measuring->columns && status == MDS_JSON_OK; c++) /* skipped records must not widen a type */
        append(measured->cells[c], row, &measured->types[c], numbers[c], &measured->rounded[c]);
    measured->failed = begin;
    measured->at = begin + where;
    return status;
}

/* Measure the record in [begin, end), and keep or skip it. */
static mds_json_status take_record(const mds_kernels *kernels, const mds_text *text, const mds_measuring *measuring,
                                   uint64_t begin, uint64_t end, uint64_t *starts, mds_measured *measured)
{
    const mds_json_status status = measure_record(kernels, text, measuring, begin, end, measured->kept, measured);
    if (status == MDS_JSON_OK) {
        starts[measured->kept++] = begin;
        return MDS_JSON_OK;
    }
    if ((status == MDS_JSON_INVALID || status == MDS_JSON_TYPE) && measuring->skip_bad) {
        if (measured->bad < MDS_BAD_LISTED)
            measured->bad_starts[measured->bad] = begin;
        measured->bad++;
        return MDS_JSON_OK;
    }
    return is_missing(status) && measuring->missing == MDS_MISSING_SKIP ? MDS_JSON_OK : status;
}

/* Records to measure together. */
#define TOGETHER 128
typedef struct {
    uint64_t bounds[TOGETHER + 1]; /* in the text: where each begins, and where the last one ends */
    size_t n;
} records;

/* Whether the columns are one number of a simple path: most of its records can be measured together. */
static int is_simple(const mds_measuring *measuring)
{
    const mds_field *field = measuring->fields;
    return measuring->columns == 1 && !measuring->validate && field->segments == 1 && !field->is_sum;
}

/* Measure records, and keep or skip each; the first status that is an error. */
static mds_json_status take_records(const mds_kernels *kernels, const mds_text *text, const mds_measuring *measuring,
                                    records *found, uint64_t *starts, mds_measured *measured)
{
    mds_number numbers[TOGETHER];
    uint8_t is_measured[TOGETHER] = {0};
    mds_json_status status = MDS_JSON_OK;
    if (found->n && is_simple(measuring))
        mds_json_measure_all(kernels, text->data, text->size, found->bounds, found->n, measuring->fields, numbers,
                             is_measured);
    for (size_t k = 0; k < found->n && status == MDS_JSON_OK; k++) {
        const uint64_t begin = text->base + found->bounds[k];
        if (is_measured[k]) {
            append(measured->cells[0], measured->kept, &measured->types[0], numbers[k], &measured->rounded[0]);
            starts[measured->kept++] = begin;
        } else {
            status = take_record(kernels, text, measuring, begin, text->base + found->bounds[k + 1], starts, measured);
        }
    }
    found->bounds[0] = found->bounds[found->n];
    found->n = 0;
    return status;
}

/* Where the line that holds `at` begins, if only blanks or a byte order mark lie in between; else MDS_NONE. */
static uint64_t blank_line_start(const mds_text *text, uint64_t at)
{
    size_t p = (size_t)(at - text->base);
    while (p > 0 && is_blank(text->data[p - 1]))
        p--;
    const int first = text->base == 0 && (p == 0 || (p == 3 && memcmp(text->data, "\xef\xbb\xbf", 3) == 0));
    return first || (p > 0 && text->data[p - 1] == '\n') ? text->base + p : MDS_NONE;
}

/* Where the record that begins at `open` ends: after its line, or at the end of the text. */
static uint64_t line_end(const mds_text *text, uint64_t open)
{
    const size_t p = (size_t)(open - text->base);
    const uint8_t *newline = memchr(text->data + p, '\n', text->size - p);
    return text->base + (newline ? (size_t)(newline - text->data) + 1 : text->size);
}

/* Small enough to stay in the second-level cache from being cut into lines to being measured. */
#define WINDOW (256 << 10)

mds_json_status mds_measure_lines(const mds_kernels *kernels, const mds_text *text, uint64_t begin, uint64_t end,
                                  const mds_measuring *measuring, mds_lines *state, uint64_t *starts,
                                  mds_measured *measured)
{
    uint64_t open = MDS_NONE; /* start of the record whose end is unknown yet */
    mds_json_status status = MDS_JSON_OK;
    records found = {.n = 0};
    measured->records = measured->kept = measured->bad = 0;
    const uint64_t line = blank_line_start(text, begin);
    const int mid_line = line == MDS_NONE;
    if (!mid_line && state->pending == begin)
        state->pending = line; /* the record includes the blanks at its front */
    for (uint64_t at = begin; at < end; at += WINDOW) {
        const size_t size = (size_t)(end - at < WINDOW ? end - at : WINDOW);
        const uint64_t *fresh = starts + measured->kept; /* kept starts overwrite only those already read */
        const size_t room = MDS_LINES_CAPACITY((size_t)(end - begin)) - measured->kept - (open != MDS_NONE);
        const size_t count =
            mds_lines_scan(kernels, text->data + (at - text->base), size, at, state, starts + measured->kept, room);
        for (size_t k = 0; k < count; k++) {
            const uint64_t next = fresh[k];
            if (at == begin && k == 0 && next == begin && mid_line)
                continue; /* the previous block measures it */
            found.n += open != MDS_NONE;
            found.bounds[found.n] = next - text->base;
            open = next;
            measured->records++;
            if (found.n == TOGETHER || k + 1 == count)
                status = take_records(kernels, text, measuring, &found, starts, measured);
            if (status != MDS_JSON_OK)
                return status;
        }
    }
    if (open != MDS_NONE)
        status = take_record(kernels, text, measuring, open, line_end(text, open), starts, measured);
    return status;
}
