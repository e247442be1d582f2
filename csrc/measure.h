/* measure.h - numbers of JSON records, measured while lines are found: json.c and measure.c. Part of mmapds.h. */
#ifndef MMAPDS_MEASURE_H
#define MMAPDS_MEASURE_H

/* ---- json.c: one field of a JSON record, measured in place ------------------------------------------------------ */

/* What to measure. */
typedef enum {
    MDS_MEASURE_NUMBER, /* the number at the path */
    MDS_MEASURE_BYTES,  /* bytes of the string at the path, decoded to UTF-8 */
    MDS_MEASURE_CHARS,  /* code points of the string at the path */
    MDS_MEASURE_ITEMS,  /* elements of the array at the path, not counting those of arrays inside it */
    MDS_MEASURE_RECORD, /* bytes of the record; takes no path and reads no JSON */
} mds_measure;

#define MDS_PATH 16
#define MDS_JSON_DEPTH 1024 /* nesting of arrays and objects, as deep as orjson accepts it */

typedef struct {
    mds_measure measure;
    size_t segments; /* keys of the path from the record on, 1 or more */
    const uint8_t *keys[MDS_PATH];
    size_t key_sizes[MDS_PATH];
    int escaped;   /* what mds_field_escaped says */
    int is_sum;    /* add up the measures of all elements of the array at these keys; 0 without elements */
    size_t inside; /* keys inside an element, after the `segments` others: b in a[*].b; at most MDS_PATH together */
} mds_field;

/* Return whether JSON must escape a key of the path, so that a search for its bytes fails. */
int mds_field_escaped(const mds_field *field);

/* How to read the 64 bits of a number. A column has one type for all its numbers: the first of these that holds
 * them. */
typedef enum { MDS_U64, MDS_I64, MDS_F64 } mds_number_type;

typedef struct {
    mds_number_type type; /* MDS_I64 for negative integers only */
    uint64_t bits;
} mds_number;

typedef enum {
    MDS_JSON_OK,
    MDS_JSON_PARTIAL, /* of a sum: elements are null or lack the value; the number is the sum of the others */
    MDS_JSON_MISSING, /* the record has no such field, or it is null */
    MDS_JSON_TYPE,    /* the field has another type; `at` is where it begins */
    MDS_JSON_INVALID, /* the record is not JSON; `at` is the byte that shows it */
} mds_json_status;

/* Measure a field of the record data[0..n). May read up to data[0..readable), readable >= n, which saves a copy of the
 * last block. The last of duplicate keys counts, as in orjson. It reads only brackets, strings and possible keys, so an
 * invalid record may pass: see mds_json_valid. In a sum, an element of another type is reported before one that lacks
 * the value. Integers are added exactly, and rounded to a double if 64 bits do not hold their sum; others as doubles. */
mds_json_status mds_json_measure(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t readable,
                                 const mds_field *field, mds_number *number, size_t *at);

/* Measure a field, of one key and no sum, in many records that follow one another: record k is data[bounds[k]) to
 * data[bounds[k + 1]), and ends with a line end. numbers[k] is what mds_json_measure finds where is_measured[k] is set.
 * It is not set unless that returns MDS_JSON_OK, nor for some records that are written in unusual ways. */
void mds_json_measure_all(const mds_kernels *kernels, const uint8_t *data, size_t readable, const uint64_t *bounds,
                          size_t n, const mds_field *field, mds_number *numbers, uint8_t *is_measured);

/* Whether data[0..n) is one JSON value, strictly by RFC 8259: UTF-8 and surrogate pairs are checked, numbers are finite
 * as doubles, nesting is at most MDS_JSON_DEPTH. If not, *at is the byte that shows it. */
int mds_json_valid(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t *at);

/* ---- measure.c: columns of the records of a file ---------------------------------------------------------------- */

typedef enum { MDS_MISSING_ERROR, MDS_MISSING_SKIP, MDS_MISSING_FILL } mds_missing;

/* How to measure the columns of an index. */
#define MDS_COLUMNS 64
typedef struct {
    const mds_field *fields; /* one for each column */
    size_t columns;          /* MDS_COLUMNS or fewer */
    mds_missing missing;     /* what to do with a record that lacks a field */
    mds_number fill;         /* for MDS_MISSING_FILL; an element of a sum counts 0 */
    int validate;            /* check every record with mds_json_valid */
    int skip_bad;            /* skip bad records: of another type, or, with `validate`, not JSON */
} mds_measuring;

#define MDS_BAD_LISTED 20

/* HowTo: cut a file into blocks, and measure them in any order, also in parallel. The text of a block goes from the
 * line before it, or from so much of this line that a byte is not blank, to the end of its last line. Each block begins
 * with its own state.pending = begin, types[c] = MDS_U64, filled[c] = 0 and rounded[c] = MDS_NONE. `starts` and each
 * cells[c] have room for MDS_LINES_CAPACITY(end - begin):
 *
 *     status = mds_measure_lines(kernels, &text, begin, end, &measuring, &state, starts, &measured);
 *     if MDS_JSON_OK: starts[0..kept) and cells[c][0..kept) are the records of the block
 *
 * Blocks may differ in the type of a column: convert them with mds_cells_convert. */
typedef struct {
    const uint8_t *data;
    size_t size;
    uint64_t base; /* where data[0] lies in the file */
} mds_text;

typedef struct {
    uint64_t *const *cells; /* cells[c] receives the numbers of column c */
    mds_number_type *types; /* the type of each column so far */
    size_t *filled;         /* of each column, the number of records that got `fill`, or in whose sum nothing counted */
    uint64_t *rounded;      /* of each column, the first record whose integer was rounded to a double, or MDS_NONE */
    size_t records;         /* records that begin in the block */
    size_t kept;            /* number of kept records, before the first that cannot be measured */
    size_t bad;             /* bad records that were skipped */
    uint64_t bad_starts[MDS_BAD_LISTED]; /* where the first of them begin */
    uint64_t failed;                     /* begin of the record that cannot be measured */
    uint64_t at;                         /* the byte of the error in the file */
    size_t column;                       /* the column that failed, or `columns` if the record is not JSON */
} mds_measured;

/* Find the records that begin in the block [begin, end) of the text, as mds_lines_scan does, and measure each as a
 * whole, even if it ends after the block. A record that begins in an earlier block belongs to that block. Stops at the
 * first record that cannot be measured. */
mds_json_status mds_measure_lines(const mds_kernels *kernels, const mds_text *text, uint64_t begin, uint64_t end,
                                  const mds_measuring *measuring, mds_lines *state, uint64_t *starts,
                                  mds_measured *measured);

/* Convert cells: to another type in place; to 32-bit integers, which must hold them; and back. Find the first integer
 * that doubles cannot hold, n without; and the largest cell, read as an unsigned integer. */
void mds_cells_convert(uint64_t *cells, size_t n, mds_number_type from, mds_number_type to);
size_t mds_cells_inexact(const uint64_t *cells, size_t n, mds_number_type type);
void mds_cells_narrow(const uint64_t *cells, size_t n, uint32_t *out);
void mds_cells_widen(const uint32_t *numbers, size_t n, uint64_t *cells);
uint64_t mds_cells_largest(const uint64_t *cells, size_t n);

#endif
