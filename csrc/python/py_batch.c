/* py_batch.c - the payloads of a batch of records. */
#include "binding.h"

#include <string.h>

void mds_py_batch_free(mds_py_batch *batch)
{
    PyMem_Free(batch->requests);
    Py_CLEAR(batch->room);
    batch->requests = NULL;
}

/* Bring the located records into memory; on failure, *failed is the request that cannot be read. */
static mds_status batch_load(const RecordsObject *self, mds_py_batch *batch, uint64_t room, int check, size_t *failed)
{
    mds_status status;
    if (batch->list && mds_py_blocks_only(batch->requests, batch->n)) {
        batch->is_listed = 1;
        return mds_py_blocks_list(self, batch->requests, batch->n, batch->list) == 0 ? MDS_OK : MDS_SYSTEM;
    }
    uint8_t *memory = (uint8_t *)batch->requests; /* for records of 0 bytes: not NULL */
    if (room) {
        batch->room = room <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room) : PyErr_NoMemory();
        memory = batch->room ? (uint8_t *)PyBytes_AsString(batch->room) : NULL;
        if (!memory)
            return MDS_SYSTEM;
        if (mds_py_blocks_fill(self, batch->requests, batch->n, memory) != 0)
            return MDS_SYSTEM;
    }
    RELEASE_GIL(status = mds_records_load(batch->requests, (size_t)batch->n, memory, check, failed));
    return status;
}

static int batch_read(RecordsObject *self, mds_py_batch *batch, mds_request **order)
{
    const size_t n = (size_t)batch->n;
    const int check = self->views;                          /* others are copied, and checked then */
    const unsigned cold = self->will_need ? self->cold : 0; /* a copy: other threads use the original meanwhile */
    size_t failed = 0;
    uint64_t room = 0;
    long reads;
    mds_status status;
    mds_guard_install();
    RELEASE_GIL({
        reads = self->will_need ? mds_disk_reads() : 0;
        status = mds_records_locate(batch->requests, order, n, cold > 0, &room, &failed);
        if (status == MDS_OK && !room)
            status = mds_records_load(batch->requests, n, (uint8_t *)batch->requests, check, &failed);
    });
    if (status == MDS_OK && room)
        status = batch_load(self, batch, room, check, &failed);
    if (self->will_need)
        self->cold = mds_next_cold(cold, reads);
    if (status != MDS_OK && !PyErr_Occurred())
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
    return status == MDS_OK ? 0 : -1;
}

/* Fetch a batch of n records. */
static int batch_fetch(RecordsObject *self, PyObject *rows, mds_py_batch *batch)
{
    batch->requests = PyMem_Calloc((size_t)batch->n + 1, sizeof *batch->requests);
    mds_request **order = PyMem_Calloc((size_t)batch->n + 1, sizeof *order);
    int result = -1;
    if (!batch->requests || !order)
        PyErr_NoMemory();
    else if (mds_py_records_request(self, rows, batch->requests, batch->n) == 0)
        result = batch_read(self, batch, order);
    PyMem_Free(order);
    if (result != 0)
        mds_py_batch_free(batch);
    return result;
}

int mds_py_batch_fetch(RecordsObject *self, PyObject *rows, mds_py_batch *batch)
{
    *batch = (mds_py_batch){.n = PySequence_Size(rows)};
    return batch->n < 0 ? -1 : batch_fetch(self, rows, batch);
}

PyObject *mds_py_batch_payload(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t k)
{
    const mds_request *request = &batch->requests[k];
    return mds_py_records_payload(self, request,
                                  request->source->map->data || !request->source->map->size ? NULL : batch->room);
}

#define COPY_WITH_GIL (256 << 10) /* bytes that take less time to copy than waiting for the GIL may take */

static size_t size_of(const mds_request *request)
{
    return (size_t)(request->span.end - request->span.begin);
}

/* Make bytes of the k-th payload in the list, and return their memory; NULL with an exception. */
static uint8_t *make_bytes(const mds_py_batch *batch, PyObject *list, Py_ssize_t k)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size_of(&batch->requests[k]));
    if (!bytes || PyList_SetItem(list, k, bytes) != 0)
        return NULL;
    return (uint8_t *)PyBytes_AsString(bytes);
}

/* Copy the payloads one by one. Making bytes runs no other Python code, so one guard does. */
static mds_status copy_small(const mds_py_batch *batch, PyObject *list, volatile size_t *at)
{
    const int64_t now = mds_now();
    mds_status status = MDS_OK;
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    for (Py_ssize_t k = 0; k < batch->n && status == MDS_OK; k++) {
        const mds_request *request = &batch->requests[k];
        uint8_t *out = make_bytes(batch, list, k);
        *at = (size_t)k;
        if (!out)
            break;
        memcpy(out, request->data, size_of(request));
        if (request->source->map->data)
            status = mds_map_was_whole(request->source->map, request->span.end, now);
    }
    mds_guard_leave();
    return status;
}

/* Make room for all payloads, and copy them without the GIL. */
static mds_status copy_large(const mds_py_batch *batch, PyObject *list, size_t *failed)
{
    const size_t n = (size_t)batch->n;
    uint8_t **out = PyMem_Malloc((n + 1) * sizeof *out);
    mds_status status = MDS_OK;
    if (!out)
        PyErr_NoMemory();
    for (size_t k = 0; out && k < n; k++) {
        if (!(out[k] = make_bytes(batch, list, (Py_ssize_t)k))) {
            PyMem_Free(out);
            out = NULL;
        }
    }
    if (out)
        RELEASE_GIL(status = mds_records_copy(batch->requests, n, out, failed));
    PyMem_Free(out);
    return status;
}

/* Copy all payloads of a batch into bytes objects, which are new. */
static int copy_batch(const RecordsObject *self, const mds_py_batch *batch, PyObject *list)
{
    volatile size_t at = 0;
    size_t failed = 0, total = 0;
    mds_status status;
    for (Py_ssize_t k = 0; k < batch->n; k++)
        total += size_of(&batch->requests[k]);
    if (total > COPY_WITH_GIL) {
        status = copy_large(batch, list, &failed);
    } else {
        status = copy_small(batch, list, &at);
        failed = at;
    }
    if (status != MDS_OK)
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
    return PyErr_Occurred() ? -1 : 0;
}

static int view_batch(const RecordsObject *self, const mds_py_batch *batch, PyObject *list)
{
    for (Py_ssize_t k = 0; k < batch->n; k++) {
        PyObject *view = mds_py_batch_payload(self, batch, k);
        if (!view)
            return -1;
        PyList_SetItem(list, k, view);
    }
    return 0;
}

PyObject *mds_py_records_many(PyObject *object, PyObject *rows)
{
    RecordsObject *self = (RecordsObject *)object;
    mds_py_batch batch = {.n = PySequence_Size(rows)};
    PyObject *list = batch.n < 0 ? NULL : PyList_New(batch.n);
    if (!list)
        return NULL;
    batch.list = self->views ? NULL : list;
    if (batch_fetch(self, rows, &batch) != 0) {
        Py_DECREF(list);
        return NULL;
    }
    if (!batch.is_listed && (self->views ? view_batch : copy_batch)(self, &batch, list) != 0)
        Py_CLEAR(list);
    mds_py_batch_free(&batch);
    return list;
}
