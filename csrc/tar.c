/* tar.c - walks the headers of a tar where it lies, and groups its members into samples as WebDataset does.
 *
 * A tar is a chain: only a header says where the next one is, so a scan reads one block a member and skips the rest. It
 * reads ustar (POSIX.1-1988), pax (POSIX.1-2001), GNU's long names and base-256 numbers, and the older format without a
 * magic number. If two names are possible, the result is that of Python's tarfile, which WebDataset
 * uses. */
#include "mmapds.h"

#include <string.h>
#include <unistd.h>

/* If headers are more than FAR apart, averaged over a WINDOW, read them by pread: a page fault costs as much as several
 * calls (bench/bench_tar.py). */
#define WINDOW (1u << 20)
#define FAR (8u << 10)

/* Where the fields of a header are, and how long they are. */
enum {
    NAME = 0,
    NAME_SIZE = 100,
    SIZE = 124,
    SIZE_SIZE = 12,
    CHECKSUM = 148,
    CHECKSUM_SIZE = 8,
    TYPE = 156,
    MAGIC = 257,
    PREFIX = 345,
    PREFIX_SIZE = 155,
};

/* Parse an octal number with blanks around it, or a number in base 256, marked by its first bit. Return 0 for any other
 * text. */
static int parse_number(const uint8_t *field, size_t n, uint64_t *number)
{
    uint64_t value = 0;
    size_t i = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80) /* negative, or far too large */
            return 0;
        for (i = 1; i < n; i++) {
            if (value >> 55)
                return 0;
            value = value << 8 | field[i];
        }
        *number = value;
        return 1;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0'); /* 12 digits have 36 bits */
    while (i < n && field[i] == ' ')
        i++;
    *number = value;
    return i == n || field[i] == 0;
}

static int parse_decimal(const uint8_t *text, uint64_t n, uint64_t *number)
{
    uint64_t value = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || value > (INT64_MAX - 9) / 10)
            return 0;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *number = value;
    return n > 0;
}

/* The sum of a block's bytes, eight at a time: four lanes of 16 bits hold 64 pairs of bytes each. */
static uint64_t block_sum(const uint8_t *block)
{
    const uint64_t every_other = 0x00ff00ff00ff00ffULL;
    uint64_t lanes = 0;
    for (int k = 0; k < MDS_TAR_BLOCK; k += 8) {
        uint64_t x;
        memcpy(&x, block + k, 8);
        lanes += (x & every_other) + (x >> 8 & every_other);
    }
    return (lanes & 0xffff) + (lanes >> 16 & 0xffff) + (lanes >> 32 & 0xffff) + (lanes >> 48);
}

/* The checksum is the sum of all bytes, with blanks in place of itself. Some old archivers added signed bytes. */
static int checksum_holds(const uint8_t *block)
{
    uint64_t stored, sum = block_sum(block);
    if (!parse_number(block + CHECKSUM, CHECKSUM_SIZE, &stored))
        return 0;
    for (int k = CHECKSUM; k < CHECKSUM + CHECKSUM_SIZE; k++)
        sum += (uint64_t)' ' - block[k];
    if (sum == stored)
        return 1;
    for (int k = 0; k < MDS_TAR_BLOCK; k++)
        if (block[k] & 0x80 && (k < CHECKSUM || k >= CHECKSUM + CHECKSUM_SIZE))
            sum -= 256;
    return sum == stored;
}

static int all_zeros(const uint8_t *data, uint64_t n)
{
    for (uint64_t k = 0; k < n; k++)
        if (data[k])
            return 0;
    return 1;
}

static size_t text_size(const uint8_t *field, size_t n)
{
    const uint8_t *end = memchr(field, 0, n);
    return end ? (size_t)(end - field) : n;
}

/* What extended headers say of the member that follows. Of several, the first counts, as in tarfile. */
typedef struct {
    const uint8_t *name;
    uint64_t name_size;
    int sized;
    uint64_t size;
} extended;

/* Read an extended header: records "LENGTH KEY=VALUE\n", where LENGTH is decimal and that of the whole record. */
static mds_tar_status read_pax(const uint8_t *data, uint64_t n, int global, extended *told)
{
    extended own = {NULL, 0, 0, 0};
    for (uint64_t at = 0; at < n && data[at];) {
        const uint8_t *record = data + at;
        uint64_t digits = 0, size;
        while (digits < n - at && record[digits] != ' ')
            digits++;
        if (!parse_decimal(record, digits, &size) || size > n - at || size < digits + 3 || record[size - 1] != '\n')
            return MDS_TAR_EXTENDED;
        const uint8_t *key = record + digits + 1, *end = record + size - 1;
        const uint8_t *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals)
            return MDS_TAR_EXTENDED;
        const size_t key_size = (size_t)(equals - key);
        const uint8_t *value = equals + 1;
        if (key_size == 4 && memcmp(key, "path", 4) == 0) {
            while (end > value && end[-1] == '/')
                end--;
            own.name = value;
            own.name_size = (uint64_t)(end - value);
        } else if (key_size == 4 && memcmp(key, "size", 4) == 0) {
            own.sized = 1;
            if (!parse_decimal(value, (uint64_t)(end - value), &own.size))
                return MDS_TAR_NUMBER;
        } else if (key_size > 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
            return MDS_TAR_SPARSE;
        }
        at += size;
    }
    if (global)
        return own.name || own.sized ? MDS_TAR_GLOBAL : MDS_TAR_OK;
    if (!told->name && own.name) {
        told->name = own.name;
        told->name_size = own.name_size;
    }
    if (!told->sized && own.sized) {
        told->sized = 1;
        told->size = own.size;
    }
    return MDS_TAR_OK;
}

static void read_name(const uint8_t *block, const extended *told, mds_tar_member *member)
{
    if (told->name) {
        member->name = told->name;
        member->name_size = told->name_size;
        return;
    }
    member->name = block + NAME;
    member->name_size = text_size(block + NAME, NAME_SIZE);
    /* Only POSIX has a prefix here: GNU, which writes "ustar  ", may put times here. */
    const size_t prefix = memcmp(block + MAGIC, "ustar", 6) == 0 ? text_size(block + PREFIX, PREFIX_SIZE) : 0;
    if (prefix || block == member->block) {
        memcpy(member->joined, block + PREFIX, prefix);
        member->joined[prefix] = '/';
        const size_t begin = prefix + (prefix > 0);
        memcpy(member->joined + begin, block + NAME, (size_t)member->name_size);
        member->name = member->joined;
        member->name_size += begin;
    }
}

/* Whether the first part of a name is __like_this__: such members describe the archive and belong to no sample. */
static int is_meta(const uint8_t *name, uint64_t n)
{
    const uint8_t *slash = memchr(name, '/', (size_t)n);
    uint64_t first = slash ? (uint64_t)(slash - name) : n;
    if (!slash && first && name[first - 1] == '\n') /* `$` of a regular expression matches before it, too */
        first--;
    return first >= 4 && memcmp(name, "__", 2) == 0 && memcmp(name + first - 2, "__", 2) == 0;
}

/* How many bytes of a name are its key, 0 if it has none: what ^((?:.*\/|)[^.]+)[.]([^/]*)$ in webdataset's
 * base_plus_ext captures. That is nearly always everything before the first dot of the base name. If the base name
 * begins with a dot, the key is the directory, unless the directory's own name has a dot. */
static uint64_t find_key(const uint8_t *name, uint64_t n)
{
    uint64_t base = n, dot;
    while (base && name[base - 1] != '/')
        base--;
    for (dot = base; dot < n && name[dot] != '.'; dot++)
        ;
    if (dot == n)
        return 0;
    uint64_t before = base; /* the byte after the last dot of the directories */
    while (before && name[before - 1] != '.')
        before--;
    if (!before)
        return dot;
    uint64_t slash = before;
    while (slash + 1 < base && name[slash] != '/') /* a slash is at base - 1, unless the file has changed */
        slash++;
    return slash + 1 < dot && !memchr(name, '\n', (size_t)slash) ? dot : 0;
}

static mds_tar_status fail(mds_tar_member *member, mds_tar_status status, uint64_t at)
{
    member->next = at;
    return status;
}

static mds_tar_status want(mds_tar_member *member, uint64_t held, uint64_t needed)
{
    member->held = held;
    member->needed = needed;
    return fail(member, MDS_TAR_MORE, member->header);
}

static const uint8_t *byte_at(const mds_tar_archive *archive, uint64_t at)
{
    return archive->data + (at - archive->begin);
}

/* The header at byte `at`, read from the file if there is one; NULL if the file has become shorter since. If the read
 * fails, the header comes from the map. The data of extended headers always come from the map, as they are rare. */
static const uint8_t *read_header(const mds_tar_archive *archive, uint64_t at, int far, mds_tar_member *member)
{
    const int fd = far ? archive->fd : -1;
    const ssize_t got = fd < 0 ? -1 : pread(fd, member->block, MDS_TAR_BLOCK, (off_t)at);
    return got < 0 ? byte_at(archive, at) : got == MDS_TAR_BLOCK ? member->block : NULL;
}

/* The end of an archive, if it has two blocks of zeros; the first one is at byte `at`. */
static mds_tar_status read_end(const mds_tar_archive *archive, uint64_t at, mds_tar_member *member)
{
    const uint64_t next = at + MDS_TAR_BLOCK, left = archive->size - next;
    const uint64_t size = left < MDS_TAR_BLOCK ? left : MDS_TAR_BLOCK;
    if (next + size > archive->end || (size < MDS_TAR_BLOCK && !archive->is_whole))
        return want(member, next + MDS_TAR_BLOCK, next + MDS_TAR_BLOCK);
    return fail(member, !size || all_zeros(byte_at(archive, next), size) ? MDS_TAR_END : MDS_TAR_ZEROS, at);
}

/* Return whether there is no header at byte `at`, and why: the archive, or its available part, ends there. */
static int ends(const mds_tar_archive *archive, uint64_t at, mds_tar_member *member, mds_tar_status *status)
{
    const int first = at == member->header;
    const uint64_t left = archive->size - at, size = left < MDS_TAR_BLOCK ? left : MDS_TAR_BLOCK;
    if (at + size > archive->end || (size < MDS_TAR_BLOCK && !archive->is_whole))
        *status = want(member, at + MDS_TAR_BLOCK, at + MDS_TAR_BLOCK);
    else if (size < MDS_TAR_BLOCK)
        *status = fail(member,
                       first && (!size || all_zeros(byte_at(archive, at), size)) ? MDS_TAR_END : MDS_TAR_TRUNCATED, at);
    else
        return 0;
    return 1;
}

static mds_tar_status next_member(const mds_tar_archive *archive, int far, uint64_t at, mds_tar_member *member)
{
    const uint64_t n = archive->size;
    extended told = {NULL, 0, 0, 0};
    mds_tar_status status;
    member->header = at;
    member->name = NULL;
    member->key_size = 0;
    for (;;) {
        if (ends(archive, at, member, &status))
            return status;
        const uint8_t *block = read_header(archive, at, far, member);
        if (!block)
            return fail(member, MDS_TAR_TRUNCATED, at);
        if (!checksum_holds(block))
            return at == member->header && all_zeros(block, MDS_TAR_BLOCK) ? read_end(archive, at, member)
                                                                           : fail(member, MDS_TAR_GARBAGE, at);
        const uint8_t type = block[TYPE];
        uint64_t size;
        if (!parse_number(block + SIZE, SIZE_SIZE, &size))
            return fail(member, MDS_TAR_NUMBER, at);
        const uint64_t header = at;
        at += MDS_TAR_BLOCK;

        if (type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K') {
            if (size > n - at && archive->is_whole)
                return fail(member, MDS_TAR_TRUNCATED, header);
            if (size > n - at || at + size > archive->end)
                return want(member, at + size, at + size);
            const uint8_t *data = byte_at(archive, at);
            if (type == 'L' && !told.name) {
                told.name = data;
                told.name_size = text_size(data, (size_t)size);
            } else if (type == 'x' || type == 'X' || type == 'g') {
                status = read_pax(data, size, type == 'g', &told);
                if (status != MDS_TAR_OK)
                    return fail(member, status, header);
            }
            at += size;
            if (n - at < -size % MDS_TAR_BLOCK && !archive->is_whole)
                return want(member, at + -size % MDS_TAR_BLOCK, at + -size % MDS_TAR_BLOCK);
            at += n - at < -size % MDS_TAR_BLOCK ? n - at : -size % MDS_TAR_BLOCK;
            continue;
        }

        read_name(block, &told, member);
        if (type == 'S')
            return fail(member, MDS_TAR_SPARSE, header);
        /* In the oldest format, a slash at the end of a name marks a directory. */
        const uint64_t named = text_size(block, NAME_SIZE);
        const int folder = type == 0 && named && block[named - 1] == '/';
        const int regular = (type == 0 || type == '0' || type == '7') && !folder;
        if (folder || (type >= '1' && type <= '6'))
            size = 0; /* links may state the size of their target */
        else if (told.sized)
            size = told.size;
        if (regular && !is_meta(member->name, member->name_size)) {
            member->key_size = find_key(member->name, member->name_size);
            member->extension_size = member->name_size - member->key_size - (member->key_size > 0);
            member->extension = member->name + member->name_size - member->extension_size;
        }
        /* A file that ends inside the padding is truncated too: members may be missing, and tarfile refuses it. */
        const uint64_t blanks = -size % MDS_TAR_BLOCK;
        if (size > n - at || blanks > n - at - size)
            return archive->is_whole ? fail(member, MDS_TAR_TRUNCATED, header) : want(member, at, at + size + blanks);
        member->begin = at;
        member->end = at + size;
        member->next = member->end + blanks;
        return MDS_TAR_OK;
    }
}

mds_tar_status mds_tar_next(const uint8_t *data, uint64_t n, uint64_t at, mds_tar_member *member)
{
    const mds_tar_archive archive = {.data = data, .end = n, .size = n, .is_whole = 1, .fd = -1};
    return next_member(&archive, 0, at, member);
}

static uint8_t lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte;
}

int mds_tar_same_key(const mds_tar_member *one, const mds_tar_member *other)
{
    return one->key_size == other->key_size && memcmp(one->name, other->name, (size_t)one->key_size) == 0;
}

int mds_tar_same_extension(const mds_tar_member *one, const mds_tar_member *other)
{
    if (one->extension_size != other->extension_size)
        return 0;
    for (uint64_t k = 0; k < one->extension_size; k++)
        if (lower(one->extension[k]) != lower(other->extension[k]))
            return 0;
    return 1;
}

static uint32_t folded(uint64_t hash)
{
    return (uint32_t)(hash >> 32 ^ hash);
}

#define FNV_BASIS 0xcbf29ce484222325ULL
#define FNV_PRIME 0x100000001b3ULL

uint32_t mds_tar_hash(const uint8_t *key, size_t n)
{
    uint64_t hash = FNV_BASIS;
    for (size_t k = 0; k < n; k++)
        hash = (hash ^ key[k]) * FNV_PRIME;
    return folded(hash);
}

static const uint8_t *open_key(const mds_tar_archive *archive, const mds_tar *state)
{
    return state->key_at == MDS_NONE         ? state->joined
           : state->key_at >= archive->begin ? byte_at(archive, state->key_at)
                                             : archive->key;
}

static int has_open_key(const mds_tar_archive *archive, const mds_tar *state, const mds_tar_member *member)
{
    return state->open && member->key_size == state->key_size &&
           memcmp(member->name, open_key(archive, state), (size_t)state->key_size) == 0;
}

/* Note the extension of a member of the open sample; 0 if the sample has it already. Readers add two of their own. */
static int note_extension(mds_tar *state, const mds_tar_member *member)
{
    static const mds_tar_member taken[] = {
        {.extension = (const uint8_t *)"__key__", .extension_size = 7},
        {.extension = (const uint8_t *)"__url__", .extension_size = 7},
    };
    if (mds_tar_same_extension(member, &taken[0]) || mds_tar_same_extension(member, &taken[1]))
        return 0;
    uint64_t hash = FNV_BASIS;
    for (uint64_t k = 0; k < member->extension_size; k++)
        hash = (hash ^ lower(member->extension[k])) * FNV_PRIME;
    for (size_t k = 0; k < state->extensions; k++)
        if (state->seen[k].hash == hash && state->seen[k].size == member->extension_size)
            return 0;
    if (state->extensions < MDS_TAR_EXTENSIONS) {
        state->seen[state->extensions].hash = hash;
        state->seen[state->extensions++].size = member->extension_size;
    }
    return 1;
}

static void begin_sample(const mds_tar_archive *archive, mds_tar *state, const mds_tar_member *member)
{
    state->open = 1;
    state->begin = member->header;
    state->key_size = member->key_size;
    state->extensions = 0;
    if (member->name == member->joined) {
        state->key_at = MDS_NONE;
        memcpy(state->joined, member->joined, (size_t)member->key_size);
    } else {
        state->key_at = archive->begin + (uint64_t)(member->name - archive->data);
    }
}

/* Count a header; return whether headers lie far apart here. */
static int is_far(mds_tar *state)
{
    if (state->at >= state->window) {
        state->far = state->headers && state->headers < (state->at + WINDOW - state->window) / FAR;
        state->window = state->at + WINDOW;
        state->headers = 0;
    }
    state->headers++;
    return state->far;
}

mds_tar_status mds_tar_scan(const mds_tar_archive *archive, mds_tar *state, uint64_t *begins, uint64_t *sizes,
                            uint64_t *hashes, size_t capacity, size_t *count, mds_tar_member *member)
{
    *count = 0;
    for (size_t headers = 0; headers < MDS_TAR_HEADERS && *count < capacity; headers++) {
        const mds_tar_status status = next_member(archive, is_far(state), state->at, member);
        if (status == MDS_TAR_MORE)
            return status;
        const int same = status == MDS_TAR_OK || status == MDS_TAR_TRUNCATED ? has_open_key(archive, state, member) : 0;
        /* A sample ends where the next one begins or the archive ends. If the archive is truncated, the open sample may
         * lack members, unless the member that is cut belongs to another sample. */
        const int next =
            status == MDS_TAR_OK ? member->key_size && !same : status == MDS_TAR_END || (member->key_size && !same);
        if (state->open && next) {
            begins[*count] = state->begin;
            sizes[*count] = (status == MDS_TAR_OK ? member->header : state->end) - state->begin;
            hashes[(*count)++] = mds_tar_hash(open_key(archive, state), (size_t)state->key_size);
            state->samples++;
            state->open = 0;
        }
        if (status != MDS_TAR_OK) {
            if (state->open)
                state->end = state->begin;
            state->at = member->next;
            return status;
        }
        if (member->key_size) {
            if (!same)
                begin_sample(archive, state, member);
            if (!note_extension(state, member)) {
                state->at = member->header;
                return MDS_TAR_DUPLICATE;
            }
            state->end = member->next;
        }
        state->at = member->next;
    }
    return MDS_TAR_OK;
}

mds_tar_status mds_tar_sample_next(const uint8_t *data, uint64_t n, mds_tar_sample *sample,
                                   const mds_tar_member **member)
{
    const int begun = sample->first.key_size != 0;
    mds_tar_member *next = begun ? &sample->other : &sample->first;
    do {
        const mds_tar_status status = mds_tar_next(data, n, sample->at, next);
        sample->at = next->next;
        if (status != MDS_TAR_OK) {
            next->key_size = 0; /* an unreadable member has no key */
            return status;
        }
    } while (!next->key_size);
    if (begun && !mds_tar_same_key(&sample->first, next)) {
        sample->at = next->header;
        return MDS_TAR_GARBAGE;
    }
    *member = next;
    return MDS_TAR_OK;
}
