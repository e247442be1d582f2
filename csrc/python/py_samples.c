/* py_samples.c - samples by position, without Python between the record and the decoder. */
#include "binding.h"

#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD PyObject *records; /* Records, or NULL */
    PyObject *decode;                /* see the docstring of the type; NULL: every key goes to `other` */
    PyObject *other, *refused;       /* names of the methods for other keys, and for errors */
} SamplesObject;

static PyObject *samples_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    SamplesObject *self = (SamplesObject *)mds_py_new(type);
    if (!self)
        return NULL;
    self->other = PyUnicode_InternFromString("_at");
    self->refused = PyUnicode_InternFromString("_raise_at");
    if (self->other && self->refused)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int samples_traverse(PyObject *object, visitproc visit, void *arg)
{
    SamplesObject *self = (SamplesObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->records);
    Py_VISIT(self->decode);
    return 0;
}

static int samples_clear(PyObject *object)
{
    SamplesObject *self = (SamplesObject *)object;
    Py_CLEAR(self->records);
    Py_CLEAR(self->decode);
    return 0;
}

static void samples_dealloc(PyObject *object)
{
    SamplesObject *self = (SamplesObject *)object;
    PyObject_GC_UnTrack(object);
    samples_clear(object);
    Py_CLEAR(self->other);
    Py_CLEAR(self->refused);
    mds_py_free(object);
}

/* Raise the set error of the decoder with the place of the record. */
static void raise_at(SamplesObject *self, PyObject *key)
{
    PyObject *error = mds_py_take_error();
    PyObject *result = PyObject_CallMethodObjArgs((PyObject *)self, self->refused, key, key, error, NULL);
    if (result)
        PyErr_SetString(PyExc_SystemError, "_raise_at: expected an exception, found none");
    Py_XDECREF(result);
    Py_DECREF(error);
}

static PyObject *samples_subscript(PyObject *object, PyObject *key)
{
    SamplesObject *self = (SamplesObject *)object;
    PyObject *decode; /* Python code may change both */
    RecordsObject *records;
    LOCKED(self, decode = Py_XNewRef(self->decode); records = (RecordsObject *)Py_XNewRef(self->records));
    if (!decode || !records || !PyLong_CheckExact(key)) { /* True is not a position */
        Py_XDECREF((PyObject *)records);
        Py_XDECREF(decode);
        return PyObject_CallMethodObjArgs(object, self->other, key, NULL);
    }
    SourceTable *table = mds_py_sources_hold(records);
    mds_request request = {0};
    PyObject *record = mds_py_records_one(records, table, key, &request);
    const int is_sample = !record || decode == Py_None;
    PyObject *sample = is_sample ? record : PyObject_CallFunctionObjArgs(decode, record, NULL);
    if (!is_sample) {
        Py_DECREF(record);
        if (!sample && PyErr_ExceptionMatches(PyExc_Exception))
            raise_at(self, key);
        else if (sample && records->views && mds_py_records_check(records, &request) != 0)
            Py_CLEAR(sample); /* it may hold zeros from behind the end of the file */
    }
    mds_py_sources_release(table);
    Py_DECREF(records);
    Py_DECREF(decode);
    return sample;
}

static PyObject *samples_records(PyObject *object, void *Py_UNUSED(closure))
{
    PyObject *records;
    LOCKED(object, records = Py_XNewRef(((SamplesObject *)object)->records));
    if (!records)
        PyErr_SetString(PyExc_AttributeError, "_records");
    return records;
}

/* Check the type once here, instead of in every read. */
static int samples_set_records(PyObject *object, PyObject *records, void *Py_UNUSED(closure))
{
    if (!records || !mds_py_is_records(records)) {
        PyErr_SetString(PyExc_TypeError, "_records: expected Records");
        return -1;
    }
    SamplesObject *self = (SamplesObject *)object;
    PyObject *before;
    LOCKED(self, before = self->records; self->records = Py_NewRef(records));
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef attributes[] = {
    {"_records", samples_records, samples_set_records, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"_decode_record", T_OBJECT_EX, offsetof(SamplesObject, decode), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot samples_slots[] = {
    {Py_tp_doc,
     "Samples()\n--\n\n"
     "Base class of datasets of records: self[i] reads and decodes record i.\n\n"
     "_records: Records. _decode_record: takes only a record, returns its sample; None if the sample is the record;\n"
     "not set if a sample needs more than the record.\n"
     "self._at(key) returns self[key] then, and for any other key.\n"
     "self._raise_at(number, key, error) raises the error of the decoder.\n\n"
     "Raises what these and _records[i] raise."},
    {Py_tp_new, samples_new},
    {Py_tp_dealloc, samples_dealloc},
    {Py_tp_traverse, samples_traverse},
    {Py_tp_clear, samples_clear},
    {Py_tp_getset, attributes},
    {Py_tp_members, members},
    {Py_mp_subscript, samples_subscript},
    {0, NULL},
};

static PyType_Spec samples_spec = {"mmapds._native.Samples", sizeof(SamplesObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, samples_slots};

int mds_py_add_samples(PyObject *module)
{
    return mds_py_add_type(module, &samples_spec, NULL);
}
