/* fuzz_records.c - hostile text and hostile bounds through the line scanner and the record reader.
 *
 * Property: a scan in two pieces equals a scan in one; its bounds, packed in two pieces into groups of every width that
 * they fit, are found again; every record that it finds reads back; a record with other bounds is refused or lies inside
 * the source, and a batch is refused if one of its records is.
 * Input: a source. Its bytes also serve as bounds, in groups and by themselves. */
#include "fuzz.h"

static size_t scan(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t cut, uint64_t *starts)
{
    mds_lines state = {0, 0};
    size_t count = mds_lines_scan(kernels, data, cut, 0, &state, starts, MDS_LINES_CAPACITY(cut));
    return count +
           mds_lines_scan(kernels, data + cut, n - cut, cut, &state, starts + count, MDS_LINES_CAPACITY(n - cut));
}

static void read_all(const mds_source *source)
{
    mds_request *requests = fuzz_room(source->count, sizeof *requests);
    mds_request **order = fuzz_room(source->count, sizeof *order);
    mds_readahead readahead = {.source = NULL};
    int all_fit = 1;
    for (uint64_t i = 0; i < source->count; i++) {
        mds_span span;
        requests[i] = (mds_request){.source = source, .i = i};
        if (mds_record_span(source, i, &span) != MDS_OK) {
            all_fit = 0;
            continue;
        }
        CHECK(span.begin <= span.end && span.end <= source->map->size);
        const uint64_t size = span.end - span.begin;
        const mds_span payload = mds_record_payload(source->framing, source->map->data + span.begin, size);
        CHECK(payload.begin == 0 && payload.end <= size);
        mds_readahead_note(&readahead, source, span);
    }
    for (int ask = 0; ask < 2; ask++) {
        size_t failed = 0;
        uint64_t room = 0;
        const mds_status status = mds_records_locate(requests, order, source->count, ask, &room, &failed);
        CHECK(status == (all_fit ? MDS_OK : MDS_CORRUPT) && room == 0);
    }
    if (all_fit) {
        size_t failed = 0;
        CHECK(mds_records_load(requests, source->count, (uint8_t *)requests, 1, &failed) == MDS_OK);
        for (uint64_t i = 0; i < source->count; i++)
            CHECK(requests[i].data == source->map->data + requests[i].span.begin);
    }
    free(requests);
    free(order);
}

/* The groups of `count` + 1 bounds; NULL if the width does not fit them. */
static uint8_t *pack(unsigned width, const uint64_t *bounds, uint64_t count)
{
    const unsigned records = mds_group_records(width);
    const uint64_t groups = mds_group_of(width, count) + 1, n = groups * records + 1;
    uint64_t *filled = fuzz_room(n, sizeof *filled);
    uint8_t *packed = fuzz_room(groups, MDS_GROUP), *pieces = fuzz_room(groups, MDS_GROUP);
    for (uint64_t k = 0; k < n; k++)
        filled[k] = bounds[k < count ? k : count];
    const uint64_t found = mds_bounds_pack(width, NULL, 0, filled, n, packed);
    const unsigned held = (unsigned)(bounds[count] % records) + 1;
    CHECK(mds_bounds_pack(width, filled, held, filled + held, n - held, pieces) == found);
    CHECK(found <= groups && memcmp(packed, pieces, found * MDS_GROUP) == 0);
    int fits = 1;
    for (uint64_t k = 1; k < n; k++) {
        const uint64_t distance = filled[k] - filled[(k - 1) / records * records];
        fits &= width == 8 || !(distance >> 8 * (width % 8));
    }
    CHECK(fits == (found == groups));
    free(filled);
    free(pieces);
    if (fits)
        return packed;
    free(packed);
    return NULL;
}

/* Pack the bounds of records, which rise, find them again, and read the records. */
static void read_packed(const mds_map *map, const uint64_t *bounds, uint64_t count)
{
    static const unsigned widths[] = {2, 3, 4, 8};
    for (size_t w = 0; w < 4; w++) {
        uint8_t *groups = pack(widths[w], bounds, count);
        if (!groups)
            continue;
        const uint64_t n = mds_group_of(widths[w], count) + 1, each = mds_group_records(widths[w]);
        uint64_t *unpacked = fuzz_room(n * each, sizeof *unpacked);
        mds_bounds_unpack(widths[w], groups, n, unpacked);
        CHECK(memcmp(unpacked, bounds, (count + 1) * sizeof *bounds) == 0);
        mds_source source = {
            .map = map, .bounds = groups, .width = widths[w], .count = count, .framing = MDS_FRAMING_LINES};
        for (uint64_t i = 0; i < count; i++) {
            mds_span span;
            CHECK(mds_record_span(&source, i, &span) == MDS_OK);
            CHECK(span.begin == bounds[i] && span.end == bounds[i + 1]);
        }
        read_all(&source);
        free(unpacked);
        free(groups);
    }
}

/* Read records whose groups are any bytes. */
static void read_hostile(const mds_map *map, const uint8_t *groups, uint64_t n)
{
    static const unsigned widths[] = {2, 3, 4, 8};
    for (size_t w = 0; w < 4; w++) {
        mds_source source = {.map = map,
                             .bounds = groups,
                             .width = widths[w],
                             .count = n * mds_group_records(widths[w]) - 1,
                             .framing = (mds_framing)(w % (MDS_FRAMING_FIRST_LINE + 1))};
        read_all(&source);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    uint64_t *whole = fuzz_room(2 * MDS_LINES_CAPACITY(n) + 1, sizeof *whole);
    uint64_t *pieces = fuzz_room(2 * MDS_LINES_CAPACITY(n) + 1, sizeof *pieces);
    size_t count = 0;
    for (size_t v = 0; mds_kernels_at(v); v++) {
        const mds_kernels *kernels = mds_kernels_at(v);
        count = scan(kernels, data, n, 0, whole);
        CHECK(count <= MDS_LINES_CAPACITY(n));
        CHECK(scan(kernels, data, n, n ? data[n - 1] % n : 0, pieces) == count);
        CHECK(memcmp(whole, pieces, count * sizeof *whole) == 0);
    }
    whole[count] = n;
    const mds_map map = {data, n, 0, NULL};
    read_packed(&map, whole, count);

    if (n >= 16) {
        /* Bounds that mostly lie in the source, and mostly do not rise; then all that a file may hold. */
        uint64_t *bounds = fuzz_room(n / 8, sizeof *bounds);
        memcpy(bounds, data, n / 8 * 8);
        for (size_t k = 0; k < n / 8; k++)
            if (k % 3)
                bounds[k] %= n + 2;
        uint8_t *groups = pack(8, bounds, n / 8 - 1);
        CHECK(groups != NULL);
        mds_source source = {
            .map = &map, .bounds = groups, .width = 8, .count = n / 8 - 1, .framing = MDS_FRAMING_LINES};
        read_all(&source);
        free(groups);
        groups = fuzz_room(n / MDS_GROUP + 1, MDS_GROUP);
        memset(groups, 0, (n / MDS_GROUP + 1) * MDS_GROUP);
        memcpy(groups, data, n);
        read_hostile(&map, groups, n / MDS_GROUP + 1);
        for (size_t g = 0; g <= n / MDS_GROUP; g++)
            memcpy(groups + g * MDS_GROUP, &bounds[g % (n / 8)], 8);
        read_hostile(&map, groups, n / MDS_GROUP + 1);
        free(groups);
        source = (mds_source){.map = &map, .first = bounds[0], .stride = bounds[1] ? bounds[1] : 1, .count = n / 8 - 1};
        read_all(&source);
        free(bounds);
    }
    free(data);
    free(whole);
    free(pieces);
    return 0;
}
