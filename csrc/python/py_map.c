/* py_map.c - maps of files. */
#include "binding.h"

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", NULL};
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:Map", names, PyUnicode_FSConverter, &path))
        return NULL;
    MapObject *self = (MapObject *)mds_py_new(type);
    if (self) {
        mds_status status;
        const char *name = PyBytes_AsString(path);
        RELEASE_GIL(status = mds_map_open(name, &self->map));
        if (status != MDS_OK) {
            if (status == MDS_NOT_FILE)
                PyErr_Format(PyExc_ValueError, "%s: expected a regular file", name);
            else
                PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
            Py_CLEAR(self);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void map_dealloc(PyObject *self)
{
    mds_map_close(&((MapObject *)self)->map);
    mds_py_free(self);
}

static int map_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    const mds_map *map = &((MapObject *)self)->map;
    return PyBuffer_FillInfo(view, self, map->data ? (void *)map->data : (void *)"", (Py_ssize_t)map->size, 1, flags);
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

static PyObject *map_size(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((MapObject *)self)->map.size);
}

static PyObject *map_mtime(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(((MapObject *)self)->map.mtime_ns);
}

static PyMethodDef map_methods[] = {
    {"advise", map_advise, METH_VARARGS,
     "advise($self, advice, /)\n--\n\n"
     "Advise the kernel how the whole map will be read: ADVISE_RANDOM or ADVISE_SEQUENTIAL.\n\n"
     "Raises ValueError for another advice. Advice that the kernel refuses costs speed alone, and is not reported."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef map_getset[] = {
    {"size", map_size, NULL, "Bytes in the file when it was mapped.", NULL},
    {"mtime_ns", map_mtime, NULL, "Time of the file's last change when it was mapped, in nanoseconds.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, "Map(path)\n--\n\n"
                "A read-only map of a regular file, as a buffer of bytes; it keeps no file descriptor.\n\n"
                "Raises OSError when the file cannot be opened or mapped, ValueError when it is not a regular file."},
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
    {NULL, 0},
};

int mds_py_add_map(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (mds_py_add_type(module, &map_spec, &state->map_type) != 0 || mds_py_add_constants(module, constants) != 0)
        return -1;
    return 0;
}
