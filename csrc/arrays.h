/* arrays.h - records of named arrays: find their fields, and pack columns into records. Part of mmapds.h. */
#ifndef MMAPDS_ARRAYS_H
#define MMAPDS_ARRAYS_H

/* ---- array_record.c: records of named arrays -------------------------------------------------------------------- */

typedef enum {
    MDS_ARRAY_WORD,  /* one 64-bit word of the record's table */
    MDS_ARRAY_BYTES, /* a run of bytes; the table gives its size */
    MDS_ARRAY_ITEMS, /* an array; the table gives the lengths of its ragged axes */
} mds_array_kind;

#define MDS_ARRAY_DIMS 8
#define MDS_ARRAY_ALIGNMENT 64

/* A field, as the schema describes it. */
typedef struct {
    mds_array_kind kind;
    uint64_t item; /* bytes of an element, below 2^32 */
    size_t dims;
    uint64_t shape[MDS_ARRAY_DIMS]; /* MDS_NONE: a ragged axis */
} mds_array_field;

/* The value of a field in one record. */
typedef struct {
    uint64_t word; /* its word of the table; of an array, the length of its first axis, or MDS_NONE without axes */
    uint64_t begin, size; /* its bytes in the record */
    uint64_t shape[MDS_ARRAY_DIMS];
} mds_array_value;

/* Find the fields of the record at `data`, of which n bytes may be read, and its size, which may be less. Returns 0
 * if a field lies outside the record; *failed is then this field, or `count` if the size of the record is wrong. */
int mds_array_record(const mds_array_field *fields, size_t count, const uint8_t *data, uint64_t n,
                     mds_array_value *values, uint64_t *size, size_t *failed);

/* Find the fields of n records that were located: those of records[k] are values[k * count] and on. Returns the first
 * record that mds_array_record refuses, or n if it accepts all. */
size_t mds_array_records(const mds_array_field *fields, size_t count, const mds_request *records, size_t n,
                         mds_array_value *values, size_t *failed);

/* The words, and the shapes of `dims` axes, of one field of n records, whose values lie `stride` entries apart. */
void mds_array_words(const mds_array_value *values, size_t stride, size_t n, uint64_t *out);
void mds_array_shapes(const mds_array_value *values, size_t stride, size_t n, size_t dims, uint64_t *out);

/* ---- array_pack.c: columns into records ------------------------------------------------------------------------- */

/* The bytes that a field has in each record: a run, or the elements of an array. Record k has sizes[k] bytes of `data`
 * from begins[k] on. */
typedef struct {
    const uint8_t *data;
    uint64_t size; /* of data */
    const uint64_t *begins, *sizes;
    int is_array;
} mds_array_part;

/* What records are made of: the words of their tables after the first, and their parts, in the order of the format. */
typedef struct {
    const uint64_t *const *words; /* words[w][k]: word w of record k */
    size_t n_words;
    const mds_array_part *parts;
    size_t n_parts;
} mds_array_columns;

typedef struct {
    size_t count;    /* how many records were written */
    int is_bad;      /* the next record has a part outside its data, or is too large */
    uint64_t needed; /* bytes for the next record, if it is not bad; less if all were written */
} mds_array_packed;

/* Write records first to n - 1, as many as `room` bytes hold, one after another, and where each ends in `out`. `ends`
 * has room for n - first. */
mds_array_packed mds_array_pack(const mds_array_columns *columns, size_t first, size_t n, uint8_t *out, uint64_t room,
                                uint64_t *ends);

#endif
