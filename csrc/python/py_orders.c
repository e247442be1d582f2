/* py_orders.c - orders: from positions of an epoch to record numbers. */
#include "binding.h"

static PyObject *draw(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long n, seed, epoch;
    PyObject *source, *target, *result = NULL;
    const int64_t *positions;
    int64_t *out;
    size_t count;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "KKKOO:draw", &n, &seed, &epoch, &source, &target))
        return NULL;
    if (n < 1 || n > INT64_MAX) {
        PyErr_SetString(PyExc_ValueError, "n: expected 1 or more, below 2^63");
        return NULL;
    }
    if (mds_py_positions(&all, source, target, INT64_MAX, &positions, &out, &count) == 0) {
        Py_BEGIN_ALLOW_THREADS
        const uint64_t key = mds_key(seed, epoch, 0);
        for (size_t k = 0; k < count; k++)
            out[k] = (int64_t)mds_draw(key, (uint64_t)positions[k], n);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *chunks_at(PyObject *module, PyObject *args)
{
    unsigned long long chunk_size, mix_chunks, seed, epoch;
    PyObject *first_chunk, *first_record, *ends, *slots, *missing, *source, *target, *order, *result = NULL;
    const int64_t *positions;
    int64_t *out;
    size_t count;
    mds_py_views all = {.count = 0};
    const mds_py_state *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "KKKKOOOOOO!OO:chunks_at", &chunk_size, &mix_chunks, &seed, &epoch, &first_chunk,
                          &first_record, &slots, &ends, &missing, state->permutation_type, &order, &source, &target))
        return NULL;
    mds_chunks c = {.chunk_size = chunk_size, .mix_chunks = mix_chunks, .seed = seed, .epoch = epoch};
    if (!(c.first_chunk = mds_py_words(&all, first_chunk, PyBUF_SIMPLE, -1, "first_chunk")))
        goto done;
    if (chunk_size < 1 || mix_chunks < 1 || mds_py_entries(&all) < 2) {
        PyErr_SetString(PyExc_ValueError, "expected a chunk size, a mix and a source of 1 or more");
        goto done;
    }
    c.sources = (size_t)mds_py_entries(&all) - 1;
    c.chunks = c.first_chunk[c.sources];
    if (!(c.first_record = mds_py_words(&all, first_record, PyBUF_SIMPLE, (Py_ssize_t)c.sources + 1, "first_record")) ||
        !(c.short_slots = mds_py_words(&all, slots, PyBUF_SIMPLE, -1, "short_slots")))
        goto done;
    c.short_chunks = (size_t)mds_py_entries(&all);
    if (!(c.short_ends = mds_py_words(&all, ends, PyBUF_SIMPLE, (Py_ssize_t)c.short_chunks, "short_ends")) ||
        !(c.short_missing = mds_py_words(&all, missing, PyBUF_SIMPLE, (Py_ssize_t)c.short_chunks + 1, "short_missing")) ||
        mds_py_positions(&all, source, target, c.first_record[c.sources], &positions, &out, &count) != 0)
        goto done;
    const mds_permutation *chunks = &((PermutationObject *)order)->permutation;
    if (chunks->n != c.chunks) {
        PyErr_SetString(PyExc_ValueError, "order: expected a permutation of the chunks");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    mds_chunks_at(mds_py_kernels, &c, chunks, positions, count, out);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    mds_py_release(&all);
    return result;
}

static PyObject *mixture_period(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *weights, *which, *rank, *result = NULL;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OO!O!:mixture_period", &weights, &PyByteArray_Type, &which, &PyByteArray_Type, &rank))
        return NULL;
    const uint64_t *w = mds_py_words(&all, weights, PyBUF_SIMPLE, -1, "weights");
    if (w) {
        const size_t members = (size_t)mds_py_entries(&all);
        const Py_ssize_t total = PyByteArray_Size(which) / 4;
        uint64_t *given = PyMem_Calloc(members + 1, sizeof *given), sum = 0;
        for (size_t d = 0; d < members && sum <= UINT32_MAX; d++)
            sum = w[d] > UINT32_MAX ? w[d] : sum + w[d];
        if (!given)
            PyErr_NoMemory();
        else if (sum != (uint64_t)total || total == 0)
            PyErr_SetString(PyExc_ValueError, "weights: expected as many as `which` has entries, and some");
        else if (PyByteArray_Size(rank) != total * 4)
            PyErr_SetString(PyExc_ValueError, "which and rank differ in size");
        else {
            mds_mixture_period(w, members, (uint32_t)total, given, (uint32_t *)PyByteArray_AsString(which),
                               (uint32_t *)PyByteArray_AsString(rank));
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(given);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *mixture_at(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long seed, epoch;
    int shuffle;
    PyObject *weights, *sizes, *firsts, *which, *rank, *source, *target, *result = NULL;
    const int64_t *positions;
    int64_t *out;
    size_t count;
    mds_member *members = NULL;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "KKpOOOO!O!OO:mixture_at", &seed, &epoch, &shuffle, &weights, &sizes, &firsts,
                          &PyByteArray_Type, &which, &PyByteArray_Type, &rank, &source, &target))
        return NULL;
    mds_mixture m = {.seed = seed, .epoch = epoch, .shuffle = shuffle};
    if (!(m.weights = mds_py_words(&all, weights, PyBUF_SIMPLE, -1, "weights")))
        goto done;
    m.members = (size_t)mds_py_entries(&all);
    if (!(m.sizes = mds_py_words(&all, sizes, PyBUF_SIMPLE, (Py_ssize_t)m.members, "sizes")) ||
        !(m.first_record = mds_py_words(&all, firsts, PyBUF_SIMPLE, (Py_ssize_t)m.members, "first_record")) ||
        mds_py_positions(&all, source, target, INT64_MAX, &positions, &out, &count) != 0)
        goto done;
    m.total = (uint32_t)(PyByteArray_Size(which) / 4);
    if (m.total == 0 || PyByteArray_Size(rank) != (Py_ssize_t)m.total * 4) {
        PyErr_SetString(PyExc_ValueError, "which and rank: expected as many entries each, and some");
        goto done;
    }
    m.which = (const uint32_t *)PyByteArray_AsString(which);
    m.rank = (const uint32_t *)PyByteArray_AsString(rank);
    members = PyMem_Calloc(m.members, sizeof *members);
    if (!members) {
        PyErr_NoMemory();
        goto done;
    }
    for (size_t d = 0; d < m.members; d++) {
        members[d].pass = MDS_NONE;
        if (m.weights[d] && !m.sizes[d]) {
            PyErr_SetString(PyExc_ValueError, "sizes: expected 1 or more where there is weight");
            goto done;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    mds_mixture_at(&m, members, positions, count, out);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(members);
    mds_py_release(&all);
    return result;
}

static PyMethodDef functions[] = {
    {"draw", draw, METH_VARARGS, "draw(n, seed, epoch, positions, out): uniform records, with replacement"},
    {"chunks_at", chunks_at, METH_VARARGS,
     "chunks_at(chunk_size, mix_chunks, seed, epoch, first_chunk, first_record, short_slots, short_ends, "
     "short_missing, order, positions, out)"},
    {"mixture_period", mixture_period, METH_VARARGS, "mixture_period(weights, which, rank): fill a period of uint32"},
    {"mixture_at", mixture_at, METH_VARARGS,
     "mixture_at(seed, epoch, shuffle, weights, sizes, first_record, which, rank, positions, out)"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_orders(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
