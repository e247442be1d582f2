/* py_array_fields.c - records of named arrays, made into dicts one at a time. */
#include "binding.h"

#include <string.h>

static void array_fields_dealloc(PyObject *object)
{
    ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    for (Py_ssize_t f = 0; self->slots && f < self->count; f++) {
        Py_XDECREF(self->slots[f].name);
        Py_XDECREF(self->slots[f].dtype);
        Py_XDECREF(self->slots[f].shape);
    }
    PyMem_Free(self->slots);
    PyMem_Free(self->fields);
    Py_DECREF(self->make_array);
    Py_DECREF(self->loads);
    Py_DECREF(self->error);
    mds_py_free(object);
}

/* Parse a field, (name, type, bytes of an item, shape, dtype); None in a shape is a ragged axis. */
static int parse_array_field(PyObject *given, FieldSlot *slot, mds_array_field *field)
{
    PyObject *name, *shape, *dtype;
    int type;
    unsigned long long item;
    if (mds_py_expect_tuple(given, "fields") != 0 ||
        !PyArg_ParseTuple(given, "UiO&O!O:fields", &name, &type, mds_py_size, &item, &PyTuple_Type, &shape, &dtype))
        return -1;
    const Py_ssize_t dims = PyTuple_Size(shape);
    if (type < FIELD_UINT || type > FIELD_COPY || dims > MDS_ARRAY_DIMS || item > UINT32_MAX) {
        PyErr_Format(
            PyExc_ValueError,
            "field %R: expected one of FIELD_*, up to %d axes and items of fewer than 2^32 bytes, found %d, %zd "
            "and %llu",
            name, MDS_ARRAY_DIMS, type, dims, item);
        return -1;
    }
    int ragged = 0;
    for (Py_ssize_t d = 0; d < dims; d++) {
        PyObject *axis = PyTuple_GetItem(shape, d);
        ragged |= axis == Py_None;
        if (mds_py_parse_offset(axis, &field->shape[d]) != 0)
            return -1;
        if (axis != Py_None && field->shape[d] == MDS_NONE) {
            PyErr_Format(PyExc_ValueError, "field %R: expected axes of up to 2^63 - 1 entries, found %R", name, axis);
            return -1;
        }
    }
    field->kind = type >= FIELD_ARRAY ? MDS_ARRAY_ITEMS : type >= FIELD_BYTES ? MDS_ARRAY_BYTES : MDS_ARRAY_WORD;
    field->item = item;
    field->dims = (size_t)dims;
    *slot = (FieldSlot){Py_NewRef(name), Py_NewRef(dtype), ragged ? NULL : Py_NewRef(shape), (field_type)type};
    return 0;
}

static PyObject *array_fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "make_array", "loads", "error", NULL};
    PyObject *fields, *make_array, *loads, *error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO:ArrayFields", names, &PyTuple_Type, &fields, &make_array,
                                     &loads, &error))
        return NULL;
    if (!PyExceptionClass_Check(error))
        return PyErr_Format(PyExc_TypeError, "error: expected a class of exceptions, found %R", error);
    ArrayFieldsObject *self = (ArrayFieldsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->make_array = Py_NewRef(make_array);
    self->loads = Py_NewRef(loads);
    self->error = Py_NewRef(error);
    self->count = PyTuple_Size(fields);
    self->slots = PyMem_Calloc((size_t)self->count + 1, sizeof *self->slots);
    self->fields = PyMem_Calloc((size_t)self->count + 1, sizeof *self->fields);
    if (!self->slots || !self->fields) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t f = 0; f < self->count; f++)
        if (parse_array_field(PyTuple_GetItem(fields, f), &self->slots[f], &self->fields[f]) != 0)
            goto fail;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* Make an array whose items lie in `memory`, from byte `begin` on. */
static PyObject *array_in(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *memory, uint64_t begin,
                          const mds_array_value *value)
{
    const FieldSlot *slot = &self->slots[f];
    PyObject *shape = slot->shape ? Py_NewRef(slot->shape) : PyTuple_New((Py_ssize_t)self->fields[f].dims);
    for (size_t d = 0; shape && !slot->shape && d < self->fields[f].dims; d++) {
        PyObject *axis = PyLong_FromUnsignedLongLong(value->shape[d]);
        if (!axis)
            Py_CLEAR(shape);
        else
            PyTuple_SetItem(shape, (Py_ssize_t)d, axis);
    }
    PyObject *offset = shape ? PyLong_FromUnsignedLongLong(begin) : NULL;
    PyObject *array = NULL;
    if (offset)
        array = PyObject_CallFunctionObjArgs(self->make_array, shape, slot->dtype, memory, offset, NULL);
    Py_XDECREF(offset);
    Py_XDECREF(shape);
    return array;
}

static PyObject *raise_cut(void)
{
    PyErr_SetString(PyExc_EOFError, "the file became shorter while it was read");
    return NULL;
}

static mds_status guarded_copy(const char *data, size_t size, char *out)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    memcpy(out, data, size);
    mds_guard_leave();
    return MDS_OK;
}

/* Copy bytes of a record, which may lie in a map. Python code has no guard, so it reads copies: text to decode, arrays
 * to convert. */
static PyObject *bytes_of(const char *data, const mds_array_value *value)
{
    const size_t size = (size_t)value->size;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    char *out = bytes ? PyBytes_AsString(bytes) : NULL; /* still private to this call */
    mds_status status = MDS_OK;
    if (out && size > COPY_WITH_GIL)
        RELEASE_GIL(status = guarded_copy(data + value->begin, size, out));
    else if (out)
        status = guarded_copy(data + value->begin, size, out);
    if (status == MDS_OK)
        return bytes;
    Py_DECREF(bytes);
    return raise_cut();
}

static PyObject *array_copy(const ArrayFieldsObject *self, Py_ssize_t f, const char *data, const mds_array_value *value)
{
    PyObject *bytes = bytes_of(data, value);
    PyObject *array = bytes ? array_in(self, f, bytes, 0, value) : NULL;
    Py_XDECREF(bytes);
    return array;
}

PyObject *mds_py_array_value(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *record, const char *data,
                             const mds_array_value *value)
{
    double number;
    PyObject *bytes, *decoded;
    switch (self->slots[f].type) {
    case FIELD_UINT:
        return PyLong_FromUnsignedLongLong(value->word);
    case FIELD_INT:
        return PyLong_FromLongLong((long long)value->word);
    case FIELD_FLOAT:
        memcpy(&number, &value->word, sizeof number);
        return PyFloat_FromDouble(number);
    case FIELD_BOOL:
        return PyBool_FromLong(value->word != 0);
    case FIELD_BYTES:
        return bytes_of(data, value);
    case FIELD_STR:
        bytes = bytes_of(data, value);
        decoded = bytes ? PyUnicode_DecodeUTF8(PyBytes_AsString(bytes), (Py_ssize_t)value->size, NULL) : NULL;
        Py_XDECREF(bytes);
        return decoded;
    case FIELD_JSON:
        bytes = bytes_of(data, value);
        decoded = bytes ? PyObject_CallFunctionObjArgs(self->loads, bytes, NULL) : NULL;
        Py_XDECREF(bytes);
        return decoded;
    case FIELD_ARRAY:
        return record ? array_in(self, f, record, value->begin, value) : array_copy(self, f, data, value);
    case FIELD_COPY:
        return array_copy(self, f, data, value);
    }
    return NULL;
}

static const char *expected_bytes(field_type type)
{
    return type == FIELD_JSON ? "JSON" : type == FIELD_STR ? "UTF-8" : "an array";
}

static PyObject *array_sample(const ArrayFieldsObject *self, PyObject *record, const char *data,
                              const mds_array_value *values)
{
    PyObject *sample = PyDict_New();
    for (Py_ssize_t f = 0; sample && f < self->count; f++) {
        PyObject *value = mds_py_array_value(self, f, record, data, &values[f]);
        if (!value || PyDict_SetItem(sample, self->slots[f].name, value) != 0)
            Py_CLEAR(sample);
        Py_XDECREF(value);
        if (!sample && PyErr_ExceptionMatches(PyExc_ValueError)) { /* text that cannot be decoded */
            PyObject *reason = mds_py_take_error();
            PyErr_Format(self->error, "field %R: expected %s, found damaged bytes (%S)", self->slots[f].name,
                         expected_bytes(self->slots[f].type), reason);
            Py_DECREF(reason);
        }
    }
    return sample;
}

#define FEW_FIELDS 16

PyObject *mds_py_array_fields_reason(const ArrayFieldsObject *self, size_t failed, Py_ssize_t size)
{
    if (failed < (size_t)self->count)
        return PyUnicode_FromFormat("field %R does not fit the record's %zd bytes: expected a smaller size or shape",
                                    self->slots[failed].name, size);
    return PyUnicode_FromFormat("its size does not fit its fields: expected fields that fill it, within %zd bytes",
                                size);
}

/* Find the fields of a record, which may lie in a map; *whole is whether the record is complete. */
static mds_status guarded_record(const ArrayFieldsObject *self, const uint8_t *data, uint64_t n,
                                 mds_array_value *values, uint64_t *size, size_t *failed, int *whole)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    *whole = mds_array_record(self->fields, (size_t)self->count, data, n, values, size, failed);
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *array_fields_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    const ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    mds_array_value few[FEW_FIELDS], *values = few;
    PyObject *record, *sample = NULL;
    const uint8_t *data;
    uint64_t size;
    size_t failed;
    int whole = 0;
    MDS_PY_BUFFERS(buffers, 1);
    if (kwargs && PyDict_Size(kwargs))
        return PyErr_Format(PyExc_TypeError, "ArrayFields: expected one record, found keywords %R", kwargs);
    if (!PyArg_ParseTuple(args, "O:ArrayFields", &record) || !(data = mds_py_take_bytes(&buffers, record, MDS_PY_READ)))
        return NULL;
    if (self->count > FEW_FIELDS && !(values = PyMem_Calloc((size_t)self->count, sizeof *values)))
        PyErr_NoMemory();
    else if (guarded_record(self, data, buffers.entries, values, &size, &failed, &whole) != MDS_OK)
        raise_cut();
    else if (whole)
        sample = array_sample(self, record, (const char *)data, values);
    else {
        PyObject *reason = mds_py_array_fields_reason(self, failed, (Py_ssize_t)buffers.entries);
        if (reason)
            PyErr_SetObject(self->error, reason);
        Py_XDECREF(reason);
    }
    if (values != few)
        PyMem_Free(values);
    mds_py_give_back(&buffers);
    return sample;
}

static PyObject *array_fields_words(PyObject *object, PyObject *args)
{
    const ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    PyObject *source;
    unsigned long long begin;
    uint64_t size = 0;
    size_t failed;
    int whole = 0;
    const uint8_t *data;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "OO&:words", &source, mds_py_size, &begin) ||
        !(data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        return NULL;
    PyObject *result = NULL;
    const uint64_t n = buffers.entries;
    mds_array_value *values = PyMem_Calloc((size_t)self->count + 1, sizeof *values);
    if (!values) {
        PyErr_NoMemory();
    } else if (begin <= n && guarded_record(self, data + begin, n - begin, values, &size, &failed, &whole) != MDS_OK) {
        raise_cut();
    } else if (whole) {
        result = PyTuple_New(self->count + 1);
        for (Py_ssize_t k = 0; result && k <= self->count; k++) {
            PyObject *word = PyLong_FromUnsignedLongLong(k ? values[k - 1].word : size);
            if (!word)
                Py_CLEAR(result);
            else
                PyTuple_SetItem(result, k, word);
        }
    } else {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(values);
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef array_fields_methods[] = {
    {"words", array_fields_words, METH_VARARGS,
     "words($self, data, begin, /)\n--\n\n"
     "Return (size, word, ...) of the record at byte begin of data: its size, and for each field the 64 bits of a\n"
     "number, the size of text, or the length of an array's first axis. None if no whole record begins there.\n\n"
     "Raises EOFError when data is a map whose file became shorter."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_fields_slots[] = {
    {Py_tp_doc, "ArrayFields(fields, make_array, loads, error)\n--\n\n"
                "Called with a record of named arrays, returns its fields as a dict; arrays are views of it,\n"
                "except fields of FIELD_COPY.\n\n"
                "fields: a tuple of (name, one of FIELD_*, bytes of an element, shape, dtype); None is a ragged axis.\n"
                "make_array(shape, dtype, record, offset) returns an array, loads(text) the value of JSON.\n\n"
                "Raises ValueError for malformed fields. A call raises error when the record is damaged,\n"
                "and EOFError when it lies in a map whose file became shorter."},
    {Py_tp_new, array_fields_new},
    {Py_tp_dealloc, array_fields_dealloc},
    {Py_tp_call, array_fields_call},
    {Py_tp_methods, array_fields_methods},
    {0, NULL},
};

static PyType_Spec array_fields_spec = {"mmapds._native.ArrayFields", sizeof(ArrayFieldsObject), 0, Py_TPFLAGS_DEFAULT,
                                        array_fields_slots};

static const mds_py_constant constants[] = {
    {"FIELD_UINT", FIELD_UINT},   {"FIELD_INT", FIELD_INT},
    {"FIELD_FLOAT", FIELD_FLOAT}, {"FIELD_BOOL", FIELD_BOOL},
    {"FIELD_BYTES", FIELD_BYTES}, {"FIELD_STR", FIELD_STR},
    {"FIELD_JSON", FIELD_JSON},   {"FIELD_ARRAY", FIELD_ARRAY},
    {"FIELD_COPY", FIELD_COPY},   {NULL, 0},
};

int mds_py_add_array_fields(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (mds_py_add_type(module, &array_fields_spec, &state->array_fields_type) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
