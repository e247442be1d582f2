/* json_values.c - the strings and numbers of JSON, strictly by RFC 8259. */
#include "json_values.h"

#include <string.h>

/* ---- strings ------------------------------------------------------------------------------------------- */

static int hex4(const uint8_t *p, uint32_t *unit)
{
    *unit = 0;
    for (int k = 0; k < 4; k++) {
        const uint8_t c = p[k], letter = c | 0x20;
        if (!mds_is_digit(c) && (letter < 'a' || letter > 'f'))
            return 0;
        *unit = *unit << 4 | (uint32_t)(mds_is_digit(c) ? c - '0' : letter - 'a' + 10);
    }
    return 1;
}

size_t mds_json_escape(const uint8_t *p, size_t i, size_t n, uint32_t *point)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (n - i < 2)
        return 0;
    if (p[i + 1] != 'u') {
        const char *name = p[i + 1] ? strchr(names, p[i + 1]) : NULL;
        if (!name)
            return 0;
        *point = (uint8_t)values[name - names];
        return i + 2;
    }
    uint32_t low;
    if (n - i < 6 || !hex4(p + i + 2, point))
        return 0;
    if (*point < 0xd800 || *point > 0xdfff)
        return i + 6;
    if (*point > 0xdbff || n - i < 12 || p[i + 6] != '\\' || p[i + 7] != 'u' || !hex4(p + i + 8, &low) ||
        low < 0xdc00 || low > 0xdfff)
        return 0;
    *point = 0x10000 + ((*point - 0xd800) << 10) + (low - 0xdc00);
    return i + 12;
}

size_t mds_json_utf8(uint32_t point, uint8_t *out)
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    const size_t size = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    for (size_t k = size; k-- > 1; point >>= 6)
        out[k] = (uint8_t)(0x80 | (point & 0x3f));
    out[0] = (uint8_t)(0xf00 >> size | point);
    return size;
}

/* Bytes of the UTF-8 sequence at p; 0 if it is malformed, overlong, a surrogate or beyond 10FFFF. */
static size_t utf8_size(const uint8_t *p, size_t n)
{
    const uint8_t lead = p[0];
    const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (size == 0 || size > n)
        return 0;
    for (size_t k = 1; k < size; k++)
        if ((p[k] & 0xc0) != 0x80)
            return 0;
    if ((lead == 0xe0 && p[1] < 0xa0) || (lead == 0xed && p[1] > 0x9f) || (lead == 0xf0 && p[1] < 0x90) ||
        (lead == 0xf4 && p[1] > 0x8f))
        return 0;
    return size;
}

static int valid_utf8(const uint8_t *p, size_t n, size_t *at)
{
    for (size_t i = 0, size; i < n; i += size) {
        size = utf8_size(p + i, n - i);
        if (size == 0) {
            *at += i;
            return 0;
        }
    }
    return 1;
}

size_t mds_json_string(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, size_t *bytes, size_t *chars,
                       size_t *at)
{
    *bytes = *chars = 0;
    for (;;) {
        size_t continuing, end;
        int beyond;
        const size_t run = kernels->text_run(p + i, n - i, &continuing, &beyond);
        *at = i;
        if (beyond && !valid_utf8(p + i, run, at))
            return 0;
        *bytes += run;
        *chars += run - continuing;
        i += run;
        *at = i;
        if (i == n || p[i] < 32)
            return 0;
        if (p[i] == '"')
            return i + 1;
        uint32_t point;
        uint8_t scratch[4];
        end = mds_json_escape(p, i, n, &point);
        if (end == 0)
            return 0;
        *bytes += mds_json_utf8(point, scratch);
        *chars += 1;
        i = end;
    }
}

int mds_json_same_key(const uint8_t *raw, size_t size, const uint8_t *key, size_t key_size)
{
    size_t matched = 0;
    for (size_t i = 0; i < size;) {
        uint8_t utf8[4] = {raw[i]};
        size_t written = 1, end = i + 1;
        if (raw[i] == '\\') {
            uint32_t point;
            end = mds_json_escape(raw, i, size, &point);
            if (end == 0)
                return 0;
            written = mds_json_utf8(point, utf8);
        }
        if (key_size - matched < written || memcmp(key + matched, utf8, written) != 0)
            return 0;
        matched += written;
        i = end;
    }
    return matched == key_size;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

#define MANTISSA_DIGITS 19 /* a mantissa of as many fits 64 bits */

/* A number while its digits are read. */
typedef struct {
    uint64_t mantissa; /* its first significant digits */
    unsigned digits;   /* of these, how many */
    uint64_t left_out; /* number of digits after them */
    uint8_t last;      /* the last of those digits */
    int inexact;       /* whether one of those is not 0 */
} digit_reader;

static const uint64_t powers_of_10[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

/* The number of significant digits of a number below 10^8; none for 0. */
static unsigned count_digits(uint64_t number)
{
    unsigned count = 0;
    while (count < 8 && number >= powers_of_10[count])
        count++;
    return count;
}

/* Read the digits at p[i], eight at a time while they fit; return the place after them. */
static size_t read_digits(const uint8_t *p, size_t i, size_t n, digit_reader *r)
{
    while (n - i >= 8 && r->digits + 8 <= MANTISSA_DIGITS) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        const unsigned run = mds_digit_run(word);
        if (run == 0)
            return i;
        const uint64_t value = mds_digits_value(word, run);
        r->digits = r->mantissa ? r->digits + run : count_digits(value);
        r->mantissa = r->mantissa * powers_of_10[run] + value;
        i += run;
        if (run < 8)
            return i;
    }
    for (; i < n && mds_is_digit(p[i]); i++) {
        const uint8_t digit = (uint8_t)(p[i] - '0');
        if (r->digits < MANTISSA_DIGITS) {
            r->mantissa = r->mantissa * 10 + digit;
            r->digits += r->mantissa != 0;
        } else {
            r->left_out++;
            r->last = digit;
            r->inexact |= digit != 0;
        }
    }
    return i;
}

/* Read the digits of an exponent, clipped to a value far outside of doubles; return the place after them. */
static size_t read_exponent(const uint8_t *p, size_t i, size_t n, int64_t *exponent)
{
    const int down = i < n && p[i] == '-';
    i += i < n && (p[i] == '-' || p[i] == '+');
    const size_t first = i;
    *exponent = 0;
    for (; i < n && mds_is_digit(p[i]); i++)
        if (*exponent < INT64_MAX / 1000)
            *exponent = *exponent * 10 + (p[i] - '0');
    *exponent = down ? -*exponent : *exponent;
    return i == first ? 0 : i;
}

/* The integer that was read, if 64 bits hold it. */
static int as_integer(const digit_reader *r, int negative, mds_number *number)
{
    uint64_t value = r->mantissa;
    if (r->left_out > 1 ||
        (r->left_out && (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, r->last, &value))))
        return 0;
    if (negative && value > (uint64_t)INT64_MAX + 1)
        return 0;
    *number = (mds_number){negative && value ? MDS_I64 : MDS_U64, negative ? 0 - value : value};
    return 1;
}

#define LARGEST 1.7976931348623157e308
#define LARGEST_POWER 308 /* of ten below it */

size_t mds_json_number(const uint8_t *p, size_t i, size_t n, mds_number *number, size_t *at)
{
    digit_reader reader = {0};
    mds_number ignored;
    *at = i;
    if (n - i >= 8) { /* most numbers are short integers */
        uint64_t word;
        memcpy(&word, p + i, 8);
        const unsigned run = mds_digit_run(word);
        const uint8_t after = run < 8 ? p[i + run] : '0';
        if (run && run < 8 && (p[i] != '0' || run == 1) && after != '.' && (after | 0x20) != 'e') {
            if (number)
                *number = (mds_number){MDS_U64, mds_digits_value(word, run)};
            return i + run;
        }
    }
    const int negative = p[i] == '-';
    const size_t first = i + (size_t)negative;
    i = read_digits(p, first, n, &reader);
    if (i == first || (p[first] == '0' && i - first > 1))
        return 0;
    int integer = 1;
    int64_t exponent = 0, fraction = 0;
    if (i < n && p[i] == '.') {
        const size_t point = i;
        i = read_digits(p, i + 1, n, &reader);
        fraction = (int64_t)(i - point - 1);
        if (fraction == 0)
            return 0;
        integer = 0;
    }
    const size_t end = i;
    if (i < n && (p[i] | 0x20) == 'e') {
        i = read_exponent(p, i + 1, n, &exponent);
        if (i == 0)
            return 0;
        integer = 0;
    }
    if (integer && as_integer(&reader, negative, number ? number : &ignored))
        return i;
    if (!number && (int64_t)(end - first) + exponent < LARGEST_POWER)
        return i; /* it is finite, and the caller does not want the number */
    const mds_decimal_text text = {p + first,       end - first,     exponent - fraction,
                                   reader.mantissa, reader.left_out, reader.inexact};
    const double magnitude = mds_decimal(&text);
    if (magnitude > LARGEST)
        return 0;
    if (number) {
        const double found = negative ? -magnitude : magnitude;
        number->type = MDS_F64;
        memcpy(&number->bits, &found, 8);
    }
    return i;
}
