/* py_json_batch.c - batches of JSON records, read field by field. */
#include "binding.h"

#include <stdlib.h>

/* Fields of some records, read into memory of the batch. */
typedef struct {
    PyObject_HEAD PyObject *fields; /* JsonFieldsObject */
    size_t n;                       /* number of read records */
    size_t refused;
    size_t *places; /* position in `rows` of each read record */
    mds_value *values;
    mds_items *items;
    mds_refusal *refusals;
} JsonBatchObject;

static const JsonFieldsObject *fields_of(const JsonBatchObject *self)
{
    return (const JsonFieldsObject *)self->fields;
}

static void json_batch_dealloc(PyObject *object)
{
    JsonBatchObject *self = (JsonBatchObject *)object;
    mds_py_free_items(self->items, fields_of(self)->count);
    PyMem_Free(self->values);
    PyMem_Free(self->places);
    PyMem_Free(self->refusals);
    Py_DECREF(self->fields);
    mds_py_free(object);
}

/* Grow the room of items to the wanted size, with some spare room if they had any before; 0 without memory. */
static int grow(const mds_wanted *field, mds_items *items, uint64_t wanted)
{
    const uint64_t room = wanted > items->room + items->room / 2 ? wanted : items->room + items->room / 2;
    if (wanted <= items->room)
        return 1;
    if (room > PY_SSIZE_T_MAX / 8)
        return 0;
    uint8_t *memory = realloc(items->items, (size_t)room * field->size);
    if (!memory)
        return 0;
    items->items = memory;
    if (field->layout == MDS_LAYOUT_RAGGED) {
        uint64_t *ends = realloc(items->ends, (size_t)room * sizeof *ends);
        if (!ends)
            return 0;
        items->ends = ends;
    }
    items->room = room;
    return 1;
}

#define SMALL_BATCH (1 << 20) /* bytes of records: up to this size, take all possible room at once */

/* The room to begin with. */
static void want_first_room(mds_fields_batch *work)
{
    uint64_t bytes = 0;
    for (size_t k = 0; k < work->n; k++)
        bytes += work->requests[k].span.end - work->requests[k].span.begin;
    for (size_t f = 0; f < work->count; f++) {
        const int is_text = work->fields[f].kind == MDS_ITEM_TEXT;
        work->wanted[f] = bytes <= SMALL_BATCH ? (is_text ? bytes : bytes / 2) + work->n : bytes / 4;
    }
}

/* Read records until all are read, or items lack room; *at is the current record. */
static mds_status read_some(mds_fields_batch *work, int *done, volatile size_t *at)
{
    mds_guard guard;
    if (MDS_GUARD(&guard)) {
        *at = work->next < work->n ? work->next : 0;
        return MDS_SHRANK;
    }
    *done = mds_fields_read_many(mds_py_kernels, work);
    const mds_status status = *done ? mds_records_were_whole(work->requests, work->n, at) : MDS_OK;
    mds_guard_leave();
    return status;
}

/* Read all records; *full becomes 1 if there is no memory. */
static mds_status read_all(mds_fields_batch *work, int *full, volatile size_t *at)
{
    mds_status status = MDS_OK;
    int done = 0;
    want_first_room(work);
    while (status == MDS_OK && !done) {
        for (size_t f = 0; f < work->count; f++)
            if (!grow(&work->fields[f], &work->items[f], work->wanted[f])) {
                *full = 1;
                return MDS_OK;
            }
        status = read_some(work, &done, at);
    }
    return status;
}

static int take_memory(JsonBatchObject *self, mds_fields_batch *work)
{
    size_t values;
    if (__builtin_mul_overflow(work->n, work->count, &values) || values > PY_SSIZE_T_MAX / sizeof *self->values)
        return 0;
    self->values = PyMem_Malloc((values + 1) * sizeof *self->values);
    self->items = PyMem_Calloc(work->count + 1, sizeof *self->items);
    self->places = PyMem_Malloc((work->n + 1) * sizeof *self->places);
    self->refusals = PyMem_Malloc(((work->skip ? work->n : 0) + 1) * sizeof *self->refusals);
    work->wanted = PyMem_Malloc((work->count + 1) * sizeof *work->wanted);
    work->values = self->values;
    work->items = self->items;
    work->places = self->places;
    work->refusals = self->refusals;
    return self->values && self->items && self->places && self->refusals && work->wanted;
}

/* Read the fields of a batch that was fetched; -1 with an exception. */
static int read_batch(JsonBatchObject *self, const RecordsObject *records, const mds_py_batch *batch, int skip)
{
    const JsonFieldsObject *fields = fields_of(self);
    mds_fields_batch work = {.fields = fields->fields,
                             .count = (size_t)fields->count,
                             .requests = batch->requests,
                             .n = (size_t)batch->n,
                             .skip = skip};
    volatile size_t at = 0;
    int full = 0;
    mds_status status = MDS_OK;
    if (take_memory(self, &work))
        RELEASE_GIL(status = read_all(&work, &full, &at));
    else
        full = 1;
    PyMem_Free(work.wanted);
    self->n = work.kept;
    self->refused = work.refused;
    if (full)
        mds_py_raise_no_room(records, batch->requests, batch->n);
    else if (status != MDS_OK)
        mds_py_raise_unread_record(records, &batch->requests[at], status);
    return full || status != MDS_OK ? -1 : 0;
}

static PyObject *json_batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", "rows", "fields", "skip", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    PyObject *records, *rows, *fields;
    int skip;
    mds_py_batch batch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!p:JsonBatch", names, state->records_type, &records, &rows,
                                     state->json_fields_type, &fields, &skip))
        return NULL;
    JsonBatchObject *self = (JsonBatchObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->fields = Py_NewRef(fields);
    int result = mds_py_batch_fetch((RecordsObject *)records, rows, &batch);
    if (result == 0) {
        result = read_batch(self, (RecordsObject *)records, &batch, skip);
        mds_py_batch_free(&batch);
    }
    if (result == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static Py_ssize_t json_batch_length(PyObject *object)
{
    return (Py_ssize_t)((JsonBatchObject *)object)->n;
}

static PyObject *json_batch_item(PyObject *object, Py_ssize_t k)
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    if (k >= 0 && (size_t)k < self->n)
        return mds_py_json_sample(fields_of(self), self->items, self->values + k * fields_of(self)->count);
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zu records", k, self->n);
    return NULL;
}

/* The number of a field, from a Python int; -1 with an exception. */
static Py_ssize_t batch_field(const JsonBatchObject *self, PyObject *key)
{
    return mds_py_batch_field(key, fields_of(self)->count);
}

static const mds_value *value_at(const JsonBatchObject *self, size_t k, Py_ssize_t f)
{
    return &self->values[k * (size_t)fields_of(self)->count + (size_t)f];
}

static PyObject *json_batch_values(PyObject *object, PyObject *key)
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key);
    PyObject *list = f < 0 ? NULL : PyList_New((Py_ssize_t)self->n);
    for (size_t k = 0; list && k < self->n; k++) {
        PyObject *value = mds_py_json_value(fields_of(self), f, &self->items[f], value_at(self, k, f));
        if (!value)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)k, value);
    }
    return list;
}

static PyObject *json_batch_items(PyObject *object, PyObject *key)
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key);
    if (f < 0)
        return NULL;
    return PyByteArray_FromStringAndSize((const char *)self->items[f].items,
                                         (Py_ssize_t)(self->items[f].used * fields_of(self)->fields[f].size));
}

static PyObject *json_batch_shapes(PyObject *object, PyObject *key)
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key), stride = fields_of(self)->count;
    if (f < 0)
        return NULL;
    const size_t dims = self->n ? value_at(self, 0, f)->dims : 0;
    PyObject *shapes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(self->n * dims * 8));
    uint64_t *out = shapes ? (uint64_t *)PyBytes_AsString(shapes) : NULL; /* still private to this call */
    int alike = 0;
    if (out)
        RELEASE_GIL(alike = mds_fields_shapes(self->values + f, (size_t)stride, self->n, dims, out));
    PyObject *result = alike ? Py_BuildValue("nO", (Py_ssize_t)dims, shapes) : shapes ? Py_NewRef(Py_None) : NULL;
    Py_XDECREF(shapes);
    return result;
}

static size_t pieces_of(const PyObject *object, size_t f, uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    const JsonBatchObject *self = (const JsonBatchObject *)object;
    const unsigned size = fields_of(self)->fields[f].size;
    if (row % size)
        return 0;
    return mds_fields_pieces(self->values + f, (size_t)fields_of(self)->count, self->n, self->items[f].items, size,
                             longest, left, row / size, pieces);
}

static PyObject *json_batch_join(PyObject *object, PyObject *args)
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    const mds_py_joined batch = {object, self->n, fields_of(self)->count, pieces_of, NULL, NULL};
    return mds_py_batch_join(&batch, args);
}

static PyObject *json_batch_places(PyObject *object, void *Py_UNUSED(closure))
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    return PyBytes_FromStringAndSize((const char *)self->places, (Py_ssize_t)(self->n * sizeof *self->places));
}

static PyObject *json_batch_refused(PyObject *object, void *Py_UNUSED(closure))
{
    const JsonBatchObject *self = (JsonBatchObject *)object;
    PyObject *list = PyList_New((Py_ssize_t)self->refused);
    for (size_t k = 0; list && k < self->refused; k++) {
        PyObject *why = mds_py_json_refusal(fields_of(self), &self->refusals[k]);
        PyObject *pair = why ? Py_BuildValue("nN", (Py_ssize_t)self->refusals[k].request, why) : NULL;
        if (!pair)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)k, pair);
    }
    return list;
}

static PyMethodDef json_batch_methods[] = {
    {"values", json_batch_values, METH_O,
     "values($self, field, /)\n--\n\n"
     "Return a field's value in each record as a list, as in the dicts of JsonFields."},
    {"items", json_batch_items, METH_O,
     "items($self, field, /)\n--\n\n"
     "Return a copy of all items of a field, record after record, as a bytearray."},
    {"shapes", json_batch_shapes, METH_O,
     "shapes($self, field, /)\n--\n\n"
     "Return (axes, shapes): how many axes the arrays have, 0 for single items, and u64, shape (records, axes).\n\n"
     "None unless all have the same number of axes."},
    {"join", json_batch_join, METH_VARARGS,
     "join($self, field, cut, row, begins, fill, out, /)\n--\n\n"
     "Write the arrays of a field one after another into out, each from its byte of begins on, and fill between "
     "them.\n\n"
     "cut: (longest, left): keep up to `longest` entries of `row` bytes, the last ones with left. begins: None for\n"
     "equal rows. fill: 8 bytes, repeated.\n\n"
     "Raises ValueError when the entries have another size, or do not fit one after another."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef json_batch_attributes[] = {
    {"places", json_batch_places, NULL, "u64, shape (records,): where in rows each record that was read is.", NULL},
    {"refused", json_batch_refused, NULL, "A list of (place in rows, (one of WANTED_*, name or None, byte)).", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot json_batch_slots[] = {
    {Py_tp_doc, "JsonBatch(records, rows, fields, skip)\n--\n\n"
                "The fields of a batch of JSON records; an item is the dict of a record.\n\n"
                "Reading stops at the first record that fields refuse; with skip, it skips these records.\n\n"
                "Raises IndexError for a row out of range, and the error of records for an unreadable record."},
    {Py_tp_new, json_batch_new},
    {Py_tp_dealloc, json_batch_dealloc},
    {Py_tp_methods, json_batch_methods},
    {Py_tp_getset, json_batch_attributes},
    {Py_sq_length, json_batch_length},
    {Py_sq_item, json_batch_item},
    {0, NULL},
};

static PyType_Spec json_batch_spec = {"mmapds._native.JsonBatch", sizeof(JsonBatchObject), 0, Py_TPFLAGS_DEFAULT,
                                      json_batch_slots};

int mds_py_add_json_batch(PyObject *module)
{
    return mds_py_add_type(module, &json_batch_spec, NULL);
}
