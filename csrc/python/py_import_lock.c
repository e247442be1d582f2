/* py_import_lock.c - the lock that a fork waits for, whatever signals come.
 *
 * Signal handlers run between instructions of Python, and where a wait in C lets them. What one raises in a hook of
 * os.fork() is printed and forgotten, and the fork goes on. So the wait lets none run; those that are due run after it,
 * before hooks of others are called, and what they raise is raised when the fork and all its hooks are over. */
#include "binding.h"

#define NS_A_SECOND 1000000000
#define NS_A_MICROSECOND 1000

/* All but the lock is read and written with the GIL. */
typedef struct {
    PyObject_HEAD PyThread_type_lock lock;
    unsigned long holder; /* the thread, while `depth` is not 0 */
    size_t depth;
    PyObject *raised; /* by a signal handler, before a fork; NULL if nothing was */
    PyObject *frame;  /* the one that forked then */
} LockObject;

static int is_held(const LockObject *self)
{
    return self->depth && self->holder == PyThread_get_thread_ident();
}

/* Take the lock, at once or after at most `patience` microseconds; for ever where it is below 0. */
static PyLockStatus take(LockObject *self, long long patience, int may_be_interrupted)
{
    PyLockStatus status = PY_LOCK_ACQUIRED;
    if (!is_held(self)) {
        status = PyThread_acquire_lock_timed(self->lock, 0, 0);
        if (status != PY_LOCK_ACQUIRED && patience)
            RELEASE_GIL(status = PyThread_acquire_lock_timed(self->lock, patience, may_be_interrupted));
        if (status == PY_LOCK_ACQUIRED)
            self->holder = PyThread_get_thread_ident();
    }
    self->depth += status == PY_LOCK_ACQUIRED;
    return status;
}

static void give_back(LockObject *self)
{
    if (is_held(self) && --self->depth == 0)
        PyThread_release_lock(self->lock);
}

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":ImportLock", names))
        return NULL;
    LockObject *self = (LockObject *)mds_py_new(type);
    if (self && !(self->lock = PyThread_allocate_lock())) {
        Py_CLEAR(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void lock_dealloc(PyObject *object)
{
    LockObject *self = (LockObject *)object;
    if (self->lock)
        PyThread_free_lock(self->lock);
    Py_XDECREF(self->raised);
    Py_XDECREF(self->frame);
    mds_py_free(object);
}

static PyObject *lock_enter(PyObject *object, PyObject *Py_UNUSED(none))
{
    while (take((LockObject *)object, -1, 1) == PY_LOCK_INTR)
        if (PyErr_CheckSignals() != 0)
            return NULL;
    return Py_NewRef(object);
}

static PyObject *lock_exit(PyObject *object, PyObject *Py_UNUSED(args))
{
    give_back((LockObject *)object);
    Py_RETURN_NONE;
}

static PyObject *lock_is_held(PyObject *object, PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(is_held((LockObject *)object));
}

static void run_handlers(LockObject *self)
{
    while (PyErr_CheckSignals() != 0)
        if (self->raised)
            PyErr_WriteUnraisable((PyObject *)self);
        else
            self->raised = mds_py_take_error();
}

static PyObject *lock_before_fork(PyObject *object, PyObject *seconds)
{
    LockObject *self = (LockObject *)object;
    const int64_t end = mds_now() + (int64_t)PyLong_AsUnsignedLong(seconds) * NS_A_SECOND;
    if (PyErr_Occurred())
        return NULL;
    int is_free = 1;
    run_handlers(self);
    while (is_free && take(self, 0, 0) != PY_LOCK_ACQUIRED) {
        const int64_t left = (end - mds_now()) / NS_A_MICROSECOND;
        is_free = left > 0 && take(self, left, 0) == PY_LOCK_ACQUIRED;
        if (is_free)
            give_back(self); /* a handler may wait for another thread that imports */
        run_handlers(self);
    }
    return PyBool_FromLong(is_free);
}

/* Whether a function runs that the frame called which forked: mostly a hook of others, which would lose an error. */
static int is_in_call(const LockObject *self)
{
    PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    const int is_itself = frame == self->frame;
    while (frame && frame != self->frame) {
        PyObject *caller = PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = caller;
        if (!frame)
            PyErr_Clear();
        else if (Py_IsNone(frame))
            Py_CLEAR(frame);
    }
    const int is_there = frame != NULL;
    Py_XDECREF(frame);
    return is_there && !is_itself;
}

static int raise(void *object)
{
    LockObject *self = (LockObject *)object;
    if (self->raised && is_in_call(self) && Py_AddPendingCall(raise, self) == 0)
        return 0;
    PyObject *error = self->raised;
    self->raised = NULL;
    Py_CLEAR(self->frame);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_DECREF((PyObject *)self);
    return error ? -1 : 0;
}

static PyObject *lock_after_fork(PyObject *object, PyObject *Py_UNUSED(none))
{
    LockObject *self = (LockObject *)object;
    give_back(self);
    if (!self->raised)
        Py_RETURN_NONE;
    PyObject *before = self->frame;
    self->frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    Py_XDECREF(before);
    if (Py_AddPendingCall(raise, Py_NewRef(object)) != 0)
        Py_DECREF(object); /* the interpreter has no room for it: at the next fork */
    Py_RETURN_NONE;
}

static PyObject *lock_after_fork_in_child(PyObject *object, PyObject *Py_UNUSED(none))
{
    LockObject *self = (LockObject *)object;
    Py_CLEAR(self->raised); /* the parent's */
    Py_CLEAR(self->frame);
    if (is_held(self)) {
        give_back(self);
        Py_RETURN_NONE;
    }
    /* The fork lost patience. Who held it is not here; the old lock stays as it is, as nobody may free it. */
    const PyThread_type_lock lock = PyThread_allocate_lock();
    if (!lock)
        return PyErr_NoMemory();
    self->lock = lock;
    self->depth = 0;
    Py_RETURN_NONE;
}

static PyMethodDef lock_methods[] = {
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", lock_exit, METH_VARARGS, NULL},
    {"is_held", lock_is_held, METH_NOARGS,
     "is_held($self, /)\n--\n\n"
     "Return whether this thread holds it."},
    {"before_fork", lock_before_fork, METH_O,
     "before_fork($self, seconds, /)\n--\n\n"
     "Take it, and return whether it came within some seconds. Signal handlers run after that."},
    {"after_fork", lock_after_fork, METH_NOARGS,
     "after_fork($self, /)\n--\n\n"
     "Give back what `before_fork` took, if it took it. What signal handlers raised there is raised soon."},
    {"after_fork_in_child", lock_after_fork_in_child, METH_NOARGS,
     "after_fork_in_child($self, /)\n--\n\n"
     "Give back what `before_fork` took; if it took nothing, free it from a thread that the child does not have."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, "ImportLock()\n--\n\n"
                "A lock that its thread may take again, for `with`, with hooks for `os.register_at_fork`."},
    {Py_tp_new, lock_new},
    {Py_tp_dealloc, lock_dealloc},
    {Py_tp_methods, lock_methods},
    {0, NULL},
};

static PyType_Spec lock_spec = {"mmapds._native.ImportLock", sizeof(LockObject), 0, Py_TPFLAGS_DEFAULT, lock_slots};

int mds_py_add_import_lock(PyObject *module)
{
    return mds_py_add_type(module, &lock_spec, NULL);
}
