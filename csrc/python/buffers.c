/* buffers.c - memory that Python brings: taken, checked and released. */
#include "binding.h"

/* Fill `view` with a contiguous buffer of 8-byte aligned 64-bit integers. */
int mds_py_get_words(PyObject *object, int flags, Py_buffer *view, const char *what)
{
    if (PyObject_GetBuffer(object, view, flags) != 0)
        return -1;
    if (view->len == 0 || (view->len % 8 == 0 && (uintptr_t)view->buf % 8 == 0)) /* nothing has any address */
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: expected whole 64-bit integers at an aligned address", what);
    PyBuffer_Release(view);
    return -1;
}

void mds_py_release(mds_py_views *all)
{
    while (all->count)
        PyBuffer_Release(&all->views[--all->count]);
}

/* The next buffer, NULL with an exception when it is none, or not of `entries` entries (< 0: any number). */
void *mds_py_words(mds_py_views *all, PyObject *object, int flags, Py_ssize_t entries, const char *what)
{
    Py_buffer *view = &all->views[all->count];
    if (mds_py_get_words(object, flags, view, what) != 0)
        return NULL;
    all->count++;
    if (entries < 0 || view->len == entries * 8)
        return view->buf;
    PyErr_Format(PyExc_ValueError, "%s: found %zd entries, expected %zd", what, view->len / 8, entries);
    return NULL;
}

Py_ssize_t mds_py_entries(const mds_py_views *all)
{
    return all->views[all->count - 1].len / 8;
}

/* Positions to read and where to write records; -1 unless all positions lie in [0, limit). */
int mds_py_positions(mds_py_views *all, PyObject *source, PyObject *target, uint64_t limit, const int64_t **positions,
                          int64_t **out, size_t *count)
{
    *positions = mds_py_words(all, source, PyBUF_SIMPLE, -1, "positions");
    if (!*positions)
        return -1;
    *count = (size_t)mds_py_entries(all);
    *out = mds_py_words(all, target, PyBUF_WRITABLE, (Py_ssize_t)*count, "out");
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

/* A buffer of `entries` (< 0: any number) unsigned integers of `width` bytes, 4 or 8; NULL with an exception. */
void *mds_py_numbers(mds_py_views *all, PyObject *object, int flags, unsigned width, Py_ssize_t entries, const char *what)
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
