/* libzstd.h - zstd's own library, where the system has it: the part of the C core's public face that libzstd.c answers.
 *
 * mmapds.h includes it. */
#ifndef MMAPDS_LIBZSTD_H
#define MMAPDS_LIBZSTD_H

#include "mmapds.h"

/* Functions of the library, all of its stable interface. A context is for one thread at a time. */
typedef struct {
    void *handle;
    void *(*create_context)(void);
    size_t (*free_context)(void *context);
    size_t (*decompress)(void *context, void *out, size_t room, const void *data, size_t n);
    unsigned (*is_error)(size_t found);
} mds_libzstd;

/* Load the library from a file name; 0 if it or one of the functions is missing. */
int mds_libzstd_open(const char *name, mds_libzstd *library);
void mds_libzstd_close(mds_libzstd *library);

/* Decode frames one after another, data[0..n), which hold `size` bytes of text, into `out`. Returns 0 if they hold
 * another size, or if mds_zstd_walk refuses a frame. So the library gets only checked frames of the current format,
 * without dictionaries, and with windows up to `max_window`. */
int mds_libzstd_decode(const mds_libzstd *library, void *context, const uint8_t *data, size_t n, uint64_t max_window,
                       uint8_t *out, size_t size);

#endif
