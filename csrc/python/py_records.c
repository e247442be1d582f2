/* py_records.c - the payloads of all records behind a list of sources. */
#include "binding.h"

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
    self->table = mds_py_sources_new(self->n_sources);
    if (!self->table)
        goto fail;
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
    for (size_t s = 0; self->table && s < self->n_sources; s++) { /* whatever holds the table holds this object too */
        Py_VISIT(self->table->slots[s].view);
        Py_VISIT(self->table->slots[s].index);
        Py_VISIT(self->table->slots[s].map);
    }
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
    if (self->table)
        mds_py_sources_release(self->table);
    PyMem_Free(self->firsts);
    mds_py_free(object);
}

/* The source that holds `record`, opened, and the record's number in it. Needs record < count. */
static const mds_source *records_find(RecordsObject *self, SourceTable *table, uint64_t record, size_t *source_number,
                                      uint64_t *i)
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
    return mds_py_slot_is_open(&table->slots[low]) ? &table->slots[low].source : mds_py_sources_open(self, table, low);
}

/* A record number from a Python int, negative ones counting from the end; -1 and IndexError when out of range. */
static int records_number(RecordsObject *self, PyObject *key, uint64_t *record)
{
    const Py_ssize_t row = PyNumber_AsSsize_t(key, NULL); /* clipped, and so out of range */
    if (row == -1 && PyErr_Occurred())
        return -1;
    *record = row < 0 ? (uint64_t)row + self->count : (uint64_t)row;
    if (*record < self->count)
        return 0;
    PyObject *text = PyNumber_ToBase(key, 10);
    if (!text && PyErr_ExceptionMatches(PyExc_ValueError)) { /* more digits than Python prints */
        PyErr_Clear();
        text = PyNumber_ToBase(key, 16);
    }
    if (text)
        PyErr_Format(PyExc_IndexError, "index %.77S%s is out of range for %llu record%s", text,
                     PyUnicode_GetLength(text) > 77 ? "..." : "", (unsigned long long)self->count,
                     self->count == 1 ? "" : "s");
    Py_XDECREF(text);
    return -1;
}

int mds_py_records_request(RecordsObject *self, SourceTable *table, PyObject *rows, mds_request *requests, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *row = PySequence_GetItem(rows, k);
        if (!row)
            return -1;
        uint64_t record;
        size_t s;
        const int found = records_number(self, row, &record);
        if (found != 0 && PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_IndexError, "positions[%zd]: expected an integer, found %.80R", k, row);
        Py_DECREF(row);
        if (found != 0)
            return -1;
        requests[k].source = records_find(self, table, record, &s, &requests[k].i);
        if (!requests[k].source)
            return -1;
    }
    return 0;
}

/* ---- one record -------------------------------------------------------------------------------------------- */

/* Find the bytes of a record, and its payload in the source if that is mapped; under a guard. */
static inline mds_status locate_one(mds_request *request)
{
    const mds_source *source = request->source;
    const mds_status status = mds_record_span(source, request->i, &request->span);
    if (status == MDS_OK && source->map->data) {
        const mds_span span = request->span;
        request->data = source->map->data + span.begin;
        const mds_span payload = mds_record_payload(source->framing, request->data, span.end - span.begin);
        request->data += payload.begin;
        request->span = (mds_span){span.begin + payload.begin, span.begin + payload.end};
    }
    return status;
}

static mds_status find_one(mds_request *request)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    const mds_status status = locate_one(request);
    mds_guard_leave();
    return status;
}

/* The time for mds_map_was_whole, usually an old one: to read a clock takes longer than the rest of the check. */
static int64_t rarely_now(RecordsObject *self)
{
    const unsigned reads = mds_py_load(&self->reads);
    mds_py_store(&self->reads, reads + 1);
    return reads % 16 ? 0 : mds_now();
}

static size_t request_size(const mds_request *request)
{
    return (size_t)(request->span.end - request->span.begin);
}

/* Copy the payload of a record whose source is mapped. Making bytes runs no other Python code, so one guard does. */
static PyObject *copy_mapped(RecordsObject *self, mds_request *request)
{
    PyObject *volatile bytes = NULL;
    mds_status status;
    mds_guard guard;
    if (MDS_GUARD(&guard)) {
        status = MDS_SHRANK;
    } else {
        status = locate_one(request);
        if (status == MDS_OK && (bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)request_size(request)))) {
            if (request_size(request)) /* an empty source has no map */
                memcpy(PyBytes_AsString(bytes), request->data, request_size(request));
            status = mds_map_was_whole(request->source->map, request->span.end, rarely_now(self));
        }
        mds_guard_leave();
    }
    if (status == MDS_OK && bytes)
        return bytes;
    Py_XDECREF(bytes);
    if (status == MDS_OK)
        mds_py_raise_no_room(self, request, 1);
    else
        mds_py_raise_unread_record(self, request, status);
    return NULL;
}

/* Make bytes for the span of a request, the payload or the whole record; NULL with an exception. With `data` NULL,
 * write the content later. */
static PyObject *make_bytes(const RecordsObject *self, const mds_request *request, const uint8_t *data)
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)request_size(request));
    if (!bytes)
        mds_py_raise_no_room(self, request, 1);
    return bytes;
}

/* Copy the payload, and check that the source was whole. */
static mds_status copy_one(const mds_request *request, uint8_t *out)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    memcpy(out, request->data, request_size(request));
    const mds_status status = mds_map_was_whole(request->source->map, request->span.end, mds_now());
    mds_guard_leave();
    return status;
}

/* Find and read a record of a source that is not mapped, and narrow the request to the payload. *room becomes the whole
 * record as bytes, which hold request->data. -1 with an exception. */
static int read_one(const RecordsObject *self, mds_request *request, PyObject **room)
{
    mds_status status = find_one(request);
    const uint64_t begin = request->span.begin, size = request->span.end - begin;
    *room = status == MDS_OK ? make_bytes(self, request, NULL) : NULL;
    uint8_t *record = *room ? (uint8_t *)PyBytes_AsString(*room) : NULL; /* still private to this call */
    if (status == MDS_OK && !record)
        return -1;
    if (record && mds_py_slot_of(request->source)->reader) {
        if (mds_py_blocks_fill(self, request, 1, record) != 0) {
            Py_CLEAR(*room);
            return -1;
        }
    } else if (record) {
        RELEASE_GIL(status = mds_map_read(request->source->map, begin, (size_t)size, record));
    }
    if (status != MDS_OK) {
        Py_CLEAR(*room);
        mds_py_raise_unread_record(self, request, status);
        return -1;
    }
    const mds_span payload = mds_record_payload(request->source->framing, record, size);
    request->data = record + payload.begin;
    request->span = (mds_span){begin + payload.begin, begin + payload.end};
    return 0;
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

/* A record of 0 bytes, in a batch whose unmapped records are all empty. */
static PyObject *empty_payload(const RecordsObject *self)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, 0);
    PyObject *payload = self->views && bytes ? PyMemoryView_FromObject(bytes) : Py_XNewRef(bytes);
    Py_XDECREF(bytes);
    return payload;
}

PyObject *mds_py_records_payload(const RecordsObject *self, const mds_request *request, PyObject *room)
{
    if (!room && !request->source->map->data)
        return empty_payload(self);
    if (self->views && room)
        return view_of(room, PyBytes_AsString(room), request);
    if (self->views) {
        const SourceSlot *slot = mds_py_slot_of(request->source);
#ifdef Py_GIL_DISABLED /* slices of one view count one another, which is no atomic operation in Python 3.13 */
        return view_of(slot->map, (const char *)request->source->map->data, request);
#else
        return PySequence_GetSlice(slot->view, (Py_ssize_t)request->span.begin, (Py_ssize_t)request->span.end);
#endif
    }
    if (room)
        return make_bytes(self, request, request->data);
    PyObject *bytes = make_bytes(self, request, NULL);
    const mds_status status = bytes ? copy_one(request, (uint8_t *)PyBytes_AsString(bytes)) : MDS_OK;
    if (status == MDS_OK)
        return bytes;
    Py_DECREF(bytes);
    mds_py_raise_unread_record(self, request, status);
    return NULL;
}

/* Return whether records of the source must be read, because it is not mapped. */
static int is_read(const mds_request *request)
{
    return !request->source->map->data && request->source->map->size;
}

/* Open the source of a record; -1 with an exception. */
static int records_request_one(RecordsObject *self, SourceTable *table, PyObject *key, mds_request *request, size_t *s)
{
    uint64_t record;
    if (records_number(self, key, &record) != 0)
        return -1;
    request->source = records_find(self, table, record, s, &request->i);
    return request->source ? 0 : -1;
}

/* Raise unless the status is MDS_OK. */
static int expect_found(const RecordsObject *self, const mds_request *request, mds_status status)
{
    if (status != MDS_OK)
        mds_py_raise_unread_record(self, request, status);
    return status == MDS_OK ? 0 : -1;
}

/* Find a record without reading its payload, and check that the source has its last byte, and so all bytes.
 * `now` is as for mds_map_was_whole. */
static mds_status find_whole(mds_request *request, int64_t now)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    mds_status status = locate_one(request);
    if (status == MDS_OK && request->data)
        status = mds_map_was_whole(request->source->map, request->span.end, now);
    mds_guard_leave();
    return status;
}

static mds_status was_whole(RecordsObject *self, const mds_request *request)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    const mds_status status = mds_map_was_whole(request->source->map, request->span.end, rarely_now(self));
    mds_guard_leave();
    return status;
}

int mds_py_records_check(RecordsObject *self, const mds_request *request)
{
    return request->source->map->data ? expect_found(self, request, was_whole(self, request)) : 0;
}

/* A view of a record that is mapped. */
static PyObject *view_mapped(RecordsObject *self, mds_request *request)
{
    const mds_status status = find_whole(request, rarely_now(self));
    if (status == MDS_OK)
        return mds_py_records_payload(self, request, NULL);
    mds_py_raise_unread_record(self, request, status);
    return NULL;
}

PyObject *mds_py_records_one(RecordsObject *self, SourceTable *table, PyObject *key, mds_request *request)
{
    PyObject *room = NULL, *payload;
    size_t s;
    if (records_request_one(self, table, key, request, &s) != 0)
        return NULL;
    if (is_read(request)) {
        payload = read_one(self, request, &room) == 0 ? mds_py_records_payload(self, request, room) : NULL;
        Py_XDECREF(room);
        return payload;
    }
    payload = (self->views ? view_mapped : copy_mapped)(self, request);
    if (payload && self->notice_order)
        LOCKED(self, mds_readahead_note(&self->readahead, request->source, request->span));
    return payload;
}

static PyObject *records_subscript(PyObject *object, PyObject *key)
{
    mds_request request = {0};
    SourceTable *table = mds_py_sources_hold((RecordsObject *)object);
    PyObject *payload = mds_py_records_one((RecordsObject *)object, table, key, &request);
    mds_py_sources_release(table);
    return payload;
}

int mds_py_is_records(PyObject *object)
{
    return PyType_GetSlot(Py_TYPE(object), Py_mp_subscript) == (void *)records_subscript;
}

/* Check that the source of a record has all of its bytes, if it is mapped. */
static PyObject *records_check(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    SourceTable *table = mds_py_sources_hold(self);
    mds_request request = {0};
    size_t s;
    int result = records_request_one(self, table, key, &request, &s);
    if (result == 0 && !is_read(&request))
        result = expect_found(self, &request, find_whole(&request, 0)); /* of this record alone */
    mds_py_sources_release(table);
    return result == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *records_copy(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    SourceTable *table = mds_py_sources_hold(self);
    mds_request request = {0};
    PyObject *room = NULL, *bytes = NULL;
    size_t s;
    if (records_request_one(self, table, key, &request, &s) == 0) {
        if (!is_read(&request))
            bytes = copy_mapped(self, &request);
        else if (read_one(self, &request, &room) == 0)
            bytes = make_bytes(self, &request, request.data);
    }
    Py_XDECREF(room);
    mds_py_sources_release(table);
    return bytes;
}

static Py_ssize_t records_length(PyObject *object)
{
    return (Py_ssize_t)((RecordsObject *)object)->count;
}

static PyObject *records_locate(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    SourceTable *table = mds_py_sources_hold(self);
    mds_request request = {0};
    PyObject *room = NULL;
    size_t s;
    int result = records_request_one(self, table, key, &request, &s);
    if (result == 0) {
        if (is_read(&request) && request.source->framing != MDS_FRAMING_NONE)
            result = read_one(self, &request, &room);
        else /* without its bytes: they may be many, and a large block cannot be read twice */
            result = expect_found(self, &request, find_one(&request));
    }
    Py_XDECREF(room);
    mds_py_sources_release(table);
    if (result != 0)
        return NULL;
    return Py_BuildValue("nKKK", (Py_ssize_t)s, (unsigned long long)request.i, (unsigned long long)request.span.begin,
                         (unsigned long long)request.span.end);
}

/* ---- the type ----------------------------------------------------------------------------------------------- */

static PyMethodDef records_methods[] = {
    {"locate", records_locate, METH_O,
     "locate($self, record, /)\n--\n\n"
     "Return (source number, record number in it, begin, end): the payload is bytes [begin, end) of that source.\n\n"
     "Raises IndexError, and what the opener raises, as self[record] does."},
    {"check", records_check, METH_O,
     "check($self, record, /)\n--\n\n"
     "Check that the source of a record, if it is mapped, still has all of its bytes.\n\n"
     "Raises what self[record] does."},
    {"copy", records_copy, METH_O,
     "copy($self, record, /)\n--\n\n"
     "Return the payload of a record as bytes, even if self[record] is a view.\n\n"
     "Raises what self[record] does."},
    {"fitting", mds_py_records_fitting, METH_VARARGS,
     "fitting($self, rows, room, /)\n--\n\n"
     "Return how many of the first rows have records of up to `room` bytes in total; reads only bounds."},
    {"forget", mds_py_records_forget, METH_NOARGS,
     "forget($self, /)\n--\n\n"
     "Close all sources; later reads open theirs again.\n\n"
     "A read that has begun, in any thread, keeps its sources open to its end; so do ArrayBatches and views while "
     "they\n"
     "exist. The opener may call this: the source that it opens is for the read that asked, and closes with it."},
    {"many", mds_py_records_many, METH_O,
     "many($self, rows, /)\n--\n\n"
     "Return a list of payloads by record number; requests all pages before it reads the first.\n\n"
     "Raises IndexError, and what the opener raises, as self[record] does."},
    {"decode", mds_py_records_decode, METH_VARARGS,
     "decode($self, rows, decode, refused, /)\n--\n\n"
     "Return a list of decode(payload) for the payloads of many(rows); holds few payloads at a time.\n\n"
     "refused(k, error) raises the error of the decoder for rows[k]; it gets an Exception only.\n\n"
     "Raises what many raises, and what these two raise."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot records_slots[] = {
    {Py_tp_doc,
     "Records(firsts, opener, readahead, will_need, views)\n--\n\n"
     "The payloads of all records behind a list of sources, numbered through; sources open at first use.\n\n"
     "firsts: u64, shape (sources + 1,): the first record number of each source, and the number of records.\n"
     "opener.open(source) returns (map, index, bounds, width, framing, first, stride): index is the map that holds "
     "the\n"
     "bounds, in groups of numbers of `width` bytes as pack_bounds makes them, from byte `bounds` on; without them,\n"
     "stride is the size of every record, and the first begins at byte `first`.\n"
     "For a compressed source, map is a reader: reader.size is that of the content, and reader.blocks(wanted) yields\n"
     "(begin, pieces) of each block with some of the wanted bytes, which are ascending pairs of u64 bounds.\n"
     "opener.corrupt(source, record, begin, end, size) raises the error for bounds that do not fit the source, and\n"
     "opener.lost(source, errno) that for a source or an index that became shorter (errno 0) or is unreadable.\n"
     "opener.no_room(source, record, begin, size, count) raises MemoryError for that many records of `size` "
     "bytes\n"
     "together, and names the largest.\n"
     "readahead: detect sequential reads. will_need: request cold pages. views: return memoryviews.\n\n"
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

int mds_py_add_records(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    return mds_py_add_type(module, &records_spec, &state->records_type);
}
