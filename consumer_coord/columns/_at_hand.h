/* The fast path of a poll: AtHand.message.  _kernel.c includes this file.
 *
 * A poll that has looked at everything (the group, the plan, the lease, the outcomes of commits) delivers one message, and
 * offers the next ones to the same thread.  `message` then takes one without another look, as long as nothing has changed: an
 * event expires the offer, and a call that takes the turn sets `messages` to None.  So does a call that replaces the queue of
 * messages, because the offer is about one queue.  The lease is compared at each message.
 *
 * It is an attribute and not a method, because CPython runs no signal handler after an attribute was read.  So a poll that
 * returns it delivers the message, or is interrupted before.
 */

#include <stddef.h>
#include <structmember.h>
#include <time.h>

typedef struct {
    PyObject_HEAD
    PyObject *ready;            /* the queue of messages */
    PyObject *messages;         /* the queue that was offered; NULL or None without an offer */
    PyObject *last, *receiver;  /* the last deliveries by receiver, and the receiver of the offer */
    PyObject *clock;            /* a function that returns seconds */
    long clock_id;              /* the system clock that this function reads; -1 for another one */
    double until;               /* by this clock */
    unsigned long user, thread; /* the thread that has the turn, or 0; the thread of the offer */
    unsigned long long polls, changes, offered_at;
} AtHandObject;

static PyObject *at_hand_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *clock;
    long clock_id;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "Ol", &clock, &clock_id))
        return NULL;
    AtHandObject *self = allocate(type);
    if (self == NULL)
        return NULL;
    self->clock = new_reference(clock);
    self->clock_id = clock_id;
    return (PyObject *)self;
}

static int at_hand_traverse(PyObject *object, visitproc visit, void *arg)
{
    AtHandObject *self = (AtHandObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->ready);
    Py_VISIT(self->messages);
    Py_VISIT(self->last);
    Py_VISIT(self->receiver);
    Py_VISIT(self->clock);
    return 0;
}

static int at_hand_clear(PyObject *object)
{
    AtHandObject *self = (AtHandObject *)object;
    Py_CLEAR(self->ready);
    Py_CLEAR(self->messages);
    Py_CLEAR(self->last);
    Py_CLEAR(self->receiver);
    Py_CLEAR(self->clock);
    return 0;
}

static void at_hand_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    (void)at_hand_clear(object);
    deallocate(object);
}

/* Set `moment`; return false with an exception if the clock fails. */
static bool read_clock(const AtHandObject *self, double *moment)
{
    struct timespec now;
    if (self->clock_id >= 0 && clock_gettime((clockid_t)self->clock_id, &now) == 0) {
        *moment = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
        return true;
    }
    PyObject *seconds = PyObject_CallNoArgs(self->clock);
    if (seconds == NULL)
        return false;
    *moment = PyFloat_AsDouble(seconds);
    Py_DECREF(seconds);
    return !(*moment == -1 && PyErr_Occurred());
}

static bool has_offer(const AtHandObject *self)
{
    return self->messages != NULL && self->messages != Py_None && self->messages == self->ready && self->user == 0 &&
           self->changes == self->offered_at && PyThread_get_thread_ident() == self->thread;
}

static PyObject *at_hand_message(PyObject *object, void *closure)
{
    AtHandObject *self = (AtHandObject *)object;
    double moment;
    (void)closure;
    if (!has_offer(self))
        return new_reference(Py_None);
    if (!read_clock(self, &moment))
        return NULL;
    /* The clock may be a function in Python, which takes the turn. */
    if (!has_offer(self) || !(moment < self->until) || PySequence_Size(self->messages) <= 0)
        return PyErr_Occurred() ? NULL : new_reference(Py_None);
    PyObject *message = PySequence_GetItem(self->messages, 0);
    if (message == NULL)
        return NULL;
    /* The former message is released at the end, because its release may call a function of the application's. */
    PyObject *former = PyDict_GetItemWithError(self->last, self->receiver);
    Py_XINCREF(former);
    if (PyErr_Occurred() || PyDict_SetItem(self->last, self->receiver, message) < 0 ||
        PySequence_DelItem(self->messages, 0) < 0) {
        Py_XDECREF(former);
        Py_DECREF(message);
        return NULL;
    }
    self->polls++;
    Py_XDECREF(former);
    return message;
}

/* offer(last, until, changes, receiver=user) */
static PyObject *at_hand_offer(PyObject *object, PyObject *args)
{
    AtHandObject *self = (AtHandObject *)object;
    PyObject *last, *receiver = NULL;
    double until;
    unsigned long long changes;
    if (!PyArg_ParseTuple(args, "O!dK|O", &PyDict_Type, &last, &until, &changes, &receiver))
        return NULL;
    receiver = receiver != NULL ? new_reference(receiver) : PyLong_FromUnsignedLong(self->user);
    if (receiver == NULL)
        return NULL;
    PyObject *const former[] = {self->messages, self->last, self->receiver};
    self->messages = self->ready;
    Py_XINCREF(self->messages);
    self->last = new_reference(last);
    self->receiver = receiver;
    self->thread = self->user;
    self->until = until;
    self->offered_at = changes;
    for (size_t i = 0; i < sizeof former / sizeof *former; i++)
        Py_XDECREF(former[i]);
    return new_reference(Py_None);
}

static PyObject *at_hand_expire(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    ((AtHandObject *)object)->changes++;
    return new_reference(Py_None);
}

/* use_clock(clock, clock_id) */
static PyObject *at_hand_use_clock(PyObject *object, PyObject *args)
{
    AtHandObject *self = (AtHandObject *)object;
    PyObject *clock, *const former = self->clock;
    long clock_id;
    if (!PyArg_ParseTuple(args, "Ol", &clock, &clock_id))
        return NULL;
    self->clock = new_reference(clock);
    self->clock_id = clock_id;
    Py_XDECREF(former);
    return new_reference(Py_None);
}

static PyMethodDef at_hand_methods[] = {
    {"offer", at_hand_offer, METH_VARARGS, "Let the thread that has the turn take messages of the queue after it, without a look."},
    {"expire", at_hand_expire, METH_NOARGS, "End the offer, because the next poll must look at something; any thread."},
    {"use_clock", at_hand_use_clock, METH_VARARGS, "Read the lease's time from another clock."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef at_hand_attributes[] = {
    {"message", at_hand_message, NULL, "Take the next message of the offer, which counts as delivered; None without one.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef at_hand_members[] = {
    {"ready", T_OBJECT, offsetof(AtHandObject, ready), 0, "The queue of messages; a new queue ends the offer of the former one."},
    {"messages", T_OBJECT, offsetof(AtHandObject, messages), 0, "What is offered; set it to None to end the offer."},
    {"user", T_ULONG, offsetof(AtHandObject, user), 0, "The thread that has the turn, or 0."},
    {"polls", T_ULONGLONG, offsetof(AtHandObject, polls), 0, "Number of polls."},
    {"changes", T_ULONGLONG, offsetof(AtHandObject, changes), READONLY, "Number of calls of expire()."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot at_hand_slots[] = {
    {Py_tp_new, at_hand_new},
    {Py_tp_dealloc, at_hand_dealloc},
    {Py_tp_traverse, at_hand_traverse},
    {Py_tp_clear, at_hand_clear},
    {Py_tp_methods, at_hand_methods},
    {Py_tp_getset, at_hand_attributes},
    {Py_tp_members, at_hand_members},
    {0, NULL},
};

static PyType_Spec at_hand_spec = {
    "consumer_coord.columns._kernel.AtHand", sizeof(AtHandObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, at_hand_slots};
