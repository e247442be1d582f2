/* py_plan.c - batches under a budget. */
#include "binding.h"

static PyObject *plan_buckets(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tokens, largest, multiple, quadratic, wanted;
    int close;
    PyObject *lengths, *numbers, *result = NULL;
    mds_bucket *buckets = NULL;
    mds_py_views all = {.count = 0};
    if (!PyArg_ParseTuple(args, "(KKKK)OOKp:plan_buckets", &tokens, &largest, &multiple, &quadratic, &lengths, &numbers,
                          &wanted, &close))
        return NULL;
    const mds_budget budget = {tokens, largest, multiple, quadratic};
    const uint64_t *values = mds_py_words(&all, lengths, PyBUF_SIMPLE, -1, "values"), *counts = NULL;
    const Py_ssize_t distinct = values ? mds_py_entries(&all) : 0;
    if (!values || !(counts = mds_py_words(&all, numbers, PyBUF_SIMPLE, distinct, "counts")))
        goto done;
    uint64_t total = 0;
    int sane = largest >= 1 && largest <= UINT64_C(1) << 31 && multiple >= 1 && wanted >= 1 &&
               wanted <= UINT64_C(1) << 32;
    for (Py_ssize_t i = 0; i < distinct && sane; i++)
        sane = counts[i] > 0 && counts[i] < (uint64_t)INT64_MAX - total && (i == 0 || values[i] < values[i - 1]) &&
               (total += counts[i]);
    if (!sane) {
        PyErr_SetString(PyExc_ValueError, "expected lengths that fall, counts of 1 or more, and limits in range");
        goto done;
    }
    buckets = PyMem_Calloc((size_t)distinct + 2, sizeof *buckets);
    if (!buckets) {
        PyErr_NoMemory();
        goto done;
    }
    const size_t found = mds_plan_buckets(&budget, values, counts, (size_t)distinct, wanted, close, buckets);
    result = PyBytes_FromStringAndSize((const char *)buckets, (Py_ssize_t)(found * sizeof *buckets));
done:
    PyMem_Free(buckets);
    mds_py_release(&all);
    return result;
}

/* Buckets that follow one another, as mds_plan_buckets makes them; -1 with an exception. */
static int take_buckets(mds_py_views *all, PyObject *object, const mds_bucket **buckets, size_t *count, uint64_t *batches,
                        uint64_t *ranks)
{
    *buckets = mds_py_words(all, object, PyBUF_SIMPLE, -1, "buckets");
    if (!*buckets)
        return -1;
    *count = (size_t)mds_py_entries(all) / 4;
    *batches = *ranks = 0;
    int sane = *count > 0 && mds_py_entries(all) % 4 == 0;
    for (size_t b = 0; b < *count && sane; b++) {
        const mds_bucket *bucket = &(*buckets)[b];
        uint64_t records;
        sane = bucket->first_rank == *ranks && bucket->first_batch == *batches && bucket->batches && bucket->size &&
               !__builtin_mul_overflow(bucket->batches, bucket->size, &records) &&
               !__builtin_add_overflow(*ranks, records, ranks) && *ranks <= INT64_MAX;
        *batches += bucket->batches;
    }
    if (sane)
        return 0;
    PyErr_SetString(PyExc_ValueError, "buckets: expected some that follow one another");
    return -1;
}

static int take_plan(mds_py_views *all, PyObject *args, PyObject **first, PyObject **second, PyObject **third, mds_plan *plan,
                     uint64_t *batches)
{
    PyObject *buckets, *order;
    unsigned long long first_rank, records, seed, epoch;
    if (!PyArg_ParseTuple(args, "OOIKKKKpOO|O", &buckets, &order, &plan->order_width, &first_rank, &records, &seed,
                          &epoch, &plan->shuffle, first, second, third) ||
        take_buckets(all, buckets, &plan->buckets, &plan->count, batches, &plan->ranks) != 0 ||
        !(plan->order = mds_py_numbers(all, order, PyBUF_SIMPLE, plan->order_width, -1, "order")))
        return -1;
    const uint64_t entries = (uint64_t)all->views[all->count - 1].len / plan->order_width;
    if (first_rank > entries || plan->ranks > entries - first_rank) {
        PyErr_SetString(PyExc_ValueError, "order: shorter than the plan");
        return -1;
    }
    plan->first_rank = first_rank;
    plan->records = records;
    plan->seed = seed;
    plan->epoch = epoch;
    return 0;
}

static PyObject *plan_batches(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *numbers, *target, *bounds = NULL, *result = NULL;
    mds_plan plan;
    uint64_t batches;
    mds_py_views all = {.count = 0};
    const int64_t *wanted;
    int64_t *records, *ends;
    size_t n;
    if (take_plan(&all, args, &numbers, &target, &bounds, &plan, &batches) != 0)
        goto done;
    if (!bounds) {
        PyErr_SetString(PyExc_TypeError, "plan_batches() needs ends");
        goto done;
    }
    if (mds_py_positions(&all, numbers, bounds, batches, &wanted, &ends, &n) != 0 ||
        !(records = mds_py_words(&all, target, PyBUF_WRITABLE, -1, "records")))
        goto done;
    const size_t capacity = (size_t)mds_py_entries(&all);
    mds_status status;
    Py_BEGIN_ALLOW_THREADS
    status = mds_plan_batches(mds_py_kernels, &plan, wanted, n, records, capacity, ends);
    Py_END_ALLOW_THREADS
    if (status == MDS_OK)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "the length order holds what is no record");
done:
    mds_py_release(&all);
    return result;
}

static PyObject *plan_find(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *target, *unused = NULL, *result = NULL;
    mds_plan plan;
    uint64_t batches;
    mds_py_views all = {.count = 0};
    const int64_t *ranks;
    int64_t *out;
    size_t n;
    if (take_plan(&all, args, &source, &target, &unused, &plan, &batches) == 0 &&
        mds_py_positions(&all, source, target, plan.ranks, &ranks, &out, &n) == 0) {
        mds_plan_find(&plan, ranks, n, out);
        result = Py_NewRef(Py_None);
    }
    mds_py_release(&all);
    return result;
}

static PyObject *stream_push(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *o_buckets, *o_lengths, *o_values, *o_first, *o_splits, *o_table, *o_taken, *o_open, *o_open_first;
    PyObject *o_records, *o_out, *o_ends, *result = NULL;
    mds_stream s;
    uint64_t batches, ranks;
    mds_py_views all = {.count = 0};
    unsigned long long planned;
    if (!PyArg_ParseTuple(args, "OKOIOOOOOOOOOO:stream_push", &o_buckets, &planned, &o_lengths, &s.width, &o_values,
                          &o_first, &o_splits, &o_table, &o_taken, &o_open, &o_open_first, &o_records, &o_out, &o_ends))
        return NULL;
    s.ranks = planned;
    int64_t *records, *out, *ends;
    if (take_buckets(&all, o_buckets, &s.buckets, &s.count, &batches, &ranks) != 0 ||
        !(s.lengths = mds_py_numbers(&all, o_lengths, PyBUF_SIMPLE, s.width, -1, "lengths")))
        goto done;
    s.records = (uint64_t)all.views[all.count - 1].len / s.width;
    if (!(s.values = mds_py_words(&all, o_values, PyBUF_SIMPLE, -1, "values")))
        goto done;
    s.distinct = (size_t)mds_py_entries(&all);
    if (!(s.first_buckets = mds_py_numbers(&all, o_first, PyBUF_SIMPLE, 4, (Py_ssize_t)s.distinct, "first buckets")) ||
        !(s.splits = mds_py_words(&all, o_splits, PyBUF_SIMPLE, (Py_ssize_t)s.distinct, "splits")) ||
        !(s.table = mds_py_numbers(&all, o_table, PyBUF_SIMPLE, 4, -1, "table")))
        goto done;
    s.table_size = (size_t)all.views[all.count - 1].len / 4;
    if (!(s.taken = mds_py_words(&all, o_taken, PyBUF_WRITABLE, (Py_ssize_t)s.count, "taken")) ||
        !(s.open_first = mds_py_words(&all, o_open_first, PyBUF_SIMPLE, (Py_ssize_t)s.count + 1, "open_first")) ||
        !(s.open = mds_py_words(&all, o_open, PyBUF_WRITABLE, (Py_ssize_t)s.open_first[s.count], "open")))
        goto done;
    int sane = s.ranks <= ranks && s.ranks > s.buckets[s.count - 1].first_rank;
    for (size_t v = 0; v < s.distinct; v++)
        sane &= s.first_buckets[v] + (s.splits[v] != MDS_NONE) < s.count;
    for (size_t b = 0; b < s.count; b++)
        sane &= s.open_first[b] <= s.open_first[b + 1] && s.open_first[b + 1] - s.open_first[b] >= s.buckets[b].size;
    if (!sane) {
        PyErr_SetString(PyExc_ValueError, "expected a bucket for every length, and room for a batch of every bucket");
        goto done;
    }
    if (!(records = mds_py_words(&all, o_records, PyBUF_SIMPLE, -1, "records")))
        goto done;
    const size_t n = (size_t)mds_py_entries(&all);
    if (!(out = mds_py_words(&all, o_out, PyBUF_WRITABLE, -1, "out")))
        goto done;
    const size_t capacity = (size_t)mds_py_entries(&all);
    if (!(ends = mds_py_words(&all, o_ends, PyBUF_WRITABLE, -1, "ends")))
        goto done;
    const size_t most = (size_t)mds_py_entries(&all);
    size_t consumed, emitted, written;
    mds_status status;
    Py_BEGIN_ALLOW_THREADS
    status = mds_stream_push(&s, records, n, &consumed, out, capacity, ends, most, &emitted, &written);
    Py_END_ALLOW_THREADS
    if (status == MDS_OK)
        result = Py_BuildValue("nn", (Py_ssize_t)consumed, (Py_ssize_t)emitted);
    else
        PyErr_SetString(PyExc_ValueError, "the order gave a record twice, or one that is out of range");
done:
    mds_py_release(&all);
    return result;
}

static PyMethodDef functions[] = {
    {"plan_buckets", plan_buckets, METH_VARARGS,
     "plan_buckets((tokens, largest, multiple, quadratic), values, counts, wanted, close) -> buckets"},
    {"plan_batches", plan_batches, METH_VARARGS,
     "plan_batches(buckets, order, order_width, first_rank, records, seed, epoch, shuffle, batches, out, ends)"},
    {"plan_find", plan_find, METH_VARARGS,
     "plan_find(buckets, order, order_width, first_rank, records, seed, epoch, shuffle, ranks, batches)"},
    {"stream_push", stream_push, METH_VARARGS,
     "stream_push(buckets, ranks, lengths, width, values, first_buckets, splits, table, taken, open, open_first, records, out, "
     "ends) -> (consumed, emitted)"},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_plan(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
