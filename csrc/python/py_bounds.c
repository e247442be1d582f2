/* py_bounds.c - the bounds of records, packed into groups and back. */
#include "binding.h"

static int check_width(unsigned width)
{
    if (mds_is_width(width))
        return 0;
    PyErr_Format(PyExc_ValueError, "width: expected 2, 3, 4 or 8, found %u", width);
    return -1;
}

static PyObject *pack_bounds(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned width;
    PyObject *before, *source, *packed = NULL;
    const uint64_t *held, *bounds;
    MDS_PY_BUFFERS(buffers, 2);
    if (!PyArg_ParseTuple(args, "IOO:pack_bounds", &width, &before, &source) || check_width(width) != 0 ||
        !(held = mds_py_take_words(&buffers, before, MDS_PY_READ, MDS_PY_ANY, "held")))
        goto done;
    const size_t n_held = buffers.entries, records = mds_group_records(width);
    if (n_held > records) {
        PyErr_Format(PyExc_ValueError, "held: expected up to %zu bounds, found %zu", records, n_held);
        goto done;
    }
    if (!(bounds = mds_py_take_words(&buffers, source, MDS_PY_READ, MDS_PY_ANY, "bounds")))
        goto done;
    const size_t n = buffers.entries;
    packed = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)((n_held + n) / records * MDS_GROUP));
    if (!packed)
        goto done;
    uint8_t *out = (uint8_t *)PyByteArray_AsString(packed); /* still private to this call */
    uint64_t groups;
    RELEASE_GIL(groups = mds_bounds_pack(width, held, (unsigned)n_held, bounds, n, out));
    if (PyByteArray_Resize(packed, (Py_ssize_t)(groups * MDS_GROUP)) != 0)
        Py_CLEAR(packed);
done:
    mds_py_give_back(&buffers);
    return packed;
}

static PyObject *unpack_bounds(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned width;
    PyObject *source, *bounds = NULL;
    const uint8_t *groups;
    MDS_PY_BUFFERS(buffers, 1);
    if (!PyArg_ParseTuple(args, "IO:unpack_bounds", &width, &source) || check_width(width) != 0 ||
        !(groups = mds_py_take_bytes(&buffers, source, MDS_PY_READ)))
        goto done;
    const size_t n = buffers.entries / MDS_GROUP, size = mds_group_records(width) * sizeof(uint64_t);
    if (buffers.entries % MDS_GROUP)
        PyErr_Format(PyExc_ValueError, "groups: expected a multiple of %d bytes, found %zu", MDS_GROUP,
                     buffers.entries);
    else if (n > PY_SSIZE_T_MAX / size)
        PyErr_NoMemory();
    else if ((bounds = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(n * size)))) {
        uint64_t *out = (uint64_t *)PyByteArray_AsString(bounds);
        RELEASE_GIL(mds_bounds_unpack(width, groups, n, out));
    }
done:
    mds_py_give_back(&buffers);
    return bounds;
}

static PyMethodDef functions[] = {
    {"pack_bounds", pack_bounds, METH_VARARGS,
     "pack_bounds($module, width, held, bounds, /)\n--\n\n"
     "Return bounds, u64, held and then bounds, as whole groups of 64 bytes; up to one that the width does not fit.\n\n"
     "A group begins with a bound, and has the distances of those that follow from there, in `width` bytes each (2, "
     "3,\n"
     "4 or 8). It takes as many as it has records, and one more, with which the next group begins again.\n"
     "held: those that did not fill a group before, not more than a group has records.\n\n"
     "Raises ValueError for another width, and when more are held."},
    {"unpack_bounds", unpack_bounds, METH_VARARGS,
     "unpack_bounds($module, width, groups, /)\n--\n\n"
     "Return the bounds at which the records of whole groups begin, as a bytearray of u64.\n\n"
     "Raises ValueError for a width that pack_bounds does not take, and when groups are not whole."},
    {NULL, NULL, 0, NULL},
};

int mds_py_add_bounds(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
