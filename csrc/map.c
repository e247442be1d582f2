/* map.c - read-only maps that keep no descriptor, so that ten thousand shards can be open at once. */
#include "mmapds.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14; elsewhere pages are mapped as they are touched */
#define MADV_POPULATE_READ MADV_NORMAL
#endif

#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

mds_status mds_map_open(const char *path, mds_map *map)
{
    /* O_NONBLOCK: opening a FIFO must fail below, not wait for a writer. It means nothing to a regular file. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return MDS_SYSTEM;

    mds_status status = MDS_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = MDS_SYSTEM;
    } else if (!S_ISREG(st.st_mode)) {
        status = MDS_NOT_FILE;
    } else {
        *map = (mds_map){NULL, (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
        if (map->size) {
            void *data = mmap(NULL, (size_t)map->size, PROT_READ, MAP_SHARED, fd, 0);
            if (data == MAP_FAILED)
                status = MDS_SYSTEM;
            else
                map->data = data;
        }
    }
    const int saved = errno;
    close(fd);
    errno = saved;
    return status;
}

void mds_map_close(mds_map *map)
{
    if (map->data)
        munmap((void *)map->data, (size_t)map->size);
    *map = (mds_map){NULL, 0, 0};
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
    /* Round the address, not the offset: a section of an index does not begin on a page. */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)(map->data + begin) & ~(page - 1);
    const int saved = errno;
    madvise((void *)first, (uintptr_t)(map->data + end) - first, values[advice]);
    errno = saved;
}
