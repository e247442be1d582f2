/* py_block_memory.c - decoded blocks in memory of their own, and zstd's own library, which decodes into it. */
#include "binding.h"

#include <string.h>

#define MOST_SPARE 4                /* runs of free pages to keep for the next block */
#define LARGEST_SPARE (4 << 20)     /* bytes of all kept runs */
#define MOST_RUNS 8192              /* in use, as a process may have only 65530 maps; other blocks use malloc */
#define MOST_CONTEXTS 8             /* idle contexts to keep, each with some memory */
#define LARGEST_SCRATCH (512 << 10) /* bytes of an idle context */

/* ---- reused pages --------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size;
} pages;

typedef struct {
    PyObject_HEAD pages spare[MOST_SPARE];
    size_t n_spare, spare_size, runs;
} MemoryObject;

typedef struct {
    PyObject_HEAD PyObject *memory; /* MemoryObject */
    uint8_t *data;
    size_t size, room; /* bytes of content, and of memory */
    int is_mapped;     /* else from malloc */
} BlockObject;

/* Begin a run; return whether there may be one more. Sets *last to pages of an earlier block, if some are spare. */
static int begin_run(MemoryObject *memory, pages *last)
{
    if (memory->runs == MOST_RUNS)
        return 0;
    memory->runs++;
    if (memory->n_spare) {
        *last = memory->spare[--memory->n_spare];
        memory->spare_size -= last->size;
    }
    return 1;
}

/* End a run; return whether its pages are spare now. */
static int end_run(MemoryObject *memory, pages run)
{
    memory->runs--;
    if (memory->n_spare == MOST_SPARE || run.size > LARGEST_SPARE - memory->spare_size)
        return 0;
    memory->spare[memory->n_spare++] = run;
    memory->spare_size += run.size;
    return 1;
}

/* Take memory for a block: resized pages of an earlier block, or new pages. */
static int take_memory(MemoryObject *memory, BlockObject *block)
{
    const size_t room = mds_pages_round(block->size ? block->size : 1);
    pages last = {NULL, 0};
    LOCKED(memory, block->is_mapped = begin_run(memory, &last));
    block->room = block->is_mapped ? room : block->size + 1;
    if (!block->is_mapped)
        block->data = PyMem_Malloc(block->room);
    else
        block->data = last.data ? mds_pages_resize(last.data, last.size, room) : mds_pages_take(room);
    if (block->data)
        return 0;
    if (block->is_mapped)
        LOCKED(memory, memory->runs--);
    PyErr_NoMemory();
    return -1;
}

static void give_back_memory(MemoryObject *memory, const BlockObject *block)
{
    int is_spare;
    if (!block->is_mapped) {
        PyMem_Free(block->data);
        return;
    }
    LOCKED(memory, is_spare = end_run(memory, (pages){block->data, block->room}));
    if (!is_spare)
        mds_pages_free(block->data, block->room);
}

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, kwargs, ":BlockMemory", names) ? mds_py_new(type) : NULL;
}

static void memory_dealloc(PyObject *self)
{
    MemoryObject *memory = (MemoryObject *)self;
    while (memory->n_spare) {
        const pages last = memory->spare[--memory->n_spare];
        mds_pages_free(last.data, last.size);
    }
    mds_py_free(self);
}

/* ---- blocks --------------------------------------------------------------------------------------------------- */

/* Make a block of `size` bytes; the caller writes them before it shares the block. */
static BlockObject *new_block(PyObject *memory, size_t size)
{
    const mds_py_state *state = PyType_GetModuleState(Py_TYPE(memory));
    BlockObject *block = (BlockObject *)mds_py_new(state->block_type);
    if (!block)
        return NULL;
    block->size = size;
    if (take_memory((MemoryObject *)memory, block) == 0)
        block->memory = Py_NewRef(memory);
    else
        Py_CLEAR(block);
    return block;
}

static void block_dealloc(PyObject *self)
{
    const BlockObject *block = (BlockObject *)self;
    if (block->memory) {
        give_back_memory((MemoryObject *)block->memory, block);
        Py_DECREF(block->memory);
    }
    mds_py_free(self);
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    const BlockObject *block = (BlockObject *)self;
    return PyBuffer_FillInfo(view, self, block->data, (Py_ssize_t)block->size, 1, flags);
}

static Py_ssize_t block_length(PyObject *self)
{
    return (Py_ssize_t)((BlockObject *)self)->size;
}

static PyObject *block_room(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((BlockObject *)self)->room);
}

/* Copy a piece to block->data[*at]. */
static int copy_piece(const BlockObject *block, size_t *at, PyObject *piece)
{
    MDS_PY_BUFFERS(buffers, 1);
    const uint8_t *data = mds_py_take_bytes(&buffers, piece, MDS_PY_READ);
    const size_t size = buffers.entries;
    const int fits = data && size <= block->size - *at;
    if (data && !fits)
        PyErr_Format(PyExc_ValueError, "pieces: expected %zu bytes together, found more", block->size);
    if (fits)
        RELEASE_GIL(memcpy(block->data + *at, data, size));
    *at += fits ? size : 0;
    mds_py_give_back(&buffers);
    return fits ? 0 : -1;
}

static PyObject *memory_copy(PyObject *self, PyObject *args)
{
    unsigned long long size;
    PyObject *pieces, *piece;
    size_t at = 0;
    if (!PyArg_ParseTuple(args, "O&O:copy", mds_py_size, &size, &pieces))
        return NULL;
    PyObject *iterator = PyObject_GetIter(pieces);
    BlockObject *block = iterator ? new_block(self, (size_t)size) : NULL;
    while (block && (piece = PyIter_Next(iterator))) {
        if (copy_piece(block, &at, piece) != 0)
            Py_CLEAR(block);
        Py_DECREF(piece);
    }
    Py_XDECREF(iterator);
    if (block && !PyErr_Occurred() && at != size)
        PyErr_Format(PyExc_ValueError, "pieces: expected %llu bytes together, found %zu", size, at);
    if (block && PyErr_Occurred())
        Py_CLEAR(block);
    return (PyObject *)block;
}

/* ---- zstd's own library --------------------------------------------------------------------------------------- */

typedef struct {
    void *decoder;
    uint8_t *scratch; /* a copy of the frames: the library must not read a map, whose file may become shorter */
    size_t room;
} context;

typedef struct {
    PyObject_HEAD mds_libzstd library;
    context waiting[MOST_CONTEXTS];
    size_t n_waiting;
} ZstdObject;

static PyObject *zstd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    const char *name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s:Zstd", names, &name))
        return NULL;
    ZstdObject *self = (ZstdObject *)mds_py_new(type);
    if (self && !mds_libzstd_open(name, &self->library)) {
        Py_CLEAR(self);
        PyErr_Format(PyExc_OSError, "%s: expected zstd's library, 1.4.0 or later", name);
    }
    return (PyObject *)self;
}

static void free_context(const ZstdObject *self, const context *each)
{
    if (each->decoder)
        self->library.free_context(each->decoder);
    PyMem_Free(each->scratch);
}

static void zstd_dealloc(PyObject *object)
{
    ZstdObject *self = (ZstdObject *)object;
    while (self->n_waiting)
        free_context(self, &self->waiting[--self->n_waiting]);
    mds_libzstd_close(&self->library);
    mds_py_free(object);
}

/* Take a context for frames of `size` bytes. It has no decoder if there is no memory. */
static context take_context(ZstdObject *self, size_t size)
{
    context found = {NULL, NULL, 0};
    LOCKED(self, if (self->n_waiting) found = self->waiting[--self->n_waiting]);
    if (found.room < size) {
        PyMem_Free(found.scratch);
        found.room = size < LARGEST_SCRATCH / 2 ? LARGEST_SCRATCH / 2 : size;
        found.scratch = PyMem_Malloc(found.room);
    }
    if (found.scratch && !found.decoder)
        found.decoder = self->library.create_context();
    if (!found.scratch || !found.decoder) {
        free_context(self, &found);
        return (context){NULL, NULL, 0};
    }
    return found;
}

static void give_back_context(ZstdObject *self, const context *each)
{
    int is_kept;
    LOCKED(self, is_kept = self->n_waiting < MOST_CONTEXTS && each->room <= LARGEST_SCRATCH;
           if (is_kept) self->waiting[self->n_waiting++] = *each);
    if (!is_kept)
        free_context(self, each);
}

/* A block to decode. */
typedef struct {
    const mds_map *map;
    uint64_t begin, max_window;
    size_t n;
    const mds_libzstd *library;
    context context;
    BlockObject *block;
} decode_call;

static int decode(const decode_call *call)
{
    return mds_map_read(call->map, call->begin, call->n, call->context.scratch) == MDS_OK &&
           mds_libzstd_decode(call->library, call->context.decoder, call->context.scratch, call->n, call->max_window,
                              call->block->data, call->block->size);
}

static PyObject *zstd_decode(PyObject *object, PyObject *args)
{
    ZstdObject *self = (ZstdObject *)object;
    const mds_py_state *types = PyType_GetModuleState(Py_TYPE(object));
    PyObject *memory, *map;
    unsigned long long begin, end, size, max_window;
    if (!PyArg_ParseTuple(args, "O!O!O&O&O&O&:decode", types->block_memory_type, &memory, types->map_type, &map,
                          mds_py_size, &begin, mds_py_size, &end, mds_py_size, &size, mds_py_size, &max_window))
        return NULL;
    if (end < begin || end > ((MapObject *)map)->map.size || size > PY_SSIZE_T_MAX)
        return PyErr_Format(PyExc_ValueError, "expected bytes within 0 to %llu, found %llu to %llu, of %llu bytes",
                            (unsigned long long)((MapObject *)map)->map.size, begin, end, size);
    decode_call call = {.map = &((MapObject *)map)->map, .begin = begin, .max_window = max_window};
    call.n = (size_t)(end - begin);
    call.library = &self->library;
    call.context = take_context(self, call.n + 1);
    if (!call.context.decoder)
        return PyErr_NoMemory();
    call.block = new_block(memory, (size_t)size);
    int found = 0;
    if (call.block)
        RELEASE_GIL(found = decode(&call));
    give_back_context(self, &call.context);
    if (call.block && !found) {
        Py_DECREF(call.block);
        return Py_NewRef(Py_None);
    }
    return (PyObject *)call.block;
}

/* ---- the types ------------------------------------------------------------------------------------------------ */

static PyMethodDef memory_methods[] = {
    {"copy", memory_copy, METH_VARARGS,
     "copy($self, size, pieces, /)\n--\n\n"
     "Return a block of a copy of `size` bytes, which an iterable yields in pieces."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot memory_slots[] = {
    {Py_tp_doc,
     "BlockMemory()\n--\n\n"
     "Memory of decoded blocks, whole pages of the system's. What a block had that is gone is used for the next."},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_methods, memory_methods},
    {0, NULL},
};

static PyGetSetDef block_getset[] = {
    {"room", block_room, NULL, "Bytes of memory that it takes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "The content of a block, as a read-only buffer."},
    {Py_tp_dealloc, block_dealloc},
    {Py_tp_getset, block_getset},
    {Py_bf_getbuffer, block_getbuffer},
    {Py_sq_length, block_length},
    {0, NULL},
};

static PyMethodDef zstd_methods[] = {
    {"decode", zstd_decode, METH_VARARGS,
     "decode($self, memory, source, begin, end, size, max_window, /)\n--\n\n"
     "Return a block: the text of the frames that lie in some bytes of a file, mapped or not.\n\n"
     "Returns None unless they can be read, are whole frames, need no dictionary and windows of at most `max_window`\n"
     "bytes, and hold `size` bytes of text. The codec in Python says what is wrong."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot zstd_slots[] = {
    {Py_tp_doc,
     "Zstd(name)\n--\n\n"
     "zstd's own library, loaded by the name of its file. Raises OSError if it is not there, or is too old."},
    {Py_tp_new, zstd_new},
    {Py_tp_dealloc, zstd_dealloc},
    {Py_tp_methods, zstd_methods},
    {0, NULL},
};

static PyType_Spec memory_spec = {"mmapds._native.BlockMemory", sizeof(MemoryObject), 0, Py_TPFLAGS_DEFAULT,
                                  memory_slots};
static PyType_Spec block_spec = {"mmapds._native.Block", sizeof(BlockObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, block_slots};
static PyType_Spec zstd_spec = {"mmapds._native.Zstd", sizeof(ZstdObject), 0, Py_TPFLAGS_DEFAULT, zstd_slots};

int mds_py_add_block_memory(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    if (mds_py_add_type(module, &memory_spec, &state->block_memory_type) != 0 ||
        mds_py_add_type(module, &block_spec, &state->block_type) != 0)
        return -1;
    return mds_py_add_type(module, &zstd_spec, NULL);
}
