/* py_runs.c - numbers in many files, and the merged length order of many indexes. */
#include "binding.h"

/* ---- Runs ------------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD mds_py_buffers held; /* the object owns the room for its views: of the pieces, then of the tables */
    mds_runs runs;                     /* the object owns its pieces */
} RunsObject;

/* Take piece k, a tuple of (numbers, width, low, last, first). */
static int take_piece(RunsObject *self, PyObject *given, mds_numbers *piece)
{
    PyObject *numbers;
    unsigned long long low, last, first;
    if (mds_py_expect_tuple(given, "piece") != 0 ||
        !PyArg_ParseTuple(given, "OIO&O&O&:piece", &numbers, &piece->width, mds_py_size, &low, mds_py_size, &last,
                          mds_py_size, &first))
        return -1;
    *piece = (mds_numbers){.width = piece->width, .low = low, .last = last, .first = first};
    piece->words = mds_py_take_numbers(&self->held, numbers, MDS_PY_READ, piece->width, MDS_PY_ANY, "piece");
    piece->count = self->held.entries;
    return piece->words ? 0 : -1;
}

static int take_pieces(RunsObject *self, PyObject *pieces)
{
    const Py_ssize_t count = PyTuple_Size(pieces);
    mds_numbers *taken = PyMem_Calloc((size_t)count + 1, sizeof *taken);
    self->held.views = PyMem_Calloc((size_t)count + 3, sizeof *self->held.views);
    self->held.room = (size_t)count + 3;
    self->runs.piece = taken;
    if (!taken || !self->held.views) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < count; k++)
        if (take_piece(self, PyTuple_GetItem(pieces, k), &taken[k]) != 0)
            return -1;
    self->runs.pieces = (size_t)count;
    return 0;
}

static PyObject *runs_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pieces", "begins", "begin_width", "which", "places", "place_width", "total", NULL};
    PyObject *pieces, *begins, *which, *places;
    unsigned begin_width, place_width;
    unsigned long long total;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOIOOIO&:Runs", names, &pieces, &begins, &begin_width, &which,
                                     &places, &place_width, mds_py_size, &total) ||
        mds_py_expect_tuple(pieces, "pieces") != 0)
        return NULL;
    RunsObject *self = (RunsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_runs *runs = &self->runs;
    runs->begin_width = begin_width;
    runs->place_width = place_width;
    runs->total = total;
    if (take_pieces(self, pieces) != 0 ||
        !(runs->begins = mds_py_take_numbers(&self->held, begins, MDS_PY_READ, begin_width, MDS_PY_ANY, "begins")))
        goto fail;
    runs->count = self->held.entries;
    if (!(runs->which = mds_py_take_numbers(&self->held, which, MDS_PY_READ, 4, runs->count, "which")) ||
        !(runs->places = mds_py_take_numbers(&self->held, places, MDS_PY_READ, place_width, runs->count, "places")))
        goto fail;
    if (runs->count && total <= INT64_MAX)
        return (PyObject *)self;
    PyErr_Format(PyExc_ValueError, "begins: expected one run or more, of up to 2^63 - 1 numbers, found %zu of %llu",
                 runs->count, total);
fail:
    Py_DECREF(self);
    return NULL;
}

static void runs_dealloc(PyObject *object)
{
    RunsObject *self = (RunsObject *)object;
    mds_py_give_back(&self->held);
    PyMem_Free(self->held.views);
    PyMem_Free((void *)self->runs.piece);
    mds_py_free(object);
}

static PyObject *runs_at(PyObject *object, PyObject *args)
{
    const RunsObject *self = (RunsObject *)object;
    PyObject *positions, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO:at", &positions, &target))
        return NULL;
    mds_status status = MDS_OK;
    if (mds_py_take_lookup(&buffers, positions, target, "positions", &lookup) == 0) {
        LOOK_UP(lookup, self->runs.total,
                status = mds_runs_at(&self->runs, lookup.at, lookup.count, (uint64_t *)lookup.out));
        if (status == MDS_OK)
            result = mds_py_looked_up(&lookup, "position", "runs");
        else
            PyErr_SetString(PyExc_ValueError, "expected numbers that are records, found others");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef runs_methods[] = {
    {"at", runs_at, METH_VARARGS,
     "at($self, positions, out, /)\n--\n\n"
     "Set out[k] to the number at positions[k]: i64 and words of 64 bits, one shape. They may be the same array.\n\n"
     "Raises IndexError for a position beyond the last, ValueError for a number that its piece may not have."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runs_slots[] = {
    {Py_tp_doc,
     "Runs(*, pieces, begins, begin_width, which, places, place_width, total)\n--\n\n"
     "Numbers that lie in many files, as one array; see mds_runs in csrc/sampling.h.\n\n"
     "pieces: tuple of tuples (numbers, width, low, last, first), whose numbers, of `width` bytes, 4 or 8, are held:\n"
     "those from low to low + last count from first on. begins, places: of begin_width and place_width bytes, and\n"
     "which: u32, all of one shape, are held: where each run begins, and the piece and place there that it begins "
     "with.\n\n"
     "Raises ValueError when tables differ in shape."},
    {Py_tp_new, runs_new},
    {Py_tp_dealloc, runs_dealloc},
    {Py_tp_methods, runs_methods},
    {0, NULL},
};

static PyType_Spec runs_spec = {"mmapds._native.Runs", sizeof(RunsObject), 0, Py_TPFLAGS_DEFAULT, runs_slots};

/* ---- merging length orders ------------------------------------------------------------------------------- */

/* Take the lengths of an index, and how many records have each. */
static int take_histogram(mds_py_buffers *buffers, PyObject *values, PyObject *counts, mds_histogram *own)
{
    own->values = mds_py_take_words(buffers, values, MDS_PY_READ, MDS_PY_ANY, "values");
    own->distinct = buffers->entries;
    own->counts = own->values ? mds_py_take_words(buffers, counts, MDS_PY_READ, own->distinct, "counts") : NULL;
    return own->counts ? 0 : -1;
}

static PyObject *raise_unmerged(void)
{
    PyErr_SetString(PyExc_ValueError, "values: expected lengths that fall, of 1 record or more each, found others");
    return NULL;
}

static PyObject *runs_count(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *all, *values, *counts, *of_runs, *of_records, *result = NULL;
    const uint64_t *lengths;
    uint64_t *runs, *records;
    unsigned long long count;
    mds_histogram own = {0};
    mds_status status = MDS_OK;
    MDS_PY_BUFFERS(buffers, 5);
    if (!PyArg_ParseTuple(args, "OO&OOOO:runs_count", &all, mds_py_size, &count, &values, &counts, &of_runs,
                          &of_records) ||
        !(lengths = mds_py_take_words(&buffers, all, MDS_PY_READ, MDS_PY_ANY, "lengths")))
        goto done;
    const size_t distinct = buffers.entries;
    if (!(runs = mds_py_take_words(&buffers, of_runs, MDS_PY_WRITE, distinct, "runs")) ||
        !(records = mds_py_take_words(&buffers, of_records, MDS_PY_WRITE, distinct, "records")) ||
        take_histogram(&buffers, values, counts, &own) != 0)
        goto done;
    own.records = count;
    RELEASE_GIL(status = mds_runs_count(lengths, distinct, &own, runs, records));
    result = status == MDS_OK ? Py_NewRef(Py_None) : raise_unmerged();
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *runs_place(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *all, *values, *counts, *starts, *of_runs, *of_ranks, *begins, *which, *places, *result = NULL;
    const uint64_t *lengths;
    uint64_t *next_run, *next_rank;
    unsigned piece;
    mds_histogram own = {0};
    mds_run_tables tables = {0};
    mds_status status = MDS_OK;
    MDS_PY_BUFFERS(buffers, 9);
    if (!PyArg_ParseTuple(args, "O(OOO)IOO(OIOOI):runs_place", &all, &values, &counts, &starts, &piece, &of_runs,
                          &of_ranks, &begins, &tables.begin_width, &which, &places, &tables.place_width) ||
        !(lengths = mds_py_take_words(&buffers, all, MDS_PY_READ, MDS_PY_ANY, "lengths")))
        goto done;
    const size_t distinct = buffers.entries;
    if (!(next_run = mds_py_take_words(&buffers, of_runs, MDS_PY_WRITE, distinct, "runs")) ||
        !(next_rank = mds_py_take_words(&buffers, of_ranks, MDS_PY_WRITE, distinct, "ranks")) ||
        !(tables.which = mds_py_take_numbers(&buffers, which, MDS_PY_WRITE, 4, MDS_PY_ANY, "which")))
        goto done;
    tables.count = buffers.entries;
    if (!(tables.begins =
              mds_py_take_numbers(&buffers, begins, MDS_PY_WRITE, tables.begin_width, tables.count, "begins")) ||
        !(tables.places =
              mds_py_take_numbers(&buffers, places, MDS_PY_WRITE, tables.place_width, tables.count, "places")) ||
        take_histogram(&buffers, values, counts, &own) != 0 ||
        (starts != Py_None && !(own.places = mds_py_take_words(&buffers, starts, MDS_PY_READ, own.distinct, "starts"))))
        goto done;
    RELEASE_GIL(status = mds_runs_place(lengths, distinct, &own, piece, next_run, next_rank, &tables));
    result = status == MDS_OK ? Py_NewRef(Py_None) : raise_unmerged();
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef functions[] = {
    {"runs_count", runs_count, METH_VARARGS,
     "runs_count($module, lengths, count, values, counts, runs, records, /)\n--\n\n"
     "Add the lengths of an index to those of all indexes; see mds_runs_count in csrc/sampling.h.\n\n"
     "lengths: u64, of all indexes, falling. count: records of this index. values, counts: u64, its lengths, falling.\n"
     "runs, records: u64, of the shape of lengths, are added to.\n\n"
     "Raises ValueError when lengths do not fall, one is not among all, or counts do not add up to the records."},
    {"runs_place", runs_place, METH_VARARGS,
     "runs_place($module, lengths, own, piece, runs, ranks, tables, /)\n--\n\n"
     "Place the runs of an index among those of all; see mds_runs_place in csrc/sampling.h.\n\n"
     "lengths: as in runs_count. own: (values, counts, starts), of which the last is u64, where each run of this "
     "index\n"
     "begins, or None where they follow one another. runs, ranks: u64, of the shape of lengths: the next run of each "
     "length, and where it begins;\n"
     "advanced. tables: (begins, begin_width, which, places, place_width), which are written to.\n\n"
     "Raises ValueError when lengths do not fall, one is not among all, or the tables have no room."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_runs(PyObject *module)
{
    if (mds_py_add_type(module, &runs_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
