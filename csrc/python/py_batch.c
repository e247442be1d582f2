/* py_batch.c - the payloads of a batch of records, and the samples that a decoder makes of them. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

#define MUCH (64 << 20) /* bytes: before so large a read, check that there is memory */

void mds_py_batch_free(mds_py_batch *batch)
{
    for (Py_ssize_t k = 0; batch->made && k < batch->n; k++)
        Py_XDECREF(batch->made[k]);
    PyMem_Free(batch->made);
    PyMem_Free(batch->requests);
    Py_CLEAR(batch->room);
    if (batch->table)
        mds_py_sources_release(batch->table);
    batch->made = NULL;
    batch->requests = NULL;
    batch->table = NULL;
}

/* Bring the located records into memory; on failure, *failed is the request that cannot be read. */
static mds_status batch_load(const RecordsObject *self, mds_py_batch *batch, uint64_t room, int check, size_t *failed)
{
    mds_status status;
    if (batch->made && !self->views && mds_py_blocks_only(batch->requests, batch->n)) {
        batch->is_made = 1;
        return mds_py_blocks_make(self, batch->requests, batch->n, batch->made) == 0 ? MDS_OK : MDS_SYSTEM;
    }
    uint8_t *memory = (uint8_t *)batch->requests; /* for records of 0 bytes: not NULL */
    if (room) {
        batch->room = room <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room) : NULL;
        memory = batch->room ? (uint8_t *)PyBytes_AsString(batch->room) : NULL;
        if (!memory) {
            mds_py_raise_no_room(self, batch->requests, batch->n);
            return MDS_SYSTEM;
        }
        if (mds_py_blocks_fill(self, batch->requests, batch->n, memory) != 0)
            return MDS_SYSTEM;
    }
    RELEASE_GIL(status = mds_records_load(batch->requests, (size_t)batch->n, memory, check, failed));
    return status;
}

static size_t size_of(const mds_request *request)
{
    return (size_t)(request->span.end - request->span.begin);
}

/* Return whether some bytes can be allocated now; checked before a read that takes long. */
static int has_room(size_t size)
{
    if (size < MUCH)
        return 1;
    void *volatile room = malloc(size); /* so that a compiler does not remove both calls */
    const int has = room != NULL;
    free(room);
    return has;
}

/* Find the first located payload without room, of those to copy together; *n is their number. */
static size_t first_without_room(const mds_py_batch *batch, size_t *n)
{
    const size_t count = (size_t)batch->n, step = (size_t)batch->copied;
    for (size_t begin = 0; step && begin < count; begin += step) {
        size_t total = 0;
        *n = count - begin < step ? count - begin : step;
        for (size_t k = begin; k < begin + *n; k++)
            if (__builtin_add_overflow(total, size_of(&batch->requests[k]), &total))
                return begin;
        if (!has_room(total))
            return begin;
    }
    return count;
}

static int batch_read(RecordsObject *self, mds_py_batch *batch, mds_request **order)
{
    const size_t n = (size_t)batch->n;
    const int check = self->views;                                        /* other records are checked by their copy */
    const unsigned cold = self->will_need ? mds_py_load(&self->cold) : 0; /* a copy: other threads use the original */
    size_t failed = 0, lacking = n, together = 0;
    uint64_t room = 0;
    long reads;
    mds_status status;
    mds_guard_install();
    RELEASE_GIL({
        reads = self->will_need ? mds_disk_reads() : 0;
        status = mds_records_locate(batch->requests, order, n, cold > 0, &room, &failed);
        if (status == MDS_OK && !room && (lacking = first_without_room(batch, &together)) == n)
            status = mds_records_load(batch->requests, n, (uint8_t *)batch->requests, check, &failed);
    });
    if (status == MDS_OK && room)
        status = batch_load(self, batch, room, check, &failed);
    if (lacking != n) {
        mds_py_raise_no_room(self, &batch->requests[lacking], (Py_ssize_t)together);
        return -1;
    }
    if (self->will_need)
        mds_py_store(&self->cold, mds_next_cold(cold, reads));
    if (status != MDS_OK && !PyErr_Occurred())
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
    return status == MDS_OK ? 0 : -1;
}

/* Find the records of a batch; read only their bounds. */
static int batch_locate(RecordsObject *self, mds_py_batch *batch, mds_request **order)
{
    size_t failed = 0;
    uint64_t room = 0;
    mds_status status;
    mds_guard_install();
    RELEASE_GIL(status = mds_records_locate(batch->requests, order, (size_t)batch->n, 0, &room, &failed));
    if (status != MDS_OK)
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
    return status == MDS_OK ? 0 : -1;
}

/* Begin a batch of n records, and do `next` with it: locate them, or read them too. */
static int batch_begin(RecordsObject *self, PyObject *rows, mds_py_batch *batch,
                       int (*next)(RecordsObject *, mds_py_batch *, mds_request **))
{
    batch->table = mds_py_sources_hold(self);
    batch->requests = PyMem_Calloc((size_t)batch->n + 1, sizeof *batch->requests);
    mds_request **order = PyMem_Calloc((size_t)batch->n + 1, sizeof *order);
    int result = -1;
    if (!batch->requests || !order)
        PyErr_NoMemory();
    else if (mds_py_records_request(self, batch->table, rows, batch->requests, batch->n) == 0)
        result = next(self, batch, order);
    PyMem_Free(order);
    if (result != 0)
        mds_py_batch_free(batch);
    return result;
}

int mds_py_batch_fetch(RecordsObject *self, PyObject *rows, mds_py_batch *batch)
{
    *batch = (mds_py_batch){.n = PySequence_Size(rows)};
    return batch->n < 0 ? -1 : batch_begin(self, rows, batch, batch_read);
}

PyObject *mds_py_batch_payload(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t k)
{
    const mds_request *request = &batch->requests[k];
    return mds_py_records_payload(self, request,
                                  request->source->map->data || !request->source->map->size ? NULL : batch->room);
}

/* Make bytes for the k-th payload, and return their memory; NULL without room. */
static uint8_t *make_bytes(const mds_py_batch *batch, Py_ssize_t k)
{
    batch->made[k] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size_of(&batch->requests[k]));
    return batch->made[k] ? (uint8_t *)PyBytes_AsString(batch->made[k]) : NULL;
}

/* Copy the payloads [begin, end) one by one. Making bytes runs no other Python code, so one guard does. */
static mds_status copy_small(const mds_py_batch *batch, Py_ssize_t begin, Py_ssize_t end, volatile size_t *at)
{
    const int64_t now = mds_now();
    mds_status status = MDS_OK;
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    for (Py_ssize_t k = begin; k < end && status == MDS_OK; k++) {
        const mds_request *request = &batch->requests[k];
        uint8_t *out = make_bytes(batch, k);
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

/* Make room for the payloads [begin, end), and copy them without the GIL. */
static mds_status copy_large(const mds_py_batch *batch, Py_ssize_t begin, Py_ssize_t end, volatile size_t *at)
{
    const size_t n = (size_t)(end - begin);
    uint8_t **out = PyMem_Malloc((n + 1) * sizeof *out);
    mds_status status = MDS_OK;
    size_t failed = 0;
    if (!out)
        PyErr_NoMemory();
    for (size_t k = 0; out && k < n; k++) {
        if (!(out[k] = make_bytes(batch, begin + (Py_ssize_t)k))) {
            PyMem_Free(out);
            out = NULL;
        }
    }
    if (out)
        RELEASE_GIL(status = mds_records_copy(batch->requests + begin, n, out, &failed));
    PyMem_Free(out);
    *at = (size_t)begin + failed;
    return status;
}

/* Copy the payloads [begin, end) into bytes objects, which are new. */
static int copy_payloads(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t begin, Py_ssize_t end)
{
    volatile size_t at = 0;
    size_t total = 0;
    for (Py_ssize_t k = begin; k < end; k++)
        total += size_of(&batch->requests[k]);
    const mds_status status = (total > COPY_WITH_GIL ? copy_large : copy_small)(batch, begin, end, &at);
    if (status == MDS_OK && !PyErr_Occurred())
        return 0;
    if (status == MDS_OK)
        mds_py_raise_no_room(self, batch->requests + begin, end - begin);
    else
        mds_py_raise_unread_record(self, &batch->requests[at], status);
    return -1;
}

static int view_payloads(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t begin, Py_ssize_t end)
{
    for (Py_ssize_t k = begin; k < end; k++)
        if (!(batch->made[k] = mds_py_batch_payload(self, batch, k)))
            return -1;
    return 0;
}

/* Make the payloads [begin, end), which are not made yet. -1 with an exception. */
static int make_payloads(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t begin, Py_ssize_t end)
{
    if (batch->is_made)
        return 0;
    return (self->views ? view_payloads : copy_payloads)(self, batch, begin, end);
}

/* Fetch a batch; its payloads are made next, `step` at a time. */
static int fetch_for_making(RecordsObject *self, PyObject *rows, Py_ssize_t step, mds_py_batch *batch)
{
    *batch = (mds_py_batch){.n = PySequence_Size(rows), .copied = self->views ? 0 : step};
    if (batch->n < 0)
        return -1;
    batch->made = PyMem_Calloc((size_t)batch->n + 1, sizeof *batch->made);
    if (batch->made)
        return batch_begin(self, rows, batch, batch_read);
    PyErr_NoMemory();
    return -1;
}

PyObject *mds_py_records_fitting(PyObject *object, PyObject *args)
{
    RecordsObject *self = (RecordsObject *)object;
    PyObject *rows;
    unsigned long long room;
    if (!PyArg_ParseTuple(args, "OO&:fitting", &rows, mds_py_size, &room))
        return NULL;
    mds_py_batch batch = {.n = PySequence_Size(rows)};
    if (batch.n < 0 || batch_begin(self, rows, &batch, batch_locate) != 0)
        return NULL;
    Py_ssize_t k = 0;
    for (; k < batch.n && size_of(&batch.requests[k]) <= room; k++)
        room -= size_of(&batch.requests[k]);
    mds_py_batch_free(&batch);
    return PyLong_FromSsize_t(k);
}

PyObject *mds_py_records_many(PyObject *object, PyObject *rows)
{
    RecordsObject *self = (RecordsObject *)object;
    mds_py_batch batch;
    if (fetch_for_making(self, rows, PY_SSIZE_T_MAX, &batch) != 0)
        return NULL;
    PyObject *list = make_payloads(self, &batch, 0, batch.n) == 0 ? PyList_New(batch.n) : NULL;
    if (list) { /* which takes the payloads */
        for (Py_ssize_t k = 0; k < batch.n; k++)
            PyList_SetItem(list, k, batch.made[k]);
        PyMem_Free(batch.made);
        batch.made = NULL;
    }
    mds_py_batch_free(&batch);
    return list;
}

/* ---- samples ------------------------------------------------------------------------------------------------ */

/* Payloads to make before the first is decoded. Few, so that copies stay in the nearest cache and a large batch is
 * never in memory as a whole. Enough, so that a guard costs little. */
#define MADE_AHEAD 16

/* Pass the set error of the decoder to `refused`, which raises it with the place of record k. */
static void refuse(PyObject *refused, Py_ssize_t k)
{
    PyObject *error = mds_py_take_error();
    PyObject *result = PyObject_CallFunction(refused, "nO", k, error);
    if (result)
        PyErr_SetString(PyExc_SystemError, "refused: expected an exception, found none");
    Py_XDECREF(result);
    Py_DECREF(error);
}

/* Append the sample of record k. */
static int decode_one(const mds_py_batch *batch, Py_ssize_t k, PyObject *decode, PyObject *refused, PyObject *samples)
{
    PyObject *payload = batch->made[k];
    batch->made[k] = NULL; /* freed as soon as the decoder drops it */
    PyObject *sample = PyObject_CallFunctionObjArgs(decode, payload, NULL);
    Py_DECREF(payload);
    if (!sample) {
        if (PyErr_ExceptionMatches(PyExc_Exception))
            refuse(refused, k);
        return -1;
    }
    const int status = PyList_Append(samples, sample);
    Py_DECREF(sample);
    return status;
}

static mds_status were_whole(const mds_py_batch *batch, volatile size_t *at)
{
    const int64_t now = mds_now();
    mds_status status = MDS_OK;
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    for (size_t k = 0; k < (size_t)batch->n && status == MDS_OK; k++) {
        const mds_request *request = &batch->requests[k];
        *at = k;
        if (request->source->map->data)
            status = mds_map_was_whole(request->source->map, request->span.end, now);
    }
    mds_guard_leave();
    return status;
}

/* Check that decoded views do not hold zeros from behind the end of a file. All at once, because a guard costs as much
 * as a check. */
static int check_views(const RecordsObject *self, const mds_py_batch *batch)
{
    volatile size_t at = 0;
    const mds_status status = were_whole(batch, &at);
    if (status != MDS_OK)
        mds_py_raise_unread_record(self, &batch->requests[at], status);
    return status == MDS_OK ? 0 : -1;
}

PyObject *mds_py_records_decode(PyObject *object, PyObject *args)
{
    RecordsObject *self = (RecordsObject *)object;
    PyObject *rows, *decode, *refused;
    mds_py_batch batch;
    if (!PyArg_ParseTuple(args, "OOO:decode", &rows, &decode, &refused) ||
        fetch_for_making(self, rows, MADE_AHEAD, &batch) != 0)
        return NULL;
    PyObject *samples = PyList_New(0);
    for (Py_ssize_t k = 0, made = 0; samples && k < batch.n; k++) {
        int status = 0;
        if (k == made) {
            made = batch.n - k < MADE_AHEAD ? batch.n : k + MADE_AHEAD;
            status = make_payloads(self, &batch, k, made);
        }
        if (status != 0 || decode_one(&batch, k, decode, refused, samples) != 0)
            Py_CLEAR(samples);
    }
    if (samples && self->views && check_views(self, &batch) != 0)
        Py_CLEAR(samples);
    mds_py_batch_free(&batch);
    return samples;
}
