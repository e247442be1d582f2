/* json_items.h - the items of JSON arrays, as fields.c reads them. Private to the core. */
#ifndef MMAPDS_JSON_ITEMS_H
#define MMAPDS_JSON_ITEMS_H

#include "json_values.h"

/* A text, and the reason why the last value does not fit. */
typedef struct {
    const mds_kernels *kernels;
    const uint8_t *p;
    size_t n;
    mds_wanted_status status;
    size_t at; /* the byte of the error */
} mds_json_text;

/* Note an error and its place; return 0, as all functions here do after an error. Invalid JSON may be reported as a
 * wrong type: the caller finds out when it skips the value. */
size_t mds_refuse(mds_json_text *text, mds_wanted_status status, size_t at);

/* Read one item at p[i] into `out`, and return the place after it. */
size_t mds_read_item(mds_json_text *text, const mds_wanted *field, size_t i, uint8_t *out);

/* Read one item or more from p[i] on, up to the bracket that closes their array, into `out`, which has room for `room`.
 * Returns the place after the bracket, and how many they are. */
size_t mds_read_row(mds_json_text *text, const mds_wanted *field, size_t i, uint8_t *out, uint64_t room,
                    uint64_t *count);

/* After an item: the place of the next one, or with *more 0 the place after the closing bracket. */
static inline size_t mds_after_item(mds_json_text *text, size_t i, int *more)
{
    i = mds_json_spaces(text->p, i, text->n);
    *more = i < text->n && text->p[i] == ',';
    if (*more)
        return mds_json_spaces(text->p, i + 1, text->n);
    return i < text->n && text->p[i] == ']' ? i + 1 : mds_refuse(text, MDS_WANTED_TYPE, i);
}

#endif
