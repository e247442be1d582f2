/* frames.c - records that begin with their size: length prefixes, delimited messages, TFRecord.
 *
 * Only the size of a record says where the next one begins, so a scan walks from size to size and reads one cache line
 * of each record, whose address depends on the last. While records are short, we prefetch all lines ahead, wanted or
 * not, so that memory streams: 9 times as fast for records of 300 bytes (bench/bench_frames.py). */
#include "kernels.h"

#include <string.h>

#define SHORT_RECORD 1024 /* bytes; longer ones skip more lines than they read */
#define LINES_AHEAD UINT64_C(2048)
#define FIRST_WINDOW UINT64_C(65536)
#define WINDOW (UINT64_C(1) << 20)
#define PAGE 4096

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Bytes of framing before and after a payload. A varint takes 1 to 10 before it. */
typedef struct {
    uint64_t head, tail;
} widths;

static inline widths framing_widths(mds_framing framing)
{
    switch (framing) {
    case MDS_FRAMING_U32LE:
    case MDS_FRAMING_U32BE:
        return (widths){4, 0};
    case MDS_FRAMING_U64LE:
    case MDS_FRAMING_U64BE:
        return (widths){8, 0};
    case MDS_FRAMING_TFRECORD:
        return (widths){12, 4};
    default:
        return (widths){1, 0};
    }
}

static inline uint32_t load32(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

/* Read the varint at p, of which `left` bytes may be read; return its size, 0 if it does not end in these, NO_VARINT if
 * it has more than 10 bytes or more than 64 bits. One that could be shorter is valid. */
#define NO_VARINT 11
static inline uint64_t read_varint(const uint8_t *p, uint64_t left, uint64_t *value)
{
    uint64_t x = 0;
    for (unsigned k = 0; k < 10; k++) {
        if (k == left)
            return 0;
        const uint64_t bits = p[k] & 127;
        if (k == 9 && bits > 1)
            return NO_VARINT;
        x |= bits << 7 * k;
        if (p[k] < 128) {
            *value = x;
            return k + 1;
        }
    }
    return NO_VARINT;
}

static inline uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static int check_crc(const mds_kernels *kernels, const uint8_t *data, size_t n, const uint8_t *stored,
                     mds_frames *state)
{
    state->found = load32(stored);
    state->expected = masked(kernels->crc32c(0, data, n));
    return state->found == state->expected;
}

/* Read the framing of the frame at p, of which `left` > 0 bytes may be read. */
static ALWAYS_INLINE mds_frames_status read_frame(const mds_kernels *kernels, mds_framing framing, const uint8_t *p,
                                                  uint64_t left, mds_frames *state, widths *w)
{
    *w = framing_widths(framing);
    if (left < w->head)
        return MDS_FRAMES_PREFIX_CUT;
    switch (framing) {
    case MDS_FRAMING_U32LE:
        state->payload = load32(p);
        break;
    case MDS_FRAMING_U32BE:
        state->payload = __builtin_bswap32(load32(p));
        break;
    case MDS_FRAMING_U64BE:
        state->payload = __builtin_bswap64(load64(p));
        break;
    case MDS_FRAMING_VARINT:
        w->head = read_varint(p, left, &state->payload);
        if (w->head == 0)
            return MDS_FRAMES_PREFIX_CUT;
        if (w->head == NO_VARINT)
            return MDS_FRAMES_NO_VARINT;
        break;
    default:
        state->payload = load64(p);
    }
    if (framing == MDS_FRAMING_TFRECORD && !check_crc(kernels, p, 8, p + 8, state))
        return MDS_FRAMES_LENGTH_CRC;
    const uint64_t room = left - w->head;
    if (state->payload <= room && room - state->payload >= w->tail)
        return MDS_FRAMES_OK;
    state->found = (uint32_t)w->head;
    state->expected = (uint32_t)w->tail;
    return MDS_FRAMES_PAYLOAD_CUT;
}

/* Scan until `end`, or until `capacity` is used up. Inlined once for each framing. */
static ALWAYS_INLINE mds_frames_status walk(const mds_kernels *kernels, mds_framing framing, const mds_map *map,
                                            uint64_t end, mds_frames *state, uint64_t *starts, uint64_t *sizes,
                                            size_t capacity, size_t *count)
{
    const uint8_t *data = map->data;
    const uint64_t size = map->size;
    uint64_t at = state->at, asked = at;
    size_t n = *count;
    mds_frames_status status = MDS_FRAMES_OK;
    while (at < end && n < capacity) {
        widths w;
        status = read_frame(kernels, framing, data + at, size - at, state, &w);
        if (status != MDS_FRAMES_OK)
            break;
        starts[n] = at;
        if (sizes)
            sizes[n] = state->payload;
        n++;
        at += w.head + state->payload + w.tail;
        if (state->payload < SHORT_RECORD) {
            const uint64_t until = size - at > LINES_AHEAD ? at + LINES_AHEAD : size;
            for (asked = asked > at ? asked : at; asked < until; asked += 64)
                __builtin_prefetch(data + asked);
        }
    }
    state->at = at;
    *count = n;
    return status;
}

mds_frames_status mds_frames_scan(const mds_kernels *kernels, const mds_map *map, mds_framing framing, uint64_t end,
                                  mds_frames *state, uint64_t *starts, uint64_t *sizes, size_t capacity, size_t *count)
{
    mds_frames_status status = MDS_FRAMES_OK;
    uint64_t window = FIRST_WINDOW;
    /* Whether there is a record on nearly every page, so that mapping all pages at once reads none in vain. */
    int dense = 0;
    *count = 0;
    if (end > map->size)
        end = map->size;
    while (status == MDS_FRAMES_OK && state->at < end && *count < capacity) {
        const uint64_t begin = state->at, stop = end - begin > window ? begin + window : end;
        const size_t before = *count;
        if (dense)
            mds_map_advise(map, begin, stop, MDS_ADVISE_POPULATE);
#define WALK(which)                                                                                                    \
    case which:                                                                                                        \
        status = walk(kernels, which, map, stop, state, starts, sizes, capacity, count);                               \
        break
        switch (framing) {
            WALK(MDS_FRAMING_U32LE);
            WALK(MDS_FRAMING_U32BE);
            WALK(MDS_FRAMING_U64LE);
            WALK(MDS_FRAMING_U64BE);
            WALK(MDS_FRAMING_VARINT);
            WALK(MDS_FRAMING_TFRECORD);
        default:
            return MDS_FRAMES_NO_FRAMING;
        }
        dense = (*count - before) * PAGE > state->at - begin;
        window = WINDOW;
    }
    return status;
}

mds_frames_status mds_frames_verify(const mds_kernels *kernels, const mds_map *map, uint64_t end, mds_frames *state,
                                    uint64_t *count)
{
    uint64_t mapped = state->at;
    *count = 0;
    if (end > map->size)
        end = map->size;
    while (state->at < end) {
        widths w;
        const uint64_t at = state->at;
        const mds_frames_status status =
            read_frame(kernels, MDS_FRAMING_TFRECORD, map->data + at, map->size - at, state, &w);
        if (status != MDS_FRAMES_OK)
            return status;
        const uint64_t next = at + w.head + state->payload + w.tail;
        if (next > mapped) { /* CRCs need all bytes, so map all pages */
            mds_map_advise(map, mapped, next + WINDOW, MDS_ADVISE_POPULATE);
            mapped = next + WINDOW;
        }
        const uint8_t *payload = map->data + at + w.head;
        if (!check_crc(kernels, payload, (size_t)state->payload, payload + state->payload, state))
            return MDS_FRAMES_DATA_CRC;
        state->at = next;
        ++*count;
    }
    return MDS_FRAMES_OK;
}

mds_span mds_frame_payload(mds_framing framing, const uint8_t *frame, uint64_t size)
{
    widths w = framing_widths(framing);
    uint64_t value;
    if (framing == MDS_FRAMING_VARINT && size)
        w.head = read_varint(frame, size, &value);
    if (w.head == 0 || w.head == NO_VARINT || size < w.head + w.tail)
        return (mds_span){size, size};
    return (mds_span){w.head, size - w.tail};
}

size_t mds_varints_count(const uint8_t *data, size_t n)
{
    size_t count = 0;
    for (size_t k = 0; k < n; k++)
        count += data[k] < 128;
    return count;
}

mds_status mds_varints_read(const uint8_t *data, size_t n, uint64_t *out, size_t *at)
{
    for (size_t k = 0; k < n; k++) {
        uint64_t x = data[k] & 127;
        *at = k;
        for (unsigned shift = 7; data[k] >= 128; shift += 7) {
            if (++k == n || shift > 63)
                return MDS_CORRUPT;
            x |= (uint64_t)(data[k] & 127) << shift;
        }
        *out++ = x;
    }
    return MDS_OK;
}
