/* py_blocks.c - records of compressed sources: Python decodes blocks, and this file copies records out of them. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

/* Records of one source, sorted by their begin, and the memory for them. */
typedef struct {
    mds_block_record *records;
    size_t n;
    const mds_request *requests;
    const RecordsObject *owner; /* of the records */
    PyObject **made; /* the payload of each request, as bytes that are made here; NULL if all goes to the room */
} block_work;

static PyObject *reader_of(const mds_request *request)
{
    return mds_py_slot_of(request->source)->reader;
}

static int compare(const void *a, const void *b)
{
    const mds_request *x = ((const mds_block_record *)a)->request, *y = ((const mds_block_record *)b)->request;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->span.begin < y->span.begin ? -1 : x->span.begin > y->span.begin;
}

/* ---- bytes made straight from a block -------------------------------------------------------------------------- */

typedef struct {
    uint8_t *out;
    const uint8_t *data;
    size_t size;
} whole_record;

static void copy_whole(const whole_record *records, size_t n)
{
    for (size_t k = 0; k < n; k++)
        memcpy(records[k].out, records[k].data, records[k].size);
}

/* Make bytes for the payload in a record of `size` bytes. */
static int make_bytes(const block_work *work, const mds_block_record *record, const uint8_t *data, uint64_t size,
                      whole_record *whole)
{
    const mds_span payload = mds_record_payload(record->request->source->framing, data, size);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(payload.end - payload.begin));
    if (!bytes) {
        mds_py_raise_no_room(work->owner, record->request, 1);
        return -1;
    }
    PyObject **made = &work->made[record->request - work->requests];
    Py_XDECREF(*made); /* the reader gave the block twice */
    *made = bytes;
    *whole =
        (whole_record){(uint8_t *)PyBytes_AsString(bytes), data + payload.begin, (size_t)(payload.end - payload.begin)};
    return 0;
}

/* Make the records that lie in a piece as a whole; copy parts of other records to their own memory. */
static int make_records(const block_work *work, uint64_t begin, uint64_t end, const uint8_t *piece)
{
    const size_t first = mds_blocks_first(work->records, work->n, begin);
    size_t last = first, n = 0, total = 0;
    while (last < work->n && work->records[last].request->span.begin < end) {
        /* The end of a line tells the size of its payload. bench/bench_compressed.py measures this case. */
        const uint64_t stop = work->records[last++].request->span.end;
        if (stop > begin && stop <= end)
            __builtin_prefetch(piece + (stop - 1 - begin));
    }
    whole_record *whole = PyMem_Malloc((last - first + 1) * sizeof *whole);
    if (!whole)
        return -1;
    int result = 0;
    for (size_t k = first; result == 0 && k < last; k++) {
        mds_block_record *record = &work->records[k];
        const mds_span span = record->request->span;
        const uint64_t size = span.end - span.begin;
        if (span.begin >= begin && span.end <= end && size) {
            result = make_bytes(work, record, piece + (span.begin - begin), size, &whole[n]);
            record->left = 0;
            total += result == 0 ? whole[n++].size : 0;
        } else if (record->out || (record->out = PyMem_Malloc((size_t)size + 1))) {
            mds_blocks_copy(record, 1, begin, end, piece);
        } else {
            mds_py_raise_no_room(work->owner, record->request, 1);
            result = -1;
        }
    }
    if (total > COPY_WITH_GIL)
        RELEASE_GIL(copy_whole(whole, n));
    else
        copy_whole(whole, n);
    PyMem_Free(whole);
    return result;
}

/* Make the remaining records, unless there was an error: records in several pieces, and records of 0 bytes. Free their
 * memory. */
static int make_others(const block_work *work)
{
    static const uint8_t nothing;
    int result = PyErr_Occurred() ? -1 : 0;
    for (size_t k = 0; k < work->n; k++) {
        mds_block_record *record = &work->records[k];
        whole_record whole;
        if (result == 0 && !work->made[record->request - work->requests]) {
            const uint64_t size = record->request->span.end - record->request->span.begin;
            result = make_bytes(work, record, record->out ? record->out : &nothing, size, &whole);
            if (result == 0)
                copy_whole(&whole, 1);
        }
        PyMem_Free(record->out);
        record->out = NULL;
    }
    return result;
}

/* ---- blocks of a source ---------------------------------------------------------------------------------------- */

/* Take a block from the reader: (where it begins in the content, its bytes). */
static int take_block(const block_work *work, PyObject *item)
{
    unsigned long long begin;
    uint64_t end;
    PyObject *block;
    int result = -1;
    if (mds_py_expect_tuple(item, "reader.blocks") != 0 ||
        !PyArg_ParseTuple(item, "O&O:blocks", mds_py_size, &begin, &block))
        return -1;
    MDS_PY_BUFFERS(buffers, 1);
    const uint8_t *data = mds_py_take_bytes(&buffers, block, MDS_PY_READ);
    if (!data)
        return -1;
    if (__builtin_add_overflow(begin, buffers.entries, &end))
        PyErr_SetString(PyExc_OverflowError, "reader.blocks: expected a block that ends below 2^64");
    else if (work->made)
        result = make_records(work, begin, end, data);
    else if (buffers.entries > COPY_WITH_GIL)
        RELEASE_GIL(mds_blocks_copy(work->records, work->n, begin, end, data));
    else
        mds_blocks_copy(work->records, work->n, begin, end, data);
    mds_py_give_back(&buffers);
    if (result != 0 && work->made && !PyErr_Occurred())
        PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

/* The bounds of the records, u64, in pairs. */
static PyObject *bounds_of(const mds_block_record *records, size_t n)
{
    PyObject *bounds = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * sizeof(mds_span)));
    uint8_t *out = bounds ? (uint8_t *)PyBytes_AsString(bounds) : NULL;
    for (size_t k = 0; out && k < n; k++)
        memcpy(out + k * sizeof(mds_span), &records[k].request->span, sizeof(mds_span));
    return bounds;
}

/* The first incomplete record; its blocks come next. */
static const mds_request *first_left(const mds_block_record *records, size_t n)
{
    size_t k = 0;
    while (k + 1 < n && !records[k].left)
        k++;
    return records[k].request;
}

/* Read records of one source, sorted by where they begin. */
static int read_source(const block_work *work)
{
    const mds_block_record *records = work->records;
    const size_t n = work->n;
    PyObject *bounds = bounds_of(records, n), *item;
    PyObject *blocks = bounds ? PyObject_CallMethod(reader_of(records[0].request), "blocks", "O", bounds) : NULL;
    PyObject *iterator = blocks ? PyObject_GetIter(blocks) : NULL;
    Py_XDECREF(bounds);
    int is_refused = 0;
    while (iterator && !is_refused && (item = PyIter_Next(iterator))) {
        is_refused = take_block(work, item) != 0;
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    Py_XDECREF(blocks);
    if (!is_refused && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) /* raised by the reader */
        mds_py_raise_no_room(work->owner, first_left(records, n), 1);
    if (PyErr_Occurred())
        return -1;
    for (size_t k = 0; k < n; k++) {
        if (records[k].left) {
            mds_py_raise_unread_record(work->owner, records[k].request, MDS_CORRUPT);
            return -1;
        }
    }
    return 0;
}

/* Read records of one source or several. */
static int read_all(const block_work *work)
{
    qsort(work->records, work->n, sizeof *work->records, compare);
    int result = 0;
    for (size_t k = 0, end; result == 0 && k < work->n; k = end) {
        const mds_source *source = work->records[k].request->source;
        for (end = k + 1; end < work->n && work->records[end].request->source == source; end++)
            ;
        result = read_source(&(block_work){work->records + k, end - k, work->requests, work->owner, work->made});
    }
    return result;
}

int mds_py_blocks_fill(const RecordsObject *self, const mds_request *requests, Py_ssize_t n, uint8_t *room)
{
    size_t count = 0;
    for (Py_ssize_t k = 0; k < n; k++)
        count += reader_of(&requests[k]) != NULL;
    if (!count)
        return 0;
    mds_block_record *records = PyMem_Malloc(count * sizeof *records);
    if (!records) {
        PyErr_NoMemory();
        return -1;
    }
    count = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        const mds_source *source = requests[k].source;
        const uint64_t size = requests[k].span.end - requests[k].span.begin;
        if (reader_of(&requests[k]))
            records[count++] = (mds_block_record){&requests[k], room, size};
        if (!source->map->data)
            room += size;
    }
    const int result = read_all(&(block_work){records, count, requests, self, NULL});
    PyMem_Free(records);
    return result;
}

int mds_py_blocks_only(const mds_request *requests, Py_ssize_t n)
{
    Py_ssize_t k = 0;
    while (k < n && reader_of(&requests[k]))
        k++;
    return k == n;
}

int mds_py_blocks_make(const RecordsObject *self, const mds_request *requests, Py_ssize_t n, PyObject **made)
{
    const size_t count = (size_t)n;
    mds_block_record *records = PyMem_Malloc((count + 1) * sizeof *records);
    if (!records) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t k = 0; k < count; k++)
        records[k] = (mds_block_record){&requests[k], NULL, requests[k].span.end - requests[k].span.begin};
    const block_work work = {records, count, requests, self, made};
    const int result = read_all(&work);
    const int others = make_others(&work); /* always: it frees their memory */
    PyMem_Free(records);
    return result == 0 ? others : result;
}
