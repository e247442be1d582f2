/* binding.h - what the files of the binding share: parse, check, release the GIL, call the core, raise or return. */
#ifndef MMAPDS_BINDING_H
#define MMAPDS_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mmapds.h"

extern const mds_kernels *mds_py_kernels; /* chosen once, when the module is loaded */

typedef struct {
    PyTypeObject *map_type, *permutation_type, *records_type, *array_fields_type;
} mds_py_state;

typedef struct {
    const char *name;
    int value;
} mds_py_constant;

/* Several buffers of 64-bit words, released together. */
typedef struct {
    Py_buffer views[16];
    int count;
} mds_py_views;

typedef struct {
    PyObject_HEAD
    mds_map map;
} MapObject;

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

typedef struct {
    PyObject_HEAD
    mds_permutation permutation;
} PermutationObject;

int mds_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep);
void mds_py_free(PyObject *self);
PyObject *mds_py_new(PyTypeObject *type);
int mds_py_add_constants(PyObject *module, const mds_py_constant *constants);
const mds_kernels *mds_py_find_kernels(const char *variant);
int mds_py_get_words(PyObject *object, int flags, Py_buffer *view, const char *what);
void mds_py_release(mds_py_views *all);
void *mds_py_words(mds_py_views *all, PyObject *object, int flags, Py_ssize_t entries, const char *what);
Py_ssize_t mds_py_entries(const mds_py_views *all);
int mds_py_positions(mds_py_views *all, PyObject *source, PyObject *target, uint64_t limit, const int64_t **positions,
                          int64_t **out, size_t *count);
void *mds_py_numbers(mds_py_views *all, PyObject *object, int flags, unsigned width, Py_ssize_t entries, const char *what);
int mds_py_add_map(PyObject *module);
PyObject *mds_py_records_payload(const RecordsObject *self, const mds_source *source, mds_span span);
mds_request *mds_py_records_fetch(RecordsObject *self, PyObject *rows, Py_ssize_t *n);
int mds_py_add_records(PyObject *module);
PyObject *mds_py_array_value(const ArrayFieldsObject *self, Py_ssize_t f, PyObject *record, const char *data,
                             const mds_array_value *value);
PyObject *mds_py_array_fields_reason(const ArrayFieldsObject *self, size_t failed, Py_ssize_t size);
int mds_py_add_array_fields(PyObject *module);
int mds_py_add_array_batch(PyObject *module);
int mds_py_add_tar(PyObject *module);
PyObject *mds_py_scanned(size_t count, const mds_lines *state);
int mds_py_parse_offset(PyObject *object, uint64_t *offset);
int mds_py_check_capacity(const Py_buffer *starts, uint64_t n);
int mds_py_add_scan(PyObject *module);
int mds_py_add_columns(PyObject *module);
int mds_py_add_permutation(PyObject *module);
int mds_py_add_orders(PyObject *module);
int mds_py_add_pad(PyObject *module);
int mds_py_add_sort(PyObject *module);
int mds_py_add_plan(PyObject *module);

#endif
