/* py_tar.c - scanning tars, and the members of a sample. */
#include "binding.h"

#include <fcntl.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD PyObject *map; /* MapObject */
    int fd;
    mds_tar state;
} TarScannerObject;

static PyObject *tar_scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"map", "path", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    PyObject *map, *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O&:TarScanner", names, state->map_type, &map,
                                     PyUnicode_FSConverter, &path))
        return NULL;
    TarScannerObject *self = (TarScannerObject *)mds_py_new(type);
    if (self) {
        const char *name = PyBytes_AsString(path);
        Py_INCREF(map);
        self->map = map;
        RELEASE_GIL(self->fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
        if (self->fd < 0) {
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
            Py_CLEAR(self);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void tar_scanner_dealloc(PyObject *self)
{
    Py_XDECREF(((TarScannerObject *)self)->map);
    if (((TarScannerObject *)self)->fd >= 0)
        close(((TarScannerObject *)self)->fd);
    mds_py_free(self);
}

/* A call of the scanner, and what it found. */
typedef struct {
    const TarScannerObject *scanner;
    mds_tar state;
    uint64_t *begins, *sizes, *hashes;
    size_t room, count;
    mds_tar_status status;
} tar_call;

static mds_status guarded_scan(tar_call *call)
{
    const mds_map *map = &((MapObject *)call->scanner->map)->map;
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    call->status = mds_tar_scan(map->data, map->size, call->scanner->fd, &call->state, call->begins, call->sizes,
                                call->hashes, call->room, &call->count);
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *tar_scan(PyObject *object, PyObject *args)
{
    TarScannerObject *self = (TarScannerObject *)object;
    PyObject *targets[3], *result = NULL;
    uint64_t *begins, *sizes, *hashes;
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "OOO:scan", &targets[0], &targets[1], &targets[2]) ||
        !(begins = mds_py_take_words(&buffers, targets[0], MDS_PY_WRITE, MDS_PY_ANY, "begins")))
        goto done;
    const size_t room = buffers.entries;
    if (!(sizes = mds_py_take_words(&buffers, targets[1], MDS_PY_WRITE, room, "sizes")) ||
        !(hashes = mds_py_take_words(&buffers, targets[2], MDS_PY_WRITE, room, "hashes")))
        goto done;
    tar_call call = {.scanner = self, .begins = begins, .sizes = sizes, .hashes = hashes, .room = room};
    call.state = self->state; /* a copy: other threads may use the original meanwhile */
    mds_status read;
    RELEASE_GIL(read = guarded_scan(&call));
    if (read != MDS_OK) {
        const MapObject *map = (MapObject *)self->map;
        mds_py_raise_unread(read, PyBytes_AsString(map->path), map->map.size);
        goto done;
    }
    self->state = call.state;
    result = Py_BuildValue("inKKK", (int)call.status, (Py_ssize_t)call.count, (unsigned long long)call.state.at,
                           (unsigned long long)call.state.end, (unsigned long long)call.state.samples);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef tar_scanner_methods[] = {
    {"scan", tar_scan, METH_VARARGS,
     "scan($self, begins, sizes, hashes, /)\n--\n\n"
     "Find the next samples: write where each begins, how many bytes lie before the next, and the hash of its key.\n\n"
     "begins, sizes, hashes: u64, one shape. Returns (status, samples found now, at, end of the last, all samples);\n"
     "status is one of TAR_*, and at is the next header, or the byte that shows what is wrong.\n\n"
     "Raises EOFError when the file became shorter while it was read."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tar_scanner_slots[] = {
    {Py_tp_doc,
     "TarScanner(map, path)\n--\n\n"
     "Finds the samples of a mapped tar, some at a time; headers far apart are read from the file at path.\n\n"
     "Raises OSError when the file cannot be opened."},
    {Py_tp_new, tar_scanner_new},
    {Py_tp_dealloc, tar_scanner_dealloc},
    {Py_tp_methods, tar_scanner_methods},
    {0, NULL},
};

static PyType_Spec tar_scanner_spec = {"mmapds._native.TarScanner", sizeof(TarScannerObject), 0, Py_TPFLAGS_DEFAULT,
                                       tar_scanner_slots};

/* Decode a name as Python's tarfile does. */
static PyObject *tar_text(const uint8_t *text, uint64_t n)
{
    return PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)n, "surrogateescape");
}

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
    {NULL, 0},
};

int mds_py_add_tar(PyObject *module)
{
    if (mds_py_add_type(module, &tar_scanner_spec, NULL) != 0 || PyModule_AddFunctions(module, functions) != 0 ||
        mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
