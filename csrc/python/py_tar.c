/* py_tar.c - scanning tars, and the members of a sample. */
#include "binding.h"

#include <fcntl.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    PyObject *map; /* MapObject */
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
        Py_BEGIN_ALLOW_THREADS
        self->fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        Py_END_ALLOW_THREADS
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

static PyObject *tar_scan(PyObject *object, PyObject *args)
{
    TarScannerObject *self = (TarScannerObject *)object;
    PyObject *targets[3], *result = NULL;
    Py_buffer views[3];
    int opened = 0;
    if (!PyArg_ParseTuple(args, "OOO:scan", &targets[0], &targets[1], &targets[2]))
        return NULL;
    for (; opened < 3; opened++)
        if (mds_py_get_words(targets[opened], PyBUF_WRITABLE, &views[opened], "begins, sizes, hashes") != 0)
            goto done;
    if (views[0].len != views[1].len || views[0].len != views[2].len) {
        PyErr_SetString(PyExc_ValueError, "begins, sizes, hashes: expected as much room in each");
        goto done;
    }
    const mds_map *map = &((MapObject *)self->map)->map;
    mds_tar state = self->state; /* a copy: other threads may use the original meanwhile */
    mds_tar_status status;
    size_t count;
    Py_BEGIN_ALLOW_THREADS
    status = mds_tar_scan(map->data, map->size, self->fd, &state, views[0].buf, views[1].buf, views[2].buf,
                          (size_t)views[0].len / 8, &count);
    Py_END_ALLOW_THREADS
    self->state = state;
    result = Py_BuildValue("inKKK", (int)status, (Py_ssize_t)count, (unsigned long long)state.at,
                           (unsigned long long)state.end, (unsigned long long)state.samples);
done:
    while (opened)
        PyBuffer_Release(&views[--opened]);
    return result;
}

static PyMethodDef tar_scanner_methods[] = {
    {"scan", tar_scan, METH_VARARGS,
     "scan(begins, sizes, hashes) -> (status, samples found now, at, end of the last, samples found so far)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tar_scanner_slots[] = {
    {Py_tp_doc, "Finds the samples of a mapped tar, some at a time."},
    {Py_tp_new, tar_scanner_new},
    {Py_tp_dealloc, tar_scanner_dealloc},
    {Py_tp_methods, tar_scanner_methods},
    {0, NULL},
};

static PyType_Spec tar_scanner_spec = {"mmapds._native.TarScanner", sizeof(TarScannerObject), 0, Py_TPFLAGS_DEFAULT,
                                       tar_scanner_slots};

/* Text as Python's tarfile makes it of a name. */
static PyObject *tar_text(const uint8_t *text, uint64_t n)
{
    return PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)n, "surrogateescape");
}

static PyObject *tar_members(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer record;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "y*n:tar_members", &record, &limit))
        return NULL;
    mds_tar_member first = {.next = 0}, other;
    mds_tar_status status = MDS_TAR_OK;
    uint64_t at = 0;
    PyObject *result = NULL, *key = NULL, *list = PyList_New(0);
    while (list && PyList_Size(list) < limit) {
        mds_tar_member *member = key ? &other : &first;
        status = mds_tar_next(record.buf, (uint64_t)record.len, at, member);
        at = member->next;
        if (status != MDS_TAR_OK)
            break;
        if (!member->key_size)
            continue;
        if (key && !mds_tar_same_key(&first, member)) {
            status = MDS_TAR_GARBAGE;
            at = member->header;
            break;
        }
        if (!key && !(key = tar_text(member->name, member->key_size)))
            goto done;
        PyObject *item = Py_BuildValue("NKK", tar_text(member->extension, member->extension_size),
                                       (unsigned long long)member->begin, (unsigned long long)member->end);
        const int failed = !item || PyList_Append(list, item) != 0;
        Py_XDECREF(item);
        if (failed)
            goto done;
    }
    if (list)
        result = Py_BuildValue("iKOO", (int)status, (unsigned long long)at, key ? key : Py_None, list);
done:
    Py_XDECREF(key);
    Py_XDECREF(list);
    PyBuffer_Release(&record);
    return result;
}

static PyObject *tar_hash(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *key;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#:tar_hash", &key, &size))
        return NULL;
    return PyLong_FromUnsignedLong(mds_tar_hash((const uint8_t *)key, (size_t)size));
}

static PyMethodDef functions[] = {
    {"tar_members", tar_members, METH_VARARGS,
     "tar_members(record, limit) -> (status, at, key, [(extension, begin, end), ...])"},
    {"tar_hash", tar_hash, METH_VARARGS, "tar_hash(key) -> int of 32 bits"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_tar(PyObject *module)
{
    if (mds_py_add_type(module, &tar_scanner_spec, NULL) != 0 || PyModule_AddFunctions(module, functions) != 0)
        return -1;
    return 0;
}
