/* py_array_batch.c - batches of records of named arrays, taken field by field. */
#include "binding.h"

/* Records of named arrays, located and checked, but not made into Python objects yet. */
typedef struct {
    PyObject_HEAD PyObject *records; /* RecordsObject: raises for what cannot be read */
    PyObject *fields;                /* ArrayFieldsObject */
    mds_py_batch batch;
    mds_array_value *values; /* of record k, from k * fields->count on */
} ArrayBatchObject;

static void array_batch_dealloc(PyObject *object)
{
    ArrayBatchObject *self = (ArrayBatchObject *)object;
    Py_DECREF(self->records);
    Py_DECREF(self->fields);
    mds_py_batch_free(&self->batch);
    PyMem_Free(self->values);
    mds_py_free(object);
}

/* Raise if a source became shorter during reads; `k` is the record of the error. */
static int check_whole(const ArrayBatchObject *self, mds_status status, size_t k)
{
    if (status == MDS_OK)
        return 0;
    mds_py_raise_unread_record((RecordsObject *)self->records, &self->batch.requests[k], status);
    return -1;
}

/* Find the fields of all records; *found is the number of good ones. *cut is a record whose source became shorter. */
static mds_status locate_fields(const ArrayBatchObject *self, const ArrayFieldsObject *fields, size_t *found,
                                size_t *failed, volatile size_t *cut)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    *found = mds_array_records(fields->fields, (size_t)fields->count, self->batch.requests, (size_t)self->batch.n,
                               self->values, failed);
    const mds_status status = mds_records_were_whole(self->batch.requests, (size_t)self->batch.n, cut);
    mds_guard_leave();
    return status;
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
    if (mds_py_batch_fetch((RecordsObject *)records, rows, &self->batch) != 0)
        goto fail;
    size_t values;
    if (__builtin_mul_overflow((size_t)self->batch.n, (size_t)fields->count, &values) ||
        !(self->values = PyMem_Calloc(values + 1, sizeof *self->values))) {
        PyErr_NoMemory();
        goto fail;
    }
    size_t k = 0, failed = 0;
    volatile size_t cut = 0;
    mds_status status;
    RELEASE_GIL(status = locate_fields(self, fields, &k, &failed, &cut));
    if (check_whole(self, status, cut) != 0)
        goto fail;
    if (k == (size_t)self->batch.n)
        return (PyObject *)self;
    const mds_span span = self->batch.requests[k].span;
    PyObject *reason = mds_py_array_fields_reason(fields, failed, (Py_ssize_t)(span.end - span.begin));
    PyObject *raised = reason ? Py_BuildValue("Nn", reason, (Py_ssize_t)k) : NULL;
    if (raised)
        PyErr_SetObject(fields->error, raised);
    Py_XDECREF(raised);
fail:
    Py_DECREF(self);
    return NULL;
}

static Py_ssize_t array_batch_length(PyObject *object)
{
    return ((ArrayBatchObject *)object)->batch.n;
}

static PyObject *array_batch_item(PyObject *object, Py_ssize_t k)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    if (k >= 0 && k < self->batch.n)
        return mds_py_batch_payload((RecordsObject *)self->records, &self->batch, k);
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zd record%s", k, self->batch.n,
                 self->batch.n == 1 ? "" : "s");
    return NULL;
}

static PyObject *array_batch_check(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    Py_ssize_t k = PyNumber_AsSsize_t(key, PyExc_IndexError);
    k += k < 0 && !PyErr_Occurred() ? self->batch.n : 0;
    if (k >= 0 && k < self->batch.n) {
        const int status = mds_py_records_check((RecordsObject *)self->records, &self->batch.requests[k]);
        return status == 0 ? Py_NewRef(Py_None) : NULL;
    }
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zd records", k, self->batch.n);
    return NULL;
}

/* The number of a field, from a Python int; -1 with an exception. */
static Py_ssize_t batch_field(const ArrayBatchObject *self, PyObject *key)
{
    return mds_py_batch_field(key, ((ArrayFieldsObject *)self->fields)->count);
}

/* Check that the sources were whole while values were copied. */
static mds_status was_whole(const ArrayBatchObject *self, volatile size_t *failed)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    const mds_status status = mds_records_were_whole(self->batch.requests, (size_t)self->batch.n, failed);
    mds_guard_leave();
    return status;
}

static PyObject *array_batch_values(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    PyObject *list = f < 0 ? NULL : PyList_New(self->batch.n);
    volatile size_t failed = 0;
    for (Py_ssize_t k = 0; list && k < self->batch.n; k++) {
        const mds_array_value *value = &self->values[k * fields->count + f];
        PyObject *made = mds_py_array_value(fields, f, NULL, (const char *)self->batch.requests[k].data, value);
        if (!made)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, made);
        if (!made && PyErr_ExceptionMatches(PyExc_EOFError)) {
            PyErr_Clear();
            check_whole(self, MDS_SHRANK, (size_t)k);
        }
    }
    if (list && check_whole(self, was_whole(self, &failed), failed) != 0)
        Py_CLEAR(list);
    return list;
}

static PyObject *array_batch_shapes(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    if (f < 0)
        return NULL;
    const size_t dims = fields->fields[f].dims;
    PyObject *shapes = PyBytes_FromStringAndSize(NULL, self->batch.n * (Py_ssize_t)dims * 8);
    uint64_t *out = shapes ? (uint64_t *)PyBytes_AsString(shapes) : NULL; /* still private to this call */
    if (out)
        RELEASE_GIL(mds_array_shapes(self->values + f, (size_t)fields->count, (size_t)self->batch.n, dims, out));
    return shapes;
}

static PyObject *array_batch_words(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key), count = ((ArrayFieldsObject *)self->fields)->count;
    if (f < 0)
        return NULL;
    PyObject *words = PyByteArray_FromStringAndSize(NULL, 8 * self->batch.n);
    uint64_t *out = words ? (uint64_t *)PyByteArray_AsString(words) : NULL; /* still private to this call */
    if (out)
        RELEASE_GIL(mds_array_words(self->values + f, (size_t)count, (size_t)self->batch.n, out));
    return words;
}

static size_t pieces_of(const PyObject *object, size_t f, uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    const ArrayBatchObject *self = (const ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (const ArrayFieldsObject *)self->fields;
    if (fields->fields[f].kind != MDS_ARRAY_ITEMS || !fields->fields[f].dims)
        return 0;
    return mds_array_pieces(self->batch.requests, self->values + f, (size_t)fields->count, (size_t)self->batch.n,
                            longest, left, row, pieces);
}

static PyObject *array_batch_join(PyObject *object, PyObject *args)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const mds_py_joined batch = {object,    (size_t)self->batch.n,          ((ArrayFieldsObject *)self->fields)->count,
                                 pieces_of, (RecordsObject *)self->records, self->batch.requests};
    return mds_py_batch_join(&batch, args);
}

static PyMethodDef array_batch_methods[] = {
    {"check", array_batch_check, METH_O,
     "check($self, k, /)\n--\n\n"
     "Check that the source of a record, if it is mapped, still has all of its bytes. Call it after reading them.\n\n"
     "Raises what Records does."},
    {"values", array_batch_values, METH_O,
     "values($self, field, /)\n--\n\n"
     "Return a field's value in each record as a list, as in the dicts of ArrayFields; arrays are copies.\n\n"
     "Raises IndexError if there is no such field, and the error that decoding a value raises."},
    {"words", array_batch_words, METH_O,
     "words($self, field, /)\n--\n\n"
     "Return u64, shape (records,): the bits of numbers, the sizes of text, or the lengths of first axes.\n\n"
     "The result is a bytearray, because torch.from_numpy expects writable memory."},
    {"shapes", array_batch_shapes, METH_O,
     "shapes($self, field, /)\n--\n\n"
     "Return u64, shape (records, axes): the shape of each array.\n\n"
     "The result is bytes: shapes are only read."},
    {"join", array_batch_join, METH_VARARGS,
     "join($self, field, cut, row, begins, fill, out, /)\n--\n\n"
     "Write the arrays of a field one after another into out, each from its byte of begins on, and fill between "
     "them.\n\n"
     "cut: (longest, left): keep up to `longest` entries of `row` bytes, the last ones with left. begins: None for\n"
     "equal rows. fill: 8 bytes, repeated.\n\n"
     "Raises ValueError when the entries have another size, or do not fit one after another."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_batch_slots[] = {
    {Py_tp_doc, "ArrayBatch(records, rows, fields)\n--\n\n"
                "Records of named arrays, located and checked; an item is the payload of a record.\n\n"
                "Raises IndexError for a row out of range, and for a damaged record the error of fields with\n"
                "(reason, position in rows)."},
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
