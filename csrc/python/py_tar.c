/* py_tar.c - scanning tars, and the members of a sample. */
#include "binding.h"

#include <fcntl.h>
#include <unistd.h>

/* Decode a name as Python's tarfile does. */
static PyObject *tar_text(const uint8_t *text, uint64_t n)
{
    return PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)n, "surrogateescape");
}

/* ---- scanning */

typedef struct {
    PyObject_HEAD int fd; /* the file to read distant headers from, or -1 */
    int busy;             /* a call is running, without the GIL */
    uint8_t *key;         /* of the open sample, if it lies before the bytes of the next call */
    mds_tar state;
} TarScannerObject;

static PyObject *tar_scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", NULL};
    PyObject *path = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&:TarScanner", names, PyUnicode_FSConverter, &path))
        return NULL;
    TarScannerObject *self = (TarScannerObject *)mds_py_new(type);
    if (self)
        self->fd = -1;
    if (self && path) {
        const char *name = PyBytes_AsString(path);
        RELEASE_GIL(self->fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (self->fd < 0) {
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
            Py_CLEAR(self);
        }
    }
    Py_XDECREF(path);
    return (PyObject *)self;
}

static void tar_scanner_dealloc(PyObject *self)
{
    if (((TarScannerObject *)self)->fd >= 0)
        close(((TarScannerObject *)self)->fd);
    PyMem_Free(((TarScannerObject *)self)->key);
    mds_py_free(self);
}

#define SHOWN 1024 /* bytes of a name that a message shows */

/* A call of the scanner, and its results. */
typedef struct {
    mds_tar_archive archive;
    mds_tar state; /* a copy: an error leaves the original as it was */
    mds_py_buffers *buffers;
    uint64_t *begins, *sizes, *hashes;
    size_t room, count;
    mds_tar_status status;
    mds_tar_member member;
    uint8_t key[SHOWN], extension[SHOWN]; /* of a duplicate member, copied: its name may lie in the map */
    size_t key_size, extension_size;
} tar_call;

static int take_targets(tar_call *call, PyObject *const *targets)
{
    if (!(call->begins = mds_py_take_words(call->buffers, targets[0], MDS_PY_WRITE, MDS_PY_ANY, "begins")))
        return 0;
    call->room = call->buffers->entries;
    return (call->sizes = mds_py_take_words(call->buffers, targets[1], MDS_PY_WRITE, call->room, "sizes")) &&
           (call->hashes = mds_py_take_words(call->buffers, targets[2], MDS_PY_WRITE, call->room, "hashes"));
}

static void scan(tar_call *call)
{
    call->status = mds_tar_scan(&call->archive, &call->state, call->begins, call->sizes, call->hashes, call->room,
                                &call->count, &call->member);
    const mds_tar_member *member = &call->member;
    if (call->status != MDS_TAR_DUPLICATE)
        return;
    call->key_size = member->key_size < SHOWN ? (size_t)member->key_size : SHOWN;
    call->extension_size = member->extension_size < SHOWN ? (size_t)member->extension_size : SHOWN;
    memcpy(call->key, member->name, call->key_size);
    memcpy(call->extension, member->extension, call->extension_size);
}

static mds_status guarded_scan(tar_call *call)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    scan(call);
    mds_guard_leave();
    return MDS_OK;
}

/* Return the result of a call, with the bytes to keep or the details of an error. */
static PyObject *found(const tar_call *call)
{
    const mds_tar_member *member = &call->member;
    PyObject *more = Py_None;
    if (call->status == MDS_TAR_DUPLICATE)
        more =
            Py_BuildValue("NN", tar_text(call->key, call->key_size), tar_text(call->extension, call->extension_size));
    else if (call->status == MDS_TAR_MORE)
        more = Py_BuildValue("KK", (unsigned long long)member->held, (unsigned long long)member->needed);
    else
        Py_INCREF(more);
    return more
               ? Py_BuildValue("inKKKN", (int)call->status, (Py_ssize_t)call->count, (unsigned long long)call->state.at,
                               (unsigned long long)call->state.end, (unsigned long long)call->state.samples, more)
               : NULL;
}

static mds_status guarded_copy(uint8_t *out, const uint8_t *data, size_t n)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    memcpy(out, data, n);
    mds_guard_leave();
    return MDS_OK;
}

/* Keep the key of the open sample, if it lies in the available bytes; 0 with an exception. */
static int keep_key(TarScannerObject *self, const tar_call *call)
{
    const mds_tar *state = &call->state;
    if (!state->open || state->key_at == MDS_NONE || state->key_at < call->archive.begin)
        return 1;
    uint8_t *key = PyMem_Realloc(self->key, (size_t)state->key_size);
    if (!key) {
        PyErr_NoMemory();
        return 0;
    }
    self->key = key;
    const uint8_t *data = call->archive.data + (state->key_at - call->archive.begin);
    if (guarded_copy(key, data, (size_t)state->key_size) == MDS_OK)
        return 1;
    mds_py_raise_shrank();
    return 0;
}

static PyObject *tar_scan(PyObject *object, PyObject *args)
{
    TarScannerObject *self = (TarScannerObject *)object;
    PyObject *data, *targets[3], *result = NULL;
    unsigned long long size;
    int is_whole;
    MDS_PY_BUFFERS(buffers, 4);
    tar_call call = {.buffers = &buffers};
    if (!PyArg_ParseTuple(args, "OKpOOO:scan", &data, &size, &is_whole, &targets[0], &targets[1], &targets[2]))
        return NULL;
    if (!mds_py_enter(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "TarScanner: expected one call at a time, found another thread in one");
        return NULL;
    }
    call.state = self->state;
    const uint8_t *bytes = mds_py_take_bytes(&buffers, data, MDS_PY_READ);
    if (!bytes)
        goto done;
    const uint64_t at = call.state.at, count = buffers.entries;
    if (size < at || count > size - at) {
        PyErr_Format(PyExc_ValueError, "data: expected up to %llu bytes, found %llu",
                     size < at ? 0 : size - (unsigned long long)at, (unsigned long long)count);
        goto done;
    }
    if (!take_targets(&call, targets))
        goto done;
    call.archive = (mds_tar_archive){.data = bytes, .begin = at, .end = at + count, .size = size, .is_whole = is_whole};
    call.archive.fd = self->fd;
    call.archive.key = self->key;
    mds_status read;
    RELEASE_GIL(read = guarded_scan(&call));
    if (read != MDS_OK) {
        mds_py_raise_shrank();
        goto done;
    }
    if (!keep_key(self, &call))
        goto done;
    self->state = call.state;
    result = found(&call);
done:
    mds_py_leave(&self->busy);
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef tar_scanner_methods[] = {
    {"scan", tar_scan, METH_VARARGS,
     "scan($self, data, size, is_whole, begins, sizes, hashes, /)\n--\n\n"
     "Find the next samples: write the begin of each, the bytes up to the next, and the hash of its key.\n\n"
     "data: bytes of the archive from `at` on, where the call before stopped. size: the bytes of the archive so "
     "far.\n"
     "is_whole: whether these are all. begins, sizes, hashes: u64, one shape.\n\n"
     "Returns (status, samples found now, at, end of the last, all samples, more). status is one of TAR_*, and at is "
     "the\n"
     "next header, or the byte of the error. After TAR_DUPLICATE, more is the key and the extension; "
     "after\n"
     "TAR_MORE it is (held, needed): to continue, data must reach to byte held at least, and size to needed, unless "
     "the\n"
     "archive is whole; else it is None.\n\n"
     "Raises EOFError when data is a map whose file became shorter."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tar_scanner_slots[] = {
    {Py_tp_doc, "TarScanner(path=None)\n--\n\n"
                "Finds the samples of a tar, which may come in pieces.\n\n"
                "path: of a tar that lies in a file as it is; headers far apart are read from there.\n\n"
                "Raises OSError when the file cannot be opened."},
    {Py_tp_new, tar_scanner_new},
    {Py_tp_dealloc, tar_scanner_dealloc},
    {Py_tp_methods, tar_scanner_methods},
    {0, NULL},
};

static PyType_Spec tar_scanner_spec = {"mmapds._native.TarScanner", sizeof(TarScannerObject), 0, Py_TPFLAGS_DEFAULT,
                                       tar_scanner_slots};

/* ---- members */

static PyObject *tar_members(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *result = NULL, *key = NULL, *list = NULL;
    Py_ssize_t limit;
    MDS_PY_BUFFERS(buffers, 1);
    const uint8_t *record;
    if (!PyArg_ParseTuple(args, "On:tar_members", &source, &limit) ||
        !(record = mds_py_take_bytes(&buffers, source, MDS_PY_READ)) || !(list = PyList_New(0)))
        goto done;
    mds_tar_sample sample;
    sample.at = sample.first.key_size = 0;
    mds_tar_status status = MDS_TAR_OK;
    while (PyList_Size(list) < limit) {
        const mds_tar_member *member;
        status = mds_tar_sample_next(record, buffers.entries, &sample, &member);
        if (status != MDS_TAR_OK)
            break;
        if (!key && !(key = tar_text(member->name, member->key_size)))
            goto done;
        PyObject *item = Py_BuildValue("NKK", tar_text(member->extension, member->extension_size),
                                       (unsigned long long)member->begin, (unsigned long long)member->end);
        const int failed = !item || PyList_Append(list, item) != 0;
        Py_XDECREF(item);
        if (failed)
            goto done;
    }
    result = Py_BuildValue("iKOO", (int)status, (unsigned long long)sample.at, key ? key : Py_None, list);
done:
    Py_XDECREF(key);
    Py_XDECREF(list);
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *tar_hash(PyObject *Py_UNUSED(module), PyObject *source)
{
    uint32_t hash;
    MDS_PY_BUFFERS(buffers, 1);
    const uint8_t *key = mds_py_take_bytes(&buffers, source, MDS_PY_READ);
    if (key)
        RELEASE_GIL(hash = mds_tar_hash(key, buffers.entries));
    mds_py_give_back(&buffers);
    return key ? PyLong_FromUnsignedLong(hash) : NULL;
}

static PyMethodDef functions[] = {
    {"tar_members", tar_members, METH_VARARGS,
     "tar_members($module, record, limit, /)\n--\n\n"
     "Return (status, at, key, [(extension, begin, end), ...]) of the first `limit` members of one sample.\n\n"
     "status is one of TAR_*; key is None if there is no member. begin and end are byte offsets in record."},
    {"tar_hash", tar_hash, METH_O,
     "tar_hash($module, key, /)\n--\n\n"
     "Return the hash of 32 bits by which an index looks up a key; key is bytes."},
    {NULL, NULL, 0, NULL},
};

static const mds_py_constant constants[] = {
    {"TAR_OK", MDS_TAR_OK},
    {"TAR_END", MDS_TAR_END},
    {"TAR_TRUNCATED", MDS_TAR_TRUNCATED},
    {"TAR_GARBAGE", MDS_TAR_GARBAGE},
    {"TAR_NUMBER", MDS_TAR_NUMBER},
    {"TAR_EXTENDED", MDS_TAR_EXTENDED},
    {"TAR_GLOBAL", MDS_TAR_GLOBAL},
    {"TAR_SPARSE", MDS_TAR_SPARSE},
    {"TAR_ZEROS", MDS_TAR_ZEROS},
    {"TAR_DUPLICATE", MDS_TAR_DUPLICATE},
    {"TAR_MORE", MDS_TAR_MORE},
    {"TAR_BLOCK", MDS_TAR_BLOCK},
    {NULL, 0},
};

int mds_py_add_tar(PyObject *module)
{
    if (mds_py_add_type(module, &tar_scanner_spec, NULL) != 0 || PyModule_AddFunctions(module, functions) != 0 ||
        mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
