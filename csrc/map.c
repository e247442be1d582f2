/* map.c - regular files that are read at any byte: mapped, or by pread without a map. */
#define _GNU_SOURCE /* CLOCK_MONOTONIC_COARSE */
#include "mmapds.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14; elsewhere pages are mapped as they are touched */
#define MADV_POPULATE_READ MADV_NORMAL
#endif

#ifndef CLOCK_MONOTONIC_COARSE
#define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC
#endif

#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

/* Return whether to keep a descriptor. Systems assign the lowest free number, so the number shows how many are in use.
 * Three quarters are left to the program: torch passes tensors between processes by descriptors. */
static int may_keep(int fd)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 4;
}

static int open_file(const char *path)
{
    /* O_NONBLOCK: opening a FIFO must fail later, not wait for a writer. It means nothing to a regular file. */
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

static void close_file(int fd)
{
    const int saved = errno;
    close(fd);
    errno = saved;
}

int64_t mds_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Read a whole file into memory. */
static mds_status copy_file(int fd, mds_map *map)
{
    uint8_t *data = mmap(NULL, (size_t)map->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return MDS_SYSTEM;
    mds_file file = {.fd = fd};
    const mds_map given = {NULL, map->size, 0, &file};
    const mds_status status = mds_map_read(&given, 0, (size_t)map->size, data);
    if (status == MDS_OK)
        map->data = data;
    else
        munmap(data, (size_t)map->size);
    return status;
}

static mds_status map_file(int fd, mds_map *map)
{
    const void *data = mmap(NULL, (size_t)map->size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return MDS_SYSTEM;
    map->data = data;
    return MDS_OK;
}

mds_status mds_map_open(const char *path, mds_io io, mds_map *map, mds_file *file)
{
    const int fd = open_file(path);
    if (fd < 0)
        return MDS_SYSTEM;

    mds_status status = MDS_OK;
    struct stat st;
    int kept = 0;
    if (fstat(fd, &st) != 0) {
        status = MDS_SYSTEM;
    } else if (!S_ISREG(st.st_mode)) {
        status = MDS_NOT_FILE;
    } else {
        const int64_t mtime_ns = (int64_t)((uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec);
        *map = (mds_map){NULL, (uint64_t)st.st_size, mtime_ns, file};
        if (io != MDS_IO_PREAD && map->size)
            status = io == MDS_IO_MAP ? map_file(fd, map) : copy_file(fd, map);
        kept = status == MDS_OK && may_keep(fd);
        file->path = path;
        file->fd = kept ? fd : -1;
        file->device = (uint64_t)st.st_dev;
        file->inode = (uint64_t)st.st_ino;
        atomic_init(&file->checked, mds_now());
    }
    if (!kept)
        close_file(fd);
    return status;
}

void mds_map_close(mds_map *map)
{
    if (map->data)
        munmap((void *)map->data, (size_t)map->size);
    if (map->file && map->file->path && map->file->fd >= 0)
        close(map->file->fd);
    *map = (mds_map){NULL, 0, 0, NULL};
}

/* Return the descriptor of the file, or open it again; -1 with errno. */
static int descriptor(const mds_file *file)
{
    if (file->fd >= 0)
        return file->fd;
    const int fd = open_file(file->path);
    struct stat st;
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_dev == file->device && (uint64_t)st.st_ino == file->inode)
        return fd;
    close(fd);
    errno = ESTALE; /* the file was replaced */
    return -1;
}

static void give_back(const mds_file *file, int fd)
{
    if (fd != file->fd)
        close_file(fd);
}

mds_status mds_map_check(const mds_map *map)
{
    struct stat st;
    mds_guard_install(); /* for the reads to come */
    atomic_store_explicit(&map->file->checked, mds_now(), memory_order_relaxed);
    /* No process can truncate a file that was removed or replaced. */
    if (map->file->fd >= 0 ? fstat(map->file->fd, &st) : stat(map->file->path, &st))
        return MDS_OK;
    if ((uint64_t)st.st_dev != map->file->device || (uint64_t)st.st_ino != map->file->inode)
        return MDS_OK;
    return (uint64_t)st.st_size < map->size ? MDS_SHRANK : MDS_OK;
}

/* The system fills the last page of a file with zeros. So if a byte other than 0 follows the range in its last page,
 * the file still reached the end of the range. This holds for larger pages too. */
#define SMALLEST_PAGE 4096

mds_status mds_map_check_zeros(const mds_map *map, uint64_t end)
{
    const uint64_t page_end = ((end - 1) | (SMALLEST_PAGE - 1)) + 1;
    uint64_t next = 0, last = 0;
    if (page_end - end >= sizeof next) {             /* the whole page is mapped */
        memcpy(&next, map->data + end, sizeof next); /* usually in the cache, and enough */
        if (!next)
            memcpy(&last, map->data + (page_end - sizeof last), sizeof last);
    }
    return next || last ? MDS_OK : mds_map_check(map);
}

static mds_status read_mapped(const mds_map *map, uint64_t begin, size_t n, uint8_t *out)
{
    mds_guard guard;
    if (MDS_GUARD(&guard))
        return MDS_SHRANK;
    memcpy(out, map->data + begin, n);
    const mds_status status = mds_map_was_whole(map, begin + n, mds_now());
    mds_guard_leave();
    return status;
}

mds_status mds_map_read(const mds_map *map, uint64_t begin, size_t n, uint8_t *out)
{
    if (begin > map->size || n > map->size - begin)
        return MDS_CORRUPT;
    if (!n)
        return MDS_OK;
    if (map->data)
        return read_mapped(map, begin, n, out);
    const int fd = descriptor(map->file);
    if (fd < 0)
        return MDS_SYSTEM;
    mds_status status = MDS_OK;
    while (n && status == MDS_OK) {
        const ssize_t got = pread(fd, out, n, (off_t)begin);
        if (got > 0) {
            out += got;
            begin += (uint64_t)got;
            n -= (size_t)got;
        } else if (got == 0) {
            status = MDS_SHRANK;
        } else if (errno != EINTR) {
            status = MDS_SYSTEM;
        }
    }
    give_back(map->file, fd);
    return status;
}

mds_status mds_map_read_runs(const mds_map *map, const int64_t *begins, size_t count, size_t n, int ask, uint8_t *out)
{
    mds_status status = MDS_OK;
    for (size_t k = 0; ask && k < count; k++)
        mds_map_advise(map, (uint64_t)begins[k], (uint64_t)begins[k] + n, MDS_ADVISE_WILLNEED);
    for (size_t k = 0; k < count && status == MDS_OK; k++) /* a negative begin is beyond any file */
        status = mds_map_read(map, (uint64_t)begins[k], n, out + k * n);
    return status;
}

mds_status mds_map_count_above(const mds_map *map, uint64_t begin, uint64_t count, uint32_t wanted, uint64_t *above)
{
    uint64_t low = 0, high = count;
    if (begin > map->size || count > (map->size - begin) / sizeof wanted)
        return MDS_CORRUPT;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        uint32_t word;
        const mds_status status = mds_map_read(map, begin + middle * sizeof word, sizeof word, (uint8_t *)&word);
        if (status != MDS_OK)
            return status;
        if (word > wanted)
            low = middle + 1;
        else
            high = middle;
    }
    *above = low;
    return MDS_OK;
}

/* Without a map, advise the system about its readahead of the file. */
static void advise_file(const mds_map *map, uint64_t begin, uint64_t end, mds_advice advice)
{
#ifdef POSIX_FADV_WILLNEED
    static const int values[] = {
        [MDS_ADVISE_RANDOM] = POSIX_FADV_RANDOM,
        [MDS_ADVISE_SEQUENTIAL] = POSIX_FADV_SEQUENTIAL,
        [MDS_ADVISE_WILLNEED] = POSIX_FADV_WILLNEED,
        [MDS_ADVISE_POPULATE] = POSIX_FADV_WILLNEED,
    };
    if (map->file && map->file->fd >= 0)
        posix_fadvise(map->file->fd, (off_t)begin, (off_t)(end - begin), values[advice]);
#else
    (void)map, (void)begin, (void)end, (void)advice;
#endif
}

void mds_map_advise(const mds_map *map, uint64_t begin, uint64_t end, mds_advice advice)
{
    static const int values[] = {
        [MDS_ADVISE_RANDOM] = MADV_RANDOM,
        [MDS_ADVISE_SEQUENTIAL] = MADV_SEQUENTIAL,
        [MDS_ADVISE_WILLNEED] = MADV_WILLNEED,
        [MDS_ADVISE_POPULATE] = MADV_POPULATE_READ,
    };
    if (end > map->size)
        end = map->size;
    if (begin >= end)
        return;
    if (!map->data) {
        advise_file(map, begin, end, advice);
        return;
    }
    /* Round the address, not the offset: a section of an index does not begin on a page. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)(map->data + begin) & ~(page - 1);
    const int saved = errno;
    madvise((void *)first, (uintptr_t)(map->data + end) - first, values[advice]);
    errno = saved;
}
