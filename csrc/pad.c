/* pad.c - samples of any length into the rows of one array. */
#include "mmapds.h"

#include <string.h>

/* Nearly every fill is 0 or -1, for which memset uses the widest stores of the machine. The loop for the others is one
 * that compilers turn into vector stores. */
static void fill_bytes(uint8_t *out, size_t n, uint64_t fill)
{
    if (fill == 0x0101010101010101ULL * (fill & 0xff)) {
        memset(out, (int)(fill & 0xff), n);
        return;
    }
    size_t k = 0;
    for (; k + 8 <= n; k += 8)
        memcpy(out + k, &fill, 8);
    memcpy(out + k, &fill, n - k);
}

void mds_pad_rows(const mds_piece *pieces, size_t count, size_t width, uint64_t fill, uint8_t *out)
{
    for (size_t i = 0; i < count; i++, out += width) {
        const size_t size = pieces[i].size;
        if (size)
            memcpy(out, pieces[i].data, size);
        fill_bytes(out + size, width - size, fill);
    }
}
