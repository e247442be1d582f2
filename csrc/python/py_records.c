/* py_records.c - the payloads of all records behind a list of sources. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static PyObject *records_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"firsts", "opener", "readahead", "will_need", "views", NULL};
    PyObject *firsts, *opener;
    int readahead, will_need, views;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOppp:Records", names, &firsts, &opener, &readahead, &will_need,
                                     &views))
        return NULL;
    RecordsObject *self = (RecordsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    size_t entries;
    self->firsts = mds_py_copy_words(firsts, MDS_PY_ANY, "firsts", &entries);
    if (!self->firsts)
        goto fail;
    if (entries < 1 || self->firsts[0] != 0) {
        if (entries)
            PyErr_Format(PyExc_ValueError, "firsts[0]: expected 0, found %llu", (unsigned long long)self->firsts[0]);
        else
            PyErr_SetString(PyExc_ValueError, "firsts: expected 1 entry or more, found 0");
        goto fail;
    }
    self->n_sources = entries - 1;
    for (size_t s = 0; s < self->n_sources; s++) {
        if (self->firsts[s] > self->firsts[s + 1] || self->firsts[s + 1] > INT64_MAX) {
            PyErr_Format(PyExc_ValueError, "firsts[%zu]: expected %llu or more, below 2^63, found %llu", s + 1,
                         (unsigned long long)self->firsts[s], (unsigned long long)self->firsts[s + 1]);
            goto fail;
        }
    }
    self->count = self->firsts[self->n_sources];
    self->slots = calloc(self->n_sources ? self->n_sources : 1, sizeof *self->slots);
    if (!self->slots) {
        PyErr_NoMemory();
        goto fail;
    }
    self->notice_order = readahead;
    self->will_need = will_need;
    self->views = views;
    self->cold = MDS_COLD;
    Py_INCREF(opener);
    self->opener = opener;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static int records_traverse(PyObject *object, visitproc visit, void *arg)
{
    RecordsObject *self = (RecordsObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->opener);
    return 0;
}

static int records_clear(PyObject *object)
{
    Py_CLEAR(((RecordsObject *)object)->opener);
    return 0;
}

static void records_dealloc(PyObject *object)
{
    RecordsObject *self = (RecordsObject *)object;
    PyObject_GC_UnTrack(object);
    records_clear(object);
    if (self->slots) {
        for (size_t s = 0; s < self->n_sources; s++) {
            Py_XDECREF(self->slots[s].view);
            Py_XDECREF(self->slots[s].index);
            Py_XDECREF(self->slots[s].map);
        }
        free(self->slots);
    }
    PyMem_Free(self->firsts);
    mds_py_free(object);
}

/* Check that an index holds the bounds of a source where the opener says. */
static int check_bounds(const mds_map *index, uint64_t at, uint64_t count)
{
    const uint64_t words = at / 8 + count + 1; /* count < 2^63 */
    if (at % 8 == 0 && words <= index->size / 8)
        return 0;
    PyErr_Format(PyExc_ValueError, "bounds: expected %llu words at a multiple of 8 within %llu bytes, found byte %llu",
                 (unsigned long long)count + 1, (unsigned long long)index->size, (unsigned long long)at);
    return -1;
}

/* Fill a slot that is still empty. From the look at slot->map on, no other Python code runs. */
static int fill_slot(RecordsObject *self, size_t s, PyObject *map, PyObject *index, const mds_source *source)
{
    SourceSlot *slot = &self->slots[s];
    PyObject *view = source->map->data && self->views ? PyMemoryView_FromObject(map) : NULL;
    if (PyErr_Occurred())
        return -1;
    if (slot->map) { /* another thread was quicker: its result stays */
        Py_XDECREF(view);
        return 0;
    }
    slot->view = view;
    slot->index = source->index ? Py_NewRef(index) : NULL;
    slot->source = *source;
    slot->map = Py_NewRef(map);
    return 0;
}

/* Ask the opener for source `s`: (map, index, where its bounds begin there, framing, first, stride). If stride is not 0,
 * there are no bounds. */
static const mds_source *records_open(RecordsObject *self, size_t s)
{
    const mds_py_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *opened = PyObject_CallMethod(self->opener, "open", "n", (Py_ssize_t)s);
    if (!opened)
        return NULL;
    PyObject *map, *index;
    int framing;
    unsigned long long bounds_at, first, stride;
    const mds_source *source = NULL;
    if (mds_py_expect_tuple(opened, "opener.open") != 0 ||
        !PyArg_ParseTuple(opened, "O!O!O&iO&O&:open", state->map_type, &map, state->map_type, &index, mds_py_size,
                          &bounds_at, &framing, mds_py_size, &first, mds_py_size, &stride))
        goto done;
    mds_source found = {
        .map = &((MapObject *)map)->map,
        .first = first,
        .stride = stride,
        .count = self->firsts[s + 1] - self->firsts[s],
        .framing = (mds_framing)framing,
    };
    if (!stride) {
        const mds_map *bounds = &((MapObject *)index)->map;
        if (check_bounds(bounds, bounds_at, found.count) != 0)
            goto done;
        found.index = bounds;
        found.bounds_at = bounds_at;
        found.bounds = bounds->data ? (const uint64_t *)(bounds->data + bounds_at) : NULL;
    }
    if (fill_slot(self, s, map, index, &found) == 0)
        source = &self->slots[s].source;
done:
    Py_DECREF(opened);
    return source;
}

/* The source that holds `record`, opened, and the record's number in it. Needs record < count. */
static const mds_source *records_find(RecordsObject *self, uint64_t record, size_t *source_number, uint64_t *i)
{
    size_t low = 0, high = self->n_sources;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (self->firsts[middle] <= record)
            low = middle;
        else
            high = middle;
    }
    *source_number = low;
    *i = record - self->firsts[low];
    return self->slots[low].map ? &self->slots[low].source : records_open(self, low);
}

static size_t source_number(const RecordsObject *self, const mds_source *source)
{
    return (size_t)((const SourceSlot *)((const char *)source - offsetof(SourceSlot, source)) - self->slots);
}

void mds_py_raise_unread_record(const RecordsObject *self, const mds_request *request, mds_status status)
{
    const Py_ssize_t s = (Py_ssize_t)source_number(self, request->source);
    PyObject *result;
    if (status == MDS_CORRUPT)
        result = PyObject_CallMethod(self->opener, "corrupt", "nKKKK", s, (unsigned long long)request->i,
                                     (unsigned long long)request->span.begin, (unsigned long long)request->span.end,
                                     (unsigned long long)request->source->map->size);
    else
        result = PyObject_CallMethod(self->opener, "lost", "ni", s, status == MDS_SYSTEM ? errno : 0);
    Py_XDECREF(result);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "opener: expected an exception, found none");
}

/* A record number from a Python int, negative ones counting from the end; -1 and IndexError when out of range. */
static int records_number(RecordsObject *self, PyObject *key, uint64_t *record)
{
    const Py_ssize_t row = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (row == -1 && PyErr_Occurred())
        return -1;
    *record = row < 0 ? (uint64_t)row + self->count : (uint64_t)row;
    if (*record < self->count)
        return 0;
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %llu records", row, (unsigned long long)self->count);
    return -1;
}

/* ---- one record -------------------------------------------------------------------------------------------- */

/* Find the bytes of a record, and its payload in the source if that is mapped; copy nothing. */
static mds_status find_one(mds_request *request)
{
    const mds_source *source = request->source;
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    mds_status status = mds_record_span(source, request->i, &request->span);
    if (status == MDS_OK && source->map->data) {
        const mds_span span = request->span;
        request->data = source->map->data + span.begin;
        const mds_span payload = mds_record_payload(source->framing, request->data, span.end - span.begin);
        request->data += payload.begin;
        request->span = (mds_span){span.begin + payload.begin, span.begin + payload.end};
    }
    mds_guard_leave();
    return status;
}

/* Copy the payload, and see that the source was whole. */
static mds_status copy_one(const mds_request *request, uint8_t *out)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    memcpy(out, request->data, (size_t)(request->span.end - request->span.begin));
    const mds_status status = mds_map_was_whole(request->source->map, request->span.end, mds_now());
    mds_guard_leave();
    return status;
}

/* Read a record of a source that is not mapped, and narrow the request to the payload. Return the whole record as bytes,
 * which hold request->data. */
static PyObject *read_one(const RecordsObject *self, mds_request *request)
{
    const uint64_t begin = request->span.begin, size = request->span.end - begin;
    PyObject *room = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    uint8_t *record = room ? (uint8_t *)PyBytes_AsString(room) : NULL; /* nobody else has it yet */
    if (!record)
        return NULL;
    mds_status status;
    RELEASE_GIL(status = mds_map_read(request->source->map, begin, (size_t)size, record));
    if (status != MDS_OK) {
        Py_DECREF(room);
        mds_py_raise_unread_record(self, request, status);
        return NULL;
    }
    const mds_span payload = mds_record_payload(request->source->framing, record, size);
    request->data = record + payload.begin;
    request->span = (mds_span){begin + payload.begin, begin + payload.end};
    return room;
}

static PyObject *view_of(PyObject *memory, const char *start, const mds_request *request)
{
    PyObject *whole = PyMemoryView_FromObject(memory);
    const Py_ssize_t begin = (const char *)request->data - start;
    PyObject *view =
        whole ? PySequence_GetSlice(whole, begin, begin + (Py_ssize_t)(request->span.end - request->span.begin)) : NULL;
    Py_XDECREF(whole);
    return view;
}

static PyObject *payload_of(const RecordsObject *self, const mds_request *request, PyObject *room)
{
    const Py_ssize_t size = (Py_ssize_t)(request->span.end - request->span.begin);
    if (self->views && room)
        return view_of(room, PyBytes_AsString(room), request);
    if (self->views) {
        PyObject *view = self->slots[source_number(self, request->source)].view;
        return PySequence_GetSlice(view, (Py_ssize_t)request->span.begin, (Py_ssize_t)request->span.end);
    }
    if (room)
        return PyBytes_FromStringAndSize((const char *)request->data, size);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    const mds_status status = bytes ? copy_one(request, (uint8_t *)PyBytes_AsString(bytes)) : MDS_OK;
    if (status == MDS_OK)
        return bytes;
    Py_DECREF(bytes);
    mds_py_raise_unread_record(self, request, status);
    return NULL;
}

/* Find a record and open its source. Its payload is known if the source is mapped; else *room holds it, or is NULL if it
 * was not wanted. -1 with an exception. */
static int records_find_one(RecordsObject *self, PyObject *key, mds_request *request, size_t *s, PyObject **room)
{
    uint64_t record;
    *room = NULL;
    if (records_number(self, key, &record) != 0)
        return -1;
    request->source = records_find(self, record, s, &request->i);
    if (!request->source)
        return -1;
    const mds_status status = find_one(request);
    if (status != MDS_OK) {
        mds_py_raise_unread_record(self, request, status);
        return -1;
    }
    if (request->source->map->data || !request->source->map->size)
        return 0;
    *room = read_one(self, request);
    return *room ? 0 : -1;
}

static PyObject *records_subscript(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    mds_request request;
    PyObject *room;
    size_t s;
    if (records_find_one(self, key, &request, &s, &room) != 0)
        return NULL;
    const mds_map *map = request.source->map;
    if (self->notice_order)
        mds_readahead_note(&self->readahead, request.source, request.span);
    /* A view is read later, so its pages are not touched now. */
    if (self->views && !room && mds_map_was_whole(map, 0, mds_now()) != MDS_OK) {
        mds_py_raise_unread_record(self, &request, MDS_SHRANK);
        return NULL;
    }
    PyObject *payload = payload_of(self, &request, room);
    Py_XDECREF(room);
    return payload;
}

static Py_ssize_t records_length(PyObject *object)
{
    return (Py_ssize_t)((RecordsObject *)object)->count;
}

static PyObject *records_locate(PyObject *object, PyObject *key)
{
    mds_request request;
    PyObject *room;
    size_t s;
    if (records_find_one((RecordsObject *)object, key, &request, &s, &room) != 0)
        return NULL;
    Py_XDECREF(room);
    return Py_BuildValue("nKKK", (Py_ssize_t)s, (unsigned long long)request.i, (unsigned long long)request.span.begin,
                         (unsigned long long)request.span.end);
}

/* ---- a batch ------------------------------------------------------------------------------------------------ */

/* Fill one request a row; rows are checked and sources opened while the GIL is held. */
static int records_request(RecordsObject *self, PyObject *rows, mds_request *requests, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *row = PySequence_GetItem(rows, k);
        if (!row)
            return -1;
        uint64_t record;
        size_t s;
        const int found = records_number(self, row, &record);
        Py_DECREF(row);
        if (found != 0)
            return -1;
        requests[k].source = records_find(self, record, &s, &requests[k].i);
        if (!requests[k].source)
            return -1;
    }
    return 0;
}

void mds_py_batch_free(mds_py_batch *batch)
{
    PyMem_Free(batch->requests);
    Py_CLEAR(batch->room);
    batch->requests = NULL;
}

/* Bring the located records into memory; on failure, *failed is the request that cannot be read. */
static mds_status batch_load(mds_py_batch *batch, uint64_t room, int check, size_t *failed)
{
    mds_status status;
    uint8_t *memory = (uint8_t *)batch->requests; /* for records of 0 bytes: not NULL */
    if (room) {
        batch->room = room <= PY_SSIZE_T_MAX ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)room) : PyErr_NoMemory();
        memory = batch->room ? (uint8_t *)PyBytes_AsString(batch->room) : NULL;
        if (!memory)
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
        status = batch_load(batch, room, check, &failed);
    if (self->will_need)
        self->cold = mds_next_cold(cold, reads);
    if (status != MDS_OK && !PyErr_Occurred())
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
    return status == MDS_OK ? 0 : -1;
}

int mds_py_batch_fetch(RecordsObject *self, PyObject *rows, mds_py_batch *batch)
{
    *batch = (mds_py_batch){NULL, PySequence_Size(rows), NULL};
    if (batch->n < 0)
        return -1;
    batch->requests = PyMem_Calloc((size_t)batch->n + 1, sizeof *batch->requests);
    mds_request **order = PyMem_Calloc((size_t)batch->n + 1, sizeof *order);
    int result = -1;
    if (!batch->requests || !order)
        PyErr_NoMemory();
    else if (records_request(self, rows, batch->requests, batch->n) == 0)
        result = batch_read(self, batch, order);
    PyMem_Free(order);
    if (result != 0)
        mds_py_batch_free(batch);
    return result;
}

PyObject *mds_py_batch_payload(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t k)
{
    const mds_request *request = &batch->requests[k];
    return payload_of(self, request, request->source->map->data || !request->source->map->size ? NULL : batch->room);
}

#define COPY_WITH_GIL (256 << 10) /* bytes that take less time to copy than waiting for the GIL may take */

/* Copy all payloads of a batch into bytes objects, which are new. */
static int copy_batch(const RecordsObject *self, const mds_py_batch *batch, PyObject *list)
{
    const size_t n = (size_t)batch->n;
    uint8_t **out = PyMem_Malloc((n + 1) * sizeof *out);
    size_t failed = 0;
    uint64_t total = 0;
    mds_status status = MDS_SYSTEM;
    if (!out) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t k = 0; k < n; k++) {
        const uint64_t size = batch->requests[k].span.end - batch->requests[k].span.begin;
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (!bytes)
            goto done;
        out[k] = (uint8_t *)PyBytes_AsString(bytes);
        PyList_SetItem(list, (Py_ssize_t)k, bytes);
        total += size;
    }
    if (total > COPY_WITH_GIL)
        RELEASE_GIL(status = mds_records_copy(batch->requests, n, out, &failed));
    else
        status = mds_records_copy(batch->requests, n, out, &failed);
    if (status != MDS_OK)
        mds_py_raise_unread_record(self, &batch->requests[failed], status);
done:
    PyMem_Free(out);
    return status == MDS_OK ? 0 : -1;
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

static PyObject *records_many(PyObject *object, PyObject *rows)
{
    RecordsObject *self = (RecordsObject *)object;
    mds_py_batch batch;
    if (mds_py_batch_fetch(self, rows, &batch) != 0)
        return NULL;
    PyObject *list = PyList_New(batch.n);
    if (list && (self->views ? view_batch : copy_batch)(self, &batch, list) != 0)
        Py_CLEAR(list);
    mds_py_batch_free(&batch);
    return list;
}

static PyMethodDef records_methods[] = {
    {"locate", records_locate, METH_O,
     "locate($self, record, /)\n--\n\n"
     "Return (source number, record number in it, begin, end): the payload is bytes [begin, end) of that source.\n\n"
     "Raises IndexError, and what the opener raises, as self[record] does."},
    {"many", records_many, METH_O,
     "many($self, rows, /)\n--\n\n"
     "Return a list of the payloads at some record numbers; all pages are asked for before the first is read.\n\n"
     "Raises IndexError, and what the opener raises, as self[record] does."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot records_slots[] = {
    {Py_tp_doc,
     "Records(firsts, opener, readahead, will_need, views)\n--\n\n"
     "The payloads of all records behind a list of sources, numbered through; sources open at first use.\n\n"
     "firsts: u64, shape (sources + 1,): the record number each source begins with, and how many there are.\n"
     "opener.open(source) returns (map, index, bounds, framing, first, stride): index is the map that holds the\n"
     "bounds, u64, shape (records + 1,), from byte `bounds` on; without them, stride is the size of every record, and\n"
     "the first begins at byte `first`.\n"
     "opener.corrupt(source, record, begin, end, size) raises the error for bounds that do not fit the source, and\n"
     "opener.lost(source, errno) that for a source or an index that was cut short (errno 0) or cannot be read.\n"
     "readahead: notice reads in file order. will_need: ask for cold pages. views: give memoryviews.\n\n"
     "Raises ValueError when firsts fall or do not begin with 0."},
    {Py_tp_new, records_new},
    {Py_tp_dealloc, records_dealloc},
    {Py_tp_traverse, records_traverse},
    {Py_tp_clear, records_clear},
    {Py_tp_methods, records_methods},
    {Py_mp_subscript, records_subscript},
    {Py_mp_length, records_length},
    {0, NULL},
};

static PyType_Spec records_spec = {"mmapds._native.Records", sizeof(RecordsObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, records_slots};

static const mds_py_constant constants[] = {
    {"FRAMING_NONE", MDS_FRAMING_NONE},
    {"FRAMING_LINES", MDS_FRAMING_LINES},
    {"FRAMING_FIRST_LINE", MDS_FRAMING_FIRST_LINE},
    {"FRAMING_U32LE", MDS_FRAMING_U32LE},
    {"FRAMING_U32BE", MDS_FRAMING_U32BE},
    {"FRAMING_U64LE", MDS_FRAMING_U64LE},
    {"FRAMING_U64BE", MDS_FRAMING_U64BE},
    {"FRAMING_VARINT", MDS_FRAMING_VARINT},
    {"FRAMING_TFRECORD", MDS_FRAMING_TFRECORD},
    {NULL, 0},
};

int mds_py_add_records(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (mds_py_add_type(module, &records_spec, &state->records_type) != 0 ||
        mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
