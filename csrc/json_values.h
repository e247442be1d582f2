/* json_values.h - strings and numbers of JSON, as json.c and fields.c read them. Private to the core.
 *
 * Those that read begin at p[i] and read no byte from p[n] on. They return the place after what they have read, or 0 if
 * that is malformed. */
#ifndef MMAPDS_JSON_VALUES_H
#define MMAPDS_JSON_VALUES_H

#include "kernels.h"

#include <string.h>

static inline int mds_is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') < 10;
}

static inline int mds_is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The place of the first byte from p[i] on that is not white space. */
static inline size_t mds_json_spaces(const uint8_t *p, size_t i, size_t n)
{
    while (i < n && mds_is_space(p[i]))
        i++;
    return i;
}

/* Read the word null, true or false. */
static inline size_t mds_json_word(const uint8_t *p, size_t i, size_t n, const char *word)
{
    const size_t size = strlen(word);
    return n - i >= size && memcmp(p + i, word, size) == 0 ? i + size : 0;
}

/* How many of the eight bytes of a word, from the lowest on, are digits. The sum sets the high bit of the first byte that
 * is not one, as does the byte itself beyond ASCII; carries reach only bytes after it. */
static inline unsigned mds_digit_run(uint64_t word)
{
    const uint64_t digits = word ^ 0x3030303030303030;
    const uint64_t others = ((digits + 0x7676767676767676) | digits) & 0x8080808080808080;
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
}

/* The number that the first `count` bytes of a word write, 1 to 8, all of which are digits. Pairs of digits become
 * numbers up to 99, pairs of those up to 9999, and pairs of those the number, in three steps for all at once. */
static inline uint64_t mds_digits_value(uint64_t word, unsigned count)
{
    word = (word - 0x3030303030303030) << (64 - 8 * count); /* as if zeros were written before them */
    word = word * 10 + (word >> 8);
    const uint64_t even = (word & 0xff000000ff) * (100 + (UINT64_C(1000000) << 32));
    const uint64_t odd = (word >> 16 & 0xff000000ff) * (1 + (UINT64_C(10000) << 32));
    return (even + odd) >> 32;
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

/* Whether a key as it is written, escapes and all, decodes to `key`. */
int mds_json_same_key(const uint8_t *raw, size_t size, const uint8_t *key, size_t key_size);

/* Read the value that begins at p[i], of any type, and check all of it; `around` is how many arrays and objects it is
 * inside. If it is not JSON, *at is the byte that shows it. */
size_t mds_json_skip(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, size_t around, size_t *at);

/* Read the number that begins with the digit or minus at p[i]. `number` may be NULL. If it is malformed or too large
 * for a double, *at is where it begins. */
size_t mds_json_number(const uint8_t *p, size_t i, size_t n, mds_number *number, size_t *at);

/* ---- decimal.c ------------------------------------------------------------------------------------------- */

/* A number that is written in decimals, without its sign. */
typedef struct {
    const uint8_t *digits; /* the text: digits, and perhaps a point among them */
    size_t size;
    int64_t exponent;  /* the power of ten of the text's last digit */
    uint64_t mantissa; /* its first 19 significant digits, or all if there are fewer */
    uint64_t left_out; /* digits of the text after these */
    int inexact;       /* whether one of those is not 0 */
} mds_decimal_text;

/* The double nearest to it, the even one of two; infinity if it is larger than all. */
double mds_decimal(const mds_decimal_text *text);

#endif
