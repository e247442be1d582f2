/* py_sort.c - records in order of their length. */
#include "binding.h"

static PyObject *lengths_largest(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source;
    unsigned width;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OI:lengths_largest", &source, &width))
        return NULL;
    PyObject *result = NULL;
    const void *lengths = mds_py_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths");
    if (lengths) {
        uint64_t largest;
        const size_t n = (size_t)all.views[0].len / width;
        Py_BEGIN_ALLOW_THREADS
        largest = mds_lengths_largest(lengths, width, n);
        Py_END_ALLOW_THREADS
        result = PyLong_FromUnsignedLongLong(largest);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *lengths_sort(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *counters, *from, *target, *result = NULL;
    unsigned width, order_width, shift;
    int digits;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OIIpOOOI:lengths_sort", &source, &width, &shift, &digits, &counters, &from, &target,
                          &order_width))
        return NULL;
    const void *lengths = mds_py_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths"), *in = NULL;
    if (!lengths)
        goto done;
    const Py_ssize_t n = all.views[0].len / (Py_ssize_t)width;
    uint64_t *counts = mds_py_words(&all, counters, PyBUF_WRITABLE, -1, "counts");
    if (!counts)
        goto done;
    const uint64_t size = (uint64_t)mds_py_entries(&all);
    if (size < 1 || shift > 63 || (digits && (size & (size - 1)))) {
        PyErr_SetString(PyExc_ValueError, "counts: expected some, and a power of two for digits");
        goto done;
    }
    void *out = mds_py_numbers(&all, target, PyBUF_WRITABLE, order_width, n, "order");
    if (!out || (from != Py_None && !(in = mds_py_numbers(&all, from, PyBUF_SIMPLE, order_width, n, "previous order"))))
        goto done;
    int fits = 1;
    Py_BEGIN_ALLOW_THREADS
    /* Numbers that come from elsewhere are checked here, once, so that the sort itself need not. */
    fits = digits || mds_lengths_largest(lengths, width, (size_t)n) < size;
    if (fits && in)
        fits = n == 0 || mds_lengths_largest(in, order_width, (size_t)n) < (uint64_t)n;
    if (fits)
        mds_lengths_sort(lengths, width, (size_t)n, shift, digits ? size - 1 : UINT64_MAX, size, counts, in, out,
                         order_width);
    Py_END_ALLOW_THREADS
    if (fits)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "a length has no counter, or a record number is out of range");
done:
    mds_py_release(&all);
    return result;
}

static PyObject *two_arrays(const uint64_t *first, const uint64_t *second, size_t n)
{
    return Py_BuildValue("y#y#", (const char *)first, (Py_ssize_t)(n * 8), (const char *)second, (Py_ssize_t)(n * 8));
}

static PyObject *lengths_runs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *sorted, *result = NULL;
    unsigned width, order_width;
    uint64_t *values = NULL;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OIOI:lengths_runs", &source, &width, &sorted, &order_width))
        return NULL;
    const void *lengths = mds_py_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths"), *order = NULL;
    const Py_ssize_t n = lengths ? all.views[0].len / (Py_ssize_t)width : 0;
    if (!lengths || !(order = mds_py_numbers(&all, sorted, PyBUF_SIMPLE, order_width, n, "order")))
        goto done;
    if (n && mds_lengths_largest(order, order_width, (size_t)n) >= (uint64_t)n) {
        PyErr_SetString(PyExc_ValueError, "order: a record number is out of range");
        goto done;
    }
    size_t runs;
    Py_BEGIN_ALLOW_THREADS
    runs = mds_lengths_runs(lengths, width, order, order_width, (size_t)n, NULL, NULL);
    Py_END_ALLOW_THREADS
    values = PyMem_Calloc(2 * runs + 1, sizeof *values);
    if (!values) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    mds_lengths_runs(lengths, width, order, order_width, (size_t)n, values, values + runs);
    Py_END_ALLOW_THREADS
    result = two_arrays(values, values + runs, runs);
done:
    PyMem_Free(values);
    mds_py_release(&all);
    return result;
}

/* From where runs end, the longest first, to the lengths there are and how many of each. */
static PyObject *lengths_runs_of(PyObject *Py_UNUSED(module), PyObject *source)
{
    Py_buffer ends;
    if (mds_py_get_words(source, PyBUF_SIMPLE, &ends, "ends") != 0)
        return NULL;
    const size_t n = (size_t)ends.len / 8;
    uint64_t *values = PyMem_Calloc(2 * n + 1, sizeof *values);
    PyObject *result = values ? two_arrays(values, values + n, mds_runs_of(ends.buf, n, values, values + n))
                              : PyErr_NoMemory();
    PyMem_Free(values);
    PyBuffer_Release(&ends);
    return result;
}

static PyMethodDef functions[] = {
    {"lengths_largest", lengths_largest, METH_VARARGS, "lengths_largest(lengths, width) -> int"},
    {"lengths_sort", lengths_sort, METH_VARARGS,
     "lengths_sort(lengths, width, shift, digits, counts, previous, order, order_width): a stable pass, largest first"},
    {"lengths_runs", lengths_runs, METH_VARARGS, "lengths_runs(lengths, width, order, order_width) -> (values, counts)"},
    {"lengths_runs_of", lengths_runs_of, METH_O, "lengths_runs_of(ends) -> (values, counts)"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_sort(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
