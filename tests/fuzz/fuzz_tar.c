/* fuzz_tar.c - hostile archives through the walk over headers and the grouping into samples.
 *
 * Property: whatever is found lies inside the archive; a scan in steps equals a scan in one, by file, by map, or where just
 * the bytes that it asks for are at hand; every sample that is found reads back with the same key.
 * Input: an archive, and a last byte, which says how to take it: as it is; with all checksums put right; or as a recipe,
 * 8 bytes a header, for members of odd types, sizes and names. */
#include "fuzz.h"

#include <unistd.h>

#define MOST_COOKED (32 * MDS_TAR_BLOCK) /* bytes: more headers find no more, and take as many times longer */

static void fix_checksum(uint8_t *block)
{
    unsigned sum = 0;
    memset(block + 148, ' ', 8);
    for (int k = 0; k < MDS_TAR_BLOCK; k++)
        sum += block[k];
    snprintf((char *)block + 148, 8, "%06o", sum);
    block[155] = ' ';
}

static void inside(const uint8_t *data, uint64_t n, const mds_tar_member *member)
{
    CHECK(member->header <= member->begin && member->begin <= member->end);
    CHECK(member->end <= member->next && member->next <= n);
    CHECK(member->header + MDS_TAR_BLOCK <= member->begin);
    if (!member->key_size)
        return;
    CHECK(member->key_size + 1 + member->extension_size == member->name_size);
    CHECK(member->extension == member->name + member->key_size + 1);
    const int joined = member->name == member->joined && member->name_size <= sizeof member->joined;
    CHECK(joined || (member->name >= data && member->name + member->name_size <= data + n));
}

static void read_back(const uint8_t *data, uint64_t n, uint64_t begin, uint64_t size, uint64_t hash)
{
    CHECK(begin <= n && size <= n - begin && size >= MDS_TAR_BLOCK);
    uint8_t *record = fuzz_copy(data + begin, size);
    mds_tar_member first = {.next = 0}, other;
    mds_tar_status status;
    int members = 0;
    for (uint64_t at = 0;;) {
        mds_tar_member *member = members ? &other : &first;
        status = mds_tar_next(record, size, at, member);
        if (status != MDS_TAR_OK)
            break;
        inside(record, size, member);
        at = member->next;
        if (!member->key_size)
            continue;
        CHECK(!members || (mds_tar_same_key(&first, member) && !mds_tar_same_extension(&first, member)));
        members++;
    }
    CHECK(status == MDS_TAR_END && members > 0);
    CHECK(mds_tar_hash(first.name, first.key_size) == hash);
    free(record);
}

/* What a scan found. */
typedef struct {
    const uint64_t *begins, *sizes, *hashes;
    size_t count;
    mds_tar_status status;
    mds_tar state;
} found;

/* Scan an archive that comes in pieces, each as small as it may be and in memory of its own. */
static void scan_pieces(const uint8_t *data, uint64_t n, const found *whole)
{
    mds_tar state = {.at = 0};
    mds_tar_member member = {.held = 0};
    mds_tar_archive archive = {.fd = -1};
    uint8_t *key = NULL;
    for (size_t k = 0;;) {
        uint64_t begin, size, hash;
        size_t count;
        archive.begin = state.at;
        CHECK(archive.begin <= archive.size);
        archive.end = archive.size < archive.end ? archive.size : archive.end;
        archive.end = archive.end < archive.begin ? archive.begin : archive.end;
        uint8_t *piece = fuzz_copy(data + archive.begin, archive.end - archive.begin);
        archive.data = piece;
        archive.key = key;
        const mds_tar_status status = mds_tar_scan(&archive, &state, &begin, &size, &hash, 1, &count, &member);
        if (count) {
            CHECK(k < whole->count && begin == whole->begins[k]);
            CHECK(size == whole->sizes[k] && hash == whole->hashes[k]);
            k++;
        }
        if (state.open && state.key_at != MDS_NONE && state.key_at >= archive.begin) {
            CHECK(state.key_at + state.key_size <= archive.end);
            free(key);
            key = fuzz_copy(piece + (state.key_at - archive.begin), state.key_size);
        }
        free(piece);
        if (status == MDS_TAR_MORE) {
            CHECK(member.held > archive.end || member.needed > archive.size);
            CHECK(!archive.is_whole || archive.end < n);
            archive.end = member.held;
            archive.size = member.needed > archive.size ? member.needed : archive.size;
            archive.is_whole |= archive.size >= n;
            archive.size = archive.size < n ? archive.size : n;
        } else if (status != MDS_TAR_OK) {
            CHECK(status == whole->status && k == whole->count && state.samples == whole->state.samples);
            CHECK(state.at == whole->state.at && state.end == whole->state.end);
            break;
        }
    }
    free(key);
}

static void scan(const uint8_t *input, size_t n)
{
    uint8_t *data = fuzz_copy(input, n);
    const size_t room = n / MDS_TAR_BLOCK + 1;
    uint64_t *out = fuzz_room(3 * room, sizeof *out);
    uint64_t *begins = out, *sizes = out + room, *hashes = out + 2 * room;
    mds_tar whole = {.at = 0}, piecewise = {.far = 1, .window = UINT64_MAX}; /* by pread */
    static FILE *file; /* one for all inputs, as making it costs more than the scan */
    if (!file)
        file = tmpfile();
    CHECK(file && pwrite(fileno(file), data, n, 0) == (ssize_t)n && ftruncate(fileno(file), (off_t)n) == 0);
    size_t count;
    mds_tar_member member;
    mds_tar_archive archive = {.data = data, .end = n, .size = n, .is_whole = 1, .fd = -1};
    const mds_tar_status status = mds_tar_scan(&archive, &whole, begins, sizes, hashes, room, &count, &member);
    CHECK(status != MDS_TAR_OK && count == whole.samples && count < room && whole.at <= n && whole.end <= n);
    for (size_t k = 0; k < count; k++) {
        CHECK(k + 1 == count || begins[k] + sizes[k] == begins[k + 1]);
        read_back(data, n, begins[k], sizes[k], hashes[k]);
    }
    CHECK(!count || status == MDS_TAR_DUPLICATE || whole.open || begins[count - 1] + sizes[count - 1] == whole.end);
    archive.fd = fileno(file);
    for (size_t k = 0;; k++) {
        uint64_t begin, size, hash;
        size_t one;
        const mds_tar_status again = mds_tar_scan(&archive, &piecewise, &begin, &size, &hash, 1, &one, &member);
        if (one)
            CHECK(k < count && begin == begins[k] && size == sizes[k] && hash == hashes[k]);
        if (again != MDS_TAR_OK) {
            CHECK(again == status && piecewise.at == whole.at && piecewise.end == whole.end);
            break;
        }
    }
    const found all = {begins, sizes, hashes, count, status, whole};
    scan_pieces(data, n, &all);
    free(out);
    free(data);
}

/* Make an archive of a recipe. Most of its headers are good, since a scan ends at the first that is not. */
static size_t cook(const uint8_t *input, size_t n, uint8_t *out, size_t capacity)
{
    static const char *const names[] = {"a.x",  "a.y",    "a.Z",   "a.s.t", "b.x",     "b.y",   "d/b.x",  "d/b.y",
                                        "d/.h", "e.f/.h", "nodot", "__m__", "__m__.x", "a.\nx", "\xff.x", ""};
    static const char types[] = {'0', '0', 0, '7', 'x', 'L', 'g', 'X', 'K', '5', '2', '1', 'V', 'S'};
    static const char *const sizes[] = {"0", "3", "777", "1000", "1001", "77777777777", "x", "-1"};
    static const char *const bodies[] = {"12 path=b.t\n",  "9 size=2\n",    "15 path=a/c.x/\n9 size=9\n",
                                         "very/long.name", "a.w",           "14 size=99999\n",
                                         "11 path=b.t\n",  "99 path=b.t\n", "20 GNU.sparse.map=1\n"};
    size_t used = 0;
    for (size_t k = 0; k + 8 <= n && used + 4 * MDS_TAR_BLOCK <= capacity; k += 8) {
        const uint8_t *recipe = input + k;
        const int odd = recipe[0] % 16 == 0;
        uint8_t *block = out + used;
        memset(block, 0, 4 * MDS_TAR_BLOCK);
        strcpy((char *)block, names[recipe[1] % 16]);
        block[156] = (uint8_t)types[recipe[2] % (odd ? 14 : recipe[0] & 16 ? 12 : 4)];
        const char *size = sizes[recipe[3] % (odd ? 8 : 5)];
        strcpy((char *)block + 124, size);
        if (recipe[4] & 1) {
            memcpy(block + 257, "ustar\00000", 8);
            strcpy((char *)block + 345, recipe[4] & 14 ? "" : "p/q.r");
        }
        size_t follow = size[0] == 'x' || size[0] == '-' ? 0 : strtoul(size, NULL, 8);
        if (block[156] == 'x' || block[156] == 'X' || block[156] == 'L' || block[156] == 'g') {
            const char *body = bodies[recipe[5] % (odd ? 9 : 5)];
            follow = strlen(body);
            strcpy((char *)block + MDS_TAR_BLOCK, body);
            snprintf((char *)block + 124, 12, "%o", (unsigned)follow);
        } else if (block[156] >= '1' && block[156] <= '6') {
            follow = 0;
        }
        fix_checksum(block);
        used += MDS_TAR_BLOCK + (follow + 511) / 512 % 4 * 512;
        if (odd && recipe[6] % 4 == 0)
            used -= recipe[7];
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    static uint8_t made[MOST_COOKED];
    if (n == 0 || n > sizeof made)
        return 0;
    const int how = input[--n] % 3;
    if (how == 0) {
        scan(input, n);
    } else if (how == 1) {
        memcpy(made, input, n);
        for (size_t at = 0; at + MDS_TAR_BLOCK <= n; at += MDS_TAR_BLOCK)
            fix_checksum(made + at);
        scan(made, n);
    } else {
        scan(made, cook(input, n, made, sizeof made));
    }
    return 0;
}
