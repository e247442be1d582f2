/* py_permutation.c - keyed permutations of [0, n). */
#include "binding.h"

static PyObject *permutation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n", "seed", "epoch", "stream", NULL};
    unsigned long long n, seed, epoch, stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&KKK:Permutation", names, mds_py_size, &n, &seed, &epoch, &stream))
        return NULL;
    if (n < 1 || n > INT64_MAX) {
        PyErr_Format(PyExc_ValueError, "n = %llu, expected 1 <= n < 2^63", n);
        return NULL;
    }
    PermutationObject *self = (PermutationObject *)mds_py_new(type);
    if (self)
        mds_permutation_init(&self->permutation, n, seed, epoch, stream);
    return (PyObject *)self;
}

static int in_domain(const mds_permutation *p, int64_t value)
{
    if ((uint64_t)value < p->n)
        return 1;
    PyErr_Format(PyExc_IndexError, "position %lld is out of range for a permutation of %llu", (long long)value,
                 (unsigned long long)p->n);
    return 0;
}

static PyObject *permutation_one(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    long long value;
    int inverse;
    if (!PyArg_ParseTuple(args, "Lp:one", &value, &inverse) || !in_domain(p, value))
        return NULL;
    const uint64_t result = inverse ? mds_permute_inverse(p, (uint64_t)value) : mds_permute(p, (uint64_t)value);
    return PyLong_FromUnsignedLongLong(result);
}

static PyObject *permutation_range(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    long long first, step;
    PyObject *target;
    int64_t *out, distance, last;
    int fits = 0;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "LLO:range", &first, &step, &target) ||
        !(out = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "out")))
        goto done;
    const size_t count = buffers.entries;
    if (count == 0)
        fits = 1;
    else if (__builtin_mul_overflow((int64_t)count - 1, (int64_t)step, &distance) ||
             __builtin_add_overflow((int64_t)first, distance, &last))
        PyErr_Format(PyExc_OverflowError,
                     "first, step: expected positions of 64 bits, found %zu from %lld in steps of %lld", count, first,
                     step);
    else if (in_domain(p, first) && in_domain(p, last)) {
        fits = 1;
        RELEASE_GIL(mds_permute_range(mds_py_kernels, p, (uint64_t)first, step, count, out));
    }
done:
    mds_py_give_back(&buffers);
    return fits ? Py_NewRef(Py_None) : NULL;
}

static PyObject *permutation_array(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    PyObject *source, *target, *result = NULL;
    int inverse;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OOp:array", &source, &target, &inverse))
        return NULL;
    if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, p->n, mds_permute_array(mds_py_kernels, p, lookup.at, lookup.count, inverse, lookup.out));
        result = mds_py_looked_up(&lookup, inverse ? "value" : "position", "a permutation");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef permutation_methods[] = {
    {"one", permutation_one, METH_VARARGS,
     "one($self, value, inverse, /)\n--\n\n"
     "Return p[value], or with inverse the position of value.\n\n"
     "Raises IndexError unless 0 <= value < n."},
    {"range", permutation_range, METH_VARARGS,
     "range($self, first, step, out, /)\n--\n\n"
     "Set out[k] = p[first + k * step]; out is i64.\n\n"
     "Raises IndexError when a position is not in [0, n), OverflowError when one needs more than 64 bits."},
    {"array", permutation_array, METH_VARARGS,
     "array($self, positions, out, inverse, /)\n--\n\n"
     "Set out[k] = p[positions[k]], or with inverse p[out[k]] = positions[k].\n\n"
     "Both are i64, one shape, and may be one buffer.\n\n"
     "Raises IndexError when one is not in [0, n)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot permutation_slots[] = {
    {Py_tp_doc, "Permutation(n, seed, epoch, stream)\n--\n\n"
                "A keyed permutation of [0, n) over buffers of i64; seed, epoch and stream are taken modulo 2^64.\n\n"
                "Raises ValueError unless 1 <= n < 2^63."},
    {Py_tp_new, permutation_new},
    {Py_tp_dealloc, mds_py_free},
    {Py_tp_methods, permutation_methods},
    {0, NULL},
};

static PyType_Spec permutation_spec = {"mmapds._native.Permutation", sizeof(PermutationObject), 0, Py_TPFLAGS_DEFAULT,
                                       permutation_slots};

int mds_py_add_permutation(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    return mds_py_add_type(module, &permutation_spec, &state->permutation_type);
}
