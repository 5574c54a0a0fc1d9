"""Generate ULIDs: ids of 26 letters that are unique and sort by the time of their generation.

The package ``python-ulid`` does not fit: its ids decrease when the clock is set back, each takes
half as long again, and importing it takes 20 ms, a sixth of the time until the first call.
"""

from __future__ import annotations

import random
import threading
import time
from functools import lru_cache

__all__ = ["new_ulid"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford base 32, as in the ULID specification
_LETTERS = (_ALPHABET * 8).encode()  # the letter of each byte: each letter is equally likely
_COUNT_BITS = 20  # the bits of the last four letters
_FIRST_COUNT = 1 << 15  # the first four letters that sort after "0" and any three
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
        if now <= _moment and not _count >> _COUNT_BITS:
            return _prefix + _encode(_count)
        _moment = now if now > _moment else _moment + 1
        noise = random.getrandbits(120).to_bytes(15, "big")  # not a secret
        letters = noise.translate(_LETTERS).decode()
        _prefix = _encode_start(_moment >> 20) + _encode(_moment) + letters[:12]
        _count = _FIRST_COUNT
        return f"{_prefix}0{letters[12:]}"


@lru_cache(maxsize=1)
def _encode_start(high: int) -> str:
    """Return the first six of the ten letters of a time, which are the same for 17 minutes."""
    return _encode(high >> 20)[2:] + _encode(high)


def _encode(number: int) -> str:
    """Return the last 20 bits of a number as four letters."""
    letters = _ALPHABET  # written out, since a loop took twice as long
    return (
        letters[number >> 15 & 31]
        + letters[number >> 10 & 31]
        + letters[number >> 5 & 31]
        + letters[number & 31]
    )
