"""Decode replies of the openai wire: chunks and bodies, including the deviations of servers."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidResponseError
from ...events import Assembler, FinishReason, StopDetails, Usage, read_json, read_object
from ...messages import Opaque, Request, ToolCall
from ..codec import Decoder
from ..errors import is_failure, read_failure
from ..finish import make_stop_details
from ..json import dict_of, dig, json_text, sorted_json
from ..sse import Frame
from ..terms import note_terms
from .attachments import Attachments, read_reference
from .chunks import Chunk, ChunkCall, ChunkChoice, ChunkPart, Function, read_chunk
from .details import ReasoningDetails
from .errors import inband_error
from .finish import FINISH
from .quirks import Quirks
from .usage import read_usage

_READ = FINISH.read
# how other wires report a truncated reply, as a router forwards it
_CUT = frozenset({"length", "max_tokens", "max_output_tokens"})


class _OpenCall:
    """A tool call that is still arriving in fragments."""

    __slots__ = ("extra", "fragments", "id", "key", "name", "started")

    def __init__(self, key: int, call_id: str) -> None:
        self.key = key
        self.id = call_id
        self.name = ""
        self.started = False
        # fragments of the arguments that arrived before the name, with their offsets
        self.fragments: list[tuple[int, str]] = []
        # opaque state of the call, which Google puts next to the function (case:
        # openai/call-with-extra-content)
        self.extra: Any = None


class _OpenCalls:
    """The tool calls of a reply: in order, and by the index or id of their fragments."""

    __slots__ = ("by_id", "by_index", "last", "ordered")

    def __init__(self) -> None:
        self.ordered: list[_OpenCall] = []
        self.by_index: dict[int | str, _OpenCall] = {}
        self.by_id: dict[str, _OpenCall] = {}
        self.last: _OpenCall | None = None

    def open(self, index: int | str | None, call_id: str) -> _OpenCall:
        """Add a call."""
        opened = _OpenCall(len(self.ordered), call_id)
        self.ordered.append(opened)
        if index is not None:
            self.by_index[index] = opened
        if call_id:
            self.by_id[call_id] = opened
        return opened


class OpenAIDecoder(Decoder):
    """Decode chunks and bodies of the openai wire."""

    def __init__(
        self,
        request: Request,
        out: Assembler,
        quirks: Quirks,
        *,
        coerced: bool = False,
        keep_raw: bool = True,
    ) -> None:
        super().__init__(request, out, keep_raw=keep_raw)
        self.several = request.config.extras.get("n") not in (None, 1)
        self._quirks = quirks
        self._coerced: list[str] | None = [] if coerced else None
        self._usage_key = (
            quirks.usage_path.partition(".")[0].encode() if quirks.usage_path else None
        )
        self._usage: Usage | None = None
        self._usage_raw: Any = None
        self._tier: Any = None
        self._finish_raw: str | None = None
        self._native: str | None = None
        self._refused = False
        self._whole = False  # whether the reply is one body, not a stream
        self._streamed = False
        self._calls: _OpenCalls | None = None  # created by the first call
        self._details = ReasoningDetails() if quirks.reasoning_details else None
        # The index of the choice to decode, by default the first choice that arrives. Some servers
        # number their only choice from 1, or send no index (cases:
        # openai/choice-numbered-from-one, openai/choice-index-absent).
        self._chosen: int | None = 0 if "n" in request.config.extras else None
        self._request = request
        self._attachments: Attachments | None = None

    def frame(self, frame: Frame) -> None:
        data = frame.data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self.done = True
            self._finish()
            return
        if frame.event == b"error":
            if data.startswith(b"{"):
                self._fail_with(read_chunk(data), data)
            else:
                self._fail(data)
            return
        chunk = read_chunk(data)
        if chunk.error or (chunk.choices is None and chunk.usage is None and is_failure(data)):
            self._fail_with(chunk, data)
            return
        self._read(chunk, data)

    def body(self, data: bytes) -> None:
        self._whole = True
        chunk = read_chunk(data)
        if chunk.error or (chunk.choices is None and is_failure(data)):
            self._fail_with(chunk, data)
            return
        if not chunk.choices:
            raise InvalidResponseError("the reply has no choices")
        if not any(map(_is_answer, chunk.choices)):
            raise InvalidResponseError("the reply's choice has no message")
        places = [
            choice.index if type(choice.index) is int else at
            for at, choice in enumerate(chunk.choices)
        ]
        self._chosen = 0 if 0 in places else places[0]
        self._read(chunk, data)
        if self.out.error is None:
            self._finish()

    def at_end(self) -> None:
        # Perplexity, Cerebras and others end the stream without [DONE]. A finish reason is
        # accepted as the end mark; without one the reply counts as interrupted (cases:
        # openai/no-done, openai/no-finish-and-no-done).
        if self._finish_raw is not None:
            self._finish()
        else:
            self.interrupted()

    def facts(self) -> dict[str, Any]:
        return {"finish_reason": self._finish_raw, "usage": self._usage_raw}

    # --- private methods of the openai decoder

    def _fail_with(self, chunk: Chunk, data: bytes) -> None:
        """Decode the text and calls of a chunk or body with an error; then fail with this error.

        Case: ``openai/error-beside-choices-unary``.
        """
        if any(_has_content(choice) for choice in chunk.choices or ()):
            self._read(chunk, data)
        self._fail(chunk.error or data)

    def _fail(self, error: Any) -> None:
        self.out.fail(
            inband_error(read_failure({"error": error} if not isinstance(error, bytes) else error))
        )

    def _read(self, chunk: Chunk, data: bytes) -> None:
        out = self.out
        if not out.started:
            self.start(chunk.model)
        error: Any = None
        for at, choice in enumerate(chunk.choices or ()):
            # A choice without an index has its position as the index.
            place = choice.index if type(choice.index) is int else at
            if place != self._chosen:
                if self._chosen is not None:
                    # Only one choice is read (case: openai/n-greater-than-1).
                    self.lose_choice(f"choices[{place}]")
                    continue
                self._chosen = place
            self._read_choice(choice)
            error = error or choice.error
        if chunk.service_tier is not None and chunk.service_tier != self._tier:
            self._tier = chunk.service_tier
            note_terms(self.out, {"service_tier": self._tier})
        if chunk.usage is not None:
            self._note_usage(chunk.usage)
        if self._usage_key is not None and self._usage_key in data:
            self._note_usage(dig(read_json(data), *(self._quirks.usage_path or "").split(".")))
        if chunk.citations or chunk.search_results or chunk.images or chunk.related_questions:
            self._others().note(
                chunk.citations, chunk.search_results, chunk.images, chunk.related_questions
            )
        if error:
            self._fail(error)

    def _read_choice(self, choice: ChunkChoice) -> None:
        # Perplexity sends the complete message so far next to each delta, and an empty delta next
        # to the message of a body. A stream uses only the deltas, a body only the message (cases:
        # openai/message-beside-delta, openai/delta-beside-message-unary).
        part = choice.delta
        if self._whole:
            part = part if choice.message is None else choice.message
        elif part is not None:
            self._streamed = True
        elif not self._streamed:
            part = choice.message
        if part is not None:
            self._read_part(part)
        if choice.finish_reason or choice.usage is not None:
            self._note_end(choice)

    def _read_part(self, part: ChunkPart) -> None:
        self._read_thinking(part)
        content = part.content
        if content:
            if type(content) is not str:
                self._read_content(content)
            elif self._coerced is None:
                self.out.text(content)
            else:
                self._coerced.append(content)
        if part.refusal and isinstance(part.refusal, str):
            self._refused = True
            self.out.text(part.refusal)
        if part.tool_calls:
            for call in part.tool_calls:
                self._read_call(call)
        elif part.function_call is not None:
            self._read_call(ChunkCall("function_call", None, part.function_call))
        if part.annotations or part.images or part.audio or part.executed_tools:
            self._others().read(part.annotations, part.images, part.audio, part.executed_tools)

    def _read_thinking(self, part: ChunkPart) -> None:
        # The reasoning field has two names. Baseten and vLLM send both with the same text, so only
        # one is read (case: openai/both-reasoning-fields).
        thought = part.reasoning_content or part.reasoning
        details = self._details
        if details is not None and not thought:
            thought = details.read_text(part.reasoning_details)
        if thought and isinstance(thought, str):
            self.out.thinking(thought)
        if details is not None:
            details.note(part, thought, self.out, whole=self._whole)

    def _text(self, piece: str) -> None:
        if self._coerced is None:
            self.out.text(piece)
        else:
            self._coerced.append(piece)

    def _read_content(self, content: Any) -> None:
        # Mistral sends a list of text and thinking parts (case:
        # openai/content-as-a-list-with-thinking). Cloudflare sends an object, not a string, in
        # JSON mode (case: openai/content-as-an-object).
        if isinstance(content, list):
            for part in content:
                self._read_content_part(part)
        else:
            self._text(bytes(sorted_json(content)).decode())

    def _read_content_part(self, part: Any) -> None:
        if isinstance(part, str):
            self._text(part)
        elif isinstance(part, dict):
            kind = part.get("type")
            text = part.get("text")
            if kind == "thinking":
                inner = part.get("thinking")
                self._read_thoughts(inner if isinstance(inner, list) else [{"text": inner}])
                return
            if isinstance(text, str):
                self._text(text)
            if kind == "reference":
                if not read_reference(part, self.out):
                    why = "a reference without a text before it is only in raw"
                    self.lose("reference_in_raw", "content", why)
            elif kind == "image_url":
                self._others().read(None, [part], None)
            elif not isinstance(text, str) and kind not in (None, "text"):
                self.out.whole(Opaque(part))

    def _read_thoughts(self, pieces: list[Any]) -> None:
        for piece in pieces:
            if isinstance(piece, dict) and isinstance(text := piece.get("text"), str):
                self.out.thinking(text)
            elif piece:
                why = "thinking that is not text is only in raw"
                self.lose("thinking_in_raw", "content", why)

    def _others(self) -> Attachments:
        """Return the collector of other parts, which is made on first use: most replies are text."""
        self._attachments = self._attachments or Attachments(self._request)
        return self._attachments

    # --- tool calls: a new index, id or name begins a new call; in a body, each entry does

    def _read_call(self, call: ChunkCall) -> None:
        function = call.function or Function()
        call_id = call.id if isinstance(call.id, str) else ""
        name = _read_name(function)
        arguments = function.arguments
        index = call.index if isinstance(call.index, int | str) else None
        brings = bool(arguments.strip() if type(arguments) is str else arguments is not None)
        calls = self._calls = self._calls or _OpenCalls()
        held = None if self._whole else self._find_call(calls, index, call_id, name, brings)
        if held is None:
            # Snowflake sends an empty function_call next to plain text (case:
            # openai/empty-function-call).
            if not (call_id or name or arguments):
                return
            held = calls.open(index, call_id)
        calls.last = held
        if call.extra_content:
            held.extra = call.extra_content
            if held.started:
                self.out.attach(ToolCall, opaque={"extra_content": held.extra}, key=held.key)
        if name and not held.started:
            held.name = name
            self._start_call(held)
        if arguments is not None and arguments != "":
            fragment = arguments if type(arguments) is str else json_text(arguments)
            if held.started:
                self.out.tool_input(held.key, fragment)
            else:
                held.fragments.append((self.out.offset, fragment))

    def _find_call(
        self, calls: _OpenCalls, index: int | str | None, call_id: str, name: str, brings: bool
    ) -> _OpenCall | None:
        """Return the call that a fragment continues, or ``None`` if it begins a new call."""
        held = calls.last if index is None else calls.by_index.get(index)
        if held is None:
            return None
        if call_id and held.id:
            held = held if call_id == held.id else calls.by_id.get(call_id)
            # Some servers reuse one id for every call; then a new name means a new call (case:
            # openai/repeated-ids).
            return (
                None if held is not None and name and held.started and name != held.name else held
            )
        # Some servers send neither ids nor indices, or the index 0 for every call. Then a new call
        # begins if the name changes, or if more arguments follow complete arguments (cases:
        # openai/missing-index-and-id, openai/index-always-0).
        if (
            name
            and held.started
            and (name != held.name or (brings and self.out.calls_are_complete(held.key)))
        ):
            return None
        return held

    def _start_call(self, call: _OpenCall) -> None:
        call.started = True
        now = self.out.offset
        if call.fragments:
            self.out.offset = call.fragments[0][0]
        extra = {"extra_content": call.extra} if call.extra else None
        self.out.tool_start(call.key, call.id or None, call.name, opaque=extra)
        for self.out.offset, fragment in call.fragments:
            self.out.tool_input(call.key, fragment)
        self.out.offset = now

    # --- the end of the reply

    def _note_end(self, choice: ChunkChoice) -> None:
        """Store the usage and the finish reason of a choice."""
        if choice.usage is not None:
            self._note_usage(choice.usage)
        if not choice.finish_reason:
            return
        # OpenRouter may send two different finish reasons. The first one that is not "stop" is
        # kept (case: openai/finish-repeated-and-different).
        if _READ.get(self._finish_raw or "", "stop") == "stop":
            self._finish_raw = str(choice.finish_reason)
        if self._finish_raw == "content_filter":
            self.out.stop_details = _describe_filter(choice.content_filter_results)
        if isinstance(choice.native_finish_reason, str):
            self._native = choice.native_finish_reason.lower()

    def _note_usage(self, record: Any) -> None:
        usage = read_usage(record)
        if usage is None:
            return
        # Cloudflare sends a second usage record with only zeros, which is ignored (case:
        # openai/second-usage-all-zeros).
        if self._usage is None or usage.input_tokens or usage.output_tokens or usage.total_tokens:
            self._usage = usage
            self._usage_raw = record
            self.out.usage(usage)

    def _finish(self) -> None:
        if not self.out.started:
            raise InvalidResponseError("the stream ended without a message")
        for call in self._calls.ordered if self._calls is not None else ():
            # A call whose name never arrived is emitted without a name, and fails validation
            # (case: openai/name-never).
            if not call.started:
                self._start_call(call)
        if self._coerced:
            _emit_coerced("".join(self._coerced), self.out)
        if self._details is not None:
            self._details.attach(self.out, whole=self._whole)
        if self._attachments is not None:
            self._attachments.emit(self.out)
        self.out.finish(self._reason(), self._finish_raw)

    def _reason(self) -> FinishReason:
        if self._refused:
            return "content_filter"
        started = self._finish_raw
        reason: FinishReason = "stop"
        if started is not None:
            reason = self._quirks.finish_words.get(started) or _READ.get(started, "error")
        if reason not in ("stop", "tool_calls"):
            return reason
        if not self.out.has_calls:
            return "stop"
        if self._native in _CUT and not self.out.calls_are_complete():
            return "length"
        return "tool_calls"


def _read_name(function: Function) -> str:
    """Return the name of a called tool, without a marker of the model's format.

    vLLM leaves markers of gpt-oss's format in names of later turns: lookup<|channel|>commentary
    (vllm-project/vllm#32587, 2026-05; openai/harmony#114; seen 2026-11-19; case:
    openai/marker-in-a-tool-name).
    """
    name = function.name if isinstance(function.name, str) else ""
    return name.partition("<|")[0] or name


def _describe_filter(results: Any) -> StopDetails | None:
    """Return the categories for which Azure's content filter stopped a reply.

    Azure names each category that it checked, with ``filtered`` (learn.microsoft.com,
    content-filter-annotations; @azure/openai 2.0.0, ContentFilterResultsForChoiceOutput; seen
    2026-11-18; case: openai/filtered-with-results).
    """
    filtered = [
        name for name, result in dict_of(results).items() if dig(result, "filtered") is True
    ]
    return make_stop_details(", ".join(filtered), None)


def _emit_coerced(text: str, out: Assembler) -> None:
    """Emit the reply to a request with ``tools="schema"``: a tool call or text.

    Text that is not a JSON object with a call or an answer is emitted unchanged.
    """
    value = read_object(text) or {}
    if isinstance(value.get("tool"), str) and isinstance(value.get("arguments"), dict):
        out.tool_start("coerced", None, value["tool"])
        out.tool_input("coerced", json_text(value["arguments"]))
    else:
        out.text(value["answer"] if isinstance(value.get("answer"), str) else text)


def _has_content(choice: ChunkChoice) -> bool:
    part = choice.message or choice.delta
    return part is not None and bool(
        part.content or part.tool_calls or part.reasoning_content or part.reasoning
    )


def _is_answer(choice: ChunkChoice) -> bool:
    """Return whether a choice has a message or was blocked by a content filter.

    Azure sends a blocked choice without a message.
    """
    has_part = choice.message is not None or choice.delta is not None
    return has_part or _READ.get(str(choice.finish_reason)) == "content_filter"
