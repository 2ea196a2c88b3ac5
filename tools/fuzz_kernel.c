/* Fuzz the columns kernel: fuzz_kernel SEED INPUTS. tools/fuzz_kernel.py compiles and runs it with sanitizers.
 *
 * An input is a response of a few batches, damaged in places, with right or wrong checksums. The kernel reads the input in
 * steps into random columns or into the rows of messages, with occasional failures of allocation; the fuzzer reads every
 * exported byte, everything that a message can read, and checks the invariants. The random numbers have a fixed seed, so a failure can be reproduced.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1dull;
}

static uint32_t below(uint32_t limit)
{
    return (uint32_t)((next_random() >> 32) * limit >> 32);
}

static unsigned failures_in_256;

static bool fails(void)
{
    return failures_in_256 && below(256) < failures_in_256;
}

static void *fuzzed_malloc(size_t size)
{
    return fails() ? NULL : malloc(size);
}

static void *fuzzed_calloc(size_t count, size_t size)
{
    return fails() ? NULL : calloc(count, size);
}

static void *fuzzed_realloc(void *memory, size_t size)
{
    return fails() ? NULL : realloc(memory, size);
}

static void *fuzzed_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : aligned_alloc(alignment, size);
}

#define malloc fuzzed_malloc
#define calloc fuzzed_calloc
#define realloc fuzzed_realloc
#define aligned_alloc fuzzed_aligned_alloc
#define WITHOUT_PYTHON
#ifndef KEPT_BYTES
#define KEPT_BYTES ((size_t)0) /* so that the sanitizer sees the end of every buffer's life */
#define KEPT_FROM ((size_t)256)
#endif
#define LARGE_VALUE 100 /* bytes; so that some values of this fuzzer are large */
#define GROWTH 1        /* no memory in reserve, so that the sanitizer sees the first byte too many */
#define LEAST_CHUNK_BYTES 1
#include "../consumer_coord/columns/_kernel.c"
#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc

static uint64_t input_number, input_state;

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "input %" PRIu64 " (state %" PRIu64 "): %s\n", input_number, input_state, what);
    abort();
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

static uint8_t made[1 << 16];
static size_t made_size;

static void put_byte(uint8_t byte)
{
    if (made_size < sizeof made)
        made[made_size++] = byte;
}

static void put_big(uint64_t value, int bytes)
{
    while (bytes--)
        put_byte((uint8_t)(value >> 8 * bytes));
}

static void put_varint(int64_t value)
{
    uint64_t raw = (uint64_t)value << 1 ^ (value < 0 ? ~(uint64_t)0 : 0);
    for (; raw > 0x7f; raw >>= 7)
        put_byte((uint8_t)(raw | 0x80));
    put_byte((uint8_t)raw);
}

static int64_t odd_number(void)
{
    static const int64_t odd[] = {-1, -2, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1 << 14, 0x80, 0x7f, 0};
    return odd[below(sizeof odd / sizeof *odd)];
}

static bool damaged; /* whether this input contains odd numbers */

static int64_t number_or_odd(int64_t value)
{
    return damaged && below(64) == 0 ? odd_number() : value;
}

static void put_bytes(int64_t size)
{
    put_varint(number_or_odd(size));
    for (int64_t i = 0; i < size; i++)
        put_byte(below(4) ? (uint8_t)('a' + below(26)) : (uint8_t)below(256));
}

static void put_record(int64_t delta)
{
    static uint8_t before[sizeof made];
    const size_t start = made_size;
    put_byte(0);
    put_varint(number_or_odd((int64_t)below(1000) - 500));
    put_varint(number_or_odd(delta));
    put_bytes((int64_t)below(10) - 1);
    put_bytes(below(30) ? (int64_t)below(20) - 1 : (int64_t)below(1500));
    const int64_t headers = below(3) ? 0 : below(4);
    put_varint(number_or_odd(headers));
    for (int64_t i = 0; i < headers; i++) {
        put_bytes(below(6));
        put_bytes((int64_t)below(6) - 1);
    }
    const size_t size = made_size - start;
    memcpy(before, made + start, size);
    made_size = start;
    put_varint(number_or_odd((int64_t)size));
    for (size_t i = 0; i < size; i++)
        put_byte(before[i]);
}

static int64_t put_batch(int64_t base)
{
    const size_t start = made_size;
    const uint32_t count = below(12);
    uint16_t attributes = 0;
    if (below(4) == 0)
        attributes |= (uint16_t)(1 + below(damaged ? 7 : 4));
    if (below(4) == 0)
        attributes |= APPEND_TIME;
    if (below(3) == 0)
        attributes |= TRANSACTIONAL;
    if (below(6) == 0)
        attributes = TRANSACTIONAL | CONTROL;
    put_big((uint64_t)number_or_odd(base), 8);
    put_big(0, 4);
    put_big(0, 4);
    put_byte((uint8_t)(damaged && below(64) == 0 ? below(4) : 2));
    put_big(0, 4);
    put_big(attributes, 2);
    const size_t delta_at = made_size;
    put_big(0, 4);
    put_big((uint64_t)(below(8) ? 1700000000000 : odd_number()), 8);
    put_big((uint64_t)(below(8) ? 1700000000000 : odd_number()), 8);
    put_big((uint64_t)((int64_t)below(4) - 1), 8);
    put_big(0, 2);
    put_big(0, 4);
    put_big((uint64_t)number_or_odd(count), 4);
    int64_t delta = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (attributes & CONTROL) {
            put_varint(10);
            put_big(0, 2);
            put_varint(i);
            put_varint(4);
            put_big(below(2), 4);
            put_big(1, 1);
            put_big(0, 1);
        } else
            put_record(delta);
        delta += 1 + (below(8) == 0 ? below(5) : 0);
    }
    const int64_t last = number_or_odd(delta ? delta - 1 + below(2) : 0);
    const size_t end = made_size;
    made_size = delta_at;
    put_big((uint64_t)last, 4);
    made_size = start + 8;
    put_big((uint64_t)number_or_odd((int64_t)(end - start) - BATCH_OVERHEAD), 4);
    made_size = end;
    if (damaged)
        for (uint32_t i = below(4); i > 1; i--)
            made[start + below((uint32_t)(end - start))] = (uint8_t)below(256);
    if (end - start > 21 && below(16)) {
        const uint32_t crc = crc32c(made + start + 21, end - start - 21);
        made_size = start + 17;
        put_big(crc, 4);
        made_size = end;
    }
    return base + (last > 0 && last < 100000 ? last : 0) + 1 + below(2);
}

/* ---- invariants ------------------------------------------------------------------------------------------------------ */

static volatile uint64_t sink;

static void read_all(const void *memory, size_t size)
{
    const uint8_t *bytes = memory;
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += bytes[i];
    sink = sum;
}

static void check_utf8(const uint8_t *at, const uint8_t *end)
{
    uint8_t *copy = malloc((size_t)(end - at) * 3 + 1);
    const size_t size = (size_t)(put_text(copy, at, end) - copy);
    must(size == (size_t)(end - at) && memcmp(copy, at, size) == 0, "a header key is not UTF-8");
    free(copy);
}

static size_t check_ends(const struct ArrowArray *array)
{
    const int32_t *ends = array->buffers[1];
    must(ends[0] == 0, "the first offset is not 0");
    for (int64_t i = 0; i < array->length; i++)
        must(ends[i] <= ends[i + 1], "offsets fall");
    return (size_t)ends[array->length];
}

static void check_validity(const struct ArrowArray *array)
{
    const uint8_t *valid = array->buffers[0];
    int64_t nulls = 0;
    for (int64_t i = 0; valid != NULL && i < array->length; i++)
        nulls += !(valid[i / 8] >> i % 8 & 1);
    must(nulls == array->null_count, "the number of nulls is wrong");
}

static void check_strings(const struct ArrowArray *array, bool text)
{
    const size_t size = check_ends(array);
    const int32_t *ends = array->buffers[1];
    const uint8_t *data = array->buffers[2];
    check_validity(array);
    read_all(data, size);
    for (int64_t i = 0; text && i < array->length; i++)
        check_utf8(data + ends[i], data + ends[i + 1]);
}

static void check_array(const struct ArrowArray *array, const struct store *store)
{
    must(array->n_children == (int64_t)store->columns, "columns are missing");
    for (size_t i = 0; i < store->columns; i++) {
        const struct ArrowArray *child = array->children[i];
        must(child->length == array->length, "a column has another length");
        switch ((enum column)store->order[i]) {
        case KEY:
        case VALUE:
            check_strings(child, false);
            break;
        case TOPIC:
            check_strings(child, true);
            must(child->null_count == 0 && check_ends(child) == (size_t)child->length * 6, "a topic is wrong");
            break;
        case PARTITION:
        case TIMESTAMP_TYPE:
            read_all(child->buffers[1], (size_t)child->length * 4);
            break;
        case OFFSET:
        case TIMESTAMP:
            read_all(child->buffers[1], (size_t)child->length * 8);
            break;
        case HEADERS:
            check_validity(child);
            must(check_ends(child) == (size_t)child->children[0]->length, "headers are missing");
            check_strings(child->children[0]->children[0], true);
            check_strings(child->children[0]->children[1], false);
            break;
        case COLUMNS:
            break;
        }
    }
}

static void check_store(struct store *store)
{
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    size_t rows = 0;
    const bool exported = export_stream(store, &stream);
    drop_store(store); /* the stream keeps it */
    if (!exported)
        return;
    if (stream.get_schema(&stream, &schema) == 0) {
        must(schema.n_children == (int64_t)store->columns, "fields are missing");
        schema.release(&schema);
    }
    const size_t expected = store->rows;
    bool complete = true;
    for (;;) {
        struct ArrowArray array;
        if (stream.get_next(&stream, &array) != 0) {
            complete = false;
            break;
        }
        if (array.release == NULL)
            break;
        check_array(&array, store);
        rows += (size_t)array.length;
        struct ArrowArray moved = *array.children[0]; /* a consumer may keep one column */
        array.children[0]->release = NULL;
        array.release(&array);
        read_all(moved.buffers[1], (size_t)moved.length * 4);
        moved.release(&moved);
    }
    must(!complete || rows == expected, "rows are missing");
    stream.release(&stream);
}

/* ---- messages -------------------------------------------------------------------------------------------------------- */

/* Read the headers as a message does; they must end where the row says. */
static void check_row_headers(const uint8_t *data, size_t size)
{
    struct reader at = {data, data + size};
    while (at.at < at.end) {
        const uint8_t *field = NULL;
        int64_t field_size = -1;
        must(take_field(&at, &field, &field_size) == FINE && field_size >= 0, "a header of a row has no key");
        read_all(field, (size_t)field_size);
        must(take_field(&at, &field, &field_size) == FINE, "a header of a row has no value");
        read_all(field, size_or_0(field_size));
    }
}

/* A field lies behind all fields before it, and within the data. */
static size_t check_span(size_t before, size_t position, int64_t size, size_t used)
{
    if (size <= 0)
        return before;
    must(position >= before, "a row reaches into the row before it, or its fields overlap");
    must(position + (size_t)size <= used, "a row reaches beyond its chunk");
    return position + (size_t)size;
}

static void check_copy(const struct row *row, const uint8_t *data)
{
    const bool key = below(2), value = below(2), headers = below(2);
    struct copied_row *copy = copy_row(row, data, key, value, headers);
    if (copy == NULL)
        return;
    read_all(copy->data, copy->size);
    must(!key || row->key_size < 0 || memcmp(copy->data + copy->row.key, data + row->key, (size_t)row->key_size) == 0,
         "a copied key differs");
    must(!value || row->large != NULL || row->value_size < 0 ||
             memcmp(copy->data + copy->row.value, data + row->value, (size_t)row->value_size) == 0,
         "a copied value differs");
    if (headers)
        check_row_headers(copy->data + copy->row.headers, copy->row.headers_size);
    free(copy);
}

static void check_same(const struct strings *column, size_t row, const uint8_t *data, int64_t size)
{
    const int32_t *ends = column->ends;
    const bool null = column->valid != NULL && !(column->valid[row / 8] >> row % 8 & 1);
    must(null ? size == -1 : size == ends[row + 1] - ends[row], "the size of a field differs from the column's");
    must(size <= 0 || memcmp(column->data + ends[row], data, (size_t)size) == 0, "a field differs from the column's");
}

/* Compare keys and values with those of columns, which another function decodes from the same position. */
static void check_content(const struct rows *rows, struct batches in)
{
    struct builder out = {.limit = INT32_MAX, .chosen = 1u << KEY | 1u << VALUE | 1u << OFFSET, .columns = 3};
    const struct label label = {(const uint8_t *)"orders", 6, 0};
    const unsigned before = failures_in_256;
    int64_t wanted = (int64_t)rows->count, bytes = INT64_MAX;
    failures_in_256 = 0;
    must(append(&out, &in, &label, INT64_MAX, &wanted, &bytes) && wanted == 0, "columns have fewer records");
    const struct chunk *chunk = out.count ? &out.chunks[0] : NULL;
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->rows[i];
        must(row->offset == chunk->offset[i], "the offset of a row differs from the column's");
        check_same(&chunk->key, i, rows->data + row->key, row->key_size);
        check_same(&chunk->value, i, row->large != NULL ? row->large : rows->data + row->value, row->value_size);
    }
    free_chunks(out.chunks, out.count);
    failures_in_256 = before;
}

/* Check a chunk before the response is freed, because large values are in the response. */
static void check_rows(struct rows *rows, int64_t from, int64_t to)
{
    size_t behind = 0, bytes = 0;
    if (below(2))
        shrink_rows(rows);
    must(rows->used <= rows->data_capacity && rows->count <= rows->capacity, "a chunk is larger than its memory");
    /* In memory of exactly its size, so that the sanitizer sees the first byte behind it. */
    uint8_t *data = malloc(rows->used + !rows->used);
    if (rows->used)
        memcpy(data, rows->data, rows->used);
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->rows[i];
        must(row->offset >= from && row->offset < to, "the offset of a row is not in order");
        from = row->offset + 1;
        behind = check_span(behind, row->key, row->key_size, rows->used);
        if (row->large != NULL) {
            must(row->value_size >= LARGE_VALUE, "a small value is not in the chunk");
            read_all(row->large, (size_t)row->value_size);
        } else
            behind = check_span(behind, row->value, row->value_size, rows->used);
        behind = check_span(behind, row->headers, row->headers_size, rows->used);
        check_row_headers(data + row->headers, row->headers_size);
        check_copy(row, data);
        bytes += row_bytes(row);
    }
    must(bytes <= allocated_bytes(rows), "rows count more bytes than their chunk has");
    free(data);
    free_rows(rows);
}

/* ---- one input ------------------------------------------------------------------------------------------------------- */

static void read_response(struct builder *out, int32_t partition)
{
    made_size = 0;
    damaged = below(4) != 0;
    int64_t base = below(50);
    const int64_t asked = base + below(12);
    for (uint32_t i = below(5); i > 0; i--)
        base = put_batch(base);
    if (below(8) == 0 && made_size)
        made_size = below((uint32_t)made_size);
    /* In memory of exactly its size, so that the sanitizer sees the first byte behind it. */
    uint8_t *records = malloc(made_size + !made_size);
    memcpy(records, made, made_size);
    struct aborted aborted[4];
    const size_t aborted_count = below(5);
    for (size_t i = 0; i < aborted_count; i++)
        aborted[i] = (struct aborted){(int64_t)below(3), below(80)};
    struct batches in = {.records = records, .records_size = made_size, .next_offset = asked};
    uint8_t *payload = NULL;
    const bool enough = scan(&in, aborted, aborted_count, below(2), below(4) == 0) == FINE;
    const struct label label = {(const uint8_t *)"orders", 6, partition};
    int64_t previous = asked;
    const bool into_rows = below(2);
    for (uint32_t step = 0; enough && step < 200; step++) {
        if (in.state == COMPRESSED) {
            int64_t ends[4];
            size_t waiting = 0;
            for (size_t i = in.index; i < in.count; i++)
                waiting += !in.batches[i].skipped && !in.batches[i].decompressed && in.batches[i].count;
            must(waiting, "nothing waits");
            /* The generator does not compress: the unchanged bytes, cut or not, represent the decompressed ones. */
            size_t size = 0, count = 0;
            uint8_t *plain = malloc(made_size + 1);
            for (size_t i = in.index; i < in.count && count < 1 + below(4); i++) {
                const struct batch *batch = &in.batches[i];
                if (batch->skipped || batch->decompressed || !batch->count)
                    continue;
                const size_t part = below(16) ? batch->size : below((uint32_t)batch->size + 1);
                memcpy(plain + size, records + batch->start, part);
                size += part;
                ends[count++] = (int64_t)size;
            }
            free(payload);
            payload = malloc(size + !size);
            memcpy(payload, plain, size);
            free(plain);
            in.payload = payload;
            in.payload_size = size;
            supply(&in, ends, count, count == 0 || below(16) == 0);
        }
        int64_t wanted = 1 + below(below(2) ? 3 : 100), bytes = 1 + below(2000);
        const int64_t before = wanted;
        const size_t rows = out->rows;
        struct rows messages = {.count = 0};
        const int64_t ahead = below(4) ? INT64_MAX : (int64_t)below(40);
        const int64_t end = ahead < INT64_MAX - in.next_offset ? in.next_offset + ahead : INT64_MAX;
        const struct batches position = in;
        if (into_rows)
            (void)append_rows(&messages, &in, end, &wanted, &bytes);
        else
            (void)append(out, &in, &label, end, &wanted, &bytes);
        must(out->rows - rows + messages.count == (size_t)(before - wanted), "the number of records is wrong");
        check_content(&messages, position);
        check_rows(&messages, previous, in.next_offset);
        for (size_t row = 0; CHOSEN(out->chosen, OFFSET) && row < out->rows - rows; row++) {
            const struct chunk *chunk = &out->chunks[out->count - 1];
            if (row == chunk->rows)
                break; /* the others are in the previous chunk */
            const int64_t offset = chunk->offset[chunk->rows - 1 - row];
            must(offset >= previous && offset < in.next_offset - (int64_t)row, "an offset is not in order");
        }
        must(in.next_offset >= previous, "the position goes back");
        previous = in.next_offset;
        if (in.state == EXHAUSTED || in.state == FAILED)
            break;
    }
    must(in.state != FAILED || in.problem != FINE, "no problem");
    free(in.batches);
    free(payload);
    free(records);
}

static void one_input(void)
{
    struct builder out = {.limit = below(3) ? INT32_MAX : 10 + below(300)};
    failures_in_256 = below(4) ? 0 : 1 + below(20);
    for (uint32_t i = 1 + below(COLUMNS); i > 0; i--) {
        const uint8_t column = (uint8_t)below(COLUMNS);
        if (CHOSEN(out.chosen, column))
            continue;
        out.chosen |= 1u << column;
        out.order[out.columns++] = column;
    }
    for (uint32_t i = 1 + below(3); i > 0; i--)
        read_response(&out, (int32_t)i);
    struct store *store = finish(&out);
    if (store != NULL)
        check_store(store);
    else
        free_chunks(out.chunks, out.count);
    failures_in_256 = 0;
}

/* The checksum by this processor's instructions equals the one by tables, for every size and alignment. */
static void check_crcs_of_sizes(void)
{
    for (size_t size = 0; size < 1600; size++) {
        uint8_t *data = malloc(size + 1); /* exactly as large as needed, so that the sanitizer sees reads beyond the end */
        for (size_t i = 0; i <= size; i++)
            data[i] = (uint8_t)below(256);
        for (size_t skipped = 0; skipped < 2; skipped++) {
            const size_t left = size + 1 - skipped;
            must(crc32c(data + skipped, left) == ~crc_by_table(~(uint32_t)0, data + skipped, left), "a checksum is wrong");
        }
        free(data);
    }
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: %s SEED INPUTS\n", arguments[0]);
        return 2;
    }
    state = strtoull(arguments[1], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    const uint64_t inputs = strtoull(arguments[2], NULL, 10);
    prepare_crc();
    check_crcs_of_sizes();
    for (input_number = 0; input_number < inputs; input_number++) {
        input_state = state;
        one_input();
    }
    printf("%" PRIu64 " inputs\n", inputs);
    return 0;
}
