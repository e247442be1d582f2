/* py_pad.c - joins many arrays: as rows of one array, or one after another. */
#include "binding.h"

/* Take the memory of every array in `list`; `buffers` has room for all. */
static int take_pieces(mds_py_buffers *buffers, PyObject *list, size_t width, Py_ssize_t item, mds_piece *pieces,
                       size_t count)
{
    for (size_t k = 0; k < count; k++) {
        PyObject *array =
            PySequence_GetItem(list, (Py_ssize_t)k); /* our reference: taking the buffer may change the list */
        const uint8_t *data = array ? mds_py_take_bytes(buffers, array, MDS_PY_READ) : NULL;
        Py_XDECREF(array);
        if (!data)
            return -1;
        const Py_buffer *view = &buffers->views[buffers->count - 1];
        if (view->itemsize != item || buffers->entries > width) {
            PyErr_Format(PyExc_ValueError,
                         "arrays[%zu]: expected up to %zu bytes in items of %zd, found %zd in items of %zd", k, width,
                         item, view->len, view->itemsize);
            return -1;
        }
        pieces[k] = (mds_piece){data, buffers->entries};
    }
    return 0;
}

/* Return where n arrays begin in `out`, of `total` bytes: from `places`, or for None in equal rows. Free `own` later.
 * NULL with an exception. */
static const uint64_t *take_begins(mds_py_buffers *buffers, PyObject *places, size_t n, size_t total, uint64_t **own)
{
    if (places != Py_None) {
        const uint64_t *begins = mds_py_take_words(buffers, places, MDS_PY_READ, n, "begins");
        return begins && mds_py_expect_apart(buffers, NULL, "begins") == 0 ? begins : NULL;
    }
    const size_t width = n ? total / n : 0;
    if (width * n != total) {
        PyErr_Format(PyExc_ValueError, "out: expected %zu equal rows, found %zu bytes", n, total);
        return NULL;
    }
    *own = PyMem_Malloc((n + 1) * sizeof **own);
    if (!*own)
        PyErr_NoMemory();
    for (size_t k = 0; *own && k < n; k++)
        (*own)[k] = k * width;
    return *own;
}

static PyObject *join_pieces(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *places, *target, *result = NULL;
    unsigned long long fill;
    if (!PyArg_ParseTuple(args, "O!OKO:join_pieces", &PyList_Type, &list, &places, &fill, &target))
        return NULL;
    const size_t count = (size_t)PyList_Size(list);
    mds_piece *pieces = PyMem_Malloc((count + 1) * sizeof *pieces);
    mds_py_buffers buffers = {PyMem_Malloc((count + 2) * sizeof *buffers.views), 0, count + 2, 0};
    uint8_t *out = NULL;
    uint64_t *own = NULL;
    const uint64_t *begins = NULL;
    if (!pieces || !buffers.views)
        PyErr_NoMemory();
    else
        out = mds_py_take_bytes(&buffers, target, MDS_PY_WRITE);
    const size_t total = buffers.entries;
    const Py_ssize_t item = out ? buffers.views[0].itemsize : 0;
    if (out && (item < 1 || 8 % item != 0))
        PyErr_Format(PyExc_ValueError, "out: expected items of 1, 2, 4 or 8 bytes, found %zd", item);
    else if (out)
        begins = take_begins(&buffers, places, count, total, &own);
    if (begins && take_pieces(&buffers, list, total, item, pieces, count) == 0) {
        size_t sound;
        RELEASE_GIL({
            sound = mds_pieces_follow(pieces, begins, count, total);
            if (sound == count)
                mds_join_pieces(pieces, begins, count, total, fill, out);
        });
        if (sound == count)
            result = Py_NewRef(Py_None);
        else
            PyErr_Format(PyExc_ValueError, "arrays[%zu]: expected arrays that follow one another in %zu bytes", sound,
                         total);
    }
    mds_py_give_back(&buffers);
    PyMem_Free(buffers.views);
    PyMem_Free(own);
    PyMem_Free(pieces);
    return result;
}

Py_ssize_t mds_py_batch_field(PyObject *key, Py_ssize_t count)
{
    const Py_ssize_t f = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (f >= 0 && f < count)
        return f;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "field %zd is out of range for %zd fields", f, count);
    return -1;
}

/* Copy pieces to their places, and check that the sources were whole. */
static mds_status write_pieces(const mds_py_joined *batch, const mds_piece *pieces, const uint64_t *begins,
                               size_t total, uint64_t fill, uint8_t *out, volatile size_t *failed)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    mds_join_pieces(pieces, begins, batch->n, total, fill, out);
    const mds_status status = batch->requests ? mds_records_were_whole(batch->requests, batch->n, failed) : MDS_OK;
    mds_guard_leave();
    return status;
}

PyObject *mds_py_batch_join(const mds_py_joined *batch, PyObject *args)
{
    PyObject *key, *places, *target, *result = NULL;
    unsigned long long longest, row, fill;
    int left;
    Py_ssize_t f;
    uint8_t *out;
    uint64_t *own = NULL;
    const uint64_t *begins;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "O(O&p)O&OKO:join", &key, mds_py_size, &longest, &left, mds_py_size, &row, &places,
                          &fill, &target) ||
        (f = mds_py_batch_field(key, batch->fields)) < 0 || !(out = mds_py_take_bytes(&buffers, target, MDS_PY_WRITE)))
        return NULL;
    const size_t n = batch->n, total = buffers.entries;
    mds_piece *pieces = PyMem_Malloc((n + 1) * sizeof *pieces);
    if (!pieces) {
        PyErr_NoMemory();
    } else if ((begins = take_begins(&buffers, places, n, total, &own))) {
        mds_status status = MDS_OK;
        volatile size_t failed = 0;
        size_t alike, follow = 0;
        RELEASE_GIL({
            alike = batch->pieces(batch->self, (size_t)f, longest, left, row, pieces);
            if (alike == n)
                follow = mds_pieces_follow(pieces, begins, n, total);
            if (follow == n)
                status = write_pieces(batch, pieces, begins, total, fill, out, &failed);
        });
        if (alike != n || follow != n)
            PyErr_Format(PyExc_ValueError, "record %zu: expected entries of %llu bytes that fit %zu bytes",
                         alike != n ? alike : follow, row, total);
        else if (status != MDS_OK)
            mds_py_raise_unread_record(batch->records, &batch->requests[failed], status);
        else
            result = Py_NewRef(Py_None);
    }
    PyMem_Free(pieces);
    PyMem_Free(own);
    mds_py_give_back(&buffers);
    return result;
}

/* Return whether count + 1 bounds begin with 0, do not fall, and end with `total`. */
static int bounds_cover(const uint64_t *bounds, size_t count, uint64_t total)
{
    for (size_t k = 0; k < count; k++)
        if (bounds[k] > bounds[k + 1])
            return 0;
    return bounds[0] == 0 && bounds[count] == total;
}

static PyObject *number_tokens(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *edges, *places, *marks, *target, *result = NULL;
    unsigned width;
    const uint64_t *bounds;
    const int32_t *numbers = NULL;
    int32_t *ids = NULL;
    void *positions;
    int covered;
    MDS_PY_BUFFERS(buffers, 4);
    if (!PyArg_ParseTuple(args, "OIOOO:number_tokens", &edges, &width, &places, &marks, &target) ||
        !(bounds = mds_py_take_words(&buffers, edges, MDS_PY_READ, MDS_PY_ANY, "bounds")))
        goto done;
    const size_t count = buffers.entries ? buffers.entries - 1 : 0;
    if (!buffers.entries) {
        PyErr_SetString(PyExc_ValueError, "bounds: expected one or more, found 0");
        goto done;
    }
    if (!(positions = mds_py_take_numbers(&buffers, places, MDS_PY_WRITE, width, MDS_PY_ANY, "positions")))
        goto done;
    const size_t tokens = buffers.entries;
    if (marks != Py_None && (!(numbers = mds_py_take_numbers(&buffers, marks, MDS_PY_READ, 4, count, "numbers")) ||
                             !(ids = mds_py_take_numbers(&buffers, target, MDS_PY_WRITE, 4, tokens, "ids"))))
        goto done;
    RELEASE_GIL({
        covered = bounds_cover(bounds, count, tokens);
        if (covered)
            mds_number_tokens(bounds, count, width, positions, numbers, ids);
    });
    if (covered)
        result = Py_NewRef(Py_None);
    else
        PyErr_Format(PyExc_ValueError, "bounds: expected numbers that rise from 0 to %zu, the tokens", tokens);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef functions[] = {
    {"join_pieces", join_pieces, METH_VARARGS,
     "join_pieces($module, arrays, begins, fill, out, /)\n--\n\n"
     "Write each array of a list to its byte of begins in out, and the 8 bytes of\n"
     "fill, repeated, elsewhere.\n\n"
     "begins: u64, one for each array, or None for equal rows. Arrays do not overlap, and follow one another.\n\n"
     "Raises ValueError unless all have items of one size, of 1, 2, 4 or 8 bytes, and follow one another in out."},
    {"number_tokens", number_tokens, METH_VARARGS,
     "number_tokens($module, bounds, width, positions, numbers, ids, /)\n--\n\n"
     "Count the tokens between two bounds from 0, in positions, integers of `width` bytes, 4 or 8; and write\n"
     "the number that these tokens have to ids, i32 of the shape of positions; numbers and ids may be None.\n\n"
     "bounds: u64, from 0 to the number of tokens. numbers: i32, one less.\n\n"
     "Raises ValueError when bounds fall, or are not those of all tokens."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_pad(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
