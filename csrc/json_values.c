/* json_values.c - the strings and numbers of JSON, strictly by RFC 8259. */
#include "json_values.h"

#include <stdlib.h>
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

/* ---- numbers ------------------------------------------------------------------------------------------- */

#define DIGITS 800 /* more than are needed to round any decimal correctly to a double */

/* The double nearest to 0.digits * 10^exponent. The text given to strtod has no point, which depends on the locale. */
static double decimal(const char *digits, size_t count, long exponent)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const long shift = exponent - (long)count;
    if (count <= 15 && shift >= -22 && shift <= 22) { /* both exact, so one rounding: the nearest */
        double mantissa = 0;
        for (size_t k = 0; k < count; k++)
            mantissa = mantissa * 10 + (digits[k] - '0');
        return shift < 0 ? mantissa / powers[-shift] : mantissa * powers[shift];
    }
    char text[DIGITS + 16];
    memcpy(text, digits, count);
    char *p = text + count;
    *p++ = 'e';
    *p++ = shift < 0 ? '-' : '+';
    unsigned long rest = (unsigned long)(shift < 0 ? -shift : shift);
    char reversed[24];
    size_t n = 0;
    do
        reversed[n++] = (char)('0' + rest % 10);
    while (rest /= 10);
    while (n)
        *p++ = reversed[--n];
    *p = 0;
    return strtod(text, NULL);
}

size_t mds_json_number(const uint8_t *p, size_t i, size_t n, mds_number *number, size_t *at)
{
    const size_t begin = i;
    const int negative = p[i] == '-';
    i += (size_t)negative;
    const size_t first = i;
    uint64_t value = 0;
    int overflow = 0, integer = 1;
    for (; i < n && mds_is_digit(p[i]); i++)
        overflow |= __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, p[i] - '0', &value);
    *at = begin;
    if (i == first || (p[first] == '0' && i - first > 1))
        return 0;
    const size_t point = i;
    if (i < n && p[i] == '.') {
        integer = 0;
        for (i++; i < n && mds_is_digit(p[i]); i++)
            ;
        if (i == point + 1)
            return 0;
    }
    const size_t mantissa_end = i;
    long exponent = 0;
    if (i < n && (p[i] | 0x20) == 'e') {
        integer = 0;
        i++;
        const int down = i < n && p[i] == '-';
        i += i < n && (p[i] == '-' || p[i] == '+');
        const size_t digits = i;
        for (; i < n && mds_is_digit(p[i]); i++)
            if (exponent < 100000000)
                exponent = exponent * 10 + (p[i] - '0');
        if (i == digits)
            return 0;
        exponent = down ? -exponent : exponent;
    }
    if (integer && !overflow && (!negative || value <= (uint64_t)INT64_MAX + 1)) {
        if (number)
            *number = (mds_number){negative && value ? MDS_I64 : MDS_U64, negative ? 0 - value : value};
        return i;
    }
    /* Gather the significant digits. Of those beyond DIGITS it matters only whether one is not zero. */
    char digits[DIGITS + 1];
    size_t count = 0;
    int sticky = 0;
    exponent += (long)(point - first);
    for (size_t k = first; k < mantissa_end; k++) {
        if (p[k] == '.')
            continue;
        if (count == 0 && p[k] == '0')
            exponent--;
        else if (count < DIGITS)
            digits[count++] = (char)p[k];
        else
            sticky |= p[k] != '0';
    }
    if (sticky)
        digits[DIGITS - 1] |= 1; /* odd: never a tie */
    const double magnitude = count ? decimal(digits, count, exponent) : 0;
    if (magnitude > 1.7976931348623157e308)
        return 0;
    if (number) {
        const double found = negative ? -magnitude : magnitude;
        number->type = MDS_F64;
        memcpy(&number->bits, &found, 8);
    }
    return i;
}
