/* mmapds.h - the whole face of the C core.
 *
 * The core is a set of single-threaded functions over memory that the caller owns. It knows nothing of
 * Python, keeps no state but the kernel table, and allocates nothing: the caller brings every buffer, and may
 * call from as many threads as it likes. Only the binding, in
 * python/, turns a status into an exception.
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

/* Where a 64-byte block has the bytes that JSON is made of, strings not yet told from the rest: bit b is byte b. */
typedef struct {
    uint64_t quote, backslash;
    uint64_t open, close; /* brackets and braces */
    uint64_t colon;
    uint64_t extra; /* one more byte, of the caller's choice */
} mds_json_masks;

typedef void mds_json_blocks(const uint8_t *data, size_t blocks, uint8_t extra, mds_json_masks *masks);

/* Bytes of `data` before the first '"', '\\' or control character, n at most; *continuing is set to how many of them
 * continue a UTF-8 sequence, *beyond to whether any is beyond ASCII. */
typedef size_t mds_text_run(const uint8_t *data, size_t n, size_t *continuing, int *beyond);

#define MDS_PERMUTE_LANES 16
struct mds_permutation;

/* Run the rounds of a permutation over MDS_PERMUTE_LANES positions split into halves, in place. */
typedef void mds_permute_rounds(const struct mds_permutation *p, uint32_t *left, uint32_t *right);

/* The CRC32C of bytes whose CRC32C is `crc` (0 when there are none) followed by data[0..n). */
typedef uint32_t mds_crc32c(uint32_t crc, const uint8_t *data, size_t n);

typedef struct {
    const char *name;
    mds_mask_bytes *mask_bytes;
    mds_json_blocks *json_blocks;
    mds_text_run *text_run;
    mds_permute_rounds *permute_rounds;
    mds_crc32c *crc32c;
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

typedef enum {
    MDS_ADVISE_NORMAL,
    MDS_ADVISE_RANDOM,
    MDS_ADVISE_SEQUENTIAL,
    MDS_ADVISE_WILLNEED,
    MDS_ADVISE_POPULATE, /* map all pages now, rather than one fault after another */
} mds_advice;

/* Map a regular file read-only and close its descriptor. */
mds_status mds_map_open(const char *path, mds_map *map);
void mds_map_close(mds_map *map);

/* Advise about [begin, end) of the map, clipped to it and widened to pages. A refused advice costs speed, not
 * correctness, so there is nothing to report. */
void mds_map_advise(const mds_map *map, uint64_t begin, uint64_t end, mds_advice advice);

/* ---- records.c: from a record number to its bytes ----------------------------------------------------- */

/* How records are framed in a source, hence how the payload lies between two bounds. */
typedef enum {
    MDS_FRAMING_NONE,       /* all that lies between two bounds */
    MDS_FRAMING_LINES,      /* a line, its end of line, and the blank lines that follow */
    MDS_FRAMING_FIRST_LINE, /* a line, its end of line, and any lines that follow: those that were skipped */
    MDS_FRAMING_U32LE,      /* the payload's size in so many bits and this byte order, then the payload */
    MDS_FRAMING_U32BE,
    MDS_FRAMING_U64LE,
    MDS_FRAMING_U64BE,
    MDS_FRAMING_VARINT,     /* the same as a varint, 7 bits a byte and the lowest first: delimited protobuf messages */
    MDS_FRAMING_TFRECORD,   /* a u64 size and its masked CRC32C, the payload and its masked CRC32C */
} mds_framing;

typedef struct {
    mds_map map;
    const uint64_t *bounds; /* count + 1 offsets, as read from the index: untrusted; NULL when records have one size */
    uint64_t first, stride; /* where record 0 begins, and the size of all, then; also untrusted */
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

/* ---- frames.c: records that say how long they are ------------------------------------------------------ */

typedef enum {
    MDS_FRAMES_OK = 0,
    MDS_FRAMES_PREFIX_CUT,  /* the file ends inside a prefix */
    MDS_FRAMES_PAYLOAD_CUT, /* the file ends before what the prefix says */
    MDS_FRAMES_NO_VARINT,   /* more than 10 bytes, or more than 64 bits */
    MDS_FRAMES_LENGTH_CRC,  /* the CRC of a length is not what it should be */
    MDS_FRAMES_DATA_CRC,    /* the CRC of a payload is not */
    MDS_FRAMES_NO_FRAMING,  /* the framing is not one of frames */
} mds_frames_status;

/* A walk that can stop at any frame and go on with the next; begin with all 0. */
typedef struct {
    uint64_t at;              /* where the next frame begins; where the frame that cannot be read does */
    uint64_t payload;         /* size of its payload, or that of the last; of no meaning after PREFIX_CUT and NO_VARINT */
    uint32_t found, expected; /* masked CRCs, where they differ */
} mds_frames;

/* Write where the frames that begin in [state->at, end) begin, and the sizes of their payloads unless `sizes` is NULL,
 * `capacity` of them at most, each of which ends in the map. Sets *count even when it fails. Reads one cache line of
 * long frames, and checks the CRCs of lengths. */
mds_frames_status mds_frames_scan(const mds_kernels *kernels, const mds_map *map, mds_framing framing, uint64_t end,
                                  mds_frames *state, uint64_t *starts, uint64_t *sizes, size_t capacity, size_t *count);

/* Check all CRCs of the TFRecords that begin in [state->at, end). Sets *count to how many are right. */
mds_frames_status mds_frames_verify(const mds_kernels *kernels, const mds_map *map, uint64_t end, mds_frames *state,
                                    uint64_t *count);

/* What lies between the framing of a frame. Frames lie one after another, so that the span says how long they are, and of
 * the data no more than a varint is looked at; empty where there is no framing, or it is longer than the span. */
mds_span mds_frame_payload(const uint8_t *data, mds_framing framing, mds_span span);

/* How many varints end in data[0..n). */
size_t mds_varints_count(const uint8_t *data, size_t n);

/* The varints that data[0..n) is made of, modulo 2^64 as protobuf has it, into room for as many as there are. MDS_CORRUPT
 * when one has more than 10 bytes or the last does not end; *at says where it begins. */
mds_status mds_varints_read(const uint8_t *data, size_t n, uint64_t *out, size_t *at);

/* ---- crc.c: CRC32C --------------------------------------------------------------------------------------- */

mds_crc32c mds_crc32c_portable;
#if defined(__x86_64__)
mds_crc32c mds_crc32c_sse42;
#endif
#if defined(__aarch64__)
mds_crc32c mds_crc32c_arm; /* needs the CRC32 extension, which ARMv8.0 may lack */
#endif

/* ---- tar.c: members of a tar, grouped into samples ----------------------------------------------------- */

typedef enum {
    MDS_TAR_OK,
    MDS_TAR_END,       /* two blocks of zeros, or the end of the file where a header could begin */
    MDS_TAR_TRUNCATED, /* the file ends in a header, or before the bytes of a member do */
    MDS_TAR_GARBAGE,   /* there is no header here: its checksum is wrong */
    MDS_TAR_NUMBER,    /* a size that is no number, is negative, or has more than 63 bits */
    MDS_TAR_EXTENDED,  /* an extended header that is not as specified */
    MDS_TAR_GLOBAL,    /* a global header that names or sizes all members that follow */
    MDS_TAR_SPARSE,    /* a sparse member, whose bytes do not lie in the file as they are */
    MDS_TAR_ZEROS,     /* one block of zeros, and then something else */
    MDS_TAR_DUPLICATE, /* two members of a sample have the same extension */
} mds_tar_status;

#define MDS_TAR_BLOCK 512
#define MDS_TAR_JOINED 257 /* a prefix of 155 bytes, a slash, a name of 100 */

typedef struct {
    uint64_t header;      /* the first block that is the member's, extended headers included */
    uint64_t begin, end;  /* its bytes */
    uint64_t next;        /* where the next header begins */
    const uint8_t *name;  /* in the archive, or in `joined`; NULL before it is known */
    uint64_t name_size;
    uint64_t key_size;    /* bytes of the name that are the key of its sample; 0: it belongs to none */
    const uint8_t *extension; /* what follows the dot after the key */
    uint64_t extension_size;
    uint8_t joined[MDS_TAR_JOINED];
    uint8_t block[MDS_TAR_BLOCK]; /* the header, if it was not read from a map */
} mds_tar_member;

/* Read the member at byte `at` of an archive data[0..n). Reads nothing outside, and gives no bytes outside, whatever the
 * archive says. On failure member->next is the byte that shows it; on MDS_TAR_TRUNCATED the name may be known. */
mds_tar_status mds_tar_next(const uint8_t *data, uint64_t n, uint64_t at, mds_tar_member *member);

/* Whether two members are of one sample; have the same extension, ASCII letters of either case being equal. */
int mds_tar_same_key(const mds_tar_member *one, const mds_tar_member *other);
int mds_tar_same_extension(const mds_tar_member *one, const mds_tar_member *other);

/* What an index looks keys up by: FNV-1a of 64 bits, folded to 32. */
uint32_t mds_tar_hash(const uint8_t *key, size_t n);

#define MDS_TAR_EXTENSIONS 64 /* of a sample are compared with one another; the rest, when it is read */
#define MDS_TAR_HEADERS 65536 /* are read in one call, so that it can be interrupted */

/* A scan that can stop after any member. Begin with all bytes zero. */
typedef struct {
    uint64_t at;         /* the next header; after a failure, the byte that shows it */
    uint64_t samples;    /* that were found */
    uint64_t window;     /* where to look again how far apart headers are; how many there were since the last time: */
    uint64_t headers;
    int far;
    int open;            /* a sample has begun and is not yet told of; its first header, its end so far, its key: */
    uint64_t begin, end;
    uint64_t key_at;     /* in the archive; MDS_NONE: in `joined` */
    uint64_t key_size;
    uint8_t joined[MDS_TAR_JOINED];
    size_t extensions;
    struct {
        uint32_t hash;
        uint64_t header;
    } seen[MDS_TAR_EXTENSIONS];
} mds_tar;

/* Find samples: consecutive members with one key, others between them passed over. Of each, write where its first header
 * begins, how many bytes lie between there and the next sample (for the last: the end of its last member), and the hash of
 * its key. Stops when `capacity` are found or MDS_TAR_HEADERS were read, with MDS_TAR_OK. On MDS_TAR_TRUNCATED all samples
 * that were whole are there, and state->end is where the last of them ends.
 *
 * `fd` is the archive's file, of which data[0..n) is a map, or -1: headers that lie far apart are read from there. */
mds_tar_status mds_tar_scan(const uint8_t *data, uint64_t n, int fd, mds_tar *state, uint64_t *begins, uint64_t *sizes,
                            uint64_t *hashes, size_t capacity, size_t *count);

/* A walk through the members of one sample. Begin with `at` and `first.key_size` 0. */
typedef struct {
    uint64_t at;          /* the next header; after a failure, the byte that shows it */
    mds_tar_member first; /* the member that gives the sample its key, once there is one */
    mds_tar_member other; /* the last that was read after it */
} mds_tar_sample;

/* Read the next member of the sample data[0..n) and point *member at it; members that belong to none are passed over.
 * MDS_TAR_GARBAGE when a member of another sample comes, MDS_TAR_END when no member does. */
mds_tar_status mds_tar_sample_next(const uint8_t *data, uint64_t n, mds_tar_sample *sample,
                                   const mds_tar_member **member);

/* ---- arrays.c: records of named arrays ------------------------------------------------------------------ */

typedef enum {
    MDS_ARRAY_WORD,  /* one 64-bit word of the table */
    MDS_ARRAY_BYTES, /* a run of bytes, whose size the table says */
    MDS_ARRAY_ITEMS, /* an array; the table says how long its ragged axes are */
} mds_array_kind;

#define MDS_ARRAY_DIMS 8
#define MDS_ARRAY_ALIGNMENT 64

typedef struct {
    mds_array_kind kind;
    uint64_t item; /* bytes of an element; the schema's, so below 2^32 */
    size_t dims;
    uint64_t shape[MDS_ARRAY_DIMS]; /* MDS_NONE: ragged */
} mds_array_field;

typedef struct {
    uint64_t word;        /* of the table; of an array how long its first axis is, MDS_NONE where it has none */
    uint64_t begin, size; /* bytes of the record */
    uint64_t shape[MDS_ARRAY_DIMS];
} mds_array_value;

/* Find the fields of the record at `data`, of which n bytes may be read, and its size, which may be less. Returns 0 unless
 * every field lies inside the record; *failed then says which does not, `count` standing for the record itself. */
int mds_array_record(const mds_array_field *fields, size_t count, const uint8_t *data, uint64_t n,
                     mds_array_value *values, uint64_t *size, size_t *failed);

/* Find the fields of n records that were located: those of records[k] are values[k * count] and on. Returns the first
 * record that mds_array_record refuses, n when there is none. */
size_t mds_array_records(const mds_array_field *fields, size_t count, const mds_request *records, size_t n,
                         mds_array_value *values, size_t *failed);

/* The words, and the shapes of `dims` axes, of one field of n records, whose values lie `stride` entries apart. */
void mds_array_words(const mds_array_value *values, size_t stride, size_t n, uint64_t *out);
void mds_array_shapes(const mds_array_value *values, size_t stride, size_t n, size_t dims, uint64_t *out);

/* ---- json.c: one field of a JSON record, measured where it lies -------------------------------------- */

/* What is measured. */
typedef enum {
    MDS_MEASURE_NUMBER, /* the number at the path */
    MDS_MEASURE_BYTES,  /* bytes of the string at the path, decoded to UTF-8 */
    MDS_MEASURE_CHARS,  /* its code points */
    MDS_MEASURE_ITEMS,  /* elements of the array at the path, not of arrays in it */
    MDS_MEASURE_RECORD, /* bytes of the record; takes no path and looks at no JSON */
} mds_measure;

#define MDS_PATH 16
#define MDS_JSON_DEPTH 1024 /* arrays and objects inside one another; what orjson accepts */

typedef struct {
    mds_measure measure;
    size_t segments; /* keys of the path, 1 to MDS_PATH */
    const uint8_t *keys[MDS_PATH];
    size_t key_sizes[MDS_PATH];
} mds_field;

/* A number of 64 bits, and how to read them. A column has one type for all its numbers: the first that fits them. */
typedef enum { MDS_U64, MDS_I64, MDS_F64 } mds_number_type;

typedef struct {
    mds_number_type type; /* MDS_I64 for negative integers only */
    uint64_t bits;
} mds_number;

typedef enum {
    MDS_JSON_OK,
    MDS_JSON_MISSING, /* there is no such field, or it is null */
    MDS_JSON_TYPE,    /* it is of another type; `at` is where */
    MDS_JSON_INVALID, /* the record is not JSON; `at` is where */
} mds_json_status;

/* Measure a field of the record data[0..n). Up to `readable` >= n bytes may be read. Of duplicate keys the last counts, as
 * with orjson. Builds nothing: strings and brackets are told apart 64 bytes at a time, and only what could be the key
 * is looked at, so a record that is not JSON may pass: see mds_json_valid. */
mds_json_status mds_json_measure(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t readable,
                                 const mds_field *field, mds_number *number, size_t *at);

/* Whether data[0..n) is one JSON value, to the letter of RFC 8259: UTF-8 and surrogate pairs are checked, numbers are
 * finite as doubles, nesting is no deeper than MDS_JSON_DEPTH. Sets *at to where it is not. */
int mds_json_valid(const mds_kernels *kernels, const uint8_t *data, size_t n, size_t *at);

/* What to do with records that lack a field. */
typedef enum { MDS_MISSING_ERROR, MDS_MISSING_SKIP, MDS_MISSING_FILL } mds_missing;

/* How the columns of an index are measured. */
typedef struct {
    const mds_field *fields;
    size_t columns;
    mds_missing missing;
    mds_number fill;
    int validate;
} mds_measuring;

typedef struct {
    uint64_t *const *cells; /* cells[c] takes the numbers of column c */
    mds_number_type *types; /* their common type; begin with MDS_U64 */
    size_t records;         /* that begin in the block */
    size_t kept;            /* of them: those that are not skipped */
    uint64_t failed, at;    /* the record that cannot be measured, and the byte of the file that shows it */
    size_t column;          /* its column; the number of columns where the record is not JSON */
} mds_measured;

/* mds_lines_scan over bytes [begin, end) of a map, and at the same time measure all columns of the records it finds: each
 * to its end, also beyond the block, and the one that the block fell into the middle of not at all. `starts` and the
 * cells are left with the records that are kept. Stops at a record that cannot be measured. */
mds_json_status mds_measure_lines(const mds_kernels *kernels, const mds_map *map, uint64_t begin, uint64_t end,
                                  const mds_measuring *measuring, mds_lines *state, uint64_t *starts,
                                  mds_measured *measured);

/* Cells as another type, in place; as 32-bit integers, which they must fit, and back; the largest as unsigned integer. */
void mds_cells_convert(uint64_t *cells, size_t n, mds_number_type from, mds_number_type to);
void mds_cells_narrow(const uint64_t *cells, size_t n, uint32_t *out);
void mds_cells_widen(const uint32_t *numbers, size_t n, uint64_t *cells);
uint64_t mds_cells_largest(const uint64_t *cells, size_t n);

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

/* out[k] = draw(key, positions[k], n). Needs n >= 1. */
void mds_draw_many(uint64_t key, uint64_t n, const int64_t *positions, size_t count, int64_t *out);

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

/* out[k] = the member that positions[k], 0 or more, takes a record of. */
void mds_mixture_which(const mds_mixture *m, const int64_t *positions, size_t count, int64_t *out);

/* Whether the tables of `c` agree with one another and with `order`, so that every position of the epoch leads to a
 * record. Where they do not, *table is the name of one that is wrong, and *entry the first entry that shows it. */
int mds_chunks_agree(const mds_chunks *c, const mds_permutation *order, const char **table, size_t *entry);

/* The first of numbers[0..n) that is not in [0, limit); n when all are. */
size_t mds_first_outside(const int64_t *numbers, size_t n, uint64_t limit);

/* ---- plan.c: batches under a budget -------------------------------------------------------------------------- */

/* Lengths and orders are unsigned integers of 4 or 8 bytes: `width` and `order_width` say which. */
uint64_t mds_lengths_largest(const void *lengths, unsigned width, size_t n);

/* One pass of a stable sort, by the digit `length >> shift & mask`, which is below `digits`, larger ones first: from the
 * record numbers in[0..n), or 0..n-1 where it is NULL, to out[0..n). counts[0..digits) is left with where the run of
 * each digit ends. */
void mds_lengths_sort(const void *lengths, unsigned width, size_t n, unsigned shift, uint64_t mask, size_t digits,
                      uint64_t *counts, const void *in, void *out, unsigned order_width);

/* From where runs end to the digits there are, falling, and how many records have each; returns how many. */
size_t mds_runs_of(const uint64_t *ends, size_t digits, uint64_t *values, uint64_t *counts);

/* The lengths there are in a sorted order, and how many records have each; returns how many. `values` may be NULL. */
size_t mds_lengths_runs(const void *lengths, unsigned width, const void *order, unsigned order_width, size_t n,
                        uint64_t *values, uint64_t *counts);

/* What a batch may hold. The cost of a record of length L is L, plus L^2 / quadratic where that is not 0. */
typedef struct {
    uint64_t tokens;
    uint64_t largest;  /* records in a batch, 1 to 2^31 */
    uint64_t multiple; /* sizes of at least this are multiples of it; 1 or more */
    uint64_t quadratic;
} mds_budget;

/* How many records of a length make a batch; 1 where even one exceeds the budget. */
uint64_t mds_batch_size(const mds_budget *budget, uint64_t length);

/* A run of the length order: `batches` batches of `size` records each. */
typedef struct {
    uint64_t first_rank, first_batch; /* records and batches before it */
    uint64_t batches, size;
} mds_bucket;

/* Cut records, given by their distinct lengths (falling) and how many have each, into buckets; return how many. A bucket
 * goes on until it has `wanted` batches or the records of its longest length are used up, whichever is later; with
 * `close`, it ends before lengths fall by more than 3 %, and from two batches on before they allow a larger batch. Only
 * the last may hold a batch that is not full. `buckets` has room for distinct + 2. */
size_t mds_plan_buckets(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct,
                        uint64_t wanted, int close, mds_bucket *buckets);

/* The first of buckets[0..count) that does not begin where the one before ends, or holds no records, or more than a
 * signed number can count; `count` when all do. *ranks and *batches are how many there are before it. */
size_t mds_buckets_follow(const mds_bucket *buckets, size_t count, uint64_t *ranks, uint64_t *batches);

/* The first of `distinct` lengths that does not fall, or that no record or more than 2^63 records have; `distinct` when
 * all are as mds_plan_buckets needs them. */
size_t mds_lengths_fall(const uint64_t *values, const uint64_t *counts, size_t distinct);

typedef struct {
    const mds_bucket *buckets;
    size_t count;
    const void *order; /* record numbers, the longest first, as read from an index: untrusted */
    unsigned order_width;
    uint64_t first_rank; /* where in the order the first bucket begins */
    uint64_t ranks;      /* how many records of the order from there on are planned */
    uint64_t records;    /* in the dataset: record numbers are below */
    uint64_t seed, epoch;
    int shuffle;
} mds_plan;

/* Write the records of batches[0..n), each below the number of batches, one after another, and where each ends.
 * MDS_CORRUPT when they do not fit `capacity` or the order holds what is no record. */
mds_status mds_plan_batches(const mds_kernels *kernels, const mds_plan *plan, const int64_t *batches, size_t n,
                            int64_t *records, size_t capacity, int64_t *ends);

/* The batch that the record at each rank, counted from first_rank, is in. */
void mds_plan_find(const mds_plan *plan, const int64_t *ranks, size_t n, int64_t *batches);

/* Buckets that are filled in the order in which records come: a batch is ready when it is full, or when there are no more
 * records for it: the last batch of the last bucket. */
typedef struct {
    const mds_bucket *buckets;
    size_t count;
    uint64_t ranks; /* records in all buckets */
    const void *lengths;
    unsigned width;
    uint64_t records;
    const uint64_t *values; /* distinct lengths that are planned, falling */
    size_t distinct;
    const uint32_t *first_buckets; /* of each value: the bucket of its first records */
    const uint64_t *splits;        /* of each value: the record from which on they are in the next bucket, or MDS_NONE */
    const uint32_t *table;         /* which value a length below table_size is, or UINT32_MAX */
    size_t table_size;
    uint64_t *taken;             /* of each bucket: records so far */
    int64_t *open;               /* batches being filled, that of bucket b from open_first[b] on */
    const uint64_t *open_first;
} mds_stream;

/* Take records[0..n) until `most` batches are ready or no more fit `out`; *consumed says how many were taken.
 * MDS_CORRUPT when one is out of range, or there are more of a bucket than there should be. */
mds_status mds_stream_push(const mds_stream *s, const int64_t *records, size_t n, size_t *consumed, int64_t *out,
                           size_t capacity, int64_t *ends, size_t most, size_t *emitted, size_t *written);

/* Whether every length, by its value or by the table, leads to a bucket. Where one does not, *table is the name of the
 * table that is wrong, and *entry the first entry that shows it. Needs buckets that follow one another. */
int mds_stream_agrees(const mds_stream *s, const char **table, size_t *entry);

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

/* The arrays of one field of n records as pieces: the first `longest` entries of each along its first axis, the last ones
 * with `left`, an entry being `row` bytes. values[k * stride] is what mds_array_record found in records[k]. Returns the
 * first array whose entries have another size, n when there is none. */
size_t mds_array_pieces(const mds_request *records, const mds_array_value *values, size_t stride, size_t n,
                        uint64_t longest, int left, uint64_t row, mds_piece *pieces);

#endif
