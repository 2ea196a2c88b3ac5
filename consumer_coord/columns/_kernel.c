/* Convert the record batches of Fetch responses into Arrow arrays, or into messages (_rows.h and _messages.h).
 *
 * The first part decodes and exports, without Python: tools/fuzz_kernel.c compiles it with WITHOUT_PYTHON.
 * The second part, at the end, is the Python module.  consumer_coord/columns/python_columns.py does the same in Python.
 *
 * Rules:
 *   1. Bytes from the network are read only through a `struct reader`.  Each read first checks the reader's end.
 *   2. Before any column changes, the whole record is checked and its memory is reserved.  So a builder never has half a
 *      record, whatever the bytes are, and even if memory runs out.
 *   3. Records that were decoded before a problem remain readable.  No record after a problem is decoded.
 *   4. Exported arrays share the store's buffers by a reference count.  They outlive the builder and the Python objects.
 */
#ifndef WITHOUT_PYTHON
#include <Python.h>
#endif

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The processor's instructions for CRC-32C. CRC_AVAILABLE says at run time whether this processor has them. */
#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_AVAILABLE __builtin_cpu_supports("sse4.2")
#define crc_of_8_bytes(crc, value) ((uint32_t)_mm_crc32_u64(crc, value))
#define crc_of_byte _mm_crc32_u8
#include <immintrin.h>
#define FOLDING_TARGET __attribute__((target("sse4.2,avx512f,vpclmulqdq")))
#define FOLDING_AVAILABLE \
    (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_TARGET
#define CRC_AVAILABLE true
#define crc_of_8_bytes __crc32cd
#define crc_of_byte __crc32cb
#elif defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__linux__) && !defined(__clang__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))
#define CRC_AVAILABLE (getauxval(AT_HWCAP) & HWCAP_CRC32)
#define crc_of_8_bytes __crc32cd
#define crc_of_byte __crc32cb
#endif

/* ---- problems ------------------------------------------------------------------------------------------------------- */

enum problem {
    FINE,
    NO_MEMORY,
    OLD_FORMAT,
    UNKNOWN_FORMAT,
    BATCH_SIZE,
    WRONG_CRC,
    BATCH_OFFSETS,
    OFFSETS_GO_BACK,
    RECORD_COUNT,
    UNKNOWN_CODEC,
    CONTROL_BATCH,
    DECOMPRESSION,
    RECORD_SIZE,
    VARINT,
    RECORD_OFFSET,
    FIELD_SIZE,
    HEADER_COUNT,
    HEADER_KEY,
    BYTES_REMAIN,
    TOO_LARGE,
};

/* python_columns.py has the same texts. */
static const char *const PROBLEMS[] = {
    [FINE] = "nothing is wrong",
    [NO_MEMORY] = "no memory",
    [OLD_FORMAT] = "the record format is 0 or 1, older than Kafka 0.11; only format 2 can be read",
    [UNKNOWN_FORMAT] = "the record format is unknown; only format 2 can be read",
    [BATCH_SIZE] = "the length of the batch is smaller than its header",
    [WRONG_CRC] = "the CRC-32C of the batch is wrong",
    [BATCH_OFFSETS] = "the offsets of the batch are out of range",
    [OFFSETS_GO_BACK] = "the batch begins before the end of the previous batch",
    [RECORD_COUNT] = "the batch cannot hold as many records as its header says",
    [UNKNOWN_CODEC] = "the compression codec is unknown",
    [CONTROL_BATCH] = "the control batch is malformed",
    [DECOMPRESSION] = "the batch cannot be decompressed",
    [RECORD_SIZE] = "the length of a record does not fit its content or its batch",
    [VARINT] = "a varint is too long or does not end within its record",
    [RECORD_OFFSET] = "the offset of a record is outside its batch or not behind the previous record",
    [FIELD_SIZE] = "a key, value or header is longer than its record, or has a negative length",
    [HEADER_COUNT] = "a record cannot hold as many headers as it says",
    [HEADER_KEY] = "a header has no key",
    [BYTES_REMAIN] = "bytes remain behind the last record of the batch",
    [TOO_LARGE] = "a record is too large for an Arrow column",
};

/* ---- reading -------------------------------------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

struct reader {
    const uint8_t *at;
    const uint8_t *end;
};

/* The only bounds check. */
INLINE bool has(const struct reader *in, uint64_t size)
{
    return (uint64_t)(in->end - in->at) >= size;
}

INLINE uint16_t big16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

INLINE uint32_t big32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

INLINE int64_t big64(const uint8_t *at)
{
    return (int64_t)((uint64_t)big32(at) << 32 | big32(at + 4));
}

/* Read a zigzag varint.  The byte at `last_shift` is the last possible byte, and has at most the value `last_byte`. */
INLINE bool take_varint(struct reader *in, unsigned last_shift, uint8_t last_byte, int64_t *value)
{
    uint64_t raw = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
        if (UNLIKELY(!has(in, 1)))
            return false;
        byte = *in->at++;
        if (UNLIKELY(shift == last_shift && byte > last_byte))
            return false;
        raw |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    *value = (int64_t)(raw >> 1 ^ (0 - (raw & 1)));
    return true;
}

INLINE bool take_varint32(struct reader *in, int64_t *value)
{
    return take_varint(in, 28, 0x0f, value);
}

INLINE bool take_varint64(struct reader *in, int64_t *value)
{
    return take_varint(in, 63, 0x01, value);
}

/* ---- CRC-32C -------------------------------------------------------------------------------------------------------- */

#define LANE 256 /* bytes of each of the three lanes that the processor computes in parallel; with 512, it does not read ahead in time,
                  * and takes three times as long */

#define CRC_POLYNOMIAL 0x82f63b78 /* its lowest bit is the highest power of x */

static uint32_t crc_table[8][256];
static uint32_t crc_behind_lane[4][256]; /* the effect of LANE zero bytes on each byte of a checksum */

static uint32_t crc_by_table(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        const uint32_t low = crc ^ ((uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0]);
        crc = crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^ crc_table[5][low >> 16 & 0xff] ^
              crc_table[4][low >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]] ^ crc_table[0][at[7]];
    }
    for (; size; size--, at++)
        crc = crc_table[0][(crc ^ *at) & 0xff] ^ crc >> 8;
    return crc;
}

#if defined(CRC_TARGET)
static bool crc_in_hardware;

INLINE uint64_t load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE uint32_t behind_lane(uint32_t crc)
{
    return crc_behind_lane[0][crc & 0xff] ^ crc_behind_lane[1][crc >> 8 & 0xff] ^ crc_behind_lane[2][crc >> 16 & 0xff] ^
           crc_behind_lane[3][crc >> 24];
}

CRC_TARGET static uint32_t crc_by_processor(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 3 * LANE; size -= 3 * LANE, at += 3 * LANE) {
        uint32_t first = crc, second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            first = crc_of_8_bytes(first, load64(at + i));
            second = crc_of_8_bytes(second, load64(at + LANE + i));
            third = crc_of_8_bytes(third, load64(at + 2 * LANE + i));
        }
        crc = behind_lane(behind_lane(first) ^ second) ^ third;
    }
    for (; size >= 8; size -= 8, at += 8)
        crc = crc_of_8_bytes(crc, load64(at));
    for (; size; size--, at++)
        crc = crc_of_byte(crc, *at);
    return crc;
}
#endif

#if defined(FOLDING_TARGET)
#define FOLDED 256 /* bytes of the four registers of 64 bytes */

/* Polynomials modulo the CRC's: what moves the two halves of a block of 16 bytes by 256 and by 64 bytes, and the first three
 * blocks of 64 bytes to the last one. */
static uint64_t fold_by_256[2], fold_by_64[2], fold_to_last[8];
static bool crc_by_folding_available;

/* Fill the factors of a block's halves that move the block by `bits`. A product without carries has a factor x too much. */
static void fill_factors(uint64_t factors[2], unsigned bits)
{
    for (int half = 0; half < 2; half++) {
        uint32_t power = (uint32_t)1 << 31; /* the polynomial 1: the bit of the highest value has the lowest power of x */
        for (unsigned i = 1; i < bits + (half == 0 ? 64 : 0); i++)
            power = power >> 1 ^ (power & 1 ? CRC_POLYNOMIAL : 0);
        factors[half] = (uint64_t)power << 32;
    }
}

FOLDING_TARGET INLINE __m512i folded(__m512i block, __m512i factors, __m512i more)
{
    const __m512i first = _mm512_clmulepi64_epi128(block, factors, 0x00);
    const __m512i second = _mm512_clmulepi64_epi128(block, factors, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(first, second), more);
}

/* Like crc_by_processor(), four times as fast, for at least FOLDED bytes. */
FOLDING_TARGET static uint32_t crc_by_folding(uint32_t crc, const uint8_t *at, size_t size)
{
    __m512i by = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)fold_by_256));
    __m512i one = _mm512_loadu_si512(at), two = _mm512_loadu_si512(at + 64);
    __m512i three = _mm512_loadu_si512(at + 128), four = _mm512_loadu_si512(at + 192);
    one = _mm512_xor_si512(one, _mm512_inserti32x4(_mm512_setzero_si512(), _mm_cvtsi32_si128((int)crc), 0));
    for (size -= FOLDED, at += FOLDED; size >= FOLDED; size -= FOLDED, at += FOLDED) {
        one = folded(one, by, _mm512_loadu_si512(at));
        two = folded(two, by, _mm512_loadu_si512(at + 64));
        three = folded(three, by, _mm512_loadu_si512(at + 128));
        four = folded(four, by, _mm512_loadu_si512(at + 192));
    }
    by = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)fold_by_64));
    four = folded(folded(folded(one, by, two), by, three), by, four);
    uint64_t moved[8], last[8];
    _mm512_storeu_si512(moved, folded(four, _mm512_loadu_si512(fold_to_last), _mm512_setzero_si512()));
    _mm512_storeu_si512(last, four);
    const uint64_t low = moved[0] ^ moved[2] ^ moved[4] ^ last[6], high = moved[1] ^ moved[3] ^ moved[5] ^ last[7];
    return crc_by_processor(crc_of_8_bytes(crc_of_8_bytes(0, low), high), at, size);
}
#endif

static void prepare_crc(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        crc_table[0][byte] = crc;
    }
    for (int further = 1; further < 8; further++)
        for (int byte = 0; byte < 256; byte++)
            crc_table[further][byte] = crc_table[further - 1][byte] >> 8 ^ crc_table[0][crc_table[further - 1][byte] & 0xff];
    static const uint8_t zeros[LANE];
    uint32_t bits[32];
    for (int bit = 0; bit < 32; bit++)
        bits[bit] = crc_by_table((uint32_t)1 << bit, zeros, LANE);
    for (int place = 0; place < 4; place++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1)
                    crc ^= bits[8 * place + bit];
            crc_behind_lane[place][byte] = crc;
        }
#if defined(CRC_TARGET)
    crc_in_hardware = CRC_AVAILABLE;
#endif
#if defined(FOLDING_TARGET)
    crc_by_folding_available = FOLDING_AVAILABLE;
    fill_factors(fold_by_256, 8 * FOLDED);
    fill_factors(fold_by_64, 8 * 64);
    for (unsigned block = 0; block < 3; block++) /* the last block is not moved, so its factors remain 0 */
        fill_factors(fold_to_last + 2 * block, 128 * (3 - block));
#endif
}

static uint32_t crc32c(const uint8_t *at, size_t size)
{
#if defined(FOLDING_TARGET)
    if (crc_by_folding_available && size >= FOLDED)
        return ~crc_by_folding(~(uint32_t)0, at, size);
#endif
#if defined(CRC_TARGET)
    if (crc_in_hardware)
        return ~crc_by_processor(~(uint32_t)0, at, size);
#endif
    return ~crc_by_table(~(uint32_t)0, at, size);
}

/* ---- the record batches of one partition ---------------------------------------------------------------------------- */

#define BATCH_HEADER 61
#define BATCH_OVERHEAD 12 /* base offset and length, which the length does not include */
#define LEAST_RECORD 7    /* one byte each: length, attributes, two deltas, key, value, number of headers */

/* Kafka does not use WITHOUT_TIME; old_formats.py sets it for records of format 0, which had no timestamps. */
enum attributes { CODEC = 0x07, APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20, WITHOUT_TIME = 0x4000 };

enum state {
    READY,      /* the next record can be decoded */
    EXHAUSTED,  /* no complete batch remains */
    COMPRESSED, /* the next batch must be decompressed first */
    FAILED,     /* `problem` is at `next_offset` */
};

struct batch {
    size_t start, size; /* the payload: in the response, or if compressed in the decompressed bytes */
    int64_t base_offset, base_timestamp, max_timestamp;
    int32_t last_offset_delta, count, leader_epoch;
    uint16_t attributes;
    bool skipped;      /* a control batch, or a batch of an aborted transaction */
    bool decompressed; /* true from the start if the batch is not compressed */
};

struct aborted {
    int64_t producer_id, first_offset;
};

struct batches {
    const uint8_t *records, *payload; /* the response, and the bytes that were decompressed last */
    size_t records_size, payload_size;
    struct batch *batches;
    size_t count, capacity, index;
    size_t consumed;     /* bytes of the current batch's payload that were read */
    int32_t record;      /* records of the current batch that were read */
    int64_t previous;    /* offset of the last record that was read */
    int64_t next_offset; /* the offset after the last record that was read or skipped */
    int64_t needs;       /* size of the first batch if it is incomplete, else 0 */
    enum state state;
    enum problem problem; /* the problem after the last batch of the table */
};

static int compare_aborted(const void *left, const void *right)
{
    const struct aborted *a = left, *b = right;
    if (a->producer_id != b->producer_id)
        return a->producer_id < b->producer_id ? -1 : 1;
    return (a->first_offset > b->first_offset) - (a->first_offset < b->first_offset);
}

/* Return the number of transactions that are equal to this pair, or sort before this pair. */
static size_t aborted_up_to(const struct aborted *sorted, size_t count, int64_t producer_id, int64_t offset)
{
    const struct aborted wanted = {producer_id, offset};
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (compare_aborted(&sorted[middle], &wanted) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Read the next record of a batch. */
INLINE enum problem take_record(struct reader *in, struct reader *record)
{
    int64_t size;
    if (UNLIKELY(!take_varint32(in, &size)))
        return VARINT;
    if (UNLIKELY(size < 0 || !has(in, (uint64_t)size)))
        return RECORD_SIZE;
    record->at = in->at;
    record->end = in->at += size;
    return FINE;
}

/* Read a field with its length; null has the size -1. */
INLINE enum problem take_field(struct reader *in, const uint8_t **data, int64_t *size)
{
    if (UNLIKELY(!take_varint32(in, size)))
        return VARINT;
    *data = in->at;
    if (UNLIKELY(*size < 0))
        return *size == -1 ? FINE : FIELD_SIZE;
    if (UNLIKELY(!has(in, (uint64_t)*size)))
        return FIELD_SIZE;
    in->at += *size;
    return FINE;
}

/* Return whether a control batch aborts a transaction (type 0 in the key of its record). */
static enum problem read_marker(struct reader payload, int32_t count, bool *aborts)
{
    struct reader record;
    const uint8_t *key;
    int64_t delta, size;
    *aborts = false;
    if (count == 0)
        return FINE; /* compaction removed the record that marks the end of a transaction */
    if (take_record(&payload, &record) != FINE || !has(&record, 1))
        return CONTROL_BATCH;
    record.at++;
    if (!take_varint64(&record, &delta) || !take_varint32(&record, &delta) || take_field(&record, &key, &size) != FINE || size < 4)
        return CONTROL_BATCH;
    *aborts = big16(key + 2) == 0;
    return FINE;
}

/* Read the header of the batch at `in`, which is complete, and skip the batch. */
static enum problem take_batch(struct reader *in, size_t size, bool check_crcs, int64_t least, struct batch *batch,
                               int64_t *producer_id)
{
    const uint8_t *at = in->at;
    in->at += size;
    if (check_crcs && crc32c(at + 21, size - 21) != big32(at + 17))
        return WRONG_CRC;
    batch->base_offset = big64(at);
    batch->leader_epoch = (int32_t)big32(at + 12);
    batch->attributes = big16(at + 21);
    batch->last_offset_delta = (int32_t)big32(at + 23);
    batch->base_timestamp = big64(at + 27);
    batch->max_timestamp = big64(at + 35);
    *producer_id = big64(at + 43);
    batch->count = (int32_t)big32(at + 57);
    batch->size = size - BATCH_HEADER;
    batch->decompressed = !(batch->attributes & CODEC);
    batch->skipped = false;
    if (batch->base_offset < 0 || batch->last_offset_delta < 0 || batch->base_offset >= INT64_MAX - batch->last_offset_delta)
        return BATCH_OFFSETS;
    if (batch->base_offset < least)
        return OFFSETS_GO_BACK;
    if (batch->count < 0 || batch->count > (int64_t)batch->last_offset_delta + 1)
        return RECORD_COUNT;
    if (batch->decompressed && (uint64_t)batch->count * LEAST_RECORD > batch->size)
        return RECORD_COUNT;
    if ((batch->attributes & CODEC) > 4)
        return UNKNOWN_CODEC;
    if ((batch->attributes & CONTROL) && !batch->decompressed)
        return CONTROL_BATCH;
    return FINE;
}

INLINE int64_t last_offset(const struct batch *batch)
{
    return batch->base_offset + batch->last_offset_delta;
}

/* Skip batches without a record for the application, and set the state. */
static void advance(struct batches *in)
{
    for (; in->index < in->count; in->index++, in->consumed = 0, in->record = 0) {
        const struct batch *batch = &in->batches[in->index];
        const int64_t last = last_offset(batch);
        const bool empty = batch->count == 0 && (batch->size == 0 || (batch->attributes & CODEC));
        if (!batch->skipped && !empty && last >= in->next_offset) {
            in->state = batch->decompressed ? READY : COMPRESSED;
            if (in->record == 0)
                in->previous = batch->base_offset - 1;
            return;
        }
        if (last >= in->next_offset)
            in->next_offset = last + 1;
    }
    in->state = in->problem == FINE ? EXHAUSTED : FAILED;
}

/* Make the current batch and all later batches unreadable. */
static void fail(struct batches *in, enum problem problem)
{
    in->count = in->index;
    in->problem = problem;
    in->state = FAILED;
}

/* Check the batches of a response and list them.  `aborted` gets sorted. */
static enum problem scan(struct batches *in, struct aborted *aborted, size_t aborted_count, bool read_committed, bool check_crcs)
{
    struct reader at = {in->records, in->records + in->records_size};
    size_t *closed = NULL; /* at a producer's first index: the end of its transactions with an abort marker */
    int64_t least = 0;
    if (aborted_count) {
        closed = calloc(aborted_count, sizeof *closed);
        if (closed == NULL)
            return NO_MEMORY;
        qsort(aborted, aborted_count, sizeof *aborted, compare_aborted);
    }
    while (at.at < at.end) {
        int32_t length = BATCH_HEADER - BATCH_OVERHEAD;
        if (has(&at, BATCH_OVERHEAD))
            length = (int32_t)big32(at.at + 8);
        if (length < 0) {
            in->problem = BATCH_SIZE;
            break;
        }
        if (has(&at, 17) && at.at[16] != 2) {
            in->problem = at.at[16] < 2 ? OLD_FORMAT : UNKNOWN_FORMAT;
            break;
        }
        const uint64_t size = (uint64_t)length + BATCH_OVERHEAD;
        if (has(&at, 17) && size < BATCH_HEADER) {
            in->problem = BATCH_SIZE;
            break;
        }
        if (!has(&at, size) || size < BATCH_HEADER) { /* the batch is incomplete, so the next Fetch must return it again */
            if (in->count == 0)
                in->needs = size < BATCH_HEADER ? BATCH_HEADER : (int64_t)size;
            break;
        }
        if (in->count == in->capacity) {
            const size_t capacity = in->capacity ? 2 * in->capacity : 16;
            struct batch *batches = realloc(in->batches, capacity * sizeof *batches);
            if (batches == NULL) {
                free(closed);
                return NO_MEMORY;
            }
            in->batches = batches;
            in->capacity = capacity;
        }
        struct batch *batch = &in->batches[in->count];
        int64_t producer_id;
        batch->start = (size_t)(at.at - in->records) + BATCH_HEADER;
        in->problem = take_batch(&at, (size_t)size, check_crcs, least, batch, &producer_id);
        if (in->problem != FINE)
            break;
        least = last_offset(batch) + 1;
        const size_t first = aborted_up_to(aborted, aborted_count, producer_id, INT64_MIN);
        const size_t begun = aborted_up_to(aborted, aborted_count, producer_id, least - 1);
        if (batch->attributes & CONTROL) {
            const uint8_t *payload = in->records + batch->start;
            bool aborts = false;
            if (read_committed)
                in->problem = read_marker((struct reader){payload, payload + batch->size}, batch->count, &aborts);
            if (in->problem != FINE)
                break;
            batch->skipped = true;
            if (aborts && begun > first)
                closed[first] = begun;
        } else if (read_committed && (batch->attributes & TRANSACTIONAL) && producer_id >= 0 && begun > first) {
            batch->skipped = begun > closed[first];
        }
        in->count++;
    }
    free(closed);
    advance(in);
    return FINE;
}

/* ---- buffers -------------------------------------------------------------------------------------------------------- */

/* Keep large buffers for the next columns.  New memory would cause a page fault for each 4 KiB, which takes twice as long
 * as decoding.  The process keeps at most KEPT_BYTES. */
#ifndef KEPT_BYTES
#define KEPT_BYTES ((size_t)64 << 20)
#define KEPT_FROM ((size_t)32 << 10) /* in bytes; the C library keeps smaller buffers */
#endif
#define KEPT_BUFFERS 32
#define ALIGNMENT 64                 /* in bytes, as Arrow recommends; the bytes before a buffer store its size */

static struct {
    uint8_t *buffers[KEPT_BUFFERS];
    size_t count, bytes;
    int locked;
} kept;

/* Never wait for the lock, which may remain locked for ever after fork().  In that case this process keeps no buffers. */
static bool lock_kept(void)
{
    return !__atomic_exchange_n(&kept.locked, 1, __ATOMIC_ACQUIRE);
}

static void unlock_kept(void)
{
    __atomic_store_n(&kept.locked, 0, __ATOMIC_RELEASE);
}

static size_t buffer_size(const uint8_t *buffer)
{
    size_t size;
    memcpy(&size, buffer - ALIGNMENT, sizeof size);
    return size;
}

static uint8_t *kept_buffer(size_t size)
{
    uint8_t *found = NULL;
    if (!lock_kept())
        return NULL;
    for (size_t i = kept.count; i-- > 0 && found == NULL;)
        if (buffer_size(kept.buffers[i]) >= size && buffer_size(kept.buffers[i]) <= size + size / 8) {
            found = kept.buffers[i];
            kept.bytes -= buffer_size(found);
            kept.buffers[i] = kept.buffers[--kept.count];
        }
    unlock_kept();
    return found;
}

/* Return a buffer of at least `size` bytes, or NULL if there is no memory. */
static uint8_t *make_buffer(size_t size)
{
    if (size > SIZE_MAX / 4)
        return NULL;
    size_t rounded = ALIGNMENT;
    if (size < KEPT_FROM)
        rounded = (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    else {
        while (rounded < size / 8)
            rounded *= 2;
        rounded = (size + rounded - 1) / rounded * rounded;
    }
    if (rounded >= KEPT_FROM) {
        uint8_t *buffer = kept_buffer(rounded);
        if (buffer != NULL)
            return buffer;
    }
    uint8_t *memory = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded);
    if (memory == NULL)
        return NULL;
    memcpy(memory, &rounded, sizeof rounded);
    return memory + ALIGNMENT;
}

static void free_buffer(void *buffer)
{
    if (buffer == NULL)
        return;
    uint8_t *unused = buffer;
    const size_t size = buffer_size(unused);
    if (size >= KEPT_FROM && size <= KEPT_BYTES && lock_kept()) {
        if (kept.count < KEPT_BUFFERS && size <= KEPT_BYTES - kept.bytes) {
            kept.buffers[kept.count++] = unused;
            kept.bytes += size;
            unused = NULL;
        }
        unlock_kept();
    }
    if (unused != NULL)
        free(unused - ALIGNMENT);
}

/* Make the buffer at `place` (NULL for none) large enough, and keep its content. */
static bool resize(void *place, size_t count, size_t size)
{
    uint8_t **buffer = place;
    if (count > SIZE_MAX / size)
        return false;
    const size_t there = *buffer == NULL ? 0 : buffer_size(*buffer);
    if (*buffer != NULL && count * size <= there)
        return true;
    uint8_t *larger = make_buffer(count * size);
    if (larger == NULL)
        return false;
    if (*buffer != NULL)
        memcpy(larger, *buffer, there);
    free_buffer(*buffer);
    *buffer = larger;
    return true;
}

/* ---- columns -------------------------------------------------------------------------------------------------------- */

enum column { KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS, COLUMNS };

#define CHOSEN(set, column) ((set) & 1u << (column))

/* Strings or bytes: row i is the data from ends[i] to ends[i + 1]. */
struct strings {
    int32_t *ends;
    uint8_t *data, *valid; /* `valid` has one bit for each row; NULL before the first null */
    size_t used, capacity;
    int64_t nulls;
};

/* One Arrow record batch.  Each of its columns has at most `limit` bytes of data. */
struct chunk {
    size_t rows, capacity;
    struct strings key, value, topic;
    int32_t *partition, *timestamp_type, *header_ends;
    int64_t *offset, *timestamp, header_nulls;
    uint8_t *header_valid;
    size_t headers, headers_capacity; /* number of headers of all rows */
    struct strings header_key, header_value;
};

/* The columns whose memory the exported arrays share. */
struct store {
    size_t references;
    uint8_t order[COLUMNS];
    size_t columns;
    size_t rows, count;
    struct chunk *chunks;
};

struct builder {
    uint8_t order[COLUMNS];
    size_t columns;
    unsigned chosen;
    size_t limit;
    size_t rows, count; /* number of rows in all chunks, number of chunks */
    struct chunk *chunks;
    size_t run; /* rows at the end of the last chunk without topic and partition */
};

struct label {
    const uint8_t *topic;
    size_t topic_size;
    int32_t partition;
};

static void free_strings(struct strings *strings)
{
    free_buffer(strings->ends);
    free_buffer(strings->data);
    free_buffer(strings->valid);
}

static void free_chunks(struct chunk *chunks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct chunk *chunk = &chunks[i];
        free_strings(&chunk->key);
        free_strings(&chunk->value);
        free_strings(&chunk->topic);
        free_buffer(chunk->partition);
        free_buffer(chunk->timestamp_type);
        free_buffer(chunk->header_ends);
        free_buffer(chunk->offset);
        free_buffer(chunk->timestamp);
        free_buffer(chunk->header_valid);
        free_strings(&chunk->header_key);
        free_strings(&chunk->header_value);
    }
    free(chunks);
}

static bool resize_bits(uint8_t **bits, size_t old_rows, size_t rows)
{
    if (!resize(bits, rows / 8 + 1, 1))
        return false;
    const size_t kept = old_rows ? old_rows / 8 + 1 : 0;
    memset(*bits + kept, 0xff, rows / 8 + 1 - kept);
    return true;
}

/* The bits of new rows are set in advance, so that only a null needs a write. */
static bool resize_strings(struct strings *strings, size_t old_rows, size_t rows)
{
    const bool fresh = strings->ends == NULL;
    if (!resize(&strings->ends, rows + 1, sizeof *strings->ends))
        return false;
    if (fresh)
        strings->ends[0] = 0;
    return strings->valid == NULL || resize_bits(&strings->valid, old_rows, rows);
}

#ifndef GROWTH
#define GROWTH 2
#endif

static size_t grown(size_t capacity, size_t needed, size_t least)
{
    const size_t twice = capacity > SIZE_MAX / 4 ? needed : GROWTH * capacity;
    const size_t most = twice > needed ? twice : needed;
    return most > least ? most : least;
}

static bool reserve_rows(struct chunk *chunk, unsigned chosen, size_t more)
{
    const size_t old = chunk->capacity;
    if (more <= old - chunk->rows && old)
        return true;
    const size_t rows = grown(old, chunk->rows + more, 64);
    if ((CHOSEN(chosen, KEY) && !resize_strings(&chunk->key, old, rows)) ||
        (CHOSEN(chosen, VALUE) && !resize_strings(&chunk->value, old, rows)) ||
        (CHOSEN(chosen, TOPIC) && !resize_strings(&chunk->topic, old, rows)) ||
        (CHOSEN(chosen, PARTITION) && !resize(&chunk->partition, rows, sizeof *chunk->partition)) ||
        (CHOSEN(chosen, OFFSET) && !resize(&chunk->offset, rows, sizeof *chunk->offset)) ||
        (CHOSEN(chosen, TIMESTAMP) && !resize(&chunk->timestamp, rows, sizeof *chunk->timestamp)) ||
        (CHOSEN(chosen, TIMESTAMP_TYPE) && !resize(&chunk->timestamp_type, rows, sizeof *chunk->timestamp_type)))
        return false;
    if (CHOSEN(chosen, HEADERS)) {
        const bool fresh = chunk->header_ends == NULL;
        if (!resize(&chunk->header_ends, rows + 1, sizeof *chunk->header_ends))
            return false;
        if (fresh)
            chunk->header_ends[0] = 0;
        if (chunk->header_valid != NULL && !resize_bits(&chunk->header_valid, old, rows))
            return false;
    }
    chunk->capacity = rows;
    return true;
}

static bool reserve_headers(struct chunk *chunk, size_t more)
{
    const size_t old = chunk->headers_capacity;
    if (more <= old - chunk->headers && old)
        return true;
    const size_t headers = grown(old, chunk->headers + more, 64);
    if (!resize_strings(&chunk->header_key, old, headers) || !resize_strings(&chunk->header_value, old, headers))
        return false;
    chunk->headers_capacity = headers;
    return true;
}

INLINE bool reserve_data(struct strings *strings, size_t more)
{
    if (more <= strings->capacity - strings->used)
        return true;
    if (!resize(&strings->data, grown(strings->capacity, strings->used + more, 1024), 1))
        return false;
    strings->capacity = buffer_size(strings->data);
    return true;
}

/* Reserve memory for a value of `size` bytes, or for a null (-1). */
INLINE bool reserve_value(struct strings *strings, size_t rows, int64_t size)
{
    if (UNLIKELY(size < 0))
        return strings->valid != NULL || resize_bits(&strings->valid, 0, rows);
    return reserve_data(strings, (size_t)size);
}

INLINE void clear_bit(uint8_t *bits, size_t row)
{
    bits[row >> 3] &= (uint8_t)~(1u << (row & 7));
}

INLINE void put(struct strings *strings, size_t row, const uint8_t *data, int64_t size)
{
    if (UNLIKELY(size < 0)) {
        clear_bit(strings->valid, row);
        strings->nulls++;
    } else if (size) {
        memcpy(strings->data + strings->used, data, (size_t)size);
        strings->used += (size_t)size;
    }
    strings->ends[row + 1] = (int32_t)strings->used;
}

/* Replace malformed UTF-8 as Java does: by one U+FFFD for each maximal part of a character, or for an encoded surrogate.
 * `out` has room for three times the input's size.  Return the end of the output. */
static uint8_t *put_text(uint8_t *out, const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        const uint8_t lead = *at;
        const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
        size_t there = 1; /* number of bytes of one character */
        for (; there < size && at + there < end; there++) {
            const uint8_t next = at[there];
            if ((next & 0xc0) != 0x80)
                break;
            if (there == 1 && ((lead == 0xe0 && next < 0xa0) || (lead == 0xf0 && next < 0x90) || (lead == 0xf4 && next > 0x8f)))
                break;
        }
        const bool surrogate = lead == 0xed && there == 3 && at[1] > 0x9f;
        if (there == size && !surrogate) {
            memcpy(out, at, size);
            out += size;
        } else {
            memcpy(out, "\xef\xbf\xbd", 3);
            out += 3;
        }
        at += there;
    }
    return out;
}

/* The headers of one record, and the memory that they need, which is computed before any column changes. */
struct headers {
    struct reader at;
    size_t count, key_bytes, value_bytes;
    bool with_null;
};

static enum problem check_headers(struct headers *headers)
{
    struct reader at = headers->at;
    for (size_t i = 0; i < headers->count; i++) {
        const uint8_t *data;
        int64_t size;
        enum problem problem = take_field(&at, &data, &size);
        if (problem != FINE)
            return problem;
        if (size < 0)
            return HEADER_KEY;
        headers->key_bytes += (size_t)size;
        problem = take_field(&at, &data, &size);
        if (problem != FINE)
            return problem;
        if (size < 0)
            headers->with_null = true;
        else
            headers->value_bytes += (size_t)size;
    }
    return at.at == at.end ? FINE : RECORD_SIZE;
}

static void put_headers(struct chunk *chunk, struct headers *headers)
{
    struct strings *keys = &chunk->header_key;
    for (size_t i = 0; i < headers->count; i++) {
        const uint8_t *data = NULL;
        int64_t size = 0;
        (void)take_field(&headers->at, &data, &size); /* key and value were checked before */
        if (size)
            keys->used = (size_t)(put_text(keys->data + keys->used, data, data + size) - keys->data);
        keys->ends[chunk->headers + 1] = (int32_t)keys->used;
        (void)take_field(&headers->at, &data, &size);
        put(&chunk->header_value, chunk->headers, data, size);
        chunk->headers++;
    }
    if (headers->count == 0) {
        clear_bit(chunk->header_valid, chunk->rows);
        chunk->header_nulls++;
    }
    chunk->header_ends[chunk->rows + 1] = (int32_t)chunk->headers;
}

/* Set topic and partition of the last rows; the memory is reserved. */
static void fill(struct builder *out, const struct label *label)
{
    if (out->run == 0)
        return;
    struct chunk *chunk = &out->chunks[out->count - 1];
    const size_t first = chunk->rows - out->run;
    if (CHOSEN(out->chosen, PARTITION))
        for (size_t row = first; row < chunk->rows; row++)
            chunk->partition[row] = label->partition;
    if (CHOSEN(out->chosen, TOPIC)) {
        struct strings *topics = &chunk->topic;
        const size_t size = out->run * label->topic_size;
        if (size) {
            uint8_t *data = topics->data + topics->used;
            memcpy(data, label->topic, label->topic_size);
            for (size_t done = label->topic_size; done < size; done *= 2)
                memcpy(data + done, data, done <= size - done ? done : size - done);
        }
        for (size_t row = first; row < chunk->rows; row++)
            topics->ends[row + 1] = (int32_t)(topics->used += label->topic_size);
    }
    out->run = 0;
}

/* Reserve memory for `more` rows with their topic, up to the limit of the last chunk. */
static bool reserve(struct builder *out, const struct label *label, size_t more)
{
    struct chunk *chunk = &out->chunks[out->count - 1];
    if (!reserve_rows(chunk, out->chosen, more))
        return false;
    if (!CHOSEN(out->chosen, TOPIC) || label->topic_size == 0)
        return true;
    const size_t most = (out->limit - chunk->topic.used) / label->topic_size;
    const size_t rows = out->run + more < most ? out->run + more : most;
    return reserve_data(&chunk->topic, rows * label->topic_size);
}

static bool new_chunk(struct builder *out)
{
    struct chunk *chunks = realloc(out->chunks, (out->count + 1) * sizeof *chunks);
    if (chunks == NULL)
        return false;
    out->chunks = chunks;
    memset(&out->chunks[out->count], 0, sizeof *out->chunks);
    out->count++;
    return true;
}

INLINE bool over(size_t used, int64_t more, size_t limit)
{
    return more > 0 && (uint64_t)used + (uint64_t)more > limit;
}

static bool fits(const struct builder *out, const struct chunk *chunk, const struct label *label, int64_t key_size,
                 int64_t value_size, const struct headers *headers)
{
    if (CHOSEN(out->chosen, KEY) && over(chunk->key.used, key_size, out->limit))
        return false;
    if (CHOSEN(out->chosen, VALUE) && over(chunk->value.used, value_size, out->limit))
        return false;
    if (CHOSEN(out->chosen, TOPIC) && over(chunk->topic.used, (int64_t)((out->run + 1) * label->topic_size), out->limit))
        return false;
    return headers->count == 0 || !(over(chunk->header_key.used, (int64_t)(3 * headers->key_bytes), out->limit) ||
                                    over(chunk->header_value.used, (int64_t)headers->value_bytes, out->limit) ||
                                    over(chunk->headers, (int64_t)headers->count, out->limit));
}

INLINE int64_t microseconds(int64_t milliseconds)
{
    const int64_t most = INT64_MAX / 1000;
    return 1000 * (milliseconds > most ? most : milliseconds < -most ? -most : milliseconds);
}

/* The content of a record.  `headers` are the bytes of the headers, whose number is `header_count`. */
struct record {
    const uint8_t *key, *value;
    int64_t offset, timestamp_delta, key_size, value_size, header_count;
    struct reader headers;
};

/* Read the next record of a batch, whose offset must be higher than `previous`.  The headers are not checked. */
INLINE enum problem read_record(struct reader *in, const struct batch *batch, int64_t previous, struct record *out)
{
    struct reader record;
    int64_t offset_delta;
    enum problem problem = take_record(in, &record);
    if (UNLIKELY(problem != FINE))
        return problem;
    if (UNLIKELY(!has(&record, 1)))
        return RECORD_SIZE;
    record.at++; /* skip the attributes, which Kafka does not use */
    if (UNLIKELY(!take_varint64(&record, &out->timestamp_delta) || !take_varint32(&record, &offset_delta)))
        return VARINT;
    problem = take_field(&record, &out->key, &out->key_size);
    if (UNLIKELY(problem != FINE))
        return problem;
    problem = take_field(&record, &out->value, &out->value_size);
    if (UNLIKELY(problem != FINE))
        return problem;
    if (UNLIKELY(!take_varint32(&record, &out->header_count)))
        return VARINT;
    if (UNLIKELY(out->header_count < 0 || !has(&record, 2 * (uint64_t)out->header_count)))
        return HEADER_COUNT;
    if (UNLIKELY(offset_delta < 0 || offset_delta > batch->last_offset_delta))
        return RECORD_OFFSET;
    out->offset = batch->base_offset + offset_delta;
    if (UNLIKELY(out->offset <= previous))
        return RECORD_OFFSET;
    if (UNLIKELY(out->header_count == 0 && record.at != record.end))
        return RECORD_SIZE;
    out->headers = record;
    return FINE;
}

/* Return the timestamp of a record in milliseconds.  The sum may overflow, like Java's long. */
INLINE int64_t timestamp_of(const struct batch *batch, const struct record *record)
{
    if (batch->attributes & APPEND_TIME)
        return batch->max_timestamp;
    return (int64_t)((uint64_t)batch->base_timestamp + (uint64_t)record->timestamp_delta);
}

/* Decode records of the current batch until its end, a limit, or a record at or after the offset `end`; in the last case
 * `next_offset` is that record's offset.  Return NO_MEMORY, FINE, or the problem of a record. */
static enum problem decode(struct builder *out, struct batches *in, const struct label *label, int64_t end, int64_t *records,
                           int64_t *bytes)
{
    const struct batch *batch = &in->batches[in->index];
    const uint8_t *start = ((batch->attributes & CODEC) ? in->payload : in->records) + batch->start;
    struct reader at = {start + in->consumed, start + batch->size};
    const unsigned chosen = out->chosen;
    const int64_t left = batch->count - in->record;
    if (in->record == 0 && (uint64_t)left * LEAST_RECORD > batch->size)
        return RECORD_COUNT;
    if (out->count == 0 && !new_chunk(out))
        return NO_MEMORY;
    if (!reserve(out, label, (size_t)(left < *records ? left : *records)))
        return NO_MEMORY;
    struct chunk *chunk = &out->chunks[out->count - 1];
    while (in->record < batch->count) {
        if (*records <= 0 || *bytes <= 0)
            return FINE;
        struct record record;
        struct headers headers = {.count = 0};
        const uint8_t *record_start = at.at;
        enum problem problem = read_record(&at, batch, in->previous, &record);
        if (UNLIKELY(problem != FINE))
            return problem;
        const uint8_t *const key = record.key, *const value = record.value;
        const int64_t offset = record.offset, key_size = record.key_size, value_size = record.value_size;
        if (record.header_count && CHOSEN(chosen, HEADERS)) {
            headers.at = record.headers;
            headers.count = (size_t)record.header_count;
            problem = check_headers(&headers);
            if (UNLIKELY(problem != FINE))
                return problem;
        }
        if (UNLIKELY(offset < in->next_offset)) { /* a batch may begin before the requested offset */
            in->previous = offset;
            in->record++;
            in->consumed = (size_t)(at.at - start);
            continue;
        }
        if (UNLIKELY(offset >= end)) {
            in->next_offset = end;
            return FINE;
        }
        if (UNLIKELY(!fits(out, chunk, label, key_size, value_size, &headers))) {
            fill(out, label);
            if (chunk->rows) {
                if (!new_chunk(out))
                    return NO_MEMORY;
                chunk = &out->chunks[out->count - 1];
                const int64_t rest = batch->count - in->record;
                if (!reserve(out, label, (size_t)(rest < *records ? rest : *records)))
                    return NO_MEMORY;
            }
            if (!fits(out, chunk, label, key_size, value_size, &headers))
                return TOO_LARGE;
        }
        if (UNLIKELY((CHOSEN(chosen, KEY) && !reserve_value(&chunk->key, chunk->capacity, key_size)) ||
                     (CHOSEN(chosen, VALUE) && !reserve_value(&chunk->value, chunk->capacity, value_size))))
            return NO_MEMORY;
        if (CHOSEN(chosen, HEADERS)) {
            if (!reserve_headers(chunk, headers.count) || !reserve_data(&chunk->header_key, 3 * headers.key_bytes) ||
                !reserve_data(&chunk->header_value, headers.value_bytes))
                return NO_MEMORY;
            if (headers.with_null && !reserve_value(&chunk->header_value, chunk->headers_capacity, -1))
                return NO_MEMORY;
            if (headers.count == 0 && chunk->header_valid == NULL && !resize_bits(&chunk->header_valid, 0, chunk->capacity))
                return NO_MEMORY;
            put_headers(chunk, &headers);
        }
        const size_t row = chunk->rows;
        if (CHOSEN(chosen, KEY))
            put(&chunk->key, row, key, key_size);
        if (CHOSEN(chosen, VALUE))
            put(&chunk->value, row, value, value_size);
        if (CHOSEN(chosen, OFFSET))
            chunk->offset[row] = offset;
        if (CHOSEN(chosen, TIMESTAMP))
            chunk->timestamp[row] = microseconds(timestamp_of(batch, &record));
        if (CHOSEN(chosen, TIMESTAMP_TYPE))
            chunk->timestamp_type[row] = batch->attributes & APPEND_TIME ? 1 : 0;
        chunk->rows++;
        out->rows++;
        out->run++;
        in->previous = offset;
        in->next_offset = offset + 1;
        in->record++;
        in->consumed = (size_t)(at.at - start);
        *records -= 1;
        *bytes -= at.at - record_start;
    }
    if (at.at != at.end)
        return BYTES_REMAIN;
    in->next_offset = last_offset(batch) + 1;
    in->index++;
    in->consumed = 0;
    in->record = 0;
    return FINE;
}

/* Reserve memory for all records of the next batches at once, so that buffers do not grow step by step. */
static bool foresee(struct builder *out, const struct batches *in, const struct label *label, int64_t records, int64_t bytes)
{
    int64_t rows = 0, size = 0;
    for (size_t i = in->index; i < in->count && rows < records && size < bytes; i++) {
        const struct batch *batch = &in->batches[i];
        if (batch->skipped)
            continue;
        if (!batch->decompressed || (uint64_t)batch->count * LEAST_RECORD > batch->size)
            break;
        rows += batch->count;
        size += (int64_t)batch->size;
    }
    if (rows > records) {
        size = (int64_t)((double)size / (double)rows * (double)records);
        rows = records;
    }
    if (out->count == 0 && !new_chunk(out))
        return false;
    struct strings *value = &out->chunks[out->count - 1].value;
    if ((uint64_t)size > out->limit - value->used)
        size = (int64_t)(out->limit - value->used);
    return reserve(out, label, (size_t)rows) && (!CHOSEN(out->chosen, VALUE) || reserve_data(value, (size_t)size));
}

/* Return whether all records before the offset `end` were read; advance `next_offset` over a gap before `end`.  INT64_MAX
 * means that there is no end.  A position can have this value, too, and a problem at this position must be reported. */
static bool ended(struct batches *in, int64_t end)
{
    if (end == INT64_MAX)
        return false;
    const bool at_batch = in->state == READY || in->state == COMPRESSED;
    if (in->next_offset < end && at_batch && in->batches[in->index].base_offset >= end)
        in->next_offset = end;
    return in->next_offset >= end;
}

/* Append records until a limit, the offset `end`, the end of the response, a problem, or a batch that must be decompressed.
 * Return false if there is no memory. */
static bool append(struct builder *out, struct batches *in, const struct label *label, int64_t end, int64_t *records,
                   int64_t *bytes)
{
    bool enough = ended(in, end) || in->state != READY || foresee(out, in, label, *records, *bytes);
    while (enough && !ended(in, end) && in->state == READY && *records > 0 && *bytes > 0) {
        const enum problem problem = decode(out, in, label, end, records, bytes);
        if (problem == NO_MEMORY)
            enough = false;
        else if (problem != FINE)
            fail(in, problem);
        else
            advance(in);
    }
    fill(out, label);
    return enough;
}

/* Set the decompressed bytes of the next batches; `ends` has each batch's end in the payload.  `failed`: the batch
 * after these could not be decompressed. */
static void supply(struct batches *in, const int64_t *ends, size_t count, bool failed)
{
    size_t start = 0, given = 0;
    for (size_t i = in->index; i < in->count; i++) {
        struct batch *batch = &in->batches[i];
        if (batch->skipped || batch->decompressed || batch->count == 0)
            continue;
        if (given == count) {
            if (failed) {
                in->count = i;
                in->problem = DECOMPRESSION;
            }
            break;
        }
        const size_t end = (size_t)ends[given++];
        batch->start = start;
        batch->size = end - start;
        batch->decompressed = true;
        start = end;
    }
    advance(in);
}

/* ---- export (the Arrow C data interface) ---------------------------------------------------------------------------- */

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_NULLABLE 2
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif
#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};
#endif
#define ENOMEM_CODE 12

static const char *const NAMES[] = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"};
static const char *const FORMATS[] = {"z", "z", "u", "i", "l", "tsu:UTC", "i", "+l"};

struct schema_children {
    struct ArrowSchema *pointers[COLUMNS];
    struct ArrowSchema children[COLUMNS];
};

static void release_schema(struct ArrowSchema *schema)
{
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release != NULL)
            schema->children[i]->release(schema->children[i]);
    free(schema->private_data);
    schema->release = NULL;
}

/* Create a schema whose children are still empty.  A child that was not filled in has no release function. */
static bool make_schema(struct ArrowSchema *schema, const char *format, const char *name, size_t children)
{
    *schema = (struct ArrowSchema){.format = format, .name = name, .flags = ARROW_FLAG_NULLABLE, .release = release_schema};
    if (children) {
        struct schema_children *made = calloc(1, sizeof *made);
        if (made == NULL) {
            schema->release = NULL;
            return false;
        }
        for (size_t i = 0; i < children; i++)
            made->pointers[i] = &made->children[i];
        schema->children = made->pointers;
        schema->n_children = (int64_t)children;
        schema->private_data = made;
    }
    return true;
}

static bool export_schema(const struct store *store, struct ArrowSchema *schema)
{
    if (!make_schema(schema, "+s", "", store->columns))
        return false;
    schema->flags = 0;
    for (size_t i = 0; i < store->columns; i++) {
        const uint8_t column = store->order[i];
        struct ArrowSchema *child = schema->children[i];
        if (!make_schema(child, FORMATS[column], NAMES[column], column == HEADERS))
            goto no_memory;
        if (column != HEADERS)
            continue;
        struct ArrowSchema *pair = child->children[0];
        if (!make_schema(pair, "+s", "element", 2) || !make_schema(pair->children[0], "u", "key", 0) ||
            !make_schema(pair->children[1], "z", "value", 0))
            goto no_memory;
    }
    return true;
no_memory:
    schema->release(schema);
    return false;
}

static void drop_store(struct store *store)
{
    if (__atomic_sub_fetch(&store->references, 1, __ATOMIC_ACQ_REL))
        return;
    free_chunks(store->chunks, store->count);
    free(store);
}

static struct store *hold_store(struct store *store)
{
    __atomic_add_fetch(&store->references, 1, __ATOMIC_RELAXED);
    return store;
}

/* Each array has a reference to the store, because a consumer may move a child out of its parent. */
struct array_data {
    struct store *store;
    const void *buffers[3];
    struct ArrowArray *pointers[COLUMNS];
    struct ArrowArray children[COLUMNS];
};

static void release_array(struct ArrowArray *array)
{
    struct array_data *data = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release != NULL)
            array->children[i]->release(array->children[i]);
    drop_store(data->store);
    free(data);
    array->release = NULL;
}

static bool make_array(struct ArrowArray *array, struct store *store, size_t length, int64_t nulls, size_t children)
{
    *array = (struct ArrowArray){.length = (int64_t)length, .null_count = nulls, .n_buffers = 1};
    struct array_data *data = calloc(1, sizeof *data);
    if (data == NULL)
        return false;
    data->store = hold_store(store);
    for (size_t i = 0; i < children; i++)
        data->pointers[i] = &data->children[i];
    array->buffers = data->buffers;
    array->children = data->pointers;
    array->n_children = (int64_t)children;
    array->private_data = data;
    array->release = release_array;
    return true;
}

static const void *given(const void *buffer)
{
    static const int64_t nothing[1]; /* for a column without rows, because its buffers must not be NULL */
    return buffer != NULL ? buffer : nothing;
}

static bool make_strings(struct ArrowArray *array, struct store *store, size_t length, const struct strings *strings)
{
    if (!make_array(array, store, length, strings->nulls, 0))
        return false;
    array->n_buffers = 3;
    array->buffers[0] = strings->valid;
    array->buffers[1] = given(strings->ends);
    array->buffers[2] = given(strings->data);
    return true;
}

static bool make_numbers(struct ArrowArray *array, struct store *store, size_t length, const void *numbers)
{
    if (!make_array(array, store, length, 0, 0))
        return false;
    array->n_buffers = 2;
    array->buffers[1] = given(numbers);
    return true;
}

static bool make_headers(struct ArrowArray *array, struct store *store, const struct chunk *chunk)
{
    if (!make_array(array, store, chunk->rows, chunk->header_nulls, 1))
        return false;
    array->n_buffers = 2;
    array->buffers[0] = chunk->header_valid;
    array->buffers[1] = given(chunk->header_ends);
    struct ArrowArray *pairs = array->children[0];
    return make_array(pairs, store, chunk->headers, 0, 2) &&
           make_strings(pairs->children[0], store, chunk->headers, &chunk->header_key) &&
           make_strings(pairs->children[1], store, chunk->headers, &chunk->header_value);
}

static bool export_array(struct store *store, size_t index, struct ArrowArray *array)
{
    static const struct chunk empty;
    const struct chunk *chunk = index < store->count ? &store->chunks[index] : &empty;
    if (!make_array(array, store, chunk->rows, 0, store->columns))
        return false;
    for (size_t i = 0; i < store->columns; i++) {
        struct ArrowArray *child = array->children[i];
        bool made = false;
        switch ((enum column)store->order[i]) {
        case KEY:
            made = make_strings(child, store, chunk->rows, &chunk->key);
            break;
        case VALUE:
            made = make_strings(child, store, chunk->rows, &chunk->value);
            break;
        case TOPIC:
            made = make_strings(child, store, chunk->rows, &chunk->topic);
            break;
        case PARTITION:
            made = make_numbers(child, store, chunk->rows, chunk->partition);
            break;
        case OFFSET:
            made = make_numbers(child, store, chunk->rows, chunk->offset);
            break;
        case TIMESTAMP:
            made = make_numbers(child, store, chunk->rows, chunk->timestamp);
            break;
        case TIMESTAMP_TYPE:
            made = make_numbers(child, store, chunk->rows, chunk->timestamp_type);
            break;
        case HEADERS:
            made = make_headers(child, store, chunk);
            break;
        case COLUMNS:
            break;
        }
        if (!made) {
            array->release(array);
            return false;
        }
    }
    return true;
}

struct stream_data {
    struct store *store;
    size_t next;
};

static int stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *schema)
{
    const struct stream_data *data = stream->private_data;
    return export_schema(data->store, schema) ? 0 : ENOMEM_CODE;
}

static int stream_next(struct ArrowArrayStream *stream, struct ArrowArray *array)
{
    struct stream_data *data = stream->private_data;
    if (data->next == data->store->count) {
        array->release = NULL;
        return 0;
    }
    if (!export_array(data->store, data->next, array))
        return ENOMEM_CODE;
    data->next++;
    return 0;
}

static const char *stream_error(struct ArrowArrayStream *stream)
{
    (void)stream;
    return "no memory";
}

static void release_stream(struct ArrowArrayStream *stream)
{
    struct stream_data *data = stream->private_data;
    drop_store(data->store);
    free(data);
    stream->release = NULL;
}

static bool export_stream(struct store *store, struct ArrowArrayStream *stream)
{
    struct stream_data *data = malloc(sizeof *data);
    if (data == NULL)
        return false;
    *data = (struct stream_data){hold_store(store), 0};
    *stream = (struct ArrowArrayStream){stream_schema, stream_next, stream_error, release_stream, data};
    return true;
}

/* Move the rows of a builder into a store, and leave the builder empty. */
static struct store *finish(struct builder *out)
{
    struct store *store = malloc(sizeof *store);
    if (store == NULL)
        return NULL;
    *store = (struct store){.references = 1, .columns = out->columns, .rows = out->rows, .count = out->count, .chunks = out->chunks};
    memcpy(store->order, out->order, sizeof store->order);
    out->rows = out->count = 0;
    out->chunks = NULL;
    return store;
}

#include "_rows.h"

#ifndef WITHOUT_PYTHON

/* Py_RETURN_NONE of the headers of 3.12 and later leaves out the reference, although such a binary also runs on 3.11, where
 * None has a count. */
static PyObject *new_reference(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

/* ---- the Python module ---------------------------------------------------------------------------------------------- */

#define RELEASE_GIL_FROM (1 << 20) /* in bytes; taking the GIL again may take longer than to process fewer bytes */

struct module_state {
    PyTypeObject *batches, *builder, *arrays, *kept, *rows, *at_hand;
};

typedef struct {
    PyObject_HEAD
    struct batches in;
    Py_buffer records, payload;
    int busy;
} BatchesObject;

typedef struct {
    PyObject_HEAD
    struct builder out;
    int busy;
} BuilderObject;

typedef struct {
    PyObject_HEAD
    struct store *store;
} ArraysObject;

/* Return whether this thread may use an object.  Another thread may be using the object, because this module releases the GIL,
 * and because some builds of Python have no GIL. */
static bool enter(int *busy)
{
    if (!__atomic_exchange_n(busy, 1, __ATOMIC_ACQUIRE))
        return true;
    PyErr_SetString(PyExc_RuntimeError, "another thread is using these columns or this response");
    return false;
}

static void leave(int *busy)
{
    __atomic_store_n(busy, 0, __ATOMIC_RELEASE);
}

static void *allocate(PyTypeObject *type)
{
    const allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return make(type, 0);
}

static void deallocate(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    const freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Batches(records, offset, aborted, read_committed, check_crcs) */
static PyObject *batches_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    Py_buffer records, pairs;
    long long offset;
    int read_committed, check_crcs;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "y*Ly*pp", &records, &offset, &pairs, &read_committed, &check_crcs))
        return NULL;
    /* Make a copy that is aligned and that may be sorted. */
    const size_t count = (size_t)pairs.len / sizeof(struct aborted);
    struct aborted *aborted = malloc((size_t)pairs.len + 1);
    BatchesObject *self = aborted == NULL ? NULL : allocate(type);
    if (self == NULL) {
        free(aborted);
        PyBuffer_Release(&records);
        PyBuffer_Release(&pairs);
        return aborted == NULL ? PyErr_NoMemory() : NULL;
    }
    memcpy(aborted, pairs.buf, count * sizeof *aborted);
    PyBuffer_Release(&pairs);
    self->records = records;
    self->in.records = records.buf;
    self->in.records_size = (size_t)records.len;
    self->in.next_offset = offset;
    PyThreadState *thread = records.len >= RELEASE_GIL_FROM / 4 ? PyEval_SaveThread() : NULL;
    const enum problem problem = scan(&self->in, aborted, count, read_committed, check_crcs);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    free(aborted);
    if (problem == FINE)
        return (PyObject *)self;
    Py_DECREF(self);
    return PyErr_NoMemory();
}

static void batches_dealloc(PyObject *object)
{
    BatchesObject *self = (BatchesObject *)object;
    if (self->records.obj != NULL)
        PyBuffer_Release(&self->records);
    if (self->payload.obj != NULL)
        PyBuffer_Release(&self->payload);
    free(self->in.batches);
    deallocate(object);
}

static PyObject *batches_compressed(PyObject *object, PyObject *args)
{
    BatchesObject *self = (BatchesObject *)object;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "n", &most) || !enter(&self->busy))
        return NULL;
    PyObject *found = PyList_New(0);
    for (size_t i = self->in.index; found != NULL && i < self->in.count && most > 0; i++) {
        const struct batch *batch = &self->in.batches[i];
        if (batch->skipped || batch->decompressed || batch->count == 0)
            continue;
        const Py_ssize_t size = (Py_ssize_t)batch->size;
        PyObject *row = Py_BuildValue("inn", batch->attributes & CODEC, (Py_ssize_t)batch->start, (Py_ssize_t)batch->start + size);
        if (row == NULL || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
        most -= size + 1;
    }
    leave(&self->busy);
    return found;
}

static PyObject *batches_supply(PyObject *object, PyObject *args)
{
    BatchesObject *self = (BatchesObject *)object;
    Py_buffer payload, ends;
    int failed;
    if (!PyArg_ParseTuple(args, "y*y*p", &payload, &ends, &failed))
        return NULL;
    const size_t count = (size_t)ends.len / sizeof(int64_t);
    int64_t *copy = malloc((size_t)ends.len + 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        goto release;
    }
    memcpy(copy, ends.buf, count * sizeof *copy);
    int64_t start = 0;
    for (size_t i = 0; i < count; start = copy[i++])
        if (copy[i] < start || copy[i] > payload.len) {
            PyErr_SetString(PyExc_ValueError, "the ends of the batches are out of order, or beyond the payload");
            goto release;
        }
    if (!enter(&self->busy))
        goto release;
    if (self->in.state != COMPRESSED) {
        PyErr_SetString(PyExc_ValueError, "no batch waits to be decompressed");
        leave(&self->busy);
        goto release;
    }
    Py_buffer old = self->payload;
    self->payload = payload;
    self->in.payload = payload.buf;
    self->in.payload_size = (size_t)payload.len;
    supply(&self->in, copy, count, failed);
    leave(&self->busy);
    free(copy);
    PyBuffer_Release(&ends);
    if (old.obj != NULL)
        PyBuffer_Release(&old);
    return new_reference(Py_None);
release:
    free(copy);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&payload);
    return NULL;
}

static PyObject *batches_next_offset(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((BatchesObject *)self)->in.next_offset);
}

static PyObject *batches_state(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((BatchesObject *)self)->in.state);
}

static PyObject *batches_needs_bytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((BatchesObject *)self)->in.needs);
}

static PyObject *batches_problem(PyObject *self, void *closure)
{
    (void)closure;
    const struct batches *in = &((BatchesObject *)self)->in;
    return PyUnicode_FromString(in->state == FAILED ? PROBLEMS[in->problem] : "");
}

static PyMethodDef batches_methods[] = {
    {"compressed", batches_compressed, METH_VARARGS, "Return (codec, start, end) of the next compressed batches."},
    {"supply", batches_supply, METH_VARARGS, "Give the next compressed batches their bytes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef batches_attributes[] = {
    {"next_offset", batches_next_offset, NULL, "Offset of the next record to decode.", NULL},
    {"state", batches_state, NULL, "READY, EXHAUSTED, COMPRESSED or FAILED.", NULL},
    {"needs_bytes", batches_needs_bytes, NULL, "Size of the first batch in bytes if it is cut off, else 0.", NULL},
    {"problem", batches_problem, NULL, "What is wrong at next_offset when the state is FAILED, else empty.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot batches_slots[] = {
    {Py_tp_new, batches_new},
    {Py_tp_dealloc, batches_dealloc},
    {Py_tp_methods, batches_methods},
    {Py_tp_getset, batches_attributes},
    {0, NULL},
};

static PyType_Spec batches_spec = {
    "consumer_coord.columns._kernel.Batches", sizeof(BatchesObject), 0, Py_TPFLAGS_DEFAULT, batches_slots};

/* Builder(columns, limit): the numbers of the columns in order, as bytes */
static PyObject *builder_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *given;
    char *order;
    Py_ssize_t columns, limit;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "Sn", &given, &limit) || PyBytes_AsStringAndSize(given, &order, &columns) < 0)
        return NULL;
    unsigned chosen = 0;
    for (Py_ssize_t i = 0; i < columns; i++) {
        const uint8_t column = (uint8_t)order[i];
        if (column >= COLUMNS || CHOSEN(chosen, column)) {
            PyErr_SetString(PyExc_ValueError, "a column is unknown or named twice");
            return NULL;
        }
        chosen |= 1u << column;
    }
    if (limit < 1 || limit > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the limit of a column is from 1 to 2**31 - 1 bytes");
        return NULL;
    }
    BuilderObject *self = allocate(type);
    if (self == NULL)
        return NULL;
    memcpy(self->out.order, order, (size_t)columns);
    self->out.columns = (size_t)columns;
    self->out.chosen = chosen;
    self->out.limit = (size_t)limit;
    return (PyObject *)self;
}

static void builder_dealloc(PyObject *object)
{
    BuilderObject *self = (BuilderObject *)object;
    free_chunks(self->out.chunks, self->out.count);
    deallocate(object);
}

/* append(batches, topic, partition, max_records, max_bytes, end=2**63 - 1) -> (records, bytes) */
static PyObject *builder_append(PyObject *object, PyObject *args)
{
    BuilderObject *self = (BuilderObject *)object;
    const struct module_state *module = PyType_GetModuleState(Py_TYPE(object));
    BatchesObject *batches;
    PyObject *name;
    char *topic;
    Py_ssize_t topic_size;
    int partition;
    long long max_records, max_bytes, end = INT64_MAX;
    if (!PyArg_ParseTuple(args, "O!SiLL|L", module->batches, &batches, &name, &partition, &max_records, &max_bytes, &end)
        || PyBytes_AsStringAndSize(name, &topic, &topic_size) < 0)
        return NULL;
    if (!enter(&self->busy))
        return NULL;
    if (!enter(&batches->busy)) {
        leave(&self->busy);
        return NULL;
    }
    const struct label label = {(const uint8_t *)topic, (size_t)topic_size, partition};
    int64_t records = max_records, bytes = max_bytes;
    const bool large = max_bytes > RELEASE_GIL_FROM && batches->in.records_size + batches->in.payload_size > RELEASE_GIL_FROM;
    PyThreadState *thread = large ? PyEval_SaveThread() : NULL;
    const bool enough = append(&self->out, &batches->in, &label, end, &records, &bytes);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    leave(&batches->busy);
    leave(&self->busy);
    if (!enough)
        return PyErr_NoMemory();
    return Py_BuildValue("LL", max_records - (long long)records, max_bytes - (long long)bytes);
}

static PyObject *builder_finish(PyObject *object, PyObject *nothing)
{
    BuilderObject *self = (BuilderObject *)object;
    const struct module_state *module = PyType_GetModuleState(Py_TYPE(object));
    (void)nothing;
    ArraysObject *arrays = allocate(module->arrays);
    if (arrays == NULL)
        return NULL;
    if (!enter(&self->busy)) {
        Py_DECREF(arrays);
        return NULL;
    }
    arrays->store = finish(&self->out);
    leave(&self->busy);
    if (arrays->store != NULL)
        return (PyObject *)arrays;
    Py_DECREF(arrays);
    return PyErr_NoMemory();
}

static Py_ssize_t builder_length(PyObject *self)
{
    return (Py_ssize_t)((BuilderObject *)self)->out.rows;
}

static PyMethodDef builder_methods[] = {
    {"append", builder_append, METH_VARARGS, "Decode records of these batches; return (records, bytes)."},
    {"finish", builder_finish, METH_NOARGS, "Return the rows as Arrays and begin again without rows."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot builder_slots[] = {
    {Py_tp_new, builder_new},
    {Py_tp_dealloc, builder_dealloc},
    {Py_tp_methods, builder_methods},
    {Py_sq_length, builder_length},
    {0, NULL},
};

static PyType_Spec builder_spec = {
    "consumer_coord.columns._kernel.Builder", sizeof(BuilderObject), 0, Py_TPFLAGS_DEFAULT, builder_slots};

static void arrays_dealloc(PyObject *object)
{
    struct store *store = ((ArraysObject *)object)->store;
    if (store != NULL)
        drop_store(store);
    deallocate(object);
}

static Py_ssize_t arrays_length(PyObject *self)
{
    return (Py_ssize_t)((ArraysObject *)self)->store->rows;
}

static PyObject *arrays_chunks(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((ArraysObject *)self)->store->count);
}

/* A capsule frees its content if no consumer has taken the content out. */
#define CAPSULE(kind, Struct, capsule_name)                                                                                    \
    static void destroy_##kind(PyObject *capsule)                                                                              \
    {                                                                                                                          \
        struct Struct *held = PyCapsule_GetPointer(capsule, capsule_name);                                                     \
        if (held->release != NULL)                                                                                             \
            held->release(held);                                                                                               \
        free(held);                                                                                                            \
    }                                                                                                                          \
    static PyObject *kind##_capsule(struct Struct *held, bool made)                                                            \
    {                                                                                                                          \
        if (!made) {                                                                                                           \
            free(held);                                                                                                        \
            return PyErr_NoMemory();                                                                                           \
        }                                                                                                                      \
        PyObject *capsule = PyCapsule_New(held, capsule_name, destroy_##kind);                                                 \
        if (capsule == NULL) {                                                                                                 \
            held->release(held);                                                                                               \
            free(held);                                                                                                        \
        }                                                                                                                      \
        return capsule;                                                                                                        \
    }

CAPSULE(schema, ArrowSchema, "arrow_schema")
CAPSULE(array, ArrowArray, "arrow_array")
CAPSULE(stream, ArrowArrayStream, "arrow_array_stream")

static PyObject *arrays_schema(PyObject *self, PyObject *nothing)
{
    struct ArrowSchema *schema = malloc(sizeof *schema);
    (void)nothing;
    return schema_capsule(schema, schema != NULL && export_schema(((ArraysObject *)self)->store, schema));
}

static PyObject *arrays_array(PyObject *self, PyObject *args)
{
    struct store *store = ((ArraysObject *)self)->store;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "n", &index))
        return NULL;
    struct ArrowArray *array = malloc(sizeof *array);
    return array_capsule(array, array != NULL && export_array(store, (size_t)index, array));
}

static PyObject *arrays_stream(PyObject *self, PyObject *nothing)
{
    struct ArrowArrayStream *stream = malloc(sizeof *stream);
    (void)nothing;
    return stream_capsule(stream, stream != NULL && export_stream(((ArraysObject *)self)->store, stream));
}

static PyMethodDef arrays_methods[] = {
    {"schema", arrays_schema, METH_NOARGS, "Return a capsule of an ArrowSchema."},
    {"array", arrays_array, METH_VARARGS, "Return a capsule of an ArrowArray: one chunk, empty behind the last one."},
    {"stream", arrays_stream, METH_NOARGS, "Return a capsule of an ArrowArrayStream of all chunks."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef arrays_attributes[] = {
    {"chunks", arrays_chunks, NULL, "Number of Arrow record batches.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot arrays_slots[] = {
    {Py_tp_dealloc, arrays_dealloc},
    {Py_tp_methods, arrays_methods},
    {Py_tp_getset, arrays_attributes},
    {Py_sq_length, arrays_length},
    {0, NULL},
};

static PyType_Spec arrays_spec = {
    "consumer_coord.columns._kernel.Arrays", sizeof(ArraysObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, arrays_slots};

#include "_messages.h"

#include "_at_hand.h"

#include "_receive.h"

static PyObject *module_crc32c(PyObject *module, PyObject *args)
{
    Py_buffer data;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    PyThreadState *thread = data.len > RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    const uint32_t crc = crc32c(data.buf, (size_t)data.len);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef module_methods[] = {
#if defined(__linux__)
    {"receive", module_receive, METH_VARARGS, "Receive bytes from a socket until a buffer is full; return their number."},
#endif
    {"crc32c", module_crc32c, METH_VARARGS, "Return the CRC-32C of some bytes."},
    {"message_type", module_message_type, METH_VARARGS, "Return a subtype of a class of messages, for Rows."},
    {"first_messages", module_first_messages, METH_O, "Return the first message of each partition in a list."},
    {"message", module_message, METH_VARARGS, "Return a message with these fields, which is no row of a chunk."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    prepare_crc();
    state->batches = (PyTypeObject *)PyType_FromModuleAndSpec(module, &batches_spec, NULL);
    state->builder = (PyTypeObject *)PyType_FromModuleAndSpec(module, &builder_spec, NULL);
    state->arrays = (PyTypeObject *)PyType_FromModuleAndSpec(module, &arrays_spec, NULL);
    state->kept = (PyTypeObject *)PyType_FromModuleAndSpec(module, &kept_spec, NULL);
    state->rows = (PyTypeObject *)PyType_FromModuleAndSpec(module, &rows_spec, NULL);
    state->at_hand = (PyTypeObject *)PyType_FromModuleAndSpec(module, &at_hand_spec, NULL);
    PyTypeObject *const types[] = {state->batches, state->builder, state->arrays, state->kept, state->rows, state->at_hand};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i] == NULL || PyModule_AddType(module, types[i]) < 0)
            return -1;
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    const struct module_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_VISIT(state->batches);
        Py_VISIT(state->builder);
        Py_VISIT(state->arrays);
        Py_VISIT(state->kept);
        Py_VISIT(state->rows);
        Py_VISIT(state->at_hand);
    }
    return 0;
}

static int module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    if (state != NULL) {
        Py_CLEAR(state->batches);
        Py_CLEAR(state->builder);
        Py_CLEAR(state->arrays);
        Py_CLEAR(state->kept);
        Py_CLEAR(state->rows);
        Py_CLEAR(state->at_hand);
    }
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec}, /* no Py_mod_gil: messages need the GIL (see _messages.h) */
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "consumer_coord.columns._kernel", "Decodes record batches into Arrow arrays and messages.",
    sizeof(struct module_state), module_methods, module_slots, module_traverse, module_clear, module_free};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&module_definition);
}

#endif
