"""Decode chunks, bodies and arrays of the Gemini wire, including deviations of servers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ... import messages as m
from ...errors import InvalidResponseError
from ...events import LAST, Assembler, FinishReason, Usage
from ..codec import Decoder
from ..errors import is_failure, read_failure
from ..finish import make_stop_details
from ..json import dict_of, entries_of, list_of, read_as, read_count, reply_text, string_of
from ..sse import Frame
from ..terms import note_terms
from ..usage import UsageMap
from .arguments import StreamedArguments
from .errors import inband_error
from .finish import FINISH


class _Content(Struct):
    parts: list[Any] | None = None


class _Candidate(Struct, rename="camel"):
    index: Any = None
    content: _Content | None = None
    finish_reason: Any = None
    finish_message: Any = None
    safety_ratings: Any = None
    grounding_metadata: Any = None
    citation_metadata: Any = None


class _Feedback(Struct, rename="camel"):
    block_reason: Any = None
    block_reason_message: Any = None
    safety_ratings: Any = None


class _Chunk(Struct, rename="camel"):
    """A streamed chunk or a complete body, with only the fields that the decoder uses."""

    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    model_version: Any = None
    error: Any = None


_chunks = msgspec.json.Decoder(_Chunk)
_arrays = msgspec.json.Decoder(list[_Chunk])
_BETWEEN = re.compile(r"\s*[\[,]\s*")


def _read_frame(data: bytes) -> list[_Chunk]:
    """Return the chunks of one event. If a server omits blank lines, an event has several chunks.

    Case: ``gemini/blank-lines-forgotten``.
    """
    if data.startswith(b"["):
        return _read_array(data)
    try:
        return [read_as(_chunks, data)]
    except msgspec.ValidationError:
        raise
    except ValueError:
        if b"\n" not in data:
            raise
        return [
            read_as(_chunks, line)
            for line in data.split(b"\n")
            if line.strip() not in (b"", b"[DONE]")
        ]


def _read_array(data: bytes) -> list[_Chunk]:
    """Return the chunks of a stream that is one JSON array, except an incomplete last chunk."""
    try:
        return _arrays.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    text = data.decode("utf-8", "replace")
    at = 0
    chunks: list[_Chunk] = []
    reader = json.JSONDecoder()
    while match := _BETWEEN.match(text, at):
        try:
            _, at = reader.raw_decode(text, match.end())
        except ValueError:
            break
        chunks.append(read_as(_chunks, text[match.end() : at].encode("utf-8", "replace")))
    return chunks


def _is_empty(chunk: _Chunk) -> bool:
    return (
        chunk.candidates is None and chunk.prompt_feedback is None and chunk.usage_metadata is None
    )


def _has_content(chunk: _Chunk) -> bool:
    return any(
        candidate.content is not None and candidate.content.parts
        for candidate in chunk.candidates or ()
    )


# With ``enum-encoding=int`` enums are sent as numbers. The position of a name in these tuples is
# its number in the Gemini API.
_REASONS = (
    "FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER", "LANGUAGE",
    "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MALFORMED_FUNCTION_CALL", "IMAGE_SAFETY",
    "UNEXPECTED_TOOL_CALL",
)  # fmt: skip
_BLOCKS = (
    "BLOCK_REASON_UNSPECIFIED", "SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT",
    "IMAGE_SAFETY",
)  # fmt: skip


def _word(value: Any, numbered: Sequence[str]) -> str | None:
    """Return the name of an enum value; ``None`` if the value is missing or unspecified."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = numbered[value] if 0 <= value < len(numbered) else str(value)
    if not isinstance(value, str) or not value or value.endswith("_UNSPECIFIED"):
        return None
    return value


_TEXTUAL = frozenset({"text", "thought", "thoughtSignature"})


def read_medium(
    part: dict[str, Any], signature: str | None, issuer: m.Issuer | None = None
) -> m.Audio | m.Image | None:
    """Return the audio or image of a part, or ``None`` for any other kind of part."""
    data = part.get("inlineData")
    if not isinstance(data, dict) or not isinstance(kind := data.get("mimeType"), str):
        return None
    if not isinstance(data.get("data"), str) or not data["data"]:
        return None
    if kind.startswith("image/"):
        return m.Image(
            m.Inline(data["data"]),
            kind,
            continuity=m.Continuity(signature, _own_fields(part), issuer),
        )
    if not kind.startswith("audio/"):
        return None
    return m.Audio(
        m.Inline(data["data"]),
        kind,
        continuity=None if signature is None else m.Continuity(signature, issuer=issuer),
    )


def _own_fields(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an image part that must be sent back to its issuer.

    One of them is ``thought``, which marks a draft image.
    """
    inner = {
        name: value
        for name, value in part["inlineData"].items()
        if name not in ("mimeType", "data")
    }
    own = {
        name: value
        for name, value in part.items()
        if name not in ("inlineData", "thoughtSignature")
    }
    return {**own, **({"inlineData": inner} if inner else {})} or None


def write_picture(block: m.Image) -> dict[str, Any]:
    """Return the original part of an image that was generated on this wire."""
    state = block.continuity or m.Continuity()
    rest = dict_of(state.opaque)
    data = block.source.base64_data if isinstance(block.source, m.Inline) else ""
    signed = {"thoughtSignature": state.signature} if state.signature else {}
    inline = {**rest.get("inlineData", {}), "mimeType": block.media_type, "data": data}
    return {**rest, "inlineData": inline, **signed}


class _OpenCall:
    """A call whose arguments arrive as ``partialArgs``."""

    def __init__(self, key: int, begun: Any) -> None:
        self.key = key
        self.arguments = StreamedArguments(dict_of(begun))


class GeminiDecoder(Decoder):
    """Decode chunks and bodies of the Gemini wire."""

    finish_words = FINISH.read

    def __init__(self, request: m.Request, out: Assembler, *, keep_raw: bool = True) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self._usage: dict[str, Any] | None = None
        self._finish_raw: str | None = None
        self._blocked: str | None = None
        self._in_thought = False
        self._call: _OpenCall | None = None
        self._cut = False
        self._count = 0
        self._sources: dict[str, Any] = {}
        self.several = request.config.extras.get("candidateCount") not in (None, 1)

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        # Compatible servers send [DONE], which is ignored: on this wire, a finish reason ends the
        # stream.
        if not data or data == b"[DONE]":
            return
        if frame.event == b"error" and not data.startswith(b"{"):
            self._fail(data)
            return
        for chunk in _read_frame(data):
            if frame.event == b"error" or (_is_empty(chunk) and is_failure(data)):
                self._fail(chunk.error or data)
            else:
                self._read(chunk)
            if self.out.error is not None:
                return

    def body(self, data: bytes) -> None:
        data = data.strip()
        # Without ``alt=sse``, or if the server ignores it, a stream is one JSON array.
        if data.startswith(b"["):
            for chunk in _read_array(data):
                self._read(chunk)
                if self.out.error is not None:
                    return
            self.at_end()
            return
        chunk = read_as(_chunks, data)
        if _is_empty(chunk) and is_failure(data):
            self._fail(data)
            return
        self._read(chunk)
        if self.out.error is None:
            if self._finish_raw is None and self._blocked is None and not _has_content(chunk):
                raise InvalidResponseError(
                    "the reply has no candidate with content or a finish reason"
                )
            self._finish()

    def at_end(self) -> None:
        if self._finish_raw is not None or self._blocked is not None:
            self._finish()
        else:
            self.interrupted()

    def facts(self) -> dict[str, Any]:
        return {"finish_reason": self._finish_raw or self._blocked, "usage": self._usage}

    # --- private methods of the gemini decoder

    def _fail(self, error: Any) -> None:
        if isinstance(error, bytes):
            failure = read_failure(error)
            error = {"message": failure.message, "code": failure.code, "status": failure.kind}
        self.out.fail(inband_error(error))

    def _read(self, chunk: _Chunk) -> None:
        if chunk.error:
            self._fail(chunk.error)
            return
        if not self.out.started:
            self.start(chunk.model_version)
        for place, candidate in enumerate(chunk.candidates or ()):
            # Only the candidate with index 0 is read. A candidate without an index has its
            # position as the index (case: gemini/several-candidates).
            if (place if candidate.index is None else candidate.index) == 0:
                self._read_candidate(candidate)
            else:
                self.lose_choice(f"candidates[{place}]")
        if not chunk.candidates and chunk.prompt_feedback is not None:
            feedback = chunk.prompt_feedback
            self._blocked = _word(feedback.block_reason, _BLOCKS) or self._blocked
            if self._blocked is not None:
                category = _find_blocked(feedback.safety_ratings) or self._blocked
                self.out.stop_details = make_stop_details(category, feedback.block_reason_message)
        if isinstance(chunk.usage_metadata, dict):
            self._note_usage(chunk.usage_metadata)

    def _read_candidate(self, candidate: _Candidate) -> None:
        if candidate.content is not None:
            for part in candidate.content.parts or ():
                if isinstance(part, dict):
                    self._read_part(part)
        # each chunk repeats the earlier metadata, so the last is used
        if candidate.grounding_metadata:
            self._sources["groundingMetadata"] = candidate.grounding_metadata
        if candidate.citation_metadata:
            self._sources["citationMetadata"] = candidate.citation_metadata
        word = _word(candidate.finish_reason, _REASONS)
        # Servers send a finish reason on several chunks, even in the middle of a reply. The last
        # one is used, except that STOP does not replace another reason (case:
        # gemini/filtered-after-stop).
        if word is not None and (self._finish_raw is None or word != "STOP"):
            self._finish_raw = word
            if self.finish_words.get(word) == "content_filter":
                category = _find_blocked(candidate.safety_ratings) or word
                self.out.stop_details = make_stop_details(category, candidate.finish_message)

    def _read_part(self, part: dict[str, Any]) -> None:
        if self.held is not None:
            self.release_end()
        # This is a fast path, because nearly every part is plain text.
        if len(part) == 1 and self._call is None and type(part.get("text")) is str:
            if part["text"]:
                self._in_thought = False
                self.out.text(part["text"])
            return
        signature = string_of(part.get("thoughtSignature")) or None
        text = part.get("text")
        call = part.get("functionCall")
        if isinstance(call, dict):
            self._in_thought = False
            self._read_call(call, signature)
            return
        other = any(value is not None for key, value in part.items() if key not in _TEXTUAL)
        if not text and signature is None and not other:
            return
        self._abandon_call()
        if other or not isinstance(text, str):
            self._in_thought = False
            # Server-side code execution and unknown parts become opaque blocks, which are sent
            # back to their issuer.
            self.out.whole(read_medium(part, signature) or m.Opaque(part))
        elif part.get("thought") is True:
            self._add_thought(text, signature)
        else:
            self._in_thought = False
            self._add_text(text, signature)

    def _add_text(self, text: str, signature: str | None) -> None:
        if signature is None:
            self.out.text(text)
            return
        # A signature belongs to the part that it arrives with. An empty part with a signature
        # becomes a separate block.
        self.out.text(text, m.Continuity(signature))
        self.out.block_end()

    def _add_thought(self, text: str, signature: str | None) -> None:
        if signature is not None:
            self.out.thinking(text, m.Continuity(signature))
            self.out.block_end()
            self._in_thought = False
        else:
            self.out.thinking(text)
            if not self._in_thought:
                # Without a signature, the opaque state of the block contains only the issuer.
                self.out.attach(m.Thinking)
            self._in_thought = True

    # --- tool calls: complete in one part, or continued in parts without a name

    def _read_call(self, call: dict[str, Any], signature: str | None) -> None:
        name = call.get("name")
        if isinstance(name, str) and name:
            self._abandon_call()
            self._begin_call(call, name, signature)
        elif self._call is None:
            if call:
                self._begin_call(call, "", signature)
        else:
            self._continue_call(self._call, call, signature)

    def _begin_call(self, call: dict[str, Any], name: str, signature: str | None) -> None:
        key, self._count = self._count, self._count + 1
        self.start_call(key, call.get("id"), name, signature)
        if call.get("willContinue") is True or call.get("partialArgs"):
            self._call = _OpenCall(key, call.get("args"))
            self._continue_call(self._call, call, None)
            return
        self.end_call(key, call.get("args"))

    def _continue_call(
        self, opened: _OpenCall, call: dict[str, Any], signature: str | None
    ) -> None:
        if signature is not None:
            self.out.attach(m.ToolCall, signature, key=opened.key)
        for piece in list_of(call.get("partialArgs")):
            opened.arguments.add(piece)
        if call.get("willContinue") is not True:
            self._call = None
            self.end_call(opened.key, opened.arguments.value)

    def _abandon_call(self) -> None:
        """Close the open call as incomplete, because the announced arguments did not arrive."""
        opened, self._call = self._call, None
        if opened is not None:
            self._cut = True
            self.end_call(opened.key, reply_text(opened.arguments.value).removesuffix("}"))

    # --- the end of the reply

    def _finish(self) -> None:
        self._abandon_call()
        if self.held is not None and self.finish_words.get(self._finish_raw or "") == "length":
            self._cut = True  # the token limit was reached before the arguments of the call
        else:
            self.release_end()
        if self._sources:
            self.out.attach(m.Text, opaque=self._sources, key=LAST)
        if self._finish_raw is None and self._blocked is not None:
            self.out.finish("content_filter", self._blocked)
        else:
            self.out.finish(self._reason(), self._finish_raw)

    def _reason(self) -> FinishReason:
        reason = self.reason_for(self._finish_raw)
        if self.out.has_calls and not (self._cut and reason == "length"):
            return "tool_calls"  # this wire sends STOP even if the model calls a tool
        return reason

    def _note_usage(self, record: dict[str, Any]) -> None:
        """Record usage. Every chunk has running totals; the last value of each count is used."""
        if self._usage is not None and (
            None in record.values() or not record.keys() >= self._usage.keys()
        ):
            record = {
                **self._usage,
                **{key: value for key, value in record.items() if value is not None},
            }
        self._usage = record
        self.out.usage(_read_usage(self._usage))
        note_terms(self.out, self._usage)


def _find_blocked(ratings: Any) -> str | None:
    """Return the category of the first safety rating for which the server blocked the content.

    (google-genai 3.0.0, types.SafetyRating and Candidate.finish_message; cloud.google.com,
    GenerateContentResponse.PromptFeedback; seen 2026-11-18; case: gemini/filtered-with-ratings)
    """
    blocked = [each for each in entries_of(ratings) if each.get("blocked") is True]
    return string_of(blocked[0].get("category")) if blocked else None


USAGE = UsageMap(
    {
        "input_tokens": "promptTokenCount",
        "output_tokens": "candidatesTokenCount",
        "reasoning_tokens": "thoughtsTokenCount",
        "cached_input_tokens": "cachedContentTokenCount",
        "total_tokens": "totalTokenCount",
    },
    apart={"output_tokens": ("reasoning_tokens",)},
    omits_zeros=True,
)


def _read_usage(record: dict[str, Any]) -> Usage:
    usage = USAGE.read(record)
    tools = record.get("toolUsePromptTokenCount")
    prompt = usage.input_tokens
    if not tools or prompt is None or usage.total_tokens == prompt + (usage.output_tokens or 0):
        return usage
    # The total includes the prompt tokens of server-side tools, so they are added to the input.
    return replace(usage, input_tokens=None if read_count(tools) is None else prompt + tools)
