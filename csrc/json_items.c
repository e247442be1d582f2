/* json_items.c - reads the items of JSON arrays into memory: integers, floats and booleans of any size.
 *
 * Integers mostly come in runs of short ones, which digits.c reads. Others of up to 7 digits take one load: of the
 * eight bytes from the first digit on, the first that is not a digit says how long it is, and three multiplications
 * give its value. See json_values.h. */
#include "json_items.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

size_t mds_refuse(mds_json_text *r, mds_wanted_status status, size_t at)
{
    r->status = status;
    r->at = at;
    return 0;
}

/* ---- items ----------------------------------------------------------------------------------------------- */

static int begins_number(const mds_json_text *r, size_t i)
{
    return i < r->n && (r->p[i] == '-' || mds_is_digit(r->p[i]));
}

/* Read an integer of any length. */
static size_t read_int(mds_json_text *r, size_t i, uint64_t low, uint64_t high, uint64_t *bits)
{
    mds_number number;
    size_t at;
    const size_t end = begins_number(r, i) ? mds_json_number(r->p, i, r->n, &number, &at) : 0;
    if (end == 0)
        return mds_refuse(r, MDS_WANTED_TYPE, i);
    const int negative = number.type == MDS_I64;
    if (number.type == MDS_F64 || (negative ? 0 - number.bits : number.bits) > (negative ? low : high))
        return mds_refuse(r, MDS_WANTED_RANGE, i);
    *bits = number.bits;
    return end;
}

/* Read a number as a double, integers that no 64 bits hold included. */
static size_t read_double(mds_json_text *r, size_t i, double *value)
{
    mds_number number;
    size_t at;
    const size_t end = begins_number(r, i) ? mds_json_number(r->p, i, r->n, &number, &at) : 0;
    if (end == 0)
        return mds_refuse(r, MDS_WANTED_TYPE, i);
    if (number.type == MDS_F64)
        memcpy(value, &number.bits, 8);
    else
        *value = number.type == MDS_I64 ? (double)(int64_t)number.bits : (double)number.bits;
    return end;
}

static size_t read_bool(mds_json_text *r, size_t i, uint8_t *out)
{
    const int is_true = i < r->n && r->p[i] == 't';
    const size_t end = i < r->n ? mds_json_word(r->p, i, r->n, is_true ? "true" : "false") : 0;
    *out = (uint8_t)is_true;
    return end ? end : mds_refuse(r, MDS_WANTED_TYPE, i);
}

/* The bits of the nearest float of 16 bits, for magnitudes below 65520: 5 bits of exponent, 10 of mantissa. */
static uint64_t as_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    const uint64_t sign = bits >> 63 << 15;
    const int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1), above = 0;
    int shift = 42;
    if (exponent < -14) { /* a smaller exponent than it has: fewer bits of mantissa */
        mantissa |= UINT64_C(1) << 52;
        shift += -14 - exponent;
        if (shift > 53)
            return sign;
    } else {
        above = (uint64_t)(exponent + 15) << 10;
    }
    const uint64_t rest = mantissa & ((UINT64_C(1) << shift) - 1), tie = UINT64_C(1) << (shift - 1);
    const uint64_t kept = above + (mantissa >> shift);
    return sign | (kept + (rest > tie || (rest == tie && (kept & 1))));
}

#define ABOVE_HALF 65520.0
#define ABOVE_FLOAT 3.4028235677973366e38 /* halfway from the largest float to the power of two above it */

/* Store a number rounded to the type of the items; 0 if it is beyond them. */
ALWAYS_INLINE int store_float(uint8_t *out, double value, mds_item_kind kind, unsigned size)
{
    uint32_t word;
    if (kind == MDS_ITEM_FLOAT && size == 8) {
        memcpy(out, &value, 8);
        return 1;
    }
    if (fabs(value) >= (size == 2 && kind == MDS_ITEM_FLOAT ? ABOVE_HALF : ABOVE_FLOAT))
        return 0;
    if (kind == MDS_ITEM_FLOAT && size == 2) {
        const uint64_t half = as_half(value);
        memcpy(out, &half, 2);
        return 1;
    }
    const float rounded = (float)value;
    memcpy(&word, &rounded, 4);
    if (kind == MDS_ITEM_BFLOAT) {
        word = (word + 0x7fff + (word >> 16 & 1)) >> 16;
        if ((word & 0x7fff) == 0x7f80)
            return 0;
    }
    memcpy(out, &word, size);
    return 1;
}

/* ---- rows: the items of an array that holds no arrays ------------------------------------------------------ */

#define AHEAD 16 /* bytes that the short way may look at from the first of a number on */

/* Widen or narrow numbers to items of `size` bytes; 0 if one is above `high`. */
ALWAYS_INLINE int store_numbers(const uint32_t *numbers, size_t count, uint64_t high, unsigned size, uint8_t *out)
{
    uint32_t largest = 0;
    for (size_t k = 0; k < count; k++) {
        const uint64_t number = numbers[k];
        memcpy(out + k * size, &number, size);
        largest = numbers[k] > largest ? numbers[k] : largest;
    }
    return largest <= high;
}

#define AT_ONCE 256 /* numbers to read at a time if items have another size */

/* Read numbers from p[i] on while they are short and a comma and `gap` - 1 spaces follow each; move *out behind them.
 * Returns where the next begins. Stops before a group of numbers if one is above `high`. */
ALWAYS_INLINE size_t read_short(const mds_json_text *r, size_t i, size_t gap, uint64_t high, unsigned size,
                                uint8_t **out, const uint8_t *end)
{
    uint32_t numbers[AT_ONCE];
    size_t consumed, count, room;
    if (size == 4) { /* 8 digits fit, with a sign or without */
        room = (size_t)(end - *out) / 4;
        count = r->kernels->short_numbers(r->p + i, r->n - i, gap, (uint32_t *)(void *)*out, room, &consumed);
        *out += 4 * count;
        return i + consumed;
    }
    do {
        room = (size_t)(end - *out) / size;
        room = room < AT_ONCE ? room : AT_ONCE;
        count = r->kernels->short_numbers(r->p + i, r->n - i, gap, numbers, room, &consumed);
        if (!store_numbers(numbers, count, high, size, *out))
            return i;
        *out += size * count;
        i += consumed;
    } while (count == AT_ONCE);
    return i;
}

#define RUN 16 /* after so many short numbers in a row, more are expected */

/* Each of these reads the items from p[i] on, one or more, into [out, end), and returns the place after the bracket.
 * There is room for all, unless the file was changed after the room was chosen. */
ALWAYS_INLINE size_t read_ints(mds_json_text *r, size_t i, uint8_t *out, const uint8_t *end, uint64_t *count,
                               int is_signed, unsigned size)
{
    const uint8_t *const p = r->p, *const first = out;
    const size_t n = r->n;
    const uint64_t high = UINT64_MAX >> (64 - 8 * size + (unsigned)is_signed), low = is_signed ? high + 1 : 0;
    size_t gap = 1;         /* bytes from the end of a number to the next one: a comma, and a space if one was seen */
    unsigned run = RUN - 2; /* two show whether there are spaces */
    int more = 1;
    while (more) {
        uint64_t bits, word;
        if (n - i >= AHEAD && run >= RUN) {
            i = read_short(r, i, gap, high, size, &out, end);
            run = 0;
        }
        if (out == end)
            return mds_refuse(r, MDS_WANTED_SHAPE, i);
        if (n - i >= AHEAD) {
            memcpy(&word, p + i, 8);
            const int negative = (uint8_t)word == '-';
            if (negative)
                memcpy(&word, p + ++i, 8);
            const unsigned digits = mds_digit_run(word);
            if (digits - 1 < 7 && ((uint8_t)word != '0' || digits == 1)) {
                const uint64_t value = mds_digits_value(word, digits);
                if (value > (negative ? low : high))
                    return mds_refuse(r, MDS_WANTED_RANGE, i - (size_t)negative);
                bits = negative ? 0 - value : value;
                memcpy(out, &bits, size);
                out += size;
                i += digits;
                run = negative ? 0 : run + 1;
                if (p[i] == ',' && (gap == 1 || p[i + 1] == ' ')) {
                    i += gap;
                    continue;
                }
                i = mds_after_item(r, i, &more);
                if (i == 0)
                    return 0;
                continue;
            }
            i -= (size_t)negative;
            if (p[i] == ' ') {
                gap = 2;
                i++;
                continue;
            }
        }
        i = read_int(r, mds_json_spaces(p, i, n), low, high, &bits);
        if (i)
            i = mds_after_item(r, i, &more);
        if (i == 0)
            return 0;
        memcpy(out, &bits, size);
        out += size;
    }
    *count = (uint64_t)(out - first) / size;
    return i;
}

ALWAYS_INLINE size_t read_floats(mds_json_text *r, size_t i, uint8_t *out, const uint8_t *end, uint64_t *count,
                                 mds_item_kind kind, unsigned size)
{
    const uint8_t *const first = out;
    int more = 1;
    while (more) {
        double value;
        const size_t behind = out < end ? read_double(r, i, &value) : mds_refuse(r, MDS_WANTED_SHAPE, i);
        if (behind == 0)
            return 0;
        if (!store_float(out, value, kind, size))
            return mds_refuse(r, MDS_WANTED_RANGE, i);
        out += size;
        i = mds_after_item(r, behind, &more);
        if (i == 0)
            return 0;
    }
    *count = (uint64_t)(out - first) / size;
    return i;
}

static size_t read_bools(mds_json_text *r, size_t i, uint8_t *out, const uint8_t *end, uint64_t *count)
{
    const uint8_t *const first = out;
    int more = 1;
    while (more) {
        i = out < end ? read_bool(r, i, out++) : mds_refuse(r, MDS_WANTED_SHAPE, i);
        if (i)
            i = mds_after_item(r, i, &more);
        if (i == 0)
            return 0;
    }
    *count = (uint64_t)(out - first);
    return i;
}

size_t mds_read_row(mds_json_text *r, const mds_wanted *field, size_t i, uint8_t *out, uint64_t room, uint64_t *count)
{
    const int is_signed = field->kind == MDS_ITEM_INT;
    const uint8_t *const end = out + room * field->size;
    switch (field->kind) {
    case MDS_ITEM_BOOL:
        return read_bools(r, i, out, end, count);
    case MDS_ITEM_INT:
    case MDS_ITEM_UINT:
        switch (field->size) {
        case 1:
            return read_ints(r, i, out, end, count, is_signed, 1);
        case 2:
            return read_ints(r, i, out, end, count, is_signed, 2);
        case 4:
            return is_signed ? read_ints(r, i, out, end, count, 1, 4) : read_ints(r, i, out, end, count, 0, 4);
        default:
            return is_signed ? read_ints(r, i, out, end, count, 1, 8) : read_ints(r, i, out, end, count, 0, 8);
        }
    case MDS_ITEM_FLOAT:
        return field->size == 8   ? read_floats(r, i, out, end, count, MDS_ITEM_FLOAT, 8)
               : field->size == 4 ? read_floats(r, i, out, end, count, MDS_ITEM_FLOAT, 4)
                                  : read_floats(r, i, out, end, count, MDS_ITEM_FLOAT, 2);
    case MDS_ITEM_BFLOAT:
        return read_floats(r, i, out, end, count, MDS_ITEM_BFLOAT, 2);
    case MDS_ITEM_TEXT:
        break;
    }
    return mds_refuse(r, MDS_WANTED_TYPE, i);
}

size_t mds_read_item(mds_json_text *r, const mds_wanted *field, size_t i, uint8_t *out)
{
    const uint64_t high = UINT64_MAX >> (64 - 8 * field->size + (field->kind == MDS_ITEM_INT));
    uint64_t bits;
    double value;
    size_t end;
    switch (field->kind) {
    case MDS_ITEM_BOOL:
        return read_bool(r, i, out);
    case MDS_ITEM_INT:
    case MDS_ITEM_UINT:
        end = read_int(r, i, field->kind == MDS_ITEM_INT ? high + 1 : 0, high, &bits);
        if (end)
            memcpy(out, &bits, field->size);
        return end;
    default:
        end = read_double(r, i, &value);
        if (end && !store_float(out, value, field->kind, field->size))
            return mds_refuse(r, MDS_WANTED_RANGE, i);
        return end;
    }
}

/* ---- back into numbers -------------------------------------------------------------------------------------- */

int64_t mds_item_integer(const mds_wanted *field, const uint8_t *item)
{
    uint64_t bits = 0;
    memcpy(&bits, item, field->size);
    const unsigned unused = 64 - 8 * field->size;
    return field->kind == MDS_ITEM_INT ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

double mds_item_float(const mds_wanted *field, const uint8_t *item)
{
    double wide;
    float narrow;
    uint32_t word = 0;
    if (field->size == 8) {
        memcpy(&wide, item, 8);
        return wide;
    }
    memcpy(&word, item, field->size);
    if (field->size == 2 && field->kind == MDS_ITEM_FLOAT) {
        const int exponent = (int)(word >> 10 & 0x1f);
        const double mantissa = (double)(word & 0x3ff) + (exponent ? 1024 : 0);
        wide = ldexp(mantissa, (exponent ? exponent : 1) - 25);
        return word >> 15 ? -wide : wide;
    }
    if (field->kind == MDS_ITEM_BFLOAT)
        word <<= 16;
    memcpy(&narrow, &word, 4);
    return (double)narrow;
}
