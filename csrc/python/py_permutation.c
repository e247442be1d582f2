/* py_permutation.c - keyed permutations of [0, n). */
#include "binding.h"

static PyObject *permutation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n", "seed", "epoch", "stream", NULL};
    unsigned long long n, seed, epoch, stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKK:Permutation", names, &n, &seed, &epoch, &stream))
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
    PyErr_Format(PyExc_IndexError, "%lld is out of range for a permutation of %llu", (long long)value,
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
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "LLO:range", &first, &step, &target) ||
        mds_py_get_words(target, PyBUF_WRITABLE, &out, "out") != 0)
        return NULL;
    const int64_t count = out.len / 8;
    int64_t distance, last = first;
    int fits = 1;
    if (count) {
        fits = !__builtin_mul_overflow(count - 1, (int64_t)step, &distance) &&
               !__builtin_add_overflow((int64_t)first, distance, &last) && in_domain(p, first) && in_domain(p, last);
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            mds_permute_range(mds_py_kernels, p, (uint64_t)first, step, (size_t)count, out.buf);
            Py_END_ALLOW_THREADS
        } else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_OverflowError, "range ends outside 64 bits");
        }
    }
    PyBuffer_Release(&out);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *permutation_array(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    PyObject *source, *target;
    int inverse, ok = 1;
    Py_buffer in, out;
    if (!PyArg_ParseTuple(args, "OOp:array", &source, &target, &inverse) ||
        mds_py_get_words(source, PyBUF_SIMPLE, &in, "positions") != 0)
        return NULL;
    if (mds_py_get_words(target, PyBUF_WRITABLE, &out, "out") != 0) {
        PyBuffer_Release(&in);
        return NULL;
    }
    const int64_t *values = in.buf;
    const Py_ssize_t count = in.len / 8;
    if (in.len != out.len) {
        PyErr_SetString(PyExc_ValueError, "positions and out differ in size");
        ok = 0;
    }
    for (Py_ssize_t k = 0; ok && k < count; k++)
        ok = (uint64_t)values[k] < p->n ? 1 : in_domain(p, values[k]);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        mds_permute_array(mds_py_kernels, p, values, (size_t)count, inverse, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef permutation_methods[] = {
    {"one", permutation_one, METH_VARARGS, "one(value, inverse) -> int"},
    {"range", permutation_range, METH_VARARGS, "range(first, step, out): out[k] = p[first + k * step]"},
    {"array", permutation_array, METH_VARARGS, "array(positions, out, inverse): out[k] = p[positions[k]]"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot permutation_slots[] = {
    {Py_tp_doc, "A keyed permutation of [0, n) over int64 buffers."},
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
