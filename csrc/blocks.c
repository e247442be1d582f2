/* blocks.c - copies records out of decoded blocks of a compressed source. */
#include "mmapds.h"

#include <string.h>

size_t mds_blocks_first(const mds_block_record *records, size_t n, uint64_t begin)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (records[middle].request->span.end > begin)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void mds_blocks_copy(mds_block_record *records, size_t n, uint64_t begin, uint64_t end, const uint8_t *piece)
{
    for (size_t k = mds_blocks_first(records, n, begin); k < n && records[k].request->span.begin < end; k++) {
        const mds_span span = records[k].request->span;
        const uint64_t from = span.begin > begin ? span.begin : begin, to = span.end < end ? span.end : end;
        if (from >= to)
            continue;
        memcpy(records[k].out + (from - span.begin), piece + (from - begin), (size_t)(to - from));
        records[k].left -= to - from < records[k].left ? to - from : records[k].left;
    }
}
