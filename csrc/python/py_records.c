/* py_records.c - the payloads of all records behind a list of sources. */
#include "binding.h"

#include <stdlib.h>

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
            if (self->slots[s].map) {
                PyBuffer_Release(&self->slots[s].bounds);
                Py_DECREF(self->slots[s].view);
                Py_DECREF(self->slots[s].map);
            }
        }
        free(self->slots);
    }
    PyMem_Free(self->firsts);
    mds_py_free(object);
}

/* Ask the opener for source `s`: (map, bounds, framing, first, stride), without bounds if stride is not 0. If
 * another thread was quicker, its result stays. */
static const mds_source *records_open(RecordsObject *self, size_t s)
{
    const mds_py_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *opened = PyObject_CallMethod(self->opener, "open", "n", (Py_ssize_t)s);
    if (!opened)
        return NULL;
    PyObject *map, *bounds;
    int framing;
    SourceSlot *slot = &self->slots[s];
    unsigned long long first, stride;
    const mds_source *source = NULL;
    MDS_PY_BUFFERS(buffers, 1);
    if (mds_py_expect_tuple(opened, "opener.open") != 0 ||
        !PyArg_ParseTuple(opened, "O!OiO&O&:open", state->map_type, &map, &bounds, &framing, mds_py_size, &first,
                          mds_py_size, &stride))
        goto done;
    const uint64_t count = self->firsts[s + 1] - self->firsts[s];
    const uint64_t *offsets =
        mds_py_take_words(&buffers, bounds, MDS_PY_READ, stride ? 0 : (size_t)count + 1, "bounds");
    PyObject *memory = offsets ? PyMemoryView_FromObject(map) : NULL;
    if (!memory)
        goto done;
    source = &slot->source;
    if (slot->map) {
        Py_DECREF(memory);
        goto done;
    }
    /* All at once: from the last look at slot->map on, no other Python code runs. */
    slot->map = Py_NewRef(map);
    slot->view = memory;
    slot->bounds = buffers.views[0]; /* the slot gives it back */
    buffers.count = 0;
    slot->source =
        (mds_source){((MapObject *)map)->map, stride ? NULL : offsets, first, stride, count, (mds_framing)framing};
done:
    mds_py_give_back(&buffers);
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

static void raise_corrupt(RecordsObject *self, const mds_source *source, uint64_t i, mds_span span)
{
    const size_t s = (size_t)((const SourceSlot *)((const char *)source - offsetof(SourceSlot, source)) - self->slots);
    PyObject *result = PyObject_CallMethod(self->opener, "corrupt", "nKKKK", (Py_ssize_t)s, (unsigned long long)i,
                                           (unsigned long long)span.begin, (unsigned long long)span.end,
                                           (unsigned long long)source->map.size);
    Py_XDECREF(result);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "opener.corrupt: expected an exception, found none");
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

PyObject *mds_py_records_payload(const RecordsObject *self, const mds_source *source, mds_span span)
{
    if (self->views) {
        const SourceSlot *slot = (const SourceSlot *)((const char *)source - offsetof(SourceSlot, source));
        return PySequence_GetSlice(slot->view, (Py_ssize_t)span.begin, (Py_ssize_t)span.end);
    }
    return PyBytes_FromStringAndSize((const char *)source->map.data + span.begin, (Py_ssize_t)(span.end - span.begin));
}

/* Find the bytes of a record, framing included, and open its source; NULL with an exception. */
static const mds_source *records_span(RecordsObject *self, PyObject *key, size_t *source_number, uint64_t *i,
                                      mds_span *span)
{
    uint64_t record;
    if (records_number(self, key, &record) != 0)
        return NULL;
    const mds_source *source = records_find(self, record, source_number, i);
    if (!source || mds_record_span(source, *i, span) == MDS_OK)
        return source;
    raise_corrupt(self, source, *i, *span);
    return NULL;
}

static PyObject *records_subscript(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    uint64_t i;
    size_t s;
    mds_span span;
    const mds_source *source = records_span(self, key, &s, &i, &span);
    if (!source)
        return NULL;
    if (self->notice_order)
        mds_readahead_note(&self->readahead, source, span);
    return mds_py_records_payload(self, source, mds_record_payload(source, span));
}

static Py_ssize_t records_length(PyObject *object)
{
    return (Py_ssize_t)((RecordsObject *)object)->count;
}

static PyObject *records_locate(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    uint64_t i;
    size_t s;
    mds_span span;
    const mds_source *source = records_span(self, key, &s, &i, &span);
    if (!source)
        return NULL;
    span = mds_record_payload(source, span);
    return Py_BuildValue("nKKK", (Py_ssize_t)s, (unsigned long long)i, (unsigned long long)span.begin,
                         (unsigned long long)span.end);
}

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

mds_request *mds_py_records_fetch(RecordsObject *self, PyObject *rows, Py_ssize_t *n)
{
    *n = PySequence_Size(rows);
    if (*n < 0)
        return NULL;
    mds_request *requests = PyMem_Calloc((size_t)*n + 1, sizeof *requests);
    mds_request **order = PyMem_Calloc((size_t)*n + 1, sizeof *order);
    mds_status status = MDS_SYSTEM;
    if (!requests || !order) {
        PyErr_NoMemory();
    } else if (records_request(self, rows, requests, *n) == 0) {
        size_t failed = 0;
        unsigned cold = self->cold; /* a copy: other threads use the original meanwhile */
        RELEASE_GIL(status = mds_records_fetch(requests, order, (size_t)*n, self->will_need ? &cold : NULL, &failed));
        self->cold = cold;
        if (status != MDS_OK)
            raise_corrupt(self, requests[failed].source, requests[failed].i, requests[failed].span);
    }
    PyMem_Free(order);
    if (status == MDS_OK)
        return requests;
    PyMem_Free(requests);
    return NULL;
}

static PyObject *records_many(PyObject *object, PyObject *rows)
{
    RecordsObject *self = (RecordsObject *)object;
    Py_ssize_t n;
    mds_request *requests = mds_py_records_fetch(self, rows, &n);
    PyObject *list = requests ? PyList_New(n) : NULL;
    for (Py_ssize_t k = 0; list && k < n; k++) {
        PyObject *payload = mds_py_records_payload(self, requests[k].source, requests[k].span);
        if (!payload)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, payload);
    }
    PyMem_Free(requests);
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
     "opener.open(source) returns (map, bounds, framing, first, stride): bounds is u64, shape (records + 1,),\n"
     "or empty if stride is the size of every record; the first begins at byte `first`.\n"
     "opener.corrupt(source, record, begin, end, size) raises the error for bounds that do not fit the source.\n"
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
