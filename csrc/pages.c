/* pages.c - memory for blocks: whole pages from the system, which it gets back when they are freed.
 *
 * A process allocates and frees blocks all the time, in similar but different sizes. With malloc, they would leave gaps
 * that no later block fills. */
#define _GNU_SOURCE /* mremap */
#include "mmapds.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_POPULATE /* Linux: all pages at once, rather than one fault after another */
#define MAP_POPULATE 0
#endif

size_t mds_pages_round(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return size > SIZE_MAX - page ? SIZE_MAX / page * page : (size + page - 1) / page * page;
}

uint8_t *mds_pages_take(size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

void mds_pages_free(uint8_t *data, size_t size)
{
    munmap(data, size);
}

uint8_t *mds_pages_resize(uint8_t *data, size_t from, size_t to)
{
    if (from == to)
        return data;
#ifdef MREMAP_MAYMOVE
    void *moved = mremap(data, from, to, MREMAP_MAYMOVE);
    if (moved != MAP_FAILED)
        return moved;
#endif
    mds_pages_free(data, from);
    return mds_pages_take(to);
}
