/* json_values.h - strings and numbers of JSON, as json.c reads them. Private to the core.
 *
 * Those that read begin at p[i] and read no byte from p[n] on. They return the place after what they have read, or 0 if
 * that is malformed. */
#ifndef MMAPDS_JSON_VALUES_H
#define MMAPDS_JSON_VALUES_H

#include "kernels.h"

static inline int mds_is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') < 10;
}

/* Read the escape that begins with the backslash at p[i], a pair of surrogates at once: the code point it stands
 * for. */
size_t mds_json_escape(const uint8_t *p, size_t i, size_t n, uint32_t *point);

/* Write a code point as UTF-8; return how many bytes it takes, at most 4. */
size_t mds_json_utf8(uint32_t point, uint8_t *out);

/* Read the rest of a string, p[i] being the byte after its opening quote: how many bytes and code points it decodes to.
 * If it is malformed, *at is the byte that shows it. */
size_t mds_json_string(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, size_t *bytes, size_t *chars,
                       size_t *at);

/* Read the number that begins with the digit or minus at p[i]. `number` may be NULL. If it is malformed or too large
 * for a double, *at is where it begins. */
size_t mds_json_number(const uint8_t *p, size_t i, size_t n, mds_number *number, size_t *at);

#endif
