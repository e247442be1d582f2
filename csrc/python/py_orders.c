/* py_orders.c - orders: from positions of an epoch to record numbers. */
#include "binding.h"

static PyObject *draw(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long n, seed, epoch;
    PyObject *source, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "O&KKOO:draw", mds_py_size, &n, &seed, &epoch, &source, &target))
        return NULL;
    if (n < 1 || n > INT64_MAX)
        return PyErr_Format(PyExc_ValueError, "n = %llu, expected 1 <= n < 2^63", n);
    if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, INT64_MAX, mds_draw_many(mds_key(seed, epoch, 0), n, lookup.at, lookup.count, lookup.out));
        result = mds_py_looked_up(&lookup, "position", "an epoch");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *weighted(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long draws, seed, epoch;
    PyObject *arrays, *ends, *coarse, *keys, *source, *target, *result = NULL;
    int is_rounded;
    mds_py_lookup lookup;
    mds_sums sums;
    MDS_PY_BUFFERS(buffers, 4);
    if (!PyArg_ParseTuple(args, "OO&pOOO:weighted", &arrays, mds_py_size, &draws, &is_rounded, &keys, &source,
                          &target) ||
        mds_py_expect_tuple(arrays, "sums") != 0 || mds_py_expect_tuple(keys, "key") != 0 ||
        !PyArg_ParseTuple(arrays, "OO:sums", &ends, &coarse) || !PyArg_ParseTuple(keys, "KK:key", &seed, &epoch))
        return NULL;
    if (!(sums.ends = mds_py_take_words(&buffers, ends, MDS_PY_READ, MDS_PY_ANY, "ends")))
        goto done;
    sums.n = buffers.entries;
    if (!(sums.coarse = mds_py_take_words(&buffers, coarse, MDS_PY_READ, sums.n / MDS_SUMS_BLOCK, "coarse")))
        goto done;
    if (sums.n < 1 || sums.ends[sums.n - 1] < 1 || sums.ends[sums.n - 1] > INT64_MAX || draws > INT64_MAX)
        PyErr_Format(PyExc_ValueError, "ends, draws: expected a sum of 1 to 2^63 - 1, and draws below 2^63");
    else if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        const uint64_t key = mds_key(seed, epoch, 0);
        if (is_rounded)
            LOOK_UP(lookup, draws, mds_rounded_many(&sums, draws, key, lookup.at, lookup.count, lookup.out));
        else
            LOOK_UP(lookup, draws, mds_weighted_many(&sums, key, lookup.at, lookup.count, lookup.out));
        result = mds_py_looked_up(&lookup, "position", "an epoch");
    }
done:
    mds_py_give_back(&buffers);
    return result;
}

/* ---- Chunks -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_chunks chunks; /* the object owns its tables */
    mds_permutation order;
} ChunksObject;

static void chunks_dealloc(PyObject *object)
{
    const mds_chunks *c = &((ChunksObject *)object)->chunks;
    PyMem_Free((void *)c->first_chunk);
    PyMem_Free((void *)c->first_record);
    PyMem_Free((void *)c->short_slots);
    PyMem_Free((void *)c->short_ends);
    PyMem_Free((void *)c->short_missing);
    mds_py_free(object);
}

static int check_chunks(const mds_chunks *c, const mds_permutation *order)
{
    const char *table = "";
    size_t entry = 0;
    int agree;
    RELEASE_GIL(agree = mds_chunks_agree(c, order, &table, &entry));
    if (agree)
        return 0;
    if (order->n != c->chunks)
        PyErr_Format(PyExc_ValueError, "order: expected a permutation of %llu chunks, found one of %llu",
                     (unsigned long long)c->chunks, (unsigned long long)order->n);
    else
        PyErr_Format(PyExc_ValueError, "%s[%zu]: expected a number that agrees with the other tables", table, entry);
    return -1;
}

static PyObject *chunks_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"chunk_size",  "mix_chunks", "seed",          "epoch", "first_chunk", "first_record",
                            "short_slots", "short_ends", "short_missing", "order", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    unsigned long long chunk_size, mix_chunks, seed, epoch;
    PyObject *first_chunk, *first_record, *slots, *ends, *missing, *order;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O&O&KKOOOOOO!:Chunks", names, mds_py_size, &chunk_size,
                                     mds_py_size, &mix_chunks, &seed, &epoch, &first_chunk, &first_record, &slots,
                                     &ends, &missing, state->permutation_type, &order))
        return NULL;
    if (chunk_size < 1 || mix_chunks < 1)
        return PyErr_Format(PyExc_ValueError, "chunk_size, mix_chunks: expected 1 or more, found %llu and %llu",
                            chunk_size, mix_chunks);
    ChunksObject *self = (ChunksObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_chunks *c = &self->chunks;
    *c = (mds_chunks){.chunk_size = chunk_size, .mix_chunks = mix_chunks, .seed = seed, .epoch = epoch};
    self->order = ((PermutationObject *)order)->permutation;
    size_t bounds;
    if (!(c->first_chunk = mds_py_copy_words(first_chunk, MDS_PY_ANY, "first_chunk", &bounds)))
        goto fail;
    if (bounds < 2) {
        PyErr_Format(PyExc_ValueError, "first_chunk: expected 2 entries or more, found %zu", bounds);
        goto fail;
    }
    c->sources = bounds - 1;
    c->chunks = c->first_chunk[c->sources];
    if ((c->first_record = mds_py_copy_words(first_record, bounds, "first_record", NULL)) &&
        (c->short_slots = mds_py_copy_words(slots, MDS_PY_ANY, "short_slots", &c->short_chunks)) &&
        (c->short_ends = mds_py_copy_words(ends, c->short_chunks, "short_ends", NULL)) &&
        (c->short_missing = mds_py_copy_words(missing, c->short_chunks + 1, "short_missing", NULL)) &&
        check_chunks(c, &self->order) == 0)
        return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static PyObject *chunks_at(PyObject *object, PyObject *args)
{
    const ChunksObject *self = (ChunksObject *)object;
    const mds_chunks *c = &self->chunks;
    const uint64_t records = c->first_record[c->sources];
    PyObject *source, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO:at", &source, &target))
        return NULL;
    if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, records, mds_chunks_at(mds_py_kernels, c, &self->order, lookup.at, lookup.count, lookup.out));
        result = mds_py_looked_up(&lookup, "position", "an epoch");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef chunks_methods[] = {
    {"at", chunks_at, METH_VARARGS,
     "at($self, positions, out, /)\n--\n\n"
     "Set out[k] to the record at positions[k]; both are i64, one shape.\n\n"
     "Raises IndexError when a position is not in the epoch."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot chunks_slots[] = {
    {Py_tp_doc, "Chunks(*, chunk_size, mix_chunks, seed, epoch, first_chunk, first_record, short_slots, short_ends, "
                "short_missing, order)\n--\n\n"
                "One epoch of chunks of records, mixed some at a time; see mds_chunks in csrc/sampling.h.\n\n"
                "first_chunk, first_record: u64, shape (sources + 1,). short_slots, short_ends: u64, shape (short,).\n"
                "short_missing: u64, shape (short + 1,). order: a permutation of the chunks.\n\n"
                "Raises ValueError when the tables do not agree with one another."},
    {Py_tp_new, chunks_new},
    {Py_tp_dealloc, chunks_dealloc},
    {Py_tp_methods, chunks_methods},
    {0, NULL},
};

static PyType_Spec chunks_spec = {"mmapds._native.Chunks", sizeof(ChunksObject), 0, Py_TPFLAGS_DEFAULT, chunks_slots};

/* ---- Mixture ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_mixture mixture; /* the object owns its tables */
} MixtureObject;

static void mixture_dealloc(PyObject *object)
{
    const mds_mixture *m = &((MixtureObject *)object)->mixture;
    PyMem_Free((void *)m->weights);
    PyMem_Free((void *)m->sizes);
    PyMem_Free((void *)m->first_record);
    PyMem_Free((void *)m->which);
    PyMem_Free((void *)m->rank);
    mds_py_free(object);
}

/* Check weights and sizes, and add them up. */
static int mixture_sums(mds_mixture *m, uint64_t *first_record)
{
    uint64_t total = 0, records = 0;
    for (size_t d = 0; d < m->members; d++) {
        first_record[d] = records;
        if (m->weights[d] > UINT32_MAX - total) {
            PyErr_Format(PyExc_ValueError, "weights: expected a sum below 2^32, found more at weights[%zu]", d);
            return -1;
        }
        if (m->sizes[d] > INT64_MAX - records || (m->weights[d] && !m->sizes[d])) {
            PyErr_Format(PyExc_ValueError, "sizes[%zu]: expected 1 or more, and fewer than 2^63 in all, found %llu", d,
                         (unsigned long long)m->sizes[d]);
            return -1;
        }
        total += m->weights[d];
        records += m->sizes[d];
    }
    m->total = (uint32_t)total;
    if (total)
        return 0;
    PyErr_SetString(PyExc_ValueError, "weights: expected a sum of 1 or more, found 0");
    return -1;
}

static PyObject *mixture_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"weights", "sizes", "seed", "shuffle", NULL};
    PyObject *weights, *sizes;
    unsigned long long seed;
    int shuffle;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOKp:Mixture", names, &weights, &sizes, &seed, &shuffle))
        return NULL;
    MixtureObject *self = (MixtureObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_mixture *m = &self->mixture;
    *m = (mds_mixture){.seed = seed, .shuffle = shuffle};
    uint64_t *first_record;
    mds_claim *claims = NULL;
    uint32_t *which, *rank;
    if (!(m->weights = mds_py_copy_words(weights, MDS_PY_ANY, "weights", &m->members)) ||
        !(m->sizes = mds_py_copy_words(sizes, m->members, "sizes", NULL)))
        goto fail;
    m->first_record = first_record = PyMem_Calloc(m->members + 1, sizeof *first_record);
    if (!first_record) {
        PyErr_NoMemory();
        goto fail;
    }
    if (mixture_sums(m, first_record) != 0)
        goto fail;
    m->which = which = PyMem_Calloc(m->total, sizeof *which);
    m->rank = rank = PyMem_Calloc(m->total, sizeof *rank);
    claims = PyMem_Calloc(m->members, sizeof *claims);
    if (!which || !rank || !claims) {
        PyErr_NoMemory();
        goto fail;
    }
    RELEASE_GIL(mds_mixture_period(m->weights, m->members, m->total, claims, which, rank));
    PyMem_Free(claims);
    return (PyObject *)self;
fail:
    PyMem_Free(claims);
    Py_DECREF(self);
    return NULL;
}

static PyObject *mixture_at(PyObject *object, PyObject *args)
{
    mds_mixture m = ((MixtureObject *)object)->mixture;
    unsigned long long epoch;
    PyObject *source, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "KOO:at", &epoch, &source, &target))
        return NULL;
    m.epoch = epoch;
    mds_member *members = PyMem_Malloc(m.members * sizeof *members); /* of this call, so that calls may run at once */
    if (!members)
        return PyErr_NoMemory();
    for (size_t d = 0; d < m.members; d++)
        members[d].pass = MDS_NONE;
    if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, INT64_MAX, mds_mixture_at(&m, members, lookup.at, lookup.count, lookup.out));
        result = mds_py_looked_up(&lookup, "position", "an epoch");
    }
    PyMem_Free(members);
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *mixture_which(PyObject *object, PyObject *args)
{
    const mds_mixture *m = &((MixtureObject *)object)->mixture;
    PyObject *source, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO:which", &source, &target))
        return NULL;
    if (mds_py_take_lookup(&buffers, source, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, INT64_MAX, mds_mixture_which(m, lookup.at, lookup.count, lookup.out));
        result = mds_py_looked_up(&lookup, "position", "an epoch");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef mixture_methods[] = {
    {"at", mixture_at, METH_VARARGS,
     "at($self, epoch, positions, out, /)\n--\n\n"
     "Set out[k] to the record at positions[k] of an epoch; both are i64, one shape.\n"
     "Record numbers count through the members.\n\n"
     "Raises IndexError when a position is negative."},
    {"which", mixture_which, METH_VARARGS,
     "which($self, positions, out, /)\n--\n\n"
     "Set out[k] to the member that gives positions[k] its record, in every epoch; both are i64, one shape.\n\n"
     "Raises IndexError when a position is negative."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot mixture_slots[] = {
    {Py_tp_doc, "Mixture(*, weights, sizes, seed, shuffle)\n--\n\n"
                "Members in fixed proportions, which repeat with a period of sum(weights) positions.\n\n"
                "weights, sizes: u64, shape (members,): the share of each, and its records.\n"
                "shuffle: False reads each in order.\n\n"
                "Raises ValueError when weights add up to 0 or to 2^32, or a member with a weight has no records."},
    {Py_tp_new, mixture_new},
    {Py_tp_dealloc, mixture_dealloc},
    {Py_tp_methods, mixture_methods},
    {0, NULL},
};

static PyType_Spec mixture_spec = {"mmapds._native.Mixture", sizeof(MixtureObject), 0, Py_TPFLAGS_DEFAULT,
                                   mixture_slots};

/* ---- the subject --------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"draw", draw, METH_VARARGS,
     "draw($module, n, seed, epoch, positions, out, /)\n--\n\n"
     "Set out[k] to the record at positions[k], drawn from [0, n) with replacement; both are i64, one shape.\n\n"
     "Raises IndexError when a position is negative, ValueError unless 1 <= n < 2^63."},
    {"weighted", weighted, METH_VARARGS,
     "weighted($module, sums, draws, rounded, key, positions, out, /)\n--\n\n"
     "Set out[k] to the record of the draw at positions[k], by weight; both are i64, one shape.\n\n"
     "sums: two arrays of u64, the sum of the weights up to each record, and every 4096th of them. rounded: draw\n"
     "without replacement. key: seed and epoch.\n\n"
     "Raises IndexError when a position is not among the draws, ValueError for weights that are all 0."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_orders(PyObject *module)
{
    if (mds_py_add_type(module, &chunks_spec, NULL) != 0 || mds_py_add_type(module, &mixture_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
