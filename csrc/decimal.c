/* decimal.c - the double nearest to a decimal number.
 *
 * Three ways, each for the numbers that the one before cannot round correctly:
 *
 *     digits and power of ten are exact as doubles      one product or quotient, rounded once: the nearest
 *     up to 19 digits                                   the product of the digits and 128 bits of the power of ten.
 *                                                       Only the bits that are cut off can leave it undecided: D. Lemire,
 *                                                       "Number Parsing at a Gigabyte per Second", Software: Practice and
 *                                                       Experience 51, 2021
 *     all other numbers                                 strtod of the digits without a point, which alone depends on the
 *                                                       locale
 *
 * Numbers of more than 19 digits lie between two numbers of 19: if both have one nearest double, it is the result. */
#include "json_values.h"
#include "powers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MANTISSA (UINT64_C(1) << 53)
#define EXACT_POWER 22
#define MANTISSA_BITS 52
#define EXPONENT_BIAS 1023
#define INFINITE 2047 /* the exponent of infinity */

static double of_bits(uint64_t mantissa, uint64_t exponent)
{
    const uint64_t bits = exponent << MANTISSA_BITS | mantissa;
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* Both exact, so one rounding. */
static double of_exact(uint64_t mantissa, int64_t exponent)
{
    static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    return exponent < 0 ? (double)mantissa / exact[-exponent] : (double)mantissa * exact[exponent];
}

/* Round mantissa * 10^exponent, both in range and the mantissa not 0; 0 if the product leaves it undecided. */
static int of_product(uint64_t mantissa, int64_t exponent, double *value)
{
    const uint64_t *power = powers[exponent - MDS_SMALLEST_POWER];
    const int zeros = __builtin_clzll(mantissa);
    const uint64_t shifted = mantissa << zeros;
    const unsigned __int128 first = (unsigned __int128)shifted * power[0];
    uint64_t high = (uint64_t)(first >> 64), low = (uint64_t)first;
    if ((high & 0x1ff) == 0x1ff) { /* the rest of the power may carry into the significant bits */
        const uint64_t rest = (uint64_t)((unsigned __int128)shifted * power[1] >> 64);
        low += rest;
        high += low < rest;
    }
    if (low == UINT64_MAX && (exponent < -27 || exponent > 55))
        return 0;
    const int top = (int)(high >> 63), shift = top + 64 - MANTISSA_BITS - 3;
    uint64_t rounded = high >> shift; /* one bit more than a double has */
    /* floor(exponent * log2(10)) by an integer product, right for all powers of the table */
    int64_t binary = ((217706 * exponent) >> 16) + 63 + top - zeros + EXPONENT_BIAS;
    if (binary <= 0) { /* below the normal numbers: fewer bits */
        if (binary <= -62) {
            *value = 0;
            return 1;
        }
        rounded >>= 1 - binary;
        rounded = (rounded + (rounded & 1)) >> 1;
        *value = of_bits(rounded, 0); /* a carry into bit 52 is the smallest normal number */
        return 1;
    }
    /* Halfway between two doubles exactly, which only small powers of five can be: to the even one. */
    if (low <= 1 && exponent >= -4 && exponent <= 23 && (rounded & 3) == 1 && rounded << shift == high)
        rounded &= ~UINT64_C(1);
    rounded = (rounded + (rounded & 1)) >> 1;
    if (rounded == EXACT_MANTISSA) {
        rounded >>= 1;
        binary++;
    }
    *value = binary >= INFINITE ? (double)INFINITY : of_bits(rounded & (EXACT_MANTISSA / 2 - 1), (uint64_t)binary);
    return 1;
}

static int of_19_digits(uint64_t mantissa, int64_t exponent, double *value)
{
    if (mantissa == 0 || exponent < MDS_SMALLEST_POWER) {
        *value = 0;
        return 1;
    }
    if (exponent > MDS_LARGEST_POWER) {
        *value = (double)INFINITY;
        return 1;
    }
    return of_product(mantissa, exponent, value);
}

#define DIGITS 800 /* more than are needed to round any decimal correctly to a double */

/* Read the significant digits of a text of digits and perhaps a point by strtod. *exponent is of its last digit. */
static double of_text(const uint8_t *text, size_t size, int64_t exponent)
{
    char digits[DIGITS + 24];
    size_t count = 0;
    int beyond = 0; /* whether a digit that is cut off is not 0 */
    for (size_t k = 0; k < size; k++) {
        if (text[k] == '.' || (count == 0 && text[k] == '0'))
            continue;
        if (count < DIGITS) {
            digits[count++] = (char)text[k];
        } else {
            beyond |= text[k] != '0';
            exponent++;
        }
    }
    if (beyond)
        digits[DIGITS - 1] |= 1; /* odd: never a tie */
    char *p = digits + count, reversed[24];
    size_t n = 0;
    *p++ = 'e';
    *p++ = exponent < 0 ? '-' : '+';
    for (uint64_t rest = (uint64_t)(exponent < 0 ? -exponent : exponent); n == 0 || rest; rest /= 10)
        reversed[n++] = (char)('0' + rest % 10);
    while (n)
        *p++ = reversed[--n];
    *p = 0;
    return strtod(digits, NULL);
}

double mds_decimal(const mds_decimal_text *text)
{
    const int64_t exponent = text->exponent + (int64_t)text->left_out;
    double value, above;
    if (!text->inexact && text->mantissa <= EXACT_MANTISSA && exponent >= -EXACT_POWER && exponent <= EXACT_POWER)
        return of_exact(text->mantissa, exponent);
    if (of_19_digits(text->mantissa, exponent, &value)) {
        if (!text->inexact)
            return value;
        if (of_19_digits(text->mantissa + 1, exponent, &above) && memcmp(&above, &value, sizeof value) == 0)
            return value;
    }
    return of_text(text->digits, text->size, text->exponent);
}
