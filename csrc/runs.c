/* runs.c - numbers in many files, read as one array; and the merged length order of many indexes. */
#include "mmapds.h"
#include "words.h"

#define TOGETHER 64 /* addresses to find and prefetch before the first number is read */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The last run that begins at or before a position. Runs may be empty. */
static size_t run_at(const mds_runs *r, uint64_t position)
{
    size_t low = 0, high = r->count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (mds_word_at(r->begins, r->begin_width, middle) <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A run, and the positions that it has. */
typedef struct {
    uint64_t begin, end, place;
    const mds_numbers *piece;
} run;

/* Look up the run of a position; 0 if the tables are inconsistent. */
static int look_up(const mds_runs *r, uint64_t position, run *found)
{
    const size_t at = run_at(r, position);
    const uint64_t which = mds_word_at(r->which, 4, at);
    if (which >= r->pieces)
        return 0;
    found->begin = mds_word_at(r->begins, r->begin_width, at);
    found->end = at + 1 < r->count ? mds_word_at(r->begins, r->begin_width, at + 1) : r->total;
    found->place = mds_word_at(r->places, r->place_width, at);
    found->piece = &r->piece[which];
    return found->begin <= position && position < found->end && found->place <= found->piece->count &&
           found->end - found->begin <= found->piece->count - found->place;
}

mds_status mds_runs_at(const mds_runs *r, const int64_t *positions, size_t n, uint64_t *out)
{
    run found = {0, 0, 0, NULL};
    for (size_t first = 0; first < n; first += TOGETHER) {
        const size_t count = n - first < TOGETHER ? n - first : TOGETHER;
        const mds_numbers *pieces[TOGETHER];
        uint64_t places[TOGETHER];
        for (size_t k = 0; k < count; k++) {
            const uint64_t position = (uint64_t)positions[first + k];
            if ((position < found.begin || position >= found.end) && !look_up(r, position, &found))
                return MDS_CORRUPT;
            pieces[k] = found.piece;
            places[k] = found.place + (position - found.begin);
            __builtin_prefetch((const char *)pieces[k]->words + pieces[k]->width * places[k]);
        }
        for (size_t k = 0; k < count; k++) {
            const uint64_t number = mds_word_at(pieces[k]->words, pieces[k]->width, places[k]) - pieces[k]->low;
            if (number > pieces[k]->last)
                return MDS_CORRUPT;
            out[first + k] = number + pieces[k]->first;
        }
    }
    return MDS_OK;
}

/* ---- merging length orders --------------------------------------------------------------------------------------- */

/* The place of a length in the descending values[from..distinct), or `distinct`. It is usually near `from`. */
static size_t place_of(const uint64_t *values, size_t distinct, size_t from, uint64_t length)
{
    size_t step = 1, low = from, high = from; /* values[low - 1] > length where low > from */
    while (high < distinct && values[high] > length) {
        low = high + 1;
        high = distinct - high > step ? high + step : distinct;
        step *= 2;
    }
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (values[middle] > length)
            low = middle + 1;
        else
            high = middle;
    }
    return low < distinct && values[low] == length ? low : distinct;
}

mds_status mds_runs_count(const uint64_t *values, size_t distinct, const mds_histogram *own, uint64_t *runs,
                          uint64_t *records)
{
    uint64_t left = own->records;
    size_t at = 0;
    for (size_t k = 0; k < own->distinct; k++, at++) {
        at = place_of(values, distinct, at, own->values[k]);
        if (at == distinct || !own->counts[k] || own->counts[k] > left)
            return MDS_CORRUPT;
        left -= own->counts[k];
        runs[at]++;
        records[at] += own->counts[k];
    }
    return left ? MDS_CORRUPT : MDS_OK;
}

static void put_word(void *words, unsigned width, uint64_t at, uint64_t word)
{
    if (width == 4)
        ((uint32_t *)words)[at] = (uint32_t)word;
    else
        ((uint64_t *)words)[at] = word;
}

mds_status mds_runs_place(const uint64_t *values, size_t distinct, const mds_histogram *own, uint32_t piece,
                          uint64_t *next_run, uint64_t *next_rank, const mds_run_tables *tables)
{
    uint64_t place = 0;
    size_t at = 0;
    for (size_t k = 0; k < own->distinct; k++, at++) {
        at = place_of(values, distinct, at, own->values[k]);
        if (at == distinct || next_run[at] >= tables->count)
            return MDS_CORRUPT;
        const uint64_t entry = next_run[at]++;
        put_word(tables->begins, tables->begin_width, entry, next_rank[at]);
        tables->which[entry] = piece;
        put_word(tables->places, tables->place_width, entry, own->places ? own->places[k] : place);
        next_rank[at] += own->counts[k];
        place += own->counts[k];
    }
    return MDS_OK;
}
