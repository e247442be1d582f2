/* py_pad.c - many arrays into the rows of one. */
#include "binding.h"

/* Borrow the memory of every array in `list`; *held counts the views to be released, also after a failure. */
static int take_pieces(PyObject *list, const Py_buffer *out, size_t width, Py_buffer *views, mds_piece *pieces,
                       Py_ssize_t count, Py_ssize_t *held)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *array = PyList_GetItem(list, k);
        if (!array || PyObject_GetBuffer(array, &views[k], PyBUF_SIMPLE) != 0)
            return -1;
        *held = k + 1;
        if (views[k].itemsize != out->itemsize || (size_t)views[k].len > width) {
            PyErr_Format(PyExc_ValueError,
                         "arrays[%zd]: found %zd bytes in items of %zd, expected at most %zu in items of %zd", k,
                         views[k].len, views[k].itemsize, width, out->itemsize);
            return -1;
        }
        pieces[k] = (mds_piece){views[k].buf, (size_t)views[k].len};
    }
    return 0;
}

static PyObject *pad_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *result = NULL;
    unsigned long long fill;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "O!Kw*:pad_rows", &PyList_Type, &list, &fill, &out))
        return NULL;
    const Py_ssize_t count = PyList_Size(list), item = out.itemsize;
    Py_ssize_t held = 0;
    Py_buffer *views = PyMem_Calloc((size_t)count + 1, sizeof *views);
    mds_piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof *pieces);
    if (!views || !pieces) {
        PyErr_NoMemory();
    } else if (count == 0 || item < 1 || 8 % item != 0 || out.len % (count * item) != 0) {
        PyErr_Format(PyExc_ValueError,
                     "out: found %zd bytes in items of %zd, expected %zd equal rows in items of 1, 2, 4 or 8", out.len,
                     item, count);
    } else {
        const size_t width = (size_t)(out.len / count);
        if (take_pieces(list, &out, width, views, pieces, count, &held) == 0) {
            Py_BEGIN_ALLOW_THREADS
            mds_pad_rows(pieces, (size_t)count, width, fill, out.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    PyMem_Free(views);
    PyMem_Free(pieces);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef functions[] = {
    {"pad_rows", pad_rows, METH_VARARGS,
     "pad_rows(arrays, fill, out): every row of out is an array and then the 8 bytes of fill, repeated to its end"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_pad(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
