/* py_sources.c - the sources behind Records, each opened when the first of its records is read. */
#include "binding.h"

#include <errno.h>
#include <stdlib.h>

SourceTable *mds_py_sources_new(size_t count)
{
    SourceTable *table = calloc(1, sizeof *table + count * sizeof *table->slots);
    if (!table)
        return (SourceTable *)PyErr_NoMemory();
    table->references = 1;
    table->count = count;
    return table;
}

void mds_py_sources_free(SourceTable *table)
{
    for (const SourceSlot *slot = table->slots; slot < table->slots + table->count; slot++) {
        Py_XDECREF(slot->view);
        Py_XDECREF(slot->index);
        Py_XDECREF(slot->map);
    }
    free(table);
}

PyObject *mds_py_records_forget(PyObject *object, PyObject *Py_UNUSED(none))
{
    RecordsObject *self = (RecordsObject *)object;
    SourceTable *before, *table = mds_py_sources_new(self->n_sources);
    if (!table)
        return NULL;
    LOCKED(self, before = self->table; self->table = table; self->readahead = (mds_readahead){0});
    mds_py_sources_release(before); /* last: closing sources may run Python code */
    Py_RETURN_NONE;
}

/* Check that an index holds the bounds of a source at the byte from the opener. */
static int check_bounds(const mds_map *index, uint64_t at, unsigned width, uint64_t count)
{
    if (!mds_is_width(width)) {
        PyErr_Format(PyExc_ValueError, "width: expected 2, 3, 4 or 8, found %u", width);
        return -1;
    }
    const uint64_t groups = mds_group_of(width, count) + 1;
    if (at % MDS_GROUP == 0 && at <= index->size && groups <= (index->size - at) / MDS_GROUP)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "bounds: expected %llu groups at a multiple of %d within %llu bytes, found byte %llu",
                 (unsigned long long)groups, MDS_GROUP, (unsigned long long)index->size, (unsigned long long)at);
    return -1;
}

/* Fill an empty slot. Its map comes last: a thread that sees it reads the rest without a lock. */
static void fill_empty(SourceSlot *slot, size_t s, PyObject *map, PyObject *index, PyObject *view,
                       const mds_source *source)
{
    slot->view = Py_XNewRef(view);
    slot->index = source->index ? Py_NewRef(index) : NULL;
    slot->source = *source;
    slot->number = s;
    if (!source->map->file) {
        slot->content = *source->map;
        slot->source.map = &slot->content;
        slot->reader = map;
    }
    __atomic_store_n(&slot->map, Py_NewRef(map), __ATOMIC_RELEASE);
}

/* Fill a slot, or keep what another thread that was faster has filled it with. */
static int fill_slot(RecordsObject *self, SourceSlot *slot, size_t s, PyObject *map, PyObject *index,
                     const mds_source *source)
{
    const int is_file = source->map->file != NULL;
    const int has_buffer = is_file && (source->map->data || !source->map->size);
    PyObject *view = has_buffer && self->views ? PyMemoryView_FromObject(map) : NULL;
    if (PyErr_Occurred())
        return -1;
    LOCKED(self, if (!mds_py_slot_is_open(slot)) fill_empty(slot, s, map, index, view, source));
    Py_XDECREF(view);
    return 0;
}

/* Get the size of a reader in bytes. */
static int read_size(PyObject *reader, uint64_t *size)
{
    unsigned long long found;
    PyObject *number = PyObject_GetAttrString(reader, "size");
    const int status = number && mds_py_size(number, &found) ? 0 : -1;
    Py_XDECREF(number);
    *size = status == 0 ? found : 0;
    return status;
}

const mds_source *mds_py_sources_open(RecordsObject *self, SourceTable *table, size_t s)
{
    const mds_py_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
    PyObject *opened = PyObject_CallMethod(self->opener, "open", "nO", (Py_ssize_t)s, self);
    if (!opened)
        return NULL;
    PyObject *map, *index;
    int framing;
    unsigned width;
    unsigned long long bounds_at, first, stride;
    const mds_source *source = NULL;
    if (mds_py_expect_tuple(opened, "opener.open") != 0 ||
        !PyArg_ParseTuple(opened, "OO!O&IiO&O&:open", &map, state->map_type, &index, mds_py_size, &bounds_at, &width,
                          &framing, mds_py_size, &first, mds_py_size, &stride))
        goto done;
    const int is_file = PyObject_TypeCheck(map, state->map_type);
    mds_map content = {NULL, 0, 0, NULL};
    if (!is_file && read_size(map, &content.size) != 0)
        goto done;
    mds_source found = {
        .map = is_file ? &((MapObject *)map)->map : &content,
        .first = first,
        .stride = stride,
        .count = self->firsts[s + 1] - self->firsts[s],
        .framing = (mds_framing)framing,
    };
    if (!stride) {
        const mds_map *bounds = &((MapObject *)index)->map;
        if (check_bounds(bounds, bounds_at, width, found.count) != 0)
            goto done;
        found.index = bounds;
        found.bounds_at = bounds_at;
        found.bounds = bounds->data ? bounds->data + bounds_at : NULL;
        found.width = width;
    }
    if (fill_slot(self, &table->slots[s], s, map, index, &found) == 0)
        source = &table->slots[s].source;
done:
    Py_DECREF(opened);
    return source;
}

/* Check that the opener raised an error. */
static void expect_raised(PyObject *result)
{
    Py_XDECREF(result);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "opener: expected an exception, found none");
}

void mds_py_raise_unread_record(const RecordsObject *self, const mds_request *request, mds_status status)
{
    const Py_ssize_t s = (Py_ssize_t)mds_py_slot_of(request->source)->number;
    PyObject *result;
    if (status == MDS_CORRUPT)
        result = PyObject_CallMethod(self->opener, "corrupt", "nKKKK", s, (unsigned long long)request->i,
                                     (unsigned long long)request->span.begin, (unsigned long long)request->span.end,
                                     (unsigned long long)request->source->map->size);
    else
        result = PyObject_CallMethod(self->opener, "lost", "ni", s, status == MDS_SYSTEM ? errno : 0);
    expect_raised(result);
}

void mds_py_raise_no_room(const RecordsObject *self, const mds_request *requests, Py_ssize_t n)
{
    const mds_request *largest = requests;
    uint64_t total = 0;
    for (const mds_request *request = requests; request < requests + n; request++) {
        const uint64_t size = request->span.end - request->span.begin;
        if (size > largest->span.end - largest->span.begin)
            largest = request;
        if (__builtin_add_overflow(total, size, &total))
            total = UINT64_MAX;
    }
    PyErr_Clear();
    const Py_ssize_t s = (Py_ssize_t)mds_py_slot_of(largest->source)->number;
    expect_raised(PyObject_CallMethod(self->opener, "no_room", "nKKKn", s, (unsigned long long)largest->i,
                                      (unsigned long long)largest->span.begin, (unsigned long long)total, n));
}
