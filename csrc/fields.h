/* fields.h - fields of JSON records as arrays: the public functions of fields.c. mmapds.h includes it. */
#ifndef MMAPDS_FIELDS_H
#define MMAPDS_FIELDS_H

typedef enum {
    MDS_ITEM_BOOL,
    MDS_ITEM_INT,
    MDS_ITEM_UINT,
    MDS_ITEM_FLOAT,
    MDS_ITEM_BFLOAT, /* the upper half of a float of 32 bits */
    MDS_ITEM_TEXT,   /* bytes of a string in UTF-8 */
} mds_item_kind;

typedef enum {
    MDS_LAYOUT_ANY,    /* an item, or an array with any number of axes */
    MDS_LAYOUT_SHAPE,  /* an array of a given shape; without axes, an item */
    MDS_LAYOUT_RAGGED, /* an array of arrays of any lengths */
} mds_layout;

/* A field to read. */
typedef struct {
    mds_item_kind kind;
    unsigned size; /* bytes of an item: 1, 2, 4 or 8 */
    mds_layout layout;
    size_t dims;
    uint64_t shape[MDS_ARRAY_DIMS]; /* MDS_NONE: an axis of any length */
    size_t segments;                /* keys of its path, 1 to MDS_PATH */
    const uint8_t *keys[MDS_PATH];
    size_t key_sizes[MDS_PATH];
    const uint8_t *fallback; /* JSON for records without the field; NULL to refuse them */
    size_t fallback_size;
} mds_wanted;

typedef enum {
    MDS_WANTED_OK = 0,
    MDS_WANTED_MISSING,    /* the field is absent or null */
    MDS_WANTED_TYPE,       /* a value of another type */
    MDS_WANTED_RANGE,      /* a number that the items cannot hold */
    MDS_WANTED_SHAPE,      /* an array of another shape, or no array */
    MDS_WANTED_RAGGED,     /* inner arrays of different lengths */
    MDS_WANTED_INVALID,    /* the record is not JSON */
    MDS_WANTED_NOT_OBJECT, /* the record, or a value on the path, is not an object */
} mds_wanted_status;

/* The value of a field in one record. */
typedef struct {
    mds_wanted_status status;
    size_t at;             /* the byte of the error in the record */
    uint64_t begin, count; /* its range in the items of the field */
    uint64_t first_row;    /* of a ragged array: the entry of its first row in `ends` */
    size_t dims;           /* 0 for one item */
    uint64_t shape[MDS_ARRAY_DIMS];
} mds_value;

/* The items of a field of many records, one after another. */
typedef struct {
    uint8_t *items; /* memory for `room` items */
    uint64_t used, room;
    uint64_t *ends; /* of ragged arrays: where each row ends among the items of its array; room for `room`, else NULL */
    uint64_t rows;
} mds_items;

/* Why a record is refused. */
typedef struct {
    mds_wanted_status status;
    size_t request; /* its number in the batch */
    size_t field;   /* the number of fields means the record itself */
    size_t at;      /* the byte of the error in the record */
} mds_refusal;

/* The most items, or rows of a ragged array, of a field in a record of n bytes. A text has up to n. */
uint64_t mds_fields_most(const mds_kernels *kernels, const mds_wanted *field, const uint8_t *data, uint64_t n);

/* Read `count` fields from the record data[0..n). Fields are sorted by path, and none lies in another.
 * Checks the whole record as mds_json_valid does. The last of duplicate keys counts. items[f] needs room for
 * mds_fields_most more items. Returns 0 and the refusal, and leaves no items, if a field cannot be read. */
int mds_fields_read(const mds_kernels *kernels, const mds_wanted *fields, size_t count, const uint8_t *data, size_t n,
                    mds_value *values, mds_items *items, mds_refusal *refusal);

/* Many records. Begin with `next`, `kept`, `refused` and the items' `used` and `rows` 0, and call until it returns 1:
 *
 *     if 0: give each items[f] the room wanted[f] or more, and call again
 *     if 1: the values of record requests[places[k]] are values[k * count] and on, for k < kept
 *
 * Stops at the first record that is refused, unless `skip`. Reads the maps: call it under a guard. */
typedef struct {
    const mds_wanted *fields;
    size_t count;
    const mds_request *requests;
    size_t n;
    int skip;
    size_t next;    /* the request to read next */
    size_t kept;    /* number of read records */
    size_t *places; /* the request of each read record; room for n */
    mds_value *values;
    mds_items *items;
    uint64_t *wanted;      /* room for `count` */
    mds_refusal *refusals; /* room for n, or with `skip` 0 for one */
    size_t refused;
} mds_fields_batch;

int mds_fields_read_many(const mds_kernels *kernels, mds_fields_batch *batch);

/* Write the shapes of a field of n records, whose values lie `stride` entries apart; 0 unless all have `dims` axes. */
int mds_fields_shapes(const mds_value *values, size_t stride, size_t n, size_t dims, uint64_t *out);

/* The arrays of one field of n records as pieces: the first `longest` entries of each along its first axis, or with
 * `left` the last ones. An entry has `row` items of `size` bytes. Returns the first array whose entries have another
 * size, or n if all agree. */
size_t mds_fields_pieces(const mds_value *values, size_t stride, size_t n, const uint8_t *items, size_t size,
                         uint64_t longest, int left, uint64_t row, mds_piece *pieces);

/* One item as a number: an integer, of MDS_ITEM_UINT its 64 bits; and a float. */
int64_t mds_item_integer(const mds_wanted *field, const uint8_t *item);
double mds_item_float(const mds_wanted *field, const uint8_t *item);

/* ---- json_cut.c: some items of an array -------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *key; /* of the array, in the object that a record is */
    size_t key_size;
    uint64_t begin, end; /* the wanted items */
    uint64_t items;      /* out: items of the array */
    size_t open, first;  /* out: the place after the bracket, and that of the wanted items */
    size_t last, close;  /* out: the place after them, and that of the closing bracket */
} mds_json_part;

/* Find the items begin to end of an array in the record data[0..n). Other items of numbers are counted, not checked.
 * Returns 0 if the record is no object with such an array, or malformed. */
int mds_json_cut(const mds_kernels *kernels, const uint8_t *data, size_t n, mds_json_part *part);

#endif
