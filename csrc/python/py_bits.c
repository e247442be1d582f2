/* py_bits.c - sets of numbers as bits. */
#include "binding.h"

typedef struct {
    PyObject_HEAD Py_buffer views[2]; /* of the words and the directory */
    mds_py_buffers held;
    mds_bits bits;
    PyObject *file; /* MapObject with the words and the directory; NULL if they lie in memory */
} BitsObject;

static PyObject *raise_shorter(const BitsObject *self)
{
    const MapObject *file = (MapObject *)self->file;
    return mds_py_raise_unread(MDS_SHRANK, PyBytes_AsString(file->path), file->map.size);
}

static PyObject *bits_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"words", "before", "limit", "file", NULL};
    const mds_py_state *state = PyType_GetModuleState(type);
    PyObject *words, *before, *file = Py_None;
    unsigned long long limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO&|O:Bits", names, &words, &before, mds_py_size, &limit, &file))
        return NULL;
    if (file != Py_None && !PyObject_TypeCheck(file, state->map_type))
        return PyErr_Format(PyExc_TypeError, "file: expected a Map or None, found %R", file);
    BitsObject *self = (BitsObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->held = (mds_py_buffers){self->views, 0, 2, 0};
    self->bits.limit = limit;
    if (file != Py_None) {
        self->file = Py_NewRef(file);
        self->bits.map = &((MapObject *)file)->map;
    }
    self->bits.n = (size_t)(limit / 64 + (limit % 64 != 0));
    const size_t blocks = self->bits.n / MDS_BITS_BLOCK + (self->bits.n % MDS_BITS_BLOCK != 0);
    if ((self->bits.words = mds_py_take_words(&self->held, words, MDS_PY_READ, self->bits.n, "words")) &&
        (self->bits.before = mds_py_take_words(&self->held, before, MDS_PY_READ, blocks + 1, "before")))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void bits_dealloc(PyObject *object)
{
    mds_py_give_back(&((BitsObject *)object)->held);
    Py_XDECREF(((BitsObject *)object)->file);
    mds_py_free(object);
}

static PyObject *bits_select(PyObject *object, PyObject *args)
{
    const BitsObject *self = (BitsObject *)object;
    PyObject *ranks, *target, *result = NULL;
    mds_py_lookup lookup;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO:select", &ranks, &target))
        return NULL;
    mds_status status = MDS_OK;
    if (mds_py_take_lookup(&buffers, ranks, target, "ranks", &lookup) == 0) {
        LOOK_UP(lookup, self->bits.limit, status = mds_bits_select(&self->bits, lookup.at, lookup.count, lookup.out));
        if (status == MDS_OK)
            result = mds_py_looked_up(&lookup, "rank", "a set of numbers below");
        else if (status == MDS_SHRANK)
            raise_shorter(self);
        else
            PyErr_SetString(PyExc_ValueError, "expected a directory that fits the bits, found another");
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef bits_methods[] = {
    {"select", bits_select, METH_VARARGS,
     "select($self, ranks, out, /)\n--\n\n"
     "Set out[k] to the number of the set that has ranks[k] smaller ones in it: i64, one shape, or the same array.\n\n"
     "Raises IndexError for a rank beyond all numbers, ValueError when the directory does not fit the bits, EOFError "
     "when\nthe file became shorter."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bits_slots[] = {
    {Py_tp_doc, "Bits(words, before, limit, file=None)\n--\n\n"
                "A set of numbers below limit, a bit for each; see mds_bits in csrc/sampling.h.\n\n"
                "words: u64, the bits. before: u64, the directory that bits_count writes. Both are held.\n"
                "file: the Map that holds them, or None.\n\n"
                "Raises ValueError when they have other shapes."},
    {Py_tp_new, bits_new},
    {Py_tp_dealloc, bits_dealloc},
    {Py_tp_methods, bits_methods},
    {0, NULL},
};

static PyType_Spec bits_spec = {"mmapds._native.Bits", sizeof(BitsObject), 0, Py_TPFLAGS_DEFAULT, bits_slots};

static PyObject *bits_set(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *target, *result = NULL;
    unsigned long long limit;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO&O:bits_set", &target, mds_py_size, &limit, &source))
        return NULL;
    uint64_t *words =
        mds_py_take_words(&buffers, target, MDS_PY_WRITE, (size_t)(limit / 64 + (limit % 64 != 0)), "words");
    const int64_t *numbers = words ? mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "numbers") : NULL;
    if (numbers) {
        const size_t n = buffers.entries;
        size_t outside;
        RELEASE_GIL(outside = mds_bits_first_outside(numbers, n, limit, words));
        if (outside == n)
            result = Py_NewRef(Py_None);
        else
            PyErr_Format(PyExc_IndexError, "number %lld is out of range for a set of numbers below %llu",
                         (long long)numbers[outside], limit);
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyObject *bits_count(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *target, *result = NULL;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "OO:bits_count", &source, &target))
        return NULL;
    const uint64_t *words = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "words");
    const size_t n = buffers.entries, blocks = n / MDS_BITS_BLOCK + (n % MDS_BITS_BLOCK != 0);
    uint64_t *before = words ? mds_py_take_words(&buffers, target, MDS_PY_WRITE, blocks + 1, "before") : NULL;
    if (before) {
        RELEASE_GIL(mds_bits_count(words, n, before));
        result = Py_NewRef(Py_None);
    }
    mds_py_give_back(&buffers);
    return result;
}

static PyMethodDef functions[] = {
    {"bits_set", bits_set, METH_VARARGS,
     "bits_set($module, words, limit, numbers, /)\n--\n\n"
     "Set the bits of numbers below limit. words: u64, the bits. numbers: i64.\n\n"
     "Raises IndexError for a number out of range; those before it are set."},
    {"bits_count", bits_count, METH_VARARGS,
     "bits_count($module, words, before, /)\n--\n\n"
     "Write the directory of some bits: of each 32 words, the ones before them; then those of all. Both are u64."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_bits(PyObject *module)
{
    if (mds_py_add_type(module, &bits_spec, NULL) != 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
