/* py_zstd.c - the frames of a zstd file. */
#include "binding.h"

#define STATE_WORDS (sizeof(mds_zstd) / sizeof(uint64_t))

/* A walk over frames, and its results. */
typedef struct {
    const mds_map *map;
    uint64_t end, max_window;
    mds_zstd *state;
    uint64_t *begins, *contents;
    size_t room, count;
    mds_zstd_status status;
} walk_call;

static mds_status guarded_walk(walk_call *call)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    call->status = mds_zstd_walk(call->map, call->end, call->max_window, call->state, call->begins, call->contents,
                                 call->room, &call->count);
    mds_guard_leave();
    return MDS_OK;
}

static PyObject *zstd_walk(PyObject *module, PyObject *args)
{
    const mds_py_state *types = PyModule_GetState(module);
    PyObject *map, *state, *begins, *contents, *result = NULL;
    unsigned long long end, max_window;
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "O!O&O&OOO:zstd_walk", types->map_type, &map, mds_py_size, &end, mds_py_size,
                          &max_window, &state, &begins, &contents))
        return NULL;
    walk_call call = {.map = &((MapObject *)map)->map, .end = end, .max_window = max_window};
    if (!call.map->data && call.map->size) {
        PyErr_SetString(PyExc_ValueError, "source: expected a file that is mapped, found one that is read by pread");
        return NULL;
    }
    if (!(call.state = mds_py_take_words(&buffers, state, MDS_PY_WRITE, STATE_WORDS, "state")) ||
        !(call.begins = mds_py_take_words(&buffers, begins, MDS_PY_WRITE, MDS_PY_ANY, "begins")))
        goto done;
    call.room = buffers.entries;
    if (!(call.contents = mds_py_take_words(&buffers, contents, MDS_PY_WRITE, call.room, "contents")))
        goto done;
    mds_status read;
    RELEASE_GIL(read = guarded_walk(&call));
    if (read != MDS_OK)
        mds_py_raise_unread(read, PyBytes_AsString(((MapObject *)map)->path), call.map->size);
    else
        result = Py_BuildValue("ni", (Py_ssize_t)call.count, (int)call.status);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef functions[] = {
    {"zstd_walk", zstd_walk, METH_VARARGS,
     "zstd_walk($module, source, end, max_window, state, begins, contents, /)\n--\n\n"
     "Find the frames of a zstd file, mapped, up to byte end: (count, status), which is one of ZSTD_*.\n\n"
     "state: 7 words, all zeros at first, which the next call continues. The first is where the walk is, the "
     "second\n"
     "where the last frame begins, the last what was found instead. begins, contents: u64, filled with where frames\n"
     "begin and the bytes of their text by their headers, 2^64 - 1 if unknown.\n\n"
     "Raises EOFError when the file became shorter while it was read."},
    {NULL, NULL, 0, NULL},
};

static const mds_py_constant constants[] = {
    {"ZSTD_OK", MDS_ZSTD_OK},
    {"ZSTD_CUT", MDS_ZSTD_CUT},
    {"ZSTD_NOT_FRAME", MDS_ZSTD_NOT_FRAME},
    {"ZSTD_RESERVED", MDS_ZSTD_RESERVED},
    {"ZSTD_DICTIONARY", MDS_ZSTD_DICTIONARY},
    {"ZSTD_WINDOW", MDS_ZSTD_WINDOW},
    {"ZSTD_CONTENT", MDS_ZSTD_CONTENT},
    {NULL, 0},
};

int mds_py_add_zstd(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) != 0)
        return -1;
    return mds_py_add_constants(module, constants);
}
