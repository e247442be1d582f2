/* py_blocks.c - records of compressed sources: their blocks, which Python decodes, are copied to where records are read. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

#define COPY_WITH_GIL (256 << 10) /* bytes that take less time to copy than waiting for the GIL may take */

/* A record that is wanted. */
typedef struct {
    const mds_request *request;
    uint8_t *out;  /* where its bytes go */
    uint64_t left; /* how many have not come yet */
} wanted;

static PyObject *reader_of(const mds_request *request)
{
    return mds_py_slot_of(request->source)->reader;
}

static int compare(const void *a, const void *b)
{
    const mds_request *x = ((const wanted *)a)->request, *y = ((const wanted *)b)->request;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->span.begin < y->span.begin ? -1 : x->span.begin > y->span.begin;
}

/* The first record that does not end before `begin`; bounds rise, unless the index is damaged. */
static size_t first_reaching(const wanted *records, size_t n, uint64_t begin)
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

/* Copy what a block, content[begin..end), has of the records. */
static void copy_block(wanted *records, size_t n, uint64_t begin, uint64_t end, const uint8_t *block)
{
    for (size_t k = first_reaching(records, n, begin); k < n && records[k].request->span.begin < end; k++) {
        const mds_span span = records[k].request->span;
        const uint64_t from = span.begin > begin ? span.begin : begin, to = span.end < end ? span.end : end;
        if (from >= to)
            continue;
        memcpy(records[k].out + (from - span.begin), block + (from - begin), (size_t)(to - from));
        records[k].left -= to - from < records[k].left ? to - from : records[k].left;
    }
}

/* Take a block from the reader: (where it begins in the content, its bytes). */
static int take_block(wanted *records, size_t n, PyObject *item)
{
    unsigned long long begin;
    PyObject *object;
    const uint8_t *block;
    uint64_t end;
    MDS_PY_BUFFERS(buffers, 1);
    if (mds_py_expect_tuple(item, "reader.blocks") != 0 ||
        !PyArg_ParseTuple(item, "O&O:blocks", mds_py_size, &begin, &object) ||
        !(block = mds_py_take_bytes(&buffers, object, MDS_PY_READ)))
        return -1;
    if (__builtin_add_overflow((uint64_t)begin, buffers.entries, &end))
        PyErr_SetString(PyExc_OverflowError, "reader.blocks: expected a block that ends below 2^64");
    else if (buffers.entries > COPY_WITH_GIL)
        RELEASE_GIL(copy_block(records, n, begin, end, block));
    else
        copy_block(records, n, begin, end, block);
    mds_py_give_back(&buffers);
    return PyErr_Occurred() ? -1 : 0;
}

/* The bounds of the records, u64, in pairs. */
static PyObject *bounds_of(const wanted *records, size_t n)
{
    PyObject *bounds = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(n * sizeof(mds_span)));
    uint8_t *out = bounds ? (uint8_t *)PyBytes_AsString(bounds) : NULL;
    for (size_t k = 0; out && k < n; k++)
        memcpy(out + k * sizeof(mds_span), &records[k].request->span, sizeof(mds_span));
    return bounds;
}

/* Read records of one source, sorted by where they begin. */
static int fill_source(const RecordsObject *self, wanted *records, size_t n)
{
    PyObject *bounds = bounds_of(records, n), *item;
    PyObject *blocks = bounds ? PyObject_CallMethod(reader_of(records[0].request), "blocks", "N", bounds) : NULL;
    PyObject *iterator = blocks ? PyObject_GetIter(blocks) : NULL;
    int result = iterator ? 0 : -1;
    while (result == 0 && (item = PyIter_Next(iterator))) {
        result = take_block(records, n, item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    Py_XDECREF(blocks);
    if (PyErr_Occurred())
        return -1;
    for (size_t k = 0; k < n; k++) {
        if (records[k].left) {
            mds_py_raise_unread_record(self, records[k].request, MDS_CORRUPT);
            return -1;
        }
    }
    return 0;
}

static int fill(const RecordsObject *self, wanted *records, size_t n)
{
    qsort(records, n, sizeof *records, compare);
    for (size_t k = 0, end; k < n; k = end) {
        for (end = k + 1; end < n && records[end].request->source == records[k].request->source; end++)
            ;
        if (fill_source(self, records + k, end - k) != 0)
            return -1;
    }
    return 0;
}

int mds_py_blocks_fill(const RecordsObject *self, const mds_request *requests, Py_ssize_t n, uint8_t *room)
{
    size_t count = 0;
    for (Py_ssize_t k = 0; k < n; k++)
        count += reader_of(&requests[k]) != NULL;
    if (!count)
        return 0;
    wanted *records = PyMem_Malloc(count * sizeof *records);
    if (!records) {
        PyErr_NoMemory();
        return -1;
    }
    count = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        const mds_source *source = requests[k].source;
        const uint64_t size = requests[k].span.end - requests[k].span.begin;
        if (reader_of(&requests[k]))
            records[count++] = (wanted){&requests[k], room, size};
        if (!source->map->data)
            room += size;
    }
    const int result = fill(self, records, count);
    PyMem_Free(records);
    return result;
}
