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
_LETTERS = (_ALPHABET * 8).encode()  # the letter of each byte: each letter is equally likely
# The positions of the bits of each letter: ten letters are the millisecond, the last four a count.
_TIME_SHIFTS = range(45, -5, -5)
_COUNT_SHIFTS = range(15, -5, -5)
_COUNT_BITS = 20
_lock = threading.Lock()
_moment = 0  # the millisecond of the last id
_prefix = ""  # the first 22 letters of all ids of that millisecond
_count = 0


def new_ulid() -> str:
    """Generate a ULID: sortable by time, and strictly increasing within this process."""
    global _moment, _prefix, _count
    now = time.time_ns() // 1_000_000
    with _lock:
        # Within the same millisecond, or after the clock was set back, increment the last id.
        _count += 1
        if now > _moment or _count >> _COUNT_BITS:
            _moment = max(now, _moment + 1)
            letters = random.randbytes(12).translate(_LETTERS).decode()  # noqa: S311 - not a secret
            _prefix = _encode(_moment, _TIME_SHIFTS) + letters
            _count = random.getrandbits(_COUNT_BITS - 1)
        return _prefix + _encode(_count, _COUNT_SHIFTS)


def _encode(number: int, shifts: range) -> str:
    return "".join([_ALPHABET[number >> shift & 31] for shift in shifts])
