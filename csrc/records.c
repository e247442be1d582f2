/* records.c - from a record number to its bytes, one at a time or a batch at once. */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "mmapds.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

mds_status mds_record_span(const mds_source *source, uint64_t i, mds_span *span)
{
    if (source->bounds) {
        span->begin = source->bounds[i];
        span->end = source->bounds[i + 1];
    } else if (__builtin_mul_overflow(i, source->stride, &span->begin) ||
               __builtin_add_overflow(span->begin, source->first, &span->begin) ||
               __builtin_add_overflow(span->begin, source->stride, &span->end)) {
        *span = (mds_span){UINT64_MAX, UINT64_MAX};
        return MDS_CORRUPT;
    }
    return span->begin <= span->end && span->end <= source->map.size ? MDS_OK : MDS_CORRUPT;
}

/* A line holds no newline, so the first newline of the record is the first of its trailing white space. Walking back
 * over that costs one byte a record as a rule, where searching forward would read the record twice. */
static mds_span lines_payload(const uint8_t *data, mds_span span)
{
    uint64_t end = span.end;
    for (uint64_t p = span.end; p > span.begin; p--) {
        const uint8_t byte = data[p - 1];
        if (byte == '\n')
            end = p - 1;
        else if (byte != ' ' && byte != '\t' && byte != '\r')
            break;
    }
    if (end < span.end && end > span.begin && data[end - 1] == '\r')
        end--;
    return (mds_span){span.begin, end};
}

mds_span mds_record_payload(const mds_source *source, mds_span span)
{
    switch (source->framing) {
    case MDS_FRAMING_NONE:
        return span;
    case MDS_FRAMING_LINES:
        return lines_payload(source->map.data, span);
    case MDS_FRAMING_FIRST_LINE: {
        const uint8_t *begin = source->map.data + span.begin;
        const uint8_t *newline = span.begin < span.end ? memchr(begin, '\n', (size_t)(span.end - span.begin)) : NULL;
        if (newline)
            span.end = (uint64_t)(newline - source->map.data) - (newline > begin && newline[-1] == '\r');
        return span;
    }
    case MDS_FRAMING_U32LE:
    case MDS_FRAMING_U32BE:
    case MDS_FRAMING_U64LE:
    case MDS_FRAMING_U64BE:
    case MDS_FRAMING_VARINT:
    case MDS_FRAMING_TFRECORD:
        return mds_frame_payload(source->map.data, source->framing, span);
    }
    return span;
}

void mds_record_sizes(const uint64_t *starts, size_t n, uint64_t previous, uint64_t *smallest, uint64_t *largest)
{
    for (size_t k = 0; k < n; k++) {
        if (previous != MDS_NONE) {
            const uint64_t size = starts[k] - previous;
            *smallest = size < *smallest ? size : *smallest;
            *largest = size > *largest ? size : *largest;
        }
        previous = starts[k];
    }
}

static int compare(const void *a, const void *b)
{
    const mds_request *x = *(mds_request *const *)a, *y = *(mds_request *const *)b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* Bytes between two wanted ranges that are cheaper to read than to start another request for. */
#define MERGE_GAP 4096

static void will_need_data(mds_request **order, size_t n)
{
    for (size_t k = 0; k < n;) {
        const mds_source *source = order[k]->source;
        mds_span wanted = order[k]->span;
        for (k++; k < n && order[k]->source == source && order[k]->span.begin <= wanted.end + MERGE_GAP; k++)
            if (order[k]->span.end > wanted.end)
                wanted.end = order[k]->span.end;
        mds_map_advise(&source->map, wanted.begin, wanted.end, MDS_ADVISE_WILLNEED);
    }
}

static void will_need_bounds(mds_request **order, size_t n)
{
    for (size_t k = 0; k < n;) {
        const mds_source *source = order[k]->source;
        const mds_map bounds = {(const uint8_t *)source->bounds, (source->count + 1) * 8, 0};
        uint64_t begin = order[k]->i * 8, end = begin + 16;
        for (k++; k < n && order[k]->source == source && order[k]->i * 8 <= end + MERGE_GAP; k++)
            end = order[k]->i * 8 + 16;
        if (source->bounds)
            mds_map_advise(&bounds, begin, end, MDS_ADVISE_WILLNEED);
    }
}

static mds_status locate(mds_request *requests, mds_request **order, size_t n, int will_need, size_t *failed)
{
    for (size_t k = 0; k < n; k++) {
        if (requests[k].source->bounds)
            __builtin_prefetch(&requests[k].source->bounds[requests[k].i]);
        order[k] = &requests[k];
    }
    if (will_need) {
        qsort(order, n, sizeof *order, compare);
        will_need_bounds(order, n);
    }
    for (size_t k = 0; k < n; k++) {
        const mds_status status = mds_record_span(requests[k].source, requests[k].i, &requests[k].span);
        if (status != MDS_OK) {
            *failed = k;
            return status;
        }
    }
    if (will_need)
        will_need_data(order, n);
    return MDS_OK;
}

/* Cache lines to ask for per record; longer ones stream well enough once their first lines are there. */
#define PREFETCH_BYTES 1024
#define SMALLEST_PAGE 4096

static void touch(mds_request *requests, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const uint8_t *data = requests[k].source->map.data;
        const mds_span span = requests[k].span;
        const uint64_t length = span.end - span.begin;
        for (uint64_t p = 0; p < length && p < PREFETCH_BYTES; p += 64)
            __builtin_prefetch(data + span.begin + p);
    }
    for (size_t k = 0; k < n; k++) {
        const uint8_t *data = requests[k].source->map.data;
        const mds_span span = requests[k].span;
        for (uint64_t p = span.begin; p < span.end; p += SMALLEST_PAGE)
            (void)*(const volatile uint8_t *)(data + p);
        requests[k].span = mds_record_payload(requests[k].source, span);
    }
}

/* Reads from a disk that this thread has caused so far. A page that was asked for and has not arrived does not count as
 * a major fault, and a file system may not count blocks, so look at both. */
static long disk_reads(void)
{
    struct rusage usage;
#ifdef RUSAGE_THREAD
    const int who = RUSAGE_THREAD;
#else
    const int who = RUSAGE_SELF;
#endif
    return getrusage(who, &usage) == 0 ? usage.ru_majflt + usage.ru_inblock : 0;
}

mds_status mds_records_fetch(mds_request *requests, mds_request **order, size_t n, unsigned *cold, size_t *failed)
{
    const long before = cold ? disk_reads() : 0;
    const mds_status status = locate(requests, order, n, cold && *cold, failed);
    if (status != MDS_OK)
        return status;
    touch(requests, n);
    if (cold)
        *cold = disk_reads() != before ? MDS_COLD : *cold - (*cold > 0);
    return MDS_OK;
}

#define READAHEAD_WINDOW (UINT64_C(2) << 20)

void mds_readahead_note(mds_readahead *readahead, const mds_source *source, mds_span span)
{
    if (readahead->source != source || span.begin != readahead->next) {
        readahead->source = source;
        readahead->ahead = span.end;
    } else if (span.end + READAHEAD_WINDOW / 2 > readahead->ahead) {
        const uint64_t begin = readahead->ahead > span.begin ? readahead->ahead : span.begin;
        readahead->ahead = span.end + READAHEAD_WINDOW;
        mds_map_advise(&source->map, begin, readahead->ahead, MDS_ADVISE_WILLNEED);
    }
    readahead->next = span.end;
}
