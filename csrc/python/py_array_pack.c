/* py_array_pack.c - packs columns into records of named arrays. */
#include "binding.h"

/* Buffers of words and parts, and their form for the core. */
typedef struct {
    mds_py_buffers buffers;
    const uint64_t **words;
    mds_array_part *parts;
    mds_array_columns columns;
    size_t n; /* records; MDS_PY_ANY until a buffer shows it */
} Packing;

static int prepare(Packing *packing, PyObject *words, PyObject *parts)
{
    const size_t n_words = (size_t)PyTuple_Size(words), n_parts = (size_t)PyTuple_Size(parts);
    const size_t room = n_words + 3 * n_parts + 2;
    packing->buffers = (mds_py_buffers){PyMem_Calloc(room, sizeof(Py_buffer)), 0, room, 0};
    packing->words = PyMem_Calloc(n_words + 1, sizeof *packing->words);
    packing->parts = PyMem_Calloc(n_parts + 1, sizeof *packing->parts);
    packing->columns = (mds_array_columns){packing->words, n_words, packing->parts, n_parts};
    packing->n = MDS_PY_ANY;
    if (packing->buffers.views && packing->words && packing->parts)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static void release(Packing *packing)
{
    if (packing->buffers.views)
        mds_py_give_back(&packing->buffers);
    PyMem_Free(packing->buffers.views);
    PyMem_Free(packing->words);
    PyMem_Free(packing->parts);
}

/* Take a word for each record. */
static const uint64_t *take_column(Packing *packing, PyObject *object, const char *what)
{
    const uint64_t *found = mds_py_take_words(&packing->buffers, object, MDS_PY_READ, packing->n, what);
    packing->n = packing->buffers.entries;
    return found;
}

/* Take a part, (data, begins, sizes, whether it is an array). */
static int take_part(Packing *packing, PyObject *given, mds_array_part *part)
{
    PyObject *data, *begins, *sizes;
    if (mds_py_expect_tuple(given, "parts") != 0 ||
        !PyArg_ParseTuple(given, "OOOp:parts", &data, &begins, &sizes, &part->is_array) ||
        !(part->data = mds_py_take_bytes(&packing->buffers, data, MDS_PY_READ)))
        return -1;
    part->size = packing->buffers.entries;
    part->begins = take_column(packing, begins, "begins");
    part->sizes = part->begins ? take_column(packing, sizes, "sizes") : NULL;
    return part->sizes ? 0 : -1;
}

static int take_columns(Packing *packing, PyObject *words, PyObject *parts)
{
    for (size_t w = 0; w < packing->columns.n_words; w++)
        if (!(packing->words[w] = take_column(packing, PyTuple_GetItem(words, (Py_ssize_t)w), "words")))
            return -1;
    for (size_t p = 0; p < packing->columns.n_parts; p++)
        if (take_part(packing, PyTuple_GetItem(parts, (Py_ssize_t)p), &packing->parts[p]) != 0)
            return -1;
    return 0;
}

static PyObject *pack_array_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *words, *parts, *target, *bounds, *result = NULL;
    unsigned long long first;
    uint64_t *ends;
    uint8_t *out;
    Packing packing = {0};
    if (!PyArg_ParseTuple(args, "O!O!O&OO:pack_array_records", &PyTuple_Type, &words, &PyTuple_Type, &parts,
                          mds_py_size, &first, &target, &bounds) ||
        prepare(&packing, words, parts) != 0 || take_columns(&packing, words, parts) != 0)
        goto done;
    const size_t n = packing.n == MDS_PY_ANY ? 0 : packing.n;
    if (first > n) {
        PyErr_Format(PyExc_ValueError, "first: expected 0 to %zu, found %llu", n, first);
        goto done;
    }
    if (!(ends = mds_py_take_words(&packing.buffers, bounds, MDS_PY_WRITE, n - (size_t)first, "ends")) ||
        mds_py_expect_apart(&packing.buffers, NULL, "ends") != 0 ||
        !(out = mds_py_take_bytes(&packing.buffers, target, MDS_PY_WRITE)) ||
        mds_py_expect_apart(&packing.buffers, NULL, "out") != 0)
        goto done;
    mds_array_packed packed;
    RELEASE_GIL(packed = mds_array_pack(&packing.columns, (size_t)first, n, out, packing.buffers.entries, ends));
    if (packed.is_bad)
        PyErr_Format(PyExc_ValueError, "record %llu: expected parts within their data, found one outside",
                     first + packed.count);
    else
        result = Py_BuildValue("nK", (Py_ssize_t)packed.count, (unsigned long long)packed.needed);
done:
    release(&packing);
    return result;
}

static PyMethodDef functions[] = {
    {"pack_array_records", pack_array_records, METH_VARARGS,
     "pack_array_records($module, words, parts, first, out, ends, /)\n--\n\n"
     "Write records of named arrays from `first` on, as many as `out` holds, and the end of each in it.\n\n"
     "words: the words of the tables after the size, in order: each is u64 for all records.\n"
     "parts: runs and then arrays, in order: (bytes, begin of each record, u64, its sizes, u64, is_array).\n"
     "ends: u64, room for all records from `first` on.\n\n"
     "Returns the number of written records, and the bytes of the next record if there is one.\n\n"
     "Raises ValueError for a part outside its bytes; `out` then holds the records before it."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_array_pack(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
