/* inflate.c - the content of gzip members, decoded from the first byte on.
 *
 * A decoder of deflate can begin at any block of a member, if it is given the 32 KiB of content before. Libraries do
 * not say where blocks begin, so this one does. The formats are RFC 1951 and RFC 1952.
 *
 * A code is looked up by its first bits; longer ones have a second table. Three literals and a match take up to 56
 * bits, which is what a buffer of 64 has at least after it was filled, so that it is filled twice for them and not five
 * times. */
#include "mmapds.h"

#include <string.h>

#define LONGEST 15 /* bits of a code */
#define LITERALS 288
#define DISTANCES 32
#define LENGTHS 19 /* codes of lengths of codes */
#define LITERAL_ROOT 11
#define DISTANCE_ROOT 8
#define LENGTH_ROOT 7
#define END_OF_BLOCK 256
#define TRAILER 8 /* bytes */

/* The state of a decoder. */
enum { BETWEEN_MEMBERS, BEFORE_BLOCK, IN_STORED, IN_CODES };

/* Entries of a table: bits of a code, bits that follow it, flags, and a base. No code has an entry of 0. */
#define CODE_BITS(entry) ((entry) & 31)
#define MORE_BITS(entry) ((entry) >> 5 & 31)
#define IS_END (UINT32_C(1) << 10)
#define IS_LINK (UINT32_C(1) << 11) /* to a second table, at the base, by as many more bits as follow */
#define IS_LITERAL (UINT32_C(1) << 12)
#define BASE(entry) ((entry) >> 16)
#define ENTRY(base, more) ((uint32_t)(base) << 16 | (uint32_t)(more) << 5)

enum { GO_ON = -1, ENDED = -2 }; /* results of a step besides a status: continue, and the end of a block */

/* ---- bits ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *begin, *at, *end;
    uint64_t buffer;
    unsigned count; /* valid bits in the buffer; bits above are those that follow, or 0 */
    unsigned over;  /* zeros read in place of bytes after the end */
} bits;

/* Fill the buffer to 56 bits or more. */
static inline void fill(bits *in)
{
    if (in->end - in->at >= 8) {
        uint64_t word;
        memcpy(&word, in->at, sizeof word);
        in->buffer |= word << in->count;
        in->at += (63 - in->count) >> 3;
        in->count |= 56;
        return;
    }
    while (in->count <= 55) {
        if (in->at < in->end)
            in->buffer |= (uint64_t)*in->at++ << in->count;
        else
            in->over++;
        in->count += 8;
    }
}

/* Return whether bits after the end were consumed. */
static inline int is_over(const bits *in)
{
    return in->over * 8 > in->count;
}

static inline uint32_t take(bits *in, unsigned n)
{
    const uint32_t found = (uint32_t)(in->buffer & ((UINT64_C(1) << n) - 1));
    in->buffer >>= n;
    in->count -= n;
    return found;
}

static uint64_t position(const bits *in)
{
    return ((uint64_t)(in->at - in->begin) + in->over) * 8 - in->count;
}

/* Continue at a byte. */
static void go_to(bits *in, const uint8_t *at)
{
    *in = (bits){.begin = in->begin, .at = at, .end = in->end};
}

/* Skip the rest of the current byte; return the next byte. */
static const uint8_t *next_byte(bits *in)
{
    take(in, in->count & 7);
    return in->begin + position(in) / 8;
}

static bits bits_at(const mds_map *map, uint64_t position_)
{
    bits in = {.begin = map->data, .at = map->data + position_ / 8, .end = map->data + map->size};
    if (position_ % 8) {
        fill(&in);
        take(&in, (unsigned)(position_ % 8));
    }
    return in;
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static unsigned reversed(unsigned code, unsigned length)
{
    unsigned found = 0;
    for (unsigned k = 0; k < length; k++)
        found |= (code >> k & 1) << (length - 1 - k);
    return found;
}

/* Set the first code of each length; -1 unless the lengths are those of a prefix code. */
static int first_codes(const uint8_t *lengths, unsigned n, unsigned *next)
{
    unsigned counts[LONGEST + 1] = {0}, code = 0, longest = 0;
    int left = 1;
    for (unsigned k = 0; k < n; k++)
        counts[lengths[k]]++;
    counts[0] = 0;
    for (unsigned length = 1; length <= LONGEST; length++) {
        code = (code + counts[length - 1]) << 1;
        next[length] = code;
        left = left * 2 - (int)counts[length];
        if (left < 0)
            return -1;
        if (counts[length])
            longest = length;
    }
    return left == 0 || longest <= 1 ? 0 : -1; /* an incomplete code is valid only with one symbol or none */
}

/* Make the table of the codes of n symbols.
 *
 * lengths: of the codes, 0 for symbols without one. entries: of the symbols, without the bits of their codes; 0 for
 * those that must not occur. */
static int make_table(const uint8_t *lengths, unsigned n, const uint32_t *entries, unsigned root, uint32_t *table)
{
    unsigned next[LONGEST + 1], codes[LITERALS], used = 1U << root;
    uint8_t more[1 << LITERAL_ROOT]; /* bits after the first ones, by these */
    if (first_codes(lengths, n, next) != 0)
        return -1;
    memset(table, 0, sizeof *table << root);
    memset(more, 0, sizeof *more << root);
    for (unsigned k = 0; k < n; k++) {
        const unsigned length = lengths[k];
        if (!length)
            continue;
        codes[k] = reversed(next[length]++, length);
        uint8_t *most = &more[codes[k] & ((1U << root) - 1)];
        if (length > root && length - root > *most)
            *most = (uint8_t)(length - root);
    }
    for (unsigned k = 0; k < n; k++) {
        const unsigned length = lengths[k];
        const uint32_t entry = entries[k] ? entries[k] | length : 0;
        if (!length)
            continue;
        if (length <= root) {
            for (unsigned at = codes[k]; at < 1U << root; at += 1U << length)
                table[at] = entry;
            continue;
        }
        const unsigned first = codes[k] & ((1U << root) - 1);
        if (!table[first]) {
            table[first] = ENTRY(used, more[first]) | IS_LINK | root;
            memset(table + used, 0, sizeof *table << more[first]);
            used += 1U << more[first];
        }
        uint32_t *second = table + BASE(table[first]);
        for (unsigned at = codes[k] >> root; at < 1U << more[first]; at += 1U << (length - root))
            second[at] = entry;
    }
    return 0;
}

static int make_literals(const uint8_t *lengths, unsigned n, uint32_t *table)
{
    uint32_t entries[LITERALS] = {0};
    for (unsigned k = 0; k < END_OF_BLOCK; k++)
        entries[k] = ENTRY(k, 0) | IS_LITERAL;
    entries[END_OF_BLOCK] = IS_END;
    for (unsigned k = 0, base = 3; k < 28; k++) {
        const unsigned more = k < 8 ? 0 : k / 4 - 1;
        entries[END_OF_BLOCK + 1 + k] = ENTRY(base, more);
        base += 1U << more;
    }
    entries[285] = ENTRY(258, 0);
    return make_table(lengths, n, entries, LITERAL_ROOT, table);
}

static int make_distances(const uint8_t *lengths, unsigned n, uint32_t *table)
{
    uint32_t entries[DISTANCES] = {0};
    for (unsigned k = 0, base = 1; k < 30; k++) {
        const unsigned more = k < 2 ? 0 : k / 2 - 1;
        entries[k] = ENTRY(base, more);
        base += 1U << more;
    }
    return make_table(lengths, n, entries, DISTANCE_ROOT, table);
}

/* Read the next code; return its entry, 0 for an invalid code. */
static inline uint32_t next_entry(bits *in, const uint32_t *table, unsigned root)
{
    uint32_t entry = table[in->buffer & ((1U << root) - 1)];
    if (entry & IS_LINK)
        entry = table[BASE(entry) + (in->buffer >> root & ((1U << MORE_BITS(entry)) - 1))];
    take(in, CODE_BITS(entry));
    return entry;
}

/* Read the code lengths of a block, which are encoded themselves. */
static int read_lengths(bits *in, const uint8_t *code_lengths, unsigned n, uint8_t *lengths)
{
    uint32_t entries[LENGTHS], table[1 << LENGTH_ROOT];
    for (unsigned k = 0; k < LENGTHS; k++)
        entries[k] = ENTRY(k, 0) | IS_LITERAL;
    if (make_table(code_lengths, LENGTHS, entries, LENGTH_ROOT, table) != 0)
        return MDS_INFLATE_DAMAGED;
    for (unsigned k = 0; k < n;) {
        fill(in);
        const uint32_t entry = next_entry(in, table, LENGTH_ROOT), symbol = BASE(entry);
        uint32_t count = 1;
        uint8_t length = (uint8_t)symbol;
        if (symbol >= 16) {
            length = symbol == 16 && k ? lengths[k - 1] : 0;
            count = symbol == 16 ? 3 + take(in, 2) : symbol == 17 ? 3 + take(in, 3) : 11 + take(in, 7);
        }
        if (is_over(in))
            return MDS_INFLATE_CUT;
        if (!entry || (symbol == 16 && !k) || count > n - k)
            return MDS_INFLATE_DAMAGED;
        memset(lengths + k, length, count);
        k += count;
    }
    return GO_ON;
}

static int read_codes(bits *in, mds_inflate_state *state)
{
    static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t code_lengths[LENGTHS] = {0}, lengths[LITERALS + DISTANCES];
    fill(in);
    const unsigned literals = 257 + take(in, 5), distances = 1 + take(in, 5), codes = 4 + take(in, 4);
    for (unsigned k = 0; k < codes; k++) {
        fill(in);
        code_lengths[order[k]] = (uint8_t)take(in, 3);
    }
    if (is_over(in))
        return MDS_INFLATE_CUT;
    if (literals > 286 || distances > 30)
        return MDS_INFLATE_DAMAGED;
    const int status = read_lengths(in, code_lengths, literals + distances, lengths);
    if (status != GO_ON)
        return status;
    const int is_whole = lengths[END_OF_BLOCK] && make_literals(lengths, literals, state->literals) == 0 &&
                         make_distances(lengths + literals, distances, state->distances) == 0;
    state->has_fixed = 0;
    return is_whole ? GO_ON : MDS_INFLATE_DAMAGED;
}

static void set_fixed_codes(mds_inflate_state *state)
{
    uint8_t literals[LITERALS], distances[DISTANCES];
    for (unsigned k = 0; k < LITERALS; k++)
        literals[k] = k < 144 ? 8 : k < 256 ? 9 : k < 280 ? 7 : 8;
    memset(distances, 5, sizeof distances);
    make_literals(literals, LITERALS, state->literals);
    make_distances(distances, DISTANCES, state->distances);
    state->has_fixed = 1;
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t at, limit; /* no symbol begins after the limit */
} output;

/* Repeat bytes from `distance` before; writes up to 7 bytes more. */
static inline void repeat(uint8_t *to, size_t distance, size_t length)
{
    const uint8_t *from = to - distance, *const end = to + length;
    if (distance >= 8) {
        for (; to < end; to += 8, from += 8)
            memcpy(to, from, 8);
    } else if (distance == 1) {
        memset(to, *from, length);
    } else {
        while (to < end)
            *to++ = *from++;
    }
}

/* Decode the symbols of a block; `first` is where the member's content begins, as far as it is there. */
static int decode(bits *stream, const mds_inflate_state *state, output *out, size_t first)
{
    const uint32_t *const literals = state->literals, *const distances = state->distances;
    uint8_t *const data = out->data;
    const size_t limit = out->limit;
    size_t at = out->at;
    bits in = *stream;
    int status = MDS_INFLATE_FULL;
    while (at <= limit) {
        fill(&in);
        if (in.over && is_over(&in))
            break;
        uint32_t entry = next_entry(&in, literals, LITERAL_ROOT);
        if (entry & IS_LITERAL) {
            data[at++] = (uint8_t)BASE(entry);
            entry = next_entry(&in, literals, LITERAL_ROOT);
        }
        if (entry & IS_LITERAL) {
            data[at++] = (uint8_t)BASE(entry);
            entry = next_entry(&in, literals, LITERAL_ROOT);
        }
        if (entry & IS_LITERAL) {
            data[at++] = (uint8_t)BASE(entry);
            continue;
        }
        if (entry & IS_END) {
            status = ENDED;
            break;
        }
        const size_t length = BASE(entry) + take(&in, MORE_BITS(entry));
        fill(&in);
        const uint32_t other = next_entry(&in, distances, DISTANCE_ROOT);
        const size_t distance = BASE(other) + take(&in, MORE_BITS(other));
        if (!entry || !other || distance > at - first) {
            status = MDS_INFLATE_DAMAGED;
            break;
        }
        repeat(data + at, distance, length);
        at += length;
    }
    *stream = in;
    out->at = at;
    return is_over(&in) ? MDS_INFLATE_CUT : status;
}

/* Copy a stored block, or as much of it as there is room for. */
static int copy_stored(bits *in, mds_inflate_state *state, output *out)
{
    const uint64_t room = out->at < out->limit ? out->limit - out->at : 0;
    const uint64_t n = state->stored < room ? state->stored : room;
    if ((uint64_t)(in->end - in->at) < n)
        return MDS_INFLATE_CUT;
    memcpy(out->data + out->at, in->at, (size_t)n);
    go_to(in, in->at + n);
    out->at += (size_t)n;
    state->stored -= n;
    return state->stored ? MDS_INFLATE_FULL : ENDED;
}

/* ---- blocks and members ----------------------------------------------------------------------------------------- */

static int begin_stored(bits *in, mds_inflate_state *state)
{
    take(in, in->count & 7);
    fill(in);
    const uint32_t size = take(in, 16), inverted = take(in, 16);
    if (is_over(in))
        return MDS_INFLATE_CUT;
    if (size != (inverted ^ 0xffff))
        return MDS_INFLATE_DAMAGED;
    go_to(in, next_byte(in));
    state->stored = size;
    state->inside = IN_STORED;
    return GO_ON;
}

static int begin_block(bits *in, mds_inflate_state *state)
{
    fill(in);
    state->is_last = (uint8_t)take(in, 1);
    const uint32_t kind = take(in, 2);
    if (is_over(in))
        return MDS_INFLATE_CUT;
    if (kind == 3)
        return MDS_INFLATE_DAMAGED;
    if (kind == 0)
        return begin_stored(in, state);
    state->inside = IN_CODES;
    if (kind == 2)
        return read_codes(in, state);
    if (!state->has_fixed)
        set_fixed_codes(state);
    return GO_ON;
}

/* Read the checksum and size after the last block of a member. */
static int end_member(bits *in, mds_inflate_state *state)
{
    const uint8_t *trailer = next_byte(in);
    if (in->end - trailer < TRAILER)
        return MDS_INFLATE_CUT;
    memcpy(&state->crc, trailer, 4);
    memcpy(&state->size, trailer + 4, 4);
    go_to(in, trailer + TRAILER);
    state->inside = BETWEEN_MEMBERS;
    return MDS_INFLATE_MEMBER;
}

/* Return the byte after a zero-terminated text; NULL without the zero. */
static const uint8_t *after_text(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *zero = at ? memchr(at, 0, (size_t)(end - at)) : NULL;
    return zero ? zero + 1 : NULL;
}

enum { CHECKED = 2, EXTRA = 4, NAME = 8, COMMENT = 16 }; /* flags of a member */

/* Where the blocks of the member at `at` begin; NULL if its header is cut short. */
static const uint8_t *after_header(const uint8_t *at, const uint8_t *end)
{
    if (end - at < 10)
        return NULL;
    const unsigned flags = at[3];
    at += 10;
    if (flags & EXTRA) {
        const int extra = end - at < 2 ? 0 : at[0] | at[1] << 8;
        if (end - at < 2 || end - at - 2 < extra)
            return NULL;
        at += 2 + extra;
    }
    if (flags & NAME)
        at = after_text(at, end);
    if (flags & COMMENT)
        at = after_text(at, end);
    if (at && flags & CHECKED)
        at = end - at < 2 ? NULL : at + 2;
    return at;
}

/* Check a header against its last two bytes, the lower half of its CRC-32. Few headers have one, so a slow loop over
 * bits is enough. */
static int is_as_checked(const uint8_t *at, const uint8_t *end)
{
    uint32_t crc = UINT32_MAX;
    for (; at < end - 2; at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return (~crc & 0xffff) == ((uint32_t)at[0] | (uint32_t)at[1] << 8);
}

static int are_zeros(const uint8_t *at, const uint8_t *end)
{
    while (at < end && !*at)
        at++;
    return at == end;
}

/* Skip the header of the next member, or the zeros after the last one. */
static int begin_member(bits *in, mds_inflate_state *state)
{
    static const uint8_t magic[] = {0x1f, 0x8b, 8};
    const size_t left = (size_t)(in->end - in->at), known = left < sizeof magic ? left : sizeof magic;
    if (are_zeros(in->at, in->end)) {
        go_to(in, in->end);
        return MDS_INFLATE_END;
    }
    if (memcmp(in->at, magic, known) != 0 || (left > 3 && in->at[3] & 0xe0)) /* reserved flags are set */
        return MDS_INFLATE_NOT_MEMBER;
    const uint8_t *blocks = after_header(in->at, in->end);
    if (!blocks)
        return MDS_INFLATE_CUT;
    if (in->at[3] & CHECKED && !is_as_checked(in->at, blocks))
        return MDS_INFLATE_DAMAGED;
    go_to(in, blocks);
    state->content = 0;
    state->inside = BEFORE_BLOCK;
    return GO_ON;
}

/* Decode the rest of a block; after the last block, end the member. */
static int go_on_with_block(bits *in, mds_inflate_state *state, output *out)
{
    const size_t before = out->at;
    const size_t first = state->content < before ? before - (size_t)state->content : 0;
    const int status = state->inside == IN_STORED ? copy_stored(in, state, out) : decode(in, state, out, first);
    state->content += out->at - before;
    if (status != ENDED)
        return status;
    state->inside = BEFORE_BLOCK;
    return state->is_last ? end_member(in, state) : MDS_INFLATE_BLOCK;
}

mds_inflate_status mds_inflate(const mds_map *map, mds_inflate_state *state, uint8_t *out, size_t *filled,
                               size_t enough, size_t room)
{
    const size_t before = *filled;
    if (room < MDS_INFLATE_SLACK || before > room - MDS_INFLATE_SLACK)
        return MDS_INFLATE_FULL;
    output to = {out, before, room - MDS_INFLATE_SLACK};
    bits in = bits_at(map, state->at);
    int status = GO_ON;
    while (status == GO_ON) {
        if (state->inside == BETWEEN_MEMBERS)
            status = begin_member(&in, state);
        else if (state->inside == BEFORE_BLOCK)
            status = begin_block(&in, state);
        else
            status = go_on_with_block(&in, state, &to);
        if (status == MDS_INFLATE_BLOCK && to.at - before < enough)
            status = GO_ON;
    }
    state->at = position(&in);
    *filled = to.at;
    return (mds_inflate_status)status;
}
