/* py_columns.c - columns of numbers: measured from records, and converted. */
#include "binding.h"

#include <string.h>

/* ---- fields -------------------------------------------------------------------------------------------- */

/* Take the keys of a path, (key, ...), or (key, ..., None, key, ...) for the sum over the array there; -1 with an
 * exception. */
static int parse_path(PyObject *path, mds_field *field)
{
    size_t keys = 0;
    for (Py_ssize_t k = 0; k < PyTuple_Size(path); k++) {
        PyObject *each = PyTuple_GetItem(path, k);
        char *key;
        Py_ssize_t size;
        if (each == Py_None && keys && !field->is_sum) {
            field->is_sum = 1;
            continue;
        }
        if (keys == MDS_PATH) {
            PyErr_Format(PyExc_ValueError, "fields: expected a path of up to %d keys, found more", MDS_PATH);
            return -1;
        }
        if (PyBytes_AsStringAndSize(each, &key, &size) != 0)
            return -1;
        field->keys[keys] = (const uint8_t *)key;
        field->key_sizes[keys++] = (size_t)size;
        field->segments += !field->is_sum;
        field->inside += (size_t)field->is_sum;
    }
    field->escaped = mds_field_escaped(field);
    return 0;
}

/* Parse a tuple of (measure, path) into fields and return how many there are; -1 with an exception. The fields point
 * into the keys, which are bytes and must outlive them. */
static Py_ssize_t parse_fields(PyObject *sequence, mds_field *fields)
{
    const Py_ssize_t n = PyTuple_Check(sequence) ? PyTuple_Size(sequence) : -1;
    if (n < 0 || n > MDS_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "fields: expected a tuple of up to %d, found %R", MDS_COLUMNS, sequence);
        return -1;
    }
    for (Py_ssize_t c = 0; c < n; c++) {
        int measure;
        PyObject *path;
        PyObject *field = PyTuple_GetItem(sequence, c);
        if (mds_py_expect_tuple(field, "fields") != 0 ||
            !PyArg_ParseTuple(field, "iO!:fields", &measure, &PyTuple_Type, &path))
            return -1;
        const int keyless = measure == MDS_MEASURE_RECORD;
        if (measure < 0 || measure > MDS_MEASURE_RECORD || (PyTuple_Size(path) < 1) != keyless) {
            PyErr_Format(PyExc_ValueError, "fields[%zd]: expected a path of %d to %d keys, found %zd for measure %d", c,
                         !keyless, keyless ? 0 : MDS_PATH, PyTuple_Size(path), measure);
            return -1;
        }
        fields[c] = (mds_field){.measure = (mds_measure)measure};
        if (parse_path(path, &fields[c]) != 0)
            return -1;
    }
    return n;
}

static PyObject *measure_record(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    PyObject *sequence, *source, *result = NULL;
    mds_field fields[MDS_COLUMNS];
    mds_number number = {MDS_U64, 0};
    const uint8_t *data;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "zOO:measure_record", &variant, &sequence, &source))
        return NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    const Py_ssize_t n = chosen ? parse_fields(sequence, fields) : -1;
    if (n < 0)
        return NULL;
    if (n != 1 || !fields[0].segments)
        return PyErr_Format(PyExc_ValueError, "fields: expected one with a path, found %zd", n);
    if ((data = mds_py_take_bytes(&buffers, source, MDS_PY_READ))) {
        const size_t size = buffers.entries;
        size_t at = 0;
        mds_json_status status;
        RELEASE_GIL(status = mds_json_measure(chosen, data, size, size, fields, &number, &at));
        result = Py_BuildValue("iniK", (int)status, (Py_ssize_t)at, (int)number.type, (unsigned long long)number.bits);
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *json_error(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    PyObject *source;
    const uint8_t *data;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "zO:json_error", &variant, &source))
        return NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (!chosen || !(data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        return NULL;
    size_t at;
    int valid;
    RELEASE_GIL(valid = mds_json_valid(chosen, data, buffers.entries, &at));
    mds_py_give_back(&buffers);
    return valid ? Py_NewRef(Py_None) : PyLong_FromSize_t(at);
}

/* ---- Measuring ----------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *given; /* the tuple; the fields point into its keys */
    mds_measuring measuring;
    mds_field fields[MDS_COLUMNS];
} MeasuringObject;

static PyObject *measuring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "missing", "fill", "validate", "skip_bad", NULL};
    PyObject *given;
    int missing, fill_type, validate, skip_bad;
    unsigned long long fill;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$Oi(iK)pp:Measuring", names, &given, &missing, &fill_type, &fill,
                                     &validate, &skip_bad))
        return NULL;
    if (missing < MDS_MISSING_ERROR || missing > MDS_MISSING_FILL)
        return PyErr_Format(PyExc_ValueError, "missing: expected one of MISSING_*, found %d", missing);
    if (fill_type < MDS_U64 || fill_type > MDS_F64)
        return PyErr_Format(PyExc_ValueError, "fill: expected one of NUMBER_* and 64 bits, found %d", fill_type);
    MeasuringObject *self = (MeasuringObject *)mds_py_new(type);
    if (!self)
        return NULL;
    const Py_ssize_t columns = parse_fields(given, self->fields);
    if (columns < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->given = Py_NewRef(given);
    self->measuring = (mds_measuring){
        self->fields, (size_t)columns, (mds_missing)missing, {(mds_number_type)fill_type, fill}, validate, skip_bad};
    return (PyObject *)self;
}

static void measuring_dealloc(PyObject *object)
{
    Py_XDECREF(((MeasuringObject *)object)->given);
    mds_py_free(object);
}

/* Take cells[c] for each column, of `room` entries or more; -1 with an exception. */
static int take_cells(mds_py_buffers *buffers, PyObject *given, size_t columns, size_t room, uint64_t **cells)
{
    if (mds_py_expect("cells", columns, (size_t)PyTuple_Size(given)) != 0)
        return -1;
    for (size_t c = 0; c < columns; c++) {
        PyObject *column = PyTuple_GetItem(given, (Py_ssize_t)c);
        if (!(cells[c] = mds_py_take_words(buffers, column, MDS_PY_WRITE, MDS_PY_ANY, "cells")))
            return -1;
        if (buffers->entries < room) {
            PyErr_Format(PyExc_ValueError, "cells[%zu]: expected %zu entries or more, as starts has, found %zu", c,
                         room, buffers->entries);
            return -1;
        }
        if (mds_py_expect_apart(buffers, NULL, "cells") != 0)
            return -1;
    }
    return 0;
}

/* Return a tuple of (type, number of filled records, first rounded record or -1) for the columns. */
static PyObject *columns_of(const mds_measured *measured, size_t columns)
{
    PyObject *found = PyTuple_New((Py_ssize_t)columns);
    for (size_t c = 0; found && c < columns; c++) {
        const Py_ssize_t rounded = measured->rounded[c] == MDS_NONE ? -1 : (Py_ssize_t)measured->rounded[c];
        PyObject *column = Py_BuildValue("inn", (int)measured->types[c], (Py_ssize_t)measured->filled[c], rounded);
        if (column)
            PyTuple_SetItem(found, (Py_ssize_t)c, column);
        else
            Py_CLEAR(found);
    }
    return found;
}

/* Return a tuple of the begins of the first bad records. */
static PyObject *bad_of(const mds_measured *measured)
{
    const size_t listed = measured->bad < MDS_BAD_LISTED ? measured->bad : MDS_BAD_LISTED;
    PyObject *found = PyTuple_New((Py_ssize_t)listed);
    for (size_t k = 0; found && k < listed; k++) {
        PyObject *start = PyLong_FromUnsignedLongLong(measured->bad_starts[k]);
        if (start)
            PyTuple_SetItem(found, (Py_ssize_t)k, start);
        else
            Py_CLEAR(found);
    }
    return found;
}

/* Measure a block; MDS_SHRANK if its text is a map whose file became shorter. */
static mds_status measure_block(const mds_text *text, uint64_t begin, uint64_t end, const mds_measuring *measuring,
                                mds_lines *lines, uint64_t *starts, mds_measured *measured, mds_json_status *status)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    *status = mds_measure_lines(mds_py_kernels, text, begin, end, measuring, lines, starts, measured);
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *measuring_lines(PyObject *object, PyObject *args)
{
    const mds_measuring *measuring = &((MeasuringObject *)object)->measuring;
    PyObject *source, *target, *given, *result = NULL;
    unsigned long long base, begin, end;
    uint64_t *starts, *cells[MDS_COLUMNS], rounded[MDS_COLUMNS];
    mds_number_type types[MDS_COLUMNS] = {MDS_U64};
    size_t filled[MDS_COLUMNS] = {0};
    mds_measured measured = {.cells = cells, .types = types, .filled = filled, .rounded = rounded};
    memset(rounded, 0xff, sizeof rounded); /* MDS_NONE */
    mds_text text;
    MDS_PY_BUFFERS(buffers, MDS_COLUMNS + 2);
    if (!PyArg_ParseTuple(args, "OO&O&O&OO!:lines", &source, mds_py_size, &base, mds_py_size, &begin, mds_py_size, &end,
                          &target, &PyTuple_Type, &given) ||
        !(text.data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        return NULL;
    text.size = buffers.entries;
    text.base = base;
    mds_lines lines = {begin, 0};
    if (base > begin || begin > end || end - base > text.size) {
        PyErr_Format(PyExc_ValueError, "begin, end: expected a block within %zu bytes from %llu on, found %llu to %llu",
                     text.size, base, begin, end);
        goto done;
    }
    if (!(starts = mds_py_take_starts(&buffers, target, end - begin)) ||
        take_cells(&buffers, given, measuring->columns, buffers.entries, cells) != 0)
        goto done;
    mds_status read;
    mds_json_status status = MDS_JSON_OK;
    RELEASE_GIL(read = measure_block(&text, begin, end, measuring, &lines, starts, &measured, &status));
    if (read != MDS_OK) {
        mds_py_raise_shrank();
        goto done;
    }
    PyObject *kinds = columns_of(&measured, measuring->columns), *bad = bad_of(&measured);
    PyObject *found = kinds && bad ? mds_py_scanned(measured.records, &lines) : NULL;
    if (found)
        result = Py_BuildValue("NnO(nO)(iKnK)", found, (Py_ssize_t)measured.kept, kinds, (Py_ssize_t)measured.bad, bad,
                               (int)status, (unsigned long long)measured.failed, (Py_ssize_t)measured.column,
                               (unsigned long long)measured.at);
    Py_XDECREF(kinds);
    Py_XDECREF(bad);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef measuring_methods[] = {
    {"lines", measuring_lines, METH_VARARGS,
     "lines($self, text, base, begin, end, starts, cells, /)\n--\n\n"
     "Find and measure the records that begin in bytes [begin, end) of a file of lines.\n\n"
     "text: bytes that lie at byte base of the file: the block, enough before it to see where its first line begins,\n"
     "and its last line to the end. starts: as in scan_lines. cells: a tuple of u64, one a field, each with as much "
     "room as starts, filled\n"
     "with the numbers of the records that are kept.\n\n"
     "Returns ((records, pending, newlines), kept, columns, (bad, starts), (status, failed, column, at)): columns are\n"
     "(one of NUMBER_*, how many records lack it, the first record whose integer was rounded to a double or -1) for\n"
     "each field; bad is the number of skipped bad records,\n"
     "and starts are the begins of the first MOST_LISTED of them. status is one of JSON_*. Unless it is "
     "JSON_OK,\n"
     "the record that begins at `failed`, after `kept` others, cannot be measured, and `at` is the byte of the "
     "error.\n\n"
     "Raises ValueError for too little room, EOFError when text is a map whose file became shorter."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot measuring_slots[] = {
    {Py_tp_doc,
     "Measuring(*, fields, missing, fill, validate, skip_bad)\n--\n\n"
     "Measures the columns of a scan; any number of threads may use it at once.\n\n"
     "fields: a tuple of up to MOST_COLUMNS (one of MEASURE_*, keys of the path as bytes).\n"
     "missing: one of MISSING_*. fill: (one of NUMBER_*, 64 bits), the number of a record that lacks a field.\n"
     "validate: check that every record is JSON. skip_bad: leave out those that are not.\n\n"
     "Raises ValueError for malformed fields, and for an unknown constant."},
    {Py_tp_new, measuring_new},
    {Py_tp_dealloc, measuring_dealloc},
    {Py_tp_methods, measuring_methods},
    {0, NULL},
};

static PyType_Spec measuring_spec = {"mmapds._native.Measuring", sizeof(MeasuringObject), 0, Py_TPFLAGS_DEFAULT,
                                     measuring_slots};

/* ---- cells --------------------------------------------------------------------------------------------- */

static PyObject *cells_convert(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target;
    int from_type, to_type;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "Oii:cells_convert", &target, &from_type, &to_type))
        return NULL;
    if (from_type < MDS_U64 || from_type > MDS_F64 || to_type < MDS_U64 || to_type > MDS_F64)
        return PyErr_Format(PyExc_ValueError, "from_type, to_type: expected two of NUMBER_*, found %d and %d",
                            from_type, to_type);
    uint64_t *cells = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "cells");
    if (cells)
        RELEASE_GIL(mds_cells_convert(cells, buffers.entries, (mds_number_type)from_type, (mds_number_type)to_type));
    mds_py_give_back(&buffers);
    return cells ? Py_NewRef(Py_None) : NULL;
}

/* Copy integers of `width` bytes, 4 or 8, to as many of the other width. */
static PyObject *copy_cells(PyObject *args, const char *format, unsigned width)
{
    PyObject *source, *target;
    const void *numbers;
    void *out = NULL;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, format, &source, &target))
        return NULL;
    if ((numbers = mds_py_take_numbers(&buffers, source, MDS_PY_READ, width, MDS_PY_ANY, "numbers")) &&
        (out = mds_py_take_numbers(&buffers, target, MDS_PY_WRITE, width == 8 ? 4 : 8, buffers.entries, "out")))
        RELEASE_GIL({
            if (width == 8)
                mds_cells_narrow(numbers, buffers.entries, out);
            else
                mds_cells_widen(numbers, buffers.entries, out);
        });
    mds_py_give_back(&buffers);
    return out ? Py_NewRef(Py_None) : NULL;
}

static PyObject *cells_narrow(PyObject *Py_UNUSED(module), PyObject *args)
{
    return copy_cells(args, "OO:cells_narrow", 8);
}

static PyObject *cells_widen(PyObject *Py_UNUSED(module), PyObject *args)
{
    return copy_cells(args, "OO:cells_widen", 4);
}

static PyObject *cells_inexact(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source;
    int type;
    size_t first = 0;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "Oi:cells_inexact", &source, &type))
        return NULL;
    if (type < MDS_U64 || type > MDS_F64)
        return PyErr_Format(PyExc_ValueError, "number_type: expected one of NUMBER_*, found %d", type);
    const uint64_t *cells = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "cells");
    const size_t n = buffers.entries;
    if (cells)
        RELEASE_GIL(first = mds_cells_inexact(cells, n, (mds_number_type)type));
    mds_py_give_back(&buffers);
    return cells ? PyLong_FromLongLong(first < n ? (long long)first : -1) : NULL;
}

static PyObject *cells_largest(PyObject *Py_UNUSED(module), PyObject *source)
{
    uint64_t largest = 0;
    MDS_PY_BUFFERS(buffers, 1);
    const uint64_t *cells = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "cells");
    if (cells)
        RELEASE_GIL(largest = mds_cells_largest(cells, buffers.entries));
    mds_py_give_back(&buffers);
    return cells ? PyLong_FromUnsignedLongLong(largest) : NULL;
}

/* ---- the subject --------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"measure_record", measure_record, METH_VARARGS,
     "measure_record($module, variant, fields, data, /)\n--\n\n"
     "Measure one field of one record; return (one of JSON_*, byte that shows it, one of NUMBER_*, 64 bits).\n\n"
     "variant: a SIMD variant, None for the best. fields: a tuple of one\n"
     "(one of MEASURE_*, keys of the path as bytes).\n\n"
     "Raises ValueError for another number of fields, or one without a path."},
    {"json_error", json_error, METH_VARARGS,
     "json_error($module, variant, data, /)\n--\n\n"
     "Return None if data is JSON, else the position of the first wrong byte.\n\n"
     "variant: a SIMD variant, None for the best."},
    {"cells_convert", cells_convert, METH_VARARGS,
     "cells_convert($module, cells, from_type, to_type, /)\n--\n\n"
     "Convert 64-bit cells from one of NUMBER_* to another, in place."},
    {"cells_narrow", cells_narrow, METH_VARARGS,
     "cells_narrow($module, numbers, out, /)\n--\n\n"
     "Copy u64 below 2^32 to as many u32."},
    {"cells_widen", cells_widen, METH_VARARGS,
     "cells_widen($module, numbers, out, /)\n--\n\n"
     "Copy u32 to as many u64."},
    {"cells_inexact", cells_inexact, METH_VARARGS,
     "cells_inexact($module, cells, number_type, /)\n--\n\n"
     "Return the position of the first 64-bit cell of one of NUMBER_* that a double cannot hold; -1 without."},
    {"cells_largest", cells_largest, METH_O,
     "cells_largest($module, cells, /)\n--\n\n"
     "Return the largest of cells, which are u64; 0 if there are none."},
    {NULL, NULL, 0, NULL},
};

static const mds_py_constant constants[] = {
    {"MEASURE_NUMBER", MDS_MEASURE_NUMBER},
    {"MEASURE_BYTES", MDS_MEASURE_BYTES},
    {"MEASURE_CHARS", MDS_MEASURE_CHARS},
    {"MEASURE_ITEMS", MDS_MEASURE_ITEMS},
    {"MEASURE_RECORD", MDS_MEASURE_RECORD},
    {"LONGEST_PATH", MDS_PATH},
    {"MOST_COLUMNS", MDS_COLUMNS},
    {"MOST_LISTED", MDS_BAD_LISTED},
    {"MISSING_ERROR", MDS_MISSING_ERROR},
    {"MISSING_SKIP", MDS_MISSING_SKIP},
    {"MISSING_FILL", MDS_MISSING_FILL},
    {"JSON_OK", MDS_JSON_OK},
    {"JSON_PARTIAL", MDS_JSON_PARTIAL},
    {"JSON_MISSING", MDS_JSON_MISSING},
    {"JSON_TYPE", MDS_JSON_TYPE},
    {"JSON_INVALID", MDS_JSON_INVALID},
    {"NUMBER_U64", MDS_U64},
    {"NUMBER_I64", MDS_I64},
    {"NUMBER_F64", MDS_F64},
    {NULL, 0},
};

int mds_py_add_columns(PyObject *module)
{
    if (mds_py_add_type(module, &measuring_spec, NULL) != 0 || PyModule_AddFunctions(module, functions) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
