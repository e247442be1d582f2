/* fuzz_runs.c - numbers in many files, and length orders of many indexes.
 *
 * Property: merged, the orders of some indexes are the order of all their records: lengths fall, and equally long records
 * ascend. Whatever the tables and the pieces hold, nothing outside a piece is read, and no number that it may not have
 * comes out.
 * Input: the records of each index with their lengths, then what is damaged. */
#include "fuzz.h"

#define INDEXES 5
#define MOST 9 /* records of an index */
#define LENGTHS 12

typedef struct {
    uint64_t values[LENGTHS], counts[LENGTHS];
    size_t distinct, records;
    uint8_t *order;
    unsigned width;
} part;

static void make_part(fuzz_input *input, part *p, uint64_t *lengths)
{
    p->records = (size_t)fuzz_between(input, 0, MOST);
    p->width = fuzz_take(input, 1) & 1 ? 8 : 4;
    p->order = fuzz_room(p->records, p->width);
    size_t at = 0;
    for (size_t k = 0; k < p->records; k++)
        lengths[k] = fuzz_between(input, 0, LENGTHS - 1);
    for (uint64_t length = LENGTHS; length-- > 0;) {
        const size_t before = at;
        for (uint64_t k = 0; k < p->records; k++)
            if (lengths[k] == length)
                memcpy(p->order + p->width * at++, &k, p->width);
        if (at > before) {
            p->values[p->distinct] = length;
            p->counts[p->distinct++] = at - before;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_input input = {data, n};
    part parts[INDEXES] = {0};
    mds_numbers pieces[INDEXES];
    uint64_t lengths[INDEXES * MOST], total = 0, values[LENGTHS];
    const size_t indexes = (size_t)fuzz_between(&input, 1, INDEXES);
    for (size_t k = 0; k < LENGTHS; k++)
        values[k] = LENGTHS - 1 - k;
    uint64_t runs[LENGTHS] = {0}, records[LENGTHS] = {0};
    for (size_t k = 0; k < indexes; k++) {
        make_part(&input, &parts[k], lengths + total);
        const part *p = &parts[k];
        pieces[k] = (mds_numbers){p->order, p->records, 0, p->records ? p->records - 1 : 0, total, p->width};
        total += p->records;
        const mds_histogram own = {p->values, p->counts, NULL, p->distinct, p->records};
        CHECK(mds_runs_count(values, LENGTHS, &own, runs, records) == MDS_OK);
    }
    uint64_t next_run[LENGTHS], next_rank[LENGTHS], count = 0, ranks = 0;
    for (size_t v = 0; v < LENGTHS; v++) {
        next_run[v] = count;
        next_rank[v] = ranks;
        count += runs[v];
        ranks += records[v];
    }
    CHECK(ranks == total);
    uint32_t *which = fuzz_room((size_t)count, sizeof *which), *begins = fuzz_room((size_t)count, sizeof *begins);
    uint64_t *places = fuzz_room((size_t)count, sizeof *places);
    const mds_run_tables tables = {begins, places, which, 4, 8, (size_t)count};
    for (uint32_t k = 0; k < indexes; k++) {
        const mds_histogram own = {parts[k].values, parts[k].counts, NULL, parts[k].distinct, parts[k].records};
        CHECK(mds_runs_place(values, LENGTHS, &own, k, next_run, next_rank, &tables) == MDS_OK);
    }
    mds_runs merged = {pieces, indexes, begins, places, which, 4, 8, (size_t)count, total};
    int64_t *positions = fuzz_room((size_t)total, sizeof *positions);
    uint64_t *out = fuzz_room((size_t)total, sizeof *out);
    for (size_t k = 0; k < total; k++)
        positions[k] = (int64_t)k;
    CHECK(mds_runs_at(&merged, positions, (size_t)total, out) == MDS_OK);
    for (size_t k = 1; k < total; k++)
        CHECK(lengths[out[k - 1]] > lengths[out[k]] || (lengths[out[k - 1]] == lengths[out[k]] && out[k - 1] < out[k]));
    for (size_t k = 0; count && k < 4; k++) { /* what is damaged */
        const size_t at = (size_t)fuzz_between(&input, 0, count - 1);
        const uint64_t wrong = fuzz_magnitude(&input, 0, UINT64_MAX);
        part *p = &parts[fuzz_between(&input, 0, indexes - 1)];
        switch (fuzz_take(&input, 1) % 4) {
        case 0:
            begins[at] = at ? (uint32_t)wrong : 0;
            break;
        case 1:
            places[at] = wrong;
            break;
        case 2:
            which[at] = (uint32_t)wrong;
            break;
        default:
            if (p->records)
                memcpy(p->order + p->width * fuzz_between(&input, 0, p->records - 1), &wrong, p->width);
        }
        if (mds_runs_at(&merged, positions, (size_t)total, out) == MDS_OK)
            for (size_t i = 0; i < total; i++)
                CHECK(out[i] < total);
        merged.total = total + fuzz_between(&input, 0, 3);
    }
    for (size_t k = 0; k < indexes; k++)
        free(parts[k].order);
    free(which);
    free(begins);
    free(places);
    free(positions);
    free(out);
    return 0;
}
