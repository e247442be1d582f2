/* libzstd.c - zstd's own library, if the system has it.
 *
 * It decodes whole frames from memory to memory, without a window and a second copy of the text. The codec of Python's
 * standard library cannot. bench/bench_compressed.py measures the gain. */
#include "mmapds.h"

#include <dlfcn.h>
#include <string.h>

#define OLDEST 10400 /* 1.4.0: the first whose format is RFC 8878 and whose decoder has been fuzzed for long */
#define FRAMES 64    /* to walk at a time */

/* Find a function; a pointer to data is not one to code in C, though dlsym returns both. */
static int find(void *handle, const char *name, void *function)
{
    void *found = dlsym(handle, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

int mds_libzstd_open(const char *name, mds_libzstd *library)
{
    unsigned (*version)(void);
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return 0;
    library->handle = handle;
    if (find(handle, "ZSTD_versionNumber", &version) && version() >= OLDEST &&
        find(handle, "ZSTD_createDCtx", &library->create_context) &&
        find(handle, "ZSTD_freeDCtx", &library->free_context) &&
        find(handle, "ZSTD_decompressDCtx", &library->decompress) && find(handle, "ZSTD_isError", &library->is_error))
        return 1;
    mds_libzstd_close(library);
    return 0;
}

void mds_libzstd_close(mds_libzstd *library)
{
    if (library->handle)
        dlclose(library->handle);
    *library = (mds_libzstd){.handle = NULL};
}

/* Return whether the data are valid frames, none of which claims more text than `size`. */
static int is_sound(const uint8_t *data, size_t n, uint64_t max_window, size_t size)
{
    const mds_map map = {.data = data, .size = n};
    mds_zstd state = {.at = 0};
    uint64_t begins[FRAMES], contents[FRAMES], left = size;
    while (state.at < n) {
        size_t count;
        if (mds_zstd_walk(&map, n, max_window, &state, begins, contents, FRAMES, &count) != MDS_ZSTD_OK)
            return 0;
        for (size_t k = 0; k < count; k++) {
            const uint64_t claimed = contents[k] == MDS_NONE ? 0 : contents[k];
            if (claimed > left)
                return 0;
            left -= claimed;
        }
    }
    return 1;
}

int mds_libzstd_decode(const mds_libzstd *library, void *context, const uint8_t *data, size_t n, uint64_t max_window,
                       uint8_t *out, size_t size)
{
    if (!is_sound(data, n, max_window, size))
        return 0;
    const size_t found = library->decompress(context, out, size, data, n);
    return !library->is_error(found) && found == size;
}
