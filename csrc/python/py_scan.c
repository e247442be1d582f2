/* py_scan.c - where records begin: lines and frames; the varints and checksums inside them. */
#include "binding.h"

/* ---- lines --------------------------------------------------------------------------------------------- */

PyObject *mds_py_raise_shrank(void)
{
    PyErr_SetString(PyExc_EOFError, "the file became shorter while it was read");
    return NULL;
}

PyObject *mds_py_scanned(size_t count, const mds_lines *state)
{
    PyObject *pending = mds_py_offset(state->pending);
    return pending ? Py_BuildValue("nNK", (Py_ssize_t)count, pending, (unsigned long long)state->newlines) : NULL;
}

uint64_t *mds_py_take_starts(mds_py_buffers *buffers, PyObject *object, uint64_t n)
{
    uint64_t *starts = mds_py_take_words(buffers, object, MDS_PY_WRITE, MDS_PY_ANY, "starts");
    if (!starts || buffers->entries >= MDS_LINES_CAPACITY(n))
        return starts;
    PyErr_Format(PyExc_ValueError, "starts: expected %llu entries or more, found %zu",
                 (unsigned long long)MDS_LINES_CAPACITY(n), buffers->entries);
    return NULL;
}

static mds_status guarded_lines(const mds_kernels *kernels, const uint8_t *data, size_t n, uint64_t base,
                                mds_lines *state, uint64_t *starts, size_t *count)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    *count = mds_lines_scan(kernels, data, n, base, state, starts, MDS_LINES_CAPACITY(n));
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *scan_lines(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    unsigned long long base;
    PyObject *source, *pending, *target, *result = NULL;
    const uint8_t *data;
    uint64_t *starts;
    mds_lines state = {MDS_NONE, 0};
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "zOO&OO:scan_lines", &variant, &source, mds_py_size, &base, &pending, &target))
        return NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (!chosen || mds_py_parse_offset(pending, &state.pending) != 0 ||
        !(data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        goto done;
    const size_t n = buffers.entries;
    if (!(starts = mds_py_take_starts(&buffers, target, n)) || mds_py_expect_apart(&buffers, NULL, "starts") != 0)
        goto done;
    size_t count;
    mds_status read;
    RELEASE_GIL(read = guarded_lines(chosen, data, n, base, &state, starts, &count));
    result = read == MDS_OK ? mds_py_scanned(count, &state) : mds_py_raise_shrank();
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *record_sizes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *before;
    unsigned long long smallest, largest;
    uint64_t previous;
    const uint64_t *starts;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "OOO&O&:record_sizes", &source, &before, mds_py_size, &smallest, mds_py_size,
                          &largest) ||
        mds_py_parse_offset(before, &previous) != 0)
        return NULL;
    uint64_t low = smallest, high = largest;
    if ((starts = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "starts")))
        RELEASE_GIL(mds_record_sizes(starts, buffers.entries, previous, &low, &high));
    mds_py_give_back(&buffers);
    return starts ? Py_BuildValue("KK", (unsigned long long)low, (unsigned long long)high) : NULL;
}

/* ---- frames -------------------------------------------------------------------------------------------- */

/* A scan of frames, and its results. */
typedef struct {
    const mds_map *map;
    mds_framing framing;
    uint64_t end;
    mds_frames state;
    uint64_t *starts, *sizes;
    size_t room, count;
    mds_frames_status status;
} frames_call;

static mds_status guarded_scan(frames_call *call)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    call->status = mds_frames_scan(mds_py_kernels, call->map, call->framing, call->end, &call->state, call->starts,
                                   call->sizes, call->room, &call->count);
    mds_guard_leave();
    return MDS_OK;
}

static mds_status guarded_verify(frames_call *call)
{
    mds_guard guard;
    uint64_t count;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    call->status = mds_frames_verify(mds_py_kernels, call->map, call->end, &call->state, &count);
    call->count = (size_t)count;
    mds_guard_leave();
    return MDS_OK;
}

/* Take the data of a call, which lie at byte `base` of some content; count from there. */
static int take_content(mds_py_buffers *buffers, PyObject *source, uint64_t base, frames_call *call, mds_map *map)
{
    if (call->end < base) {
        PyErr_Format(PyExc_ValueError, "end: expected %llu or more, found %llu", (unsigned long long)base,
                     (unsigned long long)call->end);
        return -1;
    }
    if (!(map->data = mds_py_take_bytes(buffers, source, MDS_PY_READ)))
        return -1;
    map->size = buffers->entries;
    call->map = map;
    call->end -= base;
    return 0;
}

static PyObject *frames_found(const frames_call *call, uint64_t base)
{
    return Py_BuildValue("nKiKII", (Py_ssize_t)call->count, (unsigned long long)(base + call->state.at),
                         (int)call->status, (unsigned long long)call->state.payload, call->state.found,
                         call->state.expected);
}

static PyObject *frames_scan(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *target, *sizes_target, *result = NULL;
    int framing;
    unsigned long long base, end;
    mds_map map = {0};
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "OiO&O&OO:frames_scan", &source, &framing, mds_py_size, &base, mds_py_size, &end,
                          &target, &sizes_target))
        return NULL;
    frames_call call = {.framing = (mds_framing)framing, .end = end};
    if (take_content(&buffers, source, base, &call, &map) != 0 ||
        !(call.starts = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "starts")))
        goto done;
    call.room = buffers.entries;
    if (sizes_target != Py_None &&
        !(call.sizes = mds_py_take_words(&buffers, sizes_target, MDS_PY_WRITE, call.room, "sizes")))
        goto done;
    mds_status read;
    RELEASE_GIL({
        read = guarded_scan(&call);
        for (size_t k = 0; base && read == MDS_OK && k < call.count; k++)
            call.starts[k] += base;
    });
    if (read != MDS_OK)
        mds_py_raise_shrank();
    else if (call.status == MDS_FRAMES_NO_FRAMING)
        PyErr_Format(PyExc_ValueError, "framing: expected FRAMING_U32LE to FRAMING_TFRECORD, found %d", framing);
    else
        result = frames_found(&call, base);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *frames_verify(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *result = NULL;
    unsigned long long base, end;
    mds_map map = {0};
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "OO&O&:frames_verify", &source, mds_py_size, &base, mds_py_size, &end))
        return NULL;
    frames_call call = {.end = end};
    if (take_content(&buffers, source, base, &call, &map) == 0) {
        mds_status read;
        RELEASE_GIL(read = guarded_verify(&call));
        result = read == MDS_OK ? frames_found(&call, base) : mds_py_raise_shrank();
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *varints(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *result = NULL;
    Py_ssize_t begin, end;
    const uint8_t *data;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "Onn:varints", &source, &begin, &end) ||
        !(data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        return NULL;
    if (begin < 0 || begin > end || (size_t)end > buffers.entries) {
        PyErr_Format(PyExc_ValueError, "begin, end: expected a range of bytes from 0 to %zu, found %zd to %zd",
                     buffers.entries, begin, end);
    } else {
        const size_t n = (size_t)(end - begin);
        size_t count, at;
        mds_status status = MDS_OK;
        RELEASE_GIL(count = mds_varints_count(data + begin, n));
        if ((result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)count * 8))) {
            uint64_t *out = (uint64_t *)PyByteArray_AsString(result); /* still private to this call */
            RELEASE_GIL(status = mds_varints_read(data + begin, n, out, &at));
        }
        if (status != MDS_OK) {
            PyErr_Format(PyExc_ValueError, "data: expected varints that end within 10 bytes, found another at byte %zd",
                         begin + (Py_ssize_t)at);
            Py_CLEAR(result);
        }
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    unsigned int crc;
    PyObject *source;
    const uint8_t *data;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "zIO:crc32c", &variant, &crc, &source))
        return NULL;
    const mds_kernels *chosen = mds_py_find_kernels(variant);
    if (!chosen || !(data = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        return NULL;
    RELEASE_GIL(crc = mds_crc32c(chosen, crc, data, buffers.entries));
    mds_py_give_back(&buffers);
    return PyLong_FromUnsignedLong(crc);
}

/* ---- the subject --------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"scan_lines", scan_lines, METH_VARARGS,
     "scan_lines($module, variant, data, base, pending, starts, /)\n--\n\n"
     "Find the records that begin in data, lines at byte base of a text; return (count, pending, newlines).\n\n"
     "variant: a SIMD variant, None for the best.\n"
     "pending: where the line at byte `base` starts if it has been blank so far, else None; returned for the end.\n"
     "starts: u64 with len(data) / 2 + 2 entries or more, filled with where records begin in the text.\n\n"
     "Raises ValueError for too little room, EOFError when data is a map whose file became shorter."},
    {"record_sizes", record_sizes, METH_VARARGS,
     "record_sizes($module, starts, previous, smallest, largest, /)\n--\n\n"
     "Return (smallest, largest), widened to the sizes of the records that begin at starts; each ends where the next\n"
     "begins.\n\n"
     "starts: u64. previous: the start before the first, or None."},
    {"frames_scan", frames_scan, METH_VARARGS,
     "frames_scan($module, data, framing, at, end, starts, sizes, /)\n--\n\n"
     "Find the frames that begin in bytes [at, end) of some content: (count, at, status, payload, found, expected).\n\n"
     "data: the content from byte `at` on. framing: one of FRAMING_*. starts, sizes: u64, filled with where frames\n"
     "begin and the bytes of their payloads; sizes may be None. The `at` that is returned is where the next frame\n"
     "begins, or the one that cannot be read. status is one of FRAMES_*; found and expected are CRCs that differ or,\n"
     "after FRAMES_PAYLOAD_CUT, bytes of framing before the payload and behind it.\n\n"
     "Raises ValueError when sizes has less room than starts, or framing has no sizes; EOFError when data is a map\n"
     "whose file became shorter."},
    {"frames_verify", frames_verify, METH_VARARGS,
     "frames_verify($module, data, at, end, /)\n--\n\n"
     "Check all CRCs of the TFRecords that begin in bytes [at, end) of some content; returns what frames_scan does."},
    {"varints", varints, METH_VARARGS,
     "varints($module, data, begin, end, /)\n--\n\n"
     "Decode the varints in bytes [begin, end) of data; return a bytearray of 64-bit words.\n\n"
     "Raises ValueError when one does not end, or has more than 10 bytes."},
    {"crc32c", crc32c, METH_VARARGS,
     "crc32c($module, variant, crc, data, /)\n--\n\n"
     "Return a CRC32C, continued over data: crc is that of the bytes before, 0 if there are none.\n\n"
     "variant: a SIMD variant, None for the best."},
    {NULL, NULL, 0, NULL},
};

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
    {"FRAMES_OK", MDS_FRAMES_OK},
    {"FRAMES_PREFIX_CUT", MDS_FRAMES_PREFIX_CUT},
    {"FRAMES_PAYLOAD_CUT", MDS_FRAMES_PAYLOAD_CUT},
    {"FRAMES_NO_VARINT", MDS_FRAMES_NO_VARINT},
    {"FRAMES_LENGTH_CRC", MDS_FRAMES_LENGTH_CRC},
    {"FRAMES_DATA_CRC", MDS_FRAMES_DATA_CRC},
    {NULL, 0},
};

int mds_py_add_scan(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
