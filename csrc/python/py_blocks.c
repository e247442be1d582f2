/* py_blocks.c - records of compressed sources: their blocks, which Python decodes, are copied to where records are read. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

#define COPY_WITH_GIL (256 << 10) /* bytes that take less time to copy than waiting for the GIL may take */

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

/* Take the next piece of a block, which begins at *at in the content, and go on behind it. */
static int take_piece(mds_block_record *records, size_t n, uint64_t *at, PyObject *piece)
{
    uint64_t end;
    MDS_PY_BUFFERS(buffers, 1);
    const uint8_t *data = mds_py_take_bytes(&buffers, piece, MDS_PY_READ);
    if (!data)
        return -1;
    if (__builtin_add_overflow(*at, buffers.entries, &end))
        PyErr_SetString(PyExc_OverflowError, "reader.blocks: expected a block that ends below 2^64");
    else if (buffers.entries > COPY_WITH_GIL)
        RELEASE_GIL(mds_blocks_copy(records, n, *at, end, data));
    else
        mds_blocks_copy(records, n, *at, end, data);
    mds_py_give_back(&buffers);
    *at = end;
    return PyErr_Occurred() ? -1 : 0;
}

/* Take a block from the reader: (where it begins in the content, its pieces). */
static int take_block(mds_block_record *records, size_t n, PyObject *item)
{
    unsigned long long begin;
    PyObject *pieces;
    if (mds_py_expect_tuple(item, "reader.blocks") != 0 ||
        !PyArg_ParseTuple(item, "O&O!:blocks", mds_py_size, &begin, &PyTuple_Type, &pieces))
        return -1;
    uint64_t at = begin;
    int result = 0;
    for (Py_ssize_t k = 0; result == 0 && k < PyTuple_Size(pieces); k++)
        result = take_piece(records, n, &at, PyTuple_GetItem(pieces, k));
    return result;
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

/* Read records of one source, sorted by where they begin. */
static int fill_source(const RecordsObject *self, mds_block_record *records, size_t n)
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

static int fill(const RecordsObject *self, mds_block_record *records, size_t n)
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
    const int result = fill(self, records, count);
    PyMem_Free(records);
    return result;
}
