/* py_sort.c - records in order of their length. */
#include "binding.h"

typedef struct {
    PyObject_HEAD Py_buffer view;
    mds_py_buffers held;
    const void *lengths;
    unsigned width;
    size_t n;
} LengthsObject;

static PyObject *lengths_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lengths", "width", NULL};
    PyObject *source;
    unsigned width;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OI:Lengths", names, &source, &width))
        return NULL;
    LengthsObject *self = (LengthsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->held = (mds_py_buffers){&self->view, 0, 1, 0};
    self->lengths = mds_py_take_numbers(&self->held, source, MDS_PY_READ, width, MDS_PY_ANY, "lengths");
    if (!self->lengths) {
        Py_DECREF(self);
        return NULL;
    }
    self->width = width;
    self->n = self->held.entries;
    return (PyObject *)self;
}

static void lengths_dealloc(PyObject *object)
{
    mds_py_give_back(&((LengthsObject *)object)->held);
    mds_py_free(object);
}

static PyObject *lengths_largest(PyObject *object, PyObject *Py_UNUSED(none))
{
    const LengthsObject *self = (LengthsObject *)object;
    uint64_t largest;
    RELEASE_GIL(largest = mds_lengths_largest(self->lengths, self->width, self->n));
    return PyLong_FromUnsignedLongLong(largest);
}

static PyObject *lengths_sort(PyObject *object, PyObject *args)
{
    const LengthsObject *self = (LengthsObject *)object;
    PyObject *counters, *target, *result = NULL;
    unsigned order_width;
    uint64_t *counts, largest;
    void *order;
    mds_status status = MDS_OK;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OOI:sort", &counters, &target, &order_width) ||
        !(counts = mds_py_take_words(&buffers, counters, MDS_PY_WRITE, MDS_PY_ANY, "counts")) ||
        mds_py_expect_apart(&buffers, &self->view, "counts") != 0)
        goto done;
    const size_t digits = buffers.entries;
    if (!(order = mds_py_take_numbers(&buffers, target, MDS_PY_WRITE, order_width, self->n, "order")) ||
        mds_py_expect_apart(&buffers, &self->view, "order") != 0)
        goto done;
    /* Check untrusted lengths once here, so that the sort need not. */
    RELEASE_GIL({
        largest = mds_lengths_largest(self->lengths, self->width, self->n);
        if (largest < digits)
            status = mds_lengths_sort(self->lengths, self->width, self->n, 0, UINT64_MAX, digits, counts, NULL, order,
                                      order_width);
    });
    if (status != MDS_OK)
        PyErr_Format(PyExc_ValueError, "lengths: expected %zu that stay the same during the call, found a change",
                     self->n);
    else if (largest < digits)
        result = Py_NewRef(Py_None);
    else
        PyErr_Format(PyExc_ValueError, "counts: expected an entry for every length up to %llu, found %zu entries",
                     (unsigned long long)largest, digits);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *lengths_sort_digits(PyObject *object, PyObject *args)
{
    const LengthsObject *self = (LengthsObject *)object;
    PyObject *counters, *from, *target, *result = NULL;
    unsigned shift, order_width;
    uint64_t *counts, largest = 0;
    const void *previous = NULL;
    void *order;
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "IOOOI:sort_digits", &shift, &counters, &from, &target, &order_width) ||
        !(counts = mds_py_take_words(&buffers, counters, MDS_PY_WRITE, MDS_PY_ANY, "counts")) ||
        mds_py_expect_apart(&buffers, &self->view, "counts") != 0)
        goto done;
    const size_t digits = buffers.entries;
    if (digits < 1 || digits & (digits - 1)) {
        PyErr_Format(PyExc_ValueError, "counts: expected a power of two of entries, found %zu", digits);
        goto done;
    }
    if (shift > 63) {
        PyErr_Format(PyExc_ValueError, "shift: expected 0 to 63, found %u", shift);
        goto done;
    }
    if (!(order = mds_py_take_numbers(&buffers, target, MDS_PY_WRITE, order_width, self->n, "order")) ||
        mds_py_expect_apart(&buffers, &self->view, "order") != 0)
        goto done;
    if (from != Py_None &&
        (!(previous = mds_py_take_numbers(&buffers, from, MDS_PY_READ, order_width, self->n, "previous")) ||
         mds_py_expect_apart(&buffers, NULL, "previous") != 0))
        goto done;
    int fits;
    mds_status status = MDS_OK;
    RELEASE_GIL({
        if (previous)
            largest = mds_lengths_largest(previous, order_width, self->n);
        fits = self->n == 0 || largest < self->n;
        if (fits)
            status = mds_lengths_sort(self->lengths, self->width, self->n, shift, digits - 1, digits, counts, previous,
                                      order, order_width);
    });
    if (status != MDS_OK)
        PyErr_Format(PyExc_ValueError, "previous: expected each of %zu records once, found one twice", self->n);
    else if (fits)
        result = Py_NewRef(Py_None);
    else
        PyErr_Format(PyExc_ValueError, "previous: expected record numbers below %zu, found %llu", self->n,
                     (unsigned long long)largest);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *two_arrays(const uint64_t *first, const uint64_t *second, size_t n)
{
    return Py_BuildValue("y#y#", (const char *)first, (Py_ssize_t)(n * 8), (const char *)second, (Py_ssize_t)(n * 8));
}

static PyObject *lengths_runs(PyObject *object, PyObject *args)
{
    const LengthsObject *self = (LengthsObject *)object;
    PyObject *sorted, *result = NULL;
    unsigned order_width;
    uint64_t *values = NULL;
    const void *order;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "OI:runs", &sorted, &order_width) ||
        !(order = mds_py_take_numbers(&buffers, sorted, MDS_PY_READ, order_width, self->n, "order")))
        goto done;
    size_t runs = 0;
    uint64_t largest;
    RELEASE_GIL({
        largest = mds_lengths_largest(order, order_width, self->n);
        if (largest < self->n)
            runs = mds_lengths_runs(self->lengths, self->width, order, order_width, self->n, NULL, NULL, 0);
    });
    if (self->n && largest >= self->n) {
        PyErr_Format(PyExc_ValueError, "order: expected record numbers below %zu, found %llu", self->n,
                     (unsigned long long)largest);
        goto done;
    }
    values = PyMem_Calloc(2 * runs + 1, sizeof *values);
    if (!values) {
        PyErr_NoMemory();
        goto done;
    }
    size_t again;
    RELEASE_GIL(
        again = mds_lengths_runs(self->lengths, self->width, order, order_width, self->n, values, values + runs, runs));
    if (again == runs)
        result = two_arrays(values, values + runs, runs);
    else
        PyErr_Format(PyExc_ValueError, "lengths: expected %zu that stay the same during the call, found a change",
                     self->n);
done:
    PyMem_Free(values);
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef lengths_methods[] = {
    {"largest", lengths_largest, METH_NOARGS,
     "largest($self, /)\n--\n\n"
     "Return the largest length, 0 when there are none."},
    {"sort", lengths_sort, METH_VARARGS,
     "sort($self, counts, order, order_width, /)\n--\n\n"
     "Sort record numbers by length, the longest first and equally long ones ascending, in one pass.\n\n"
     "counts: u64 with an entry for each length up to the largest, left with where the run of each ends.\n"
     "order: unsigned integers of order_width bytes, 4 or 8, one a length, filled with the record numbers.\n\n"
     "Raises ValueError when a length has no entry in counts."},
    {"sort_digits", lengths_sort_digits, METH_VARARGS,
     "sort_digits($self, shift, counts, previous, order, order_width, /)\n--\n\n"
     "Sort record numbers by a digit, length >> shift modulo the entries of counts, larger ones first.\n\n"
     "counts: u64, a power of two of entries. previous: the order that records of equal digits keep, or None for "
     "ascending record numbers.\n"
     "order: as in sort.\n\n"
     "Raises ValueError when previous holds a number that is not a record's."},
    {"runs", lengths_runs, METH_VARARGS,
     "runs($self, order, order_width, /)\n--\n\n"
     "Return (values, counts), bytes of u64: the lengths that occur, in the sequence of a sorted order, and how many\n"
     "records have each.\n\n"
     "Raises ValueError when order holds a number that is not a record's."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lengths_slots[] = {
    {Py_tp_doc, "Lengths(lengths, width)\n--\n\n"
                "The lengths of records, to be sorted: unsigned integers of `width` bytes, 4 or 8, which are held.\n\n"
                "Raises ValueError for another width, and for a buffer that is not whole or not aligned."},
    {Py_tp_new, lengths_new},
    {Py_tp_dealloc, lengths_dealloc},
    {Py_tp_methods, lengths_methods},
    {0, NULL},
};

static PyType_Spec lengths_spec = {"mmapds._native.Lengths", sizeof(LengthsObject), 0, Py_TPFLAGS_DEFAULT,
                                   lengths_slots};

static PyObject *lengths_runs_of(PyObject *Py_UNUSED(module), PyObject *source)
{
    PyObject *result = NULL;
    uint64_t *values = NULL;
    MDS_PY_BUFFERS(buffers, 1);
    const uint64_t *ends = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "ends");
    if (!ends)
        goto done;
    const size_t n = buffers.entries;
    if ((values = PyMem_Calloc(2 * n + 1, sizeof *values))) {
        size_t runs;
        RELEASE_GIL(runs = mds_runs_of(ends, n, values, values + n));
        result = two_arrays(values, values + n, runs);
    } else {
        PyErr_NoMemory();
    }
done:
    PyMem_Free(values);
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef functions[] = {
    {"lengths_runs_of", lengths_runs_of, METH_O,
     "lengths_runs_of($module, ends, /)\n--\n\n"
     "Return what Lengths.runs does, from the counts that Lengths.sort leaves."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_sort(PyObject *module)
{
    if (mds_py_add_type(module, &lengths_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
