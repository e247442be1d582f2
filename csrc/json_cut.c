/* json_cut.c - some items of an array in a JSON object, found without a look at what the others are. */
#include "json_values.h"

#define STEP 64 /* bytes that are looked at together */

/* The commas among STEP bytes, or -1 if one of these begins or ends a string or a container. */
static int plain_commas(const uint8_t *p)
{
    unsigned commas = 0, others = 0;
    for (size_t k = 0; k < STEP; k++) {
        commas += p[k] == ',';
        others |= (unsigned)(p[k] == '"') | ((p[k] | 0x20) == '{') | ((p[k] | 0x20) == '}');
    }
    return others ? -1 : (int)commas;
}

/* Note the comma at p[i], the `commas`-th of the array, if the wanted items begin or end there. */
static void note_comma(mds_json_part *part, uint64_t commas, size_t i)
{
    if (commas == part->begin)
        part->first = i + 1;
    if (commas == part->end)
        part->last = i;
}

/* Find the items of the array whose bracket is at p[i]; return the place after it, or 0 if it is not closed. */
static size_t find_items(const mds_kernels *kernels, const uint8_t *p, size_t i, size_t n, mds_json_part *part)
{
    uint64_t commas = 0;
    int is_plain = 1; /* so far, no byte began a string or a container */
    size_t bytes, chars, at;
    part->open = part->first = part->last = ++i;
    while (i && i < n && p[i] != ']') {
        const int some = is_plain && n - i >= STEP ? plain_commas(p + i) : -1;
        if (some >= 0) {
            const uint64_t after = commas + (uint64_t)some;
            const int is_near =
                (commas < part->begin && part->begin <= after) || (commas < part->end && part->end <= after);
            for (size_t k = i; is_near && k < i + STEP; k++)
                if (p[k] == ',')
                    note_comma(part, ++commas, k);
            commas = after;
            i += STEP;
            continue;
        }
        if (p[i] == ',')
            note_comma(part, ++commas, i);
        is_plain = is_plain && p[i] != '"' && p[i] != '[' && p[i] != '{';
        if (p[i] == '"')
            i = mds_json_string(kernels, p, i + 1, n, &bytes, &chars, &at);
        else if (p[i] == '[' || p[i] == '{')
            i = mds_json_skip(kernels, p, i, n, 2, &at);
        else
            i++;
    }
    if (!i || i == n)
        return 0;
    part->close = i;
    part->items = commas + (mds_json_spaces(p, part->open, n) < i);
    if (part->begin >= part->items)
        part->first = i;
    if (part->end >= part->items)
        part->last = i;
    if (part->last < part->first) /* none are wanted */
        part->last = part->first;
    return i + 1;
}

int mds_json_cut(const mds_kernels *kernels, const uint8_t *p, size_t n, mds_json_part *part)
{
    size_t i = mds_json_spaces(p, 0, n), bytes, chars, at;
    int found = 0;
    if (i == n || p[i] != '{')
        return 0;
    do {
        const size_t begin = mds_json_spaces(p, i + 1, n) + 1;
        if (begin >= n || p[begin - 1] != '"')
            return 0;
        const size_t end = mds_json_string(kernels, p, begin, n, &bytes, &chars, &at);
        i = end ? mds_json_spaces(p, end, n) : n;
        if (i == n || p[i] != ':')
            return 0;
        i = mds_json_spaces(p, i + 1, n);
        if (mds_json_same_key(p + begin, end - 1 - begin, part->key, part->key_size)) {
            found = i < n && p[i] == '['; /* the last of equal keys counts */
            i = found ? find_items(kernels, p, i, n, part) : mds_json_skip(kernels, p, i, n, 1, &at);
        } else {
            i = mds_json_skip(kernels, p, i, n, 1, &at);
        }
        i = i ? mds_json_spaces(p, i, n) : n;
    } while (i < n && p[i] == ',');
    return i < n && p[i] == '}' && found;
}
