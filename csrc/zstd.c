/* zstd.c - the frames of a zstd file, found without decoding them.
 *
 * A frame does not store its size: it is a header and blocks, each after 3 bytes with its size. So a walk reads only
 * these, a cache line for every 128 KiB of text. The format is RFC 8878. */
#include "mmapds.h"

#include <string.h>

#define FRAME_MAGIC UINT32_C(0xFD2FB528)
#define SKIPPABLE_MAGIC UINT32_C(0x184D2A50) /* to 0x184D2A5F */
#define SKIPPABLE_HEADER 8
#define BLOCK_HEADER 3
#define CHECKSUM 4
#define LARGEST_BLOCK (UINT64_C(128) << 10)

enum { RAW, RUN, COMPRESSED, RESERVED };

/* Read a little-endian number of up to 8 bytes. */
static uint64_t load(const uint8_t *p, unsigned bytes)
{
    uint64_t x = 0;
    memcpy(&x, p, bytes);
    return x;
}

/* Read the header of a frame behind its magic number, at `p`, of which `left` bytes may be read. */
static mds_zstd_status read_header(const uint8_t *p, uint64_t left, uint64_t max_window, mds_zstd *state)
{
    static const unsigned id_sizes[] = {0, 1, 2, 4}, content_sizes[] = {0, 2, 4, 8};
    if (left < 1)
        return MDS_ZSTD_CUT;
    const unsigned descriptor = p[0], is_single = descriptor >> 5 & 1, flag = descriptor >> 6;
    const unsigned id_at = is_single ? 1 : 2, id_size = id_sizes[descriptor & 3];
    const unsigned content_size = flag ? content_sizes[flag] : is_single;
    if (descriptor & 8)
        return MDS_ZSTD_RESERVED;
    const unsigned size = id_at + id_size + content_size;
    if (left < size)
        return MDS_ZSTD_CUT;
    const uint8_t *at = p + id_at;
    state->found = load(at, id_size);
    if (state->found)
        return MDS_ZSTD_DICTIONARY;
    state->content = content_size ? load(at + id_size, content_size) + (content_size == 2 ? 256 : 0) : MDS_NONE;
    const uint64_t base = UINT64_C(1) << (10 + (p[1] >> 3));
    state->found = is_single ? state->content : base + base / 8 * (p[1] & 7);
    if (state->found > max_window)
        return MDS_ZSTD_WINDOW;
    state->has_checksum = descriptor >> 2 & 1;
    state->at += 4 + size;
    return MDS_ZSTD_OK;
}

/* Begin the frame at state->at, or skip a skippable frame. */
static mds_zstd_status begin_frame(const mds_map *map, uint64_t max_window, mds_zstd *state)
{
    const uint8_t *p = map->data + state->at;
    const uint64_t left = map->size - state->at;
    state->frame = state->at;
    if (left < 4)
        return MDS_ZSTD_NOT_FRAME;
    const uint32_t magic = (uint32_t)load(p, 4);
    if ((magic & ~UINT32_C(15)) == SKIPPABLE_MAGIC) {
        if (left < SKIPPABLE_HEADER || left - SKIPPABLE_HEADER < load(p + 4, 4))
            return MDS_ZSTD_CUT;
        state->at += SKIPPABLE_HEADER + load(p + 4, 4);
        return MDS_ZSTD_OK;
    }
    if (magic != FRAME_MAGIC)
        return MDS_ZSTD_NOT_FRAME;
    const mds_zstd_status status = read_header(p + 4, left - 4, max_window, state);
    state->room = 0;
    state->is_open = status == MDS_ZSTD_OK;
    return status;
}

/* Skip a block, and the checksum after the last block. */
static mds_zstd_status next_block(const mds_map *map, mds_zstd *state)
{
    const uint64_t left = map->size - state->at;
    if (left < BLOCK_HEADER)
        return MDS_ZSTD_CUT;
    const uint64_t header = load(map->data + state->at, BLOCK_HEADER), type = header >> 1 & 3, size = header >> 3;
    if (type == RESERVED)
        return MDS_ZSTD_RESERVED;
    const uint64_t stored =
        BLOCK_HEADER + (type == RUN ? 1 : size) + (header & 1 && state->has_checksum ? CHECKSUM : 0);
    if (left < stored)
        return MDS_ZSTD_CUT;
    state->room += type == COMPRESSED ? LARGEST_BLOCK : size;
    state->at += stored;
    state->is_open = !(header & 1);
    if (state->is_open || state->content == MDS_NONE)
        return MDS_ZSTD_OK;
    state->found = state->content;
    const int fits = state->content ? state->content <= state->room : !state->room;
    return fits ? MDS_ZSTD_OK : MDS_ZSTD_CONTENT;
}

mds_zstd_status mds_zstd_walk(const mds_map *map, uint64_t end, uint64_t max_window, mds_zstd *state, uint64_t *begins,
                              uint64_t *contents, size_t capacity, size_t *count)
{
    mds_zstd_status status = MDS_ZSTD_OK;
    *count = 0;
    if (end > map->size)
        end = map->size;
    while (status == MDS_ZSTD_OK && state->at < end && *count < capacity) {
        if (!state->is_open) {
            status = begin_frame(map, max_window, state);
            continue;
        }
        status = next_block(map, state);
        if (status == MDS_ZSTD_OK && !state->is_open) {
            begins[*count] = state->frame;
            contents[(*count)++] = state->content;
        }
    }
    if (status == MDS_ZSTD_OK && state->is_open && state->at >= map->size)
        status = MDS_ZSTD_CUT; /* between two blocks, or after the header */
    return status;
}
