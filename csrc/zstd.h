/* zstd.h - the frames of a zstd file: the part of the C core's public face that zstd.c answers.
 *
 * mmapds.h includes it. */
#ifndef MMAPDS_ZSTD_H
#define MMAPDS_ZSTD_H

#include "mmapds.h"

typedef enum {
    MDS_ZSTD_OK = 0,
    MDS_ZSTD_CUT,        /* the file ends inside a frame, skippable or not */
    MDS_ZSTD_NOT_FRAME,  /* bytes that do not begin a frame */
    MDS_ZSTD_RESERVED,   /* a reserved bit or type of block */
    MDS_ZSTD_DICTIONARY, /* the frame needs a dictionary: state.found is its number */
    MDS_ZSTD_WINDOW,     /* the window is larger than allowed: state.found bytes */
    MDS_ZSTD_CONTENT,    /* the header claims a size of text that the blocks cannot hold: state.found bytes */
} mds_zstd_status;

/* HowTo: begin with all zeros, and call until the status is not MDS_ZSTD_OK or state.at reaches `end`:
 *
 *     status = mds_zstd_walk(&map, end, max_window, &state, begins, contents, capacity, &count);
 *     use begins[0..count) and contents[0..count), whatever the status
 *
 * The state is all that the caller keeps; any state is safe. After a failure, state.frame is the frame that cannot be
 * read. */
typedef struct {
    uint64_t at;      /* where the walk is: at a frame, or at a block of the open one */
    uint64_t frame;   /* where the open frame begins, or the last one */
    uint64_t content; /* bytes of its text by its header; MDS_NONE if unknown */
    uint64_t room;    /* bytes of text that its blocks so far can hold, at most */
    uint64_t has_checksum;
    uint64_t is_open; /* whether the walk is inside it */
    uint64_t found;
} mds_zstd;

/* Write the begins of up to `capacity` frames in [state->at, end), and the sizes of their text by their headers
 * (MDS_NONE if unknown). Skips skippable frames. A walk may stop inside a frame, and the next call continues there.
 * Each written frame ends inside the map. */
mds_zstd_status mds_zstd_walk(const mds_map *map, uint64_t end, uint64_t max_window, mds_zstd *state, uint64_t *begins,
                              uint64_t *contents, size_t capacity, size_t *count);

#endif
