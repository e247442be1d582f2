/* py_pad.c - many arrays into one: each in a row of it, or one after another. */
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

static PyObject *pad_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *target, *result = NULL;
    unsigned long long fill;
    if (!PyArg_ParseTuple(args, "O!KO:pad_rows", &PyList_Type, &list, &fill, &target))
        return NULL;
    const size_t count = (size_t)PyList_Size(list);
    mds_piece *pieces = PyMem_Malloc((count + 1) * sizeof *pieces);
    mds_py_buffers buffers = {PyMem_Malloc((count + 1) * sizeof *buffers.views), 0, count + 1, 0};
    uint8_t *out = NULL;
    if (!pieces || !buffers.views)
        PyErr_NoMemory();
    else
        out = mds_py_take_bytes(&buffers, target, MDS_PY_WRITE);
    if (out) {
        const Py_ssize_t item = buffers.views[0].itemsize;
        const size_t width = count ? buffers.entries / count : 0;
        if (count == 0 || item < 1 || 8 % item != 0 || buffers.entries % (count * (size_t)item) != 0) {
            PyErr_Format(PyExc_ValueError,
                         "out: expected %zu equal rows in items of 1, 2, 4 or 8 bytes, found %zu bytes in items of %zd",
                         count, buffers.entries, item);
        } else if (take_pieces(&buffers, list, width, item, pieces, count) == 0) {
            RELEASE_GIL(mds_pad_rows(pieces, count, width, fill, out));
            result = Py_NewRef(Py_None);
        }
    }
    mds_py_give_back(&buffers);
    PyMem_Free(buffers.views);
    PyMem_Free(pieces);
    return result;
}

/* Write the pieces into `out`, of `total` bytes; None, or NULL with an exception. */
static PyObject *join(const mds_piece *pieces, const uint64_t *begins, size_t count, size_t total, uint64_t fill,
                      uint8_t *out)
{
    size_t sound;
    RELEASE_GIL({
        sound = mds_pieces_follow(pieces, begins, count, total);
        if (sound == count)
            mds_join_pieces(pieces, begins, count, total, fill, out);
    });
    if (sound == count)
        return Py_NewRef(Py_None);
    return PyErr_Format(PyExc_ValueError, "begins[%zu]: expected pieces that follow one another in %zu bytes", sound,
                        total);
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
        begins = mds_py_take_words(&buffers, places, MDS_PY_READ, count, "begins");
    if (begins && take_pieces(&buffers, list, total, item, pieces, count) == 0)
        result = join(pieces, begins, count, total, fill, out);
    mds_py_give_back(&buffers);
    PyMem_Free(buffers.views);
    PyMem_Free(pieces);
    return result;
}

/* Whether count + 1 bounds begin with 0, do not fall, and end with `total`. */
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
     "Write each of a list of arrays to out, where begins says in bytes, and the 8 bytes of\n"
     "fill, repeated, elsewhere.\n\n"
     "begins: u64, one for each array. Arrays do not overlap, and follow one another.\n\n"
     "Raises ValueError unless all have items of one size, of 1, 2, 4 or 8 bytes, and follow one another in out."},
    {"number_tokens", number_tokens, METH_VARARGS,
     "number_tokens($module, bounds, width, positions, numbers, ids, /)\n--\n\n"
     "Count the tokens between two bounds from 0, in positions, integers of `width` bytes, 4 or 8; and write\n"
     "the number that these tokens have to ids, i32 of the shape of positions; numbers and ids may be None.\n\n"
     "bounds: u64, from 0 to the number of tokens. numbers: i32, one less.\n\n"
     "Raises ValueError when bounds fall, or are not those of all tokens."},
    {"pad_rows", pad_rows, METH_VARARGS,
     "pad_rows($module, arrays, fill, out, /)\n--\n\n"
     "Write each of a list of arrays into a row of out, followed by the 8 bytes of fill, repeated to the row's end.\n\n"
     "Raises ValueError unless all have items of one size, of 1, 2, 4 or 8 bytes, and every array fits its row."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_pad(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
