/* fields.c - reads fields of JSON records into arrays, in one pass over the bytes.
 *
 * A record is read from its first byte to its last, as by mds_json_skip, so that what orjson refuses is refused here.
 * The values of wanted fields are read by functions for their type of item; other values are skipped:
 *
 *     read_object    the keys of an object, each compared with the next keys of the paths
 *     read_value     a wanted value; if it does not fit, it is skipped, and the field keeps the error
 *     read_axis      an array and the arrays inside it
 *     mds_read_row   the items of the innermost one, in a loop made for each type: see json_items.c */
#include "json_items.h"

#include <string.h>

typedef struct {
    mds_json_text text;
    const mds_wanted *fields;
    mds_value *values;
    mds_items *items;
} reader;

/* ---- values ---------------------------------------------------------------------------------------------- */

/* The text is read twice, and the file may change in between: never write more than was counted. */
static size_t read_text(reader *r, size_t i, mds_value *value, uint8_t *out)
{
    size_t bytes, chars, at;
    if (r->text.p[i] != '"')
        return mds_refuse(&r->text, MDS_WANTED_TYPE, i);
    const size_t end = mds_json_string(r->text.kernels, r->text.p, i + 1, r->text.n, &bytes, &chars, &at);
    if (end == 0)
        return mds_refuse(&r->text, MDS_WANTED_TYPE, i);
    value->count = bytes;
    if (bytes == end - i - 2) { /* no escapes: these are longer than their text */
        memcpy(out, r->text.p + i + 1, bytes);
        return end;
    }
    const uint8_t *const limit = out + bytes;
    for (size_t k = i + 1; k < end - 1 && out < limit;) {
        uint32_t point;
        uint8_t character[4];
        if (r->text.p[k] != '\\') {
            *out++ = r->text.p[k++];
            continue;
        }
        k = mds_json_escape(r->text.p, k, r->text.n, &point);
        const size_t size = k ? mds_json_utf8(point, character) : 0;
        if (size == 0 || size > (size_t)(limit - out))
            break;
        memcpy(out, character, size);
        out += size;
    }
    return out == limit ? end : mds_refuse(&r->text, MDS_WANTED_TYPE, i);
}

/* Note the length of an axis; 0 if it differs from that of earlier arrays. */
static int agree(uint64_t *length, uint64_t found)
{
    if (*length == MDS_NONE)
        *length = found;
    return *length == found;
}

/* Read the array at p[i] and those inside it, `axis` of them around it; append its items to those of the value. */
static size_t read_axis(reader *r, size_t f, size_t i, size_t axis)
{
    const mds_wanted *field = &r->fields[f];
    mds_value *value = &r->values[f];
    const size_t begin = i;
    uint64_t length = 0;
    int more = 1, innermost = 1;
    if (axis == MDS_ARRAY_DIMS)
        return mds_refuse(&r->text, MDS_WANTED_SHAPE, i);
    i = mds_json_spaces(r->text.p, i + 1, r->text.n);
    if (i < r->text.n && r->text.p[i] == ']') {
        i++;
    } else if (i < r->text.n && r->text.p[i] == '[') {
        innermost = 0;
        while (more) {
            if (i == r->text.n || r->text.p[i] != '[')
                return mds_refuse(&r->text, MDS_WANTED_RAGGED, i);
            i = read_axis(r, f, i, axis + 1);
            if (i)
                i = mds_after_item(&r->text, i, &more);
            if (i == 0)
                return 0;
            length++;
        }
    } else {
        const uint64_t used = value->begin + value->count;
        i = mds_read_row(&r->text, field, i, r->items[f].items + used * field->size, r->items[f].room - used, &length);
        if (i == 0)
            return 0;
        value->count += length;
    }
    if (!agree(&value->shape[axis], length) || (innermost && value->dims && value->dims != axis + 1))
        return mds_refuse(&r->text, MDS_WANTED_RAGGED, begin);
    if (innermost)
        value->dims = axis + 1;
    return i;
}

static size_t read_ragged(reader *r, size_t f, size_t i)
{
    const mds_wanted *field = &r->fields[f];
    mds_value *value = &r->values[f];
    mds_items *items = &r->items[f];
    int more = 1;
    uint64_t length;
    i = mds_json_spaces(r->text.p, i + 1, r->text.n);
    value->dims = 2;
    value->shape[0] = 0;
    if (i < r->text.n && r->text.p[i] == ']')
        return i + 1;
    while (more) {
        if (i == r->text.n || r->text.p[i] != '[' || items->rows == items->room)
            return mds_refuse(&r->text, MDS_WANTED_SHAPE, i);
        length = 0;
        const uint64_t used = value->begin + value->count;
        i = mds_json_spaces(r->text.p, i + 1, r->text.n);
        if (i < r->text.n && r->text.p[i] == ']')
            i++;
        else
            i = mds_read_row(&r->text, field, i, items->items + used * field->size, items->room - used, &length);
        if (i)
            i = mds_after_item(&r->text, i, &more);
        if (i == 0)
            return 0;
        value->count += length;
        items->ends[items->rows++] = value->count;
        value->shape[0]++;
    }
    return i;
}

/* Whether an array has the shape that is wanted. An empty one has no axes of its own but the first. */
static int fits(const mds_wanted *field, mds_value *value)
{
    if (field->layout != MDS_LAYOUT_SHAPE)
        return 1;
    if (value->dims == 1 && value->shape[0] == 0 && field->dims > 1) {
        value->dims = field->dims;
        for (size_t d = 1; d < field->dims; d++)
            value->shape[d] = field->shape[d] == MDS_NONE ? 0 : field->shape[d];
    }
    if (value->dims != field->dims)
        return 0;
    for (size_t d = 0; d < field->dims; d++)
        if (field->shape[d] != MDS_NONE && field->shape[d] != value->shape[d])
            return 0;
    return 1;
}

/* Read a value as its field wants it. */
static size_t read_wanted(reader *r, size_t f, size_t i)
{
    const mds_wanted *field = &r->fields[f];
    mds_value *value = &r->values[f];
    if (field->kind == MDS_ITEM_TEXT)
        return read_text(r, i, value, r->items[f].items + value->begin);
    if (r->text.p[i] != '[') {
        if (field->layout == MDS_LAYOUT_RAGGED || (field->layout == MDS_LAYOUT_SHAPE && field->dims))
            return mds_refuse(&r->text, MDS_WANTED_SHAPE, i);
        value->count = 1;
        return mds_read_item(&r->text, field, i, r->items[f].items + value->begin * field->size);
    }
    if (field->layout == MDS_LAYOUT_RAGGED)
        return read_ragged(r, f, i);
    const size_t end = read_axis(r, f, i, 0);
    return end && !fits(field, value) ? mds_refuse(&r->text, MDS_WANTED_SHAPE, i) : end;
}

/* Read the value of field f at p[i]; it replaces an earlier one. */
static size_t read_value(reader *r, size_t f, size_t i, size_t around)
{
    mds_value *value = &r->values[f];
    mds_items *items = &r->items[f];
    value->status = MDS_WANTED_OK;
    value->count = value->dims = 0;
    for (size_t d = 0; d < MDS_ARRAY_DIMS; d++)
        value->shape[d] = MDS_NONE;
    items->rows = value->first_row;
    r->text.status = MDS_WANTED_MISSING;
    const int is_there = i < r->text.n && r->text.p[i] != 'n';
    const size_t end = is_there ? read_wanted(r, f, i) : 0;
    items->used = value->begin + (end ? value->count : 0);
    if (end)
        return end;
    value->status = r->text.status;
    value->at = is_there ? r->text.at : i;
    items->rows = value->first_row;
    return mds_json_skip(r->text.kernels, r->text.p, i, r->text.n, around, &r->text.at);
}

/* ---- records --------------------------------------------------------------------------------------------- */

typedef struct {
    size_t first, end; /* fields whose paths agree as far as they were compared */
} range;

/* The fields in `among` whose next key is written in [begin, end). */
static range with_key(const reader *r, range among, size_t level, size_t begin, size_t end, int plain)
{
    const mds_wanted *fields = r->fields;
    const uint8_t *raw = r->text.p + begin;
    const size_t size = end - begin;
    for (; among.first < among.end; among.first++) {
        const uint8_t *key = fields[among.first].keys[level];
        const size_t key_size = fields[among.first].key_sizes[level];
        if (plain ? key_size == size && memcmp(raw, key, size) == 0 : mds_json_same_key(raw, size, key, key_size))
            break;
    }
    range same = {among.first, among.first};
    while (same.end < among.end && fields[same.end].key_sizes[level] == fields[same.first].key_sizes[level] &&
           memcmp(fields[same.end].keys[level], fields[same.first].keys[level], fields[same.end].key_sizes[level]) == 0)
        same.end++;
    return same;
}

static size_t read_object(reader *r, size_t i, size_t level, range among);

/* Read a value at which, or in which, some fields lie. */
static size_t read_member(reader *r, size_t i, size_t level, range among)
{
    if (r->fields[among.first].segments == level + 1)
        return read_value(r, among.first, i, level + 1);
    const int is_object = i < r->text.n && r->text.p[i] == '{', is_null = i < r->text.n && r->text.p[i] == 'n';
    for (size_t f = among.first; f < among.end; f++) {
        mds_value *value = &r->values[f];
        value->status = is_object || is_null ? MDS_WANTED_MISSING : MDS_WANTED_NOT_OBJECT;
        value->at = i;
        r->items[f].used = value->begin;
        r->items[f].rows = value->first_row;
    }
    if (is_object)
        return read_object(r, i, level + 1, among);
    return mds_json_skip(r->text.kernels, r->text.p, i, r->text.n, level + 1, &r->text.at);
}

/* Read the object at p[i], `level` objects around it; 0 if it is not JSON. */
static size_t read_object(reader *r, size_t i, size_t level, range among)
{
    const uint8_t *p = r->text.p;
    const size_t n = r->text.n;
    size_t bytes, chars;
    i = mds_json_spaces(p, i + 1, n);
    if (i < n && p[i] == '}')
        return i + 1;
    for (;;) {
        r->text.at = i;
        if (i == n || p[i] != '"')
            return 0;
        const size_t key = i + 1;
        i = mds_json_string(r->text.kernels, p, key, n, &bytes, &chars, &r->text.at);
        if (i == 0)
            return 0;
        const range same = with_key(r, among, level, key, i - 1, bytes == i - 1 - key);
        i = mds_json_spaces(p, i, n);
        r->text.at = i;
        if (i == n || p[i] != ':')
            return 0;
        i = mds_json_spaces(p, i + 1, n);
        i = same.first < same.end ? read_member(r, i, level, same)
                                  : mds_json_skip(r->text.kernels, p, i, n, level + 1, &r->text.at);
        if (i == 0)
            return 0;
        i = mds_json_spaces(p, i, n);
        r->text.at = i;
        if (i == n || (p[i] != ',' && p[i] != '}'))
            return 0;
        if (p[i] == '}')
            return i + 1;
        i = mds_json_spaces(p, i + 1, n);
    }
}

/* Read a record into values; MDS_WANTED_OK if it is an object, whatever its fields are. */
static mds_wanted_status read_record(reader *r, size_t count)
{
    size_t end, at;
    const size_t i = mds_json_spaces(r->text.p, 0, r->text.n);
    if (i == r->text.n || r->text.p[i] != '{') {
        const int valid = mds_json_valid(r->text.kernels, r->text.p, r->text.n, &at);
        r->text.at = valid ? i : at;
        return valid ? MDS_WANTED_NOT_OBJECT : MDS_WANTED_INVALID;
    }
    end = read_object(r, i, 0, (range){0, count});
    if (end == 0)
        return MDS_WANTED_INVALID;
    r->text.at = mds_json_spaces(r->text.p, end, r->text.n);
    return r->text.at == r->text.n ? MDS_WANTED_OK : MDS_WANTED_INVALID;
}

/* Read the fallback of a field that the record lacks. */
static void fall_back(reader *r, size_t f)
{
    const mds_wanted *field = &r->fields[f];
    reader other = *r;
    other.text.p = field->fallback;
    other.text.n = field->fallback_size;
    const size_t i = mds_json_spaces(other.text.p, 0, other.text.n), end = read_value(&other, f, i, 0);
    if (end == 0 || mds_json_spaces(other.text.p, end, other.text.n) != other.text.n)
        r->values[f].status = MDS_WANTED_INVALID;
}

int mds_fields_read(const mds_kernels *kernels, const mds_wanted *fields, size_t count, const uint8_t *data, size_t n,
                    mds_value *values, mds_items *items, mds_refusal *refusal)
{
    reader r = {.text = {.kernels = kernels, .p = data, .n = n}, .fields = fields, .values = values, .items = items};
    for (size_t f = 0; f < count; f++) {
        values[f].status = MDS_WANTED_MISSING;
        values[f].at = 0;
        values[f].begin = items[f].used;
        values[f].first_row = items[f].rows;
    }
    *refusal = (mds_refusal){.status = read_record(&r, count), .field = count};
    refusal->at = r.text.at;
    for (size_t f = 0; f < count && refusal->status == MDS_WANTED_OK; f++) {
        if (values[f].status == MDS_WANTED_MISSING && fields[f].fallback)
            fall_back(&r, f);
        if (values[f].status != MDS_WANTED_OK)
            *refusal = (mds_refusal){.status = values[f].status, .field = f, .at = values[f].at};
    }
    if (refusal->status == MDS_WANTED_OK)
        return 1;
    for (size_t f = 0; f < count; f++) {
        items[f].used = values[f].begin;
        items[f].rows = values[f].first_row;
    }
    return 0;
}

/* ---- batches --------------------------------------------------------------------------------------------- */

#define COUNTED (64 << 10) /* a larger record has its commas counted, to take less room */
#define MASKS 64

static uint64_t count_commas(const mds_kernels *kernels, const uint8_t *data, uint64_t n)
{
    uint64_t masks[MASKS], commas = 0, i = 0;
    while (n - i >= 64) {
        const uint64_t words = (n - i) / 64 < MASKS ? (n - i) / 64 : MASKS;
        kernels->mask_bytes(data + i, (size_t)words, ',', masks);
        for (uint64_t w = 0; w < words; w++)
            commas += (uint64_t)__builtin_popcountll(masks[w]);
        i += words * 64;
    }
    for (; i < n; i++)
        commas += data[i] == ',';
    return commas;
}

uint64_t mds_fields_most(const mds_kernels *kernels, const mds_wanted *field, const uint8_t *data, uint64_t n)
{
    const uint64_t fallback = field->fallback_size;
    if (field->kind == MDS_ITEM_TEXT)
        return n > fallback ? n : fallback;
    const uint64_t most = n <= COUNTED ? n / 2 + 1 : count_commas(kernels, data, n) + 1;
    return most > fallback / 2 + 1 ? most : fallback / 2 + 1;
}

/* Return whether all items have room for another record; if not, set the room to take. */
static int have_room(const mds_kernels *kernels, mds_fields_batch *batch, const uint8_t *data, uint64_t n)
{
    int all = 1;
    for (size_t f = 0; f < batch->count; f++) {
        const mds_items *items = &batch->items[f];
        /* Each row takes bytes as an item does, but an empty one has no item. */
        const uint64_t taken = items->used > items->rows ? items->used : items->rows;
        batch->wanted[f] = items->room;
        if (items->room - taken > n && items->room - taken > batch->fields[f].fallback_size)
            continue; /* enough for any record */
        const uint64_t wanted = taken + mds_fields_most(kernels, &batch->fields[f], data, n);
        if (wanted > items->room) {
            batch->wanted[f] = wanted;
            all = 0;
        }
    }
    return all;
}

int mds_fields_read_many(const mds_kernels *kernels, mds_fields_batch *batch)
{
    for (; batch->next < batch->n; batch->next++) {
        const mds_request *request = &batch->requests[batch->next];
        const uint64_t size = request->span.end - request->span.begin;
        mds_refusal *refusal = &batch->refusals[batch->refused];
        if (!have_room(kernels, batch, request->data, size))
            return 0;
        mds_value *values = batch->values + batch->kept * batch->count;
        mds_refusal found;
        if (mds_fields_read(kernels, batch->fields, batch->count, request->data, (size_t)size, values, batch->items,
                            &found)) {
            batch->places[batch->kept++] = batch->next;
            continue;
        }
        found.request = batch->next;
        *refusal = found;
        batch->refused++;
        if (!batch->skip)
            return 1;
    }
    return 1;
}

/* ---- what was read --------------------------------------------------------------------------------------- */

int mds_fields_shapes(const mds_value *values, size_t stride, size_t n, size_t dims, uint64_t *out)
{
    for (size_t k = 0; k < n; k++) {
        if (values[k * stride].dims != dims)
            return 0;
        memcpy(out + k * dims, values[k * stride].shape, dims * sizeof *out);
    }
    return 1;
}

size_t mds_fields_pieces(const mds_value *values, size_t stride, size_t n, const uint8_t *items, size_t size,
                         uint64_t longest, int left, uint64_t row, mds_piece *pieces)
{
    for (size_t k = 0; k < n; k++) {
        const mds_value *value = &values[k * stride];
        const uint64_t entries = value->dims ? value->shape[0] : 0, kept = entries < longest ? entries : longest;
        if (value->dims == 0 || (entries ? value->count / entries != row || value->count % entries : value->count))
            return k;
        const uint64_t begin = value->begin + (left ? (entries - kept) * row : 0);
        pieces[k] = (mds_piece){items + begin * size, (size_t)(kept * row) * size};
    }
    return n;
}
