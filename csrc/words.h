/* words.h - arrays of unsigned integers of 4 or 8 bytes, as lengths and record numbers lie in an index. Private. */
#ifndef MMAPDS_WORDS_H
#define MMAPDS_WORDS_H

#include <stdint.h>

static inline uint64_t mds_word_at(const void *words, unsigned width, uint64_t i)
{
    return width == 4 ? ((const uint32_t *)words)[i] : ((const uint64_t *)words)[i];
}

#endif
