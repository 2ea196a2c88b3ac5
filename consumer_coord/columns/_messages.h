/* Messages: Python objects that are rows of a chunk (see _rows.h).  _kernel.c includes this file.
 *
 * A message is an instance of a subtype of a class that the caller gives, such as confluent_kafka.Message.  The subtype
 * overrides every method that reads or changes a field, so the fields of the base remain empty.
 *
 * Messages that an application keeps must not keep a whole chunk in memory.  So a chunk knows its living messages, and a
 * chunk that was handed out completely is finished:
 *   - a chunk that is among the newest finished ones (up to `limit` bytes) stays;
 *   - another chunk stays while living messages use at least half of its bytes; otherwise these messages copy what nobody
 *     has read yet, and the chunk is freed.
 * Copying happens only while messages are taken (or after the consumer was closed), not when a message dies: the death of a
 * list of messages would otherwise copy the second half of the messages just before their own death.
 *
 * The GIL protects everything here, so the module does not declare that it works without a GIL.
 */

#define LARGEST_RECEIVED (16 << 20) /* in bytes; as much as net/tcp.py keeps of unused receive buffers */

enum place { NOWHERE, WINDOW, DUE };

struct row_chunk;

struct chunk_list {
    struct row_chunk *first, *last;
};

/* The chunks of one consumer. */
struct kept {
    size_t references;
    size_t limit, window_bytes;
    size_t chunk_bytes, copied_bytes; /* that are in memory now */
    unsigned long long copied_total;
    struct chunk_list window, due; /* the newest finished chunks; the chunks of which messages use less than half */
    bool closed;
};

struct row_chunk {
    size_t references; /* of living messages, and of the RowsObject until the chunk is finished */
    struct kept *kept;
    struct rows rows;
    size_t taken; /* number of rows that are messages */
    size_t bytes, large_bytes; /* in memory; of them, values that no message has yet */
    size_t total_bytes, living_bytes; /* as row_bytes() counts: of all rows, of living messages */
    PyObject *topic;
    int32_t partition;
    bool finished, with_large;
    enum place place;
    struct row_chunk *previous, *next; /* in the list of its place */
};

/* What a message owns that has no chunk: a copy of its row, and fields that the application or a constructor has set. */
struct own {
    struct kept *kept; /* NULL if the bytes are not counted */
    struct copied_row *copy;
    PyObject *topic, *error, *latency, *delivery_count;
    int32_t partition;
};

/* The part of a message behind the fields of its base.  An object is NULL until it is read for the first time. */
struct message {
    struct row_chunk *chunk; /* NULL if the message has an `own` */
    union {
        size_t index;
        struct own *own;
    };
    PyObject *key, *value, *headers;
};

/* A type of messages, for one base. */
struct kind {
    struct kind *next;
    PyTypeObject *type;
    PyObject *base, *rebuild;
    size_t base_size, size;
    destructor base_dealloc; /* NULL if the base is a Python class; such a class has no fields to free */
    traverseproc base_traverse;
    inquiry base_clear;
    bool length_of_none_fails;
};

/* Types live as long as the process. */
static struct kind *kinds;

/* The value of a row whose object belongs to a message. */
static const char taken_value = 0;

typedef struct {
    PyObject_HEAD
    struct kept *kept;
} KeptObject;

/* A chunk that is decoded, and then handed out row by row. */
typedef struct {
    PyObject_HEAD
    struct row_chunk *chunk; /* NULL once the chunk is finished */
    const struct kind *kind;
    int64_t position, next_offset;
    int32_t leader_epoch;
    size_t count, left;
    int busy;
} RowsObject;

/* ---- chunks --------------------------------------------------------------------------------------------------------- */

static void drop_kept(struct kept *kept)
{
    if (kept != NULL && --kept->references == 0)
        free(kept);
}

static void list_remove(struct row_chunk *chunk)
{
    if (chunk->place == NOWHERE)
        return;
    struct chunk_list *list = chunk->place == WINDOW ? &chunk->kept->window : &chunk->kept->due;
    if (chunk->place == WINDOW)
        chunk->kept->window_bytes -= chunk->bytes;
    *(chunk->previous != NULL ? &chunk->previous->next : &list->first) = chunk->next;
    *(chunk->next != NULL ? &chunk->next->previous : &list->last) = chunk->previous;
    chunk->place = NOWHERE;
}

static void list_append(struct row_chunk *chunk, enum place place)
{
    struct chunk_list *list = place == WINDOW ? &chunk->kept->window : &chunk->kept->due;
    if (place == WINDOW)
        chunk->kept->window_bytes += chunk->bytes;
    chunk->place = place;
    chunk->previous = list->last;
    chunk->next = NULL;
    *(list->last != NULL ? &list->last->next : &list->first) = chunk;
    list->last = chunk;
}

static void count_bytes(struct row_chunk *chunk)
{
    const size_t bytes = allocated_bytes(&chunk->rows) + chunk->large_bytes;
    chunk->kept->chunk_bytes += bytes - chunk->bytes;
    chunk->bytes = bytes;
}

/* Release the value objects of these rows; their messages have references of their own. */
static void give_large(struct row_chunk *chunk, size_t from, size_t to)
{
    for (size_t i = from; chunk->with_large && i < to; i++) {
        struct row *row = &chunk->rows.rows[i];
        if (row->large != NULL) {
            PyObject *value = (PyObject *)row->large;
            row->large = &taken_value;
            chunk->large_bytes -= (size_t)row->value_size;
            Py_DECREF(value);
        }
    }
}

static void drop_chunk(struct row_chunk *chunk)
{
    if (--chunk->references)
        return;
    list_remove(chunk);
    give_large(chunk, chunk->taken, chunk->rows.count);
    chunk->kept->chunk_bytes -= chunk->bytes;
    free_rows(&chunk->rows);
    drop_kept(chunk->kept);
    Py_XDECREF(chunk->topic);
    free(chunk);
}

INLINE struct kind *kind_of(PyObject *object)
{
    struct kind *kind = kinds;
    while (kind != NULL && kind->type != Py_TYPE(object))
        kind = kind->next;
    return kind;
}

INLINE struct message *part_of(const struct kind *kind, PyObject *object)
{
    return (struct message *)((char *)object + kind->base_size);
}

INLINE struct message *message_of(PyObject *object)
{
    return part_of(kind_of(object), object);
}

/* Return the row of a message, and the bytes to which its positions refer. */
INLINE const struct row *view(const struct message *message, const uint8_t **data)
{
    if (message->chunk != NULL) {
        *data = message->chunk->rows.data;
        return &message->chunk->rows.rows[message->index];
    }
    *data = message->own->copy->data;
    return &message->own->copy->row;
}

static size_t own_bytes(const struct own *own)
{
    return sizeof *own + sizeof *own->copy + own->copy->size;
}

static void drop_own(struct own *own)
{
    if (own == NULL)
        return;
    if (own->kept != NULL)
        own->kept->copied_bytes -= own_bytes(own);
    drop_kept(own->kept);
    Py_XDECREF(own->topic);
    Py_XDECREF(own->error);
    Py_XDECREF(own->latency);
    Py_XDECREF(own->delivery_count);
    free(own->copy);
    free(own);
}

/* Give a message its own copy of everything that nobody has read yet.  Return false if there is no memory. */
static bool leave_chunk(struct message *message)
{
    struct row_chunk *chunk = message->chunk;
    struct row *row = &chunk->rows.rows[message->index];
    struct own *own = calloc(1, sizeof *own);
    if (own == NULL)
        return false;
    own->copy = copy_row(row, chunk->rows.data, message->key == NULL, message->value == NULL, message->headers == NULL);
    if (own->copy == NULL) {
        free(own);
        return false;
    }
    own->topic = chunk->topic;
    Py_INCREF(own->topic);
    own->partition = chunk->partition;
    own->kept = chunk->kept;
    own->kept->references++;
    own->kept->copied_bytes += own_bytes(own);
    own->kept->copied_total += own_bytes(own);
    row->message = NULL;
    chunk->living_bytes -= row_bytes(row);
    message->chunk = NULL;
    message->own = own;
    drop_chunk(chunk);
    return true;
}

static bool mostly_unused(const struct row_chunk *chunk)
{
    return chunk->living_bytes < chunk->total_bytes - chunk->living_bytes;
}

/* Free a finished chunk after its living messages have copied their bytes.  Without memory, try again later. */
static void let_go(struct row_chunk *chunk)
{
    bool enough = true;
    chunk->references++;
    for (size_t i = 0; enough && i < chunk->taken; i++) {
        PyObject *object = chunk->rows.rows[i].message;
        if (object != NULL)
            enough = leave_chunk(message_of(object));
    }
    if (!enough)
        list_append(chunk, DUE);
    drop_chunk(chunk);
}

static void sweep(struct kept *kept)
{
    while (kept->window.first != NULL && (kept->closed || kept->window_bytes > kept->limit)) {
        struct row_chunk *oldest = kept->window.first;
        list_remove(oldest);
        if (mostly_unused(oldest))
            list_append(oldest, DUE);
    }
    struct row_chunk *last = kept->due.last; /* a chunk for which there was no memory is appended again */
    for (bool more = last != NULL; more;) {
        struct row_chunk *chunk = kept->due.first;
        more = chunk != last;
        list_remove(chunk);
        if (mostly_unused(chunk))
            let_go(chunk);
    }
}

/* The last row was handed out, or the other rows are not wanted. */
static void finish_chunk(RowsObject *self)
{
    struct row_chunk *chunk = self->chunk;
    if (chunk == NULL)
        return;
    struct kept *kept = chunk->kept;
    kept->references++;
    self->chunk = NULL;
    self->left = 0;
    chunk->finished = true;
    list_append(chunk, WINDOW);
    drop_chunk(chunk);
    sweep(kept);
    drop_kept(kept);
}

/* ---- messages ------------------------------------------------------------------------------------------------------- */

static PyObject *new_object(const struct kind *kind)
{
    PyObject *object = PyObject_GC_New(PyObject, kind->type);
    if (object != NULL)
        memset((char *)object + sizeof(PyObject), 0, kind->size - sizeof(PyObject));
    return object;
}

/* Return a message for row `index`, which is not tracked by the garbage collector: it refers to nothing but bytes. */
INLINE PyObject *new_message(const struct kind *kind, struct row_chunk *chunk, size_t index)
{
    PyObject *object = new_object(kind);
    if (object == NULL)
        return NULL;
    struct message *message = part_of(kind, object);
    struct row *row = &chunk->rows.rows[index];
    message->chunk = chunk;
    message->index = index;
    if (row->large != NULL) {
        message->value = (PyObject *)row->large;
        Py_INCREF(message->value);
    }
    row->message = object;
    chunk->references++;
    chunk->living_bytes += row_bytes(row);
    return object;
}

/* The application may store an object that refers to the message. */
static void track(PyObject *object)
{
    if (!PyObject_GC_IsTracked(object))
        PyObject_GC_Track(object);
}

/* Return whether the base has something to free: a program may have called a method of the base itself. */
INLINE bool base_is_used(const struct kind *kind, const PyObject *object)
{
    const char *at = (const char *)object + sizeof(PyObject), *end = (const char *)object + kind->base_size;
    uintptr_t bits = 0;
    for (; at < end; at += sizeof bits) {
        uintptr_t word;
        memcpy(&word, at, sizeof word);
        bits |= word;
    }
    return bits != 0;
}

static void message_dealloc(PyObject *object)
{
    const struct kind *kind = kind_of(object);
    struct message *message = part_of(kind, object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    struct row_chunk *chunk = message->chunk;
    if (chunk != NULL) {
        struct row *row = &chunk->rows.rows[message->index];
        row->message = NULL;
        chunk->living_bytes -= row_bytes(row);
        if (chunk->finished && chunk->place == NOWHERE && mostly_unused(chunk)) {
            if (chunk->kept->closed)
                let_go(chunk);
            else
                list_append(chunk, DUE);
        }
        drop_chunk(chunk);
    } else
        drop_own(message->own);
    Py_XDECREF(message->key);
    Py_XDECREF(message->value);
    Py_XDECREF(message->headers);
    if (kind->base_dealloc != NULL && base_is_used(kind, object))
        kind->base_dealloc(object);
    else
        PyObject_GC_Del(object);
    Py_DECREF(type);
}

static int message_traverse(PyObject *object, visitproc visit, void *arg)
{
    const struct kind *kind = kind_of(object);
    struct message *message = part_of(kind, object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(message->key);
    Py_VISIT(message->value);
    Py_VISIT(message->headers);
    if (message->chunk == NULL && message->own != NULL) {
        Py_VISIT(message->own->topic);
        Py_VISIT(message->own->error);
    }
    return kind->base_traverse != NULL ? kind->base_traverse(object, visit, arg) : 0;
}

/* Break cycles.  Fields become None rather than NULL, because NULL means that they were not read yet. */
static void set_none(PyObject **field)
{
    PyObject *old = *field;
    if (old == NULL)
        return;
    *field = Py_None;
    Py_INCREF(Py_None);
    Py_DECREF(old);
}

static int message_clear(PyObject *object)
{
    const struct kind *kind = kind_of(object);
    struct message *message = part_of(kind, object);
    set_none(&message->key);
    set_none(&message->value);
    set_none(&message->headers);
    if (message->chunk == NULL && message->own != NULL) {
        set_none(&message->own->topic);
        set_none(&message->own->error);
    }
    return kind->base_clear != NULL ? kind->base_clear(object) : 0;
}

static PyObject *or_none(PyObject *object)
{
    return new_reference(object != NULL ? object : Py_None);
}

static PyObject *bytes_or_none(PyObject **field, const uint8_t *data, int32_t size)
{
    if (*field == NULL) {
        if (size < 0)
            return new_reference(Py_None);
        *field = PyBytes_FromStringAndSize((const char *)data, size);
        if (*field == NULL)
            return NULL;
    }
    return new_reference(*field);
}

static PyObject *message_key(PyObject *self, PyObject *nothing)
{
    struct message *message = message_of(self);
    const uint8_t *data;
    (void)nothing;
    const struct row *row = view(message, &data);
    return bytes_or_none(&message->key, data + row->key, row->key_size);
}

static PyObject *message_value(PyObject *self, PyObject *nothing)
{
    struct message *message = message_of(self);
    const uint8_t *data;
    (void)nothing;
    const struct row *row = view(message, &data);
    return bytes_or_none(&message->value, data + row->value, row->value_size);
}

/* Return a header's key.  librdkafka's keys end at a NUL.  Malformed UTF-8 is replaced as Java does; confluent-kafka raises
 * SystemError there. */
static PyObject *header_key(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    if (nul != NULL)
        size = (size_t)(nul - data);
    char *text = malloc(3 * size + 1);
    if (text == NULL)
        return PyErr_NoMemory();
    const size_t length = (size_t)(put_text((uint8_t *)text, data, data + size) - (uint8_t *)text);
    PyObject *key = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    free(text);
    return key;
}

/* Return a list of (key, value).  The bytes belong to the caller, because a garbage collection may run any code. */
static PyObject *header_list(const uint8_t *data, size_t size)
{
    struct reader at = {data, data + size};
    PyObject *list = PyList_New(0);
    while (list != NULL && at.at < at.end) {
        const uint8_t *key = NULL, *value = NULL;
        int64_t key_size = 0, value_size = -1;
        /* Both were checked when the record was decoded. */
        (void)take_field(&at, &key, &key_size);
        (void)take_field(&at, &value, &value_size);
        PyObject *name = header_key(key, (size_t)key_size);
        PyObject *content =
            value_size < 0 ? new_reference(Py_None) : PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)value_size);
        PyObject *pair = name != NULL && content != NULL ? PyTuple_Pack(2, name, content) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(content);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *message_headers(PyObject *self, PyObject *nothing)
{
    struct message *message = message_of(self);
    (void)nothing;
    if (message->headers == NULL) {
        const uint8_t *data;
        const struct row *row = view(message, &data);
        const size_t size = row->headers_size;
        if (size == 0)
            return new_reference(Py_None);
        uint8_t *copy = malloc(size);
        if (copy == NULL)
            return PyErr_NoMemory();
        memcpy(copy, data + row->headers, size);
        PyObject *list = header_list(copy, size);
        free(copy);
        if (list == NULL)
            return NULL;
        if (message->headers == NULL) {
            message->headers = list;
            track(self);
        } else
            Py_DECREF(list);
    }
    return new_reference(message->headers);
}

static PyObject *message_topic(PyObject *self, PyObject *nothing)
{
    const struct message *message = message_of(self);
    (void)nothing;
    return or_none(message->chunk != NULL ? message->chunk->topic : message->own->topic);
}

static PyObject *message_partition(PyObject *self, PyObject *nothing)
{
    const struct message *message = message_of(self);
    const int32_t partition = message->chunk != NULL ? message->chunk->partition : message->own->partition;
    (void)nothing;
    return partition == -1 ? new_reference(Py_None) : PyLong_FromLong(partition);
}

static PyObject *message_offset(PyObject *self, PyObject *nothing)
{
    const uint8_t *data;
    const int64_t offset = view(message_of(self), &data)->offset;
    (void)nothing;
    return offset < 0 ? new_reference(Py_None) : PyLong_FromLongLong(offset);
}

static PyObject *message_timestamp(PyObject *self, PyObject *nothing)
{
    const uint8_t *data;
    const struct row *row = view(message_of(self), &data);
    (void)nothing;
    return Py_BuildValue("iL", (int)row->timestamp_type, (long long)row->timestamp);
}

static PyObject *message_leader_epoch(PyObject *self, PyObject *nothing)
{
    const uint8_t *data;
    const int32_t epoch = view(message_of(self), &data)->leader_epoch;
    (void)nothing;
    return epoch < 0 ? new_reference(Py_None) : PyLong_FromLong(epoch);
}

static PyObject *message_error(PyObject *self, PyObject *nothing)
{
    const struct message *message = message_of(self);
    (void)nothing;
    return or_none(message->chunk != NULL ? NULL : message->own->error);
}

static PyObject *message_latency(PyObject *self, PyObject *nothing)
{
    const struct message *message = message_of(self);
    (void)nothing;
    return or_none(message->chunk != NULL ? NULL : message->own->latency);
}

static PyObject *message_delivery_count(PyObject *self, PyObject *nothing)
{
    const struct message *message = message_of(self);
    (void)nothing;
    return or_none(message->chunk != NULL ? NULL : message->own->delivery_count);
}

static PyObject *set_field(PyObject *self, PyObject **field, PyObject *object)
{
    PyObject *old = *field;
    *field = new_reference(object);
    track(self);
    Py_XDECREF(old);
    return new_reference(Py_None);
}

static PyObject *message_set_key(PyObject *self, PyObject *object)
{
    return set_field(self, &message_of(self)->key, object);
}

static PyObject *message_set_value(PyObject *self, PyObject *object)
{
    return set_field(self, &message_of(self)->value, object);
}

static PyObject *message_set_headers(PyObject *self, PyObject *object)
{
    return set_field(self, &message_of(self)->headers, object);
}

static struct own *own_of(PyObject *self)
{
    struct message *message = message_of(self);
    if (message->chunk != NULL && !leave_chunk(message)) {
        PyErr_NoMemory();
        return NULL;
    }
    return message->own;
}

static PyObject *message_set_topic(PyObject *self, PyObject *object)
{
    struct own *own = own_of(self);
    return own == NULL ? NULL : set_field(self, &own->topic, object);
}

static PyObject *message_set_error(PyObject *self, PyObject *object)
{
    struct own *own = own_of(self);
    return own == NULL ? NULL : set_field(self, &own->error, object);
}

/* The arguments of the constructor of confluent_kafka.Message, in their order. */
static PyObject *message_reduce(PyObject *self, PyObject *nothing)
{
    static const PyCFunction fields[] = {
        message_topic, message_partition, message_offset,    message_key,     message_value,        message_headers,
        message_error, message_timestamp, message_latency, message_leader_epoch, message_delivery_count};
    const Py_ssize_t count = sizeof fields / sizeof *fields;
    PyObject *values = PyTuple_New(count);
    (void)nothing;
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        PyObject *value = fields[i](self, NULL);
        if (value == NULL || PyTuple_SetItem(values, i, value) < 0)
            Py_CLEAR(values);
    }
    if (values == NULL)
        return NULL;
    PyObject *reduced = PyTuple_Pack(2, kind_of(self)->rebuild, values);
    Py_DECREF(values);
    return reduced;
}

/* The length of the value.  Versions of confluent-kafka differ in the length of None that the application has set. */
static Py_ssize_t message_length(PyObject *self)
{
    const struct kind *kind = kind_of(self);
    struct message *message = part_of(kind, self);
    const uint8_t *data;
    if (message->value == NULL) {
        const int32_t size = view(message, &data)->value_size;
        return size < 0 ? 0 : size;
    }
    if (message->value == Py_None && !kind->length_of_none_fails)
        return 0;
    return PyObject_Length(message->value);
}

/* Return 1 if this method of both returns equal objects, 0 if not, -1 after an error. */
static int same(PyObject *self, PyObject *other, const char *method)
{
    PyObject *mine = PyObject_CallMethod(self, method, NULL);
    PyObject *theirs = mine == NULL ? NULL : PyObject_CallMethod(other, method, NULL);
    int equal = -1;
    if (theirs != NULL && (mine == Py_None || theirs == Py_None)) /* KafkaError cannot be compared with None */
        equal = mine == theirs;
    else if (theirs != NULL)
        equal = PyObject_RichCompareBool(mine, theirs, Py_EQ);
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return equal;
}

static int same_timestamp(PyObject *self, PyObject *other)
{
    PyObject *mine = PyObject_CallMethod(self, "timestamp", NULL);
    PyObject *theirs = mine == NULL ? NULL : PyObject_CallMethod(other, "timestamp", NULL);
    PyObject *first = theirs == NULL ? NULL : PySequence_GetItem(mine, 1);
    PyObject *second = first == NULL ? NULL : PySequence_GetItem(theirs, 1);
    int equal = second == NULL ? -1 : PyObject_RichCompareBool(first, second, Py_EQ);
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return equal;
}

/* Compare like newer versions of confluent_kafka.Message: without the type of the timestamp, the latency and the delivery count. */
static PyObject *message_compare(PyObject *self, PyObject *other, int how)
{
    static const char *const fields[] = {"topic", "partition", "offset", "key", "value", "headers", "error", "leader_epoch"};
    const int is_message = PyObject_IsInstance(other, kind_of(self)->base);
    if (is_message < 0)
        return NULL;
    if (!is_message || (how != Py_EQ && how != Py_NE))
        return new_reference(Py_NotImplemented);
    int equal = same_timestamp(self, other);
    for (size_t i = 0; equal == 1 && i < sizeof fields / sizeof *fields; i++)
        equal = same(self, other, fields[i]);
    if (equal < 0)
        return NULL;
    return PyBool_FromLong(equal == (how == Py_EQ));
}

/* ---- messages that are not rows ------------------------------------------------------------------------------------- */

static PyObject *none_is_null(PyObject *object)
{
    if (object == Py_None)
        return NULL;
    return new_reference(object);
}

/* Return the integer in `object`, or `absent` for None. */
static long long integer(PyObject *object, long long absent)
{
    return object == Py_None ? absent : PyLong_AsLongLong(object);
}

/* Set every field; `fields` are those of message_reduce().  Return -1 after an error, without a change. */
static int fill_message(PyObject *self, PyObject *fields)
{
    PyObject *topic, *partition, *offset, *key, *value, *headers, *error, *latency, *epoch, *count;
    int timestamp_type;
    long long timestamp;
    if (!PyArg_ParseTuple(fields, "OOOOOOO(iL)OOO", &topic, &partition, &offset, &key, &value, &headers, &error,
                          &timestamp_type, &timestamp, &latency, &epoch, &count))
        return -1;
    const long long number = integer(partition, -1), at = integer(offset, -1), leader_epoch = integer(epoch, -1);
    if (PyErr_Occurred())
        return -1;
    struct own *own = calloc(1, sizeof *own);
    struct copied_row *copy = calloc(1, sizeof *copy);
    if (own == NULL || copy == NULL) {
        free(own);
        free(copy);
        PyErr_NoMemory();
        return -1;
    }
    own->copy = copy;
    copy->row = (struct row){.offset = at,
                             .timestamp = timestamp,
                             .key_size = -1,
                             .value_size = -1,
                             .leader_epoch = (int32_t)leader_epoch,
                             .timestamp_type = (uint32_t)timestamp_type};
    own->partition = (int32_t)number;
    own->topic = none_is_null(topic);
    own->error = none_is_null(error);
    own->latency = none_is_null(latency);
    own->delivery_count = none_is_null(count);
    struct message *message = message_of(self);
    if (message->chunk != NULL && !leave_chunk(message)) {
        drop_own(own);
        PyErr_NoMemory();
        return -1;
    }
    struct message old = *message;
    message->own = own;
    message->key = none_is_null(key);
    message->value = none_is_null(value);
    message->headers = none_is_null(headers);
    track(self);
    drop_own(old.own);
    Py_XDECREF(old.key);
    Py_XDECREF(old.value);
    Py_XDECREF(old.headers);
    return 0;
}

static PyObject *new_filled(const struct kind *kind, PyObject *fields)
{
    PyObject *object = new_object(kind);
    if (object != NULL && fill_message(object, fields) < 0)
        Py_CLEAR(object);
    return object;
}

/* Return the fields of any message, by its methods. */
static PyObject *fields_of(PyObject *message)
{
    static const char *const methods[] = {"topic",     "partition", "offset",       "key",            "value", "headers", "error",
                                          "timestamp", "latency",   "leader_epoch", "delivery_count"};
    const Py_ssize_t count = sizeof methods / sizeof *methods;
    PyObject *fields = PyTuple_New(count);
    for (Py_ssize_t i = 0; fields != NULL && i < count; i++) {
        const bool is_there = PyObject_HasAttrString(message, methods[i]);
        PyObject *value = is_there ? PyObject_CallMethod(message, methods[i], NULL) : new_reference(Py_None);
        if (value == NULL || PyTuple_SetItem(fields, i, value) < 0)
            Py_CLEAR(fields);
    }
    return fields;
}

static PyObject *message_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args;
    (void)keywords;
    const struct kind *kind = kinds;
    while (kind->type != type)
        kind = kind->next;
    PyObject *fields = Py_BuildValue("OOOOOOO(ii)OOO", Py_None, Py_None, Py_None, Py_None, Py_None, Py_None, Py_None, 0, 0, Py_None,
                                     Py_None, Py_None);
    PyObject *object = fields == NULL ? NULL : new_filled(kind, fields);
    Py_XDECREF(fields);
    return object;
}

/* Take the arguments of the base's constructor. */
static int message_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    PyObject *made = PyObject_Call(kind_of(self)->base, args, keywords);
    PyObject *fields = made == NULL ? NULL : fields_of(made);
    const int result = fields == NULL ? -1 : fill_message(self, fields);
    Py_XDECREF(made);
    Py_XDECREF(fields);
    return result;
}

/* ---- the type of messages for a base -------------------------------------------------------------------------------- */

static const PyMethodDef message_methods[] = {
    {"error", message_error, METH_NOARGS, NULL},
    {"value", message_value, METH_NOARGS, NULL},
    {"key", message_key, METH_NOARGS, NULL},
    {"headers", message_headers, METH_NOARGS, NULL},
    {"topic", message_topic, METH_NOARGS, NULL},
    {"partition", message_partition, METH_NOARGS, NULL},
    {"offset", message_offset, METH_NOARGS, NULL},
    {"timestamp", message_timestamp, METH_NOARGS, NULL},
    {"latency", message_latency, METH_NOARGS, NULL},
    {"leader_epoch", message_leader_epoch, METH_NOARGS, NULL},
    {"delivery_count", message_delivery_count, METH_NOARGS, NULL},
    {"deserialized_key", message_key, METH_NOARGS, NULL},
    {"deserialized_value", message_value, METH_NOARGS, NULL},
    {"set_error", message_set_error, METH_O, NULL},
    {"set_value", message_set_value, METH_O, NULL},
    {"set_key", message_set_key, METH_O, NULL},
    {"set_headers", message_set_headers, METH_O, NULL},
    {"set_topic", message_set_topic, METH_O, NULL},
    {"__reduce__", message_reduce, METH_NOARGS, "Return what pickle and copy need for a message with its own bytes."},
};

#define MESSAGE_METHODS (sizeof message_methods / sizeof *message_methods)

/* Return a copy of the string attribute of an object, or NULL if it is no string. */
static char *text_attribute(PyObject *object, const char *name)
{
    PyObject *text = PyObject_GetAttrString(object, name);
    Py_ssize_t size = 0;
    const char *utf8 = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    char *copy = utf8 == NULL ? NULL : malloc((size_t)size + 1);
    if (copy != NULL)
        memcpy(copy, utf8, (size_t)size + 1);
    Py_XDECREF(text);
    PyErr_Clear();
    return copy;
}

/* Return those methods that the base has, with its documentation.  They live as long as the process. */
static PyMethodDef *methods_of(PyObject *base)
{
    PyMethodDef *methods = calloc(MESSAGE_METHODS + 1, sizeof *methods);
    size_t count = 0;
    for (size_t i = 0; methods != NULL && i < MESSAGE_METHODS; i++) {
        PyObject *method = PyObject_GetAttrString(base, message_methods[i].ml_name);
        if (method == NULL) {
            PyErr_Clear();
            continue;
        }
        methods[count] = message_methods[i];
        if (methods[count].ml_doc == NULL)
            methods[count].ml_doc = text_attribute(method, "__doc__");
        count++;
        Py_DECREF(method);
    }
    return methods;
}

static bool no_room_for_attributes(PyObject *base)
{
    for (const char *const *name = (const char *const[]){"__dictoffset__", "__weakrefoffset__", NULL}; *name != NULL; name++) {
        PyObject *offset = PyObject_GetAttrString(base, *name);
        const long value = offset == NULL ? -1 : PyLong_AsLong(offset);
        Py_XDECREF(offset);
        if (value != 0)
            return false;
    }
    return true;
}

/* Return whether len() fails if the application has set the value None, as in older versions of confluent-kafka. */
static bool length_of_none_fails(PyTypeObject *base)
{
    PyObject *probe = allocate(base);
    PyObject *set = probe == NULL ? NULL : PyObject_CallMethod(probe, "set_value", "O", Py_None);
    const bool fails = set != NULL && PyObject_Length(probe) < 0;
    Py_XDECREF(set);
    Py_XDECREF(probe);
    PyErr_Clear();
    return fails;
}

static PyTypeObject *make_type(struct kind *kind, PyTypeObject *base)
{
    const bool has_constructor = PyType_GetSlot(base, Py_tp_new) != NULL;
    const bool compares =
        PyType_GetSlot(base, Py_tp_richcompare) != PyType_GetSlot(&PyBaseObject_Type, Py_tp_richcompare);
    char *module = text_attribute((PyObject *)base, "__module__"), *name = text_attribute((PyObject *)base, "__name__");
    char *doc = text_attribute((PyObject *)base, "__doc__");
    PyMethodDef *methods = methods_of((PyObject *)base);
    PyObject *full = PyUnicode_FromFormat("%s.%s", module != NULL ? module : "builtins", name != NULL ? name : "Message");
    PyObject *bases = PyTuple_Pack(1, base);
    PyTypeObject *type = NULL;
    if (methods != NULL && full != NULL && bases != NULL) {
        PyType_Slot slots[12] = {
            {Py_tp_dealloc, message_dealloc}, {Py_tp_traverse, message_traverse}, {Py_tp_clear, message_clear},
            {Py_tp_methods, methods},         {Py_sq_length, message_length},
        };
        size_t count = 5;
        if (doc != NULL)
            slots[count++] = (PyType_Slot){Py_tp_doc, doc};
        if (compares)
            slots[count++] = (PyType_Slot){Py_tp_richcompare, message_compare};
        if (has_constructor) {
            slots[count++] = (PyType_Slot){Py_tp_new, message_new};
            slots[count++] = (PyType_Slot){Py_tp_init, message_init};
        }
        PyType_Spec spec = {
            .name = PyUnicode_AsUTF8AndSize(full, NULL),
            .basicsize = (int)kind->size,
            .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | (has_constructor ? 0 : Py_TPFLAGS_DISALLOW_INSTANTIATION),
            .slots = slots,
        };
        type = (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases);
    }
    Py_XDECREF(full);
    Py_XDECREF(bases);
    free(module);
    free(name);
    free(doc);
    return type;
}

/* message_type(base, rebuild): a subtype of `base` for messages; pickle calls rebuild(*fields) */
static PyObject *module_message_type(PyObject *module, PyObject *args)
{
    PyObject *base, *rebuild;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &base, &rebuild))
        return NULL;
    const bool in_python = PyType_GetFlags((PyTypeObject *)base) & Py_TPFLAGS_HEAPTYPE;
    if (in_python && !no_room_for_attributes(base)) {
        PyErr_SetString(PyExc_TypeError, "a class of messages needs __slots__, and no __dict__ and __weakref__");
        return NULL;
    }
    PyObject *size = PyObject_GetAttrString(base, "__basicsize__");
    const size_t base_size = size == NULL ? 0 : PyLong_AsSize_t(size);
    Py_XDECREF(size);
    struct kind *kind = size == NULL ? NULL : calloc(1, sizeof *kind);
    if (kind == NULL)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    const size_t alignment = sizeof(void *);
    kind->base_size = (base_size + alignment - 1) / alignment * alignment;
    kind->size = kind->base_size + sizeof(struct message);
    kind->length_of_none_fails = length_of_none_fails((PyTypeObject *)base);
    if (!in_python) {
        kind->base_dealloc = (destructor)PyType_GetSlot((PyTypeObject *)base, Py_tp_dealloc);
        kind->base_traverse = (traverseproc)PyType_GetSlot((PyTypeObject *)base, Py_tp_traverse);
        kind->base_clear = (inquiry)PyType_GetSlot((PyTypeObject *)base, Py_tp_clear);
    }
    kind->type = make_type(kind, (PyTypeObject *)base);
    if (kind->type == NULL) {
        free(kind);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    kind->base = new_reference(base);
    kind->rebuild = new_reference(rebuild);
    kind->next = kinds;
    kinds = kind;
    return new_reference((PyObject *)kind->type);
}

static const struct kind *checked_kind(PyObject *type)
{
    for (const struct kind *kind = kinds; kind != NULL; kind = kind->next)
        if ((PyObject *)kind->type == type)
            return kind;
    PyErr_SetString(PyExc_TypeError, "expected a type that message_type() returned");
    return NULL;
}

/* message(type, fields): a message that is no row of a chunk */
static PyObject *module_message(PyObject *module, PyObject *args)
{
    PyObject *type, *fields;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!", &type, &PyTuple_Type, &fields))
        return NULL;
    const struct kind *kind = checked_kind(type);
    return kind == NULL ? NULL : new_filled(kind, fields);
}

/* Return 1 if the first message of a partition was added, 0 if nothing was, or -1 with an exception. */
static int add_first(PyObject *found, PyObject *message)
{
    PyObject *error = PyObject_CallMethod(message, "error", NULL);
    if (error == NULL)
        return -1;
    Py_DECREF(error);
    if (error != Py_None)
        return 0;
    PyObject *topic = PyObject_CallMethod(message, "topic", NULL);
    PyObject *partition = topic == NULL ? NULL : PyObject_CallMethod(message, "partition", NULL);
    PyObject *key = partition == NULL ? NULL : PyTuple_Pack(2, topic, partition);
    Py_XDECREF(topic);
    Py_XDECREF(partition);
    const int known = key == NULL ? -1 : PyDict_Contains(found, key);
    const int added = known != 0 ? (known < 0 ? -1 : 0) : PyDict_SetItem(found, key, message) < 0 ? -1 : 1;
    Py_XDECREF(key);
    return added;
}

/* first_messages(list): (topic, partition) -> its first message in the list, without messages that report an error */
static PyObject *module_first_messages(PyObject *module, PyObject *list)
{
    const struct row_chunk *chunk = NULL;
    (void)module;
    if (!PyList_Check(list))
        return PyErr_Format(PyExc_TypeError, "expected a list");
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyList_Size(list); i++) {
        PyObject *message = PyList_GetItem(list, i);
        const struct kind *kind = kind_of(message);
        const struct row_chunk *const in = kind == NULL ? NULL : part_of(kind, message)->chunk;
        /* The rows of a chunk are of one partition. */
        if (in != NULL && in == chunk)
            continue;
        chunk = in;
        Py_INCREF(message);
        if (add_first(found, message) < 0)
            Py_CLEAR(found);
        Py_DECREF(message);
    }
    return found;
}

/* ---- Kept ----------------------------------------------------------------------------------------------------------- */

/* Kept(limit): the chunks of a consumer */
static PyObject *kept_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Py_ssize_t limit;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "n", &limit))
        return NULL;
    KeptObject *self = allocate(type);
    if (self == NULL)
        return NULL;
    self->kept = calloc(1, sizeof *self->kept);
    if (self->kept == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->kept->references = 1;
    self->kept->limit = limit > 0 ? (size_t)limit : 0;
    return (PyObject *)self;
}

static PyObject *kept_close(PyObject *object, PyObject *nothing)
{
    struct kept *kept = ((KeptObject *)object)->kept;
    (void)nothing;
    kept->closed = true;
    sweep(kept);
    return new_reference(Py_None);
}

static PyObject *kept_sweep(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    sweep(((KeptObject *)object)->kept);
    return new_reference(Py_None);
}

static void kept_dealloc(PyObject *object)
{
    struct kept *kept = ((KeptObject *)object)->kept;
    if (kept != NULL) {
        kept->closed = true;
        sweep(kept);
        drop_kept(kept);
    }
    deallocate(object);
}

static PyObject *kept_chunk_bytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((KeptObject *)self)->kept->chunk_bytes);
}

static PyObject *kept_copied_bytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((KeptObject *)self)->kept->copied_bytes);
}

static PyObject *kept_copied_total(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((KeptObject *)self)->kept->copied_total);
}

static PyMethodDef kept_methods[] = {
    {"sweep", kept_sweep, METH_NOARGS, "Let chunks go of which the application keeps less than half."},
    {"close", kept_close, METH_NOARGS, "From now on, let a chunk go as soon as the application keeps less than half of it."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef kept_attributes[] = {
    {"chunk_bytes", kept_chunk_bytes, NULL, "Memory of chunks in bytes.", NULL},
    {"copied_bytes", kept_copied_bytes, NULL, "Memory of living messages whose chunks were let go, in bytes.", NULL},
    {"copied_total", kept_copied_total, NULL, "Bytes that messages copied since the start.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot kept_slots[] = {
    {Py_tp_new, kept_new},
    {Py_tp_dealloc, kept_dealloc},
    {Py_tp_methods, kept_methods},
    {Py_tp_getset, kept_attributes},
    {0, NULL},
};

static PyType_Spec kept_spec = {"consumer_coord.columns._kernel.Kept", sizeof(KeptObject), 0, Py_TPFLAGS_DEFAULT, kept_slots};

/* ---- Rows ----------------------------------------------------------------------------------------------------------- */

/* Rows(type, kept, topic, partition) */
static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    const struct module_state *module = PyType_GetModuleState(type);
    PyObject *messages, *topic;
    KeptObject *kept;
    int partition;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OO!Ui", &messages, module->kept, &kept, &topic, &partition))
        return NULL;
    const struct kind *kind = checked_kind(messages);
    RowsObject *self = kind == NULL ? NULL : allocate(type);
    if (self == NULL)
        return NULL;
    struct row_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    chunk->references = 1;
    chunk->kept = kept->kept;
    chunk->kept->references++;
    chunk->topic = new_reference(topic);
    chunk->partition = partition;
    self->chunk = chunk;
    self->kind = kind;
    self->position = self->next_offset = -1;
    self->leader_epoch = -1;
    return (PyObject *)self;
}

static void rows_dealloc(PyObject *object)
{
    finish_chunk((RowsObject *)object);
    deallocate(object);
}

/* Let glibc keep the memory of large values when the application drops them.
 *
 * glibc returns the free end of its heap to the kernel if it is more than twice as large as the largest block that was ever
 * mapped and freed; the next values then cost a page fault for every 4 KiB.  A client whose receive buffers come and go teaches
 * glibc their size.  Ours stay, so this block, which is never touched, stands for them.  Limits that the user has set remain.
 */
static void keep_memory_of_values(void)
{
#if defined(__GLIBC__)
    static bool done;
    if (!done) {
        void *volatile block = malloc(LARGEST_RECEIVED);
        free(block);
        done = true;
    }
#endif
}

/* Make Python objects of large values, whose bytes belong to the response. */
static bool make_large(struct row_chunk *chunk, size_t from)
{
    for (size_t i = from; i < chunk->rows.count; i++) {
        struct row *row = &chunk->rows.rows[i];
        if (row->large == NULL)
            continue;
        keep_memory_of_values();
        PyObject *value = PyBytes_FromStringAndSize(row->large, row->value_size);
        if (value == NULL) {
            for (size_t j = i; j < chunk->rows.count; j++)
                chunk->rows.rows[j].large = NULL;
            give_large(chunk, from, i);
            return false;
        }
        chunk->with_large = true;
        chunk->large_bytes += (size_t)row->value_size;
        row->large = value;
    }
    return true;
}

/* append(batches, topic, partition, max_records, max_bytes, end=2**63 - 1) -> (records, bytes), as of a Builder */
static PyObject *rows_append(PyObject *object, PyObject *args)
{
    RowsObject *self = (RowsObject *)object;
    const struct module_state *module = PyType_GetModuleState(Py_TYPE(object));
    BatchesObject *batches;
    PyObject *topic;
    int partition;
    long long max_records, max_bytes, end = INT64_MAX;
    if (!PyArg_ParseTuple(args, "O!OiLL|L", module->batches, &batches, &topic, &partition, &max_records, &max_bytes, &end))
        return NULL;
    struct row_chunk *chunk = self->chunk;
    if (chunk == NULL || chunk->taken) {
        PyErr_SetString(PyExc_ValueError, "rows were taken already");
        return NULL;
    }
    if (!enter(&self->busy))
        return NULL;
    if (!enter(&batches->busy)) {
        leave(&self->busy);
        return NULL;
    }
    if (self->position < 0)
        self->position = batches->in.next_offset;
    const struct batches before = batches->in;
    const size_t count = chunk->rows.count, used = chunk->rows.used;
    int64_t records = max_records, bytes = max_bytes;
    const bool large = max_bytes > RELEASE_GIL_FROM && batches->in.records_size + batches->in.payload_size > RELEASE_GIL_FROM;
    PyThreadState *thread = large ? PyEval_SaveThread() : NULL;
    const bool complete = append_rows(&chunk->rows, &batches->in, end, &records, &bytes);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    /* Without memory, the rows before remain good. */
    bool enough = complete || chunk->rows.count > count;
    if (!make_large(chunk, count)) {
        batches->in = before;
        chunk->rows.count = count;
        chunk->rows.used = used;
        enough = false;
    }
    for (size_t i = count; i < chunk->rows.count; i++)
        chunk->total_bytes += row_bytes(&chunk->rows.rows[i]);
    count_bytes(chunk);
    self->next_offset = batches->in.next_offset;
    self->count = self->left = chunk->rows.count;
    if (self->left == 0)
        self->position = self->next_offset;
    leave(&batches->busy);
    leave(&self->busy);
    if (!enough)
        return PyErr_NoMemory();
    return Py_BuildValue("LL", max_records - (long long)records, max_bytes - (long long)bytes);
}

/* Return false, with an exception, if another thread appends. */
static bool begin_taking(RowsObject *self)
{
    if (!enter(&self->busy))
        return false;
    if (self->chunk->taken == 0) {
        shrink_rows(&self->chunk->rows);
        count_bytes(self->chunk);
    }
    return true;
}

static void end_taking(RowsObject *self, size_t count)
{
    struct row_chunk *chunk = self->chunk;
    const size_t from = chunk->taken, to = from + count;
    const struct row *last = &chunk->rows.rows[to - 1];
    chunk->taken = to;
    self->left -= count;
    self->position = self->left ? last->offset + 1 : self->next_offset;
    self->leader_epoch = last->leader_epoch;
    if (chunk->with_large) {
        give_large(chunk, from, to);
        count_bytes(chunk);
    }
    if (self->left == 0)
        finish_chunk(self);
    else
        sweep(chunk->kept);
    leave(&self->busy);
}

static PyObject *rows_take(PyObject *object, PyObject *argument)
{
    RowsObject *self = (RowsObject *)object;
    const Py_ssize_t most = PyLong_AsSsize_t(argument);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    const size_t count = most < 0 ? 0 : (size_t)most < self->left ? (size_t)most : self->left;
    PyObject *list = PyList_New((Py_ssize_t)count);
    if (list == NULL || count == 0)
        return list;
    if (self->left < count || !begin_taking(self)) {
        Py_DECREF(list);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "another thread has taken these rows");
    }
    for (size_t i = 0; i < count; i++) {
        PyObject *message = new_message(self->kind, self->chunk, self->chunk->taken + i);
        if (message == NULL) {
            leave(&self->busy);
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, message);
    }
    end_taking(self, count);
    return list;
}

static PyObject *rows_take_one(PyObject *object, PyObject *nothing)
{
    RowsObject *self = (RowsObject *)object;
    (void)nothing;
    if (self->left == 0)
        return new_reference(Py_None);
    if (!begin_taking(self))
        return NULL;
    PyObject *message = new_message(self->kind, self->chunk, self->chunk->taken);
    if (message == NULL) {
        leave(&self->busy);
        return NULL;
    }
    end_taking(self, 1);
    return message;
}

static PyObject *rows_close(PyObject *object, PyObject *nothing)
{
    RowsObject *self = (RowsObject *)object;
    (void)nothing;
    if (!enter(&self->busy))
        return NULL;
    finish_chunk(self);
    leave(&self->busy);
    return new_reference(Py_None);
}

static Py_ssize_t rows_length(PyObject *self)
{
    return (Py_ssize_t)((RowsObject *)self)->left;
}

static PyObject *rows_position(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((RowsObject *)self)->position);
}

static PyObject *rows_next_offset(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((RowsObject *)self)->next_offset);
}

static PyObject *rows_leader_epoch(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((RowsObject *)self)->leader_epoch);
}

static PyMethodDef rows_methods[] = {
    {"append", rows_append, METH_VARARGS, "Decode records of these batches; return (records, bytes)."},
    {"take", rows_take, METH_O, "Return a list of at most this number of messages."},
    {"take_one", rows_take_one, METH_NOARGS, "Return the next message, or None after the last one."},
    {"close", rows_close, METH_NOARGS, "Drop the messages that were not taken."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef rows_attributes[] = {
    {"position", rows_position, NULL, "The offset after the last message that was taken; after all, next_offset.", NULL},
    {"next_offset", rows_next_offset, NULL, "The offset after the last record that was decoded or skipped.", NULL},
    {"leader_epoch", rows_leader_epoch, NULL, "The leader epoch of the last message that was taken, or -1.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {Py_tp_getset, rows_attributes},
    {Py_sq_length, rows_length},
    {0, NULL},
};

static PyType_Spec rows_spec = {"consumer_coord.columns._kernel.Rows", sizeof(RowsObject), 0, Py_TPFLAGS_DEFAULT, rows_slots};
