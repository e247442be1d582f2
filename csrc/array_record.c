/* array_record.c - finds the fields of a record of named arrays by its table. See docs/arrays.md. */
#include "mmapds.h"

#include <string.h>

/* The next word of the table; 0 if the record ends before it. */
static int next_word(const uint8_t *data, uint64_t n, uint64_t *at, uint64_t *word)
{
    if (*at > n || n - *at < 8)
        return 0;
    memcpy(word, data + *at, 8);
    *at += 8;
    return 1;
}

/* Read the lengths of ragged axes from the table, and multiply. An axis may not exceed INT64_MAX, and neither may the
 * product of those that are not 0: array libraries hold no more. */
static int array_size(const mds_array_field *field, const uint8_t *data, uint64_t n, uint64_t *at,
                      mds_array_value *value)
{
    uint64_t size = field->item;
    int empty = 0;
    value->word = MDS_NONE;
    for (size_t d = 0; d < field->dims; d++) {
        uint64_t length = field->shape[d];
        if (length == MDS_NONE && !next_word(data, n, at, &length))
            return 0;
        if (value->word == MDS_NONE)
            value->word = length;
        if (length > INT64_MAX)
            return 0;
        empty |= length == 0;
        if (length && (__builtin_mul_overflow(size, length, &size) || size > INT64_MAX))
            return 0;
        value->shape[d] = length;
    }
    value->size = empty ? 0 : size;
    return 1;
}

/* Give the value the next bytes of the record, from *at rounded up to a multiple of `alignment`. */
static int place(mds_array_value *value, uint64_t n, uint64_t *at, uint64_t alignment)
{
    const uint64_t begin = (*at + alignment - 1) / alignment * alignment; /* *at <= n, far from overflow */
    if (begin > n || n - begin < value->size)
        return 0;
    value->begin = begin;
    *at = begin + value->size;
    return 1;
}

int mds_array_record(const mds_array_field *fields, size_t count, const uint8_t *data, uint64_t n,
                     mds_array_value *values, uint64_t *size, size_t *failed)
{
    uint64_t at = 0, whole = 0;
    *failed = count;
    if (n > INT64_MAX || !next_word(data, n, &at, &whole) || whole > n)
        return 0;
    *size = whole;
    for (size_t f = 0; f < count; f++) {
        mds_array_value *value = &values[f];
        *failed = f;
        value->begin = value->size = 0;
        if (fields[f].kind == MDS_ARRAY_ITEMS) {
            if (!array_size(&fields[f], data, whole, &at, value))
                return 0;
        } else {
            if (!next_word(data, whole, &at, &value->word))
                return 0;
            if (fields[f].kind == MDS_ARRAY_BYTES)
                value->size = value->word;
        }
    }
    for (int arrays = 0; arrays < 2; arrays++) {
        for (size_t f = 0; f < count; f++) {
            const mds_array_kind kind = arrays ? MDS_ARRAY_ITEMS : MDS_ARRAY_BYTES;
            *failed = f;
            if (fields[f].kind == kind && !place(&values[f], whole, &at, arrays ? MDS_ARRAY_ALIGNMENT : 1))
                return 0;
        }
    }
    *failed = count;
    return at == whole;
}

size_t mds_array_records(const mds_array_field *fields, size_t count, const mds_request *records, size_t n,
                         mds_array_value *values, size_t *failed)
{
    for (size_t k = 0; k < n; k++) {
        const mds_span span = records[k].span;
        uint64_t size;
        if (!mds_array_record(fields, count, records[k].data, span.end - span.begin, values + k * count, &size, failed))
            return k;
    }
    return n;
}

void mds_array_words(const mds_array_value *values, size_t stride, size_t n, uint64_t *out)
{
    for (size_t k = 0; k < n; k++)
        out[k] = values[k * stride].word;
}

void mds_array_shapes(const mds_array_value *values, size_t stride, size_t n, size_t dims, uint64_t *out)
{
    for (size_t k = 0; k < n; k++)
        memcpy(out + k * dims, values[k * stride].shape, dims * sizeof *out);
}
