"""Generate ULIDs: ids of 26 letters that are unique and sort by the time of their generation.

The package ``python-ulid`` does not fit: its ids decrease when the clock is set back, each takes
half as long again, and importing it takes 20 ms, a sixth of the time until the first call.
"""

from __future__ import annotations

import random
import threading
import time

__all__ = ["new_ulid"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford base 32, as in the ULID specification
_SHIFTS = range(125, -5, -5)  # the positions of the letters in the number, 5 bits each
_RANDOM_BITS = 80
_lock = threading.Lock()
_last = 0  # the last id as a number: the millisecond, followed by the random bits


def new_ulid() -> str:
    """Generate a ULID: sortable by time, and strictly increasing within this process."""
    global _last
    now = time.time_ns() // 1_000_000
    with _lock:
        if now > _last >> _RANDOM_BITS:
            _last = now << _RANDOM_BITS | random.getrandbits(_RANDOM_BITS)
        else:
            # Within the same millisecond, or after the clock was set back, increment the last id.
            _last += 1
        number = _last
    return "".join([_ALPHABET[number >> shift & 31] for shift in _SHIFTS])
