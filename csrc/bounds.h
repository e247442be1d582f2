/* bounds.h - where the records of a source begin and end, as an index stores it: in groups of one cache line.
 *
 * mmapds.h includes it. The bounds of n records are n + 1 bytes of their source: where each record begins, and where
 * the last one ends. A group has 64 bytes: its first bound as u64, and then further bounds as long as there is room,
 * each as its distance to the first, a number of `width` bytes. The last bound is also the first of the next group, so
 * that both bounds of any record lie in one cache line.
 *
 * A source has one width, the smallest of 2, 3, 4 and 8 that holds its distances, and n / mds_group_records(width) + 1
 * groups. The last group repeats the last bound up to its end. */
#ifndef MMAPDS_BOUNDS_H
#define MMAPDS_BOUNDS_H

#include <stdint.h>
#include <string.h>

/* Bytes [begin, end) of a source, or of a record. */
typedef struct {
    uint64_t begin, end;
} mds_span;

#define MDS_GROUP 64      /* bytes */
#define MDS_GROUP_HEAD 8  /* bytes of its first bound */
#define MDS_GROUP_MOST 28 /* records, with the smallest width */

static inline int mds_is_width(uint64_t width)
{
    return width == 2 || width == 3 || width == 4 || width == 8;
}

/* Records of a group. The functions here need a width that mds_is_width accepts. */
static inline unsigned mds_group_records(unsigned width)
{
    return (MDS_GROUP - MDS_GROUP_HEAD) / width;
}

/* The group of record i. Division by a constant is a multiplication. */
static inline uint64_t mds_group_of(unsigned width, uint64_t i)
{
    switch (width) {
    case 2:
        return i / mds_group_records(2);
    case 3:
        return i / mds_group_records(3);
    case 4:
        return i / mds_group_records(4);
    default:
        return i / mds_group_records(8);
    }
}

/* The number at a byte of a group. A number of 3 bytes is followed by another byte of the group. */
static inline uint64_t mds_group_number(const uint8_t *at, unsigned width)
{
    uint64_t number = 0;
    if (width == 8)
        memcpy(&number, at, 8);
    else if (width == 2)
        memcpy(&number, at, 2);
    else
        memcpy(&number, at, 4);
    return width == 3 ? number & 0xffffff : number;
}

/* A bound from its distance to the first. On overflow of 64 bits, it is larger than any source. */
static inline uint64_t mds_group_bound(uint64_t first, uint64_t distance)
{
    return first + distance < first ? UINT64_MAX : first + distance;
}

/* The bounds of record k of a group. */
static inline mds_span mds_group_span(const uint8_t *group, unsigned width, unsigned k)
{
    const uint8_t *end = group + MDS_GROUP_HEAD + k * width;
    const uint64_t others = k ? UINT64_MAX : 0; /* record 0 begins at distance 0 */
    uint64_t first;
    memcpy(&first, group, sizeof first);
    return (mds_span){mds_group_bound(first, mds_group_number(end - width, width) & others),
                      mds_group_bound(first, mds_group_number(end, width))};
}

/* Pack the bounds held[0..n_held) followed by bounds[0..n) into `out`, as many whole groups as possible. Stops early at
 * a group that does not fit `width`. Returns the number of packed groups. Whole groups take one bound more than they
 * have records: the next group begins with it again, so pack it with the following bounds. Needs n_held <= the records
 * of a group, and room for (n_held + n) / mds_group_records(width) groups. */
uint64_t mds_bounds_pack(unsigned width, const uint64_t *held, unsigned n_held, const uint64_t *bounds, uint64_t n,
                         uint8_t *out);

/* Write the bounds at which the records of `n` groups begin: out[0 .. n * mds_group_records(width)). */
void mds_bounds_unpack(unsigned width, const uint8_t *groups, uint64_t n, uint64_t *out);

#endif
