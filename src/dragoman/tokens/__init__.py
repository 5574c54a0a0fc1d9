"""Token counting: estimate the length of a request before it is sent, without a network.

Box: core.

``estimate_request`` and ``estimate_text`` work from coefficients (``text.py``). The
*family* names the vocabulary that the coefficients were measured with; the catalogue has the
family of each model. ``exact_text`` counts
with a real vocabulary, if the extra ``dragoman[tokens]`` is installed. The measured errors of the
estimates are in ``bench/README.md``.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .. import messages as m
from ..validate.data_url import read_inline
from .media import ENCRYPTED_PER_TOKEN, estimate_audio, estimate_document, estimate_image
from .text import count_tokens, read_table

__all__ = [
    "FAMILIES", "Calibration", "Estimate", "estimate_input_tokens", "estimate_request",
    "estimate_text", "exact_text", "loaded_tools",
]  # fmt: skip


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


FAMILIES = (
    "default", "claude", "claude-4.7", "o200k", "cl100k", "llama3", "qw152k", "ds129k", "tekken",
    "gemini", "glm", "km164k",
)  # fmt: skip
"""The vocabulary families that ``family=`` accepts; the coefficients of ``default`` are the
medians of the others."""


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
    return count_tokens(texts, family)


def _band(tokens: float, family: str) -> float:
    """Return the error band of a text; it is wider for short texts."""
    return round(math.hypot(read_table().bands[family], 0.8 / math.sqrt(max(tokens, 1))), 3)


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


class _Contents(Struct):
    """The contents of a request, grouped by how they are counted."""

    texts: list[str]
    schemas: list[str]
    pictures: float = 0
    documents: float = 0
    frame: float = 0


def estimate_request(
    messages: Sequence[m.Message],
    tools: Sequence[m.Tool] | None = (),
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
    schemas = _count(contents.schemas, family, vocabulary) * read_table().frames[family].schema
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
    messages: Sequence[m.Message],
    tools: Sequence[m.Tool] | None = (),
    system_prompt: str | None = None,
    *,
    family: str = "default",
) -> int:
    """Return the estimated input tokens as an integer, which the adapter contract requires."""
    return estimate_request(messages, tools, system_prompt, family=family).tokens


def loaded_tools(tools: Sequence[m.Tool], *, searched: bool) -> Sequence[m.Tool]:
    """Return the tools in the prompt: all but the deferred ones, if the provider searches them."""
    return [tool for tool in tools if not tool.deferred] if searched else tools


def _sort_contents(
    messages: Sequence[m.Message], tools: Sequence[m.Tool], system_prompt: str | None, family: str
) -> _Contents:
    frame = read_table().frames[family]
    contents = _Contents(
        [], [_as_json([tool.name, tool.description, tool.parameters]) for tool in tools]
    )
    if messages or tools or system_prompt:
        contents.frame = frame.request + len(tools) * frame.tool + (frame.tools if tools else 0)
    if system_prompt:
        contents.texts.append(system_prompt)
        contents.frame += frame.system
    # Thinking of earlier turns is not counted: many servers ignore it. Those that read it, such as
    # vLLM, have it in the prompt (vllm#38488, litellm#41380, seen 2026-11-18).
    turn = max((at for at, message in enumerate(messages) if type(message) is m.User), default=-1)
    for at, message in enumerate(messages):
        if not isinstance(message, m.System | m.User | m.Assistant | m.ToolResult):
            raise TypeError(
                f"messages[{at}]: expected System, User, Assistant or ToolResult, not "
                f"{type(message).__name__}"
            )
        contents.frame += frame.system if type(message) is m.System else frame.message
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
        case m.Text(text=text):
            contents.texts.append(text)
        case m.Thinking(text=text):
            if current:
                contents.texts.append(text)
        case m.RedactedThinking(data=data):
            contents.documents += current * len(data) / ENCRYPTED_PER_TOKEN
        case m.ToolCall(name=name, arguments=arguments):
            contents.frame += read_table().frames[family].call
            contents.texts += [name, _as_json(arguments)]
        case m.Opaque(data=data):
            contents.texts.append(_as_json(data))
        case m.Image():
            contents.pictures += estimate_image(block, family)
        case m.Document():
            _sort_document(block, contents)
        case m.Audio():
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


def _sort_document(document: m.Document, contents: _Contents) -> None:
    _, data = read_inline(document) or ("", "")
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
