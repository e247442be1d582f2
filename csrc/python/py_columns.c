/* py_columns.c - columns of numbers: measured where records lie, and converted. */
#include "binding.h"

#define MDS_PY_COLUMNS 64

/* Fields from a sequence of (measure, (key, ...)), keys being bytes that must outlive them; -1 with an exception. */
static Py_ssize_t parse_fields(PyObject *sequence, mds_field *fields)
{
    const Py_ssize_t n = PyTuple_Check(sequence) ? PyTuple_Size(sequence) : -1;
    if (n < 0 || n > MDS_PY_COLUMNS) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of up to %d fields", MDS_PY_COLUMNS);
        return -1;
    }
    for (Py_ssize_t c = 0; c < n; c++) {
        int measure;
        PyObject *path;
        if (!PyArg_ParseTuple(PyTuple_GetItem(sequence, c), "iO!", &measure, &PyTuple_Type, &path))
            return -1;
        const Py_ssize_t segments = PyTuple_Size(path);
        const int keyless = measure == MDS_MEASURE_RECORD;
        if (measure < 0 || measure > MDS_MEASURE_RECORD || segments > MDS_PATH || (segments < 1) != keyless) {
            PyErr_Format(PyExc_ValueError, "expected a path of 1 to %d keys", MDS_PATH);
            return -1;
        }
        fields[c] = (mds_field){.measure = (mds_measure)measure, .segments = (size_t)segments};
        for (Py_ssize_t k = 0; k < segments; k++) {
            char *key;
            Py_ssize_t size;
            if (PyBytes_AsStringAndSize(PyTuple_GetItem(path, k), &key, &size) != 0)
                return -1;
            fields[c].keys[k] = (const uint8_t *)key;
            fields[c].key_sizes[k] = (size_t)size;
        }
    }
    return n;
}

static PyObject *measure_record(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    PyObject *sequence;
    mds_field fields[MDS_PY_COLUMNS];
    mds_number number = {MDS_U64, 0};
    size_t at;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zOy*:measure_record", &variant, &sequence, &data))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    const Py_ssize_t n = chosen ? parse_fields(sequence, fields) : -1;
    if (n == 1 && fields[0].segments) {
        const size_t size = (size_t)data.len;
        const mds_json_status status = mds_json_measure(chosen, data.buf, size, size, fields, &number, &at);
        result = Py_BuildValue("iniK", (int)status, (Py_ssize_t)at, (int)number.type, (unsigned long long)number.bits);
    } else if (n >= 0) {
        PyErr_SetString(PyExc_ValueError, "expected one field with a path");
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *json_error(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zy*:json_error", &variant, &data))
        return NULL;
    PyObject *result = NULL;
    size_t at;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (chosen)
        result = mds_json_valid(chosen, data.buf, (size_t)data.len, &at) ? Py_NewRef(Py_None) : PyLong_FromSize_t(at);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *measure_lines(PyObject *module, PyObject *args)
{
    const mds_py_state *state = PyModule_GetState(module);
    PyObject *map, *pending, *sequence, *target, *cells_list, *result = NULL, *kinds = NULL;
    int missing, validate, fill_type;
    unsigned long long begin, end, fill;
    mds_field fields[MDS_PY_COLUMNS];
    uint64_t *cells[MDS_PY_COLUMNS];
    mds_number_type types[MDS_PY_COLUMNS] = {MDS_U64};
    mds_lines lines = {MDS_NONE, 0};
    mds_measured measured = {.cells = cells, .types = types};
    Py_buffer views[MDS_PY_COLUMNS], starts;
    Py_ssize_t opened = 0;
    if (!PyArg_ParseTuple(args, "O!KKOOi(iK)pOO!:measure_lines", state->map_type, &map, &begin, &end, &pending, &sequence,
                          &missing, &fill_type, &fill, &validate, &target, &PyTuple_Type, &cells_list) ||
        mds_py_parse_offset(pending, &lines.pending) != 0)
        return NULL;
    const Py_ssize_t columns = parse_fields(sequence, fields);
    if (columns < 0 || mds_py_get_words(target, PyBUF_WRITABLE, &starts, "starts") != 0)
        return NULL;
    const mds_map *source = &((MapObject *)map)->map;
    if (begin > end || end > source->size || PyTuple_Size(cells_list) != columns || missing < 0 ||
        missing > MDS_MISSING_FILL || fill_type < 0 || fill_type > MDS_F64) {
        PyErr_SetString(PyExc_ValueError, "expected a block of the map, cells for every field, a way to treat missing ones");
        goto done;
    }
    if (mds_py_check_capacity(&starts, end - begin) != 0)
        goto done;
    for (; opened < columns; opened++) {
        if (mds_py_get_words(PyTuple_GetItem(cells_list, opened), PyBUF_WRITABLE, &views[opened], "cells") != 0)
            goto done;
        cells[opened] = views[opened].buf;
        if (views[opened].len < starts.len) {
            opened++;
            PyErr_SetString(PyExc_ValueError, "cells: expected as much room as starts have");
            goto done;
        }
    }
    const mds_measuring measuring = {fields, (size_t)columns, (mds_missing)missing,
                                     {(mds_number_type)fill_type, fill}, validate};
    mds_json_status status;
    Py_BEGIN_ALLOW_THREADS
    status = mds_measure_lines(mds_py_kernels, source, begin, end, &measuring, &lines, starts.buf, &measured);
    Py_END_ALLOW_THREADS
    kinds = PyTuple_New(columns);
    for (Py_ssize_t c = 0; kinds && c < columns; c++)
        PyTuple_SetItem(kinds, c, PyLong_FromLong(types[c]));
    PyObject *found = kinds ? mds_py_scanned(measured.records, &lines) : NULL;
    if (found)
        result = Py_BuildValue("NnO(iKnK)", found, (Py_ssize_t)measured.kept, kinds, (int)status,
                               (unsigned long long)measured.failed, (Py_ssize_t)measured.column,
                               (unsigned long long)measured.at);
done:
    Py_XDECREF(kinds);
    while (opened)
        PyBuffer_Release(&views[--opened]);
    PyBuffer_Release(&starts);
    return result;
}

static PyObject *cells_convert(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target;
    int from, to;
    Py_buffer cells;
    if (!PyArg_ParseTuple(args, "Oii:cells_convert", &target, &from, &to) ||
        mds_py_get_words(target, PyBUF_WRITABLE, &cells, "cells") != 0)
        return NULL;
    mds_cells_convert(cells.buf, (size_t)cells.len / 8, (mds_number_type)from, (mds_number_type)to);
    PyBuffer_Release(&cells);
    Py_RETURN_NONE;
}

/* Two buffers of as many numbers, the first of `width` bytes each, the second of `out_width`; -1 with an exception. */
static int take_pair(mds_py_views *all, PyObject *args, unsigned width, unsigned out_width, const void **in, void **out)
{
    PyObject *source, *target;
    if (!PyArg_ParseTuple(args, "OO", &source, &target) ||
        !(*in = mds_py_numbers(all, source, PyBUF_SIMPLE, width, -1, "numbers")))
        return -1;
    *out = mds_py_numbers(all, target, PyBUF_WRITABLE, out_width, all->views[0].len / (Py_ssize_t)width, "out");
    return *out ? 0 : -1;
}

static PyObject *cells_narrow(PyObject *Py_UNUSED(module), PyObject *args)
{
    const void *in;
    void *out;
    PyObject *result = NULL;
    mds_py_views all = {.count = 0};
    if (take_pair(&all, args, 8, 4, &in, &out) == 0) {
        mds_cells_narrow(in, (size_t)all.views[0].len / 8, out);
        result = Py_NewRef(Py_None);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *cells_widen(PyObject *Py_UNUSED(module), PyObject *args)
{
    const void *in;
    void *out;
    PyObject *result = NULL;
    mds_py_views all = {.count = 0};
    if (take_pair(&all, args, 4, 8, &in, &out) == 0) {
        mds_cells_widen(in, (size_t)all.views[0].len / 4, out);
        result = Py_NewRef(Py_None);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *cells_largest(PyObject *Py_UNUSED(module), PyObject *source)
{
    Py_buffer cells;
    if (mds_py_get_words(source, PyBUF_SIMPLE, &cells, "cells") != 0)
        return NULL;
    const uint64_t largest = mds_cells_largest(cells.buf, (size_t)cells.len / 8);
    PyBuffer_Release(&cells);
    return PyLong_FromUnsignedLongLong(largest);
}

static PyMethodDef functions[] = {
    {"measure_record", measure_record, METH_VARARGS,
     "measure_record(variant, (field,), data) -> (status, at, type, bits)"},
    {"json_error", json_error, METH_VARARGS, "json_error(variant, data) -> where data is not JSON, or None"},
    {"measure_lines", measure_lines, METH_VARARGS,
     "measure_lines(map, begin, end, pending, fields, missing, fill, validate, starts, cells) -> "
     "((records, pending, newlines), kept, types, (status, failed, column, at))"},
    {"cells_convert", cells_convert, METH_VARARGS, "cells_convert(cells, from, to): as another type, in place"},
    {"cells_narrow", cells_narrow, METH_VARARGS, "cells_narrow(cells, out): as 32-bit integers"},
    {"cells_widen", cells_widen, METH_VARARGS, "cells_widen(numbers, cells): 32-bit integers as 64-bit ones"},
    {"cells_largest", cells_largest, METH_O, "cells_largest(cells) -> int, as unsigned integers"},
    {NULL, NULL, 0, NULL},
};

static const mds_py_constant constants[] = {
    {"MEASURE_NUMBER", MDS_MEASURE_NUMBER},
    {"MEASURE_BYTES", MDS_MEASURE_BYTES},
    {"MEASURE_CHARS", MDS_MEASURE_CHARS},
    {"MEASURE_ITEMS", MDS_MEASURE_ITEMS},
    {"MEASURE_RECORD", MDS_MEASURE_RECORD},
    {"LONGEST_PATH", MDS_PATH},
    {"MOST_COLUMNS", MDS_PY_COLUMNS},
    {"MISSING_ERROR", MDS_MISSING_ERROR},
    {"MISSING_SKIP", MDS_MISSING_SKIP},
    {"MISSING_FILL", MDS_MISSING_FILL},
    {NULL, 0},
};

int mds_py_add_columns(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) != 0 || mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
