/* json.c - measures one field of a JSON record without parsing the rest, adds it up over an array, and checks records.
 *
 * To measure, a record is turned into masks, a bit for each byte, 64 bytes at a time. Strings are found by arithmetic
 * on these masks; only brackets and colons outside strings are visited one by one. The masks are those of G. Langdale
 * and D. Lemire, "Parsing Gigabytes of JSON per Second", VLDB Journal 28, 2019. The rule that passes over the colons of
 * other keys is ours: with it, bench/bench_columns.py is 2.5 times as fast as when it visits all structure.
 *
 * Example. We look for the number at `len`. The first byte is on the left, and bit b stands under byte b:
 *
 *     record               {"id":"a:\"}","n":[7],"len":42}
 *     quote                .1..1.1...1.1.1.1.....1...1....
 *     backslash            .........1.....................
 *     escaped              ..........1....................   the byte after a backslash that is not itself escaped
 *     quote & ~escaped     .1..1.1.....1.1.1.....1...1....   the quotes that open and close strings
 *     inside               .111..111111..11......1111.....   prefix xor: the xor of bits 0 to b of the row above, so
 *                                                            1 from the opening quote to before the closing one
 *     brackets & ~inside   1.................1.1.........1   the brace in the string is gone
 *     colon & ~inside      .....1...........1.........1...   and so is its colon
 *
 * visit() takes the bits of the last two rows from left to right:
 *
 *     byte  0  {  depth 1
 *     byte  5  :  depth 1, but the key before it is "id"
 *     byte 17  :  depth 1, but the key is "n"
 *     byte 18  [  depth 2, where no colon matters
 *     byte 20  ]  depth 1
 *     byte 27  :  depth 1, and the key is "len": measure_value() reads 42. Scanning continues: a later "len" wins.
 *     byte 30  }  depth 0
 *
 * The colons of most other keys need no visit. A key that is written without escapes ends in its own last byte, here
 * n. So a colon right after a quote is skipped if the byte before that quote is not n:
 *
 *     record               {"id":"a:}","n":[7],"len":42}
 *     after a quote        ..1..1.1...1.1.1.....1...1...     quote << 1
 *     n, two bytes before  ...............1.........1...     extra << 2, where extra has the bytes that are n
 *     colon & ~inside      .....1.........1.........1...
 *     visited              ...............1.........1...     colon & ~inside & (~(quote << 1) | extra << 2)
 *
 * From the first backslash of a record on, all colons are visited, since a key may be written "le\u006e".
 * tests/test_json.py computes the rows of this comment again. */
#include "json_values.h"

#include <string.h>

#define BLOCKS 16                       /* masks computed at a time */
#define FIRST_BYTES "\"{[tf-0123456789" /* of values that are not null */

/* ---- whole records --------------------------------------------------------------------------------------- */

size_t mds_json_skip(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, size_t around, size_t *at)
{
    uint8_t object[MDS_JSON_DEPTH]; /* of each container of the value around p[i]: whether it is an object */
    size_t depth = 0, bytes, chars, next;
value:
    *at = i;
    if (i == n)
        return 0;
    switch (p[i]) {
    case '{':
    case '[':
        if (depth + around >= MDS_JSON_DEPTH)
            return 0;
        object[depth++] = p[i] == '{';
        i = mds_json_spaces(p, i + 1, n);
        if (i < n && p[i] == (object[depth - 1] ? '}' : ']')) {
            depth--;
            i++;
            goto after;
        }
        if (object[depth - 1])
            goto key;
        goto value;
    case '"':
        next = mds_json_string(kernels, p, i + 1, n, &bytes, &chars, at);
        break;
    case 't':
        next = mds_json_word(p, i, n, "true");
        break;
    case 'f':
        next = mds_json_word(p, i, n, "false");
        break;
    case 'n':
        next = mds_json_word(p, i, n, "null");
        break;
    default:
        if (p[i] != '-' && !mds_is_digit(p[i]))
            return 0;
        next = mds_json_number(p, i, n, NULL, at);
    }
    if (next == 0)
        return 0;
    i = next;
after:
    if (depth == 0)
        return i;
    i = mds_json_spaces(p, i, n);
    *at = i;
    if (i == n)
        return 0;
    if (p[i] == (object[depth - 1] ? '}' : ']')) {
        depth--;
        i++;
        goto after;
    }
    if (p[i] != ',')
        return 0;
    i = mds_json_spaces(p, i + 1, n);
    if (!object[depth - 1])
        goto value;
key:
    *at = i;
    if (i == n || p[i] != '"')
        return 0;
    next = mds_json_string(kernels, p, i + 1, n, &bytes, &chars, at);
    if (next == 0)
        return 0;
    i = mds_json_spaces(p, next, n);
    *at = i;
    if (i == n || p[i] != ':')
        return 0;
    i = mds_json_spaces(p, i + 1, n);
    goto value;
}

int mds_json_valid(const mds_kernels *kernels, const uint8_t *p, size_t n, size_t *at)
{
    const size_t end = mds_json_skip(kernels, p, mds_json_spaces(p, 0, n), n, 0, at);
    if (end == 0)
        return 0;
    *at = mds_json_spaces(p, end, n);
    return *at == n;
}

/* ---- one field ------------------------------------------------------------------------------------------- */

typedef struct {
    const mds_kernels *kernels;
    const uint8_t *p;
    size_t n, begin;
    const mds_field *field;
    mds_json_status found; /* the result for the last value at the path */
    mds_number number;     /* its measure, if found is MDS_JSON_OK */
    size_t value;          /* where it begins */
    size_t at;             /* the byte that is visited */
    size_t matched;        /* keys of the path whose objects we are inside */
    size_t depth;          /* containers around the byte that is visited */
    size_t items_depth;    /* depth at which commas separate the elements to count, else 0 */
    uint64_t commas;       /* of these, how many so far */
    int items_empty;       /* the array to count begins with its closing bracket */
} scan;

/* Whether the key before the colon is the next one of the path; -1 if there is no key. */
static int is_wanted(const scan *s, size_t colon, int escapes)
{
    const uint8_t *p = s->p, *key = s->field->keys[s->matched];
    const size_t size = s->field->key_sizes[s->matched];
    size_t end = colon;
    while (end > 0 && mds_is_space(p[end - 1]))
        end--;
    if (end < 2 || p[end - 1] != '"')
        return -1;
    end--;
    if (!escapes)
        return end > size && p[end - size - 1] == '"' && memcmp(p + end - size, key, size) == 0;
    size_t begin = end; /* back to the quote that opens the key: the nearest one that is not escaped */
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
    return mds_json_same_key(p + begin + 1, end - begin - 1, key, size);
}

/* ---- sums over arrays: their elements are read one by one, from the bracket of the array on ------------------ */

/* A value inside an element. */
typedef struct {
    mds_json_status found;
    mds_number number; /* its measure, if found is MDS_JSON_OK */
    size_t value;      /* where it begins */
} element;

/* After the bracket that opens an array or object, or after an entry, both of which end before p[i]: the place of the
 * next entry, or with *more 0 that after the closing bracket. 0 if the text is malformed, also if i is 0. */
static size_t next_entry(scan *s, size_t i, int is_first, uint8_t closing, int *more)
{
    *more = 0;
    if (i == 0)
        return 0;
    s->at = i = mds_json_spaces(s->p, i, s->n);
    if (i == s->n)
        return 0;
    if (s->p[i] == closing)
        return i + 1;
    if (!is_first && s->p[i] != ',')
        return 0;
    *more = 1;
    return is_first ? i : mds_json_spaces(s->p, i + 1, s->n);
}

/* These two measure a value of an element, which begins at p[i] inside of `around` arrays and objects, and return the
 * place after it, or 0 if it is malformed. */
static size_t measure_here(scan *s, size_t i, size_t around, element *e)
{
    const mds_measure measure = s->field->measure;
    const uint8_t c = i < s->n ? s->p[i] : 0;
    size_t bytes, chars;
    int more;
    e->value = i;
    e->found = MDS_JSON_OK;
    if (measure == MDS_MEASURE_NUMBER && (c == '-' || mds_is_digit(c)))
        return mds_json_number(s->p, i, s->n, &e->number, &s->at);
    if (measure == MDS_MEASURE_ITEMS && c == '[') {
        e->number = (mds_number){MDS_U64, 0};
        for (i = next_entry(s, i + 1, 1, ']', &more); more; i = next_entry(s, i, 0, ']', &more)) {
            i = mds_json_skip(s->kernels, s->p, i, s->n, around + 1, &s->at);
            e->number.bits++;
        }
        return i;
    }
    if ((measure == MDS_MEASURE_BYTES || measure == MDS_MEASURE_CHARS) && c == '"') {
        i = mds_json_string(s->kernels, s->p, i + 1, s->n, &bytes, &chars, &s->at);
        e->number = (mds_number){MDS_U64, measure == MDS_MEASURE_BYTES ? bytes : chars};
        return i;
    }
    e->found = c == 'n' ? MDS_JSON_MISSING : MDS_JSON_TYPE;
    return mds_json_skip(s->kernels, s->p, i, s->n, around, &s->at);
}

/* Follows the path of the sum from its key k on. */
static size_t measure_inside(scan *s, size_t i, size_t k, size_t around, element *e)
{
    const mds_field *field = s->field;
    const uint8_t *p = s->p, c = i < s->n ? p[i] : 0;
    size_t bytes, chars;
    int more;
    if (k == field->segments + field->inside)
        return measure_here(s, i, around, e);
    e->value = i;
    e->found = c == '{' || c == 'n' ? MDS_JSON_MISSING : MDS_JSON_TYPE;
    if (c != '{')
        return mds_json_skip(s->kernels, p, i, s->n, around, &s->at);
    for (i = next_entry(s, i + 1, 1, '}', &more); more; i = next_entry(s, i, 0, '}', &more)) {
        const size_t key = i + 1;
        const size_t end =
            i < s->n && p[i] == '"' ? mds_json_string(s->kernels, p, key, s->n, &bytes, &chars, &s->at) : 0;
        const size_t colon = end ? mds_json_spaces(p, end, s->n) : s->n;
        if (colon == s->n || p[colon] != ':')
            return 0;
        i = mds_json_spaces(p, colon + 1, s->n);
        if (mds_json_same_key(p + key, end - 1 - key, field->keys[k], field->key_sizes[k]))
            i = measure_inside(s, i, k + 1, around + 1, e);
        else
            i = mds_json_skip(s->kernels, p, i, s->n, around + 1, &s->at);
    }
    return i;
}

static double as_double(mds_number number)
{
    double value;
    memcpy(&value, &number.bits, 8);
    return value;
}

/* Measure the array that begins at p[i]. */
static void measure_sum(scan *s, size_t i)
{
    __int128 whole = 0;
    double others = 0;
    int more, is_double = 0;
    s->found = MDS_JSON_OK;
    for (i = next_entry(s, i + 1, 1, ']', &more); more; i = next_entry(s, i, 0, ']', &more)) {
        element e = {.number = {MDS_U64, 0}};
        i = measure_inside(s, i, s->field->segments, s->depth + 1, &e);
        if (e.found == MDS_JSON_TYPE && s->found != MDS_JSON_TYPE)
            s->value = e.value;
        e.found = e.found == MDS_JSON_MISSING ? MDS_JSON_PARTIAL : e.found;
        s->found = e.found > s->found ? e.found : s->found;
        if (e.found != MDS_JSON_OK) /* an equal key before may have left a number */
            continue;
        if (e.number.type == MDS_F64) {
            is_double = 1;
            others += as_double(e.number);
        } else {
            whole += e.number.type == MDS_I64 ? (__int128)(int64_t)e.number.bits : (__int128)e.number.bits;
        }
    }
    if (i == 0)
        s->found = MDS_JSON_INVALID;
    if (is_double || whole > UINT64_MAX || whole < INT64_MIN) {
        others += (double)whole;
        s->number.type = MDS_F64;
        memcpy(&s->number.bits, &others, 8);
    } else {
        s->number = (mds_number){whole < 0 ? MDS_I64 : MDS_U64, (uint64_t)whole};
    }
}

/* Measure the value that begins at or after p[i]. */
static void measure_value(scan *s, size_t i)
{
    const mds_measure measure = s->field->measure;
    const uint8_t *p = s->p;
    size_t next, bytes, chars;
    i = mds_json_spaces(p, i, s->n);
    s->at = s->value = i;
    s->items_depth = 0;
    s->found = MDS_JSON_INVALID;
    if (i == s->n)
        return;
    const uint8_t c = p[i];
    if (c == 'n') {
        s->found = mds_json_word(p, i, s->n, "null") ? MDS_JSON_MISSING : MDS_JSON_INVALID;
    } else if (s->field->is_sum && c == '[') {
        measure_sum(s, i);
    } else if (s->field->is_sum) {
        s->found = strchr(FIRST_BYTES, c) && c ? MDS_JSON_TYPE : MDS_JSON_INVALID;
    } else if (measure == MDS_MEASURE_NUMBER && (c == '-' || mds_is_digit(c))) {
        next = mds_json_number(p, i, s->n, &s->number, &s->at);
        if (next && next < s->n && (mds_is_space(p[next]) || p[next] == ',' || p[next] == '}'))
            s->found = MDS_JSON_OK;
    } else if (c == '"' && (measure == MDS_MEASURE_BYTES || measure == MDS_MEASURE_CHARS)) {
        if (mds_json_string(s->kernels, p, i + 1, s->n, &bytes, &chars, &s->at)) {
            s->found = MDS_JSON_OK;
            s->number = (mds_number){MDS_U64, measure == MDS_MEASURE_BYTES ? bytes : chars};
        }
    } else if (c == '[' && measure == MDS_MEASURE_ITEMS) {
        next = mds_json_spaces(p, i + 1, s->n);
        s->items_depth = s->depth + 1;
        s->commas = 0;
        s->items_empty = next < s->n && p[next] == ']';
    } else {
        s->found = strchr(FIRST_BYTES, c) && c ? MDS_JSON_TYPE : MDS_JSON_INVALID;
    }
}

/* Bits lo <= b < hi. */
static uint64_t between(size_t lo, size_t hi)
{
    return (hi == 64 ? UINT64_MAX : ((uint64_t)1 << hi) - 1) & ~(((uint64_t)1 << lo) - 1);
}

/* Visit the brackets and colons of a block in order; 0 if they contradict JSON. */
static int visit(scan *s, size_t base, uint64_t events, uint64_t commas, int escapes)
{
    size_t from = 0; /* commas before this bit are counted */
    for (; events; events &= events - 1) {
        const size_t bit = (size_t)__builtin_ctzll(events);
        if (s->items_depth && s->depth == s->items_depth)
            s->commas += (uint64_t)__builtin_popcountll(commas & between(from, bit));
        from = bit;
        s->at = base + bit;
        const uint8_t c = s->p[s->at];
        if (c == '{' || c == '[') {
            if (s->depth == MDS_JSON_DEPTH || (s->depth == 0 && s->at != s->begin))
                return 0;
            s->depth++;
        } else if (c != ':') {
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
            const size_t value = mds_json_spaces(s->p, base + bit + 1, s->n);
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

/* Fill the masks of data[0..n), at most BLOCKS blocks; return how many. Reads nothing beyond `readable`. */
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
    return blocks;
}

/* The bytes that a backslash escapes. *carry: whether the last block ended in a backslash that escapes the first byte
 * of this one; set for the next. */
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

/* What masks of a block carry over to the next one. */
typedef struct {
    uint64_t escape;    /* whether its first byte is escaped */
    uint64_t in_string; /* all ones if it begins inside a string */
    uint64_t quote;     /* of the last byte, and of `extra` of the last two, at the bits that they are shifted to */
    uint64_t extra;
    int escapes; /* whether a key may be written with escapes */
} carry;

/* What a block has outside of strings. */
typedef struct {
    uint64_t inside; /* bytes in strings */
    uint64_t events; /* brackets, and the colons to visit */
    uint64_t commas; /* if `extra` has them */
} structure;

/* Return the structure of a block of which the bytes up to bit `last` count. With `tells`, pass over the colons of
 * other keys, as in the second example. */
static structure structure_of(const mds_json_masks *m, size_t last, int tells, carry *c)
{
    uint64_t quote = m->quote, inside = m->inside;
    if (m->backslash | c->escape) {
        quote &= ~escaped_bytes(m->backslash, &c->escape);
        inside = mds_prefix_xor(quote);
        c->escapes = 1;
    }
    inside ^= c->in_string;
    const uint64_t outside = UINT64_MAX >> (63 - last) & ~inside;
    uint64_t colons = m->colon & outside;
    if (tells && !c->escapes)
        colons &= ~(quote << 1 | c->quote) | m->extra << 2 | c->extra;
    c->in_string = 0 - (inside >> last & 1);
    c->quote = quote >> 63;
    c->extra = m->extra >> 62;
    return (structure){inside, (m->brackets & outside) | colons, m->extra & outside};
}

/* Whether the last byte of a key tells it from most others: not if a path has several keys, which may end in different
 * bytes, nor if the mask is needed for commas. */
static int last_byte_tells(const mds_field *field)
{
    return field->segments == 1 && (field->measure != MDS_MEASURE_ITEMS || field->is_sum);
}

/* The byte of the extra mask. */
static uint8_t extra_byte(const mds_field *field)
{
    const size_t size = field->key_sizes[0];
    if (field->measure == MDS_MEASURE_ITEMS && !field->is_sum)
        return ',';
    return size ? field->keys[0][size - 1] : '"';
}

int mds_field_escaped(const mds_field *field)
{
    for (size_t k = 0; k < field->segments; k++)
        for (size_t j = 0; j < field->key_sizes[k]; j++)
            if (field->keys[k][j] < 32 || field->keys[k][j] == '"' || field->keys[k][j] == '\\')
                return 1;
    return 0;
}

mds_json_status mds_json_measure(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t readable,
                                 const mds_field *field, mds_number *number, size_t *at)
{
    const size_t begin = mds_json_spaces(data, 0, n);
    scan s = {.kernels = kernels, .p = data, .n = n, .begin = begin, .field = field, .at = begin};
    s.found = MDS_JSON_MISSING;
    *at = begin;
    if (begin == n)
        return MDS_JSON_INVALID;
    if (data[begin] != '{')
        return strchr("\"[tfn-0123456789", data[begin]) && data[begin] ? MDS_JSON_TYPE : MDS_JSON_INVALID;
    const int tells = last_byte_tells(field);
    carry c = {.escapes = field->escaped};
    mds_json_masks masks[BLOCKS];
    for (size_t base = 0; base < n; base += BLOCKS * 64) {
        const size_t rest = n - base < BLOCKS * 64 ? n - base : BLOCKS * 64;
        const size_t blocks = masks_of(kernels, data + base, rest, readable - base, extra_byte(field), masks);
        for (size_t b = 0; b < blocks; b++) {
            const structure found = structure_of(&masks[b], b + 1 < blocks ? 63 : (rest - 1) % 64, tells, &c);
            if ((found.events || s.items_depth) && !visit(&s, base + b * 64, found.events, found.commas, c.escapes)) {
                *at = s.at;
                return MDS_JSON_INVALID;
            }
        }
    }
    *at = s.found == MDS_JSON_TYPE ? s.value : begin;
    *number = s.number;
    if (s.depth || c.in_string) {
        *at = n;
        return MDS_JSON_INVALID;
    }
    return s.found;
}

/* ---- one field of many records --------------------------------------------------------------------------- */

/* Begin with the record at data[begin]; text outside of it is read as its own. */
static void begin_record(scan *s, size_t begin)
{
    s->begin = s->at = begin;
    s->found = MDS_JSON_MISSING;
    s->matched = s->depth = s->items_depth = 0;
}

/* Measure records from the one at bounds[k] on, until one of them ends inside a string; return how many are done. */
static size_t measure_from(scan *s, size_t readable, const uint64_t *bounds, size_t k, size_t n, mds_number *numbers,
                           uint8_t *is_measured)
{
    const int tells = last_byte_tells(s->field);
    const uint8_t extra = extra_byte(s->field);
    carry c = {.escapes = s->field->escaped};
    mds_json_masks masks[BLOCKS];
    int fits = 1; /* whether the record agrees with JSON so far */
    begin_record(s, (size_t)bounds[k]);
    for (size_t base = s->begin;; base += BLOCKS * 64) {
        const size_t rest = (size_t)bounds[n] - base < BLOCKS * 64 ? (size_t)bounds[n] - base : BLOCKS * 64;
        const size_t blocks = masks_of(s->kernels, s->p + base, rest, readable - base, extra, masks);
        for (size_t b = 0; b < blocks; b++) {
            const size_t at = base + b * 64;
            const structure found = structure_of(&masks[b], 63, tells, &c);
            size_t from = 0, stop; /* bits of the record in this block */
            while ((stop = (size_t)bounds[k + 1] - at) <= 64) {
                const uint64_t own = between(from, stop);
                fits = fits && visit(s, at, found.events & own, found.commas & own, c.escapes);
                const int is_open = (int)(found.inside >> (stop - 1) & 1);
                is_measured[k] = fits && s->depth == 0 && s->found == MDS_JSON_OK && !is_open;
                numbers[k++] = s->number;
                if (k == n || is_open)
                    return k;
                begin_record(s, (size_t)bounds[k]);
                fits = 1;
                from = stop;
            }
            const uint64_t own = from < 64 ? between(from, 64) : 0;
            if (from) /* in this block a backslash of the record before counts too: then all colons are visited */
                c.escapes = s->field->escaped || (masks[b].backslash & own) != 0;
            if (fits && (found.events & own || s->items_depth))
                fits = visit(s, at, found.events & own, found.commas & own, c.escapes);
        }
    }
}

void mds_json_measure_all(const mds_kernels *kernels, const uint8_t *data, size_t readable, const uint64_t *bounds,
                          size_t n, const mds_field *field, mds_number *numbers, uint8_t *is_measured)
{
    scan s = {.kernels = kernels, .p = data, .n = readable, .field = field};
    for (size_t k = 0; k < n;)
        k = measure_from(&s, readable, bounds, k, n, numbers, is_measured);
}
