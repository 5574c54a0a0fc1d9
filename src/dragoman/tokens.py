"""Token counting: estimate the length of a request before it is sent, without a network.

``estimate_request`` and ``estimate_text`` work from coefficients: a text is split into words,
numbers, punctuation and runs of other scripts, and each kind of piece has an average number of
tokens, measured on texts that were counted exactly. The *family* names the vocabulary that the
coefficients were measured with; the catalogue has the family of each model. ``exact_text`` counts
with a real vocabulary, if the extra ``dragoman[tokens]`` is installed. The measured errors of the
estimates are in ``docs/concepts/tokens.md``.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .media_tokens import (
    ENCRYPTED_PER_TOKEN,
    estimate_audio,
    estimate_document,
    estimate_image,
    read_inline,
)
from .messages import (
    Assistant,
    Audio,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)

__all__ = [
    "FAMILIES",
    "Calibration",
    "Estimate",
    "estimate_input_tokens",
    "estimate_request",
    "estimate_text",
    "exact_text",
]


class Estimate(Struct, frozen=True):
    """A number of tokens, the method of counting, and the expected error.

    ``method`` is ``heuristic``, or ``exact:<vocabulary>`` where text was counted with a
    vocabulary; ``calibrated`` is appended by ``Calibration``. ``error_band`` is a fraction: nine
    in ten held-out texts were within ``tokens`` times ``1 ± error_band``.
    """

    tokens: int
    method: str
    family: str
    error_band: float


# --- character classes of texts ----------------------------------------------------------------
# Every character is replaced by a sign for its class: all letters of a non-Latin script share one
# sign, and so do all digits. Text between two words is cached in this form across calls; the words
# themselves never are.

# The first character of each range, and the class of all characters in the range. The class ""
# means that they are ignored: a carriage return is counted with the newline after it.
_BLOCKS = (
    (0x00, "control"), (0x0D, ""), (0x0E, "control"), (0xA0, "space"), (0xA1, "quote"),
    (0xAA, "latin1"),
    (0xAB, "quote"), (0xB5, "latin1"), (0xB6, "quote"), (0xBA, "latin1"), (0xBB, "quote"),
    (0xC0, "latin1"),
    (0xD7, "quote"), (0xD8, "latin1"), (0xF7, "quote"), (0xF8, "latin1"), (0x100, "latin2"),
    (0x2B0, "combining"),
    (0x370, "greek"), (0x400, "cyrillic2"), (0x530, "caucasian"), (0x590, "hebrew"),
    (0x600, "arabic"),
    (0x700, "letter"), (0x750, "arabic"), (0x780, "letter"), (0x8A0, "arabic"),
    (0x900, "devanagari"),
    (0x980, "indic"), (0xE00, "thai"), (0xE80, "letter"), (0x10A0, "caucasian"),
    (0x1100, "hangul"),
    (0x1200, "letter"), (0x1780, "thai"), (0x1800, "letter"), (0x1E00, "latin3"),
    (0x1F00, "greek"), (0x2000, "quote"),
    (0x200B, "joiner"), (0x2010, "quote"), (0x2070, "symbol"), (0x20D0, "joiner"),
    (0x2100, "symbol"),
    (0x2600, "emoji"), (0x27C0, "symbol"), (0x2C00, "letter"), (0x2E80, "wide"), (0x3040, "kana"),
    (0x3100, "han2"),
    (0x3130, "hangul"), (0x3190, "han2"), (0x31F0, "kana"), (0x3200, "wide"), (0x3400, "han2"),
    (0x4DC0, "wide"),
    (0x4E00, "han2"), (0xA000, "letter"), (0xAC00, "hangul"), (0xD7B0, "letter"),
    (0xD800, "private"),
    (0xF900, "han2"), (0xFB00, "letter"), (0xFB1D, "hebrew"), (0xFB50, "arabic"),
    (0xFE00, "joiner"), (0xFE10, "wide"),
    (0xFE70, "arabic"), (0xFEFF, "joiner"), (0xFF00, "wide"), (0xFF66, "kana"), (0xFFA0, "hangul"),
    (0xFFE0, "wide"),
    (0x10000, "letter"), (0x1F000, "emoji"), (0x20000, "han2"), (0xE0000, "joiner"),
    (0xE1000, "private"),
)  # fmt: skip
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
_STARTS = [start for start, _ in _BLOCKS]


class _Classes(dict[int, str]):
    """Map a code point to its character class; each entry is computed on first use."""

    def __missing__(self, point: int) -> str:
        code = _CODES[_BLOCKS[bisect_right(_STARTS, point) - 1][1]]
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
    *(
        f"word {level}{where}"
        for where in ("", " after space")
        for level in range(len(_LEVELS) + 1)
    ),
    *("hardest", "long", "open", "accented", *_LATIN, "capital", "capital after space"),
    *("capitals", "capitals after space", "capitals: letters", "capitals: beyond 3"),
    *(
        "0",
        "00",
        "000",
        "\n",
        "\n+",
        "\n+: characters",
        " ",
        " +",
        " +: characters",
        "\t",
        "\t+",
        "\t+: characters",
    ),
    *_SINGLES,
    *(
        "other mark",
        "mark after space",
        "mark before word",
        "marks before word",
        "marks before \n",
        "marks before \n+",
    ),
    *(f"{number} marks{where}" for where in ("", " after space") for number in (2, 3, 4)),
    *("marks: beyond 4", "same mark", "same mark: characters"),
    *(f"{name}{what}" for name in _SCRIPTS for what in ("", ": characters", ": beyond 4")),
    *(f"{name}{what}" for name in _SIGNS for what in ("", ": characters")),
    *_RARER,
)
_AT = {name: at for at, name in enumerate(_FEATURES)}
_SPACED_WORD = _AT["word 0 after space"]
_BEYOND, _LONG, _OPEN, _CAPITAL = _AT["hardest"], _AT["long"], _AT["open"], _AT["capital"]
_CAPITALS, _LETTERS = _AT["capitals"], _AT["capitals: letters"]
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
            _count_accents(letters, times, totals)


def _count_accents(letters: str, times: int, totals: list[int]) -> None:
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


# --- the fitted table of token costs -----------------------------------------------------------

FAMILIES = (
    "default", "claude", "claude-4.7", "o200k", "cl100k", "llama3", "qw152k", "ds129k", "tekken",
    "gemini", "glm", "km164k",
)  # fmt: skip
"""The vocabulary families that ``family=`` accepts; the coefficients of ``default`` are the
medians of the others."""


class _Table(Struct, frozen=True):
    """The coefficients in ``tokens.json``, which ``scripts/train_tokens.py`` writes."""

    common_han: str  # Chinese characters that are common in vocabularies
    hardness: str  # the extra tokens of each pair of adjacent letters, one base-36 digit per pair
    # coefficients by family: hundredths of a token for each of _FEATURES, in order
    costs: dict[str, list[int]]
    bands: dict[str, float]  # the relative error on long texts, by family


@cache
def _table() -> _Table:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Table)


@cache
def _tables() -> tuple[_Classes, dict[tuple[str, str], int]]:
    """Load the class of each character, and the tokens that a letter pair adds to a word."""
    return _classes(_table().common_han), _read_pairs(_table().hardness)


@cache
def _costs(family: str) -> tuple[float, ...]:
    return tuple([cost / 100 for cost in _table().costs[family]])


def _known(family: str) -> str:
    if family not in FAMILIES:
        raise ValueError(f"family: {family!r} is not one of {', '.join(FAMILIES)}")
    return family


# --- token estimates of texts ------------------------------------------------------------------


def estimate_text(
    text: str, family: str = "default", *, vocabulary: str | None = None
) -> Estimate:
    """Estimate the tokens of a text; with ``vocabulary``, count exactly (``dragoman[tokens]``)."""
    tokens = _count([text], _known(family), vocabulary)
    method = f"exact:{vocabulary}" if vocabulary else "heuristic"
    return Estimate(round(tokens), method, family, 0.0 if vocabulary else _band(tokens, family))


def _count(texts: Iterable[str], family: str, vocabulary: str | None) -> float:
    if vocabulary:
        return float(sum(exact_text(text, vocabulary) for text in texts))
    totals = [0] * len(_FEATURES)
    for text in texts:
        _count_features(text, totals)
    return math.fsum(total * cost for total, cost in zip(totals, _costs(family), strict=True))


def _band(tokens: float, family: str) -> float:
    """Return the error band of a text; it is wider for short texts."""
    return round(math.hypot(_table().bands[family], 0.8 / math.sqrt(max(tokens, 1))), 3)


def exact_text(text: str, vocabulary: str) -> int:
    """Count the tokens of a text with a vocabulary of ``splintr-rs``, such as ``o200k_base``.

    Names of special tokens in the text count as ordinary text, and no tokens are added around it.
    """
    # A lone surrogate is sent, and therefore counted, as the replacement character.
    sendable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return len(_vocabulary(vocabulary).encode_ordinary(sendable))


@lru_cache(maxsize=4)
def _vocabulary(name: str) -> Any:
    try:
        # splintr is an optional dependency with 37 MB of vocabularies, imported on first use
        splintr = importlib.import_module("splintr")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "counting tokens exactly needs splintr-rs: pip install 'dragoman[tokens]'",
            name="splintr",
        ) from None
    try:
        return splintr.Tokenizer.from_pretrained(name)
    except ValueError as error:
        raise ValueError(f"vocabulary: {error}") from None


# --- token estimates of requests ---------------------------------------------------------------


class _Frame(Struct, frozen=True):
    """How many tokens a request has in addition to its text, derived from recorded usage."""

    request: float
    message: float
    system: float  # tokens for each system message
    tools: float  # tokens added once if there are tools: some servers add instructions
    tool: float
    schema: float  # factor for the JSON of a tool: some servers rewrite it, some send it twice
    call: float  # tokens for each tool call with its result


_FRAMES = {
    "default": _Frame(3, 4, 3, 80, 8, 1.1, 20),
    "claude": _Frame(4, 3, 1, 492, 20, 1, 40),
    "claude-4.7": _Frame(4, 2, 1, 345, 30, 1, 45),
    "o200k": _Frame(3, 4, 4, 22, 1, 0.5, 9),
    "cl100k": _Frame(3, 4, 4, 10, 0, 0.9, 8),
    "llama3": _Frame(25, 5, 5, 160, 15, 1.1, 20),
    "qw152k": _Frame(3, 5, 5, 84, 10, 1.4, 12),
    "ds129k": _Frame(2, 2, 0, 215, 0, 1.35, 38),
    "tekken": _Frame(1, 2, 2, 0, 17, 1.2, 8),
    "gemini": _Frame(0, 1, 1, 0, 0, 1.1, 25),
    "glm": _Frame(3, 2, 2, 102, 4, 1.35, 14),
    "km164k": _Frame(3, 4, 4, 0, 6, 1.5, 22),
}


class _Contents(Struct):
    """The contents of a request, grouped by how they are counted."""

    texts: list[str]
    schemas: list[str]
    pictures: float = 0
    documents: float = 0
    frame: float = 0


def estimate_request(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = (),
    system_prompt: str | None = None,
    *,
    family: str = "default",
    vocabulary: str | None = None,
) -> Estimate:
    """Estimate the input tokens of a request: messages, tools, media, and the server's template.

    ``system_prompt`` is counted as one more system message. With ``vocabulary`` the text is
    counted exactly; template, media and documents remain estimates, and ``error_band`` covers
    them.
    """
    contents = _sort_contents(messages, tools or (), system_prompt, _known(family))
    text = _count(contents.texts, family, vocabulary)
    schemas = _count(contents.schemas, family, vocabulary) * _FRAMES[family].schema
    tokens = text + schemas + contents.frame + contents.pictures + contents.documents
    doubt = (
        text * (0.0 if vocabulary else _band(text, family))
        + (schemas + contents.frame) * _FRAME_BAND
        + contents.pictures * _PICTURE_BAND
        + contents.documents * _DOCUMENT_BAND
    )
    method = f"exact:{vocabulary}" if vocabulary else "heuristic"
    return Estimate(math.ceil(tokens), method, family, round(doubt / tokens, 3) if tokens else 0.0)


def estimate_input_tokens(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = (),
    system_prompt: str | None = None,
    *,
    family: str = "default",
) -> int:
    """Return the estimated input tokens as an integer, which the adapter contract requires."""
    return estimate_request(messages, tools, system_prompt, family=family).tokens


def _sort_contents(
    messages: Sequence[Message], tools: Sequence[Tool], system_prompt: str | None, family: str
) -> _Contents:
    frame = _FRAMES[family]
    contents = _Contents(
        [], [_as_json([tool.name, tool.description, tool.parameters]) for tool in tools]
    )
    if messages or tools or system_prompt:
        contents.frame = frame.request + len(tools) * frame.tool + (frame.tools if tools else 0)
    if system_prompt:
        contents.texts.append(system_prompt)
        contents.frame += frame.system
    # Thinking is sent back within its turn; servers drop the thinking of earlier turns.
    turn = max((at for at, message in enumerate(messages) if type(message) is User), default=-1)
    for at, message in enumerate(messages):
        if not isinstance(message, System | User | Assistant | ToolResult):
            raise TypeError(
                f"messages[{at}]: expected System, User, Assistant or ToolResult, not "
                f"{type(message).__name__}"
            )
        contents.frame += frame.system if type(message) is System else frame.message
        for number, block in enumerate(
            [message.content] if isinstance(message.content, str) else message.content
        ):
            if not _sort_block(block, contents, family, current=at > turn):
                raise TypeError(
                    f"messages[{at}].content[{number}]: {type(block).__name__} is not a content "
                    "block"
                )
    return contents


def _sort_block(block: Any, contents: _Contents, family: str, *, current: bool) -> bool:
    match block:
        case str() as text:
            contents.texts.append(text)
        case Text(text=text):
            contents.texts.append(text)
        case Thinking(text=text):
            if current:
                contents.texts.append(text)
        case RedactedThinking(data=data):
            contents.documents += current * len(data) / ENCRYPTED_PER_TOKEN
        case ToolCall(name=name, arguments=arguments):
            contents.frame += _FRAMES[family].call
            contents.texts += [name, _as_json(arguments)]
        case Opaque(data=data):
            contents.texts.append(_as_json(data))
        case Image():
            contents.pictures += estimate_image(block, family)
        case Document():
            _sort_document(block, contents)
        case Audio():
            contents.documents += estimate_audio(block)
        case _:
            return False
    return True


def _as_json(value: Any) -> str:
    """Return a value as JSON.

    This uses ``json``, because msgspec rejects the lone surrogates that models sometimes write.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# the expected errors of parts of a request that are not text, as fractions
_FRAME_BAND = 0.2
_PICTURE_BAND = 0.5
_DOCUMENT_BAND = 1.0


def _sort_document(document: Document, contents: _Contents) -> None:
    data = read_inline(document)
    if document.media_type.startswith("text/") and data:
        try:
            contents.texts.append(base64.b64decode(data).decode("utf-8", "replace"))
        except ValueError:
            pass
        else:
            return
    contents.documents += estimate_document(data)


# --- calibrating estimates with reported usage -------------------------------------------------


class Calibration(Struct, frozen=True):
    """The correction of estimates for one model, learned from reported usage.

    Use one calibration per model. ``calibrate`` returns a new calibration, and ``correct`` applies
    it to an estimate::

        calibration = calibration.calibrate(estimate, response.usage.input_tokens)
        better = calibration.correct(estimate_request(messages, family="qw152k"))

    The correction is the median of the last fifteen ratios of reported to estimated tokens, so
    that a single outlier does not change it. It is at most a factor of four, up or down.
    """

    ratios: tuple[float, ...] = ()

    def calibrate(self, estimate: Estimate, reported: int | None) -> Calibration:
        """Return a calibration that includes the tokens reported for one more request.

        Without reported tokens, return this calibration.
        """
        if estimate.method.endswith(_CALIBRATED):
            raise ValueError("estimate: calibrate with the estimate as it was before correct()")
        if not reported or reported < 0 or not estimate.tokens:
            return self
        ratio = min(_MOST, max(1 / _MOST, reported / estimate.tokens))
        return Calibration((*self.ratios, ratio)[-_REMEMBERED:])

    @property
    def factor(self) -> float:
        """The factor by which estimates are corrected; 1 before any usage was reported."""
        ordered = sorted(self.ratios) or [1.0]
        middle = len(ordered) // 2
        return (ordered[middle] + ordered[~middle]) / 2

    def correct(self, estimate: Estimate) -> Estimate:
        """Return the corrected estimate.

        Once five or more token counts have been reported, ``error_band`` is computed from them:
        nine in ten of these counts differ from their corrected estimates by at most this fraction.
        """
        if not self.ratios:
            return estimate
        band = estimate.error_band
        if len(self.ratios) >= _ENOUGH:
            off = sorted(abs(ratio / self.factor - 1) for ratio in self.ratios)
            band = round(off[math.ceil(0.9 * len(off)) - 1], 3)
        tokens = round(estimate.tokens * self.factor)
        return replace(
            estimate, tokens=tokens, method=estimate.method + _CALIBRATED, error_band=band
        )


_CALIBRATED = ", calibrated"
_REMEMBERED = 15
_ENOUGH = 5
_MOST = 4.0
