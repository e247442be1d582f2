/* py_array_batch.c - batches of records of named arrays, taken field by field. */
#include "binding.h"

#include <string.h>

/* Records of named arrays, found and measured, none of which has become a Python object yet. */
typedef struct {
    PyObject_HEAD
    PyObject *records; /* RecordsObject: its maps are where the payloads lie */
    PyObject *fields;  /* ArrayFieldsObject */
    Py_ssize_t n;
    mds_request *requests;
    mds_array_value *values; /* of record k, from k * fields->count on */
} ArrayBatchObject;

static void array_batch_dealloc(PyObject *object)
{
    ArrayBatchObject *self = (ArrayBatchObject *)object;
    Py_XDECREF(self->records);
    Py_XDECREF(self->fields);
    PyMem_Free(self->requests);
    PyMem_Free(self->values);
    mds_py_free(object);
}

static const uint8_t *batch_record(const ArrayBatchObject *self, Py_ssize_t k)
{
    return self->requests[k].source->map.data + self->requests[k].span.begin;
}

static PyObject *array_batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", "rows", "fields", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    PyObject *records, *rows, *given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!:ArrayBatch", names, state->records_type, &records, &rows,
                                     state->array_fields_type, &given))
        return NULL;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)given;
    ArrayBatchObject *self = (ArrayBatchObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->records = Py_NewRef(records);
    self->fields = Py_NewRef(given);
    self->requests = mds_py_records_fetch((RecordsObject *)records, rows, &self->n);
    if (!self->requests)
        goto fail;
    self->values = PyMem_Calloc((size_t)(self->n * fields->count) + 1, sizeof *self->values);
    if (!self->values) {
        PyErr_NoMemory();
        goto fail;
    }
    Py_ssize_t k = 0;
    int whole = 1;
    size_t failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; whole && k < self->n; k++) {
        uint64_t size;
        const mds_span span = self->requests[k].span;
        whole = mds_array_record(fields->fields, (size_t)fields->count, batch_record(self, k), span.end - span.begin,
                                 self->values + k * fields->count, &size, &failed);
    }
    Py_END_ALLOW_THREADS
    if (whole)
        return (PyObject *)self;
    const mds_span span = self->requests[k - 1].span;
    PyObject *reason = mds_py_array_fields_reason(fields, failed, (Py_ssize_t)(span.end - span.begin));
    PyObject *raised = reason ? Py_BuildValue("Nn", reason, k - 1) : NULL;
    if (raised)
        PyErr_SetObject(fields->error, raised);
    Py_XDECREF(raised);
fail:
    Py_DECREF(self);
    return NULL;
}

static Py_ssize_t array_batch_length(PyObject *object)
{
    return ((ArrayBatchObject *)object)->n;
}

static PyObject *batch_view(const ArrayBatchObject *self, Py_ssize_t k)
{
    return mds_py_records_payload((RecordsObject *)self->records, self->requests[k].source, self->requests[k].span);
}

static PyObject *array_batch_item(PyObject *object, Py_ssize_t k)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    if (k >= 0 && k < self->n)
        return batch_view(self, k);
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zd records", k, self->n);
    return NULL;
}

/* The number of a field, from a Python int; -1 with an exception. */
static Py_ssize_t batch_field(const ArrayBatchObject *self, PyObject *key)
{
    const Py_ssize_t f = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (f >= 0 && f < ((ArrayFieldsObject *)self->fields)->count)
        return f;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "field %zd is out of range", f);
    return -1;
}

static PyObject *array_batch_values(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    PyObject *list = f < 0 ? NULL : PyList_New(self->n);
    for (Py_ssize_t k = 0; list && k < self->n; k++) {
        const mds_array_value *value = &self->values[k * fields->count + f];
        PyObject *view = batch_view(self, k);
        PyObject *made = view ? mds_py_array_value(fields, f, view, (const char *)batch_record(self, k), value) : NULL;
        Py_XDECREF(view);
        if (!made)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, made);
    }
    return list;
}

static PyObject *array_batch_shapes(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    if (f < 0)
        return NULL;
    const size_t size = 8 * fields->fields[f].dims;
    PyObject *shapes = PyBytes_FromStringAndSize(NULL, self->n * (Py_ssize_t)size);
    char *out = shapes ? PyBytes_AsString(shapes) : NULL;
    for (Py_ssize_t k = 0; out && k < self->n; k++)
        memcpy(out + (size_t)k * size, self->values[k * fields->count + f].shape, size);
    return shapes;
}

static PyObject *array_batch_words(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key), count = ((ArrayFieldsObject *)self->fields)->count;
    if (f < 0)
        return NULL;
    PyObject *words = PyByteArray_FromStringAndSize(NULL, 8 * self->n);
    char *out = words ? PyByteArray_AsString(words) : NULL;
    for (Py_ssize_t k = 0; out && k < self->n; k++)
        memcpy(out + 8 * k, &self->values[k * count + f].word, 8);
    return words;
}

/* Where the rows of an array field lie, cut to `longest`; 0 where one has other bytes in a row than `row`. */
static int batch_pieces(const ArrayBatchObject *self, Py_ssize_t f, uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    for (Py_ssize_t k = 0; k < self->n; k++) {
        const mds_array_value *value = &self->values[k * fields->count + f];
        const uint64_t rows = value->shape[0], kept = rows < longest ? rows : longest;
        if (rows ? value->size / rows != row || value->size % rows : value->size != 0)
            return 0;
        const uint8_t *data = batch_record(self, k) + value->begin + (left ? (rows - kept) * row : 0);
        pieces[k] = (mds_piece){data, (size_t)(kept * row)};
    }
    return 1;
}

static PyObject *array_batch_pad(PyObject *object, PyObject *args)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    PyObject *key, *result = NULL;
    unsigned long long longest, row, fill;
    int left;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "OKpKKw*:pad", &key, &longest, &left, &row, &fill, &out))
        return NULL;
    const Py_ssize_t f = batch_field(self, key);
    const size_t width = self->n ? (size_t)(out.len / self->n) : 0;
    mds_piece *pieces = f < 0 ? NULL : PyMem_Calloc((size_t)self->n + 1, sizeof *pieces);
    if (f >= 0 && !pieces) {
        PyErr_NoMemory();
    } else if (pieces) {
        const mds_array_field *field = &((ArrayFieldsObject *)self->fields)->fields[f];
        const int fits = row == 0 ? width == 0 : longest <= width / row && (size_t)out.len == width * (size_t)self->n;
        if (field->kind != MDS_ARRAY_ITEMS || !field->dims || !fits || !batch_pieces(self, f, longest, left, row, pieces)) {
            PyErr_SetString(PyExc_ValueError, "pad: expected a field of arrays that differ in the first axis alone, and room");
        } else {
            Py_BEGIN_ALLOW_THREADS
            mds_pad_rows(pieces, (size_t)self->n, width, fill, out.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    PyMem_Free(pieces);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef array_batch_methods[] = {
    {"values", array_batch_values, METH_O, "values(field) -> list of a field's values, as in the dicts of ArrayFields"},
    {"words", array_batch_words, METH_O, "words(field) -> 64 bits a record: its number, or its size"},
    {"shapes", array_batch_shapes, METH_O, "shapes(field) -> u64 for each axis of each array"},
    {"pad", array_batch_pad, METH_VARARGS,
     "pad(field, longest, left, row, fill, out): write arrays of `row` bytes an entry into equal rows of `out`"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_batch_slots[] = {
    {Py_tp_doc, "Records of named arrays, found and measured; an item is the payload of one."},
    {Py_tp_new, array_batch_new},
    {Py_tp_dealloc, array_batch_dealloc},
    {Py_tp_methods, array_batch_methods},
    {Py_sq_length, array_batch_length},
    {Py_sq_item, array_batch_item},
    {0, NULL},
};

static PyType_Spec array_batch_spec = {"mmapds._native.ArrayBatch", sizeof(ArrayBatchObject), 0, Py_TPFLAGS_DEFAULT,
                                       array_batch_slots};

int mds_py_add_array_batch(PyObject *module)
{
    return mds_py_add_type(module, &array_batch_spec, NULL);
}
