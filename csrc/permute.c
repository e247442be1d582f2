/* permute.c - a keyed permutation of [0, n) in constant memory.
 *
 * Construction: write i as (left, right) in the box [0, a) x [0, b), where a and b are about sqrt(n) and a * b >= n.
 * Rounds alternate left += f(right) mod a and right += f(left) mod b, each of which can be undone, so the whole is a
 * bijection of the box whatever f is (a generalised Feistel network: J. Black and P. Rogaway, "Ciphers with Arbitrary
 * Finite Domains", CT-RSA 2002, method 3). A result outside [0, n) is permuted again until it falls inside (cycle
 * walking, method 2 of the same paper), which keeps it a bijection of [0, n); the box exceeds n by at most
 * about sqrt(n), so for large n this almost never happens.
 *
 * Rounds: four are enough against a distinguisher with few queries (Luby and Rackoff, 1988) when f is random; f here is
 * two multiplications and a shift, so we take eight, which the statistical tests pass with the margin that six
 * already have. Small n use a box of 16 x 16: a Feistel network over four points reaches few of their 24 orders.
 *
 * f works on 32 bits because a and b fit in them for every n < 2^63; eight lanes then share one AVX2 register. */
#include "kernels.h"

#define SMALLEST_SIDE 16
#define GOLDEN 0x9e3779b97f4a7c15ULL
#define LANES MDS_PERMUTE_LANES

static uint64_t mix64(uint64_t x) /* the finaliser of splitmix64 (Steele, Lea and Flood, 2014) */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

uint64_t mds_key(uint64_t seed, uint64_t epoch, uint64_t stream)
{
    uint64_t state = mix64(seed + GOLDEN);
    state = mix64((state ^ epoch) + GOLDEN);
    return mix64((state ^ stream) + GOLDEN);
}

uint64_t mds_draw(uint64_t key, uint64_t i, uint64_t n)
{
    return (uint64_t)((unsigned __int128)mix64(key + i * GOLDEN) * n >> 64);
}

static uint64_t ceil_sqrt(uint64_t n)
{
    uint64_t low = 1, high = UINT64_C(1) << 32;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (middle >= UINT64_C(1) << 32 || middle * middle >= n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void mds_permutation_init(mds_permutation *p, uint64_t n, uint64_t seed, uint64_t epoch, uint64_t stream)
{
    uint64_t a = ceil_sqrt(n);
    if (a < SMALLEST_SIDE)
        a = SMALLEST_SIDE;
    uint64_t b = (n + a - 1) / a;
    if (b < SMALLEST_SIDE)
        b = SMALLEST_SIDE;
    p->n = n;
    p->a = (uint32_t)a;
    p->b = (uint32_t)b;

    uint64_t state = mds_key(seed, epoch, stream);
    for (int r = 0; r < MDS_PERMUTE_ROUNDS; r++) {
        const uint64_t key = mix64(state += GOLDEN);
        p->keys[r][0] = (uint32_t)key;
        p->keys[r][1] = (uint32_t)(key >> 32);
    }
}

/* Uniform enough over [0, range) for any 32-bit range: the last multiplication leaves its entropy in the high bits,
 * which are those that the scaling takes. Multipliers: C. Wellons, "Prospecting for Hash Functions", 2018. */
static inline uint32_t round_function(uint32_t x, const uint32_t key[2], uint32_t range)
{
    x = (x ^ key[0]) * 0x7feb352dU;
    x ^= x >> 15;
    x = (x + key[1]) * 0x846ca68bU;
    return (uint32_t)((uint64_t)x * range >> 32);
}

/* (x + y) mod m for x, y < m < 2^32, where x + y may not fit 32 bits. */
static inline uint32_t add_mod(uint32_t x, uint32_t y, uint32_t m)
{
    const uint32_t room = m - y;
    return x >= room ? x - room : x + y;
}

static inline uint32_t sub_mod(uint32_t x, uint32_t y, uint32_t m)
{
    return x >= y ? x - y : x + (m - y);
}

static inline uint64_t once(const mds_permutation *p, uint64_t i)
{
    uint32_t left = (uint32_t)(i / p->b), right = (uint32_t)(i % p->b);
    for (int r = 0; r < MDS_PERMUTE_ROUNDS; r += 2) {
        left = add_mod(left, round_function(right, p->keys[r], p->a), p->a);
        right = add_mod(right, round_function(left, p->keys[r + 1], p->b), p->b);
    }
    return (uint64_t)left * p->b + right;
}

static inline uint64_t once_inverse(const mds_permutation *p, uint64_t value)
{
    uint32_t left = (uint32_t)(value / p->b), right = (uint32_t)(value % p->b);
    for (int r = MDS_PERMUTE_ROUNDS - 2; r >= 0; r -= 2) {
        right = sub_mod(right, round_function(left, p->keys[r + 1], p->b), p->b);
        left = sub_mod(left, round_function(right, p->keys[r], p->a), p->a);
    }
    return (uint64_t)left * p->b + right;
}

uint64_t mds_permute(const mds_permutation *p, uint64_t i)
{
    do
        i = once(p, i);
    while (i >= p->n);
    return i;
}

uint64_t mds_permute_inverse(const mds_permutation *p, uint64_t value)
{
    do
        value = once_inverse(p, value);
    while (value >= p->n);
    return value;
}

/* The rounds over LANES positions at once, written so that the compiler keeps the lanes in vector registers. Splitting
 * and walking stay scalar: the first needs a 64-bit division, the second is rare. */
static inline __attribute__((always_inline)) void rounds(const mds_permutation *p, uint32_t *left, uint32_t *right)
{
    for (int r = 0; r < MDS_PERMUTE_ROUNDS; r += 2) {
        for (int k = 0; k < LANES; k++)
            left[k] = add_mod(left[k], round_function(right[k], p->keys[r], p->a), p->a);
        for (int k = 0; k < LANES; k++)
            right[k] = add_mod(right[k], round_function(left[k], p->keys[r + 1], p->b), p->b);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void mds_permute_rounds_avx2(const mds_permutation *p, uint32_t *left, uint32_t *right)
{
    rounds(p, left, right);
}
#endif

void mds_permute_rounds_portable(const mds_permutation *p, uint32_t *left, uint32_t *right)
{
    rounds(p, left, right);
}

/* Permute the LANES positions whose halves are given. */
static inline void finish(const mds_permutation *p, const uint32_t *left, const uint32_t *right, int64_t *out)
{
    for (int k = 0; k < LANES; k++) {
        uint64_t value = (uint64_t)left[k] * p->b + right[k];
        if (__builtin_expect(value >= p->n, 0))
            value = mds_permute(p, value);
        out[k] = (int64_t)value;
    }
}

void mds_permute_range(const mds_kernels *kernels, const mds_permutation *p, uint64_t first, int64_t step, size_t count,
                       int64_t *out)
{
    uint32_t left[LANES], right[LANES];
    size_t done = 0;
    for (; done + LANES <= count; done += LANES) {
        for (int k = 0; k < LANES; k++) {
            const uint64_t i = first + (uint64_t)((int64_t)(done + (size_t)k) * step);
            left[k] = (uint32_t)(i / p->b);
            right[k] = (uint32_t)(i % p->b);
        }
        kernels->permute_rounds(p, left, right);
        finish(p, left, right, out + done);
    }
    for (; done < count; done++)
        out[done] = (int64_t)mds_permute(p, first + (uint64_t)((int64_t)done * step));
}

void mds_permute_array(const mds_kernels *kernels, const mds_permutation *p, const int64_t *in, size_t count,
                       int inverse, int64_t *out)
{
    uint32_t left[LANES], right[LANES];
    size_t done = 0;
    for (; !inverse && done + LANES <= count; done += LANES) {
        for (int k = 0; k < LANES; k++) {
            left[k] = (uint32_t)((uint64_t)in[done + (size_t)k] / p->b);
            right[k] = (uint32_t)((uint64_t)in[done + (size_t)k] % p->b);
        }
        kernels->permute_rounds(p, left, right);
        finish(p, left, right, out + done);
    }
    for (; done < count; done++) {
        const uint64_t i = (uint64_t)in[done];
        out[done] = (int64_t)(inverse ? mds_permute_inverse(p, i) : mds_permute(p, i));
    }
}

void mds_draw_many(uint64_t key, uint64_t n, const int64_t *positions, size_t count, int64_t *out)
{
    for (size_t k = 0; k < count; k++)
        out[k] = (int64_t)mds_draw(key, (uint64_t)positions[k], n);
}
