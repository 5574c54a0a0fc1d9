"""Count the tokens of a text from coefficients, without a vocabulary and without a network.

A text is split into words, numbers, punctuation and runs of other scripts, and each kind of piece
has an average number of tokens, measured on texts that were counted exactly. ``table.json`` has
the tables, ``scripts/train_tokens.py`` measures them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct


class TokenFrame(Struct, frozen=True):
    """How many tokens a request has in addition to its text, derived from recorded usage."""

    request: float
    message: float
    system: float  # tokens for each system message
    tools: float  # tokens added once if there are tools: some servers add instructions
    tool: float
    schema: float  # factor for the JSON of a tool: some servers rewrite it, some send it twice
    call: float  # tokens for each tool call with its result


class TokenTable(Struct, frozen=True):
    """The content of ``table.json``."""

    common_han: str  # Chinese characters that are common in vocabularies
    hardness: str  # the extra tokens of each pair of adjacent letters, one base-36 digit per pair
    # coefficients by family: hundredths of a token for each of _FEATURES, in order
    costs: dict[str, list[int]]
    bands: dict[str, float]  # the relative error on long texts, by family
    # The first character of each range, and the class of all characters in the range. The class
    # "" means that they are ignored: a carriage return is counted with the newline after it.
    blocks: list[tuple[int, str]]
    frames: dict[str, TokenFrame]  # by family


@cache
def read_table() -> TokenTable:
    """Return the content of ``table.json``, read once."""
    return msgspec.json.decode(
        Path(__file__).with_name("table.json").read_bytes(), type=TokenTable
    )


@cache
def _tables() -> tuple[_Classes, dict[tuple[str, str], int]]:
    """Load the class of each character, and the tokens that a letter pair adds to a word."""
    return _classes(read_table().common_han), _read_pairs(read_table().hardness)


@cache
def _costs(family: str) -> tuple[float, ...]:
    return tuple([cost / 100 for cost in read_table().costs[family]])


def count_tokens(texts: Iterable[str], family: str) -> float:
    """Return the estimated number of tokens of all the texts."""
    totals = [0] * len(_FEATURES)
    for text in texts:
        _count_features(text, totals)
    return math.fsum(total * cost for total, cost in zip(totals, _costs(family), strict=True))


# --- character classes of texts ----------------------------------------------------------------
# Every character is replaced by a sign for its class: all letters of a non-Latin script share one
# sign, and so do all digits. Text between two words is cached in this form across calls; the words
# themselves never are.

_EASTERN = ("devanagari", "indic", "hangul", "letter", "han", "kana", "thai")
_SCRIPTS = ("cyrillic", "greek", "caucasian", "hebrew", "arabic", *_EASTERN)
_SIGNS = ("emoji", "joiner", "wide", "symbol", "quote", "combining", "space", "control", "private")
# letters that are rarer in vocabularies than other letters of their script
_RARER = ("cyrillic2", "arabic2", "han2")
_LATIN = ("latin1", "latin2", "latin3")
_CODES = {
    name: chr(0xE000 + at) for at, name in enumerate(_SCRIPTS + _SIGNS + _RARER + _LATIN)
} | {"": ""}
_NAMES = {code: name.rstrip("2") for name, code in _CODES.items()}


class _Classes(dict[int, str]):
    """Map a code point to its character class; each entry is computed on first use."""

    def __missing__(self, point: int) -> str:
        blocks = read_table().blocks
        code = _CODES[blocks[bisect_right(blocks, point, key=itemgetter(0)) - 1][1]]
        if point < 0x10000:
            # The cache is bounded: one for all of Unicode would take a hundred megabytes.
            self[point] = code
        return code


def _classes(common_han: str) -> _Classes:
    table = _Classes({point: chr(point) for point in (9, 10, *range(0x20, 0x7F))})
    table |= dict.fromkeys(range(ord("0"), ord("9") + 1), "0")
    table |= dict.fromkeys(range(ord("А"), ord("я") + 1), _CODES["cyrillic"])  # Russian letters
    table |= dict.fromkeys(map(ord, "پچژگکی"), _CODES["arabic2"])  # Persian letters
    table |= dict.fromkeys(map(ord, common_han), _CODES["han"])
    return table


# --- splitting text into pieces, and counting their features -----------------------------------
# Split text roughly as real tokenizers do. No quantifier is nested, so matching takes linear time.

_ACCENTED = "".join(_CODES[name] for name in _LATIN)
_WORD = re.compile(rf" ?[A-Z]?[a-z{_ACCENTED}]+| ?[A-Z]+(?![a-z])")
_STRETCH = re.compile(rf"[^A-Za-z{_ACCENTED}]+")
_RUNS = [
    f"[{code}{_CODES.get(f'{name}2', '')}]"
    for name, code in _CODES.items()
    if name in _SCRIPTS + _SIGNS
]
_PIECE = re.compile(
    rf"0{{1,3}}|[\t\n ]*\n|{'|'.join(f' ?{run}+' for run in _RUNS)}| ?[!-/:-@\[-`{{-~]+\n*|[\t ]+"
)

# Words are grouped by how many tokens their letter pairs add. These are the lower limits of the
# groups, in eighths of a token.
_LEVELS = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 26, 32, 40)
_HARDEST = _LEVELS[-1]
_LEVEL = tuple(bisect_right(_LEVELS, score) for score in range(_HARDEST + 1))
_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_SINGLES = ".,()\"'-_/:=`*|<>{}[];#"
_FEATURES = (
    *[f"word {n}{where}" for where in ("", " after space") for n in range(len(_LEVELS) + 1)],
    *("hardest", "long", "open", "accented", *_LATIN, "capital", "capital after space"),
    *("capitals", "capitals after space", "capitals: letters", "capitals: beyond 3"),
    *("0", "00", "000"),
    *[f"{blank}{what}" for blank in "\n \t" for what in ("", "+", "+: characters")],
    *_SINGLES,
    *("other mark", "mark after space", "mark before word", "marks before word"),
    *("marks before \n", "marks before \n+"),
    *[f"{number} marks{where}" for where in ("", " after space") for number in (2, 3, 4)],
    *("marks: beyond 4", "same mark", "same mark: characters"),
    *[f"{name}{what}" for name in _SCRIPTS for what in ("", ": characters", ": beyond 4")],
    *[f"{name}{what}" for name in _SIGNS for what in ("", ": characters")],
    *_RARER,
)
_AT = {name: at for at, name in enumerate(_FEATURES)}
_SPACED_WORD = _AT["word 0 after space"]
_BEYOND = _AT["hardest"]
_LONG = _AT["long"]
_OPEN = _AT["open"]
_CAPITAL = _AT["capital"]
_CAPITALS = _AT["capitals"]
_LETTERS = _AT["capitals: letters"]
_Amounts: TypeAlias = tuple[tuple[int, int], ...]


def _count_features(text: str, totals: list[int]) -> None:
    """Count the words, numbers and other pieces of ``text``, and add the counts to ``totals``."""
    shape = text.translate(_tables()[0])
    _count_words(shape, totals)
    for stretch, times in Counter(_STRETCH.findall(shape)).items():
        if stretch != " ":  # the space before a word is part of the word
            # Only short runs of characters recur, so longer ones are not cached.
            for at, amount in _measure_short(stretch) if len(stretch) <= 32 else _measure(stretch):
                totals[at] += amount * times


def _count_words(shape: str, totals: list[int]) -> None:
    pair = _tables()[1].__getitem__
    for word, times in Counter(_WORD.findall(shape)).items():
        spaced = word[0] == " "
        letters = word[1:] if spaced else word
        length = len(letters)
        if letters.isupper():
            totals[_CAPITALS + spaced] += times
            totals[_LETTERS] += times * length
            if length > 3:
                totals[_LETTERS + 1] += times * (length - 3)
            continue
        lower = letters.lower()
        score = sum(map(pair, zip(" " + lower, lower + " ", strict=False)))
        if score > _HARDEST:
            totals[_BEYOND] += times * (score - _HARDEST)
            score = _HARDEST
        totals[_LEVEL[score] + (_SPACED_WORD if spaced else 0)] += times
        if length > 6:
            totals[_LONG] += times * (length - 6)
        # Words with an Italian, Finnish or Indonesian ending have more tokens than their letters
        # suggest.
        if length > 2 and lower[-1] in "aio":
            totals[_OPEN] += times
        if lower != letters:
            totals[_CAPITAL + spaced] += times
        if not letters.isascii():
            totals[_AT["accented"]] += times
            for name in _LATIN:
                totals[_AT[name]] += times * letters.count(_CODES[name])


def _measure(stretch: str) -> _Amounts:
    """Count the numbers, punctuation and other pieces of the text between two words."""
    amounts: Counter[str] = Counter()
    # The last space belongs to the following word.
    *pieces, last = _PIECE.findall(stretch[:-1] if stretch[-1] == " " else stretch)
    for piece, times in Counter(pieces).items():
        _measure_piece(piece, times, amounts)
    _measure_piece(last, 1, amounts)
    if stretch[-1] in _MARKS:
        amounts["mark before word" if last in _MARKS else "marks before word"] += last[0] != " "
    return tuple((_AT[name], amount) for name, amount in amounts.items())


_measure_short = lru_cache(maxsize=8192)(_measure)


def _measure_piece(piece: str, times: int, amounts: Counter[str]) -> None:
    first = piece[1] if piece[0] == " " and len(piece) > 1 else piece[0]
    if first == "0":
        amounts[piece] += times
    elif first in " \t\n":
        kind = "\t" if "\t" in piece else " "
        if piece[-1] == "\n":
            kind = "\n"
        if len(piece) > 1:
            amounts[f"{kind}+: characters"] += times * len(piece)
            kind += "+"
        amounts[kind] += times
    elif first in _NAMES:
        _measure_script(piece, _NAMES[first], times, amounts)
    else:
        _measure_marks(piece, times, amounts)


def _measure_script(piece: str, name: str, times: int, amounts: Counter[str]) -> None:
    length = len(piece) - (piece[0] == " ")
    amounts[name] += times
    amounts[f"{name}: characters"] += times * length
    if length > 4 and name in _SCRIPTS:
        amounts[f"{name}: beyond 4"] += times * (length - 4)
    if (rarer := f"{name}2") in _RARER:
        amounts[rarer] += times * piece.count(_CODES[rarer])


def _measure_marks(piece: str, times: int, amounts: Counter[str]) -> None:
    marks = piece.strip(" \n")
    after = " after space" if piece[0] == " " else ""
    if newlines := len(piece) - len(piece.rstrip("\n")):
        amounts["marks before \n" if newlines == 1 else "marks before \n+"] += times
    if len(marks) == 1:
        amounts[marks if marks in _SINGLES else "other mark"] += times
        amounts["mark after space"] += times * bool(after)
    elif len(marks) >= 3 and marks.count(marks[0]) == len(marks):
        amounts["same mark"] += times
        amounts["same mark: characters"] += times * len(marks)
    else:
        amounts[f"{min(len(marks), 4)} marks{after}"] += times
        amounts["marks: beyond 4"] += times * max(0, len(marks) - 4)


def _read_pairs(digits: str) -> dict[tuple[str, str], int]:
    """Return what each pair of adjacent letters adds to a word, in eighths of a token."""
    symbols = " abcdefghijklmnopqrstuvwxyz"
    values = iter(digits)
    hardness = {(a, b): int(next(values), 36) for a in (*symbols, "~") for b in (*symbols, "~")}
    everyone = {symbol: symbol for symbol in symbols} | dict.fromkeys(_ACCENTED, "~")
    return {(a, b): hardness[everyone[a], everyone[b]] for a in everyone for b in everyone}
