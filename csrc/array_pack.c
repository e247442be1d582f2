/* array_pack.c - puts columns together as records of named arrays. See docs/array-file.md. */
#include "mmapds.h"

#include <string.h>

#define MOST (INT64_MAX / 2) /* bytes of a record, so that rounding up stays in range */

/* A size rounded up to a multiple of MDS_ARRAY_ALIGNMENT. */
static uint64_t aligned(uint64_t size)
{
    return (size + MDS_ARRAY_ALIGNMENT - 1) / MDS_ARRAY_ALIGNMENT * MDS_ARRAY_ALIGNMENT;
}

/* The size of record k without the zeros at its end; 0 if a part lies outside its data or the record is too large. */
static uint64_t record_size(const mds_array_columns *columns, size_t k)
{
    uint64_t size = 8 * (1 + (uint64_t)columns->n_words);
    for (size_t p = 0; p < columns->n_parts; p++) {
        const mds_array_part *part = &columns->parts[p];
        const uint64_t begin = part->begins[k], bytes = part->sizes[k];
        if (begin > part->size || bytes > part->size - begin)
            return 0;
        if (part->is_array)
            size = aligned(size);
        if (size > MOST || bytes > MOST - size)
            return 0;
        size += bytes;
    }
    return size;
}

static uint8_t *zeros_to(uint8_t *at, const uint8_t *record, uint64_t offset)
{
    const size_t gap = (size_t)(offset - (uint64_t)(at - record));
    memset(at, 0, gap);
    return at + gap;
}

static void write_record(const mds_array_columns *columns, size_t k, uint64_t size, uint8_t *record)
{
    uint8_t *at = record;
    memcpy(at, &size, 8);
    at += 8;
    for (size_t w = 0; w < columns->n_words; w++, at += 8)
        memcpy(at, &columns->words[w][k], 8);
    for (size_t p = 0; p < columns->n_parts; p++) {
        const mds_array_part *part = &columns->parts[p];
        if (part->is_array)
            at = zeros_to(at, record, aligned((uint64_t)(at - record)));
        memcpy(at, part->data + part->begins[k], part->sizes[k]);
        at += part->sizes[k];
    }
    zeros_to(at, record, aligned(size));
}

mds_array_packed mds_array_pack(const mds_array_columns *columns, size_t first, size_t n, uint8_t *out, uint64_t room,
                                uint64_t *ends)
{
    mds_array_packed packed = {0, 0, 0};
    uint64_t at = 0;
    for (size_t k = first; k < n; k++) {
        const uint64_t size = record_size(columns, k);
        packed.is_bad = size == 0;
        packed.needed = aligned(size);
        if (packed.is_bad || packed.needed > room - at)
            break;
        write_record(columns, k, size, out + at);
        at += packed.needed;
        ends[packed.count++] = at;
    }
    return packed;
}
