/* fuzz_fields.c - hostile text through the reader of fields.
 *
 * Property: all SIMD variants read the same; a record is called invalid exactly where it is not JSON; nothing beyond the
 * record is read and nothing beyond the room is written; what is refused leaves no items; a batch that skips keeps the
 * records that are read one by one, and their items lie one after another; pieces lie inside the items.
 * Input: a byte that chooses what is wanted, then a record, or several lines of them. */
#include "fuzz.h"

#define FIELDS 5

static void path(mds_wanted *field, const char *first, const char *second)
{
    field->segments = second ? 2 : 1;
    field->keys[0] = (const uint8_t *)first;
    field->key_sizes[0] = strlen(first);
    if (second) {
        field->keys[1] = (const uint8_t *)second;
        field->key_sizes[1] = strlen(second);
    }
}

/* Choose the types of five fields, sorted by their paths. */
static void choose(mds_wanted *fields, unsigned choice)
{
    static const struct {
        mds_item_kind kind;
        unsigned size;
    } numbers[] = {{MDS_ITEM_INT, 4},   {MDS_ITEM_INT, 8},   {MDS_ITEM_UINT, 1},   {MDS_ITEM_UINT, 8},
                   {MDS_ITEM_FLOAT, 8}, {MDS_ITEM_FLOAT, 2}, {MDS_ITEM_BFLOAT, 2}, {MDS_ITEM_BOOL, 1}};
    for (size_t f = 0; f < FIELDS; f++) {
        fields[f] = (mds_wanted){.kind = numbers[(choice + f) % 8].kind, .size = numbers[(choice + f) % 8].size};
        if (choice & 8) {
            fields[f].fallback = (const uint8_t *)"[]";
            fields[f].fallback_size = 2;
        }
    }
    path(&fields[0], "a", NULL);
    path(&fields[1], "b", NULL);
    fields[1].layout = MDS_LAYOUT_RAGGED;
    if (choice & 128) {
        fields[1].fallback = (const uint8_t *)"[[],[],[],[],[],[]]";
        fields[1].fallback_size = strlen((const char *)fields[1].fallback);
    }
    path(&fields[2], "m", "a");
    fields[2].layout = MDS_LAYOUT_SHAPE;
    fields[2].dims = choice >> 4 & 3;
    fields[2].shape[0] = MDS_NONE;
    fields[2].shape[1] = choice & 64 ? MDS_NONE : 2;
    fields[2].shape[2] = MDS_NONE;
    path(&fields[3], "m", "b");
    fields[3].fallback = (const uint8_t *)"0";
    fields[3].fallback_size = 1;
    if (fields[3].kind == MDS_ITEM_BOOL)
        fields[3].fallback = NULL;
    path(&fields[4], "text", NULL);
    fields[4].kind = MDS_ITEM_TEXT;
    fields[4].size = 1;
    fields[4].fallback = (const uint8_t *)"\"\\u00e9\"";
    fields[4].fallback_size = 8;
}

/* Rooms of exactly the size that a record may need, so that the sanitizer sees what is written beyond. */
static void take_room(const mds_kernels *kernels, const mds_wanted *fields, const uint8_t *data, size_t n,
                      mds_items *items)
{
    for (size_t f = 0; f < FIELDS; f++) {
        const uint64_t room = mds_fields_most(kernels, &fields[f], data, n);
        items[f] = (mds_items){.items = fuzz_room(room, fields[f].size), .room = room};
        items[f].ends = fuzz_room(room, sizeof *items[f].ends);
    }
}

static void give_back(mds_items *items)
{
    for (size_t f = 0; f < FIELDS; f++) {
        free(items[f].items);
        free(items[f].ends);
    }
}

static void check_value(const mds_wanted *field, const mds_value *value, const mds_items *items)
{
    uint64_t product = 1;
    mds_piece piece;
    CHECK(value->begin + value->count == items->used && items->used <= items->room);
    if (field->kind == MDS_ITEM_TEXT)
        return;
    if (field->layout == MDS_LAYOUT_RAGGED) {
        CHECK(value->dims == 2 && value->first_row + value->shape[0] == items->rows && items->rows <= items->room);
        for (uint64_t row = 0, before = 0; row < value->shape[0]; before = items->ends[value->first_row + row], row++)
            CHECK(items->ends[value->first_row + row] >= before && items->ends[value->first_row + row] <= value->count);
        return;
    }
    for (size_t d = 0; d < value->dims; d++)
        product *= value->shape[d];
    CHECK(product == value->count);
    for (int left = 0; left < 2; left++) {
        const uint64_t row = value->dims && value->shape[0] ? value->count / value->shape[0] : 0;
        if (mds_fields_pieces(value, FIELDS, 1, items->items, field->size, 3, left, row, &piece) == 1)
            CHECK(piece.data >= items->items && piece.data + piece.size <= items->items + items->used * field->size);
        else
            CHECK(value->dims == 0);
    }
    if (value->count && field->kind >= MDS_ITEM_FLOAT)
        (void)mds_item_float(field, items->items + value->begin * field->size);
    else if (value->count)
        (void)mds_item_integer(field, items->items + value->begin * field->size);
}

/* Read one record by every variant; return whether it was read. */
static int read_one(const mds_wanted *fields, const uint8_t *data, size_t n)
{
    mds_items first[FIELDS] = {0};
    mds_refusal refused_first = {0};
    int read_first = 0;
    for (size_t v = 0; mds_kernels_at(v); v++) {
        const mds_kernels *kernels = mds_kernels_at(v);
        mds_items items[FIELDS];
        mds_value values[FIELDS];
        mds_refusal refused;
        size_t at;
        take_room(kernels, fields, data, n, items);
        const int read = mds_fields_read(kernels, fields, FIELDS, data, n, values, items, &refused);
        CHECK(read || refused.at <= n);
        CHECK(!mds_json_valid(kernels, data, n, &at) == (!read && refused.status == MDS_WANTED_INVALID));
        for (size_t f = 0; f < FIELDS; f++) {
            if (read)
                check_value(&fields[f], &values[f], &items[f]);
            else
                CHECK(items[f].used == 0 && items[f].rows == 0);
        }
        if (v == 0) {
            read_first = read;
            refused_first = refused;
            memcpy(first, items, sizeof first);
            continue;
        }
        CHECK(read == read_first);
        CHECK(read || (refused.status == refused_first.status && refused.field == refused_first.field &&
                       (refused.status == MDS_WANTED_INVALID || refused.at == refused_first.at)));
        for (size_t f = 0; f < FIELDS; f++)
            CHECK(items[f].used == first[f].used &&
                  memcmp(items[f].items, first[f].items, items[f].used * fields[f].size) == 0);
        give_back(items);
    }
    give_back(first);
    return read_first;
}

/* Read the lines as a batch, with room that grows by what is wanted alone. */
static void read_lines(const mds_wanted *fields, const mds_request *requests, size_t n, const uint8_t *good)
{
    mds_items items[FIELDS] = {0};
    mds_fields_batch batch = {
        .fields = fields, .count = FIELDS, .requests = requests, .n = n, .skip = 1, .items = items};
    batch.places = fuzz_room(n, sizeof *batch.places);
    batch.values = fuzz_room(n * FIELDS, sizeof *batch.values);
    batch.refusals = fuzz_room(n, sizeof *batch.refusals);
    batch.wanted = fuzz_room(FIELDS, sizeof *batch.wanted);
    while (!mds_fields_read_many(mds_kernels_at(0), &batch)) {
        for (size_t f = 0; f < FIELDS; f++) {
            items[f].room = batch.wanted[f];
            items[f].items = realloc(items[f].items, (size_t)items[f].room * fields[f].size + 1);
            items[f].ends = realloc(items[f].ends, (size_t)items[f].room * sizeof *items[f].ends + 1);
            CHECK(items[f].items && items[f].ends);
        }
    }
    size_t kept = 0;
    for (size_t k = 0; k < n; k++)
        if (good[k])
            CHECK(kept < batch.kept && batch.places[kept++] == k);
    CHECK(kept == batch.kept && batch.refused == n - kept);
    for (size_t f = 0; f < FIELDS; f++) {
        uint64_t used = 0;
        for (size_t k = 0; k < kept; k++) {
            CHECK(batch.values[k * FIELDS + f].begin == used);
            used += batch.values[k * FIELDS + f].count;
        }
        CHECK(used == items[f].used);
    }
    free(batch.places);
    free(batch.values);
    free(batch.refusals);
    free(batch.wanted);
    give_back(items);
}

#define LINES 16

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    mds_wanted fields[FIELDS];
    mds_source source = {0};
    mds_request requests[LINES];
    uint8_t good[LINES], *lines[LINES];
    size_t count = 0;
    choose(fields, n ? input[0] : 0);
    for (size_t begin = n > 0, end; begin < n && count < LINES; begin = end + 1, count++) {
        const uint8_t *newline = memchr(input + begin, '\n', n - begin);
        end = newline && count < LINES - 1 ? (size_t)(newline - input) : n;
        lines[count] = fuzz_copy(input + begin, end - begin);
        good[count] = (uint8_t)read_one(fields, lines[count], end - begin);
        requests[count] = (mds_request){&source, count, {0, end - begin}, lines[count]};
    }
    read_lines(fields, requests, count, good);
    for (size_t k = 0; k < count; k++)
        free(lines[k]);
    return 0;
}
