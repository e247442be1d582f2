/* mmapds.h - all public functions of the C core.
 *
 * The core is a set of single-threaded functions over memory that the caller owns. It includes no Python header, keeps
 * no state and allocates nothing: the caller brings every buffer, and may call from any number of threads. Only the
 * binding turns a status into an exception. Every number from a file is a uint64_t and is checked before it is used.
 *
 * A section is named after its file. A HowTo shows the calls in the order in which one makes them. */
#ifndef MMAPDS_H
#define MMAPDS_H

#include <setjmp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bounds.h" /* bounds.c */

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mmapds maps little-endian files into arrays and does not support big-endian machines"
#endif

typedef enum {
    MDS_OK = 0,
    MDS_SYSTEM,   /* a system call failed; errno says why */
    MDS_SHRANK,   /* the file ended before the requested bytes */
    MDS_CORRUPT,  /* numbers from a file contradict one another or the memory they describe */
    MDS_NOT_FILE, /* not a regular file */
} mds_status;

#define MDS_NONE UINT64_MAX

/* ---- kernels.c: SIMD variants ----------------------------------------------------------------------------------- */

/* The inner loops in the variant for one kind of processor. */
typedef struct mds_kernels mds_kernels;

/* The i-th variant this machine can run, the best first; NULL after the last, which is "portable". */
const mds_kernels *mds_kernels_at(size_t i);
const char *mds_kernels_name(const mds_kernels *kernels);

/* The variant called `name`, or the best one if `name` is NULL; NULL if this machine cannot run it. */
const mds_kernels *mds_kernels_find(const char *name);

/* ---- crc.c: CRC32C ---------------------------------------------------------------------------------------------- */

/* Continue a CRC32C over data[0..n): `crc` is that of the bytes before, 0 if there are none. */
uint32_t mds_crc32c(const mds_kernels *kernels, uint32_t crc, const uint8_t *data, size_t n);

/* ---- guard.c: reads of maps whose files may become shorter ----------------------------------------------------- */

/* A read beyond the end of a mapped file that became shorter ends the process. A guard turns it into a status instead.
 * HowTo, in a function that holds no lock and allocates nothing while it reads:
 *
 *     mds_guard guard;
 *     if (MDS_GUARD(&guard))
 *         return MDS_SHRANK;
 *     read the map; after a jump, locals that changed here are undefined unless they are volatile
 *     mds_guard_leave();
 *
 * Guards do not nest. Only this part of the core keeps a state: a thread's guard, and the handler of SIGBUS.
 * The previous handler gets bus errors without a guard. */
typedef struct {
    sigjmp_buf jump;
} mds_guard;

#define MDS_GUARD(guard) (mds_guard_enter(guard), sigsetjmp((guard)->jump, 0) != 0)

void mds_guard_enter(mds_guard *guard);
void mds_guard_leave(void);

/* Set our handler again, in case another library has replaced it: call it now and then. */
void mds_guard_install(void);

/* ---- map.c: regular files, mapped or read by pread ----------------------------------------------------------- */

/* How to open a file again. Only some files keep a descriptor, so that ten thousand shards can be open. */
typedef struct {
    const char *path; /* owned by the caller; an absolute path that must stay valid */
    int fd;           /* -1 if none is kept */
    uint64_t device, inode;
    _Atomic int64_t checked; /* time of the last check of its size */
} mds_file;

typedef struct {
    const uint8_t *data; /* NULL if size is 0, or if the file is not mapped */
    uint64_t size;       /* at the time of opening */
    int64_t mtime_ns;    /* the same */
    mds_file *file;      /* NULL for memory without a file */
} mds_map;

typedef enum {
    MDS_ADVISE_RANDOM,
    MDS_ADVISE_SEQUENTIAL,
    MDS_ADVISE_WILLNEED,
    MDS_ADVISE_POPULATE, /* map all pages now, rather than one fault after another */
} mds_advice;

/* How to read the bytes of a file. */
typedef enum {
    MDS_IO_MAP,
    MDS_IO_PREAD, /* map.data is NULL: mds_map_read copies bytes */
    MDS_IO_COPY,  /* all of it is read into memory: for scans of files that cannot be mapped */
} mds_io;

/* Open a regular file for reading. `file` must stay where it is until the map is closed. */
mds_status mds_map_open(const char *path, mds_io io, mds_map *map, mds_file *file);
void mds_map_close(mds_map *map);

/* Copy bytes [begin, begin + n) in any mode. Returns MDS_CORRUPT if the opened file does not have them, MDS_SHRANK if
 * it has become shorter. */
mds_status mds_map_read(const mds_map *map, uint64_t begin, size_t n, uint8_t *out);

/* Copy runs of `n` bytes, which begin at some bytes of the file, one after another; `ask` for all of them first, where
 * the disk would be waited for. Returns the status of the first one that mds_map_read refuses. */
mds_status mds_map_read_runs(const mds_map *map, const int64_t *begins, size_t count, size_t n, int ask, uint8_t *out);

/* Return MDS_SHRANK if the file of a map is shorter than at the time of opening. Needs map->file. A removed or replaced
 * file counts as whole. */
mds_status mds_map_check(const mds_map *map);

/* The same, after a read of bytes up to `end`; cheap enough after each read. It calls the system only if these bytes
 * may be the zeros behind the end of a file, or if the last check is 10 ms old. `now` is mds_now. Reads the map: call
 * it under the same guard. */
static inline mds_status mds_map_was_whole(const mds_map *map, uint64_t end, int64_t now);

int64_t mds_now(void); /* nanoseconds of a clock that is cheap to read */

#define MDS_CHECK_AGAIN_NS 10000000 /* a file that became shorter may stay unnoticed for so long */

mds_status mds_map_check_zeros(const mds_map *map, uint64_t end); /* the part for bytes that end with 0 */

static inline mds_status mds_map_was_whole(const mds_map *map, uint64_t end, int64_t now)
{
    if (!map->file)
        return MDS_OK;
    if (now - atomic_load_explicit(&map->file->checked, memory_order_relaxed) > MDS_CHECK_AGAIN_NS)
        return mds_map_check(map);
    return end && !map->data[end - 1] ? mds_map_check_zeros(map, end) : MDS_OK;
}

/* Count the words above `wanted` among `count` descending 32-bit words from byte `begin` on, by binary search. Reads
 * single words, and returns the status of mds_map_read. */
mds_status mds_map_count_above(const mds_map *map, uint64_t begin, uint64_t count, uint32_t wanted, uint64_t *above);

/* Advise the system about [begin, end) of the file, clipped to it and widened to pages. If the system refuses, reads
 * are slower but correct, so there is no status. */
void mds_map_advise(const mds_map *map, uint64_t begin, uint64_t end, mds_advice advice);

/* ---- pages.c: memory for blocks ------------------------------------------------------------------------------ */

/* Round `size` up to whole pages: the sizes of the functions below. */
size_t mds_pages_round(size_t size);

/* Take pages, 1 byte or more; NULL if the system has none. */
uint8_t *mds_pages_take(size_t size);
void mds_pages_free(uint8_t *data, size_t size);

/* Grow or shrink pages without keeping their bytes; they may move. Returns NULL, with the pages freed, if the system
 * has no memory. */
uint8_t *mds_pages_resize(uint8_t *data, size_t from, size_t to);

/* ---- lines.c: where records start in newline-delimited text ----------------------------------------------------- */

/* A line is blank if it holds only spaces, tabs and carriage returns. Every other line is a record.
 *
 * HowTo: begin with pending = 0, cut the text into pieces of any size, and scan them in order. `base` is where a piece
 * begins in the file, and `starts` has room for MDS_LINES_CAPACITY(n) entries:
 *
 *     count = mds_lines_scan(kernels, piece, n, base, &state, starts, MDS_LINES_CAPACITY(n));
 *
 * To scan pieces in parallel, begin in the middle of a file, at byte `base`, with pending = base. If the rest of the
 * line there is not blank, the first start is `base`. Only the caller knows the bytes before, and whether a record
 * starts there. */
typedef struct {
    uint64_t pending;  /* start of the current line if it has been blank so far, else MDS_NONE */
    uint64_t newlines; /* how many were found so far */
} mds_lines;

#define MDS_LINES_CAPACITY(n) ((n) / 2 + 2) /* a record and its newline take two bytes or more */

/* Write the starts of up to `room` records whose first byte that is not blank lies in the piece; return how many. */
size_t mds_lines_scan(const mds_kernels *kernels, const uint8_t *data, size_t n, uint64_t base, mds_lines *state,
                      uint64_t *starts, size_t room);

/* ---- records.c: from a record number to its bytes --------------------------------------------------------------- */

/* How a source frames its records: where the payload lies in the bytes of a record. */
typedef enum {
    MDS_FRAMING_NONE,       /* all bytes are payload */
    MDS_FRAMING_LINES,      /* a line, its end of line, and the blank lines that follow */
    MDS_FRAMING_FIRST_LINE, /* a line, its end of line, and other lines that follow because they were skipped */
    MDS_FRAMING_U32LE,      /* the payload's size as an integer of this width and byte order, then the payload */
    MDS_FRAMING_U32BE,
    MDS_FRAMING_U64LE,
    MDS_FRAMING_U64BE,
    MDS_FRAMING_VARINT, /* the payload's size as a varint (7 bits a byte, lowest first): delimited protobuf messages */
    MDS_FRAMING_TFRECORD, /* u64 size, masked CRC32C of the size, payload, masked CRC32C of the payload */
} mds_framing;

/* HowTo: one record, and a batch of them, each step under a guard (the functions for batches bring their own). The
 * source is kept while the dataset is open:
 *
 *     if (mds_record_span(&source, i, &span) == MDS_OK)
 *         payload = mds_record_payload(source.framing, source.map->data + span.begin, span.end - span.begin);
 *
 *     requests[k] = (mds_request){.source = &source, .i = i[k]} for k < n
 *     status = mds_records_locate(requests, order, n, ask, &room, &failed);
 *     if MDS_OK: status = mds_records_load(requests, n, memory of `room` bytes, &failed);
 *     if MDS_OK: the payload of requests[k] is requests[k].data, and it is in memory */
typedef struct {
    const mds_map *map;
    const mds_map *index;   /* holds the bounds; NULL if all records have one size, or if no file holds them */
    uint64_t bounds_at;     /* the byte of the index where the bounds begin */
    const uint8_t *bounds;  /* groups, untrusted; NULL without bounds or if the index is not mapped */
    unsigned width;         /* of the numbers in a group */
    uint64_t first, stride; /* without bounds: where record 0 begins, and the size of every record; untrusted */
    uint64_t count;
    mds_framing framing;
} mds_source;

/* Find the bytes of record i, framing included. Needs i < source->count. Returns MDS_CORRUPT if they are not in the
 * source; `span` then holds the wrong bounds. Reads only the index; returns the status of a failed read. */
mds_status mds_record_span(const mds_source *source, uint64_t i, mds_span *span);

/* The payload inside the bytes of a record, which mds_record_span has found. Reads only the framing. */
mds_span mds_record_payload(mds_framing framing, const uint8_t *record, uint64_t size);

/* Widen [*smallest, *largest] to the sizes of the records that begin at starts[0..n). Each ends where the next begins;
 * `previous` is the start before starts[0], or MDS_NONE. */
void mds_record_sizes(const uint64_t *starts, size_t n, uint64_t previous, uint64_t *smallest, uint64_t *largest);

/* One record of a batch. */
typedef struct {
    const mds_source *source;
    uint64_t i;
    mds_span span;       /* output: the bytes of the payload in the source */
    const uint8_t *data; /* output: these bytes in memory */
} mds_request;

/* Find the bytes of n records. With `ask`, asks the system for all index pages, and then for all data pages, before it
 * touches the first: the disk then works on one deep queue instead of one page at a time.
 *
 * *room becomes the memory that records of sources without a map need. `order` is scratch for n pointers. If the status
 * is not MDS_OK, *failed is the request that is wrong. */
mds_status mds_records_locate(mds_request *requests, mds_request **order, size_t n, int ask, uint64_t *room,
                              size_t *failed);

/* Bring the payloads into memory: copy unmapped ones into `room`, touch the pages of mapped ones, and prefetch small
 * ones into the cache. So page faults happen here, where the caller holds no lock, and not in its copies. Set `check`
 * if no copy follows: then check here that the sources are whole. */
mds_status mds_records_load(mds_request *requests, size_t n, uint8_t *room, int check, size_t *failed);

/* Copy the payloads, each to its own memory. */
mds_status mds_records_copy(const mds_request *requests, size_t n, uint8_t *const *out, size_t *failed);

/* Return whether the sources were whole during reads of requests[k].data. Call it under the guard of those reads. */
mds_status mds_records_were_whole(const mds_request *requests, size_t n, volatile size_t *failed);

/* Decide whether to `ask` for the next batch. Asking costs a system call a record, more than to read a record from
 * memory. So `cold` is MDS_COLD after a batch that waited for the disk, and counts down with each other batch. `reads`
 * is mds_disk_reads before the batch. */
long mds_disk_reads(void);
unsigned mds_next_cold(unsigned cold, long reads);

#define MDS_COLD 16

/* Detects sequential reads of a map that is advised for random ones, and requests the bytes ahead. Begin with all
 * zeros, and note the payload of each read. */
typedef struct {
    const mds_source *source;
    uint64_t next, ahead; /* end of the last payload; end of the requested bytes */
    unsigned run;         /* reads in order, up to a few */
} mds_readahead;

void mds_readahead_note(mds_readahead *readahead, const mds_source *source, mds_span span);

/* ---- blocks.c: records out of decoded blocks --------------------------------------------------------------------- */

/* A requested record of a compressed source. */
typedef struct {
    const mds_request *request; /* its span is in the content */
    uint8_t *out;               /* memory for its bytes */
    uint64_t left;              /* bytes that are missing */
} mds_block_record;

/* The first of n records, sorted by where they begin, that does not end before `begin`; ends rise, unless the index is
 * damaged. */
size_t mds_blocks_first(const mds_block_record *records, size_t n, uint64_t begin);

/* Copy the part of n records that lies in a piece of the content, bytes [begin, end). Records are sorted by their
 * begin. */
void mds_blocks_copy(mds_block_record *records, size_t n, uint64_t begin, uint64_t end, const uint8_t *piece);

/* ---- frames.c: records that begin with their size --------------------------------------------------------------- */

typedef enum {
    MDS_FRAMES_OK = 0,
    MDS_FRAMES_PREFIX_CUT,  /* the file ends inside a prefix */
    MDS_FRAMES_PAYLOAD_CUT, /* the file ends before the payload does */
    MDS_FRAMES_NO_VARINT,   /* a varint of more than 10 bytes or more than 64 bits */
    MDS_FRAMES_LENGTH_CRC,  /* the CRC of a size is wrong */
    MDS_FRAMES_DATA_CRC,    /* the CRC of a payload is wrong */
    MDS_FRAMES_NO_FRAMING,  /* the framing has no sizes */
} mds_frames_status;

/* HowTo: begin with all zeros, and call until the status is not MDS_FRAMES_OK or state.at reaches `end`:
 *
 *     status = mds_frames_scan(kernels, &map, framing, end, &state, starts, sizes, capacity, &count);
 *     use starts[0..count) and sizes[0..count), whatever the status
 *
 * The state is all that the caller keeps. After a failure, state.at is the frame that cannot be read. */
typedef struct {
    uint64_t at;      /* where the next frame begins */
    uint64_t payload; /* size of the last payload; undefined after PREFIX_CUT and NO_VARINT */
    uint32_t found,
        expected; /* after a CRC failure: the masked CRC in the file, and that of the bytes; after PAYLOAD_CUT:
                               * bytes of framing before the payload, and behind it */
} mds_frames;

/* Write the starts of the frames that begin in [state->at, end), and the sizes of their payloads unless `sizes` is
 * NULL, at most `capacity` of them. Each frame that is written ends inside the map. Checks the CRCs of sizes, and reads
 * one cache line of a long frame. Sets *count also on failure. */
mds_frames_status mds_frames_scan(const mds_kernels *kernels, const mds_map *map, mds_framing framing, uint64_t end,
                                  mds_frames *state, uint64_t *starts, uint64_t *sizes, size_t capacity, size_t *count);

/* Check all CRCs of the TFRecords that begin in [state->at, end). Sets *count to the number of good records. */
mds_frames_status mds_frames_verify(const mds_kernels *kernels, const mds_map *map, uint64_t end, mds_frames *state,
                                    uint64_t *count);

/* The payload inside the bytes of a frame. Its size is already known, so that only a varint is read. The payload is
 * empty if the framing has no sizes or is longer than the frame. */
mds_span mds_frame_payload(mds_framing framing, const uint8_t *frame, uint64_t size);

/* How many varints end in data[0..n). */
size_t mds_varints_count(const uint8_t *data, size_t n);

/* Decode the varints of data[0..n), modulo 2^64 as protobuf does; `out` has room for mds_varints_count of them. Returns
 * MDS_CORRUPT if one has more than 10 bytes or the last does not end; *at is where that one begins. */
mds_status mds_varints_read(const uint8_t *data, size_t n, uint64_t *out, size_t *at);

/* ---- tar.c: members of a tar, grouped into samples -------------------------------------------------------------- */

typedef enum {
    MDS_TAR_OK,
    MDS_TAR_END,       /* two blocks of zeros, or the end of the file where a header could begin */
    MDS_TAR_TRUNCATED, /* the file ends inside a header or inside the bytes of a member */
    MDS_TAR_GARBAGE,   /* the checksum of a header is wrong */
    MDS_TAR_NUMBER,    /* a size is not a number, is negative, or has more than 63 bits */
    MDS_TAR_EXTENDED,  /* an extended header is malformed */
    MDS_TAR_GLOBAL,    /* a global header sets the name or size of all members that follow */
    MDS_TAR_SPARSE,    /* a sparse member: its bytes do not lie in the file one after another */
    MDS_TAR_ZEROS,     /* one block of zeros, and then something else */
    MDS_TAR_DUPLICATE, /* two members of a sample have the same extension */
    MDS_TAR_MORE,      /* the available bytes of the archive end before the member */
} mds_tar_status;

#define MDS_TAR_BLOCK 512
#define MDS_TAR_JOINED 257 /* a prefix of 155 bytes, a slash, a name of 100 */

typedef struct {
    uint64_t header;       /* where the member's first block begins, extended headers included */
    uint64_t begin, end;   /* its bytes */
    uint64_t next;         /* where the next header begins */
    uint64_t held, needed; /* after MDS_TAR_MORE: continue when available bytes reach `held`, and those that have come
                               * reach `needed` */
    const uint8_t *name;   /* in the archive, or in `joined`; NULL while unknown */
    uint64_t name_size;    /* bytes of the name */
    uint64_t key_size;     /* bytes at the front of the name that are the key of its sample; 0: not in a sample */
    const uint8_t *extension; /* the part of the name after the key and its dot */
    uint64_t extension_size;
    uint8_t joined[MDS_TAR_JOINED]; /* a name made of prefix and name */
    uint8_t block[MDS_TAR_BLOCK];   /* the header, if it was read from the file and not from the map */
} mds_tar_member;

/* The available bytes of an archive: all of them if it is mapped. An archive that is decoded during the scan has some
 * bytes; those of its members are not needed. */
typedef struct {
    const uint8_t *data; /* bytes [begin, end) of the archive */
    uint64_t begin, end;
    uint64_t size;      /* of the archive, or of its part that has come so far */
    int is_whole;       /* whether the whole archive has come */
    int fd;             /* its file, or -1: headers that lie far apart are read from it, as a page fault costs more */
    const uint8_t *key; /* that of the open sample, if it began before `begin` */
} mds_tar_archive;

/* Read the member at byte `at` of an archive data[0..n). Reads nothing outside, and returns no offset outside, whatever
 * the archive says. On failure, member->next is the byte that shows it; on MDS_TAR_TRUNCATED the name may be known. To
 * read all members, begin with at = 0 and continue at member->next until the status is not MDS_TAR_OK. */
mds_tar_status mds_tar_next(const uint8_t *data, uint64_t n, uint64_t at, mds_tar_member *member);

/* Return whether two members have the same key, or the same extension, ignoring the case of ASCII letters in the
 * latter. */
int mds_tar_same_key(const mds_tar_member *one, const mds_tar_member *other);
int mds_tar_same_extension(const mds_tar_member *one, const mds_tar_member *other);

/* The hash by which an index finds keys: FNV-1a of 64 bits, folded to 32. */
uint32_t mds_tar_hash(const uint8_t *key, size_t n);

#define MDS_TAR_EXTENSIONS 64 /* a scan compares this many extensions of a sample, by hash; a reader, all of them */
#define MDS_TAR_HEADERS 65536 /* one call reads at most this many headers, so that the caller can interrupt the scan */

/* A sample is a run of consecutive members with one key; members without a key between them are skipped.
 *
 * HowTo: begin with all zeros, and call while the status is MDS_TAR_OK:
 *
 *     status = mds_tar_scan(&archive, &state, begins, sizes, hashes, capacity, &count, &member);
 *     use the first `count` of begins, sizes and hashes, whatever the status
 *
 * A good archive ends with MDS_TAR_END. On MDS_TAR_TRUNCATED all complete samples were returned, and state.end is where
 * the last of them ends. The state is all that the caller keeps of an archive that is mapped. Of another one, the
 * caller also keeps the bytes from state.at up to member.held, and the key of the open sample; after MDS_TAR_MORE, it
 * continues when these are available, and all bytes up to member.needed or the end of the archive have come. */
typedef struct {
    uint64_t at;      /* the next header; after a failure, the byte that shows it */
    uint64_t samples; /* samples returned so far */
    uint64_t window;  /* byte at which to decide again whether headers lie far apart */
    uint64_t headers; /* headers read since the last decision */
    int far;          /* the decision: headers lie far apart, so read them from the file */
    int open;         /* a sample has begun and was not returned yet; the fields below describe it */
    uint64_t begin;   /* where its first header begins */
    uint64_t end;     /* where its last member so far ends */
    uint64_t key_at;  /* where its key begins in the archive; MDS_NONE: the key is in `joined` */
    uint64_t key_size;
    uint8_t joined[MDS_TAR_JOINED];
    size_t extensions; /* entries of `seen` */
    struct {
        uint64_t hash, size; /* of the extension, in lower case */
    } seen[MDS_TAR_EXTENSIONS];
} mds_tar;

/* Write, for each sample that is found: where its first header begins, how many bytes lie from there to the next sample
 * (for the last: to the end of its last member), and the hash of its key. Returns MDS_TAR_OK when `capacity` samples
 * were found or MDS_TAR_HEADERS headers were read. `member` becomes the last one that was read; after
 * MDS_TAR_DUPLICATE, it is the second of the two. */
mds_tar_status mds_tar_scan(const mds_tar_archive *archive, mds_tar *state, uint64_t *begins, uint64_t *sizes,
                            uint64_t *hashes, size_t capacity, size_t *count, mds_tar_member *member);

/* A walk through the members of one sample. Begin with `at` and `first.key_size` 0. */
typedef struct {
    uint64_t at;          /* the next header; after a failure, the byte that shows it */
    mds_tar_member first; /* the member that gives the sample its key, once there is one */
    mds_tar_member other; /* the last that was read after it */
} mds_tar_sample;

/* Read the next member of the sample data[0..n) and point *member at it; members without a key are skipped.
 * MDS_TAR_GARBAGE if it belongs to another sample, MDS_TAR_END if there are no more. */
mds_tar_status mds_tar_sample_next(const uint8_t *data, uint64_t n, mds_tar_sample *sample,
                                   const mds_tar_member **member);

#include "arrays.h"  /* array_record.c and array_pack.c: records of named arrays */
#include "measure.h" /* json.c and measure.c: columns of JSON records */

/* ---- pad.c: pieces of memory into one array -------------------------------------------------------------------- */

typedef struct {
    const uint8_t *data; /* may be NULL if size is 0 */
    size_t size;
} mds_piece;

/* Write pieces[i] at out + begins[i], and `fill`, over and over, between them and up to `total` bytes. Writes every
 * byte of `out` once. Needs pieces that mds_pieces_follow, and that do not overlap `out`.
 *
 * To fill with an element of 1, 2, 4 or 8 bytes, repeat it until it is a `fill` of 8 bytes. Sizes, begins and total are
 * then whole numbers of elements, so that an element is never cut. */
void mds_join_pieces(const mds_piece *pieces, const uint64_t *begins, size_t count, size_t total, uint64_t fill,
                     uint8_t *out);

/* The first piece that does not begin where the one before ends, or after it, or that ends after `total`; `count` if
 * there is none. */
size_t mds_pieces_follow(const mds_piece *pieces, const uint64_t *begins, size_t count, size_t total);

/* Number tokens: those from bounds[k] to bounds[k + 1] get the positions 0, 1, 2, ..., as integers of `width` bytes (4
 * or 8), and numbers[k] in `ids`, unless `ids` is NULL. Needs bounds[0] = 0 and count + 1 bounds that do not fall. */
void mds_number_tokens(const uint64_t *bounds, size_t count, unsigned width, void *positions, const int32_t *numbers,
                       int32_t *ids);

/* The arrays of one field of n records as pieces: the first `longest` entries of each along its first axis, or with
 * `left` the last ones. An entry has `row` bytes. mds_array_record wrote values[k * stride] for records[k]. Returns the
 * first array whose entries have another size, or n if all agree. */
size_t mds_array_pieces(const mds_request *records, const mds_array_value *values, size_t stride, size_t n,
                        uint64_t longest, int left, uint64_t row, mds_piece *pieces);

#include "fields.h"   /* fields.c: fields of JSON records as arrays */
#include "inflate.h"  /* inflate.c: content of gzip members */
#include "zstd.h"     /* zstd.c: frames of zstd */
#include "libzstd.h"  /* libzstd.c: decodes them */
#include "sampling.h" /* permute.c, orders.c, sort.c, plan.c and packing.c */

#endif
