/* py_packing.c - sequences in packs: planned on a histogram, read by number. */
#include "binding.h"

/* Return the kinds and parts of rows[0..count) as (bytes, bytes). */
static PyObject *kinds_of(const mds_filled *rows, size_t count)
{
    size_t kinds, parts;
    RELEASE_GIL(mds_kinds_count(rows, count, &kinds, &parts));
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(kinds * sizeof(mds_kind)));
    PyObject *held = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(parts * sizeof(mds_part)));
    PyObject *pair = NULL;
    if (made && held) { /* still private to this call */
        mds_kind *first = (mds_kind *)PyBytes_AsString(made);
        mds_part *part = (mds_part *)PyBytes_AsString(held);
        RELEASE_GIL(mds_kinds_write(rows, count, first, part));
        pair = PyTuple_Pack(2, made, held);
    }
    Py_XDECREF(made);
    Py_XDECREF(held);
    return pair;
}

/* Pack the lengths into as many rows as it takes, up to `limit`. */
static PyObject *pack_within(const uint64_t *values, const uint64_t *counts, size_t distinct, uint64_t length,
                             uint64_t most, size_t limit)
{
    for (size_t room = 4 * distinct + 16;; room *= 2) {
        room = room < limit ? room : limit;
        size_t count = SIZE_MAX;
        PyObject *result = NULL;
        mds_filled *rows = PyMem_Calloc(room, sizeof *rows);
        uint32_t *heaps = PyMem_Calloc(2 * room, sizeof *heaps);
        if (!rows || !heaps)
            PyErr_NoMemory();
        else
            RELEASE_GIL(count = mds_pack_lengths(values, counts, distinct, length, most, rows, heaps, room));
        if (count != SIZE_MAX)
            result = kinds_of(rows, count);
        else if (rows && heaps && room == limit)
            PyErr_Format(PyExc_ValueError, "rows: expected up to %zu of packs that are alike, found more", limit);
        PyMem_Free(rows);
        PyMem_Free(heaps);
        if (result || PyErr_Occurred())
            return result;
    }
}

static PyObject *pack_lengths(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long length, most, limit;
    PyObject *lengths, *numbers, *result = NULL;
    const uint64_t *values, *counts;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "O&O&O&OO:pack_lengths", mds_py_size, &length, mds_py_size, &most, mds_py_size, &limit,
                          &lengths, &numbers))
        return NULL;
    if (!(values = mds_py_take_words(&buffers, lengths, MDS_PY_READ, MDS_PY_ANY, "values")) ||
        !(counts = mds_py_take_words(&buffers, numbers, MDS_PY_READ, buffers.entries, "counts")))
        goto done;
    const size_t distinct = buffers.entries;
    size_t sound;
    RELEASE_GIL(sound = mds_lengths_fall(values, counts, distinct));
    if (most < 1 || limit < 1 || limit >= UINT32_MAX || distinct >= UINT32_MAX)
        PyErr_Format(PyExc_ValueError, "most: expected 1 sequence or more, and 1 to 2^32 rows, found %llu and %llu",
                     most, limit);
    else if (sound != distinct || (distinct && (values[0] > length || !values[distinct - 1])))
        PyErr_Format(PyExc_ValueError, "values: expected lengths of 1 to %llu that fall, each of 1 sequence or more",
                     length);
    else
        result = pack_within(values, counts, distinct, length, most, (size_t)limit);
done:
    mds_py_give_back(&buffers);
    return result;
}

/* ---- Packs --------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_packs packs; /* the object owns its tables */
} PacksObject;

static void packs_dealloc(PyObject *object)
{
    mds_packs *p = &((PacksObject *)object)->packs;
    void *tables[] = {(void *)p->kinds, (void *)p->parts, p->first_pack, p->first_part,
                      p->first_slot,    p->kind_of,       p->first_rank};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        PyMem_Free(tables[i]);
    mds_py_free(object);
}

static int make_room(mds_packs *p)
{
    const size_t word = sizeof(uint64_t), half = sizeof(uint32_t);
    if ((p->first_pack = PyMem_Calloc(p->kinds_count + 1, word)) &&
        (p->first_part = PyMem_Calloc(p->kinds_count + 1, word)) &&
        (p->first_slot = PyMem_Calloc(p->parts_count + 1, word)) &&
        (p->kind_of = PyMem_Calloc(p->parts_count + 1, half)) && (p->first_rank = PyMem_Calloc(p->distinct + 1, word)))
        return 0;
    PyErr_NoMemory();
    return -1;
}

static PyObject *packs_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kinds", "parts", "counts", NULL};
    PyObject *kinds, *parts, *numbers;
    size_t kind_words, part_words;
    uint64_t *counts = NULL;
    int agree;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$OOO:Packs", names, &kinds, &parts, &numbers))
        return NULL;
    PacksObject *self = (PacksObject *)mds_py_new(type);
    if (!self)
        return NULL;
    mds_packs *p = &self->packs;
    if (!(p->kinds = mds_py_copy_words(kinds, MDS_PY_ANY, "kinds", &kind_words)) ||
        !(p->parts = mds_py_copy_words(parts, MDS_PY_ANY, "parts", &part_words)) ||
        !(counts = mds_py_copy_words(numbers, MDS_PY_ANY, "counts", &p->distinct)))
        goto fail;
    p->kinds_count = kind_words / 2;
    p->parts_count = part_words / 2;
    if (!kind_words || kind_words % 2 || part_words % 2 || p->parts_count >= UINT32_MAX ||
        p->kinds_count >= UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "kinds: expected rows of 2 entries, 1 or more, found %zu, and %zu of parts",
                     kind_words, part_words);
        goto fail;
    }
    if (make_room(p) != 0)
        goto fail;
    RELEASE_GIL(agree = mds_packs_index(p, counts));
    if (!agree) {
        PyErr_Format(PyExc_ValueError, "kinds: expected packs of the %zu parts that hold all sequences, each once",
                     p->parts_count);
        goto fail;
    }
    PyMem_Free(counts);
    return (PyObject *)self;
fail:
    PyMem_Free(counts);
    Py_DECREF(self);
    return NULL;
}

static PyObject *packs_ranks(PyObject *object, PyObject *args)
{
    const mds_packs *packs = &((PacksObject *)object)->packs;
    PyObject *numbers, *target, *bounds, *result = NULL;
    unsigned long long seed, number;
    int shuffle;
    mds_py_lookup lookup;
    int64_t *ranks;
    MDS_PY_BUFFERS(buffers, 3);
    if (!PyArg_ParseTuple(args, "KKpOOO:ranks", &seed, &number, &shuffle, &numbers, &target, &bounds))
        return NULL;
    if (mds_py_take_lookup(&buffers, numbers, bounds, "packs", &lookup) != 0 ||
        !(ranks = mds_py_take_words(&buffers, target, MDS_PY_WRITE, MDS_PY_ANY, "out")))
        goto done;
    const mds_packs_epoch epoch = {seed, number, shuffle};
    const size_t capacity = buffers.entries;
    mds_status status = MDS_OK;
    LOOK_UP(lookup, packs->first_pack[packs->kinds_count],
            status =
                mds_packs_ranks(mds_py_kernels, packs, &epoch, lookup.at, lookup.count, ranks, capacity, lookup.out));
    if (status == MDS_OK)
        result = mds_py_looked_up(&lookup, "pack", "a plan");
    else
        PyErr_Format(PyExc_ValueError, "out: expected room for the sequences of %zu packs, found %zu entries",
                     lookup.count, capacity);
done:
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef packs_methods[] = {
    {"ranks", packs_ranks, METH_VARARGS,
     "ranks($self, seed, epoch, shuffle, packs, out, ends, /)\n--\n\n"
     "Write the ranks of the sequences in packs, given by number, one pack after another to out, and to ends where\n"
     "each ends in it. All are i64; ends has the shape of packs, and out has room for all sequences.\n\n"
     "Raises IndexError for a pack that is not planned, ValueError when out is too small."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot packs_slots[] = {
    {Py_tp_doc,
     "Packs(*, kinds, parts, counts)\n--\n\n"
     "Packs of sequences, whose ranks are those in the order of their lengths, falling.\n\n"
     "kinds: u64, shape (kinds, 2): packs, and parts of each. parts: u64, shape (parts, 2): which length, and\n"
     "how many sequences of it. counts: u64, the sequences of each length.\n\n"
     "Raises ValueError when the packs do not hold all sequences."},
    {Py_tp_new, packs_new},
    {Py_tp_dealloc, packs_dealloc},
    {Py_tp_methods, packs_methods},
    {0, NULL},
};

static PyType_Spec packs_spec = {"mmapds._native.Packs", sizeof(PacksObject), 0, Py_TPFLAGS_DEFAULT, packs_slots};

/* ---- the subject --------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"pack_lengths", pack_lengths, METH_VARARGS,
     "pack_lengths($module, length, most, limit, values, counts, /)\n--\n\n"
     "Pack sequences by best-fit decreasing into packs of up to `length` tokens and `most` sequences.\n\n"
     "values, counts: u64, the lengths that occur, falling, and how many sequences have each.\n"
     "limit: the most rows of equal packs; there are about three for each length.\n"
     "Returns kinds and parts, bytes of u64: see Packs. A part names a length by its place in values.\n\n"
     "Raises ValueError when lengths do not fall or are out of range, or there are too many kinds of packs."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_packing(PyObject *module)
{
    if (mds_py_add_type(module, &packs_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
