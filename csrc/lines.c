/* lines.c - finds the records of newline-delimited text.
 *
 * Two stages over tiles that stay in the first-level cache: a SIMD kernel turns 64 bytes into one mask of newlines,
 * then plain code walks the set bits. Only the kernel differs between machines, so there is one copy of the
 * rules about blank lines. */
#include "kernels.h"

#include <string.h>

#define TILE_WORDS 128 /* 8 KB of text, 1 KB of masks */

static int is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r';
}

/* Decide whether the line at data[p], which may begin with white space, is blank: search data[0..n) for another byte.
 * Report the line if it is a record, drop it if it is blank, and leave it pending if the data end first. */
static size_t settle(const uint8_t *data, size_t n, size_t p, uint64_t start, mds_lines *state, uint64_t *starts)
{
    while (p < n && is_blank(data[p]))
        p++;
    if (p == n) {
        state->pending = start;
        return 0;
    }
    state->pending = MDS_NONE;
    if (data[p] == '\n')
        return 0;
    *starts = start;
    return 1;
}

/* `room` is checked: newlines are found before the bytes after them are read. A write to a mapped file in between may
 * show more lines than the file can hold. */
size_t mds_lines_scan(const mds_kernels *kernels, const uint8_t *data, size_t n, uint64_t base, mds_lines *state,
                      uint64_t *starts, size_t room)
{
    uint64_t masks[TILE_WORDS];
    uint8_t tail[64];
    size_t count = 0;

    if (state->pending != MDS_NONE && room)
        count += settle(data, n, 0, state->pending, state, starts);

    for (size_t at = 0; at < n;) {
        size_t words = (n - at) / 64;
        if (words > TILE_WORDS)
            words = TILE_WORDS;
        if (words) {
            kernels->mask_bytes(data + at, words, '\n', masks);
        } else {
            memset(tail, 0, sizeof tail);
            memcpy(tail, data + at, n - at);
            kernels->mask_bytes(tail, 1, '\n', masks);
            words = 1;
        }
        for (size_t w = 0; w < words; w++, at += 64) {
            uint64_t mask = masks[w];
            while (mask && count < room) {
                const size_t p = at + (size_t)__builtin_ctzll(mask) + 1;
                mask &= mask - 1;
                state->newlines++;
                if (p < n && data[p] > ' ')
                    starts[count++] = base + p;
                else
                    count += settle(data, n, p, base + p, state, starts + count);
            }
        }
    }
    return count;
}
