/* inflate.h - the content of gzip members, and where decoding can begin: the part of the C core's public face that
 * inflate.c answers.
 *
 * mmapds.h includes it. */
#ifndef MMAPDS_INFLATE_H
#define MMAPDS_INFLATE_H

#include "mmapds.h"

#define MDS_INFLATE_WINDOW 32768 /* bytes that a match reaches back at most */
#define MDS_INFLATE_SLACK 272    /* bytes after the content that a call may overwrite */

typedef enum {
    MDS_INFLATE_FULL = 0,   /* `out` is full */
    MDS_INFLATE_BLOCK,      /* the next block of the member begins at state->at */
    MDS_INFLATE_MEMBER,     /* the member has ended: state->crc and state->size come from its trailer */
    MDS_INFLATE_END,        /* the file has ended, perhaps after zeros */
    MDS_INFLATE_CUT,        /* the file ends inside a member */
    MDS_INFLATE_NOT_MEMBER, /* bytes that do not begin a member */
    MDS_INFLATE_DAMAGED,    /* a malformed block */
} mds_inflate_status;

#define MDS_INFLATE_LITERALS (2048 + 288 * 16) /* entries of a table by 11 bits, with longer codes behind */
#define MDS_INFLATE_DISTANCES (256 + 32 * 128) /* the same by 8 bits */

/* HowTo: begin with all zeros and an empty `out`, and call until the status is MDS_INFLATE_END, or a failure:
 *
 *     status = mds_inflate(&map, &state, out, &filled, enough, room);
 *     use what has come, out[before..filled), whatever the status
 *     move the last MDS_INFLATE_WINDOW bytes of out[0..filled) to the front, where less than MDS_INFLATE_SLACK are left
 *
 * The caller compares the checksums of members. */
typedef struct {
    uint64_t at;      /* the bit of the file that is read next */
    uint64_t content; /* bytes of content of the member so far */
    uint64_t stored;  /* bytes left of a stored block */
    uint32_t crc;     /* from the trailer of the last member */
    uint32_t size;
    uint8_t inside;    /* of what: see inflate.c */
    uint8_t is_last;   /* whether that is the last block of its member */
    uint8_t has_fixed; /* whether the tables are those of fixed codes */
    uint32_t literals[MDS_INFLATE_LITERALS], distances[MDS_INFLATE_DISTANCES];
} mds_inflate_state;

/* Append content to out[0..*filled), whose last bytes are the content before it, up to MDS_INFLATE_WINDOW of them. It
 * has `room` bytes. Stops at the end of a member, and at the end of a block once `enough` bytes have come. */
mds_inflate_status mds_inflate(const mds_map *map, mds_inflate_state *state, uint8_t *out, size_t *filled,
                               size_t enough, size_t room);

#endif
