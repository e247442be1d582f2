/* sampling.h - the part of the public core that chooses the records of an epoch and of a batch.
 *
 * mmapds.h includes it. It reads no sources: everything here is a function of a seed, an epoch and a position, or of
 * lengths. */
#ifndef MMAPDS_SAMPLING_H
#define MMAPDS_SAMPLING_H

#include "mmapds.h"

/* ---- permute.c: keyed permutation of [0, n) --------------------------------------------------------------------- */

#define MDS_PERMUTE_ROUNDS 8

/* A generalised Feistel network over the box [0, a) x [0, b), a * b >= n, with cycle walking back into [0, n).
 * See permute.c for the construction and its source. */
typedef struct {
    uint64_t n;
    uint32_t a, b;
    uint32_t keys[MDS_PERMUTE_ROUNDS][2];
} mds_permutation;

/* Needs 1 <= n < 2^63. The same (n, seed, epoch, stream) gives the same permutation on every machine, and in every
 * release that keeps the version. */
void mds_permutation_init(mds_permutation *p, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t stream);

/* Need i < n and value < n. */
uint64_t mds_permute(const mds_permutation *p, uint64_t i);
uint64_t mds_permute_inverse(const mds_permutation *p, uint64_t value);

/* out[k] = permute(first + k * step); every position must lie in [0, n). */
void mds_permute_range(const mds_kernels *kernels, const mds_permutation *p, uint64_t first, int64_t step, size_t count,
                       int64_t *out);

/* out[k] = permute(in[k]), or its inverse; `in` may be `out`. Every in[k] must lie in [0, n). */
void mds_permute_array(const mds_kernels *kernels, const mds_permutation *p, const int64_t *in, size_t count,
                       int inverse, int64_t *out);

/* A key derived from (seed, epoch, stream), and its i-th uniform draw from [0, n). */
uint64_t mds_key(uint64_t seed, uint64_t epoch, uint64_t stream);
uint64_t mds_draw(uint64_t key, uint64_t i, uint64_t n);

/* out[k] = draw(key, positions[k], n). Needs n >= 1. */
void mds_draw_many(uint64_t key, uint64_t n, const int64_t *positions, size_t count, int64_t *out);

/* The weights of n records as sums: ends[i] is the sum of those of records 0 to i. Every MDS_SUMS_BLOCK-th of them is in
 * `coarse`, too, so that a search reads few pages. Needs n >= 1, and a total ends[n - 1] from 1 to 2^63 - 1. */
#define MDS_SUMS_BLOCK 4096

typedef struct {
    const uint64_t *ends, *coarse; /* n, and n / MDS_SUMS_BLOCK entries */
    uint64_t n;
} mds_sums;

/* Draws with replacement by weight: out[k] is the record of draw at[k]. */
void mds_weighted_many(const mds_sums *sums, uint64_t key, const int64_t *at, size_t count, int64_t *out);

/* Draws without replacement by weight: of `draws` draws, each record gets its expected number rounded up or down, at random
 * by the key. out[k] is the record of draw at[k] < draws; records rise with draws. Needs draws < 2^63. */
void mds_rounded_many(const mds_sums *sums, uint64_t draws, uint64_t key, const int64_t *at, size_t count,
                      int64_t *out);

/* The first of numbers[0..n) that is not in [0, limit), or n if all are. */
size_t mds_first_outside(const int64_t *numbers, size_t n, uint64_t limit);

/* ---- orders.c: from positions of an epoch to record numbers ----------------------------------------------------- */

/* Chunks are runs of consecutive records, and none crosses a source. They stand in slots in keyed order. Every
 * `mix_chunks` slots make one mix, inside which records stand in keyed order. A source whose size is not a multiple of
 * the chunk size ends in a short chunk; three tables say where the short chunks stand in this epoch, in order of their
 * slots. */
typedef struct {
    uint64_t chunk_size, chunks, mix_chunks, seed, epoch;
    const uint64_t *first_chunk;  /* the first chunk of each source, then the number of chunks: sources + 1 entries */
    const uint64_t *first_record; /* the first record of each source, then the number of records */
    size_t sources;
    const uint64_t *short_ends;    /* position after the t-th short chunk */
    const uint64_t *short_slots;   /* slot of the t-th short chunk */
    const uint64_t *short_missing; /* records missing in the short chunks before the t-th: short_chunks + 1 entries */
    size_t short_chunks;
} mds_chunks;

/* out[k] = record at positions[k]; every position must lie in the epoch. `order` permutes the chunks. */
void mds_chunks_at(const mds_kernels *kernels, const mds_chunks *c, const mds_permutation *order,
                   const int64_t *positions, size_t count, int64_t *out);

/* Whether the tables of `c` agree with one another and with `order`, so that every position of the epoch leads to a
 * record. If not, *table is the name of a wrong table, and *entry its first wrong entry. */
int mds_chunks_agree(const mds_chunks *c, const mds_permutation *order, const char **table, size_t *entry);

/* The state of a member while positions of a period are assigned. */
typedef struct {
    uint64_t given, deadline; /* positions so far, and the position before which the next is due */
    uint32_t next;            /* next in the list of members that deserve a position at the same time */
    uint32_t heap;            /* an entry of the heap of members that deserve a position now */
} mds_claim;

/* Assign a period of `total` positions to members with integer weights, whose sum is `total`: which[p] is the member
 * at position p, and rank[p] the number of its earlier positions. At every prefix the count of each member is
 * within 1 of its exact share. `claims` is scratch for all members, fewer than 2^32 - 1. */
void mds_mixture_period(const uint64_t *weights, size_t members, uint32_t total, mds_claim *claims, uint32_t *which,
                        uint32_t *rank);

typedef struct {
    size_t members;
    const uint64_t *weights, *sizes, *first_record; /* of each member */
    uint32_t total;                                 /* the sum of the weights */
    const uint32_t *which, *rank;                   /* from mds_mixture_period */
    uint64_t seed, epoch;
    int shuffle;
} mds_mixture;

/* The permutation of one member, kept between positions; begin with pass = MDS_NONE. */
typedef struct {
    mds_permutation permutation;
    uint64_t pass;
} mds_member;

/* out[k] = record at positions[k] >= 0. A member is shuffled anew each time its records are used up. */
void mds_mixture_at(const mds_mixture *m, mds_member *members, const int64_t *positions, size_t count, int64_t *out);

/* out[k] = the member that gives positions[k] >= 0 its record. */
void mds_mixture_which(const mds_mixture *m, const int64_t *positions, size_t count, int64_t *out);

/* ---- sort.c: the length order ----------------------------------------------------------------------------------- */

/* Lengths and record numbers are unsigned integers of 4 or 8 bytes: `width` and `order_width` say which. */
uint64_t mds_lengths_largest(const void *lengths, unsigned width, size_t n);

/* One pass of a stable radix sort by the digit `length >> shift & mask`, which is below `digits`, larger digits first:
 * from the record numbers in[0..n), or 0..n-1 if `in` is NULL, to out[0..n). Leaves in counts[0..digits) where the run
 * of each digit ends. A whole sort takes passes from the lowest digit to the highest. Needs in[k] < n;
 * returns MDS_CORRUPT when `in` holds a record so often that there is no room. */
mds_status mds_lengths_sort(const void *lengths, unsigned width, size_t n, unsigned shift, uint64_t mask, size_t digits,
                            uint64_t *counts, const void *in, void *out, unsigned order_width);

/* From the ends of the runs of mds_lengths_sort, write the digits that occur, falling, and how many records have each;
 * return how many digits occur. */
size_t mds_runs_of(const uint64_t *ends, size_t digits, uint64_t *values, uint64_t *counts);

/* Write the lengths that occur in a sorted order, and how many records have each; return how many occur. With `values`
 * NULL, only count them. */
size_t mds_lengths_runs(const void *lengths, unsigned width, const void *order, unsigned order_width, size_t n,
                        uint64_t *values, uint64_t *counts, size_t room);

/* ---- runs.c: numbers in many files ------------------------------------------------------------------------------ */

/* Unsigned integers in one file. `low` to `low + last` are read as `first` to `first + last`; others are damage. To
 * read numbers unchanged: low = first = 0, last = UINT64_MAX. */
typedef struct {
    const void *words; /* from an index: untrusted */
    uint64_t count;
    uint64_t low, last, first;
    unsigned width; /* 4 or 8 */
} mds_numbers;

/* Numbers of many files as one array: run r begins at position begins[r], and holds the numbers of piece[which[r]] from
 * places[r] on. The tables are checked when they are used. Needs count >= 1 and begins[0] = 0. */
typedef struct {
    const mds_numbers *piece;
    size_t pieces;
    const void *begins, *places;
    const uint32_t *which;
    unsigned begin_width, place_width; /* 4 or 8 */
    size_t count;                      /* of runs */
    uint64_t total;                    /* of positions */
} mds_runs;

/* out[k] = the number at positions[k], which must lie in [0, total). Returns MDS_CORRUPT for a number outside the
 * range of its piece, or for tables that point outside a piece. */
mds_status mds_runs_at(const mds_runs *r, const int64_t *positions, size_t n, uint64_t *out);

/* Of one index: the number of records of each length, and their begins in its order. With `places` NULL, they follow
 * one another. Lengths descend. */
typedef struct {
    const uint64_t *values, *counts, *places;
    size_t distinct;
    uint64_t records; /* of the index */
} mds_histogram;

/* HowTo: the order of all records is a run of each index for each length, indexes in turn. With the lengths of all
 * indexes, falling, count the runs and the records of each, let every length begin where the one before ends, and place
 * the runs:
 *
 *     for each index: status = mds_runs_count(values, distinct, &own, runs, records);
 *     next_run[v] = runs[0] + ... + runs[v - 1], next_rank[v] = records[0] + ... + records[v - 1]
 *     for each index: status = mds_runs_place(values, distinct, &own, piece, next_run, next_rank, &tables);
 *
 * Both return MDS_CORRUPT where lengths do not fall, or are not among values[0..distinct), the former also where its
 * counts are not those of own->records. */
mds_status mds_runs_count(const uint64_t *values, size_t distinct, const mds_histogram *own, uint64_t *runs,
                          uint64_t *records);

typedef struct {
    void *begins, *places; /* unsigned integers of `begin_width` and `place_width` bytes, 4 or 8, which hold them all */
    uint32_t *which;
    unsigned begin_width, place_width;
    size_t count; /* room for so many runs */
} mds_run_tables;

mds_status mds_runs_place(const uint64_t *values, size_t distinct, const mds_histogram *own, uint32_t piece,
                          uint64_t *next_run, uint64_t *next_rank, const mds_run_tables *tables);

/* ---- bits.c: selections of records ------------------------------------------------------------------------------ */

#define MDS_BITS_BLOCK 32 /* words that the directory counts together */

/* Numbers below `limit`: bit i % 64 of words[i / 64] says whether i is one of them. */
typedef struct {
    const uint64_t *words;  /* usually from a file: untrusted */
    const uint64_t *before; /* ones before each block, and then all ones; untrusted too */
    size_t n;               /* words: limit / 64, rounded up */
    uint64_t limit;
    const mds_map *map; /* the file, which may become shorter; NULL for memory */
} mds_bits;

/* Set the bits of numbers[0..n); return the first of them that is not below `limit`, or n. */
size_t mds_bits_first_outside(const int64_t *numbers, size_t n, uint64_t limit, uint64_t *words);

/* Write the directory of words[0..n): n / MDS_BITS_BLOCK, rounded up, and one more. */
void mds_bits_count(const uint64_t *words, size_t n, uint64_t *before);

/* out[k] = the number with ranks[k] smaller ones in the set; `out` may be `ranks`. Fastest for ascending ranks. Returns
 * MDS_CORRUPT for a rank out of range or a wrong directory, MDS_SHRANK if the file became shorter. */
mds_status mds_bits_select(const mds_bits *bits, const int64_t *ranks, size_t n, int64_t *out);

/* out[k] = the number at positions[k], of those of `width` bytes, 4 or 8, from byte `begin` of a file that is mapped
 * and holds them all; `out` may be `positions`. Returns MDS_SHRANK as mds_map_read does. */
mds_status mds_array_select(const mds_map *map, uint64_t begin, size_t width, const int64_t *positions, size_t n,
                            int64_t *out);

/* ---- plan.c: batches under a budget ----------------------------------------------------------------------------- */

/* What a batch may hold. A record of length L costs L, plus L^2 / quadratic if that is not 0. */
typedef struct {
    uint64_t tokens;   /* limit of the largest cost times the number of records */
    uint64_t largest;  /* limit of the number of records, 1 to 2^31 */
    uint64_t multiple; /* sizes of at least this are multiples of it; 1 or more */
    uint64_t quadratic;
} mds_budget;

/* The number of records of a length in a batch; 1 if a single record exceeds the budget. */
uint64_t mds_batch_size(const mds_budget *budget, uint64_t length);

/* A run of the length order: `batches` batches of `size` records each. */
typedef struct {
    uint64_t first_rank, first_batch; /* records and batches in the buckets before it */
    uint64_t batches, size;
} mds_bucket;

/* The number of batches of a bucket: at least `least`, and up to `most` while lengths fall by at most `per_mille`
 * thousandths. Needs 1 <= least <= most <= 2^32, and per_mille <= 1000. */
typedef struct {
    uint64_t least, most, per_mille;
} mds_cut;

/* Cut records into buckets; return how many. values[0..distinct) are the lengths, falling, and counts[v] says how many
 * records have values[v]. A bucket always uses up the records of its longest length. Only the last two buckets may hold
 * a batch that is not full: one of a multiple, and one of the rest. `buckets` has room for distinct + 2. */
size_t mds_plan_buckets(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct,
                        const mds_cut *cut, mds_bucket *buckets);

/* Cut the same records in the middle of others[0..count), which mds_plan_buckets made with the same cut; those with
 * cut->most batches or more stay as they are. `buckets` has room for 2 * count + 3. */
size_t mds_plan_between(const mds_budget *budget, const uint64_t *values, const uint64_t *counts, size_t distinct,
                        const mds_cut *cut, const mds_bucket *others, size_t count, mds_bucket *buckets);

/* The first of buckets[0..count) that does not begin where the one before ends, or holds no records, or more than a
 * signed number can count; `count` if there is none. *ranks and *batches are how many there are before it. */
size_t mds_buckets_follow(const mds_bucket *buckets, size_t count, uint64_t *ranks, uint64_t *batches);

/* The first of `distinct` lengths that is not below the one before it, that no record has, or with which the counts add
 * up to more than a signed number can hold; `distinct` if mds_plan_buckets accepts all. */
size_t mds_lengths_fall(const uint64_t *values, const uint64_t *counts, size_t distinct);

/* HowTo: cut the buckets once, fill in a plan once an epoch, and ask for any batches in any order:
 *
 *     count = mds_plan_buckets(&budget, values, counts, distinct, &cut, buckets);
 *     status = mds_plan_batches(kernels, &plan, batches, n, ranks, capacity, ends);
 *
 * Nothing is kept between calls: what a batch holds follows from the buckets, the seed and the epoch. */
typedef struct {
    const mds_bucket *buckets;
    size_t count;        /* of buckets */
    uint64_t first_rank; /* where in the length order the first bucket begins */
    uint64_t ranks;      /* records in all buckets; first_rank + ranks < 2^63 */
    uint64_t seed, epoch;
    int shuffle;
} mds_plan;

/* Write where in the length order the records of batches[0..n) are, one batch after another, and where each batch ends.
 * Returns MDS_CORRUPT for a batch that is not planned, or if they exceed `capacity`. */
mds_status mds_plan_batches(const mds_kernels *kernels, const mds_plan *plan, const int64_t *batches, size_t n,
                            int64_t *ranks, size_t capacity, int64_t *ends);

/* Fills the same buckets with records in any order. A batch is ready when it is full, or when its bucket has got its
 * last record. The records of one length must lie in two buckets at most: if the last bucket is a batch that
 * is not larger than those of the bucket before, the caller makes it the last batch of that one.
 *
 * HowTo: make the tables once for a plan, set taken[0..count) = 0 at the beginning of an epoch, and push the order in
 * pieces of any size:
 *
 *     status = mds_stream_push(&s, records, lengths, n, &consumed, out, capacity, ends, most, &emitted, &written);
 *     out[0..ends[0]), out[ends[0]..ends[1]), ... are the `emitted` batches; push records[consumed..n) again
 *
 * The caller keeps `taken` and `open` between calls. Needs capacity >= the largest bucket size, and most >= 1. */
typedef struct {
    const mds_bucket *buckets;
    size_t count;                  /* of buckets */
    uint64_t ranks;                /* records in all buckets */
    uint64_t records;              /* of the dataset */
    const uint64_t *values;        /* distinct planned lengths, falling */
    size_t distinct;               /* how many; below 2^32 - 1 */
    const uint32_t *first_buckets; /* of each value: the bucket of its first records */
    const uint64_t *splits;        /* of each value: records from this one on are in the next bucket; or MDS_NONE */
    const uint32_t *table;         /* for each length below table_size: its place in `values`, or UINT32_MAX */
    size_t table_size;
    uint64_t *taken;            /* of each bucket: records so far */
    int64_t *open;              /* the batches that are being filled, one for each bucket */
    const uint64_t *open_first; /* of each bucket: where in `open` its batch begins; it has room for bucket.size */
} mds_stream;

/* Take records[0..n), of lengths[0..n), until `most` batches are ready or the next one does not fit `out`. Skips
 * records whose length is not planned. Returns MDS_CORRUPT if a number is not a record, or a bucket gets more records
 * than it has. */
mds_status mds_stream_push(const mds_stream *s, const int64_t *records, const uint64_t *lengths, size_t n,
                           size_t *consumed, int64_t *out, size_t capacity, int64_t *ends, size_t most, size_t *emitted,
                           size_t *written);

/* Whether every length, by its value or by the table, leads to a bucket. If not, *table is the name of the wrong
 * table, and *entry its first wrong entry. Needs buckets that follow one another. */
int mds_stream_agrees(const mds_stream *s, const char **table, size_t *entry);

/* ---- packing.c: sequences packed into rows of one length -------------------------------------------------------- */

/* Equal packs: their earlier content, and the sequences that each got last. */
typedef struct {
    uint64_t packs;       /* number of finished packs */
    uint64_t space, left; /* tokens and sequences that still fit in each */
    uint64_t each;        /* sequences of values[value] that each got */
    uint32_t value;
    uint32_t before; /* the row of their earlier content, or UINT32_MAX for none */
} mds_filled;

/* Packs that hold the same lengths: how many packs, and of how many parts each is. */
typedef struct {
    uint64_t packs, parts;
} mds_kind;

/* The sequences of one length in each pack of a kind: `each` of values[value]. */
typedef struct {
    uint64_t value, each;
} mds_part;

/* Pack counts[v] sequences of each length values[v], falling and 1 to `length`, into packs of up to `length` tokens and
 * `most` sequences, by best-fit decreasing. Writes rows[0..count), and returns count, or SIZE_MAX if `capacity` rows
 * are too few. `heaps` has room for 2 * capacity numbers. Needs capacity < UINT32_MAX and most >= 1. */
size_t mds_pack_lengths(const uint64_t *values, const uint64_t *counts, size_t distinct, uint64_t length, uint64_t most,
                        mds_filled *rows, uint32_t *heaps, size_t capacity);

/* Count the kinds of packs in rows[0..count), and their parts in total. */
void mds_kinds_count(const mds_filled *rows, size_t count, size_t *kinds, size_t *parts);

/* Write the kinds, and their parts one kind after another, the longest sequences of each first. */
void mds_kinds_write(const mds_filled *rows, size_t count, mds_kind *kinds, mds_part *parts);

/* HowTo: put the kinds into any order, index them once, and ask for any packs of any epoch:
 *
 *     if (mds_packs_index(&packs, counts))
 *         status = mds_packs_ranks(kernels, &packs, &epoch, numbers, n, ranks, capacity, ends);
 *
 * Packs are numbered kind by kind. The sequences of one length have slots, numbered by kind, pack and place; which one
 * takes which slot is a keyed permutation. */
typedef struct {
    const mds_kind *kinds;
    const mds_part *parts;
    size_t kinds_count, parts_count, distinct; /* distinct: how many lengths there are */
    uint64_t *first_pack;                      /* of each kind, then the number of packs: kinds_count + 1 entries */
    uint64_t *first_part;                      /* of each kind, then parts_count */
    uint64_t *first_slot;                      /* of each part, among the sequences of its length */
    uint32_t *kind_of;                         /* of each part; there are fewer than 2^32 */
    uint64_t *first_rank; /* of each length, in the length order, then the number of sequences: distinct + 1 entries */
} mds_packs;

/* Fill in the tables of `packs`, for which the caller made room; return whether kinds and parts agree, and have
 * counts[v] sequences of each length. */
int mds_packs_index(const mds_packs *packs, const uint64_t *counts);

/* An epoch: with `shuffle`, sequences of one length swap places by seed and epoch. */
typedef struct {
    uint64_t seed, epoch;
    int shuffle;
} mds_packs_epoch;

/* Write the ranks in the length order of the sequences of packs[0..n), one pack after another, and where each ends.
 * Every packs[k] must be the number of a pack. Returns MDS_CORRUPT if they exceed `capacity`. */
mds_status mds_packs_ranks(const mds_kernels *kernels, const mds_packs *packs, const mds_packs_epoch *epoch,
                           const int64_t *numbers, size_t n, int64_t *ranks, size_t capacity, int64_t *ends);

#endif
