/* records.c - from a record number to its bytes, one at a time or a batch at once. */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "mmapds.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Find the bounds of record i in a map. In the last page of an index that became shorter, bounds are zeros: so check
 * that the last number or the bytes after it are not 0. Inlined with a constant width. */
static inline __attribute__((always_inline)) mds_status find_bounds(const mds_source *source, unsigned width,
                                                                    uint64_t i, mds_span *span)
{
    const uint64_t group = mds_group_of(width, i);
    const unsigned k = (unsigned)(i - group * mds_group_records(width));
    const uint8_t *at = source->bounds + group * MDS_GROUP;
    *span = mds_group_span(at, width, k);
    const unsigned read = MDS_GROUP_HEAD + (k + 1) * width;
    if (at[read - 1] || !source->index || !source->index->file)
        return MDS_OK;
    return mds_map_check_zeros(source->index, source->bounds_at + group * MDS_GROUP + read);
}

static mds_status read_bounds(const mds_source *source, uint64_t i, mds_span *span)
{
    const uint64_t group = mds_group_of(source->width, i);
    const unsigned k = (unsigned)(i - group * mds_group_records(source->width));
    uint8_t room[MDS_GROUP];
    const mds_status status = mds_map_read(source->index, source->bounds_at + group * MDS_GROUP, sizeof room, room);
    if (status == MDS_OK)
        *span = mds_group_span(room, source->width, k);
    return status;
}

static mds_status bounds_of(const mds_source *source, uint64_t i, mds_span *span)
{
    if (!source->bounds)
        return read_bounds(source, i, span);
    switch (source->width) {
    case 2:
        return find_bounds(source, 2, i, span);
    case 3:
        return find_bounds(source, 3, i, span);
    case 4:
        return find_bounds(source, 4, i, span);
    default:
        return find_bounds(source, 8, i, span);
    }
}

mds_status mds_record_span(const mds_source *source, uint64_t i, mds_span *span)
{
    if (!source->stride) {
        const mds_status status = bounds_of(source, i, span);
        if (status != MDS_OK)
            return status;
    } else if (__builtin_mul_overflow(i, source->stride, &span->begin) ||
               __builtin_add_overflow(span->begin, source->first, &span->begin) ||
               __builtin_add_overflow(span->begin, source->stride, &span->end)) {
        *span = (mds_span){UINT64_MAX, UINT64_MAX};
        return MDS_CORRUPT;
    }
    return span->begin <= span->end && span->end <= source->map->size ? MDS_OK : MDS_CORRUPT;
}

/* A line holds no newline, so the first newline of the record is the first of its trailing white space. Walking back
 * over that costs one byte a record as a rule, where searching forward would read the record twice. */
static mds_span lines_payload(const uint8_t *record, uint64_t size)
{
    uint64_t end = size;
    for (uint64_t p = size; p > 0; p--) {
        const uint8_t byte = record[p - 1];
        if (byte == '\n')
            end = p - 1;
        else if (byte != ' ' && byte != '\t' && byte != '\r')
            break;
    }
    if (end < size && end > 0 && record[end - 1] == '\r')
        end--;
    return (mds_span){0, end};
}

static mds_span first_line_payload(const uint8_t *record, uint64_t size)
{
    const uint8_t *newline = size ? memchr(record, '\n', (size_t)size) : NULL;
    if (newline)
        size = (uint64_t)(newline - record) - (newline > record && newline[-1] == '\r');
    return (mds_span){0, size};
}

mds_span mds_record_payload(mds_framing framing, const uint8_t *record, uint64_t size)
{
    switch (framing) {
    case MDS_FRAMING_NONE:
        break;
    case MDS_FRAMING_LINES:
        return lines_payload(record, size);
    case MDS_FRAMING_FIRST_LINE:
        return first_line_payload(record, size);
    case MDS_FRAMING_U32LE:
    case MDS_FRAMING_U32BE:
    case MDS_FRAMING_U64LE:
    case MDS_FRAMING_U64BE:
    case MDS_FRAMING_VARINT:
    case MDS_FRAMING_TFRECORD:
        return mds_frame_payload(framing, record, size);
    }
    return (mds_span){0, size};
}

void mds_record_sizes(const uint64_t *starts, size_t n, uint64_t previous, uint64_t *smallest, uint64_t *largest)
{
    uint64_t low = *smallest, high = *largest; /* registers: a store could change what starts has */
    size_t k = 0;
    if (previous == MDS_NONE && n)
        previous = starts[k++];
    for (; k < n; k++) {
        const uint64_t size = starts[k] - previous;
        low = size < low ? size : low;
        high = size > high ? size : high;
        previous = starts[k];
    }
    *smallest = low;
    *largest = high;
}

static int compare(const void *a, const void *b)
{
    const mds_request *x = *(mds_request *const *)a, *y = *(mds_request *const *)b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* The largest gap between two ranges for which one request is cheaper than two. */
#define MERGE_GAP 4096

static void will_need_data(mds_request **order, size_t n)
{
    for (size_t k = 0; k < n;) {
        const mds_source *source = order[k]->source;
        mds_span wanted = order[k]->span;
        for (k++; k < n && order[k]->source == source && order[k]->span.begin <= wanted.end + MERGE_GAP; k++)
            if (order[k]->span.end > wanted.end)
                wanted.end = order[k]->span.end;
        mds_map_advise(source->map, wanted.begin, wanted.end, MDS_ADVISE_WILLNEED);
    }
}

/* The byte of the bounds where the group of a request lies. */
static uint64_t group_at(const mds_request *request)
{
    return mds_group_of(request->source->width, request->i) * MDS_GROUP;
}

static void will_need_bounds(mds_request **order, size_t n)
{
    for (size_t k = 0; k < n;) {
        const mds_source *source = order[k]->source;
        uint64_t begin = group_at(order[k]), end = begin + MDS_GROUP;
        for (k++; k < n && order[k]->source == source && group_at(order[k]) <= end + MERGE_GAP; k++)
            end = group_at(order[k]) + MDS_GROUP;
        if (source->index)
            mds_map_advise(source->index, source->bounds_at + begin, source->bounds_at + end, MDS_ADVISE_WILLNEED);
    }
}

/* The data of a guarded step on a batch. *at is the current request; it is read after a bus error. */
typedef struct {
    mds_request *requests;
    mds_request **order;
    size_t n;
    int ask, check;
    uint64_t *room;
    uint8_t *memory;
    uint8_t *const *out;
} batch;

typedef mds_status (*step)(const batch *work, volatile size_t *at);

static mds_status guarded(step run, const batch *work, size_t *failed)
{
    volatile size_t at = 0;
    mds_status status;
    mds_guard guard;
    if (MDS_GUARD(&guard)) {
        status = MDS_SHRANK;
    } else {
        status = run(work, &at);
        mds_guard_leave();
    }
    *failed = at;
    return status;
}

static mds_status locate(const batch *work, volatile size_t *at)
{
    mds_request *const requests = work->requests;
    uint64_t room = 0;
    for (size_t k = 0; k < work->n; k++) {
        if (requests[k].source->bounds)
            __builtin_prefetch(requests[k].source->bounds + group_at(&requests[k]));
        work->order[k] = &requests[k];
    }
    if (work->ask) {
        qsort(work->order, work->n, sizeof *work->order, compare);
        will_need_bounds(work->order, work->n);
    }
    for (size_t k = 0; k < work->n; k++) {
        *at = k;
        const mds_status status = mds_record_span(requests[k].source, requests[k].i, &requests[k].span);
        if (status != MDS_OK)
            return status;
        const uint64_t size = requests[k].span.end - requests[k].span.begin;
        if (!requests[k].source->map->data && __builtin_add_overflow(room, size, &room))
            return MDS_CORRUPT;
    }
    if (work->ask)
        will_need_data(work->order, work->n);
    *work->room = room;
    return MDS_OK;
}

mds_status mds_records_locate(mds_request *requests, mds_request **order, size_t n, int ask, uint64_t *room,
                              size_t *failed)
{
    *room = 0;
    return guarded(locate, &(batch){.requests = requests, .order = order, .n = n, .ask = ask, .room = room}, failed);
}

/* Cache lines to ask for per record; longer ones stream well enough once their first lines are there. */
#define PREFETCH_BYTES 1024
#define SMALLEST_PAGE 4096
/* The most bytes to touch of a record that is viewed, because its user may read few of them. */
#define MOST_TOUCHED (UINT64_C(64) << 20)

static inline void prefetch(mds_request *request)
{
    const mds_source *source = request->source;
    const uint64_t length = request->span.end - request->span.begin;
    request->data = source->map->data ? source->map->data + request->span.begin : NULL;
    if (request->data)
        for (uint64_t p = 0; p < length + 8 && p < PREFETCH_BYTES; p += 64) /* mds_map_check_zeros may read 8 more */
            __builtin_prefetch(request->data + p);
}

/* Bring a record into memory, into *room unless its source is mapped, and narrow the request to the payload. */
static inline mds_status load_one(mds_request *request, int check, int64_t now, uint8_t **room)
{
    const mds_source *source = request->source;
    const uint64_t size = request->span.end - request->span.begin;
    mds_status status;
    if (request->data) {
        const uint64_t touched = check && size > MOST_TOUCHED ? MOST_TOUCHED : size;
        for (uint64_t p = 0; p < touched; p += SMALLEST_PAGE)
            (void)*(const volatile uint8_t *)(request->data + p);
        status = check ? mds_map_was_whole(source->map, request->span.end, now) : MDS_OK;
    } else {
        request->data = *room;
        status = source->map->file ? mds_map_read(source->map, request->span.begin, (size_t)size, *room) : MDS_OK;
        *room += size;
    }
    if (status != MDS_OK)
        return status;
    const mds_span payload = mds_record_payload(source->framing, request->data, size);
    request->data += payload.begin;
    request->span = (mds_span){request->span.begin + payload.begin, request->span.begin + payload.end};
    return MDS_OK;
}

static mds_status load(const batch *work, volatile size_t *at)
{
    mds_request *const requests = work->requests;
    const size_t n = work->n;
    const int check = work->check;
    const int64_t now = mds_now();
    uint8_t *room = work->memory;
    for (size_t k = 0; k < n; k++)
        prefetch(&requests[k]);
    for (size_t k = 0; k < n; k++) {
        *at = k;
        const mds_status status = load_one(&requests[k], check, now, &room);
        if (status != MDS_OK)
            return status;
    }
    return MDS_OK;
}

mds_status mds_records_load(mds_request *requests, size_t n, uint8_t *room, int check, size_t *failed)
{
    return guarded(load, &(batch){.requests = requests, .n = n, .memory = room, .check = check}, failed);
}

mds_status mds_records_were_whole(const mds_request *requests, size_t n, volatile size_t *failed)
{
    const int64_t now = mds_now();
    for (size_t k = 0; k < n; k++) {
        *failed = k;
        const mds_map *map = requests[k].source->map;
        if (map->data && mds_map_was_whole(map, requests[k].span.end, now) != MDS_OK)
            return MDS_SHRANK;
    }
    return MDS_OK;
}

static mds_status copy(const batch *work, volatile size_t *at)
{
    for (size_t k = 0; k < work->n; k++) {
        const mds_request *request = &work->requests[k];
        *at = k;
        memcpy(work->out[k], request->data, (size_t)(request->span.end - request->span.begin));
    }
    return mds_records_were_whole(work->requests, work->n, at);
}

mds_status mds_records_copy(const mds_request *requests, size_t n, uint8_t *const *out, size_t *failed)
{
    return guarded(copy, &(batch){.requests = (mds_request *)requests, .n = n, .out = out}, failed);
}

/* Disk reads of this thread so far. Adds two counters: a requested page that has not arrived is not a major fault, and
 * some file systems count no blocks. */
long mds_disk_reads(void)
{
    struct rusage usage;
#ifdef RUSAGE_THREAD
    const int who = RUSAGE_THREAD;
#else
    const int who = RUSAGE_SELF;
#endif
    return getrusage(who, &usage) == 0 ? usage.ru_majflt + usage.ru_inblock : 0;
}

unsigned mds_next_cold(unsigned cold, long reads)
{
    return mds_disk_reads() != reads ? MDS_COLD : cold - (cold > 0);
}

#define READAHEAD_WINDOW (UINT64_C(2) << 20)
#define READAHEAD_GAP 4096 /* bytes between payloads: framing, blank lines, or a few skipped records */
#define READAHEAD_RUN 4    /* random reads are rarely so close so often in a row */

void mds_readahead_note(mds_readahead *readahead, const mds_source *source, mds_span span)
{
    const uint64_t gap = span.begin - readahead->next; /* huge for a read backwards */
    if (gap > READAHEAD_GAP || readahead->source != source) {
        readahead->source = source;
        readahead->ahead = span.end;
        readahead->run = 0;
    } else if (readahead->run < READAHEAD_RUN) {
        readahead->run++;
    } else if (span.end + READAHEAD_WINDOW / 2 > readahead->ahead) {
        const uint64_t begin = readahead->ahead > span.begin ? readahead->ahead : span.begin;
        readahead->ahead = span.end + READAHEAD_WINDOW;
        mds_map_advise(source->map, begin, readahead->ahead, MDS_ADVISE_WILLNEED);
    }
    readahead->next = span.end;
}
