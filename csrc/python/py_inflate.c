/* py_inflate.c - the content of gzip members. */
#include "binding.h"

typedef struct {
    PyObject_HEAD PyObject *map; /* MapObject */
    int busy;                    /* a call is running, without the GIL */
    mds_inflate_state state;
} InflaterObject;

static PyObject *inflater_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"source", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    PyObject *map;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Inflater", names, state->map_type, &map))
        return NULL;
    if (!((MapObject *)map)->map.data && ((MapObject *)map)->map.size) {
        PyErr_SetString(PyExc_ValueError, "source: expected a file that is mapped, found one that is read by pread");
        return NULL;
    }
    InflaterObject *self = (InflaterObject *)mds_py_new(type);
    if (self)
        self->map = Py_NewRef(map);
    return (PyObject *)self;
}

static void inflater_dealloc(PyObject *self)
{
    Py_DECREF(((InflaterObject *)self)->map);
    mds_py_free(self);
}

/* A call of the inflater, and its results. */
typedef struct {
    InflaterObject *inflater;
    uint8_t *out;
    size_t filled, enough, room;
    mds_inflate_status status;
} inflate_call;

static mds_status guarded_inflate(inflate_call *call)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    const mds_map *map = &((MapObject *)call->inflater->map)->map;
    call->status = mds_inflate(map, &call->inflater->state, call->out, &call->filled, call->enough, call->room);
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *inflater_read(PyObject *object, PyObject *args)
{
    InflaterObject *self = (InflaterObject *)object;
    const mds_inflate_state *state = &self->state;
    unsigned long long filled, enough;
    PyObject *target, *result = NULL;
    inflate_call call = {.inflater = self};
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "OO&O&:read", &target, mds_py_size, &filled, mds_py_size, &enough))
        return NULL;
    if (!mds_py_enter(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "Inflater: expected one call at a time, found another thread in one");
        return NULL;
    }
    if (!(call.out = mds_py_take_bytes(&buffers, target, MDS_PY_WRITE)))
        goto done;
    call.room = buffers.entries;
    if (filled > call.room) {
        PyErr_Format(PyExc_ValueError, "filled = %llu, expected %zu or less", filled, call.room);
        goto done;
    }
    call.filled = (size_t)filled;
    call.enough = (size_t)enough;
    mds_status read;
    RELEASE_GIL(read = guarded_inflate(&call));
    if (read != MDS_OK) {
        const MapObject *map = (MapObject *)self->map;
        mds_py_raise_unread(read, PyBytes_AsString(map->path), map->map.size);
    } else
        result = Py_BuildValue("inKKII", (int)call.status, (Py_ssize_t)call.filled, (unsigned long long)state->at,
                               (unsigned long long)state->content, state->crc, state->size);
done:
    mds_py_leave(&self->busy);
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef inflater_methods[] = {
    {"read", inflater_read, METH_VARARGS,
     "read($self, out, filled, enough, /)\n--\n\n"
     "Append content to out[:filled]: (status, filled, at, content, crc, size).\n\n"
     "out: whose last bytes are the content before, up to INFLATE_WINDOW of them; INFLATE_SLACK bytes at its end stay\n"
     "unused. Stops where a member ends and, once `enough` bytes have come, where a block ends. status: one of\n"
     "INFLATE_*. at: the bit of the file that is read next. content: bytes of content of the member so far. crc, "
     "size:\n"
     "what stands behind the member that ended last.\n\n"
     "Raises EOFError when the file became shorter while it was read."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot inflater_slots[] = {
    {Py_tp_doc, "Inflater(source)\n--\n\n"
                "Decodes the members of a gzip file, mapped, from its first byte on."},
    {Py_tp_new, inflater_new},
    {Py_tp_dealloc, inflater_dealloc},
    {Py_tp_methods, inflater_methods},
    {0, NULL},
};

static PyType_Spec inflater_spec = {"mmapds._native.Inflater", sizeof(InflaterObject), 0, Py_TPFLAGS_DEFAULT,
                                    inflater_slots};

static const mds_py_constant constants[] = {
    {"INFLATE_WINDOW", MDS_INFLATE_WINDOW},   {"INFLATE_SLACK", MDS_INFLATE_SLACK},
    {"INFLATE_FULL", MDS_INFLATE_FULL},       {"INFLATE_BLOCK", MDS_INFLATE_BLOCK},
    {"INFLATE_MEMBER", MDS_INFLATE_MEMBER},   {"INFLATE_END", MDS_INFLATE_END},
    {"INFLATE_CUT", MDS_INFLATE_CUT},         {"INFLATE_NOT_MEMBER", MDS_INFLATE_NOT_MEMBER},
    {"INFLATE_DAMAGED", MDS_INFLATE_DAMAGED}, {NULL, 0},
};

int mds_py_add_inflate(PyObject *module)
{
    if (mds_py_add_type(module, &inflater_spec, NULL) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
