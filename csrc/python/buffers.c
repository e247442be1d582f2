/* buffers.c - memory that Python passes: taken, checked and released. */
#include "binding.h"

#include <string.h>

static const uint64_t nothing; /* the address of every empty buffer, since NULL means an exception */

/* Take the next view; NULL with an exception. */
static Py_buffer *take(mds_py_buffers *buffers, PyObject *object, mds_py_access access)
{
    if (buffers->count == buffers->room) {
        PyErr_Format(PyExc_SystemError, "buffers: expected up to %zu, found one more", buffers->room);
        return NULL;
    }
    Py_buffer *view = &buffers->views[buffers->count];
    if (PyObject_GetBuffer(object, view, access) != 0)
        return NULL;
    buffers->count++;
    return view;
}

int mds_py_expect(const char *what, size_t expected, size_t found)
{
    if (expected == found)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: expected %zu entries, found %zu", what, expected, found);
    return -1;
}

static int overlap(const Py_buffer *one, const Py_buffer *other)
{
    const uintptr_t a = (uintptr_t)one->buf, b = (uintptr_t)other->buf;
    return one->len && other->len && a < b + (size_t)other->len && b < a + (size_t)one->len;
}

int mds_py_expect_apart(const mds_py_buffers *buffers, const Py_buffer *held, const char *what)
{
    const Py_buffer *last = &buffers->views[buffers->count - 1];
    int apart = !held || !overlap(last, held);
    for (const Py_buffer *view = buffers->views; apart && view < last; view++)
        apart = !overlap(last, view);
    if (apart)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "%s: expected memory of its own, found %zd bytes that overlap those of another buffer", what,
                 last->len);
    return -1;
}

void *mds_py_take_numbers(mds_py_buffers *buffers, PyObject *object, mds_py_access access, unsigned width,
                          size_t entries, const char *what)
{
    if (width != 4 && width != 8) {
        PyErr_Format(PyExc_ValueError, "%s: expected integers of 4 or 8 bytes, found a width of %u", what, width);
        return NULL;
    }
    const Py_buffer *view = take(buffers, object, access);
    if (!view)
        return NULL;
    if ((size_t)view->len % width) {
        PyErr_Format(PyExc_ValueError, "%s: expected whole integers of %u bytes, found %zd bytes", what, width,
                     view->len);
        return NULL;
    }
    if (view->len && (uintptr_t)view->buf % width) {
        PyErr_Format(PyExc_ValueError, "%s: expected an address that is a multiple of %u, found %p", what, width,
                     view->buf);
        return NULL;
    }
    buffers->entries = (size_t)view->len / width;
    if (entries != MDS_PY_ANY && mds_py_expect(what, entries, buffers->entries) != 0)
        return NULL;
    return view->len ? view->buf : (void *)&nothing;
}

void *mds_py_take_words(mds_py_buffers *buffers, PyObject *object, mds_py_access access, size_t entries,
                        const char *what)
{
    return mds_py_take_numbers(buffers, object, access, 8, entries, what);
}

void *mds_py_take_bytes(mds_py_buffers *buffers, PyObject *object, mds_py_access access)
{
    const Py_buffer *view = take(buffers, object, access);
    if (!view)
        return NULL;
    buffers->entries = (size_t)view->len;
    return view->len ? view->buf : (void *)&nothing;
}

void mds_py_give_back(mds_py_buffers *buffers)
{
    while (buffers->count)
        PyBuffer_Release(&buffers->views[--buffers->count]);
}

void *mds_py_copy_numbers(PyObject *object, unsigned width, size_t entries, const char *what, size_t *n)
{
    MDS_PY_BUFFERS(buffers, 1);
    const void *source = mds_py_take_numbers(&buffers, object, MDS_PY_READ, width, entries, what);
    void *copy = source ? PyMem_Malloc(buffers.entries * width + 1) : NULL;
    if (copy)
        RELEASE_GIL(memcpy(copy, source, buffers.entries * width));
    else if (source)
        PyErr_NoMemory();
    if (n)
        *n = buffers.entries;
    mds_py_give_back(&buffers);
    return copy;
}

void *mds_py_copy_words(PyObject *object, size_t entries, const char *what, size_t *n)
{
    return mds_py_copy_numbers(object, 8, entries, what, n);
}

int mds_py_take_lookup(mds_py_buffers *buffers, PyObject *at, PyObject *out, const char *what, mds_py_lookup *lookup)
{
    lookup->at = mds_py_take_words(buffers, at, MDS_PY_READ, MDS_PY_ANY, what);
    lookup->count = buffers->entries;
    lookup->out = lookup->at ? mds_py_take_words(buffers, out, MDS_PY_WRITE, lookup->count, "out") : NULL;
    return lookup->out ? 0 : -1;
}

PyObject *mds_py_looked_up(const mds_py_lookup *lookup, const char *what, const char *whole)
{
    if (lookup->outside == lookup->count)
        return Py_NewRef(Py_None);
    return PyErr_Format(PyExc_IndexError, "%s %lld is out of range for %s of %llu", what,
                        (long long)lookup->at[lookup->outside], whole, (unsigned long long)lookup->limit);
}

int mds_py_size(PyObject *object, void *size)
{
    const unsigned long long value = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred())
        return 0;
    *(unsigned long long *)size = value;
    return 1;
}

int mds_py_expect_tuple(PyObject *object, const char *what)
{
    if (PyTuple_Check(object))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: expected a tuple, found %R", what, object);
    return -1;
}

int mds_py_parse_offset(PyObject *object, uint64_t *offset)
{
    *offset = object == Py_None ? MDS_NONE : PyLong_AsUnsignedLongLong(object);
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *mds_py_offset(uint64_t offset)
{
    return offset == MDS_NONE ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(offset);
}
