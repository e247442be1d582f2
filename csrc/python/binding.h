/* binding.h - shared by the files of the binding.
 *
 * A function of the binding parses its arguments, takes and checks its buffers, releases the GIL, calls the core, and
 * raises or returns. The core does the work. Only the binding includes Python.h.
 *
 * Memory. Without the GIL, a call reads and writes only memory that it holds as a buffer or that its object owns.
 * Objects check their tables once, so they copy them. Lengths and orders are too large to copy: objects hold them as
 * buffers, and the core checks every number when it uses it. Callers must not write to the buffers of a call while it
 * runs.
 *
 * The GIL. A call whose work grows with the size of a buffer, a map or a file releases the GIL around that work, checks
 * included, by RELEASE_GIL. Calls of constant work keep it. So do calls about one record that make Python objects
 * (Records[i], ArrayFields(record), JsonFields(record) of few bytes, tar_members(record)): releasing it would cost as
 * much as the call. Where ArrayFields copies more than COPY_WITH_GIL bytes, it releases the GIL. Tables with an entry
 * for each source, member or field are small, and may be checked with the GIL.
 *
 * Threads. Objects do not change once they are made, or a second call is refused while one is running
 * (Stream, Inflater, TarScanner). Records open sources and forget them: SourceTable says how. Free-threaded Pythons have
 * no GIL, so what changes in an object is read and written under its lock, by LOCKED, or by an atomic operation. */
#ifndef MMAPDS_BINDING_H
#define MMAPDS_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mmapds.h"

#define RELEASE_GIL(...)                                                                                               \
    do {                                                                                                               \
        Py_BEGIN_ALLOW_THREADS __VA_ARGS__;                                                                            \
        Py_END_ALLOW_THREADS                                                                                           \
    } while (0)

#define COPY_WITH_GIL (256 << 10) /* bytes: to copy so few is faster than to wait for the GIL */

/* Make a few statements while no other thread makes those of its LOCKED(object). They call no Python code, neither return
 * nor jump out, and keep the GIL, which is the lock of Pythons that have it. */
#ifdef Py_GIL_DISABLED
#define LOCKED(object, ...)                                                                                            \
    do {                                                                                                               \
        Py_BEGIN_CRITICAL_SECTION(object);                                                                             \
        __VA_ARGS__;                                                                                                   \
        Py_END_CRITICAL_SECTION();                                                                                     \
    } while (0)
#else
#define LOCKED(object, ...)                                                                                            \
    do {                                                                                                               \
        (void)(object);                                                                                                \
        __VA_ARGS__;                                                                                                   \
    } while (0)
#endif

/* Estimates that threads share: a lost update costs nothing, so they need no lock. */
static inline unsigned mds_py_load(const unsigned *shared)
{
    return __atomic_load_n(shared, __ATOMIC_RELAXED);
}

static inline void mds_py_store(unsigned *shared, unsigned value)
{
    __atomic_store_n(shared, value, __ATOMIC_RELAXED);
}

/* Begin a call of an object that takes one call at a time; 0 while another is running. */
static inline int mds_py_enter(int *busy)
{
    return !__atomic_exchange_n(busy, 1, __ATOMIC_ACQUIRE);
}

static inline void mds_py_leave(int *busy)
{
    __atomic_store_n(busy, 0, __ATOMIC_RELEASE);
}

/* ---- module.c: the module and its state ----------------------------------------------------------------- */

extern const mds_kernels *mds_py_kernels; /* chosen once, when the module is loaded */

/* Find a variant of the kernels by name; for NULL, the one in use. NULL with an exception. */
const mds_kernels *mds_py_find_kernels(const char *variant);

typedef struct {
    PyTypeObject *map_type, *permutation_type, *records_type, *array_fields_type, *json_fields_type, *block_type,
        *block_memory_type;
} mds_py_state;

/* Add a type to the module, and to its state if `keep` is not NULL. */
int mds_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep);

typedef struct {
    const char *name;
    int value;
} mds_py_constant;

/* Add constants up to a NULL name. */
int mds_py_add_constants(PyObject *module, const mds_py_constant *constants);

/* Make an instance, all zeros; free one. */
PyObject *mds_py_new(PyTypeObject *type);
void mds_py_free(PyObject *self);

/* Take the exception that is set, with its traceback. */
PyObject *mds_py_take_error(void);

/* Add the types, functions and constants of one subject to the module. */
int mds_py_add_map(PyObject *module);
int mds_py_add_records(PyObject *module);
int mds_py_add_samples(PyObject *module);
int mds_py_add_bounds(PyObject *module);
int mds_py_add_array_fields(PyObject *module);
int mds_py_add_array_batch(PyObject *module);
int mds_py_add_array_pack(PyObject *module);
int mds_py_add_json_fields(PyObject *module);
int mds_py_add_json_batch(PyObject *module);
int mds_py_add_tar(PyObject *module);
int mds_py_add_scan(PyObject *module);
int mds_py_add_columns(PyObject *module);
int mds_py_add_permutation(PyObject *module);
int mds_py_add_orders(PyObject *module);
int mds_py_add_pad(PyObject *module);
int mds_py_add_sort(PyObject *module);
int mds_py_add_plan(PyObject *module);
int mds_py_add_packing(PyObject *module);
int mds_py_add_runs(PyObject *module);
int mds_py_add_bits(PyObject *module);
int mds_py_add_zstd(PyObject *module);
int mds_py_add_inflate(PyObject *module);
int mds_py_add_block_memory(PyObject *module);

/* ---- buffers.c: memory that Python passes ------------------------------------------------------------------ */

/* Buffers that a call or an object holds and releases together. MDS_PY_BUFFERS makes room for a few on the stack; a
 * caller with more buffers, or an object, passes its own room. */
typedef struct {
    Py_buffer *views;
    size_t count, room;
    size_t entries; /* of the buffer taken last */
} mds_py_buffers;

#define MDS_PY_BUFFERS(name, most)                                                                                     \
    Py_buffer name##_views[most];                                                                                      \
    mds_py_buffers name = {name##_views, 0, most, 0}

typedef enum { MDS_PY_READ = PyBUF_SIMPLE, MDS_PY_WRITE = PyBUF_WRITABLE } mds_py_access;

#define MDS_PY_ANY SIZE_MAX /* any number of entries */

/* Take a buffer of 64-bit words, of integers of `width` bytes (4 or 8), or of bytes. Return its memory, which is not
 * NULL even if it is empty; NULL with an exception unless it is aligned and holds `entries` whole entries. `what` is
 * its name in messages. */
void *mds_py_take_words(mds_py_buffers *buffers, PyObject *object, mds_py_access access, size_t entries,
                        const char *what);
void *mds_py_take_numbers(mds_py_buffers *buffers, PyObject *object, mds_py_access access, unsigned width,
                          size_t entries, const char *what);
void *mds_py_take_bytes(mds_py_buffers *buffers, PyObject *object, mds_py_access access);
void mds_py_give_back(mds_py_buffers *buffers);

/* Raise unless `expected` entries were found. */
int mds_py_expect(const char *what, size_t expected, size_t found);

/* Raise if the buffer taken last overlaps one taken before it, or `held`, which may be NULL. For calls that would
 * otherwise read bytes that they have just written. */
int mds_py_expect_apart(const mds_py_buffers *buffers, const Py_buffer *held, const char *what);

/* Copy a small table for an object that checks it once: no other code can change the copy. NULL with an exception; free
 * the copy with PyMem_Free. Sets *n, unless `n` is NULL, to the number of entries. */
void *mds_py_copy_words(PyObject *object, size_t entries, const char *what, size_t *n);
void *mds_py_copy_numbers(PyObject *object, unsigned width, size_t entries, const char *what, size_t *n);

/* Numbers to look up, and room for as many results. */
typedef struct {
    const int64_t *at;
    int64_t *out;
    size_t count;
    uint64_t limit; /* numbers must lie in [0, limit) */
    size_t outside; /* the first number outside; `count` if there is none */
} mds_py_lookup;

int mds_py_take_lookup(mds_py_buffers *buffers, PyObject *at, PyObject *out, const char *what, mds_py_lookup *lookup);

/* Make the call if all numbers lie in [0, below). */
#define LOOK_UP(lookup, below, ...)                                                                                    \
    do {                                                                                                               \
        (lookup).limit = (below);                                                                                      \
        RELEASE_GIL((lookup).outside = mds_first_outside((lookup).at, (lookup).count, (lookup).limit);                 \
                    if ((lookup).outside == (lookup).count) __VA_ARGS__);                                              \
    } while (0)

/* After LOOK_UP: return None, or raise IndexError, such as "position 9 is out of range for an epoch of 5". */
PyObject *mds_py_looked_up(const mds_py_lookup *lookup, const char *what, const char *whole);

/* For "O&": a size, a count or an offset in an unsigned long long. "K" is for seeds, epochs and bits alone: it takes
 * all integers modulo 2^64. OverflowError unless 0 <= object < 2^64. */
int mds_py_size(PyObject *object, void *size);

/* Raise unless the object is a tuple, as PyArg_ParseTuple needs it. */
int mds_py_expect_tuple(PyObject *object, const char *what);

/* Convert an offset from Python, and to it; None is MDS_NONE. */
int mds_py_parse_offset(PyObject *object, uint64_t *offset);
PyObject *mds_py_offset(uint64_t offset);

/* ---- py_map.c ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD mds_map map;
    mds_file file;
    PyObject *path; /* bytes; holds file.path */
    unsigned cold;  /* whether to ask for runs first: see mds_next_cold */
} MapObject;

/* Raise for a file of `size` bytes that cannot be read to its end; returns NULL. */
PyObject *mds_py_raise_unread(mds_status status, const char *path, uint64_t size);

/* ---- py_records.c -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *map;    /* MapObject, or the reader; NULL while the source is closed, and set after all else */
    PyObject *reader; /* borrowed: the reader of a compressed source; NULL for other sources */
    PyObject *index;  /* MapObject that holds the bounds */
    PyObject *view;   /* a memoryview of the source, for records as views; NULL unless it is mapped */
    mds_map content;  /* of a compressed source: its size alone */
    size_t number;    /* of the source */
    mds_source source;
} SourceSlot;

/* The open sources of Records. A read uses one table from its begin to its end: the one that Records had when it began.
 * It opens its sources there, even if Records have another table by then. So whatever Python code runs meanwhile, in
 * this thread or another, sources stay open until the last read that uses them is over. */
typedef struct {
    size_t references; /* Records and reads that hold the table; grows with Records locked */
    size_t count;
    SourceSlot slots[];
} SourceTable;

typedef struct {
    PyObject_HEAD PyObject *opener;
    uint64_t *firsts; /* n_sources + 1 record numbers */
    size_t n_sources;
    uint64_t count;
    int notice_order, will_need, views;
    unsigned cold;
    unsigned reads; /* of single records, modulo 2^32 */
    mds_readahead readahead;
    SourceTable *table;
} RecordsObject;

static inline int mds_py_slot_is_open(const SourceSlot *slot)
{
    return __atomic_load_n(&slot->map, __ATOMIC_ACQUIRE) != NULL;
}

/* The slot that holds a source. */
static inline const SourceSlot *mds_py_slot_of(const mds_source *source)
{
    return (const SourceSlot *)((const char *)source - offsetof(SourceSlot, source));
}

/* Fill one request a row; rows are checked and sources opened while the GIL is held. -1 with an exception. */
int mds_py_records_request(RecordsObject *self, SourceTable *table, PyObject *rows, mds_request *requests,
                           Py_ssize_t n);

/* Return a located payload as bytes, or as a read-only memoryview, which keeps its memory alive: the mapped source,
 * or `room`. */
PyObject *mds_py_records_payload(const RecordsObject *self, const mds_request *request, PyObject *room);

/* Check that the source still holds a located record, before another read; -1 with an exception. */
int mds_py_records_check(RecordsObject *self, const mds_request *request);

/* Read a record by its number, and keep in `request`, zeros before, where its payload lies; NULL with an exception. */
PyObject *mds_py_records_one(RecordsObject *self, SourceTable *table, PyObject *key, mds_request *request);

int mds_py_is_records(PyObject *object);

/* ---- py_sources.c -------------------------------------------------------------------------------------- */

/* Make a table of closed sources, with one reference; NULL with an exception. */
SourceTable *mds_py_sources_new(size_t count);

/* Close the sources of a table, and free it. */
void mds_py_sources_free(SourceTable *table);

/* Begin and end a read. */
static inline SourceTable *mds_py_sources_hold(RecordsObject *self)
{
    SourceTable *table;
#ifdef Py_GIL_DISABLED
    LOCKED(self, table = self->table; __atomic_add_fetch(&table->references, 1, __ATOMIC_RELAXED));
#else
    table = self->table;
    table->references++;
#endif
    return table;
}

static inline void mds_py_sources_release(SourceTable *table)
{
#ifdef Py_GIL_DISABLED
    const size_t left = __atomic_sub_fetch(&table->references, 1, __ATOMIC_ACQ_REL);
#else
    const size_t left = --table->references;
#endif
    if (left == 0)
        mds_py_sources_free(table);
}

/* Ask the opener for source `s`, which is closed: (map or reader, index, where its bounds begin there, their width,
 * framing, first, stride). If stride is not 0, there are no bounds. NULL with an exception. */
const mds_source *mds_py_sources_open(RecordsObject *self, SourceTable *table, size_t s);

/* The method forget of Records. */
PyObject *mds_py_records_forget(PyObject *object, PyObject *none);

/* Raise for a request that cannot be read. */
void mds_py_raise_unread_record(const RecordsObject *self, const mds_request *request, mds_status status);

/* Raise MemoryError for n >= 1 located records that do not fit into memory together; replaces a set exception. */
void mds_py_raise_no_room(const RecordsObject *self, const mds_request *requests, Py_ssize_t n);

/* ---- py_blocks.c --------------------------------------------------------------------------------------- */

/* Read the located records of compressed sources into `room`, which holds all unmapped records in order. -1 with an
 * exception. */
int mds_py_blocks_fill(const RecordsObject *self, const mds_request *requests, Py_ssize_t n, uint8_t *room);

/* Return whether all records lie in compressed sources. */
int mds_py_blocks_only(const mds_request *requests, Py_ssize_t n);

/* Make the payloads of such records as bytes, without an intermediate copy. made[0..n) begins with NULL, and holds all
 * finished payloads after an error too. -1 with an exception. */
int mds_py_blocks_make(const RecordsObject *self, const mds_request *requests, Py_ssize_t n, PyObject **made);

/* ---- py_batch.c ---------------------------------------------------------------------------------------- */

/* The records of a batch: where their payloads lie, and the memory of those that are not mapped. */
typedef struct {
    SourceTable *table; /* of the requests */
    mds_request *requests;
    Py_ssize_t n;
    PyObject *room;    /* bytes, or NULL if all are mapped */
    PyObject **made;   /* finished payloads that are not taken yet; NULL in a batch that makes none */
    Py_ssize_t copied; /* payloads to copy at a time; 0 for none */
    int is_made;       /* whether the read has made all, as for records of blocks only */
} mds_py_batch;

/* Locate the payloads of some rows and bring them into memory; -1 with an exception. */
int mds_py_batch_fetch(RecordsObject *self, PyObject *rows, mds_py_batch *batch);
void mds_py_batch_free(mds_py_batch *batch);

/* Return the payload of record k of a batch as bytes, or as a read-only memoryview, which keeps its memory alive. */
PyObject *mds_py_batch_payload(const RecordsObject *self, const mds_py_batch *batch, Py_ssize_t k);

/* The methods fitting, many and decode of Records. */
PyObject *mds_py_records_fitting(PyObject *object, PyObject *args);
PyObject *mds_py_records_many(PyObject *object, PyObject *rows);
PyObject *mds_py_records_decode(PyObject *object, PyObject *args);

/* ---- py_pad.c -------------------------------------------------------------------------------------------- */

/* A batch whose fields are written into one array. */
typedef struct {
    const PyObject *self;
    size_t n;          /* records */
    Py_ssize_t fields; /* how many a record has */
    /* Fill `pieces` with the cut arrays of a field; return the first whose entries are not of `row` bytes, else n. */
    size_t (*pieces)(const PyObject *self, size_t f, uint64_t longest, int left, uint64_t row, mds_piece *pieces);
    const RecordsObject *records; /* the sources of the pieces; with `requests` NULL, pieces lie in memory */
    const mds_request *requests;
} mds_py_joined;

/* The method join of a batch. */
PyObject *mds_py_batch_join(const mds_py_joined *batch, PyObject *args);

/* The number of a field, from a Python int; -1 with an exception. */
Py_ssize_t mds_py_batch_field(PyObject *key, Py_ssize_t count);

/* ---- py_array_fields.c --------------------------------------------------------------------------------- */

/* The type of a field's value in Python. Values of the first four lie in the record's table, those of the next three
 * are runs of bytes, and those of the last two are arrays: views of the record, and copies. */
typedef enum {
    FIELD_UINT,
    FIELD_INT,
    FIELD_FLOAT,
    FIELD_BOOL,
    FIELD_BYTES,
    FIELD_STR,
    FIELD_JSON,
    FIELD_ARRAY,
    FIELD_COPY
} field_type;

typedef struct {
    PyObject *name, *dtype, *shape; /* dtype of arrays; shape of those that are not ragged */
    field_type type;
} FieldSlot;

typedef struct {
    PyObject_HEAD PyObject *make_array, *loads, *error;
    Py_ssize_t count;
    FieldSlot *slots;
    mds_array_field *fields;
} ArrayFieldsObject;

/* Make the value of field f of a record, whose bytes lie at `data`. Arrays are views of `record`, or copies if it is
 * NULL. */
PyObject *mds_py_array_value(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *record, const char *data,
                             const mds_array_value *value);

/* Return why mds_array_record refuses a record of `size` bytes. */
PyObject *mds_py_array_fields_reason(const ArrayFieldsObject *self, size_t failed, Py_ssize_t size);

/* ---- py_json_fields.c ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject *name, *dtype;    /* dtype of arrays */
    PyObject *keys, *fallback; /* bytes that the field of the core points at; None without a fallback */
} WantedSlot;

typedef struct {
    PyObject_HEAD PyObject *make_array, *error;
    Py_ssize_t count;
    WantedSlot *slots;
    mds_wanted *fields;
    Py_ssize_t *order; /* the fields in the order of a sample */
} JsonFieldsObject;

/* Make the value of field f, or the dict of all fields, from the values of a record. */
PyObject *mds_py_json_value(const JsonFieldsObject *self, Py_ssize_t f, const mds_items *items, const mds_value *value);
PyObject *mds_py_json_sample(const JsonFieldsObject *self, const mds_items *items, const mds_value *values);

/* Return why a record is refused: (one of WANTED_*, name of the field or None, byte). */
PyObject *mds_py_json_refusal(const JsonFieldsObject *self, const mds_refusal *refusal);

/* Free the items of `count` fields, and the array of them. */
void mds_py_free_items(mds_items *items, Py_ssize_t count);

/* ---- py_permutation.c ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD mds_permutation permutation;
} PermutationObject;

/* ---- py_scan.c ----------------------------------------------------------------------------------------- */

/* Take room for the starts of the records in n bytes. */
uint64_t *mds_py_take_starts(mds_py_buffers *buffers, PyObject *object, uint64_t n);

/* Raise EOFError for a map whose file became shorter; NULL. */
PyObject *mds_py_raise_shrank(void);

/* Return the result of a scan of lines: (records, pending, newlines). */
PyObject *mds_py_scanned(size_t count, const mds_lines *state);

#endif
