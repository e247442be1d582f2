/* py_json_fields.c - fields of JSON records, made into dicts one at a time. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

static void json_fields_dealloc(PyObject *object)
{
    JsonFieldsObject *self = (JsonFieldsObject *)object;
    for (Py_ssize_t f = 0; self->slots && f < self->count; f++) {
        Py_XDECREF(self->slots[f].name);
        Py_XDECREF(self->slots[f].dtype);
        Py_XDECREF(self->slots[f].keys);
        Py_XDECREF(self->slots[f].fallback);
    }
    PyMem_Free(self->slots);
    PyMem_Free(self->fields);
    PyMem_Free(self->order);
    Py_DECREF(self->make_array);
    Py_DECREF(self->error);
    mds_py_free(object);
}

static int check_field(PyObject *name, int kind, unsigned long long size, int layout, Py_ssize_t dims, Py_ssize_t keys)
{
    static const unsigned sizes[] = {
        [MDS_ITEM_BOOL] = 1,          [MDS_ITEM_INT] = 1 | 2 | 4 | 8, [MDS_ITEM_UINT] = 1 | 2 | 4 | 8,
        [MDS_ITEM_FLOAT] = 2 | 4 | 8, [MDS_ITEM_BFLOAT] = 2,          [MDS_ITEM_TEXT] = 1};
    const int fits = kind >= MDS_ITEM_BOOL && kind <= MDS_ITEM_TEXT && layout >= MDS_LAYOUT_ANY &&
                     layout <= MDS_LAYOUT_RAGGED && (size == 1 || size == 2 || size == 4 || size == 8) &&
                     sizes[kind] & size && dims <= MDS_ARRAY_DIMS && keys >= 1 && keys <= MDS_PATH;
    if (!fits)
        PyErr_Format(PyExc_ValueError,
                     "field %R: expected an ITEM_* and a size that it has, a LAYOUT_*, up to %d axes and 1 to %d keys, "
                     "found %d, %llu, %d, %zd and %zd",
                     name, MDS_ARRAY_DIMS, MDS_PATH, kind, size, layout, dims, keys);
    return fits ? 0 : -1;
}

/* Point a field at the bytes of its keys and of its fallback, which its slot holds. */
static int point_at_bytes(const WantedSlot *slot, mds_wanted *field)
{
    char *data;
    Py_ssize_t size;
    for (size_t k = 0; k < field->segments; k++) {
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(slot->keys, (Py_ssize_t)k), &data, &size) != 0)
            return -1;
        field->keys[k] = (const uint8_t *)data;
        field->key_sizes[k] = (size_t)size;
    }
    if (slot->fallback == Py_None)
        return 0;
    if (PyBytes_AsStringAndSize(slot->fallback, &data, &size) != 0)
        return -1;
    field->fallback = (const uint8_t *)data;
    field->fallback_size = (size_t)size;
    return 0;
}

/* Parse a field: (name, place, kind, bytes of an item, layout, shape, dtype, keys, fallback). */
static int parse_wanted(JsonFieldsObject *self, PyObject *given, Py_ssize_t f)
{
    PyObject *name, *shape, *dtype, *keys, *fallback;
    Py_ssize_t place;
    int kind, layout;
    unsigned long long size;
    if (mds_py_expect_tuple(given, "fields") != 0 ||
        !PyArg_ParseTuple(given, "UniO&iO!OO!O:fields", &name, &place, &kind, mds_py_size, &size, &layout,
                          &PyTuple_Type, &shape, &dtype, &PyTuple_Type, &keys, &fallback) ||
        check_field(name, kind, size, layout, PyTuple_Size(shape), PyTuple_Size(keys)) != 0)
        return -1;
    if (place < 0 || place >= self->count) {
        PyErr_Format(PyExc_ValueError, "field %R: expected a place below %zd, found %zd", name, self->count, place);
        return -1;
    }
    mds_wanted *field = &self->fields[f];
    *field = (mds_wanted){.kind = (mds_item_kind)kind,
                          .size = (unsigned)size,
                          .layout = (mds_layout)layout,
                          .dims = (size_t)PyTuple_Size(shape),
                          .segments = (size_t)PyTuple_Size(keys)};
    self->slots[f] = (WantedSlot){Py_NewRef(name), Py_NewRef(dtype), Py_NewRef(keys), Py_NewRef(fallback)};
    self->order[place] = f;
    for (size_t d = 0; d < field->dims; d++)
        if (mds_py_parse_offset(PyTuple_GetItem(shape, (Py_ssize_t)d), &field->shape[d]) != 0)
            return -1;
    return point_at_bytes(&self->slots[f], field);
}

static PyObject *json_fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "make_array", "error", NULL};
    PyObject *fields, *make_array, *error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO:JsonFields", names, &PyTuple_Type, &fields, &make_array,
                                     &error))
        return NULL;
    if (!PyExceptionClass_Check(error))
        return PyErr_Format(PyExc_TypeError, "error: expected a class of exceptions, found %R", error);
    JsonFieldsObject *self = (JsonFieldsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->make_array = Py_NewRef(make_array);
    self->error = Py_NewRef(error);
    self->count = PyTuple_Size(fields);
    self->slots = PyMem_Calloc((size_t)self->count + 1, sizeof *self->slots);
    self->fields = PyMem_Calloc((size_t)self->count + 1, sizeof *self->fields);
    self->order = PyMem_Calloc((size_t)self->count + 1, sizeof *self->order);
    if (!self->slots || !self->fields || !self->order) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t f = 0; f < self->count; f++)
        if (parse_wanted(self, PyTuple_GetItem(fields, f), f) != 0)
            goto fail;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* Make an array with its own memory; `shape` NULL means one axis. */
static PyObject *new_array(const JsonFieldsObject *self, Py_ssize_t f, const uint8_t *items, uint64_t count,
                           PyObject *shape)
{
    const Py_ssize_t bytes = (Py_ssize_t)(count * self->fields[f].size);
    PyObject *memory = PyByteArray_FromStringAndSize((const char *)items, bytes);
    PyObject *made = shape ? Py_NewRef(shape) : Py_BuildValue("(K)", (unsigned long long)count), *array = NULL;
    if (memory && made)
        array = PyObject_CallFunctionObjArgs(self->make_array, made, self->slots[f].dtype, memory, NULL);
    Py_XDECREF(made);
    Py_XDECREF(memory);
    return array;
}

static PyObject *array_of_axes(const JsonFieldsObject *self, Py_ssize_t f, const uint8_t *items, const mds_value *value)
{
    if (value->dims == 1)
        return new_array(self, f, items, value->count, NULL);
    PyObject *array = NULL, *shape = PyTuple_New((Py_ssize_t)value->dims);
    for (size_t d = 0; shape && d < value->dims; d++) {
        PyObject *length = PyLong_FromUnsignedLongLong(value->shape[d]);
        if (!length)
            Py_CLEAR(shape);
        else
            PyTuple_SetItem(shape, (Py_ssize_t)d, length);
    }
    if (shape)
        array = new_array(self, f, items, value->count, shape);
    Py_XDECREF(shape);
    return array;
}

static PyObject *list_of_rows(const JsonFieldsObject *self, Py_ssize_t f, const mds_items *items,
                              const mds_value *value)
{
    const unsigned size = self->fields[f].size;
    const uint8_t *data = items->items + value->begin * size;
    PyObject *list = PyList_New((Py_ssize_t)value->shape[0]);
    uint64_t begin = 0;
    for (uint64_t row = 0; list && row < value->shape[0]; row++) {
        const uint64_t end = items->ends[value->first_row + row];
        PyObject *array = new_array(self, f, data + begin * size, end - begin, NULL);
        if (!array)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)row, array);
        begin = end;
    }
    return list;
}

static PyObject *number_of(const mds_wanted *field, const uint8_t *item)
{
    int64_t integer;
    switch (field->kind) {
    case MDS_ITEM_BOOL:
        return PyBool_FromLong(*item);
    case MDS_ITEM_INT:
        integer = mds_item_integer(field, item);
        return PyLong_FromLongLong(integer);
    case MDS_ITEM_UINT:
        return PyLong_FromUnsignedLongLong((uint64_t)mds_item_integer(field, item));
    default:
        return PyFloat_FromDouble(mds_item_float(field, item));
    }
}

PyObject *mds_py_json_value(const JsonFieldsObject *self, Py_ssize_t f, const mds_items *items, const mds_value *value)
{
    const mds_wanted *field = &self->fields[f];
    const uint8_t *data = items->items + value->begin * field->size;
    if (field->kind == MDS_ITEM_TEXT)
        return PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)value->count, NULL);
    if (field->layout == MDS_LAYOUT_RAGGED)
        return list_of_rows(self, f, items, value);
    if (field->layout == MDS_LAYOUT_ANY && value->dims == 0)
        return number_of(field, data);
    return array_of_axes(self, f, data, value);
}

PyObject *mds_py_json_sample(const JsonFieldsObject *self, const mds_items *items, const mds_value *values)
{
    PyObject *sample = PyDict_New();
    for (Py_ssize_t place = 0; sample && place < self->count; place++) {
        const Py_ssize_t f = self->order[place];
        PyObject *value = mds_py_json_value(self, f, &items[f], &values[f]);
        if (!value || PyDict_SetItem(sample, self->slots[f].name, value) != 0)
            Py_CLEAR(sample);
        Py_XDECREF(value);
    }
    return sample;
}

PyObject *mds_py_json_refusal(const JsonFieldsObject *self, const mds_refusal *refusal)
{
    PyObject *name = refusal->field < (size_t)self->count ? self->slots[refusal->field].name : Py_None;
    return Py_BuildValue("iOn", (int)refusal->status, name, (Py_ssize_t)refusal->at);
}

/* ---- one record ------------------------------------------------------------------------------------------ */

/* Give the items the room that one record may need; 0 if there is no memory. */
static int make_room(const JsonFieldsObject *self, const uint8_t *data, uint64_t n, mds_items *items)
{
    for (Py_ssize_t f = 0; f < self->count; f++) {
        const mds_wanted *field = &self->fields[f];
        items[f].room = mds_fields_most(mds_py_kernels, field, data, n);
        items[f].items = malloc(items[f].room * field->size + 1); /* at most 4 n: no overflow */
        items[f].ends = field->layout == MDS_LAYOUT_RAGGED ? malloc(items[f].room * sizeof *items[f].ends) : NULL;
        if (!items[f].items || (field->layout == MDS_LAYOUT_RAGGED && !items[f].ends))
            return 0;
    }
    return 1;
}

void mds_py_free_items(mds_items *items, Py_ssize_t count)
{
    for (Py_ssize_t f = 0; items && f < count; f++) {
        free(items[f].items);
        free(items[f].ends);
    }
    PyMem_Free(items);
}

#define WITH_GIL (16 << 10) /* bytes: to read so few is faster than to wait for the GIL */

static int read_record(const JsonFieldsObject *self, const uint8_t *data, size_t n, mds_value *values, mds_items *items,
                       mds_refusal *refusal)
{
    return make_room(self, data, n, items)
               ? mds_fields_read(mds_py_kernels, self->fields, (size_t)self->count, data, n, values, items, refusal)
               : -1;
}

static PyObject *json_fields_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    const JsonFieldsObject *self = (JsonFieldsObject *)object;
    PyObject *record, *sample = NULL;
    const uint8_t *data;
    int result = -1;
    MDS_PY_BUFFERS(buffers, 1);
    if (kwargs && PyDict_Size(kwargs))
        return PyErr_Format(PyExc_TypeError, "JsonFields: expected one record, found keywords %R", kwargs);
    if (!PyArg_ParseTuple(args, "O:JsonFields", &record) || !(data = mds_py_take_bytes(&buffers, record, MDS_PY_READ)))
        return NULL;
    mds_value *values = PyMem_Calloc((size_t)self->count + 1, sizeof *values);
    mds_items *items = PyMem_Calloc((size_t)self->count + 1, sizeof *items);
    mds_refusal refusal;
    if (values && items && buffers.entries <= WITH_GIL)
        result = read_record(self, data, buffers.entries, values, items, &refusal);
    else if (values && items)
        RELEASE_GIL(result = read_record(self, data, buffers.entries, values, items, &refusal));
    if (result < 0)
        PyErr_NoMemory();
    else if (result)
        sample = mds_py_json_sample(self, items, values);
    else {
        PyObject *found = mds_py_json_refusal(self, &refusal);
        if (found)
            PyErr_SetObject(self->error, found);
        Py_XDECREF(found);
    }
    mds_py_free_items(items, self->count);
    PyMem_Free(values);
    mds_py_give_back(&buffers);
    return sample;
}

static PyType_Slot json_fields_slots[] = {
    {Py_tp_doc,
     "JsonFields(fields, make_array, error)\n--\n\n"
     "Called with a JSON record, returns its fields as a dict of arrays, numbers and strings.\n\n"
     "fields: a tuple of (name, place in the dict, one of ITEM_*, bytes of an item, one of LAYOUT_*, shape,\n"
     "dtype, keys of the path, JSON for a record without the field or None), sorted by their keys, of which\n"
     "no path is a prefix of another. In a shape None is an axis of any length.\n"
     "make_array(shape, dtype, memory) returns an array.\n\n"
     "Raises ValueError for malformed fields. A call raises error with (one of WANTED_*, name or None, byte)\n"
     "when a field cannot be read."},
    {Py_tp_new, json_fields_new},
    {Py_tp_dealloc, json_fields_dealloc},
    {Py_tp_call, json_fields_call},
    {0, NULL},
};

static PyType_Spec json_fields_spec = {"mmapds._native.JsonFields", sizeof(JsonFieldsObject), 0, Py_TPFLAGS_DEFAULT,
                                       json_fields_slots};

static const mds_py_constant constants[] = {
    {"ITEM_BOOL", MDS_ITEM_BOOL},
    {"ITEM_INT", MDS_ITEM_INT},
    {"ITEM_UINT", MDS_ITEM_UINT},
    {"ITEM_FLOAT", MDS_ITEM_FLOAT},
    {"ITEM_BFLOAT", MDS_ITEM_BFLOAT},
    {"ITEM_TEXT", MDS_ITEM_TEXT},
    {"LAYOUT_ANY", MDS_LAYOUT_ANY},
    {"LAYOUT_SHAPE", MDS_LAYOUT_SHAPE},
    {"LAYOUT_RAGGED", MDS_LAYOUT_RAGGED},
    {"WANTED_MISSING", MDS_WANTED_MISSING},
    {"WANTED_TYPE", MDS_WANTED_TYPE},
    {"WANTED_RANGE", MDS_WANTED_RANGE},
    {"WANTED_SHAPE", MDS_WANTED_SHAPE},
    {"WANTED_RAGGED", MDS_WANTED_RAGGED},
    {"WANTED_INVALID", MDS_WANTED_INVALID},
    {"WANTED_NOT_OBJECT", MDS_WANTED_NOT_OBJECT},
    {NULL, 0},
};

static PyObject *json_cut(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer record, key;
    unsigned long long begin, end;
    if (!PyArg_ParseTuple(args, "y*y*O&O&:json_cut", &record, &key, mds_py_size, &begin, mds_py_size, &end))
        return NULL;
    mds_json_part part = {.key = key.buf, .key_size = (size_t)key.len, .begin = begin, .end = end};
    PyObject *result = NULL, *bytes = NULL;
    const uint8_t *data = record.buf;
    if (begin > end || !mds_json_cut(mds_py_kernels, data, (size_t)record.len, &part)) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    const size_t items = part.last - part.first, rest = (size_t)record.len - part.close;
    bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(part.open + items + rest));
    if (!bytes)
        goto done;
    char *out = PyBytes_AsString(bytes);
    memcpy(out, data, part.open);
    memcpy(out + part.open, data + part.first, items);
    memcpy(out + part.open + items, data + part.close, rest);
    result = Py_BuildValue("(OK)", bytes, (unsigned long long)part.items);
done:
    Py_XDECREF(bytes);
    PyBuffer_Release(&record);
    PyBuffer_Release(&key);
    return result;
}

static PyMethodDef functions[] = {
    {"json_cut", json_cut, METH_VARARGS,
     "json_cut($module, record, key, begin, end, /)\n--\n\n"
     "Leave out all items of an array but some; return the shorter record, and how many items the array has.\n\n"
     "record: a JSON object. key: that of the array. begin, end: the items to keep.\n"
     "Returns None if the record is no object with such an array, or malformed."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_json_fields(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (PyModule_AddFunctions(module, functions) != 0)
        return -1;
    if (mds_py_add_type(module, &json_fields_spec, &state->json_fields_type) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
