/* bounds.c - bounds of records, packed into groups and back. */
#include "mmapds.h"

/* Pack one group from the bounds of its records; return whether they fit the width. Inlined with a constant width. */
static inline __attribute__((always_inline)) int pack(unsigned width, const uint64_t *bounds, uint8_t *group)
{
    const unsigned records = mds_group_records(width);
    uint64_t all = 0;
    memset(group + MDS_GROUP - MDS_GROUP_HEAD, 0, MDS_GROUP_HEAD); /* the rest after the last number */
    memcpy(group, bounds, MDS_GROUP_HEAD);
    for (unsigned k = 0; k < records; k++) {
        const uint64_t distance = bounds[k + 1] - bounds[0];
        all |= distance;
        memcpy(group + MDS_GROUP_HEAD + k * width, &distance, width);
    }
    return width == 8 || !(all >> 8 * (width % 8));
}

static inline __attribute__((always_inline)) uint64_t pack_all(unsigned width, const uint64_t *held, unsigned n_held,
                                                               const uint64_t *bounds, uint64_t n, uint8_t *out)
{
    const unsigned records = mds_group_records(width);
    uint64_t groups = 0, at = 0;
    if (n_held) {
        uint64_t first[MDS_GROUP_MOST + 1];
        const unsigned taken = records + 1 - n_held;
        if (n < taken)
            return 0;
        memcpy(first, held, n_held * sizeof *first);
        memcpy(first + n_held, bounds, taken * sizeof *first);
        if (!pack(width, first, out))
            return 0;
        groups = 1;
        at = taken - 1;
    }
    for (; n - at > records; at += records, groups++)
        if (!pack(width, bounds + at, out + groups * MDS_GROUP))
            break;
    return groups;
}

uint64_t mds_bounds_pack(unsigned width, const uint64_t *held, unsigned n_held, const uint64_t *bounds, uint64_t n,
                         uint8_t *out)
{
    switch (width) {
    case 2:
        return pack_all(2, held, n_held, bounds, n, out);
    case 3:
        return pack_all(3, held, n_held, bounds, n, out);
    case 4:
        return pack_all(4, held, n_held, bounds, n, out);
    default:
        return pack_all(8, held, n_held, bounds, n, out);
    }
}

static inline __attribute__((always_inline)) void unpack(unsigned width, const uint8_t *groups, uint64_t n,
                                                         uint64_t *out)
{
    const unsigned records = mds_group_records(width);
    for (uint64_t g = 0; g < n; g++)
        for (unsigned k = 0; k < records; k++)
            *out++ = mds_group_span(groups + g * MDS_GROUP, width, k).begin;
}

void mds_bounds_unpack(unsigned width, const uint8_t *groups, uint64_t n, uint64_t *out)
{
    switch (width) {
    case 2:
        unpack(2, groups, n, out);
        return;
    case 3:
        unpack(3, groups, n, out);
        return;
    case 4:
        unpack(4, groups, n, out);
        return;
    default:
        unpack(8, groups, n, out);
    }
}
