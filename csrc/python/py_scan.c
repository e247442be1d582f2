/* py_scan.c - where records begin: lines and frames; varints and checksums. */
#include "binding.h"

#include <errno.h>

PyObject *mds_py_scanned(size_t count, const mds_lines *state)
{
    PyObject *pending = state->pending == MDS_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(state->pending);
    return pending ? Py_BuildValue("nNK", (Py_ssize_t)count, pending, (unsigned long long)state->newlines) : NULL;
}

/* An offset, or None for MDS_NONE. */
int mds_py_parse_offset(PyObject *object, uint64_t *offset)
{
    *offset = object == Py_None ? MDS_NONE : PyLong_AsUnsignedLongLong(object);
    return PyErr_Occurred() ? -1 : 0;
}

int mds_py_check_capacity(const Py_buffer *starts, uint64_t n)
{
    if ((uint64_t)starts->len / 8 >= MDS_LINES_CAPACITY(n))
        return 0;
    PyErr_Format(PyExc_ValueError, "starts has room for %zd records, expected %llu", starts->len / 8,
                 (unsigned long long)MDS_LINES_CAPACITY(n));
    return -1;
}

static PyObject *scan_lines(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd;
    unsigned long long begin, end;
    PyObject *pending, *target;
    mds_lines state = {MDS_NONE, 0};
    Py_buffer starts, scratch;
    if (!PyArg_ParseTuple(args, "iKKOOw*:scan_lines", &fd, &begin, &end, &pending, &target, &scratch))
        return NULL;
    PyObject *result = NULL;
    if (begin > end) {
        PyErr_SetString(PyExc_ValueError, "begin is beyond end");
    } else if (mds_py_parse_offset(pending, &state.pending) == 0 && mds_py_get_words(target, PyBUF_WRITABLE, &starts, "starts") == 0) {
        if (mds_py_check_capacity(&starts, end - begin) == 0) {
            size_t count;
            mds_status status;
            Py_BEGIN_ALLOW_THREADS
            status = mds_lines_scan_file(mds_py_kernels, fd, begin, end, scratch.buf, (size_t)scratch.len, &state, starts.buf,
                                         &count);
            Py_END_ALLOW_THREADS
            if (status == MDS_OK)
                result = mds_py_scanned(count, &state);
            else if (status == MDS_SHRANK)
                PyErr_SetString(PyExc_EOFError, "the file became shorter while it was read");
            else
                PyErr_SetFromErrno(PyExc_OSError);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&scratch);
    return result;
}

static PyObject *scan_buffer(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    Py_buffer data, starts;
    unsigned long long base;
    PyObject *pending, *target;
    mds_lines state = {MDS_NONE, 0};
    if (!PyArg_ParseTuple(args, "zy*KOO:scan_buffer", &variant, &data, &base, &pending, &target))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (chosen && mds_py_parse_offset(pending, &state.pending) == 0 && mds_py_get_words(target, PyBUF_WRITABLE, &starts, "starts") == 0) {
        if (mds_py_check_capacity(&starts, (uint64_t)data.len) == 0) {
            const size_t count = mds_lines_scan(chosen, data.buf, (size_t)data.len, base, &state, starts.buf);
            result = mds_py_scanned(count, &state);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *record_sizes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *before;
    unsigned long long smallest, largest;
    uint64_t previous;
    Py_buffer starts;
    if (!PyArg_ParseTuple(args, "OOKK:record_sizes", &source, &before, &smallest, &largest) ||
        mds_py_parse_offset(before, &previous) != 0 || mds_py_get_words(source, PyBUF_SIMPLE, &starts, "starts") != 0)
        return NULL;
    uint64_t low = smallest, high = largest;
    mds_record_sizes(starts.buf, (size_t)starts.len / 8, previous, &low, &high);
    PyBuffer_Release(&starts);
    return Py_BuildValue("KK", (unsigned long long)low, (unsigned long long)high);
}

static PyObject *frames_scan(PyObject *module, PyObject *args)
{
    const mds_py_state *state = PyModule_GetState(module);
    PyObject *map, *target, *sizes_target;
    int framing;
    unsigned long long at, end;
    Py_buffer starts, sizes = {.buf = NULL};
    if (!PyArg_ParseTuple(args, "O!iKKOO:frames_scan", state->map_type, &map, &framing, &at, &end, &target,
                          &sizes_target) ||
        mds_py_get_words(target, PyBUF_WRITABLE, &starts, "starts") != 0)
        return NULL;
    PyObject *result = NULL;
    if (sizes_target != Py_None && mds_py_get_words(sizes_target, PyBUF_WRITABLE, &sizes, "sizes") != 0) {
        PyBuffer_Release(&starts);
        return NULL;
    }
    mds_frames frames = {.at = at};
    mds_frames_status status;
    size_t count;
    if (sizes.buf && sizes.len < starts.len) {
        PyErr_SetString(PyExc_ValueError, "sizes: expected as much room as starts have");
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = mds_frames_scan(mds_py_kernels, &((MapObject *)map)->map, (mds_framing)framing, end, &frames, starts.buf,
                                 sizes.buf, (size_t)starts.len / 8, &count);
        Py_END_ALLOW_THREADS
        if (status == MDS_FRAMES_NO_FRAMING)
            PyErr_Format(PyExc_ValueError, "framing %d is not one of frames", framing);
        else
            result = Py_BuildValue("nKiKII", (Py_ssize_t)count, (unsigned long long)frames.at, (int)status,
                                   (unsigned long long)frames.payload, frames.found, frames.expected);
    }
    if (sizes.buf)
        PyBuffer_Release(&sizes);
    PyBuffer_Release(&starts);
    return result;
}

static PyObject *frames_verify(PyObject *module, PyObject *args)
{
    const mds_py_state *state = PyModule_GetState(module);
    PyObject *map;
    unsigned long long at, end;
    if (!PyArg_ParseTuple(args, "O!KK:frames_verify", state->map_type, &map, &at, &end))
        return NULL;
    mds_frames frames = {.at = at};
    mds_frames_status status;
    uint64_t count;
    Py_BEGIN_ALLOW_THREADS
    status = mds_frames_verify(mds_py_kernels, &((MapObject *)map)->map, end, &frames, &count);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("KKiKII", (unsigned long long)count, (unsigned long long)frames.at, (int)status,
                         (unsigned long long)frames.payload, frames.found, frames.expected);
}

static PyObject *varints(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "y*nn:varints", &data, &begin, &end))
        return NULL;
    PyObject *result = NULL;
    if (begin < 0 || begin > end || end > data.len) {
        PyErr_Format(PyExc_ValueError, "bytes %zd to %zd of %zd", begin, end, data.len);
    } else {
        const uint8_t *bytes = (const uint8_t *)data.buf + begin;
        const size_t n = (size_t)(end - begin);
        size_t at;
        result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)mds_varints_count(bytes, n) * 8);
        if (result && mds_varints_read(bytes, n, (uint64_t *)PyByteArray_AsString(result), &at) != MDS_OK) {
            PyErr_Format(PyExc_ValueError, "byte %zd: an integer that does not end", begin + (Py_ssize_t)at);
            Py_CLEAR(result);
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    unsigned int crc;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zIy*:crc32c", &variant, &crc, &data))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (chosen)
        result = PyLong_FromUnsignedLong(chosen->crc32c(crc, data.buf, (size_t)data.len));
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef functions[] = {
    {"scan_lines", scan_lines, METH_VARARGS,
     "scan_lines(fd, begin, end, pending, starts, scratch) -> (count, pending, newlines)"},
    {"scan_buffer", scan_buffer, METH_VARARGS,
     "scan_buffer(variant, data, base, pending, starts) -> (count, pending, newlines)"},
    {"record_sizes", record_sizes, METH_VARARGS,
     "record_sizes(starts, previous, smallest, largest) -> (smallest, largest), widened"},
    {"frames_scan", frames_scan, METH_VARARGS,
     "frames_scan(map, framing, at, end, starts, sizes) -> (count, at, status, payload, found, expected)"},
    {"frames_verify", frames_verify, METH_VARARGS,
     "frames_verify(map, at, end) -> (count, at, status, payload, found, expected): all CRCs of TFRecords"},
    {"varints", varints, METH_VARARGS, "varints(data, begin, end) -> the varints there, as a bytearray of 64-bit words"},
    {"crc32c", crc32c, METH_VARARGS, "crc32c(variant, crc, data) -> the CRC32C of what had crc, followed by data"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_scan(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
