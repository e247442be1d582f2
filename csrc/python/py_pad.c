/* py_pad.c - many arrays into the rows of one. */
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

static PyMethodDef functions[] = {
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
