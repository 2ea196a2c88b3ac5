/* Chunks of messages: decode record batches into rows, whose keys, values and headers remain bytes until they are read.
 *
 * _kernel.c includes this file, whose rules apply here, too.  _messages.h makes the Python objects.
 *
 * A chunk owns its bytes: they are copied out of the response, so no message keeps a response (which may have 50 MB, of many
 * partitions) in memory.  A value of at least LARGE_VALUE bytes is not copied into the chunk, because it becomes a Python
 * object of its own at once.
 */
#ifndef LARGE_VALUE
#define LARGE_VALUE 16384
#endif
#ifndef LEAST_CHUNK_BYTES
#define LEAST_CHUNK_BYTES 256
#endif

/* A record.  Key, value and headers are positions in the chunk's data; null has the size -1. */
struct row {
    int64_t offset, timestamp;
    void *message;     /* the living Python object of this row; it clears this pointer when it dies */
    const void *large; /* NULL, or a value that is not in the data: bytes of the response, later a Python object */
    uint32_t key, value, headers, headers_size;
    int32_t key_size, value_size, leader_epoch;
    uint32_t timestamp_type;
};

struct rows {
    struct row *rows;
    uint8_t *data;
    size_t count, capacity;      /* in rows */
    size_t used, data_capacity;  /* in bytes */
};

/* A row with its own copy of those bytes that nobody has read yet. */
struct copied_row {
    struct row row;
    size_t size; /* of `data`, in bytes */
    uint8_t data[];
};

enum timestamp_type { NO_TIMESTAMP, CREATE_TIME, LOG_APPEND_TIME }; /* as in confluent_kafka */

static void free_rows(struct rows *rows)
{
    free_buffer(rows->rows);
    free_buffer(rows->data);
    memset(rows, 0, sizeof *rows);
}

INLINE size_t size_or_0(int64_t size)
{
    return size > 0 ? (size_t)size : 0;
}

/* The bytes of memory that a row takes in its chunk. */
INLINE size_t row_bytes(const struct row *row)
{
    const size_t value = row->large != NULL ? 0 : size_or_0(row->value_size);
    return sizeof *row + size_or_0(row->key_size) + value + row->headers_size;
}

static bool reserve_row(struct rows *out, size_t more)
{
    if (more <= out->capacity - out->count)
        return true;
    if (!resize(&out->rows, grown(out->capacity, out->count + more, 1), sizeof *out->rows))
        return false;
    out->capacity = buffer_size((uint8_t *)out->rows) / sizeof *out->rows;
    return true;
}

static bool reserve_row_data(struct rows *out, size_t more)
{
    if (more <= out->data_capacity - out->used)
        return true;
    if (!resize(&out->data, grown(out->data_capacity, out->used + more, LEAST_CHUNK_BYTES), 1))
        return false;
    out->data_capacity = buffer_size(out->data);
    return true;
}

/* Bytes of a payload that are copied together, because copying record by record takes longer. */
struct run {
    const uint8_t *from, *to;
};

/* Copy a run; reserve_row_data() was called for its size. */
INLINE void end_run(struct rows *out, struct run *run, const uint8_t *next)
{
    const size_t size = (size_t)(run->to - run->from);
    if (size)
        memcpy(out->data + out->used, run->from, size);
    out->used += size;
    run->from = run->to = next;
}

/* Add a checked record that ends at `end`.  Return false, and change nothing that can be seen, if there is no memory. */
INLINE bool add_row(struct rows *out, struct run *run, const struct batch *batch, const struct record *record, const uint8_t *end)
{
    const bool large = record->value_size >= LARGE_VALUE;
    const uint8_t *const at = run->from == run->to ? record->key : run->from;
    const size_t size = (size_t)(end - at) - (large ? (size_t)record->value_size : 0);
    if (UNLIKELY(!reserve_row(out, 1) || !reserve_row_data(out, size)))
        return false;
    run->from = at;
    struct row *row = &out->rows[out->count++];
    *row = (struct row){
        .offset = record->offset,
        .timestamp = batch->attributes & WITHOUT_TIME ? 0 : timestamp_of(batch, record), /* as in librdkafka */
        .key = (uint32_t)(out->used + (size_t)(record->key - at)),
        .key_size = (int32_t)record->key_size,
        .value = (uint32_t)(out->used + (size_t)(record->value - at)),
        .value_size = (int32_t)record->value_size,
        .leader_epoch = batch->leader_epoch,
        .timestamp_type = batch->attributes & APPEND_TIME    ? LOG_APPEND_TIME
                          : batch->attributes & WITHOUT_TIME ? NO_TIMESTAMP
                                                             : CREATE_TIME,
    };
    run->to = end;
    if (UNLIKELY(large)) {
        run->to = record->value;
        end_run(out, run, record->value + record->value_size);
        run->to = end;
        row->large = record->value;
        row->value = 0;
    }
    if (record->header_count) {
        row->headers = (uint32_t)(out->used + (size_t)(record->headers.at - run->from));
        row->headers_size = (uint32_t)(record->headers.end - record->headers.at);
    }
    return true;
}

/* Like decode(), but into rows. */
static enum problem decode_rows(struct rows *out, struct batches *in, int64_t end, int64_t *records, int64_t *bytes)
{
    const struct batch *batch = &in->batches[in->index];
    const uint8_t *start = ((batch->attributes & CODEC) ? in->payload : in->records) + batch->start;
    struct reader at = {start + in->consumed, start + batch->size};
    struct run run = {at.at, at.at};
    enum problem problem = FINE;
    const int64_t left = batch->count - in->record;
    if (in->record == 0 && (uint64_t)left * LEAST_RECORD > batch->size)
        return RECORD_COUNT;
    while (in->record < batch->count) {
        if (*records <= 0 || *bytes <= 0)
            break;
        struct record record;
        const uint8_t *record_start = at.at;
        problem = read_record(&at, batch, in->previous, &record);
        if (UNLIKELY(problem != FINE))
            break;
        if (UNLIKELY(record.header_count)) {
            struct headers headers = {.at = record.headers, .count = (size_t)record.header_count};
            problem = check_headers(&headers);
            if (UNLIKELY(problem != FINE))
                break;
        }
        const bool early = record.offset < in->next_offset; /* a batch may begin before the requested offset */
        if (UNLIKELY(!early && record.offset >= end)) {
            in->next_offset = end;
            break;
        }
        /* Positions in a chunk have 32 bits. A later chunk takes this record. */
        if (UNLIKELY((uint64_t)out->used + (uint64_t)(at.at - run.from) > UINT32_MAX)) {
            *bytes = 0;
            break;
        }
        if (UNLIKELY(!early && !add_row(out, &run, batch, &record, at.at))) {
            problem = NO_MEMORY;
            break;
        }
        in->previous = record.offset;
        if (!early) {
            in->next_offset = record.offset + 1;
            *records -= 1;
            *bytes -= at.at - record_start;
        }
        in->record++;
        in->consumed = (size_t)(at.at - start);
    }
    end_run(out, &run, NULL);
    if (problem != FINE || in->record < batch->count)
        return problem;
    if (in->consumed != batch->size)
        return BYTES_REMAIN;
    in->next_offset = last_offset(batch) + 1;
    in->index++;
    in->consumed = 0;
    in->record = 0;
    return FINE;
}

/* Reserve memory for the next records, as if all records of a batch were of the same size. */
static bool reserve_rows_of(struct rows *out, const struct batches *in, int64_t records, int64_t bytes)
{
    double size = 0, count = 0;
    for (size_t i = in->index; i < in->count && size < (double)bytes && count < (double)records; i++) {
        const struct batch *batch = &in->batches[i];
        if (!batch->decompressed)
            break;
        const bool begun = i == in->index;
        const double all = (double)(batch->count - (begun ? in->record : 0)), rest = (double)(batch->size - (begun ? in->consumed : 0));
        if (batch->skipped || all < 1 || rest < all * LEAST_RECORD)
            continue;
        double most = rest / all * ((double)records - count + 1); /* one record more, because the last one may exceed `bytes` */
        if (most > (double)bytes - size + rest / all)
            most = (double)bytes - size + rest / all;
        if (most > rest)
            most = rest;
        count += all * most / rest;
        if (rest / all < LARGE_VALUE)
            size += most;
    }
    return reserve_row(out, (size_t)count + 1) && (size < 1 || reserve_row_data(out, (size_t)size + 1));
}

/* Like append(), but into rows. */
static bool append_rows(struct rows *out, struct batches *in, int64_t end, int64_t *records, int64_t *bytes)
{
    if (*records > 0 && *bytes > 0 && !ended(in, end) && in->state == READY && !reserve_rows_of(out, in, *records, *bytes))
        return false;
    while (!ended(in, end) && in->state == READY && *records > 0 && *bytes > 0) {
        const enum problem problem = decode_rows(out, in, end, records, bytes);
        if (problem == NO_MEMORY)
            return false;
        if (problem != FINE)
            fail(in, problem);
        else
            advance(in);
    }
    return true;
}

/* Replace the buffer at `place` by one of about `size` bytes, if there is memory. */
static void shrink(void *place, size_t size)
{
    uint8_t **buffer = place, *smaller = make_buffer(size);
    if (smaller == NULL)
        return;
    if (size)
        memcpy(smaller, *buffer, size);
    free_buffer(*buffer);
    *buffer = smaller;
}

/* Return memory that was reserved but not used; without memory for a smaller copy, nothing changes. */
static void shrink_rows(struct rows *rows)
{
    if (rows->capacity - rows->count > rows->count / 4)
        shrink(&rows->rows, rows->count * sizeof *rows->rows);
    if (rows->data_capacity - rows->used > rows->used / 4)
        shrink(&rows->data, rows->used);
    rows->capacity = rows->rows == NULL ? 0 : buffer_size((uint8_t *)rows->rows) / sizeof *rows->rows;
    rows->data_capacity = rows->data == NULL ? 0 : buffer_size(rows->data);
}

INLINE size_t allocated_bytes(const struct rows *rows)
{
    return rows->capacity * sizeof *rows->rows + rows->data_capacity;
}

/* Return a copy of a row, with the bytes of those fields that are asked for; NULL if there is no memory. */
static struct copied_row *copy_row(const struct row *row, const uint8_t *data, bool key, bool value, bool headers)
{
    const size_t key_size = key ? size_or_0(row->key_size) : 0;
    const size_t value_size = value && row->large == NULL ? size_or_0(row->value_size) : 0;
    const size_t headers_size = headers ? row->headers_size : 0;
    struct copied_row *copy = malloc(sizeof *copy + key_size + value_size + headers_size);
    if (copy == NULL)
        return NULL;
    copy->row = *row;
    copy->size = key_size + value_size + headers_size;
    copy->row.message = NULL;
    copy->row.key = 0;
    copy->row.value = (uint32_t)key_size;
    copy->row.headers = (uint32_t)(key_size + value_size);
    if (key_size)
        memcpy(copy->data, data + row->key, key_size);
    if (value_size)
        memcpy(copy->data + key_size, data + row->value, value_size);
    if (headers_size)
        memcpy(copy->data + key_size + value_size, data + row->headers, headers_size);
    return copy;
}
