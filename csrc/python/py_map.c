/* py_map.c - maps of files. */
#include "binding.h"

PyObject *mds_py_raise_unread(mds_status status, const char *path, uint64_t size)
{
    if (status == MDS_SYSTEM)
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    return PyErr_Format(PyExc_EOFError, "%s: expected %llu bytes, found fewer", path, (unsigned long long)size);
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "io", NULL};
    PyObject *path;
    int io = MDS_IO_MAP;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|i:Map", names, PyUnicode_FSConverter, &path, &io))
        return NULL;
    if (io < MDS_IO_MAP || io > MDS_IO_COPY) {
        Py_DECREF(path);
        return PyErr_Format(PyExc_ValueError, "io: expected one of IO_*, found %d", io);
    }
    MapObject *self = (MapObject *)mds_py_new(type);
    if (!self) {
        Py_DECREF(path);
        return NULL;
    }
    mds_status status;
    const char *name = PyBytes_AsString(path);
    self->path = path;
    mds_guard_install();
    RELEASE_GIL(status = mds_map_open(name, (mds_io)io, &self->map, &self->file));
    if (status == MDS_OK)
        return (PyObject *)self;
    if (status == MDS_NOT_FILE)
        PyErr_Format(PyExc_ValueError, "%s: expected a regular file", name);
    else
        mds_py_raise_unread(status, name, self->map.size);
    self->map = (mds_map){NULL, 0, 0, NULL};
    Py_DECREF(self);
    return NULL;
}

static void map_dealloc(PyObject *self)
{
    mds_map_close(&((MapObject *)self)->map);
    Py_DECREF(((MapObject *)self)->path);
    mds_py_free(self);
}

static int map_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    const mds_map *map = &((MapObject *)self)->map;
    if (!map->data && map->size) {
        PyErr_SetString(PyExc_BufferError, "expected a file that is mapped, found one that is read by pread");
        return -1;
    }
    return PyBuffer_FillInfo(view, self, map->data ? (void *)map->data : (void *)"", (Py_ssize_t)map->size, 1, flags);
}

static PyObject *map_read(PyObject *object, PyObject *args)
{
    const MapObject *self = (MapObject *)object;
    unsigned long long begin, size;
    if (!PyArg_ParseTuple(args, "O&O&:read", mds_py_size, &begin, mds_py_size, &size))
        return NULL;
    if (begin > self->map.size || size > self->map.size - begin)
        return PyErr_Format(PyExc_ValueError, "expected bytes within 0 to %llu, found %llu from byte %llu on",
                            (unsigned long long)self->map.size, size, begin);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    uint8_t *out = bytes ? (uint8_t *)PyBytes_AsString(bytes) : NULL; /* still private to this call */
    if (!out)
        return NULL;
    mds_status status;
    RELEASE_GIL(status = mds_map_read(&self->map, begin, (size_t)size, out));
    if (status == MDS_OK)
        return bytes;
    Py_DECREF(bytes);
    return mds_py_raise_unread(status, PyBytes_AsString(self->path), self->map.size);
}

static PyObject *map_read_runs(PyObject *object, PyObject *args)
{
    MapObject *self = (MapObject *)object;
    PyObject *given, *target, *result = NULL;
    unsigned long long size;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO&O:read_runs", &given, mds_py_size, &size, &target))
        return NULL;
    const int64_t *begins = mds_py_take_words(&buffers, given, MDS_PY_READ, MDS_PY_ANY, "begins");
    const size_t count = buffers.entries;
    uint8_t *out = begins ? mds_py_take_bytes(&buffers, target, MDS_PY_WRITE) : NULL;
    if (out && (count ? buffers.entries / count != size || buffers.entries % count : buffers.entries != 0)) {
        PyErr_Format(PyExc_ValueError, "out: expected %zu runs of %llu bytes, found %zu bytes", count, size,
                     buffers.entries);
    } else if (out) {
        mds_status status;
        unsigned cold = mds_py_load(&self->cold); /* a copy: other threads use the original */
        RELEASE_GIL({
            const long reads = mds_disk_reads();
            status = mds_map_read_runs(&self->map, begins, count, (size_t)size, cold > 0, out);
            cold = mds_next_cold(cold, reads);
        });
        mds_py_store(&self->cold, cold);
        if (status == MDS_CORRUPT)
            PyErr_Format(PyExc_ValueError, "begins: expected runs of %llu bytes within 0 to %llu, found others", size,
                         (unsigned long long)self->map.size);
        else
            result = status == MDS_OK ? Py_NewRef(Py_None)
                                      : mds_py_raise_unread(status, PyBytes_AsString(self->path), self->map.size);
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *map_count_above(PyObject *object, PyObject *args)
{
    const MapObject *self = (MapObject *)object;
    unsigned long long begin, count, wanted;
    if (!PyArg_ParseTuple(args, "O&O&O&:count_above", mds_py_size, &begin, mds_py_size, &count, mds_py_size, &wanted))
        return NULL;
    if (wanted > UINT32_MAX)
        return PyErr_Format(PyExc_ValueError, "wanted: expected a number below 2^32, found %llu", wanted);
    uint64_t above = 0;
    mds_status status;
    RELEASE_GIL(status = mds_map_count_above(&self->map, begin, count, (uint32_t)wanted, &above));
    if (status == MDS_OK)
        return PyLong_FromUnsignedLongLong(above);
    if (status == MDS_CORRUPT)
        return PyErr_Format(PyExc_ValueError, "expected words within 0 to %llu, found %llu from byte %llu on",
                            (unsigned long long)self->map.size, count, begin);
    return mds_py_raise_unread(status, PyBytes_AsString(self->path), self->map.size);
}

static PyObject *map_take(PyObject *object, PyObject *args)
{
    const MapObject *self = (MapObject *)object;
    unsigned long long begin, width, count;
    PyObject *positions, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "O&O&O&OO:take", mds_py_size, &begin, mds_py_size, &width, mds_py_size, &count,
                          &positions, &target))
        return NULL;
    const uint64_t size = self->map.data ? self->map.size : 0;
    if ((width != 4 && width != 8) || begin > size || count > (size - begin) / width)
        return PyErr_Format(PyExc_ValueError, "expected numbers of 4 or 8 bytes within %llu that are mapped",
                            (unsigned long long)size);
    mds_status status = MDS_OK;
    if (mds_py_take_lookup(&buffers, positions, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, count,
                status = mds_array_select(&self->map, begin, (size_t)width, lookup.at, lookup.count, lookup.out));
        result = status == MDS_OK ? mds_py_looked_up(&lookup, "position", "an array")
                                  : mds_py_raise_unread(status, PyBytes_AsString(self->path), self->map.size);
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *map_advise(PyObject *self, PyObject *args)
{
    int advice;
    if (!PyArg_ParseTuple(args, "i:advise", &advice))
        return NULL;
    if (advice != MDS_ADVISE_RANDOM && advice != MDS_ADVISE_SEQUENTIAL)
        return PyErr_Format(PyExc_ValueError, "advice: expected ADVISE_RANDOM or ADVISE_SEQUENTIAL, found %d", advice);
    const mds_map *map = &((MapObject *)self)->map;
    RELEASE_GIL(mds_map_advise(map, 0, map->size, (mds_advice)advice));
    Py_RETURN_NONE;
}

static PyObject *map_populate(PyObject *self, PyObject *args)
{
    unsigned long long begin, end;
    if (!PyArg_ParseTuple(args, "O&O&:populate", mds_py_size, &begin, mds_py_size, &end))
        return NULL;
    const mds_map *map = &((MapObject *)self)->map;
    RELEASE_GIL(mds_map_advise(map, begin, end, MDS_ADVISE_POPULATE));
    Py_RETURN_NONE;
}

static PyObject *map_size(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((MapObject *)self)->map.size);
}

static PyObject *map_mtime(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(((MapObject *)self)->map.mtime_ns);
}

static PyObject *map_is_mapped(PyObject *self, void *Py_UNUSED(closure))
{
    const mds_map *map = &((MapObject *)self)->map;
    return PyBool_FromLong(map->data || !map->size);
}

static PyMethodDef map_methods[] = {
    {"read", map_read, METH_VARARGS,
     "read($self, begin, size, /)\n--\n\n"
     "Return a copy of some bytes of the file, mapped or not.\n\n"
     "Raises ValueError for bytes outside the file at the time of opening, EOFError when it became shorter since,\n"
     "OSError when the system cannot read it."},
    {"read_runs", map_read_runs, METH_VARARGS,
     "read_runs($self, begins, size, out, /)\n--\n\n"
     "Copy runs of `size` bytes into `out`, one after another: i64, shape (count,); out, count * size bytes.\n\n"
     "Raises as read does."},
    {"count_above", map_count_above, METH_VARARGS,
     "count_above($self, begin, count, wanted, /)\n--\n\n"
     "Return how many of some words are above another: u32, shape (count,), falling, from byte begin on.\n\n"
     "Raises as read does."},
    {"take", map_take, METH_VARARGS,
     "take($self, begin, width, count, positions, out, /)\n--\n\n"
     "Set out[k] to the number at positions[k], of `count` of `width` bytes, 4 or 8, that lie from byte begin on: i64, "
     "one\nshape, or the same array.\n\n"
     "Raises IndexError for a position out of range, ValueError for numbers that are not in the map, EOFError as read "
     "does."},
    {"advise", map_advise, METH_VARARGS,
     "advise($self, advice, /)\n--\n\n"
     "Advise the kernel how the whole file will be read: ADVISE_RANDOM or ADVISE_SEQUENTIAL.\n\n"
     "Raises ValueError for another advice. A refusal of the kernel costs only speed, and is not reported."},
    {"populate", map_populate, METH_VARARGS,
     "populate($self, begin, end, /)\n--\n\n"
     "Map the pages of some bytes at once, instead of one page fault after another. It costs nothing if unneeded."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef map_getset[] = {
    {"size", map_size, NULL, "Bytes in the file when it was opened.", NULL},
    {"mtime_ns", map_mtime, NULL, "Time of the file's last change when it was opened, in nanoseconds.", NULL},
    {"is_mapped", map_is_mapped, NULL, "Whether the object is a buffer of its bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, "Map(path, io=0)\n--\n\n"
                "The bytes of a regular file, as a read-only buffer: mapped (IO_MAP) or read into memory (IO_COPY). "
                "With IO_PREAD it\n"
                "is not a buffer: use read().\n\n"
                "It keeps a descriptor if less than a quarter of the allowed descriptors are in use.\n\n"
                "Raises OSError when the file cannot be opened or mapped, ValueError when it is not a regular file, "
                "EOFError when\n"
                "it became shorter while it was copied."},
    {Py_tp_new, map_new},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_methods, map_methods},
    {Py_tp_getset, map_getset},
    {Py_bf_getbuffer, map_getbuffer},
    {0, NULL},
};

static PyType_Spec map_spec = {"mmapds._native.Map", sizeof(MapObject), 0, Py_TPFLAGS_DEFAULT, map_slots};

static const mds_py_constant constants[] = {
    {"ADVISE_RANDOM", MDS_ADVISE_RANDOM},
    {"ADVISE_SEQUENTIAL", MDS_ADVISE_SEQUENTIAL},
    {"IO_MAP", MDS_IO_MAP},
    {"IO_PREAD", MDS_IO_PREAD},
    {"IO_COPY", MDS_IO_COPY},
    {NULL, 0},
};

int mds_py_add_map(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (mds_py_add_type(module, &map_spec, &state->map_type) != 0 || mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
