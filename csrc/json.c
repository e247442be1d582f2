/* json.c - measures one field of a JSON record without parsing the rest, and checks whole records.
 *
 * Measuring goes through a record in blocks of 64 bytes, as masks with a bit for each byte: quotes that are not escaped
 * tell what is inside strings (a running exclusive or), and outside strings only brackets and such colons as could
 * follow the wanted key are visited. The idea of bitmaps is that of Langdale and Lemire, "Parsing Gigabytes of JSON per
 * Second" (VLDB Journal 2019); that most colons can be ruled out by the byte that ends the key is ours.
 * bench/bench_columns.py: 2.5 times as fast as visiting all structure. */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS 16 /* masks computed at a time */

static int is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int is_digit(uint8_t c)
{
    return (uint8_t)(c - '0') < 10;
}

static size_t skip_spaces(const uint8_t *p, size_t i, size_t n)
{
    while (i < n && is_space(p[i]))
        i++;
    return i;
}

/* ---- strings ------------------------------------------------------------------------------------------- */

static int hex4(const uint8_t *p, uint32_t *unit)
{
    *unit = 0;
    for (int k = 0; k < 4; k++) {
        const uint8_t c = p[k], letter = c | 0x20;
        if (!is_digit(c) && (letter < 'a' || letter > 'f'))
            return 0;
        *unit = *unit << 4 | (uint32_t)(is_digit(c) ? c - '0' : letter - 'a' + 10);
    }
    return 1;
}

/* The code point that the escape at p[i] == '\\' stands for, and where it ends; 0 when it is none. */
static size_t read_escape(const uint8_t *p, size_t i, size_t n, uint32_t *point)
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

static size_t write_utf8(uint32_t point, uint8_t *out)
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

/* Bytes of the UTF-8 sequence at p, 0 when it is none: overlong forms, surrogates and points beyond 10FFFF are not. */
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

/* Go through the string whose first byte after the quote is p[i]; return the place after its closing quote, or 0 with
 * *at where it is no string. Counts what it decodes to. */
static size_t read_string(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, size_t *bytes,
                          size_t *chars, size_t *at)
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
        end = read_escape(p, i, n, &point);
        if (end == 0)
            return 0;
        *bytes += write_utf8(point, scratch);
        *chars += 1;
        i = end;
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

#define DIGITS 800 /* more than decide how any decimal is rounded to a double */

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

/* Read the number at p[i]; return the place after it, or 0 with *at where it is no number. `number` may be NULL. */
static size_t read_number(const uint8_t *p, size_t i, size_t n, mds_number *number, size_t *at)
{
    const size_t begin = i;
    const int negative = p[i] == '-';
    i += (size_t)negative;
    const size_t first = i;
    uint64_t value = 0;
    int overflow = 0, integer = 1;
    for (; i < n && is_digit(p[i]); i++)
        overflow |= __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, p[i] - '0', &value);
    *at = begin;
    if (i == first || (p[first] == '0' && i - first > 1))
        return 0;
    const size_t point = i;
    if (i < n && p[i] == '.') {
        integer = 0;
        for (i++; i < n && is_digit(p[i]); i++)
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
        for (; i < n && is_digit(p[i]); i++)
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
    /* Gather the digits that count; of those beyond, only that one is not zero can matter. */
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

/* ---- whole records --------------------------------------------------------------------------------------- */

static size_t read_word(const uint8_t *p, size_t i, size_t n, const char *word)
{
    const size_t size = strlen(word);
    return n - i >= size && memcmp(p + i, word, size) == 0 ? i + size : 0;
}

int mds_json_valid(const mds_kernels *kernels, const uint8_t *p, size_t n, size_t *at)
{
    uint8_t object[MDS_JSON_DEPTH]; /* what each open container is */
    size_t depth = 0, bytes, chars, next;
    size_t i = skip_spaces(p, 0, n);
value:
    *at = i;
    if (i == n)
        return 0;
    switch (p[i]) {
    case '{':
    case '[':
        if (depth == MDS_JSON_DEPTH)
            return 0;
        object[depth++] = p[i] == '{';
        i = skip_spaces(p, i + 1, n);
        if (i < n && p[i] == (object[depth - 1] ? '}' : ']')) {
            depth--;
            i++;
            goto after;
        }
        if (object[depth - 1])
            goto key;
        goto value;
    case '"':
        next = read_string(kernels, p, i + 1, n, &bytes, &chars, at);
        break;
    case 't':
        next = read_word(p, i, n, "true");
        break;
    case 'f':
        next = read_word(p, i, n, "false");
        break;
    case 'n':
        next = read_word(p, i, n, "null");
        break;
    default:
        if (p[i] != '-' && !is_digit(p[i]))
            return 0;
        next = read_number(p, i, n, NULL, at);
    }
    if (next == 0)
        return 0;
    i = next;
after:
    i = skip_spaces(p, i, n);
    *at = i;
    if (depth == 0)
        return i == n;
    if (i == n)
        return 0;
    if (p[i] == (object[depth - 1] ? '}' : ']')) {
        depth--;
        i++;
        goto after;
    }
    if (p[i] != ',')
        return 0;
    i = skip_spaces(p, i + 1, n);
    if (!object[depth - 1])
        goto value;
key:
    *at = i;
    if (i == n || p[i] != '"')
        return 0;
    next = read_string(kernels, p, i + 1, n, &bytes, &chars, at);
    if (next == 0)
        return 0;
    i = skip_spaces(p, next, n);
    *at = i;
    if (i == n || p[i] != ':')
        return 0;
    i = skip_spaces(p, i + 1, n);
    goto value;
}

/* ---- one field ------------------------------------------------------------------------------------------- */

typedef struct {
    const mds_kernels *kernels;
    const uint8_t *p;
    size_t n, begin;
    const mds_field *field;
    mds_json_status found; /* of the last value that the path led to */
    mds_number number;
    size_t value; /* where that value begins */
    size_t at;
    size_t matched; /* keys of the path whose objects we are inside of */
    size_t depth;
    size_t items_depth; /* depth at which commas part the elements to be counted, else 0 */
    uint64_t commas;
    int items_empty;
} scan;

static int same_key(const uint8_t *raw, size_t size, const uint8_t *key, size_t key_size)
{
    size_t matched = 0;
    for (size_t i = 0; i < size;) {
        uint8_t utf8[4] = {raw[i]};
        size_t written = 1, end = i + 1;
        if (raw[i] == '\\') {
            uint32_t point;
            end = read_escape(raw, i, size, &point);
            if (end == 0)
                return 0;
            written = write_utf8(point, utf8);
        }
        if (key_size - matched < written || memcmp(key + matched, utf8, written) != 0)
            return 0;
        matched += written;
        i = end;
    }
    return matched == key_size;
}

/* Whether the key before the colon is the next one of the path; -1 when there is no key. */
static int is_wanted(const scan *s, size_t colon, int escapes)
{
    const uint8_t *p = s->p, *key = s->field->keys[s->matched];
    const size_t size = s->field->key_sizes[s->matched];
    size_t end = colon;
    while (end > 0 && is_space(p[end - 1]))
        end--;
    if (end < 2 || p[end - 1] != '"')
        return -1;
    end--;
    if (!escapes)
        return end > size && p[end - size - 1] == '"' && memcmp(p + end - size, key, size) == 0;
    size_t begin = end; /* the quote that opens the key is the last one before that is not escaped */
    for (;;) {
        do {
            if (begin == 0)
                return -1;
        } while (p[--begin] != '"');
        size_t slashes = 0;
        while (slashes < begin && p[begin - 1 - slashes] == '\\')
            slashes++;
        if (slashes % 2 == 0)
            break;
    }
    return same_key(p + begin + 1, end - begin - 1, key, size);
}

/* Measure the value that begins at or after p[i]. */
static void measure_value(scan *s, size_t i)
{
    const mds_measure measure = s->field->measure;
    const uint8_t *p = s->p;
    size_t next, bytes, chars;
    i = skip_spaces(p, i, s->n);
    s->at = s->value = i;
    s->items_depth = 0;
    s->found = MDS_JSON_INVALID;
    if (i == s->n)
        return;
    const uint8_t c = p[i];
    if (c == 'n') {
        s->found = read_word(p, i, s->n, "null") ? MDS_JSON_MISSING : MDS_JSON_INVALID;
    } else if (measure == MDS_MEASURE_NUMBER && (c == '-' || is_digit(c))) {
        next = read_number(p, i, s->n, &s->number, &s->at);
        if (next && next < s->n && (is_space(p[next]) || p[next] == ',' || p[next] == '}'))
            s->found = MDS_JSON_OK;
    } else if (c == '"' && (measure == MDS_MEASURE_BYTES || measure == MDS_MEASURE_CHARS)) {
        if (read_string(s->kernels, p, i + 1, s->n, &bytes, &chars, &s->at)) {
            s->found = MDS_JSON_OK;
            s->number = (mds_number){MDS_U64, measure == MDS_MEASURE_BYTES ? bytes : chars};
        }
    } else if (c == '[' && measure == MDS_MEASURE_ITEMS) {
        next = skip_spaces(p, i + 1, s->n);
        s->items_depth = s->depth + 1;
        s->commas = 0;
        s->items_empty = next < s->n && p[next] == ']';
    } else {
        s->found = strchr("\"{[tf-0123456789", c) && c ? MDS_JSON_TYPE : MDS_JSON_INVALID;
    }
}

/* Bits lo <= b < hi. */
static uint64_t between(size_t lo, size_t hi)
{
    return (hi == 64 ? UINT64_MAX : ((uint64_t)1 << hi) - 1) & ~(((uint64_t)1 << lo) - 1);
}

/* Visit the brackets and colons of a block in order; 0 when they cannot be those of JSON. */
static int visit(scan *s, size_t base, uint64_t open, uint64_t close, uint64_t colons, uint64_t commas, int escapes)
{
    size_t from = 0; /* commas before this bit were counted */
    for (uint64_t events = open | close | colons; events; events &= events - 1) {
        const size_t bit = (size_t)__builtin_ctzll(events);
        const uint64_t here = (uint64_t)1 << bit;
        if (s->items_depth && s->depth == s->items_depth)
            s->commas += (uint64_t)__builtin_popcountll(commas & between(from, bit));
        from = bit;
        s->at = base + bit;
        if (open & here) {
            if (s->depth == MDS_JSON_DEPTH || (s->depth == 0 && s->at != s->begin))
                return 0;
            s->depth++;
        } else if (close & here) {
            if (s->depth == 0)
                return 0;
            s->depth--;
            if (s->items_depth && s->depth + 1 == s->items_depth) {
                s->items_depth = 0;
                s->found = MDS_JSON_OK;
                s->number = (mds_number){MDS_U64, s->items_empty ? 0 : s->commas + 1};
            }
            if (s->matched && s->depth == s->matched)
                s->matched--;
        } else if (s->depth == s->matched + 1) {
            const int wanted = is_wanted(s, base + bit, escapes);
            if (wanted < 0)
                return 0;
            if (!wanted)
                continue;
            if (s->matched + 1 == s->field->segments) {
                measure_value(s, base + bit + 1);
                if (s->found == MDS_JSON_INVALID && !s->items_depth)
                    return 0;
                continue;
            }
            const size_t value = skip_spaces(s->p, base + bit + 1, s->n);
            s->at = s->value = value;
            if (value == s->n)
                return 0;
            s->found = s->p[value] == '{' || s->p[value] == 'n' ? MDS_JSON_MISSING : MDS_JSON_TYPE;
            s->matched += s->p[value] == '{';
        }
    }
    if (s->items_depth && s->depth == s->items_depth)
        s->commas += (uint64_t)__builtin_popcountll(commas & between(from, 64));
    return 1;
}

/* Fill masks for the blocks of data[0..n), which is at most BLOCKS of them, without reading beyond `readable`. */
static size_t masks_of(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t readable, uint8_t extra,
                       mds_json_masks *masks)
{
    const size_t blocks = (n + 63) / 64;
    const size_t direct = blocks * 64 <= readable ? blocks : n / 64;
    kernels->json_blocks(data, direct, extra, masks);
    if (direct < blocks) {
        uint8_t padded[64] = {0};
        memcpy(padded, data + direct * 64, n - direct * 64);
        kernels->json_blocks(padded, 1, extra, masks + direct);
    }
    if (n % 64) {
        mds_json_masks *last = &masks[blocks - 1];
        const uint64_t inside = between(0, n % 64);
        last->quote &= inside;
        last->backslash &= inside;
        last->open &= inside;
        last->close &= inside;
        last->colon &= inside;
        last->extra &= inside;
    }
    return blocks;
}

/* The bytes that a backslash escapes. *carry says that the first byte is escaped, and is set for the next block. */
static uint64_t escaped_bytes(uint64_t backslash, uint64_t *carry)
{
    uint64_t escaped = *carry;
    backslash &= ~escaped;
    *carry = 0;
    while (backslash) {
        const uint64_t slash = backslash & -backslash;
        if (slash >> 63)
            *carry = 1;
        escaped |= slash << 1;
        backslash &= ~(slash | slash << 1);
    }
    return escaped;
}

static uint64_t prefix_xor(uint64_t x)
{
    for (int shift = 1; shift < 64; shift *= 2)
        x ^= x << shift;
    return x;
}

mds_json_status mds_json_measure(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t readable,
                                 const mds_field *field, mds_number *number, size_t *at)
{
    const size_t begin = skip_spaces(data, 0, n);
    scan s = {.kernels = kernels, .p = data, .n = n, .begin = begin, .field = field, .at = begin};
    s.found = MDS_JSON_MISSING;
    *at = begin;
    if (begin == n)
        return MDS_JSON_INVALID;
    if (data[begin] != '{')
        return strchr("\"[tfn-0123456789", data[begin]) && data[begin] ? MDS_JSON_TYPE : MDS_JSON_INVALID;
    const int items = field->measure == MDS_MEASURE_ITEMS;
    /* A colon right after a quote, which is right after another byte than the key's last, is another key's: unless
     * there are escapes, or the path has several keys, or the extra mask is needed for commas. */
    const int last_byte_tells = !items && field->segments == 1;
    const size_t size = field->key_sizes[0];
    const uint8_t extra = items ? ',' : size ? field->keys[0][size - 1] : '"';
    uint64_t escape_carry = 0, in_string = 0, quote_carry = 0, extra_carry = 0;
    int escapes = 0;
    for (size_t k = 0; k < field->segments; k++) /* a key that must itself be escaped is never found byte by byte */
        for (size_t j = 0; j < field->key_sizes[k]; j++)
            escapes |= field->keys[k][j] < 32 || field->keys[k][j] == '"' || field->keys[k][j] == '\\';
    mds_json_masks masks[BLOCKS];
    for (size_t base = 0; base < n; base += BLOCKS * 64) {
        const size_t rest = n - base < BLOCKS * 64 ? n - base : BLOCKS * 64;
        const size_t blocks = masks_of(kernels, data + base, rest, readable - base, extra, masks);
        for (size_t b = 0; b < blocks; b++) {
            const mds_json_masks *m = &masks[b];
            uint64_t quote = m->quote;
            if (m->backslash | escape_carry) {
                quote &= ~escaped_bytes(m->backslash, &escape_carry);
                escapes = 1;
            }
            const uint64_t inside = prefix_xor(quote) ^ in_string;
            in_string = 0 - (inside >> 63);
            uint64_t colons = m->colon & ~inside;
            if (last_byte_tells && !escapes)
                colons &= ~(quote << 1 | quote_carry) | m->extra << 2 | extra_carry;
            quote_carry = quote >> 63;
            extra_carry = m->extra >> 62;
            const uint64_t open = m->open & ~inside, close = m->close & ~inside;
            if ((open | close | colons || s.items_depth) &&
                !visit(&s, base + b * 64, open, close, colons, items ? m->extra & ~inside : 0, escapes)) {
                *at = s.at;
                return MDS_JSON_INVALID;
            }
        }
    }
    *at = s.found == MDS_JSON_TYPE ? s.value : begin;
    *number = s.number;
    if (s.depth || in_string) {
        *at = n;
        return MDS_JSON_INVALID;
    }
    return s.found;
}
