/* pad.c - samples of any length into one array: each in a row of it, or one after another. */
#include "mmapds.h"

#include <string.h>

/* Nearly every fill is 0 or -1, for which memset uses the widest stores of the machine. Compilers turn the loop for
 * other fills into vector stores. */
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

size_t mds_pieces_follow(const mds_piece *pieces, const uint64_t *begins, size_t count, size_t total)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (begins[i] < end || begins[i] > total || pieces[i].size > total - begins[i])
            return i;
        end = begins[i] + pieces[i].size;
    }
    return count;
}

void mds_join_pieces(const mds_piece *pieces, const uint64_t *begins, size_t count, size_t total, uint64_t fill,
                     uint8_t *out)
{
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        fill_bytes(out + end, (size_t)begins[i] - end, fill);
        if (pieces[i].size)
            memcpy(out + begins[i], pieces[i].data, pieces[i].size);
        end = (size_t)begins[i] + pieces[i].size;
    }
    fill_bytes(out + end, total - end, fill);
}

void mds_number_tokens(const uint64_t *bounds, size_t count, unsigned width, void *positions, const int32_t *numbers,
                       int32_t *ids)
{
    for (size_t k = 0; k < count; k++) {
        const uint64_t size = bounds[k + 1] - bounds[k];
        if (width == 4)
            for (uint64_t i = 0; i < size; i++)
                ((uint32_t *)positions)[bounds[k] + i] = (uint32_t)i;
        else
            for (uint64_t i = 0; i < size; i++)
                ((uint64_t *)positions)[bounds[k] + i] = i;
        for (uint64_t i = 0; ids && i < size; i++)
            ids[bounds[k] + i] = numbers[k];
    }
}

size_t mds_array_pieces(const mds_request *records, const mds_array_value *values, size_t stride, size_t n,
                        uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    for (size_t k = 0; k < n; k++) {
        const mds_array_value *value = &values[k * stride];
        const uint64_t entries = value->shape[0], kept = entries < longest ? entries : longest;
        if (entries ? value->size / entries != row || value->size % entries : value->size != 0)
            return k;
        const uint8_t *data = records[k].data + value->begin;
        pieces[k] = (mds_piece){data + (left ? (entries - kept) * row : 0), (size_t)(kept * row)};
    }
    return n;
}
