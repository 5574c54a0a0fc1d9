"""ULIDs: their letters, their order, and their behaviour when the clock stands still."""

import threading

import pytest

from dragoman.messages import ulid
from dragoman.messages.ulid import new_ulid

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
RANDOM = 2**80  # the number of ids of one millisecond
COUNTS = 2**20  # how many of them begin with the same letters


def read(text: str) -> int:
    number = 0
    for letter in text:
        number = number * 32 + ALPHABET.index(letter)
    return number


def write(number: int, length: int) -> str:
    return "".join([ALPHABET[number >> 5 * place & 31] for place in reversed(range(length))])


def set_time(patch: pytest.MonkeyPatch, now: int, *, last: int = 0) -> None:
    """Set the clock to a millisecond, and the number of the id that was generated last."""
    patch.setattr(ulid.time, "time_ns", lambda: now * 1_000_000)
    patch.setattr(ulid, "_moment", last // RANDOM)
    patch.setattr(ulid, "_prefix", write(last // COUNTS, 22))
    patch.setattr(ulid, "_count", last % COUNTS)


def test_ulids_have_26_characters_and_sort_by_time() -> None:
    ids = [new_ulid() for _ in range(5000)]
    assert {len(each) for each in ids} == {26}
    assert set("".join(ids)) <= set(ALPHABET)
    assert ids == sorted(set(ids))


def test_ulid_begins_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, 1_469_918_176_385)
    assert new_ulid().startswith("01ARYZ6S41")  # the example from the ULID specification


@pytest.mark.parametrize("now", [5, 4])  # the same millisecond, and a clock that was set back
@pytest.mark.parametrize("bits", [0, 7, 31, 1023, COUNTS - 3, RANDOM - 3])
def test_next_ulid_is_greater_by_one(now: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_time(monkeypatch, now, last=5 * RANDOM + bits)
    expected = [5 * RANDOM + bits + 1, 5 * RANDOM + bits + 2]
    assert [read(new_ulid()), read(new_ulid())] == expected


@pytest.mark.parametrize(
    ("now", "moment"), [(5, 6), (4, 6), (6, 6), (9, 9)], ids=["same", "back", "next", "later"]
)
def test_ulid_that_cannot_be_incremented_continues_in_a_later_millisecond(
    now: int, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_time(monkeypatch, now, last=6 * RANDOM - 1)
    following = [read(new_ulid()) for _ in range(3)]
    assert {number // RANDOM for number in following} == {moment}
    assert following == sorted(set(following))


def test_new_millisecond_starts_a_new_random_ulid(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = set()
    for moment in range(6, 11):
        set_time(monkeypatch, moment, last=5 * RANDOM)
        number = read(new_ulid())
        assert number // RANDOM == moment
        ends.add(number % RANDOM)
    assert len(ends) == 5
    assert ends.isdisjoint({0, 1})  # not the numbers that follow the last id


def test_random_letters_of_ulids_use_the_alphabet_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = ""
    for moment in range(6, 1006):
        set_time(monkeypatch, moment)
        letters += (made := new_ulid())[10:22] + made[23:]  # the first of its millisecond has a 0
    counts = [letters.count(letter) for letter in ALPHABET]
    assert max(counts) < 2 * min(counts)


def test_ulids_are_unique_across_threads() -> None:
    made: list[list[str]] = []

    def mint() -> None:
        made.append([new_ulid() for _ in range(2000)])

    threads = [threading.Thread(target=mint) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == sorted(ids) for ids in made)
    assert len({each for ids in made for each in ids}) == 8000
