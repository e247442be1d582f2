/* py_plan.c - batches under a budget: cut once, read by number or filled as records come. */
#include "binding.h"

static PyObject *plan_buckets(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tokens, largest, multiple, quadratic, least, most, per_mille;
    int between;
    PyObject *lengths, *numbers, *result = NULL;
    const uint64_t *values, *counts;
    mds_bucket *buckets = NULL, *others = NULL;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "(O&O&O&O&)OO(O&O&O&)p:plan_buckets", mds_py_size, &tokens, mds_py_size, &largest,
                          mds_py_size, &multiple, mds_py_size, &quadratic, &lengths, &numbers, mds_py_size, &least,
                          mds_py_size, &most, mds_py_size, &per_mille, &between))
        return NULL;
    if (largest < 1 || largest > UINT64_C(1) << 31 || multiple < 1)
        return PyErr_Format(PyExc_ValueError,
                            "budget: expected 1 to 2^31 records, and a multiple of 1 or more, found %llu and %llu",
                            largest, multiple);
    if (least < 1 || least > most || most > UINT64_C(1) << 32 || per_mille > 1000)
        return PyErr_Format(PyExc_ValueError,
                            "cut: expected 1 to 2^32 batches and up to 1000 per mille, found %llu to %llu and %llu",
                            least, most, per_mille);
    const mds_budget budget = {tokens, largest, multiple, quadratic};
    const mds_cut cut = {least, most, per_mille};
    if (!(values = mds_py_take_words(&buffers, lengths, MDS_PY_READ, MDS_PY_ANY, "values")) ||
        !(counts = mds_py_take_words(&buffers, numbers, MDS_PY_READ, buffers.entries, "counts")))
        goto done;
    const size_t distinct = buffers.entries;
    if (!(buckets = PyMem_Calloc(distinct + 2, sizeof *buckets)) ||
        (between && !(others = PyMem_Calloc(2 * distinct + 7, sizeof *others)))) {
        PyErr_NoMemory();
        goto done;
    }
    size_t sound, found = 0;
    RELEASE_GIL({
        sound = mds_lengths_fall(values, counts, distinct);
        if (sound == distinct)
            found = mds_plan_buckets(&budget, values, counts, distinct, &cut, buckets);
        if (sound == distinct && between)
            found = mds_plan_between(&budget, values, counts, distinct, &cut, buckets, found, others);
    });
    if (sound == distinct)
        result = PyBytes_FromStringAndSize((const char *)(between ? others : buckets),
                                           (Py_ssize_t)(found * sizeof *buckets));
    else
        PyErr_Format(PyExc_ValueError,
                     "values[%zu]: expected lengths that fall, of 1 record or more each, found %llu of length %llu",
                     sound, (unsigned long long)counts[sound], (unsigned long long)values[sound]);
done:
    PyMem_Free(buckets);
    PyMem_Free(others);
    mds_py_give_back(&buffers);
    return result;
}

/* Copy buckets that follow one another, as mds_plan_buckets makes them; NULL with an exception. */
static mds_bucket *copy_buckets(PyObject *object, size_t *count, uint64_t *ranks, uint64_t *batches)
{
    size_t words;
    mds_bucket *buckets = mds_py_copy_words(object, MDS_PY_ANY, "buckets", &words);
    if (!buckets)
        return NULL;
    *count = words / 4;
    size_t sound = 0;
    if (*count && words % 4 == 0)
        RELEASE_GIL(sound = mds_buckets_follow(buckets, *count, ranks, batches));
    if (*count && sound == *count)
        return buckets;
    if (!*count || words % 4)
        PyErr_Format(PyExc_ValueError, "buckets: expected rows of 4 entries, 1 or more, found %zu entries", words);
    else
        PyErr_Format(PyExc_ValueError,
                     "buckets[%zu]: expected one that begins at rank %llu and batch %llu, found %llu and %llu", sound,
                     (unsigned long long)*ranks, (unsigned long long)*batches,
                     (unsigned long long)buckets[sound].first_rank, (unsigned long long)buckets[sound].first_batch);
    PyMem_Free(buckets);
    return NULL;
}

/* ---- Plan ---------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_plan plan; /* the object owns its buckets */
    uint64_t batches;
} PlanObject;

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buckets", "first_rank", "seed", "epoch", "shuffle", NULL};
    PyObject *buckets;
    int shuffle;
    unsigned long long first_rank, seed, epoch;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OO&KKp:Plan", names, &buckets, mds_py_size, &first_rank, &seed,
                                     &epoch, &shuffle))
        return NULL;
    PlanObject *self = (PlanObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_plan *plan = &self->plan;
    *plan = (mds_plan){.first_rank = first_rank, .seed = seed, .epoch = epoch, .shuffle = shuffle};
    if ((plan->buckets = copy_buckets(buckets, &plan->count, &plan->ranks, &self->batches)) &&
        first_rank <= INT64_MAX - plan->ranks)
        return (PyObject *)self;
    if (plan->buckets)
        PyErr_Format(PyExc_ValueError, "first_rank: expected up to %llu, as the buckets have %llu records, found %llu",
                     (unsigned long long)(INT64_MAX - plan->ranks), (unsigned long long)plan->ranks, first_rank);
    Py_DECREF(self);
    return NULL;
}

static void plan_dealloc(PyObject *object)
{
    PyMem_Free((void *)((PlanObject *)object)->plan.buckets);
    mds_py_free(object);
}

static PyObject *plan_batches(PyObject *object, PyObject *args)
{
    const PlanObject *self = (PlanObject *)object;
    PyObject *numbers, *target, *bounds, *result = NULL;
    mds_py_lookup lookup;
    int64_t *ranks;
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "OOO:batches", &numbers, &target, &bounds) ||
        mds_py_take_lookup(&buffers, numbers, bounds, "batches", &lookup) != 0 ||
        !(ranks = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "out")))
        goto done;
    const size_t capacity = buffers.entries;
    mds_status status = MDS_OK;
    LOOK_UP(lookup, self->batches,
            status =
                mds_plan_batches(mds_py_kernels, &self->plan, lookup.at, lookup.count, ranks, capacity, lookup.out));
    if (status == MDS_OK)
        result = mds_py_looked_up(&lookup, "batch", "a plan");
    else
        PyErr_Format(PyExc_ValueError, "out: expected room for all records of the batches, found room for %zu",
                     capacity);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef plan_methods[] = {
    {"batches", plan_batches, METH_VARARGS,
     "batches($self, batches, out, ends, /)\n--\n\n"
     "Write where in the length order the records of batches are, one batch after another, to out, and to ends where\n"
     "each ends in it.\n\n"
     "All are i64; ends has the shape of batches, and out has room for all records.\n\n"
     "Raises IndexError for a batch that is not planned, ValueError when out is too small."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, "Plan(*, buckets, first_rank, seed, epoch, shuffle)\n--\n\n"
                "One epoch of batches of records that are alike in length.\n\n"
                "buckets: u64, shape (buckets, 4), from plan_buckets; they begin at place first_rank of the order.\n\n"
                "Raises ValueError when buckets do not follow one another."},
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_methods, plan_methods},
    {0, NULL},
};

static PyType_Spec plan_spec = {"mmapds._native.Plan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT, plan_slots};

/* ---- Stream -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_stream stream; /* the object owns its tables */
    int busy;                        /* a call is running, without the GIL */
} StreamObject;

static void stream_dealloc(PyObject *object)
{
    StreamObject *self = (StreamObject *)object;
    PyMem_Free((void *)self->stream.buckets);
    PyMem_Free((void *)self->stream.values);
    PyMem_Free((void *)self->stream.first_buckets);
    PyMem_Free((void *)self->stream.splits);
    PyMem_Free((void *)self->stream.table);
    PyMem_Free((void *)self->stream.open_first);
    PyMem_Free(self->stream.taken);
    PyMem_Free(self->stream.open);
    mds_py_free(object);
}

/* Make room for an open batch of every bucket. */
static int open_batches(mds_stream *s)
{
    uint64_t *open_first = PyMem_Calloc(s->count + 1, sizeof *open_first);
    s->open_first = open_first;
    s->taken = PyMem_Calloc(s->count, sizeof *s->taken);
    for (size_t b = 0; open_first && b < s->count; b++) /* the sum is not above the number of ranks */
        open_first[b + 1] = open_first[b] + s->buckets[b].size;
    if (open_first && s->taken)
        s->open = PyMem_Calloc((size_t)open_first[s->count], sizeof *s->open);
    if (s->open)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static int check_stream(const mds_stream *s, uint64_t ranks)
{
    const char *table = "";
    size_t entry = 0;
    const uint64_t before = s->buckets[s->count - 1].first_rank;
    int agrees;
    if (s->ranks <= before || s->ranks > ranks) {
        PyErr_Format(PyExc_ValueError, "ranks: expected more than %llu, up to %llu, found %llu",
                     (unsigned long long)before, (unsigned long long)ranks, (unsigned long long)s->ranks);
        return -1;
    }
    RELEASE_GIL(agrees = mds_stream_agrees(s, &table, &entry));
    if (agrees)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s[%zu]: expected a bucket for every length, found one beyond the %zu there are",
                 table, entry, table[0] == 't' ? s->distinct : s->count);
    return -1;
}

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buckets", "ranks", "records", "values", "first_buckets", "splits", "table", NULL};
    PyObject *buckets, *values, *first_buckets, *splits, *table;
    unsigned long long planned, records;
    uint64_t ranks, batches;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OO&O&OOOO:Stream", names, &buckets, mds_py_size, &planned,
                                     mds_py_size, &records, &values, &first_buckets, &splits, &table))
        return NULL;
    StreamObject *self = (StreamObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_stream *s = &self->stream;
    s->ranks = planned;
    s->records = records;
    if ((s->buckets = copy_buckets(buckets, &s->count, &ranks, &batches)) &&
        (s->values = mds_py_copy_words(values, MDS_PY_ANY, "values", &s->distinct)) &&
        (s->first_buckets = mds_py_copy_numbers(first_buckets, 4, s->distinct, "first_buckets", NULL)) &&
        (s->splits = mds_py_copy_words(splits, s->distinct, "splits", NULL)) &&
        (s->table = mds_py_copy_numbers(table, 4, MDS_PY_ANY, "table", &s->table_size)) &&
        check_stream(s, ranks) == 0 && open_batches(s) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static PyObject *stream_push(PyObject *object, PyObject *args)
{
    StreamObject *self = (StreamObject *)object;
    PyObject *source, *numbers, *target, *bounds, *result = NULL;
    const int64_t *records;
    const uint64_t *lengths;
    int64_t *out, *ends;
    MDS_PY_BUFFERS(buffers, 4);
    if (!PyArg_ParseTuple(args, "OOOO:push", &source, &numbers, &target, &bounds) ||
        !(records = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "records")) ||
        !(lengths = mds_py_take_words(&buffers, numbers, MDS_PY_READ, buffers.entries, "lengths")))
        goto done;
    const size_t n = buffers.entries;
    if (!(out = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "out")))
        goto done;
    const size_t capacity = buffers.entries;
    if (!(ends = mds_py_take_words(&buffers, bounds, MDS_PY_WRITE, MDS_PY_ANY, "ends")))
        goto done;
    if (!mds_py_enter(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "Stream.push: expected one thread at a time, found another in it");
        goto done;
    }
    size_t consumed, emitted, written;
    mds_status status;
    RELEASE_GIL(status = mds_stream_push(&self->stream, records, lengths, n, &consumed, out, capacity, ends,
                                         buffers.entries, &emitted, &written));
    mds_py_leave(&self->busy);
    if (status == MDS_OK)
        result = Py_BuildValue("nn", (Py_ssize_t)consumed, (Py_ssize_t)emitted);
    else
        PyErr_Format(PyExc_ValueError, "records[%zu]: expected record numbers below %llu, each once, found %lld",
                     consumed, (unsigned long long)self->stream.records, (long long)records[consumed]);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef stream_methods[] = {
    {"push", stream_push, METH_VARARGS,
     "push($self, records, lengths, out, ends, /)\n--\n\n"
     "Take records until len(ends) batches are ready or no more fit out; return (records taken, batches ready).\n\n"
     "lengths: u64, one for each record; the others are i64. Batches are written one after another to out, and to ends "
     "where each ends in it.\n\n"
     "Raises ValueError for a record that is out of range or comes twice, RuntimeError while another thread is in it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_doc,
     "Stream(*, buckets, ranks, records, values, first_buckets, splits, table)\n--\n\n"
     "Buckets that are filled as records come, for one thread at a time; see mds_stream in csrc/sampling.h.\n\n"
     "buckets: u64, shape (buckets, 4). ranks: records in them. records: of the dataset. values: u64, the lengths "
     "that\n"
     "are planned, falling.\n"
     "first_buckets: u32, and splits: u64, of the shape of values. table: u32, the place of each length in values,\n"
     "or 2^32 - 1 if it is not planned.\n\n"
     "Raises ValueError when buckets do not follow one another, or a table leads to a bucket beyond the last."},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};

static PyType_Spec stream_spec = {"mmapds._native.Stream", sizeof(StreamObject), 0, Py_TPFLAGS_DEFAULT, stream_slots};

/* ---- the subject --------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"plan_buckets", plan_buckets, METH_VARARGS,
     "plan_buckets($module, budget, values, counts, cut, between, /)\n--\n\n"
     "Cut records into buckets of batches under a budget, (tokens, largest, multiple, quadratic).\n\n"
     "values, counts: u64, the lengths that occur, falling, and how many records have each.\n"
     "cut: the least and the most batches of a bucket, and how many thousandths lengths may fall in it.\n"
     "between: cut in the middle of these buckets, see mds_plan_between in csrc/sampling.h.\n"
     "Returns bytes of u64, shape (buckets, 4): first rank, first batch, batches, size.\n\n"
     "Raises ValueError when lengths do not fall, or a number is out of range."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_plan(PyObject *module)
{
    if (mds_py_add_type(module, &plan_spec, NULL) != 0 || mds_py_add_type(module, &stream_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
