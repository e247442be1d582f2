"""The powers of ten in csrc/powers.h: `python -m tests.support.powers > csrc/powers.h` writes the file."""

SMALLEST, LARGEST = -342, 308
"""Exponents beyond which every number of up to 19 digits rounds to 0 or overflows."""
SMALL = -27
"""The smallest exponent at which 5^-exponent has 64 bits or fewer, so that a quotient by it can be exact."""
_HEAD = """\
/* powers.h - 10^q as a fraction of 128 bits, for q from -342 to 308. Written by tests/support/powers.py.
 *
 * powers[q + 342] holds the high and the low 64 bits of 10^q / 2^e, for the e by which the highest bit is set. They are
 * rounded up where q is -27 to -1, and cut off elsewhere, as the proof of the algorithm in decimal.c wants them. */
#ifndef MMAPDS_POWERS_H
#define MMAPDS_POWERS_H

#include <stdint.h>

#define MDS_SMALLEST_POWER (%d)
#define MDS_LARGEST_POWER %d

static const uint64_t powers[][2] = {
"""


def power(exponent: int) -> int:
    """Return 10^exponent as an integer of 128 bits, which is it times a power of two, or nearly."""
    if exponent >= 0:
        exact = 5**exponent
        return exact << 128 >> exact.bit_length()
    divisor = 5**-exponent
    quotient = (1 << 2 * divisor.bit_length() + 128) // divisor
    return (quotient >> quotient.bit_length() - 128) + (exponent >= SMALL)


def header() -> str:
    """Return the text of csrc/powers.h."""
    rows = [f"{{{p >> 64:#018x}, {p % 2**64:#018x}}}" for p in map(power, range(SMALLEST, LARGEST + 1))]
    lines = [f"    {', '.join(rows[k : k + 2])}," for k in range(0, len(rows), 2)]
    return _HEAD % (SMALLEST, LARGEST) + "\n".join(lines) + "\n};\n\n#endif"


if __name__ == "__main__":
    print(header())
