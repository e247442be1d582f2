/* module.c - the module: its state, and the list of its parts. */
#include "binding.h"

#include <stdlib.h>

const mds_kernels *mds_py_kernels;

int mds_py_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep)
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

void mds_py_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject *mds_py_new(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

PyObject *mds_py_take_error(void)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback)
        PyException_SetTraceback(error, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return error;
}

int mds_py_add_constants(PyObject *module, const mds_py_constant *constants)
{
    for (; constants->name; constants++)
        if (PyModule_AddIntConstant(module, constants->name, constants->value) != 0)
            return -1;
    return 0;
}

static PyObject *simd_variants(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *list = PyList_New(0);
    for (size_t k = 0; list && mds_kernels_at(k); k++) {
        PyObject *name = PyUnicode_FromString(mds_kernels_name(mds_kernels_at(k)));
        if (!name || PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* Find a variant by name; for NULL, the best one. NULL with an exception. */
static const mds_kernels *find_kernels(const char *variant, const char *what, PyObject *error)
{
    const mds_kernels *chosen = mds_kernels_find(variant);
    PyObject *names = chosen ? NULL : simd_variants(NULL, NULL);
    if (names)
        PyErr_Format(error, "%s = '%s', expected a variant that this machine has: %R", what, variant, names);
    Py_XDECREF(names);
    return chosen;
}

const mds_kernels *mds_py_find_kernels(const char *variant)
{
    return variant ? find_kernels(variant, "variant", PyExc_ValueError) : mds_py_kernels;
}

static PyMethodDef functions[] = {
    {"simd_variants", simd_variants, METH_NOARGS,
     "simd_variants($module, /)\n--\n\n"
     "Return the names of the SIMD variants this machine can run, best first."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    const char *forced = getenv("MMAPDS_SIMD");
    mds_py_kernels = find_kernels(forced && *forced ? forced : NULL, "MMAPDS_SIMD", PyExc_ImportError);
    if (!mds_py_kernels)
        return -1;
    static int (*const subjects[])(PyObject *) = {
        mds_py_add_map,         mds_py_add_records,      mds_py_add_bounds,      mds_py_add_array_fields,
        mds_py_add_array_batch, mds_py_add_array_pack,   mds_py_add_json_fields, mds_py_add_json_batch,
        mds_py_add_tar,         mds_py_add_scan,         mds_py_add_columns,     mds_py_add_permutation,
        mds_py_add_orders,      mds_py_add_pad,          mds_py_add_sort,        mds_py_add_plan,
        mds_py_add_packing,     mds_py_add_runs,         mds_py_add_bits,        mds_py_add_zstd,
        mds_py_add_inflate,     mds_py_add_block_memory, mds_py_add_samples,
    };
    for (size_t k = 0; k < sizeof subjects / sizeof *subjects; k++)
        if (subjects[k](module) != 0)
            return -1;
    if (PyModule_AddStringConstant(module, "SIMD", mds_kernels_name(mds_py_kernels)) != 0)
        return -1;
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    mds_py_state *state = PyModule_GetState(module);
    Py_VISIT(state->map_type);
    Py_VISIT(state->records_type);
    Py_VISIT(state->array_fields_type);
    Py_VISIT(state->json_fields_type);
    Py_VISIT(state->permutation_type);
    Py_VISIT(state->block_type);
    Py_VISIT(state->block_memory_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    mds_py_state *state = PyModule_GetState(module);
    Py_CLEAR(state->map_type);
    Py_CLEAR(state->records_type);
    Py_CLEAR(state->array_fields_type);
    Py_CLEAR(state->json_fields_type);
    Py_CLEAR(state->permutation_type);
    Py_CLEAR(state->block_type);
    Py_CLEAR(state->block_memory_type);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* so that its import leaves the GIL off */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,          .m_name = "mmapds._native", .m_doc = "The C core of mmapds.",
    .m_size = sizeof(mds_py_state), .m_methods = functions,     .m_slots = module_slots,
    .m_traverse = module_traverse,  .m_clear = module_clear,    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
