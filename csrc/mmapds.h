/* mmapds.h - the whole face of the C core.
 *
 * The core is a set of single-threaded functions over memory that the caller owns. It knows nothing of
 * Python, keeps no state but the kernel table, and allocates nothing: the caller brings every buffer, and may
 * call from as many threads as it likes. Only module.c turns a status into an exception.
 *
 * Every number that came from a file is a uint64_t and is checked before it is used.
 */
#ifndef MMAPDS_H
#define MMAPDS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mmapds maps little-endian files into arrays and does not support big-endian machines"
#endif

typedef enum {
    MDS_OK = 0,
    MDS_SYSTEM,    /* a system call failed; errno says why */
    MDS_SHRANK,    /* the file ended before the bytes that were asked for */
    MDS_CORRUPT,   /* bounds from the index do not fit the source */
    MDS_NOT_FILE,  /* not a regular file */
} mds_status;

#define MDS_NONE UINT64_MAX

/* ---- cpu.c: SIMD variants, chosen once ------------------------------------------------------------- */

/* Write for each 64-byte word of `data` a mask with bit b set where byte b equals `byte`. */
typedef void mds_mask_bytes(const uint8_t *data, size_t words, uint8_t byte, uint64_t *masks);

#define MDS_PERMUTE_LANES 16
struct mds_permutation;

/* Run the rounds of a permutation over MDS_PERMUTE_LANES positions split into halves, in place. */
typedef void mds_permute_rounds(const struct mds_permutation *p, uint32_t *left, uint32_t *right);

typedef struct {
    const char *name;
    mds_mask_bytes *mask_bytes;
    mds_permute_rounds *permute_rounds;
} mds_kernels;

/* The variants this machine can run, best first, ending with a NULL name. "portable" is always there. */
const mds_kernels *mds_kernels_available(void);

/* The variant called `name`, or the best one when `name` is NULL; NULL when this machine has no such variant. */
const mds_kernels *mds_kernels_find(const char *name);

/* ---- lines.c: where records start in newline-delimited text ----------------------------------------- */

/* A scan that can stop at any byte and go on with the next. A line is blank when it holds nothing but spaces,
 * tabs and carriage returns; a record is a line that is not blank, and starts where its line starts. */
typedef struct {
    uint64_t pending;  /* start of the open line while it is blank so far, else MDS_NONE */
    uint64_t newlines; /* newlines met so far */
} mds_lines;

/* Room, in entries, that `starts` must have for a scan of n bytes: a record takes two bytes or more. */
#define MDS_LINES_CAPACITY(n) ((n) / 2 + 2)

/* Append to `starts` the start of every record whose first non-blank byte lies in `data`, `base` being the file
 * offset of data[0]; return how many. A scan of a whole file begins with state->pending = 0. One that begins in
 * mid-file at `base` begins with state->pending = base: it then reports `base` first if the line it fell into goes
 * on with something that is not blank, and only the caller, who knows what came before, can say if that is news. */
size_t mds_lines_scan(const mds_kernels *kernels, const uint8_t *data, size_t n, uint64_t base, mds_lines *state,
                      uint64_t *starts);

/* The same over bytes [begin, end) of a file, read through `scratch`. Sets *count even when it fails. */
mds_status mds_lines_scan_file(const mds_kernels *kernels, int fd, uint64_t begin, uint64_t end, uint8_t *scratch,
                               size_t scratch_size, mds_lines *state, uint64_t *starts, size_t *count);

/* ---- file.c: read-only maps -------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *data; /* NULL when size is 0 */
    uint64_t size;
    int64_t mtime_ns;
} mds_map;

typedef enum { MDS_ADVISE_NORMAL, MDS_ADVISE_RANDOM, MDS_ADVISE_SEQUENTIAL, MDS_ADVISE_WILLNEED } mds_advice;

/* Map a regular file read-only and close its descriptor. */
mds_status mds_map_open(const char *path, mds_map *map);
void mds_map_close(mds_map *map);

/* Advise about [begin, end) of the map, clipped to it and widened to pages. A refused advice costs speed, not
 * correctness, so there is nothing to report. */
void mds_map_advise(const mds_map *map, uint64_t begin, uint64_t end, mds_advice advice);

/* ---- records.c: from a record number to its bytes ----------------------------------------------------- */

/* How records are framed in a source, hence how the payload lies between two bounds. */
typedef enum {
    MDS_FRAMING_LINES, /* a line, its end of line, and the blank lines that follow */
} mds_framing;

typedef struct {
    mds_map map;
    const uint64_t *bounds; /* count + 1 offsets, as read from the index: untrusted */
    uint64_t count;
    mds_framing framing;
} mds_source;

typedef struct {
    uint64_t begin, end; /* byte offsets in the source */
} mds_span;

/* The bytes record i owns, framing included. Needs i < source->count. MDS_CORRUPT when they are not in the map;
 * `span` then holds the offending bounds. Touches the index only. */
mds_status mds_record_span(const mds_source *source, uint64_t i, mds_span *span);

/* The payload inside a checked span. Touches the last bytes of the record. */
mds_span mds_record_payload(const mds_source *source, mds_span span);

/* Widen [*smallest, *largest] to the sizes of the records that begin at starts[0..n), each ending where the next begins;
 * `previous` is the start before starts[0], or MDS_NONE. */
void mds_record_sizes(const uint64_t *starts, size_t n, uint64_t previous, uint64_t *smallest, uint64_t *largest);

/* One record of a batch: which source, which record of it, and (once located) which bytes. */
typedef struct {
    const mds_source *source;
    uint64_t i;
    mds_span span;
} mds_request;

/* Locate `n` requests, narrow each span to its payload, and bring the payloads into memory and small ones into the
 * cache, so that page faults are taken here, where the caller holds no lock, and not while it copies.
 *
 * While *cold is not 0, first all index pages and then all data pages are asked for before the first is touched: a cold
 * batch then costs the disk one deep queue instead of one wait after another. That takes a system call a record, more
 * than a warm record costs, so *cold is set to a number of batches whenever a batch had to wait for the disk and
 * counts down while none does; begin with MDS_COLD. NULL: never ask, for maps with readahead.
 *
 * `order` is scratch for n pointers. On MDS_CORRUPT *failed says which request. */
mds_status mds_records_fetch(mds_request *requests, mds_request **order, size_t n, unsigned *cold, size_t *failed);

#define MDS_COLD 16

/* Notices reads in file order on a map that was advised to expect random ones, and asks for what comes next. */
typedef struct {
    const mds_source *source;
    uint64_t next;  /* where the next record begins if reading goes on in order */
    uint64_t ahead; /* how far has been asked for */
} mds_readahead;

void mds_readahead_note(mds_readahead *readahead, const mds_source *source, mds_span span);

/* ---- permute.c: keyed permutation of [0, n) ------------------------------------------------------------ */

#define MDS_PERMUTE_ROUNDS 8

/* A generalised Feistel network over the box [0, a) x [0, b), a * b >= n, with cycle walking back into [0, n).
 * See permute.c for the construction and its source. */
typedef struct mds_permutation {
    uint64_t n;
    uint32_t a, b;
    uint32_t keys[MDS_PERMUTE_ROUNDS][2];
} mds_permutation;

mds_permute_rounds mds_permute_rounds_portable;
#if defined(__x86_64__)
mds_permute_rounds mds_permute_rounds_avx2;
#endif

/* Needs 1 <= n < 2^63. The same (n, seed, epoch, stream) gives the same permutation on every machine and in
 * every release that keeps the version. */
void mds_permutation_init(mds_permutation *p, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t stream);

/* Need i < n. */
uint64_t mds_permute(const mds_permutation *p, uint64_t i);
uint64_t mds_permute_inverse(const mds_permutation *p, uint64_t value);

/* out[k] = permute(first + k * step); every position must lie in [0, n). */
void mds_permute_range(const mds_kernels *kernels, const mds_permutation *p, uint64_t first, int64_t step, size_t count,
                       int64_t *out);

/* out[k] = permute(in[k]) or its inverse; `in` may be `out`. Every in[k] must lie in [0, n). */
void mds_permute_array(const mds_kernels *kernels, const mds_permutation *p, const int64_t *in, size_t count, int inverse,
                       int64_t *out);

/* A number that (seed, epoch, stream) stand for, and its i-th uniform draw from [0, n). */
uint64_t mds_key(uint64_t seed, uint64_t epoch, uint64_t stream);
uint64_t mds_draw(uint64_t key, uint64_t i, uint64_t n);

/* ---- orders.c: positions of an epoch to record numbers ---------------------------------------------------- */

/* Chunks of consecutive records, none of which crosses a source. Chunks stand in slots in keyed order; every
 * `mix_chunks` slots are one mix, inside which records stand in keyed order. A source whose size is no multiple of the
 * chunk size ends in a short chunk, and the tables say where those stand in this epoch: one entry for each. */
typedef struct {
    uint64_t chunk_size, chunks, mix_chunks, seed, epoch;
    const uint64_t *first_chunk;  /* of each source, and the number of chunks: sources + 1 entries */
    const uint64_t *first_record; /* of each source, and the number of records */
    size_t sources;
    const uint64_t *short_ends;     /* position after the t-th short chunk in slot order */
    const uint64_t *short_slots;    /* its slot */
    const uint64_t *short_missing;  /* records missing in short chunks before the t-th: short_chunks + 1 entries */
    size_t short_chunks;
} mds_chunks;

/* out[k] = record at positions[k]; every position must lie in the epoch. `order` permutes the chunks. */
void mds_chunks_at(const mds_kernels *kernels, const mds_chunks *c, const mds_permutation *order,
                   const int64_t *positions, size_t count, int64_t *out);

/* Cut a period of `total` positions among members with integer weights that add up to it: which[p] is the member that
 * position p belongs to, rank[p] how many positions before p belong to the same. At every prefix the count of each
 * member is within 1 of its exact share. `given` is scratch for `members` counts. */
void mds_mixture_period(const uint64_t *weights, size_t members, uint32_t total, uint64_t *given, uint32_t *which,
                        uint32_t *rank);

typedef struct {
    size_t members;
    const uint64_t *weights, *sizes, *first_record; /* of each member */
    uint32_t total;
    const uint32_t *which, *rank;
    uint64_t seed, epoch;
    int shuffle;
} mds_mixture;

/* One permutation a member, remembered between positions; begin with pass = MDS_NONE. */
typedef struct {
    mds_permutation permutation;
    uint64_t pass;
} mds_member;

/* out[k] = record at positions[k], for positions >= 0; members are shuffled anew each time they are used up. */
void mds_mixture_at(const mds_mixture *m, mds_member *members, const int64_t *positions, size_t count, int64_t *out);

/* ---- gather.c: many pieces of memory into one array ---------------------------------------------------------- */

typedef struct {
    const uint8_t *data; /* may be NULL when size is 0 */
    size_t size;
} mds_piece;

/* Write `count` rows of `width` bytes: row i is pieces[i] and, from there to its end, `fill` over and over. Every byte
 * of `out` is written once. Needs pieces[i].size <= width, and no piece may overlap `out`.
 *
 * To fill with an element of 1, 2, 4 or 8 bytes, repeat it until it is a `fill` of 8; sizes and width are then whole
 * numbers of elements, and so an element is never cut, wherever a piece ends. */
void mds_pad_rows(const mds_piece *pieces, size_t count, size_t width, uint64_t fill, uint8_t *out);

#endif
