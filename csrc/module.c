/* module.c - the binding: parse, check, release the GIL, call the core, raise or return. No logic lives here. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mmapds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const mds_kernels *kernels; /* chosen once, when the module is loaded */

typedef struct {
    PyTypeObject *map_type, *permutation_type, *records_type, *array_fields_type;
} module_state;

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (!type)
        return -1;
    const int result = PyModule_AddType(module, (PyTypeObject *)type);
    if (keep && result == 0)
        *keep = (PyTypeObject *)type; /* the state's reference */
    else
        Py_DECREF(type);
    return result;
}

static void free_instance(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *new_instance(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

/* Fill `view` with a contiguous buffer of 8-byte aligned 64-bit integers. */
static int get_words(PyObject *object, int flags, Py_buffer *view, const char *what)
{
    if (PyObject_GetBuffer(object, view, flags) != 0)
        return -1;
    if (view->len == 0 || (view->len % 8 == 0 && (uintptr_t)view->buf % 8 == 0)) /* nothing has any address */
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: expected whole 64-bit integers at an aligned address", what);
    PyBuffer_Release(view);
    return -1;
}

/* A variant of the kernels by name, the one in use for NULL; NULL with an exception. */
static const mds_kernels *find_kernels(const char *variant)
{
    const mds_kernels *chosen = variant ? mds_kernels_find(variant) : kernels;
    if (!chosen)
        PyErr_Format(PyExc_ValueError, "no SIMD variant %s on this machine", variant);
    return chosen;
}

/* ---- Map ----------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    mds_map map;
} MapObject;

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", NULL};
    PyObject *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:Map", names, PyUnicode_FSConverter, &path))
        return NULL;
    MapObject *self = (MapObject *)new_instance(type);
    if (self) {
        mds_status status;
        const char *name = PyBytes_AsString(path);
        Py_BEGIN_ALLOW_THREADS
        status = mds_map_open(name, &self->map);
        Py_END_ALLOW_THREADS
        if (status != MDS_OK) {
            if (status == MDS_NOT_FILE)
                PyErr_Format(PyExc_ValueError, "%s: not a regular file", name);
            else
                PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
            Py_CLEAR(self);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void map_dealloc(PyObject *self)
{
    mds_map_close(&((MapObject *)self)->map);
    free_instance(self);
}

static int map_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    const mds_map *map = &((MapObject *)self)->map;
    return PyBuffer_FillInfo(view, self, map->data ? (void *)map->data : (void *)"", (Py_ssize_t)map->size, 1, flags);
}

static PyObject *map_advise(PyObject *self, PyObject *args)
{
    int advice;
    if (!PyArg_ParseTuple(args, "i:advise", &advice))
        return NULL;
    const mds_map *map = &((MapObject *)self)->map;
    mds_map_advise(map, 0, map->size, (mds_advice)advice);
    Py_RETURN_NONE;
}

static PyObject *map_size(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((MapObject *)self)->map.size);
}

static PyObject *map_mtime(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(((MapObject *)self)->map.mtime_ns);
}

static PyMethodDef map_methods[] = {
    {"advise", map_advise, METH_VARARGS, "Advise the kernel how the whole map will be read."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef map_getset[] = {
    {"size", map_size, NULL, "Bytes in the file when it was mapped.", NULL},
    {"mtime_ns", map_mtime, NULL, "Time of the file's last change when it was mapped, in nanoseconds.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot map_slots[] = {
    {Py_tp_doc, "A read-only map of a file, as a buffer; keeps no file descriptor."},
    {Py_tp_new, map_new},
    {Py_tp_dealloc, map_dealloc},
    {Py_tp_methods, map_methods},
    {Py_tp_getset, map_getset},
    {Py_bf_getbuffer, map_getbuffer},
    {0, NULL},
};

static PyType_Spec map_spec = {"mmapds._native.Map", sizeof(MapObject), 0, Py_TPFLAGS_DEFAULT, map_slots};

/* ---- tar ----------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *map; /* MapObject */
    int fd;
    mds_tar state;
} TarScannerObject;

static PyObject *tar_scanner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"map", "path", NULL};
    const module_state *state = PyType_GetModuleState(type);
    PyObject *map, *path;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O&:TarScanner", names, state->map_type, &map,
                                     PyUnicode_FSConverter, &path))
        return NULL;
    TarScannerObject *self = (TarScannerObject *)new_instance(type);
    if (self) {
        const char *name = PyBytes_AsString(path);
        Py_INCREF(map);
        self->map = map;
        Py_BEGIN_ALLOW_THREADS
        self->fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        Py_END_ALLOW_THREADS
        if (self->fd < 0) {
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
            Py_CLEAR(self);
        }
    }
    Py_DECREF(path);
    return (PyObject *)self;
}

static void tar_scanner_dealloc(PyObject *self)
{
    Py_XDECREF(((TarScannerObject *)self)->map);
    if (((TarScannerObject *)self)->fd >= 0)
        close(((TarScannerObject *)self)->fd);
    free_instance(self);
}

static PyObject *tar_scan(PyObject *object, PyObject *args)
{
    TarScannerObject *self = (TarScannerObject *)object;
    PyObject *targets[3], *result = NULL;
    Py_buffer views[3];
    int opened = 0;
    if (!PyArg_ParseTuple(args, "OOO:scan", &targets[0], &targets[1], &targets[2]))
        return NULL;
    for (; opened < 3; opened++)
        if (get_words(targets[opened], PyBUF_WRITABLE, &views[opened], "begins, sizes, hashes") != 0)
            goto done;
    if (views[0].len != views[1].len || views[0].len != views[2].len) {
        PyErr_SetString(PyExc_ValueError, "begins, sizes, hashes: expected as much room in each");
        goto done;
    }
    const mds_map *map = &((MapObject *)self->map)->map;
    mds_tar state = self->state; /* a copy: other threads may use the original meanwhile */
    mds_tar_status status;
    size_t count;
    Py_BEGIN_ALLOW_THREADS
    status = mds_tar_scan(map->data, map->size, self->fd, &state, views[0].buf, views[1].buf, views[2].buf,
                          (size_t)views[0].len / 8, &count);
    Py_END_ALLOW_THREADS
    self->state = state;
    result = Py_BuildValue("inKKK", (int)status, (Py_ssize_t)count, (unsigned long long)state.at,
                           (unsigned long long)state.end, (unsigned long long)state.samples);
done:
    while (opened)
        PyBuffer_Release(&views[--opened]);
    return result;
}

static PyMethodDef tar_scanner_methods[] = {
    {"scan", tar_scan, METH_VARARGS,
     "scan(begins, sizes, hashes) -> (status, samples found now, at, end of the last, samples found so far)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tar_scanner_slots[] = {
    {Py_tp_doc, "Finds the samples of a mapped tar, some at a time."},
    {Py_tp_new, tar_scanner_new},
    {Py_tp_dealloc, tar_scanner_dealloc},
    {Py_tp_methods, tar_scanner_methods},
    {0, NULL},
};

static PyType_Spec tar_scanner_spec = {"mmapds._native.TarScanner", sizeof(TarScannerObject), 0, Py_TPFLAGS_DEFAULT,
                                       tar_scanner_slots};

/* Text as Python's tarfile makes it of a name. */
static PyObject *tar_text(const uint8_t *text, uint64_t n)
{
    return PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)n, "surrogateescape");
}

static PyObject *tar_members(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer record;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "y*n:tar_members", &record, &limit))
        return NULL;
    mds_tar_member first = {.next = 0}, other;
    mds_tar_status status = MDS_TAR_OK;
    uint64_t at = 0;
    PyObject *result = NULL, *key = NULL, *list = PyList_New(0);
    while (list && PyList_Size(list) < limit) {
        mds_tar_member *member = key ? &other : &first;
        status = mds_tar_next(record.buf, (uint64_t)record.len, at, member);
        at = member->next;
        if (status != MDS_TAR_OK)
            break;
        if (!member->key_size)
            continue;
        if (key && !mds_tar_same_key(&first, member)) {
            status = MDS_TAR_GARBAGE;
            at = member->header;
            break;
        }
        if (!key && !(key = tar_text(member->name, member->key_size)))
            goto done;
        PyObject *item = Py_BuildValue("NKK", tar_text(member->extension, member->extension_size),
                                       (unsigned long long)member->begin, (unsigned long long)member->end);
        const int failed = !item || PyList_Append(list, item) != 0;
        Py_XDECREF(item);
        if (failed)
            goto done;
    }
    if (list)
        result = Py_BuildValue("iKOO", (int)status, (unsigned long long)at, key ? key : Py_None, list);
done:
    Py_XDECREF(key);
    Py_XDECREF(list);
    PyBuffer_Release(&record);
    return result;
}

static PyObject *tar_hash(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *key;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#:tar_hash", &key, &size))
        return NULL;
    return PyLong_FromUnsignedLong(mds_tar_hash((const uint8_t *)key, (size_t)size));
}

/* ---- Records ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *map;    /* MapObject, or NULL while the source is closed */
    PyObject *view;   /* a memoryview of it, for records that are not copied */
    Py_buffer bounds; /* keeps source.bounds alive */
    mds_source source;
} SourceSlot;

typedef struct {
    PyObject_HEAD
    PyObject *opener;
    Py_buffer firsts_view;
    const uint64_t *firsts; /* n_sources + 1 record numbers */
    size_t n_sources;
    uint64_t count;
    int notice_order, will_need, views;
    unsigned cold;
    mds_readahead readahead;
    SourceSlot *slots;
} RecordsObject;

static PyObject *records_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"firsts", "opener", "readahead", "will_need", "views", NULL};
    PyObject *firsts, *opener;
    int readahead, will_need, views;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOppp:Records", names, &firsts, &opener, &readahead, &will_need,
                                     &views))
        return NULL;
    RecordsObject *self = (RecordsObject *)new_instance(type);
    if (!self)
        return NULL;
    if (get_words(firsts, PyBUF_SIMPLE, &self->firsts_view, "firsts") != 0)
        goto fail;
    self->firsts = self->firsts_view.buf;
    if (self->firsts_view.len < 8 || self->firsts[0] != 0) {
        PyErr_SetString(PyExc_ValueError, "firsts: expected record numbers that begin with 0");
        goto fail;
    }
    self->n_sources = (size_t)self->firsts_view.len / 8 - 1;
    for (size_t s = 0; s < self->n_sources; s++) {
        if (self->firsts[s] > self->firsts[s + 1] || self->firsts[s + 1] > INT64_MAX) {
            PyErr_SetString(PyExc_ValueError, "firsts: expected ascending record numbers");
            goto fail;
        }
    }
    self->count = self->firsts[self->n_sources];
    self->slots = calloc(self->n_sources ? self->n_sources : 1, sizeof *self->slots);
    if (!self->slots) {
        PyErr_NoMemory();
        goto fail;
    }
    self->notice_order = readahead;
    self->will_need = will_need;
    self->views = views;
    self->cold = MDS_COLD;
    Py_INCREF(opener);
    self->opener = opener;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static int records_traverse(PyObject *object, visitproc visit, void *arg)
{
    RecordsObject *self = (RecordsObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->opener);
    return 0;
}

static int records_clear(PyObject *object)
{
    Py_CLEAR(((RecordsObject *)object)->opener);
    return 0;
}

static void records_dealloc(PyObject *object)
{
    RecordsObject *self = (RecordsObject *)object;
    PyObject_GC_UnTrack(object);
    records_clear(object);
    if (self->slots) {
        for (size_t s = 0; s < self->n_sources; s++) {
            if (self->slots[s].map) {
                PyBuffer_Release(&self->slots[s].bounds);
                Py_DECREF(self->slots[s].view);
                Py_DECREF(self->slots[s].map);
            }
        }
        free(self->slots);
    }
    if (self->firsts)
        PyBuffer_Release(&self->firsts_view);
    free_instance(object);
}

/* Ask the opener for source `s`: (map, bounds, framing, first, stride), no bounds where stride is not 0. Another thread
 * may have been quicker; its result stays. */
static const mds_source *records_open(RecordsObject *self, size_t s)
{
    const module_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *opened = PyObject_CallMethod(self->opener, "open", "n", (Py_ssize_t)s);
    if (!opened)
        return NULL;
    PyObject *map, *bounds;
    int framing;
    Py_buffer view;
    SourceSlot *slot = &self->slots[s];
    if (slot->map) {
        Py_DECREF(opened);
        return &slot->source;
    }
    unsigned long long first, stride;
    if (!PyArg_ParseTuple(opened, "O!OiKK:open", state->map_type, &map, &bounds, &framing, &first, &stride) ||
        get_words(bounds, PyBUF_SIMPLE, &view, "bounds") != 0) {
        Py_DECREF(opened);
        return NULL;
    }
    const uint64_t count = self->firsts[s + 1] - self->firsts[s];
    const uint64_t entries = stride ? 0 : count + 1;
    if ((uint64_t)view.len / 8 != entries) {
        PyErr_Format(PyExc_ValueError, "bounds: found %zd entries, expected %llu", view.len / 8,
                     (unsigned long long)entries);
        PyBuffer_Release(&view);
        Py_DECREF(opened);
        return NULL;
    }
    PyObject *memory = PyMemoryView_FromObject(map);
    if (!memory) {
        PyBuffer_Release(&view);
        Py_DECREF(opened);
        return NULL;
    }
    Py_INCREF(map);
    slot->map = map;
    slot->view = memory;
    slot->bounds = view;
    slot->source = (mds_source){((MapObject *)map)->map, stride ? NULL : view.buf, first, stride, count,
                                (mds_framing)framing};
    Py_DECREF(opened);
    return &slot->source;
}

/* The source that holds `record`, opened, and the record's number in it. Needs record < count. */
static const mds_source *records_find(RecordsObject *self, uint64_t record, size_t *source_number, uint64_t *i)
{
    size_t low = 0, high = self->n_sources;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (self->firsts[middle] <= record)
            low = middle;
        else
            high = middle;
    }
    *source_number = low;
    *i = record - self->firsts[low];
    return self->slots[low].map ? &self->slots[low].source : records_open(self, low);
}

static void raise_corrupt(RecordsObject *self, const mds_source *source, uint64_t i, mds_span span)
{
    const size_t s = (size_t)((const SourceSlot *)((const char *)source - offsetof(SourceSlot, source)) - self->slots);
    PyObject *result = PyObject_CallMethod(self->opener, "corrupt", "nKKKK", (Py_ssize_t)s, (unsigned long long)i,
                                           (unsigned long long)span.begin, (unsigned long long)span.end,
                                           (unsigned long long)source->map.size);
    Py_XDECREF(result);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "opener.corrupt() must raise");
}

/* A record number from a Python int, negative ones counting from the end; -1 and IndexError when out of range. */
static int records_number(RecordsObject *self, PyObject *key, uint64_t *record)
{
    const Py_ssize_t row = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (row == -1 && PyErr_Occurred())
        return -1;
    *record = row < 0 ? (uint64_t)row + self->count : (uint64_t)row;
    if (*record < self->count)
        return 0;
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %llu records", row, (unsigned long long)self->count);
    return -1;
}

/* A payload as bytes, or as a read-only memoryview of the map, which it keeps alive. */
static PyObject *records_payload(const RecordsObject *self, const mds_source *source, mds_span span)
{
    if (self->views) {
        const SourceSlot *slot = (const SourceSlot *)((const char *)source - offsetof(SourceSlot, source));
        return PySequence_GetSlice(slot->view, (Py_ssize_t)span.begin, (Py_ssize_t)span.end);
    }
    return PyBytes_FromStringAndSize((const char *)source->map.data + span.begin, (Py_ssize_t)(span.end - span.begin));
}

static PyObject *records_subscript(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    uint64_t record, i;
    size_t s;
    mds_span span;
    if (records_number(self, key, &record) != 0)
        return NULL;
    const mds_source *source = records_find(self, record, &s, &i);
    if (!source)
        return NULL;
    if (mds_record_span(source, i, &span) != MDS_OK) {
        raise_corrupt(self, source, i, span);
        return NULL;
    }
    if (self->notice_order)
        mds_readahead_note(&self->readahead, source, span);
    return records_payload(self, source, mds_record_payload(source, span));
}

static Py_ssize_t records_length(PyObject *object)
{
    return (Py_ssize_t)((RecordsObject *)object)->count;
}

static PyObject *records_locate(PyObject *object, PyObject *key)
{
    RecordsObject *self = (RecordsObject *)object;
    uint64_t record, i;
    size_t s;
    mds_span span;
    if (records_number(self, key, &record) != 0)
        return NULL;
    const mds_source *source = records_find(self, record, &s, &i);
    if (!source)
        return NULL;
    if (mds_record_span(source, i, &span) != MDS_OK) {
        raise_corrupt(self, source, i, span);
        return NULL;
    }
    span = mds_record_payload(source, span);
    return Py_BuildValue("nKKK", (Py_ssize_t)s, (unsigned long long)i, (unsigned long long)span.begin,
                         (unsigned long long)span.end);
}

/* Fill one request a row; rows are checked and sources opened while the GIL is held. */
static int records_request(RecordsObject *self, PyObject *rows, mds_request *requests, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *row = PySequence_GetItem(rows, k);
        if (!row)
            return -1;
        uint64_t record;
        size_t s;
        const int found = records_number(self, row, &record);
        Py_DECREF(row);
        if (found != 0)
            return -1;
        requests[k].source = records_find(self, record, &s, &requests[k].i);
        if (!requests[k].source)
            return -1;
    }
    return 0;
}

/* Where the payloads of some rows lie, all pages asked for; *n is how many there are. NULL with an exception. */
static mds_request *records_fetch(RecordsObject *self, PyObject *rows, Py_ssize_t *n)
{
    *n = PySequence_Size(rows);
    if (*n < 0)
        return NULL;
    mds_request *requests = PyMem_Calloc((size_t)*n + 1, sizeof *requests);
    mds_request **order = PyMem_Calloc((size_t)*n + 1, sizeof *order);
    mds_status status = MDS_SYSTEM;
    if (!requests || !order) {
        PyErr_NoMemory();
    } else if (records_request(self, rows, requests, *n) == 0) {
        size_t failed = 0;
        unsigned cold = self->cold; /* a copy: other threads use the original meanwhile */
        Py_BEGIN_ALLOW_THREADS
        status = mds_records_fetch(requests, order, (size_t)*n, self->will_need ? &cold : NULL, &failed);
        Py_END_ALLOW_THREADS
        self->cold = cold;
        if (status != MDS_OK)
            raise_corrupt(self, requests[failed].source, requests[failed].i, requests[failed].span);
    }
    PyMem_Free(order);
    if (status == MDS_OK)
        return requests;
    PyMem_Free(requests);
    return NULL;
}

static PyObject *records_many(PyObject *object, PyObject *rows)
{
    RecordsObject *self = (RecordsObject *)object;
    Py_ssize_t n;
    mds_request *requests = records_fetch(self, rows, &n);
    PyObject *list = requests ? PyList_New(n) : NULL;
    for (Py_ssize_t k = 0; list && k < n; k++) {
        PyObject *payload = records_payload(self, requests[k].source, requests[k].span);
        if (!payload)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, payload);
    }
    PyMem_Free(requests);
    return list;
}

static PyMethodDef records_methods[] = {
    {"locate", records_locate, METH_O, "locate(i) -> (source number, record number in it, begin, end) of the payload."},
    {"many", records_many, METH_O, "many(rows) -> list of payloads; all pages are asked for before the first is read."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot records_slots[] = {
    {Py_tp_doc, "The payloads of all records behind a list of sources; sources open at first use."},
    {Py_tp_new, records_new},
    {Py_tp_dealloc, records_dealloc},
    {Py_tp_traverse, records_traverse},
    {Py_tp_clear, records_clear},
    {Py_tp_methods, records_methods},
    {Py_mp_subscript, records_subscript},
    {Py_mp_length, records_length},
    {0, NULL},
};

static PyType_Spec records_spec = {"mmapds._native.Records", sizeof(RecordsObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, records_slots};

/* ---- ArrayFields --------------------------------------------------------------------------------------- */

/* What becomes of a field: the first four are words of the table, the next three are bytes. */
typedef enum { FIELD_UINT, FIELD_INT, FIELD_FLOAT, FIELD_BOOL, FIELD_BYTES, FIELD_STR, FIELD_JSON, FIELD_ARRAY } field_type;

typedef struct {
    PyObject *name, *dtype, *shape; /* dtype of arrays; shape of those that are not ragged */
    field_type type;
} FieldSlot;

typedef struct {
    PyObject_HEAD
    PyObject *make_array, *loads, *error;
    Py_ssize_t count;
    FieldSlot *slots;
    mds_array_field *fields;
} ArrayFieldsObject;

static void array_fields_dealloc(PyObject *object)
{
    ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    for (Py_ssize_t f = 0; self->slots && f < self->count; f++) {
        Py_XDECREF(self->slots[f].name);
        Py_XDECREF(self->slots[f].dtype);
        Py_XDECREF(self->slots[f].shape);
    }
    PyMem_Free(self->slots);
    PyMem_Free(self->fields);
    Py_XDECREF(self->make_array);
    Py_XDECREF(self->loads);
    Py_XDECREF(self->error);
    free_instance(object);
}

/* One field from (name, type, bytes of an item, shape, dtype), None in a shape standing for a ragged axis. */
static int parse_array_field(PyObject *given, FieldSlot *slot, mds_array_field *field)
{
    PyObject *name, *shape, *dtype;
    int type;
    unsigned long long item;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "UiKO!O", &name, &type, &item, &PyTuple_Type, &shape, &dtype))
        return -1;
    const Py_ssize_t dims = PyTuple_Size(shape);
    if (type < FIELD_UINT || type > FIELD_ARRAY || dims > MDS_ARRAY_DIMS || item > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "field %R: expected a type, and up to %d axes", name, MDS_ARRAY_DIMS);
        return -1;
    }
    int ragged = 0;
    for (Py_ssize_t d = 0; d < dims; d++) {
        PyObject *axis = PyTuple_GetItem(shape, d);
        ragged |= axis == Py_None;
        field->shape[d] = axis == Py_None ? MDS_NONE : PyLong_AsUnsignedLongLong(axis);
        if (PyErr_Occurred())
            return -1;
    }
    field->kind = type == FIELD_ARRAY ? MDS_ARRAY_ITEMS : type >= FIELD_BYTES ? MDS_ARRAY_BYTES : MDS_ARRAY_WORD;
    field->item = item;
    field->dims = (size_t)dims;
    *slot = (FieldSlot){Py_NewRef(name), Py_NewRef(dtype), ragged ? NULL : Py_NewRef(shape), (field_type)type};
    return 0;
}

static PyObject *array_fields_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fields", "make_array", "loads", "error", NULL};
    PyObject *fields, *make_array, *loads, *error;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO:ArrayFields", names, &PyTuple_Type, &fields, &make_array, &loads,
                                     &error))
        return NULL;
    ArrayFieldsObject *self = (ArrayFieldsObject *)new_instance(type);
    if (!self)
        return NULL;
    self->make_array = Py_NewRef(make_array);
    self->loads = Py_NewRef(loads);
    self->error = Py_NewRef(error);
    self->count = PyTuple_Size(fields);
    self->slots = PyMem_Calloc((size_t)self->count + 1, sizeof *self->slots);
    self->fields = PyMem_Calloc((size_t)self->count + 1, sizeof *self->fields);
    if (!self->slots || !self->fields) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t f = 0; f < self->count; f++)
        if (parse_array_field(PyTuple_GetItem(fields, f), &self->slots[f], &self->fields[f]) != 0)
            goto fail;
    return (PyObject *)self;
fail:
    Py_DECREF(self);
    return NULL;
}

static PyObject *array_view(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *record, const mds_array_value *value)
{
    const FieldSlot *slot = &self->slots[f];
    PyObject *shape = slot->shape ? Py_NewRef(slot->shape) : PyTuple_New((Py_ssize_t)self->fields[f].dims);
    for (size_t d = 0; shape && !slot->shape && d < self->fields[f].dims; d++) {
        PyObject *axis = PyLong_FromUnsignedLongLong(value->shape[d]);
        if (!axis)
            Py_CLEAR(shape);
        else
            PyTuple_SetItem(shape, (Py_ssize_t)d, axis);
    }
    PyObject *offset = shape ? PyLong_FromUnsignedLongLong(value->begin) : NULL;
    PyObject *array = NULL;
    if (offset)
        array = PyObject_CallFunctionObjArgs(self->make_array, shape, slot->dtype, record, offset, NULL);
    Py_XDECREF(offset);
    Py_XDECREF(shape);
    return array;
}

static PyObject *array_value(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *record, const char *data,
                             const mds_array_value *value)
{
    double number;
    switch (self->slots[f].type) {
    case FIELD_UINT:
        return PyLong_FromUnsignedLongLong(value->word);
    case FIELD_INT:
        return PyLong_FromLongLong((long long)value->word);
    case FIELD_FLOAT:
        memcpy(&number, &value->word, sizeof number);
        return PyFloat_FromDouble(number);
    case FIELD_BOOL:
        return PyBool_FromLong(value->word != 0);
    case FIELD_BYTES:
        return PyBytes_FromStringAndSize(data + value->begin, (Py_ssize_t)value->size);
    case FIELD_STR:
        return PyUnicode_DecodeUTF8(data + value->begin, (Py_ssize_t)value->size, NULL);
    case FIELD_JSON: {
        PyObject *text = PySequence_GetSlice(record, (Py_ssize_t)value->begin, (Py_ssize_t)(value->begin + value->size));
        PyObject *loaded = text ? PyObject_CallFunctionObjArgs(self->loads, text, NULL) : NULL;
        Py_XDECREF(text);
        return loaded;
    }
    case FIELD_ARRAY:
        return array_view(self, f, record, value);
    }
    return NULL;
}

static PyObject *array_sample(const ArrayFieldsObject *self, PyObject *record, const char *data,
                              const mds_array_value *values)
{
    PyObject *sample = PyDict_New();
    for (Py_ssize_t f = 0; sample && f < self->count; f++) {
        PyObject *value = array_value(self, f, record, data, &values[f]);
        if (!value || PyDict_SetItem(sample, self->slots[f].name, value) != 0)
            Py_CLEAR(sample);
        Py_XDECREF(value);
        if (!sample && PyErr_ExceptionMatches(PyExc_ValueError)) { /* text that is none */
            PyObject *type, *reason, *traceback;
            PyErr_Fetch(&type, &reason, &traceback);
            PyErr_NormalizeException(&type, &reason, &traceback);
            PyErr_Format(self->error, "field %R is damaged: %S", self->slots[f].name, reason ? reason : Py_None);
            Py_XDECREF(type);
            Py_XDECREF(reason);
            Py_XDECREF(traceback);
        }
    }
    return sample;
}

#define FEW_FIELDS 16

/* What to say of a record that mds_array_record refuses. */
static PyObject *array_fields_reason(const ArrayFieldsObject *self, size_t failed, Py_ssize_t size)
{
    if (failed < (size_t)self->count)
        return PyUnicode_FromFormat("field %R does not fit the record's %zd bytes", self->slots[failed].name, size);
    return PyUnicode_FromFormat("its size does not fit its fields, or the %zd bytes it has", size);
}

static PyObject *array_fields_call(PyObject *object, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    const ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    mds_array_value few[FEW_FIELDS], *values = few;
    PyObject *record, *sample = NULL;
    Py_buffer view;
    uint64_t size;
    size_t failed;
    if (!PyArg_ParseTuple(args, "O:ArrayFields", &record) || PyObject_GetBuffer(record, &view, PyBUF_SIMPLE) != 0)
        return NULL;
    if (self->count > FEW_FIELDS && !(values = PyMem_Calloc((size_t)self->count, sizeof *values)))
        PyErr_NoMemory();
    else if (mds_array_record(self->fields, (size_t)self->count, view.buf, (uint64_t)view.len, values, &size, &failed))
        sample = array_sample(self, record, view.buf, values);
    else {
        PyObject *reason = array_fields_reason(self, failed, view.len);
        if (reason)
            PyErr_SetObject(self->error, reason);
        Py_XDECREF(reason);
    }
    if (values != few)
        PyMem_Free(values);
    PyBuffer_Release(&view);
    return sample;
}

static PyObject *array_fields_words(PyObject *object, PyObject *args)
{
    const ArrayFieldsObject *self = (ArrayFieldsObject *)object;
    Py_buffer view;
    unsigned long long begin;
    uint64_t size;
    size_t failed;
    if (!PyArg_ParseTuple(args, "y*K:words", &view, &begin))
        return NULL;
    PyObject *result = NULL;
    const uint64_t n = (uint64_t)view.len;
    mds_array_value *values = PyMem_Calloc((size_t)self->count + 1, sizeof *values);
    if (!values) {
        PyErr_NoMemory();
    } else if (begin <= n && mds_array_record(self->fields, (size_t)self->count, (const uint8_t *)view.buf + begin, n - begin,
                                              values, &size, &failed)) {
        result = PyTuple_New(self->count + 1);
        for (Py_ssize_t k = 0; result && k <= self->count; k++) {
            PyObject *word = PyLong_FromUnsignedLongLong(k ? values[k - 1].word : size);
            if (!word)
                Py_CLEAR(result);
            else
                PyTuple_SetItem(result, k, word);
        }
    } else {
        result = Py_NewRef(Py_None);
    }
    PyMem_Free(values);
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef array_fields_methods[] = {
    {"words", array_fields_words, METH_VARARGS,
     "words(data, begin) -> (size, word, ...) of the record there: scalars, sizes and lengths; None if there is none"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_fields_slots[] = {
    {Py_tp_doc, "Called with a record of named arrays, returns its fields as a dict; arrays are views of it."},
    {Py_tp_new, array_fields_new},
    {Py_tp_dealloc, array_fields_dealloc},
    {Py_tp_call, array_fields_call},
    {Py_tp_methods, array_fields_methods},
    {0, NULL},
};

static PyType_Spec array_fields_spec = {"mmapds._native.ArrayFields", sizeof(ArrayFieldsObject), 0, Py_TPFLAGS_DEFAULT,
                                        array_fields_slots};

/* ---- ArrayBatch ---------------------------------------------------------------------------------------- */

/* Records of named arrays, found and measured, none of which has become a Python object yet. */
typedef struct {
    PyObject_HEAD
    PyObject *records; /* RecordsObject: its maps are where the payloads lie */
    PyObject *fields;  /* ArrayFieldsObject */
    Py_ssize_t n;
    mds_request *requests;
    mds_array_value *values; /* of record k, from k * fields->count on */
} ArrayBatchObject;

static void array_batch_dealloc(PyObject *object)
{
    ArrayBatchObject *self = (ArrayBatchObject *)object;
    Py_XDECREF(self->records);
    Py_XDECREF(self->fields);
    PyMem_Free(self->requests);
    PyMem_Free(self->values);
    free_instance(object);
}

static const uint8_t *batch_record(const ArrayBatchObject *self, Py_ssize_t k)
{
    return self->requests[k].source->map.data + self->requests[k].span.begin;
}

static PyObject *array_batch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", "rows", "fields", NULL};
    const module_state *state = PyType_GetModuleState(type);
    PyObject *records, *rows, *given;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!:ArrayBatch", names, state->records_type, &records, &rows,
                                     state->array_fields_type, &given))
        return NULL;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)given;
    ArrayBatchObject *self = (ArrayBatchObject *)new_instance(type);
    if (!self)
        return NULL;
    self->records = Py_NewRef(records);
    self->fields = Py_NewRef(given);
    self->requests = records_fetch((RecordsObject *)records, rows, &self->n);
    if (!self->requests)
        goto fail;
    self->values = PyMem_Calloc((size_t)(self->n * fields->count) + 1, sizeof *self->values);
    if (!self->values) {
        PyErr_NoMemory();
        goto fail;
    }
    Py_ssize_t k = 0;
    int whole = 1;
    size_t failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; whole && k < self->n; k++) {
        uint64_t size;
        const mds_span span = self->requests[k].span;
        whole = mds_array_record(fields->fields, (size_t)fields->count, batch_record(self, k), span.end - span.begin,
                                 self->values + k * fields->count, &size, &failed);
    }
    Py_END_ALLOW_THREADS
    if (whole)
        return (PyObject *)self;
    const mds_span span = self->requests[k - 1].span;
    PyObject *reason = array_fields_reason(fields, failed, (Py_ssize_t)(span.end - span.begin));
    PyObject *raised = reason ? Py_BuildValue("Nn", reason, k - 1) : NULL;
    if (raised)
        PyErr_SetObject(fields->error, raised);
    Py_XDECREF(raised);
fail:
    Py_DECREF(self);
    return NULL;
}

static Py_ssize_t array_batch_length(PyObject *object)
{
    return ((ArrayBatchObject *)object)->n;
}

static PyObject *batch_view(const ArrayBatchObject *self, Py_ssize_t k)
{
    return records_payload((RecordsObject *)self->records, self->requests[k].source, self->requests[k].span);
}

static PyObject *array_batch_item(PyObject *object, Py_ssize_t k)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    if (k >= 0 && k < self->n)
        return batch_view(self, k);
    PyErr_Format(PyExc_IndexError, "index %zd is out of range for %zd records", k, self->n);
    return NULL;
}

/* The number of a field, from a Python int; -1 with an exception. */
static Py_ssize_t batch_field(const ArrayBatchObject *self, PyObject *key)
{
    const Py_ssize_t f = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (f >= 0 && f < ((ArrayFieldsObject *)self->fields)->count)
        return f;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_IndexError, "field %zd is out of range", f);
    return -1;
}

static PyObject *array_batch_values(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    PyObject *list = f < 0 ? NULL : PyList_New(self->n);
    for (Py_ssize_t k = 0; list && k < self->n; k++) {
        const mds_array_value *value = &self->values[k * fields->count + f];
        PyObject *view = batch_view(self, k);
        PyObject *made = view ? array_value(fields, f, view, (const char *)batch_record(self, k), value) : NULL;
        Py_XDECREF(view);
        if (!made)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, k, made);
    }
    return list;
}

static PyObject *array_batch_shapes(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    const Py_ssize_t f = batch_field(self, key);
    if (f < 0)
        return NULL;
    const size_t size = 8 * fields->fields[f].dims;
    PyObject *shapes = PyBytes_FromStringAndSize(NULL, self->n * (Py_ssize_t)size);
    char *out = shapes ? PyBytes_AsString(shapes) : NULL;
    for (Py_ssize_t k = 0; out && k < self->n; k++)
        memcpy(out + (size_t)k * size, self->values[k * fields->count + f].shape, size);
    return shapes;
}

static PyObject *array_batch_words(PyObject *object, PyObject *key)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    const Py_ssize_t f = batch_field(self, key), count = ((ArrayFieldsObject *)self->fields)->count;
    if (f < 0)
        return NULL;
    PyObject *words = PyByteArray_FromStringAndSize(NULL, 8 * self->n);
    char *out = words ? PyByteArray_AsString(words) : NULL;
    for (Py_ssize_t k = 0; out && k < self->n; k++)
        memcpy(out + 8 * k, &self->values[k * count + f].word, 8);
    return words;
}

/* Where the rows of an array field lie, cut to `longest`; 0 where one has other bytes in a row than `row`. */
static int batch_pieces(const ArrayBatchObject *self, Py_ssize_t f, uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    const ArrayFieldsObject *fields = (ArrayFieldsObject *)self->fields;
    for (Py_ssize_t k = 0; k < self->n; k++) {
        const mds_array_value *value = &self->values[k * fields->count + f];
        const uint64_t rows = value->shape[0], kept = rows < longest ? rows : longest;
        if (rows ? value->size / rows != row || value->size % rows : value->size != 0)
            return 0;
        const uint8_t *data = batch_record(self, k) + value->begin + (left ? (rows - kept) * row : 0);
        pieces[k] = (mds_piece){data, (size_t)(kept * row)};
    }
    return 1;
}

static PyObject *array_batch_pad(PyObject *object, PyObject *args)
{
    const ArrayBatchObject *self = (ArrayBatchObject *)object;
    PyObject *key, *result = NULL;
    unsigned long long longest, row, fill;
    int left;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "OKpKKw*:pad", &key, &longest, &left, &row, &fill, &out))
        return NULL;
    const Py_ssize_t f = batch_field(self, key);
    const size_t width = self->n ? (size_t)(out.len / self->n) : 0;
    mds_piece *pieces = f < 0 ? NULL : PyMem_Calloc((size_t)self->n + 1, sizeof *pieces);
    if (f >= 0 && !pieces) {
        PyErr_NoMemory();
    } else if (pieces) {
        const mds_array_field *field = &((ArrayFieldsObject *)self->fields)->fields[f];
        const int fits = row == 0 ? width == 0 : longest <= width / row && (size_t)out.len == width * (size_t)self->n;
        if (field->kind != MDS_ARRAY_ITEMS || !field->dims || !fits || !batch_pieces(self, f, longest, left, row, pieces)) {
            PyErr_SetString(PyExc_ValueError, "pad: expected a field of arrays that differ in the first axis alone, and room");
        } else {
            Py_BEGIN_ALLOW_THREADS
            mds_pad_rows(pieces, (size_t)self->n, width, fill, out.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    PyMem_Free(pieces);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef array_batch_methods[] = {
    {"values", array_batch_values, METH_O, "values(field) -> list of a field's values, as in the dicts of ArrayFields"},
    {"words", array_batch_words, METH_O, "words(field) -> 64 bits a record: its number, or its size"},
    {"shapes", array_batch_shapes, METH_O, "shapes(field) -> u64 for each axis of each array"},
    {"pad", array_batch_pad, METH_VARARGS,
     "pad(field, longest, left, row, fill, out): write arrays of `row` bytes an entry into equal rows of `out`"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_batch_slots[] = {
    {Py_tp_doc, "Records of named arrays, found and measured; an item is the payload of one."},
    {Py_tp_new, array_batch_new},
    {Py_tp_dealloc, array_batch_dealloc},
    {Py_tp_methods, array_batch_methods},
    {Py_sq_length, array_batch_length},
    {Py_sq_item, array_batch_item},
    {0, NULL},
};

static PyType_Spec array_batch_spec = {"mmapds._native.ArrayBatch", sizeof(ArrayBatchObject), 0, Py_TPFLAGS_DEFAULT,
                                       array_batch_slots};

/* ---- Permutation --------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    mds_permutation permutation;
} PermutationObject;

static PyObject *permutation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"n", "seed", "epoch", "stream", NULL};
    unsigned long long n, seed, epoch, stream;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKKK:Permutation", names, &n, &seed, &epoch, &stream))
        return NULL;
    if (n < 1 || n > INT64_MAX) {
        PyErr_Format(PyExc_ValueError, "n = %llu, expected 1 <= n < 2^63", n);
        return NULL;
    }
    PermutationObject *self = (PermutationObject *)new_instance(type);
    if (self)
        mds_permutation_init(&self->permutation, n, seed, epoch, stream);
    return (PyObject *)self;
}

static int in_domain(const mds_permutation *p, int64_t value)
{
    if ((uint64_t)value < p->n)
        return 1;
    PyErr_Format(PyExc_IndexError, "%lld is out of range for a permutation of %llu", (long long)value,
                 (unsigned long long)p->n);
    return 0;
}

static PyObject *permutation_one(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    long long value;
    int inverse;
    if (!PyArg_ParseTuple(args, "Lp:one", &value, &inverse) || !in_domain(p, value))
        return NULL;
    const uint64_t result = inverse ? mds_permute_inverse(p, (uint64_t)value) : mds_permute(p, (uint64_t)value);
    return PyLong_FromUnsignedLongLong(result);
}

static PyObject *permutation_range(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    long long first, step;
    PyObject *target;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "LLO:range", &first, &step, &target) ||
        get_words(target, PyBUF_WRITABLE, &out, "out") != 0)
        return NULL;
    const int64_t count = out.len / 8;
    int64_t distance, last = first;
    int fits = 1;
    if (count) {
        fits = !__builtin_mul_overflow(count - 1, (int64_t)step, &distance) &&
               !__builtin_add_overflow((int64_t)first, distance, &last) && in_domain(p, first) && in_domain(p, last);
        if (fits) {
            Py_BEGIN_ALLOW_THREADS
            mds_permute_range(kernels, p, (uint64_t)first, step, (size_t)count, out.buf);
            Py_END_ALLOW_THREADS
        } else if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_OverflowError, "range ends outside 64 bits");
        }
    }
    PyBuffer_Release(&out);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *permutation_array(PyObject *self, PyObject *args)
{
    const mds_permutation *p = &((PermutationObject *)self)->permutation;
    PyObject *source, *target;
    int inverse, ok = 1;
    Py_buffer in, out;
    if (!PyArg_ParseTuple(args, "OOp:array", &source, &target, &inverse) ||
        get_words(source, PyBUF_SIMPLE, &in, "positions") != 0)
        return NULL;
    if (get_words(target, PyBUF_WRITABLE, &out, "out") != 0) {
        PyBuffer_Release(&in);
        return NULL;
    }
    const int64_t *values = in.buf;
    const Py_ssize_t count = in.len / 8;
    if (in.len != out.len) {
        PyErr_SetString(PyExc_ValueError, "positions and out differ in size");
        ok = 0;
    }
    for (Py_ssize_t k = 0; ok && k < count; k++)
        ok = (uint64_t)values[k] < p->n ? 1 : in_domain(p, values[k]);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        mds_permute_array(kernels, p, values, (size_t)count, inverse, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef permutation_methods[] = {
    {"one", permutation_one, METH_VARARGS, "one(value, inverse) -> int"},
    {"range", permutation_range, METH_VARARGS, "range(first, step, out): out[k] = p[first + k * step]"},
    {"array", permutation_array, METH_VARARGS, "array(positions, out, inverse): out[k] = p[positions[k]]"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot permutation_slots[] = {
    {Py_tp_doc, "A keyed permutation of [0, n) over int64 buffers."},
    {Py_tp_new, permutation_new},
    {Py_tp_dealloc, free_instance},
    {Py_tp_methods, permutation_methods},
    {0, NULL},
};

static PyType_Spec permutation_spec = {"mmapds._native.Permutation", sizeof(PermutationObject), 0, Py_TPFLAGS_DEFAULT,
                                       permutation_slots};

/* ---- orders -------------------------------------------------------------------------------------------- */

/* Several buffers of 64-bit words, released together. */
typedef struct {
    Py_buffer views[16];
    int count;
} words;

static void release_words(words *all)
{
    while (all->count)
        PyBuffer_Release(&all->views[--all->count]);
}

/* The next buffer, NULL with an exception when it is none, or not of `entries` entries (< 0: any number). */
static void *take_words(words *all, PyObject *object, int flags, Py_ssize_t entries, const char *what)
{
    Py_buffer *view = &all->views[all->count];
    if (get_words(object, flags, view, what) != 0)
        return NULL;
    all->count++;
    if (entries < 0 || view->len == entries * 8)
        return view->buf;
    PyErr_Format(PyExc_ValueError, "%s: found %zd entries, expected %zd", what, view->len / 8, entries);
    return NULL;
}

static Py_ssize_t last_entries(const words *all)
{
    return all->views[all->count - 1].len / 8;
}

/* Positions to read and where to write records; -1 unless all positions lie in [0, limit). */
static int take_positions(words *all, PyObject *source, PyObject *target, uint64_t limit, const int64_t **positions,
                          int64_t **out, size_t *count)
{
    *positions = take_words(all, source, PyBUF_SIMPLE, -1, "positions");
    if (!*positions)
        return -1;
    *count = (size_t)last_entries(all);
    *out = take_words(all, target, PyBUF_WRITABLE, (Py_ssize_t)*count, "out");
    if (!*out)
        return -1;
    for (size_t k = 0; k < *count; k++) {
        if ((uint64_t)(*positions)[k] >= limit) {
            PyErr_Format(PyExc_IndexError, "position %lld is out of range for an epoch of %llu",
                         (long long)(*positions)[k], (unsigned long long)limit);
            return -1;
        }
    }
    return 0;
}

static PyObject *draw(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long n, seed, epoch;
    PyObject *source, *target, *result = NULL;
    const int64_t *positions;
    int64_t *out;
    size_t count;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "KKKOO:draw", &n, &seed, &epoch, &source, &target))
        return NULL;
    if (n < 1 || n > INT64_MAX) {
        PyErr_SetString(PyExc_ValueError, "n: expected 1 or more, below 2^63");
        return NULL;
    }
    if (take_positions(&all, source, target, INT64_MAX, &positions, &out, &count) == 0) {
        Py_BEGIN_ALLOW_THREADS
        const uint64_t key = mds_key(seed, epoch, 0);
        for (size_t k = 0; k < count; k++)
            out[k] = (int64_t)mds_draw(key, (uint64_t)positions[k], n);
        Py_END_ALLOW_THREADS
        result = Py_NewRef(Py_None);
    }
    release_words(&all);
    return result;
}

static PyObject *chunks_at(PyObject *module, PyObject *args)
{
    unsigned long long chunk_size, mix_chunks, seed, epoch;
    PyObject *first_chunk, *first_record, *ends, *slots, *missing, *source, *target, *order, *result = NULL;
    const int64_t *positions;
    int64_t *out;
    size_t count;
    words all = {.count = 0};
    const module_state *state = PyModule_GetState(module);
    if (!PyArg_ParseTuple(args, "KKKKOOOOOO!OO:chunks_at", &chunk_size, &mix_chunks, &seed, &epoch, &first_chunk,
                          &first_record, &slots, &ends, &missing, state->permutation_type, &order, &source, &target))
        return NULL;
    mds_chunks c = {.chunk_size = chunk_size, .mix_chunks = mix_chunks, .seed = seed, .epoch = epoch};
    if (!(c.first_chunk = take_words(&all, first_chunk, PyBUF_SIMPLE, -1, "first_chunk")))
        goto done;
    if (chunk_size < 1 || mix_chunks < 1 || last_entries(&all) < 2) {
        PyErr_SetString(PyExc_ValueError, "expected a chunk size, a mix and a source of 1 or more");
        goto done;
    }
    c.sources = (size_t)last_entries(&all) - 1;
    c.chunks = c.first_chunk[c.sources];
    if (!(c.first_record = take_words(&all, first_record, PyBUF_SIMPLE, (Py_ssize_t)c.sources + 1, "first_record")) ||
        !(c.short_slots = take_words(&all, slots, PyBUF_SIMPLE, -1, "short_slots")))
        goto done;
    c.short_chunks = (size_t)last_entries(&all);
    if (!(c.short_ends = take_words(&all, ends, PyBUF_SIMPLE, (Py_ssize_t)c.short_chunks, "short_ends")) ||
        !(c.short_missing = take_words(&all, missing, PyBUF_SIMPLE, (Py_ssize_t)c.short_chunks + 1, "short_missing")) ||
        take_positions(&all, source, target, c.first_record[c.sources], &positions, &out, &count) != 0)
        goto done;
    const mds_permutation *chunks = &((PermutationObject *)order)->permutation;
    if (chunks->n != c.chunks) {
        PyErr_SetString(PyExc_ValueError, "order: expected a permutation of the chunks");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    mds_chunks_at(kernels, &c, chunks, positions, count, out);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release_words(&all);
    return result;
}

static PyObject *mixture_period(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *weights, *which, *rank, *result = NULL;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OO!O!:mixture_period", &weights, &PyByteArray_Type, &which, &PyByteArray_Type, &rank))
        return NULL;
    const uint64_t *w = take_words(&all, weights, PyBUF_SIMPLE, -1, "weights");
    if (w) {
        const size_t members = (size_t)last_entries(&all);
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
    release_words(&all);
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
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "KKpOOOO!O!OO:mixture_at", &seed, &epoch, &shuffle, &weights, &sizes, &firsts,
                          &PyByteArray_Type, &which, &PyByteArray_Type, &rank, &source, &target))
        return NULL;
    mds_mixture m = {.seed = seed, .epoch = epoch, .shuffle = shuffle};
    if (!(m.weights = take_words(&all, weights, PyBUF_SIMPLE, -1, "weights")))
        goto done;
    m.members = (size_t)last_entries(&all);
    if (!(m.sizes = take_words(&all, sizes, PyBUF_SIMPLE, (Py_ssize_t)m.members, "sizes")) ||
        !(m.first_record = take_words(&all, firsts, PyBUF_SIMPLE, (Py_ssize_t)m.members, "first_record")) ||
        take_positions(&all, source, target, INT64_MAX, &positions, &out, &count) != 0)
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
    release_words(&all);
    return result;
}

/* ---- gathering ----------------------------------------------------------------------------------------- */

/* Borrow the memory of every array in `list`; *held counts the views to be released, also after a failure. */
static int take_pieces(PyObject *list, const Py_buffer *out, size_t width, Py_buffer *views, mds_piece *pieces,
                       Py_ssize_t count, Py_ssize_t *held)
{
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *array = PyList_GetItem(list, k);
        if (!array || PyObject_GetBuffer(array, &views[k], PyBUF_SIMPLE) != 0)
            return -1;
        *held = k + 1;
        if (views[k].itemsize != out->itemsize || (size_t)views[k].len > width) {
            PyErr_Format(PyExc_ValueError,
                         "arrays[%zd]: found %zd bytes in items of %zd, expected at most %zu in items of %zd", k,
                         views[k].len, views[k].itemsize, width, out->itemsize);
            return -1;
        }
        pieces[k] = (mds_piece){views[k].buf, (size_t)views[k].len};
    }
    return 0;
}

static PyObject *pad_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *result = NULL;
    unsigned long long fill;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "O!Kw*:pad_rows", &PyList_Type, &list, &fill, &out))
        return NULL;
    const Py_ssize_t count = PyList_Size(list), item = out.itemsize;
    Py_ssize_t held = 0;
    Py_buffer *views = PyMem_Calloc((size_t)count + 1, sizeof *views);
    mds_piece *pieces = PyMem_Calloc((size_t)count + 1, sizeof *pieces);
    if (!views || !pieces) {
        PyErr_NoMemory();
    } else if (count == 0 || item < 1 || 8 % item != 0 || out.len % (count * item) != 0) {
        PyErr_Format(PyExc_ValueError,
                     "out: found %zd bytes in items of %zd, expected %zd equal rows in items of 1, 2, 4 or 8", out.len,
                     item, count);
    } else {
        const size_t width = (size_t)(out.len / count);
        if (take_pieces(list, &out, width, views, pieces, count, &held) == 0) {
            Py_BEGIN_ALLOW_THREADS
            mds_pad_rows(pieces, (size_t)count, width, fill, out.buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
    }
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    PyMem_Free(views);
    PyMem_Free(pieces);
    PyBuffer_Release(&out);
    return result;
}

/* ---- scanning ------------------------------------------------------------------------------------------ */

static PyObject *scanned(size_t count, const mds_lines *state)
{
    PyObject *pending = state->pending == MDS_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(state->pending);
    return pending ? Py_BuildValue("nNK", (Py_ssize_t)count, pending, (unsigned long long)state->newlines) : NULL;
}

/* An offset, or None for MDS_NONE. */
static int parse_offset(PyObject *object, uint64_t *offset)
{
    *offset = object == Py_None ? MDS_NONE : PyLong_AsUnsignedLongLong(object);
    return PyErr_Occurred() ? -1 : 0;
}

static int check_capacity(const Py_buffer *starts, uint64_t n)
{
    if ((uint64_t)starts->len / 8 >= MDS_LINES_CAPACITY(n))
        return 0;
    PyErr_Format(PyExc_ValueError, "starts has room for %zd records, expected %llu", starts->len / 8,
                 (unsigned long long)MDS_LINES_CAPACITY(n));
    return -1;
}

static PyObject *scan_lines(PyObject *Py_UNUSED(module), PyObject *args)
{
    int fd;
    unsigned long long begin, end;
    PyObject *pending, *target;
    mds_lines state = {MDS_NONE, 0};
    Py_buffer starts, scratch;
    if (!PyArg_ParseTuple(args, "iKKOOw*:scan_lines", &fd, &begin, &end, &pending, &target, &scratch))
        return NULL;
    PyObject *result = NULL;
    if (begin > end) {
        PyErr_SetString(PyExc_ValueError, "begin is beyond end");
    } else if (parse_offset(pending, &state.pending) == 0 && get_words(target, PyBUF_WRITABLE, &starts, "starts") == 0) {
        if (check_capacity(&starts, end - begin) == 0) {
            size_t count;
            mds_status status;
            Py_BEGIN_ALLOW_THREADS
            status = mds_lines_scan_file(kernels, fd, begin, end, scratch.buf, (size_t)scratch.len, &state, starts.buf,
                                         &count);
            Py_END_ALLOW_THREADS
            if (status == MDS_OK)
                result = scanned(count, &state);
            else if (status == MDS_SHRANK)
                PyErr_SetString(PyExc_EOFError, "the file became shorter while it was read");
            else
                PyErr_SetFromErrno(PyExc_OSError);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&scratch);
    return result;
}

static PyObject *scan_buffer(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    Py_buffer data, starts;
    unsigned long long base;
    PyObject *pending, *target;
    mds_lines state = {MDS_NONE, 0};
    if (!PyArg_ParseTuple(args, "zy*KOO:scan_buffer", &variant, &data, &base, &pending, &target))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = find_kernels(variant);
    if (chosen && parse_offset(pending, &state.pending) == 0 && get_words(target, PyBUF_WRITABLE, &starts, "starts") == 0) {
        if (check_capacity(&starts, (uint64_t)data.len) == 0) {
            const size_t count = mds_lines_scan(chosen, data.buf, (size_t)data.len, base, &state, starts.buf);
            result = scanned(count, &state);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *record_sizes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *before;
    unsigned long long smallest, largest;
    uint64_t previous;
    Py_buffer starts;
    if (!PyArg_ParseTuple(args, "OOKK:record_sizes", &source, &before, &smallest, &largest) ||
        parse_offset(before, &previous) != 0 || get_words(source, PyBUF_SIMPLE, &starts, "starts") != 0)
        return NULL;
    uint64_t low = smallest, high = largest;
    mds_record_sizes(starts.buf, (size_t)starts.len / 8, previous, &low, &high);
    PyBuffer_Release(&starts);
    return Py_BuildValue("KK", (unsigned long long)low, (unsigned long long)high);
}

/* ---- plans --------------------------------------------------------------------------------------------- */

/* A buffer of `entries` (< 0: any number) unsigned integers of `width` bytes, 4 or 8; NULL with an exception. */
static void *take_numbers(words *all, PyObject *object, int flags, unsigned width, Py_ssize_t entries, const char *what)
{
    Py_buffer *view = &all->views[all->count];
    if (width != 4 && width != 8) {
        PyErr_SetString(PyExc_ValueError, "width: expected 4 or 8");
        return NULL;
    }
    if (PyObject_GetBuffer(object, view, flags) != 0)
        return NULL;
    all->count++;
    const int is_aligned = view->len == 0 || (uintptr_t)view->buf % width == 0;
    if (view->len % width == 0 && is_aligned && (entries < 0 || view->len / width == entries))
        return view->buf;
    PyErr_Format(PyExc_ValueError, "%s: expected aligned integers of %u bytes, and %zd of them", what, width, entries);
    return NULL;
}

static PyObject *lengths_largest(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source;
    unsigned width;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OI:lengths_largest", &source, &width))
        return NULL;
    PyObject *result = NULL;
    const void *lengths = take_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths");
    if (lengths) {
        uint64_t largest;
        const size_t n = (size_t)all.views[0].len / width;
        Py_BEGIN_ALLOW_THREADS
        largest = mds_lengths_largest(lengths, width, n);
        Py_END_ALLOW_THREADS
        result = PyLong_FromUnsignedLongLong(largest);
    }
    release_words(&all);
    return result;
}

static PyObject *lengths_sort(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *counters, *from, *target, *result = NULL;
    unsigned width, order_width, shift;
    int digits;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OIIpOOOI:lengths_sort", &source, &width, &shift, &digits, &counters, &from, &target,
                          &order_width))
        return NULL;
    const void *lengths = take_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths"), *in = NULL;
    if (!lengths)
        goto done;
    const Py_ssize_t n = all.views[0].len / (Py_ssize_t)width;
    uint64_t *counts = take_words(&all, counters, PyBUF_WRITABLE, -1, "counts");
    if (!counts)
        goto done;
    const uint64_t size = (uint64_t)last_entries(&all);
    if (size < 1 || shift > 63 || (digits && (size & (size - 1)))) {
        PyErr_SetString(PyExc_ValueError, "counts: expected some, and a power of two for digits");
        goto done;
    }
    void *out = take_numbers(&all, target, PyBUF_WRITABLE, order_width, n, "order");
    if (!out || (from != Py_None && !(in = take_numbers(&all, from, PyBUF_SIMPLE, order_width, n, "previous order"))))
        goto done;
    int fits = 1;
    Py_BEGIN_ALLOW_THREADS
    /* Numbers that come from elsewhere are checked here, once, so that the sort itself need not. */
    fits = digits || mds_lengths_largest(lengths, width, (size_t)n) < size;
    if (fits && in)
        fits = n == 0 || mds_lengths_largest(in, order_width, (size_t)n) < (uint64_t)n;
    if (fits)
        mds_lengths_sort(lengths, width, (size_t)n, shift, digits ? size - 1 : UINT64_MAX, size, counts, in, out,
                         order_width);
    Py_END_ALLOW_THREADS
    if (fits)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "a length has no counter, or a record number is out of range");
done:
    release_words(&all);
    return result;
}

static PyObject *two_arrays(const uint64_t *first, const uint64_t *second, size_t n)
{
    return Py_BuildValue("y#y#", (const char *)first, (Py_ssize_t)(n * 8), (const char *)second, (Py_ssize_t)(n * 8));
}

static PyObject *lengths_runs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *sorted, *result = NULL;
    unsigned width, order_width;
    uint64_t *values = NULL;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "OIOI:lengths_runs", &source, &width, &sorted, &order_width))
        return NULL;
    const void *lengths = take_numbers(&all, source, PyBUF_SIMPLE, width, -1, "lengths"), *order = NULL;
    const Py_ssize_t n = lengths ? all.views[0].len / (Py_ssize_t)width : 0;
    if (!lengths || !(order = take_numbers(&all, sorted, PyBUF_SIMPLE, order_width, n, "order")))
        goto done;
    if (n && mds_lengths_largest(order, order_width, (size_t)n) >= (uint64_t)n) {
        PyErr_SetString(PyExc_ValueError, "order: a record number is out of range");
        goto done;
    }
    size_t runs;
    Py_BEGIN_ALLOW_THREADS
    runs = mds_lengths_runs(lengths, width, order, order_width, (size_t)n, NULL, NULL);
    Py_END_ALLOW_THREADS
    values = PyMem_Calloc(2 * runs + 1, sizeof *values);
    if (!values) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    mds_lengths_runs(lengths, width, order, order_width, (size_t)n, values, values + runs);
    Py_END_ALLOW_THREADS
    result = two_arrays(values, values + runs, runs);
done:
    PyMem_Free(values);
    release_words(&all);
    return result;
}

/* From where runs end, the longest first, to the lengths there are and how many of each. */
static PyObject *lengths_runs_of(PyObject *Py_UNUSED(module), PyObject *source)
{
    Py_buffer ends;
    if (get_words(source, PyBUF_SIMPLE, &ends, "ends") != 0)
        return NULL;
    const size_t n = (size_t)ends.len / 8;
    uint64_t *values = PyMem_Calloc(2 * n + 1, sizeof *values);
    PyObject *result = values ? two_arrays(values, values + n, mds_runs_of(ends.buf, n, values, values + n))
                              : PyErr_NoMemory();
    PyMem_Free(values);
    PyBuffer_Release(&ends);
    return result;
}

static PyObject *plan_buckets(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long tokens, largest, multiple, quadratic, wanted;
    int close;
    PyObject *lengths, *numbers, *result = NULL;
    mds_bucket *buckets = NULL;
    words all = {.count = 0};
    if (!PyArg_ParseTuple(args, "(KKKK)OOKp:plan_buckets", &tokens, &largest, &multiple, &quadratic, &lengths, &numbers,
                          &wanted, &close))
        return NULL;
    const mds_budget budget = {tokens, largest, multiple, quadratic};
    const uint64_t *values = take_words(&all, lengths, PyBUF_SIMPLE, -1, "values"), *counts = NULL;
    const Py_ssize_t distinct = values ? last_entries(&all) : 0;
    if (!values || !(counts = take_words(&all, numbers, PyBUF_SIMPLE, distinct, "counts")))
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
    release_words(&all);
    return result;
}

/* Buckets that follow one another, as mds_plan_buckets makes them; -1 with an exception. */
static int take_buckets(words *all, PyObject *object, const mds_bucket **buckets, size_t *count, uint64_t *batches,
                        uint64_t *ranks)
{
    *buckets = take_words(all, object, PyBUF_SIMPLE, -1, "buckets");
    if (!*buckets)
        return -1;
    *count = (size_t)last_entries(all) / 4;
    *batches = *ranks = 0;
    int sane = *count > 0 && last_entries(all) % 4 == 0;
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

static int take_plan(words *all, PyObject *args, PyObject **first, PyObject **second, PyObject **third, mds_plan *plan,
                     uint64_t *batches)
{
    PyObject *buckets, *order;
    unsigned long long first_rank, records, seed, epoch;
    if (!PyArg_ParseTuple(args, "OOIKKKKpOO|O", &buckets, &order, &plan->order_width, &first_rank, &records, &seed,
                          &epoch, &plan->shuffle, first, second, third) ||
        take_buckets(all, buckets, &plan->buckets, &plan->count, batches, &plan->ranks) != 0 ||
        !(plan->order = take_numbers(all, order, PyBUF_SIMPLE, plan->order_width, -1, "order")))
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
    words all = {.count = 0};
    const int64_t *wanted;
    int64_t *records, *ends;
    size_t n;
    if (take_plan(&all, args, &numbers, &target, &bounds, &plan, &batches) != 0)
        goto done;
    if (!bounds) {
        PyErr_SetString(PyExc_TypeError, "plan_batches() needs ends");
        goto done;
    }
    if (take_positions(&all, numbers, bounds, batches, &wanted, &ends, &n) != 0 ||
        !(records = take_words(&all, target, PyBUF_WRITABLE, -1, "records")))
        goto done;
    const size_t capacity = (size_t)last_entries(&all);
    mds_status status;
    Py_BEGIN_ALLOW_THREADS
    status = mds_plan_batches(kernels, &plan, wanted, n, records, capacity, ends);
    Py_END_ALLOW_THREADS
    if (status == MDS_OK)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "the length order holds what is no record");
done:
    release_words(&all);
    return result;
}

static PyObject *plan_find(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *target, *unused = NULL, *result = NULL;
    mds_plan plan;
    uint64_t batches;
    words all = {.count = 0};
    const int64_t *ranks;
    int64_t *out;
    size_t n;
    if (take_plan(&all, args, &source, &target, &unused, &plan, &batches) == 0 &&
        take_positions(&all, source, target, plan.ranks, &ranks, &out, &n) == 0) {
        mds_plan_find(&plan, ranks, n, out);
        result = Py_NewRef(Py_None);
    }
    release_words(&all);
    return result;
}

static PyObject *stream_push(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *o_buckets, *o_lengths, *o_values, *o_first, *o_splits, *o_table, *o_taken, *o_open, *o_open_first;
    PyObject *o_records, *o_out, *o_ends, *result = NULL;
    mds_stream s;
    uint64_t batches, ranks;
    words all = {.count = 0};
    unsigned long long planned;
    if (!PyArg_ParseTuple(args, "OKOIOOOOOOOOOO:stream_push", &o_buckets, &planned, &o_lengths, &s.width, &o_values,
                          &o_first, &o_splits, &o_table, &o_taken, &o_open, &o_open_first, &o_records, &o_out, &o_ends))
        return NULL;
    s.ranks = planned;
    int64_t *records, *out, *ends;
    if (take_buckets(&all, o_buckets, &s.buckets, &s.count, &batches, &ranks) != 0 ||
        !(s.lengths = take_numbers(&all, o_lengths, PyBUF_SIMPLE, s.width, -1, "lengths")))
        goto done;
    s.records = (uint64_t)all.views[all.count - 1].len / s.width;
    if (!(s.values = take_words(&all, o_values, PyBUF_SIMPLE, -1, "values")))
        goto done;
    s.distinct = (size_t)last_entries(&all);
    if (!(s.first_buckets = take_numbers(&all, o_first, PyBUF_SIMPLE, 4, (Py_ssize_t)s.distinct, "first buckets")) ||
        !(s.splits = take_words(&all, o_splits, PyBUF_SIMPLE, (Py_ssize_t)s.distinct, "splits")) ||
        !(s.table = take_numbers(&all, o_table, PyBUF_SIMPLE, 4, -1, "table")))
        goto done;
    s.table_size = (size_t)all.views[all.count - 1].len / 4;
    if (!(s.taken = take_words(&all, o_taken, PyBUF_WRITABLE, (Py_ssize_t)s.count, "taken")) ||
        !(s.open_first = take_words(&all, o_open_first, PyBUF_SIMPLE, (Py_ssize_t)s.count + 1, "open_first")) ||
        !(s.open = take_words(&all, o_open, PyBUF_WRITABLE, (Py_ssize_t)s.open_first[s.count], "open")))
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
    if (!(records = take_words(&all, o_records, PyBUF_SIMPLE, -1, "records")))
        goto done;
    const size_t n = (size_t)last_entries(&all);
    if (!(out = take_words(&all, o_out, PyBUF_WRITABLE, -1, "out")))
        goto done;
    const size_t capacity = (size_t)last_entries(&all);
    if (!(ends = take_words(&all, o_ends, PyBUF_WRITABLE, -1, "ends")))
        goto done;
    const size_t most = (size_t)last_entries(&all);
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
    release_words(&all);
    return result;
}

/* ---- columns ------------------------------------------------------------------------------------------- */

#define COLUMNS 64

/* Fields from a sequence of (measure, (key, ...)), keys being bytes that must outlive them; -1 with an exception. */
static Py_ssize_t parse_fields(PyObject *sequence, mds_field *fields)
{
    const Py_ssize_t n = PyTuple_Check(sequence) ? PyTuple_Size(sequence) : -1;
    if (n < 0 || n > COLUMNS) {
        PyErr_Format(PyExc_ValueError, "expected a tuple of up to %d fields", COLUMNS);
        return -1;
    }
    for (Py_ssize_t c = 0; c < n; c++) {
        int measure;
        PyObject *path;
        if (!PyArg_ParseTuple(PyTuple_GetItem(sequence, c), "iO!", &measure, &PyTuple_Type, &path))
            return -1;
        const Py_ssize_t segments = PyTuple_Size(path);
        const int keyless = measure == MDS_MEASURE_RECORD;
        if (measure < 0 || measure > MDS_MEASURE_RECORD || segments > MDS_PATH || (segments < 1) != keyless) {
            PyErr_Format(PyExc_ValueError, "expected a path of 1 to %d keys", MDS_PATH);
            return -1;
        }
        fields[c] = (mds_field){.measure = (mds_measure)measure, .segments = (size_t)segments};
        for (Py_ssize_t k = 0; k < segments; k++) {
            char *key;
            Py_ssize_t size;
            if (PyBytes_AsStringAndSize(PyTuple_GetItem(path, k), &key, &size) != 0)
                return -1;
            fields[c].keys[k] = (const uint8_t *)key;
            fields[c].key_sizes[k] = (size_t)size;
        }
    }
    return n;
}

static PyObject *measure_record(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    PyObject *sequence;
    mds_field fields[COLUMNS];
    mds_number number = {MDS_U64, 0};
    size_t at;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zOy*:measure_record", &variant, &sequence, &data))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = find_kernels(variant);
    const Py_ssize_t n = chosen ? parse_fields(sequence, fields) : -1;
    if (n == 1 && fields[0].segments) {
        const size_t size = (size_t)data.len;
        const mds_json_status status = mds_json_measure(chosen, data.buf, size, size, fields, &number, &at);
        result = Py_BuildValue("iniK", (int)status, (Py_ssize_t)at, (int)number.type, (unsigned long long)number.bits);
    } else if (n >= 0) {
        PyErr_SetString(PyExc_ValueError, "expected one field with a path");
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *json_error(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zy*:json_error", &variant, &data))
        return NULL;
    PyObject *result = NULL;
    size_t at;
    const mds_kernels *chosen = find_kernels(variant);
    if (chosen)
        result = mds_json_valid(chosen, data.buf, (size_t)data.len, &at) ? Py_NewRef(Py_None) : PyLong_FromSize_t(at);
    PyBuffer_Release(&data);
    return result;
}

static PyObject *measure_lines(PyObject *module, PyObject *args)
{
    const module_state *state = PyModule_GetState(module);
    PyObject *map, *pending, *sequence, *target, *cells_list, *result = NULL, *kinds = NULL;
    int missing, validate, fill_type;
    unsigned long long begin, end, fill;
    mds_field fields[COLUMNS];
    uint64_t *cells[COLUMNS];
    mds_number_type types[COLUMNS] = {MDS_U64};
    mds_lines lines = {MDS_NONE, 0};
    mds_measured measured = {.cells = cells, .types = types};
    Py_buffer views[COLUMNS], starts;
    Py_ssize_t opened = 0;
    if (!PyArg_ParseTuple(args, "O!KKOOi(iK)pOO!:measure_lines", state->map_type, &map, &begin, &end, &pending, &sequence,
                          &missing, &fill_type, &fill, &validate, &target, &PyTuple_Type, &cells_list) ||
        parse_offset(pending, &lines.pending) != 0)
        return NULL;
    const Py_ssize_t columns = parse_fields(sequence, fields);
    if (columns < 0 || get_words(target, PyBUF_WRITABLE, &starts, "starts") != 0)
        return NULL;
    const mds_map *source = &((MapObject *)map)->map;
    if (begin > end || end > source->size || PyTuple_Size(cells_list) != columns || missing < 0 ||
        missing > MDS_MISSING_FILL || fill_type < 0 || fill_type > MDS_F64) {
        PyErr_SetString(PyExc_ValueError, "expected a block of the map, cells for every field, a way to treat missing ones");
        goto done;
    }
    if (check_capacity(&starts, end - begin) != 0)
        goto done;
    for (; opened < columns; opened++) {
        if (get_words(PyTuple_GetItem(cells_list, opened), PyBUF_WRITABLE, &views[opened], "cells") != 0)
            goto done;
        cells[opened] = views[opened].buf;
        if (views[opened].len < starts.len) {
            opened++;
            PyErr_SetString(PyExc_ValueError, "cells: expected as much room as starts have");
            goto done;
        }
    }
    const mds_measuring measuring = {fields, (size_t)columns, (mds_missing)missing,
                                     {(mds_number_type)fill_type, fill}, validate};
    mds_json_status status;
    Py_BEGIN_ALLOW_THREADS
    status = mds_measure_lines(kernels, source, begin, end, &measuring, &lines, starts.buf, &measured);
    Py_END_ALLOW_THREADS
    kinds = PyTuple_New(columns);
    for (Py_ssize_t c = 0; kinds && c < columns; c++)
        PyTuple_SetItem(kinds, c, PyLong_FromLong(types[c]));
    PyObject *found = kinds ? scanned(measured.records, &lines) : NULL;
    if (found)
        result = Py_BuildValue("NnO(iKnK)", found, (Py_ssize_t)measured.kept, kinds, (int)status,
                               (unsigned long long)measured.failed, (Py_ssize_t)measured.column,
                               (unsigned long long)measured.at);
done:
    Py_XDECREF(kinds);
    while (opened)
        PyBuffer_Release(&views[--opened]);
    PyBuffer_Release(&starts);
    return result;
}

static PyObject *cells_convert(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *target;
    int from, to;
    Py_buffer cells;
    if (!PyArg_ParseTuple(args, "Oii:cells_convert", &target, &from, &to) ||
        get_words(target, PyBUF_WRITABLE, &cells, "cells") != 0)
        return NULL;
    mds_cells_convert(cells.buf, (size_t)cells.len / 8, (mds_number_type)from, (mds_number_type)to);
    PyBuffer_Release(&cells);
    Py_RETURN_NONE;
}

/* Two buffers of as many numbers, the first of `width` bytes each, the second of `out_width`; -1 with an exception. */
static int take_pair(words *all, PyObject *args, unsigned width, unsigned out_width, const void **in, void **out)
{
    PyObject *source, *target;
    if (!PyArg_ParseTuple(args, "OO", &source, &target) ||
        !(*in = take_numbers(all, source, PyBUF_SIMPLE, width, -1, "numbers")))
        return -1;
    *out = take_numbers(all, target, PyBUF_WRITABLE, out_width, all->views[0].len / (Py_ssize_t)width, "out");
    return *out ? 0 : -1;
}

static PyObject *cells_narrow(PyObject *Py_UNUSED(module), PyObject *args)
{
    const void *in;
    void *out;
    PyObject *result = NULL;
    words all = {.count = 0};
    if (take_pair(&all, args, 8, 4, &in, &out) == 0) {
        mds_cells_narrow(in, (size_t)all.views[0].len / 8, out);
        result = Py_NewRef(Py_None);
    }
    release_words(&all);
    return result;
}

static PyObject *cells_widen(PyObject *Py_UNUSED(module), PyObject *args)
{
    const void *in;
    void *out;
    PyObject *result = NULL;
    words all = {.count = 0};
    if (take_pair(&all, args, 4, 8, &in, &out) == 0) {
        mds_cells_widen(in, (size_t)all.views[0].len / 4, out);
        result = Py_NewRef(Py_None);
    }
    release_words(&all);
    return result;
}

static PyObject *cells_largest(PyObject *Py_UNUSED(module), PyObject *source)
{
    Py_buffer cells;
    if (get_words(source, PyBUF_SIMPLE, &cells, "cells") != 0)
        return NULL;
    const uint64_t largest = mds_cells_largest(cells.buf, (size_t)cells.len / 8);
    PyBuffer_Release(&cells);
    return PyLong_FromUnsignedLongLong(largest);
}

/* ---- frames -------------------------------------------------------------------------------------------- */

static PyObject *frames_scan(PyObject *module, PyObject *args)
{
    const module_state *state = PyModule_GetState(module);
    PyObject *map, *target, *sizes_target;
    int framing;
    unsigned long long at, end;
    Py_buffer starts, sizes = {.buf = NULL};
    if (!PyArg_ParseTuple(args, "O!iKKOO:frames_scan", state->map_type, &map, &framing, &at, &end, &target,
                          &sizes_target) ||
        get_words(target, PyBUF_WRITABLE, &starts, "starts") != 0)
        return NULL;
    PyObject *result = NULL;
    if (sizes_target != Py_None && get_words(sizes_target, PyBUF_WRITABLE, &sizes, "sizes") != 0) {
        PyBuffer_Release(&starts);
        return NULL;
    }
    mds_frames frames = {.at = at};
    mds_frames_status status;
    size_t count;
    if (sizes.buf && sizes.len < starts.len) {
        PyErr_SetString(PyExc_ValueError, "sizes: expected as much room as starts have");
    } else {
        Py_BEGIN_ALLOW_THREADS
        status = mds_frames_scan(kernels, &((MapObject *)map)->map, (mds_framing)framing, end, &frames, starts.buf,
                                 sizes.buf, (size_t)starts.len / 8, &count);
        Py_END_ALLOW_THREADS
        if (status == MDS_FRAMES_NO_FRAMING)
            PyErr_Format(PyExc_ValueError, "framing %d is not one of frames", framing);
        else
            result = Py_BuildValue("nKiKII", (Py_ssize_t)count, (unsigned long long)frames.at, (int)status,
                                   (unsigned long long)frames.payload, frames.found, frames.expected);
    }
    if (sizes.buf)
        PyBuffer_Release(&sizes);
    PyBuffer_Release(&starts);
    return result;
}

static PyObject *frames_verify(PyObject *module, PyObject *args)
{
    const module_state *state = PyModule_GetState(module);
    PyObject *map;
    unsigned long long at, end;
    if (!PyArg_ParseTuple(args, "O!KK:frames_verify", state->map_type, &map, &at, &end))
        return NULL;
    mds_frames frames = {.at = at};
    mds_frames_status status;
    uint64_t count;
    Py_BEGIN_ALLOW_THREADS
    status = mds_frames_verify(kernels, &((MapObject *)map)->map, end, &frames, &count);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("KKiKII", (unsigned long long)count, (unsigned long long)frames.at, (int)status,
                         (unsigned long long)frames.payload, frames.found, frames.expected);
}

static PyObject *varints(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "y*nn:varints", &data, &begin, &end))
        return NULL;
    PyObject *result = NULL;
    if (begin < 0 || begin > end || end > data.len) {
        PyErr_Format(PyExc_ValueError, "bytes %zd to %zd of %zd", begin, end, data.len);
    } else {
        const uint8_t *bytes = (const uint8_t *)data.buf + begin;
        const size_t n = (size_t)(end - begin);
        size_t at;
        result = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)mds_varints_count(bytes, n) * 8);
        if (result && mds_varints_read(bytes, n, (uint64_t *)PyByteArray_AsString(result), &at) != MDS_OK) {
            PyErr_Format(PyExc_ValueError, "byte %zd: an integer that does not end", begin + (Py_ssize_t)at);
            Py_CLEAR(result);
        }
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *crc32c(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *variant;
    unsigned int crc;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "zIy*:crc32c", &variant, &crc, &data))
        return NULL;
    PyObject *result = NULL;
    const mds_kernels *chosen = find_kernels(variant);
    if (chosen)
        result = PyLong_FromUnsignedLong(mds_crc32c(chosen, crc, data.buf, (size_t)data.len));
    PyBuffer_Release(&data);
    return result;
}

static PyObject *simd_variants(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && mds_kernels_at(i); i++) {
        PyObject *name = PyUnicode_FromString(mds_kernels_name(mds_kernels_at(i)));
        if (!name || PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* ---- the module ---------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"scan_lines", scan_lines, METH_VARARGS,
     "scan_lines(fd, begin, end, pending, starts, scratch) -> (count, pending, newlines)"},
    {"scan_buffer", scan_buffer, METH_VARARGS,
     "scan_buffer(variant, data, base, pending, starts) -> (count, pending, newlines)"},
    {"draw", draw, METH_VARARGS, "draw(n, seed, epoch, positions, out): uniform records, with replacement"},
    {"chunks_at", chunks_at, METH_VARARGS,
     "chunks_at(chunk_size, mix_chunks, seed, epoch, first_chunk, first_record, short_slots, short_ends, "
     "short_missing, order, positions, out)"},
    {"mixture_period", mixture_period, METH_VARARGS, "mixture_period(weights, which, rank): fill a period of uint32"},
    {"mixture_at", mixture_at, METH_VARARGS,
     "mixture_at(seed, epoch, shuffle, weights, sizes, first_record, which, rank, positions, out)"},
    {"pad_rows", pad_rows, METH_VARARGS,
     "pad_rows(arrays, fill, out): every row of out is an array and then the 8 bytes of fill, repeated to its end"},
    {"record_sizes", record_sizes, METH_VARARGS,
     "record_sizes(starts, previous, smallest, largest) -> (smallest, largest), widened"},
    {"measure_record", measure_record, METH_VARARGS,
     "measure_record(variant, (field,), data) -> (status, at, type, bits)"},
    {"json_error", json_error, METH_VARARGS, "json_error(variant, data) -> where data is not JSON, or None"},
    {"measure_lines", measure_lines, METH_VARARGS,
     "measure_lines(map, begin, end, pending, fields, missing, fill, validate, starts, cells) -> "
     "((records, pending, newlines), kept, types, (status, failed, column, at))"},
    {"frames_scan", frames_scan, METH_VARARGS,
     "frames_scan(map, framing, at, end, starts, sizes) -> (count, at, status, payload, found, expected)"},
    {"frames_verify", frames_verify, METH_VARARGS,
     "frames_verify(map, at, end) -> (count, at, status, payload, found, expected): all CRCs of TFRecords"},
    {"varints", varints, METH_VARARGS, "varints(data, begin, end) -> the varints there, as a bytearray of 64-bit words"},
    {"crc32c", crc32c, METH_VARARGS, "crc32c(variant, crc, data) -> the CRC32C of what had crc, followed by data"},
    {"cells_convert", cells_convert, METH_VARARGS, "cells_convert(cells, from, to): as another type, in place"},
    {"cells_narrow", cells_narrow, METH_VARARGS, "cells_narrow(cells, out): as 32-bit integers"},
    {"cells_widen", cells_widen, METH_VARARGS, "cells_widen(numbers, cells): 32-bit integers as 64-bit ones"},
    {"cells_largest", cells_largest, METH_O, "cells_largest(cells) -> int, as unsigned integers"},
    {"lengths_largest", lengths_largest, METH_VARARGS, "lengths_largest(lengths, width) -> int"},
    {"lengths_sort", lengths_sort, METH_VARARGS,
     "lengths_sort(lengths, width, shift, digits, counts, previous, order, order_width): a stable pass, largest first"},
    {"lengths_runs", lengths_runs, METH_VARARGS, "lengths_runs(lengths, width, order, order_width) -> (values, counts)"},
    {"lengths_runs_of", lengths_runs_of, METH_O, "lengths_runs_of(ends) -> (values, counts)"},
    {"plan_buckets", plan_buckets, METH_VARARGS,
     "plan_buckets((tokens, largest, multiple, quadratic), values, counts, wanted, close) -> buckets"},
    {"plan_batches", plan_batches, METH_VARARGS,
     "plan_batches(buckets, order, order_width, first_rank, records, seed, epoch, shuffle, batches, out, ends)"},
    {"plan_find", plan_find, METH_VARARGS,
     "plan_find(buckets, order, order_width, first_rank, records, seed, epoch, shuffle, ranks, batches)"},
    {"stream_push", stream_push, METH_VARARGS,
     "stream_push(buckets, ranks, lengths, width, values, first_buckets, splits, table, taken, open, open_first, records, out, "
     "ends) -> (consumed, emitted)"},
    {"tar_members", tar_members, METH_VARARGS,
     "tar_members(record, limit) -> (status, at, key, [(extension, begin, end), ...])"},
    {"tar_hash", tar_hash, METH_VARARGS, "tar_hash(key) -> int of 32 bits"},
    {"simd_variants", simd_variants, METH_NOARGS, "Names of the SIMD variants this machine can run, best first."},
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    int value;
} constants[] = {
    {"FRAMING_NONE", MDS_FRAMING_NONE},
    {"FRAMING_LINES", MDS_FRAMING_LINES},
    {"FRAMING_FIRST_LINE", MDS_FRAMING_FIRST_LINE},
    {"FRAMING_U32LE", MDS_FRAMING_U32LE},
    {"FRAMING_U32BE", MDS_FRAMING_U32BE},
    {"FRAMING_U64LE", MDS_FRAMING_U64LE},
    {"FRAMING_U64BE", MDS_FRAMING_U64BE},
    {"FRAMING_VARINT", MDS_FRAMING_VARINT},
    {"FRAMING_TFRECORD", MDS_FRAMING_TFRECORD},
    {"MEASURE_NUMBER", MDS_MEASURE_NUMBER},
    {"MEASURE_BYTES", MDS_MEASURE_BYTES},
    {"MEASURE_CHARS", MDS_MEASURE_CHARS},
    {"MEASURE_ITEMS", MDS_MEASURE_ITEMS},
    {"MEASURE_RECORD", MDS_MEASURE_RECORD},
    {"LONGEST_PATH", MDS_PATH},
    {"MOST_COLUMNS", COLUMNS},
    {"MISSING_ERROR", MDS_MISSING_ERROR},
    {"MISSING_SKIP", MDS_MISSING_SKIP},
    {"MISSING_FILL", MDS_MISSING_FILL},
    {"ADVISE_NORMAL", MDS_ADVISE_NORMAL},
    {"ADVISE_RANDOM", MDS_ADVISE_RANDOM},
    {"ADVISE_SEQUENTIAL", MDS_ADVISE_SEQUENTIAL},
};

static int module_exec(PyObject *module)
{
    const char *forced = getenv("MMAPDS_SIMD");
    kernels = mds_kernels_find(forced && *forced ? forced : NULL);
    if (!kernels) {
        PyErr_Format(PyExc_ImportError, "MMAPDS_SIMD=%s: this machine has no such variant", forced);
        return -1;
    }
    module_state *state = PyModule_GetState(module);
    if (add_type(module, &map_spec, &state->map_type) != 0 || add_type(module, &records_spec, &state->records_type) != 0 ||
        add_type(module, &permutation_spec, &state->permutation_type) != 0 ||
        add_type(module, &array_fields_spec, &state->array_fields_type) != 0 ||
        add_type(module, &array_batch_spec, NULL) != 0 || add_type(module, &tar_scanner_spec, NULL) != 0)
        return -1;
    for (size_t k = 0; k < sizeof constants / sizeof *constants; k++)
        if (PyModule_AddIntConstant(module, constants[k].name, constants[k].value) != 0)
            return -1;
    if (PyModule_AddStringConstant(module, "SIMD", mds_kernels_name(kernels)) != 0)
        return -1;
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->map_type);
    Py_VISIT(state->records_type);
    Py_VISIT(state->array_fields_type);
    Py_VISIT(state->permutation_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->map_type);
    Py_CLEAR(state->records_type);
    Py_CLEAR(state->array_fields_type);
    Py_CLEAR(state->permutation_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mmapds._native",
    .m_doc = "The C core of mmapds.",
    .m_size = sizeof(module_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
