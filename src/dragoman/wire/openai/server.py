"""Chat Completions, server side: read requests, write replies."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ... import events as ev
from ...errors import ProviderError
from ...messages import (
    AssistantBlock,
    Continuity,
    RedactedThinking,
    Text,
    Thinking,
    ToolCall,
)
from ..headers import BILLED, HeaderRule
from ..json import dig
from ..request_schema import (
    COMMON,
    COUNT,
    FREE,
    MESSAGES,
    TEXT,
    WORD_OR_OBJECT,
    RequestSchema,
    body_with_model,
)
from ..rules import FieldTable
from ..server import (
    Asked,
    BodyEncoder,
    ReplyEncoder,
    ServerCodec,
    data_frame,
    encode_json,
    state_of,
)
from ..server_errors import code_of, message_on, terms_of
from .attachments import write_attachments
from .finish import FINISH
from .server_errors import TERMS
from .server_request import TABLE, read_request
from .state import write_details, write_extra
from .usage import USAGE

# --- writing replies for clients ---------------------------------------------------------------

_DONE = b"data: [DONE]\n\n"


class _StreamEncoder(ReplyEncoder):
    wire = "openai"
    finish = FINISH

    def __init__(self, asked: Asked, created: int) -> None:
        super().__init__(asked, created)
        self._head: dict[str, Any] = {}
        self._index = -1  # the index of the open call
        # the thoughts before the first text or call, whose state is sent before these
        self._leading: list[AssistantBlock] = []
        self._thought = -1  # the content_block_index of the open thought among them
        self._state: Continuity | None = None  # its opaque state
        self._has_led = False
        self._sent: list[dict[str, Any]] = []  # the reasoning details that were sent

    def begin(self, event: ev.MessageStart) -> bytes:
        self._head = {
            "id": _reply_id(event.message_id),
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }
        self.frame_text(self._chunk({"content": "\0"}))
        return self._chunk({"role": "assistant", "content": ""})

    def text(self, event: ev.TextDelta) -> bytes:
        return self._lead() + self.write_text(event)

    def thinking(self, event: ev.ThinkingDelta) -> bytes:
        if not self._has_led:
            self._think(event)
        return self._chunk({"reasoning_content": event.text}) if event.text else b""

    def call_start(self, event: ev.ToolUseStart) -> bytes:
        led = self._lead()
        self._index += 1
        function = {"name": event.tool_name, "arguments": ""}
        call = {"id": event.tool_use_id, "type": "function", "function": function}
        return led + self._call({**call, **write_extra(event.tool_use_id, event.continuity)})

    def call_input(self, event: ev.ToolUseInputDelta) -> bytes:
        return self._call({"function": {"arguments": event.partial_json}})

    def call_end(self, event: ev.ToolUseEnd) -> bytes:
        is_empty = self.calls[-1].is_object and self.calls[-1].is_blank
        return self._call({"function": {"arguments": "{}"}}) if is_empty else b""

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        other = write_attachments(complete.final_content)
        details = write_details(complete.final_content)
        if late_details := [each for each in details if each not in self._sent]:
            other["reasoning_details"] = late_details
        late = self._write_late_calls(complete)
        late += self._chunk(other) if other else b""
        return late + self._chunk({}, self.finish_word(complete)) + self._usage() + _DONE

    def _write_late_calls(self, complete: ev.MessageComplete) -> bytes:
        """Write the state of calls that arrived after them."""
        late = [block for block in self.late_states(complete) if isinstance(block, ToolCall)]
        calls = [block for block in complete.final_content if isinstance(block, ToolCall)]
        # OpenAI's SDK requires a function in each fragment of a call.
        rest = {"function": {"arguments": ""}}
        records = [
            {"index": at, **rest, **write_extra(call.id, call.continuity)}
            for at, call in enumerate(calls)
            if call in late
        ]
        return self._chunk({"tool_calls": records}) if records else b""

    def write_error(self, error: ProviderError) -> bytes:
        return self._usage() + data_frame({"error": error_record(error)})

    def _think(self, event: ev.ThinkingDelta) -> None:
        """Record a fragment of a thought before the first text or call."""
        if event.content_block_index != self._thought:
            self._close_thought()
        if event.redacted is not None:
            self._leading.append(RedactedThinking(event.redacted, event.continuity))
            return
        self._thought = event.content_block_index
        self._state = state_of(event) or self._state

    def _close_thought(self) -> None:
        if self._thought >= 0:
            self._leading.append(Thinking(self.read_thought(self._thought), self._state))
        self._thought = -1
        self._state = None

    def _lead(self) -> bytes:
        """Write the state of the thoughts before the first text or call.

        A client may attach the details that have arrived to a call as soon as the call is
        complete, as the Vercel AI SDK does.
        """
        if self._has_led:
            return b""
        self._has_led = True
        self._close_thought()
        self._sent = write_details(self._leading)
        return self._chunk({"reasoning_details": self._sent}) if self._sent else b""

    def _usage(self) -> bytes:
        usage = self.usage_record(USAGE) if self.asked.stream_usage else {}
        return data_frame({**self._head, "choices": [], "usage": usage}) if usage else b""

    def _call(self, call: dict[str, Any]) -> bytes:
        return self._chunk({"tool_calls": [{"index": self._index, **call}]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return data_frame({**self._head, "choices": [choice]})


class _BodyEncoder(BodyEncoder):
    wire = "openai"
    finish = FINISH

    def write_end(self, complete: ev.MessageComplete) -> bytes:
        message = self._message(complete.final_content)
        usage = USAGE.write(complete.usage)
        choice = {
            "index": 0,
            "message": {**message, "refusal": None},
            "logprobs": None,
            "finish_reason": self.finish_word(complete),
        }
        body = {
            "id": _reply_id(complete.message_id),
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            **({"usage": usage} if usage else {}),
        }
        return encode_json(body)

    def _message(self, blocks: Sequence[AssistantBlock]) -> dict[str, Any]:
        first = blocks[0] if len(blocks) == 1 else None
        if type(first) is Text and first.continuity is None:  # as in most replies
            return {"role": "assistant", "content": first.text}
        calls = self.function_calls()
        text = "".join([block.text for block in blocks if isinstance(block, Text)])
        content = text if text or not calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thoughts := "".join([block.text for block in blocks if isinstance(block, Thinking)]):
            message["reasoning_content"] = thoughts
        if details := write_details(blocks):
            message["reasoning_details"] = details
        if calls:
            states = {
                block.id: block.continuity for block in blocks if isinstance(block, ToolCall)
            }
            message["tool_calls"] = [
                {**call, **write_extra(call["id"], states.get(call["id"]))} for call in calls
            ]
        return message | write_attachments(blocks)


def _reply_id(message_id: str) -> str:
    return "chatcmpl-" + message_id.removeprefix("msg_")


# --- writing errors for clients ----------------------------------------------------------------


def error_record(error: ProviderError) -> dict[str, Any]:
    """Return an error in the form of this wire. Streams and bodies use the same form."""
    terms = terms_of(error, TERMS)
    message = message_on(error, TERMS)
    # Clients act on the code of an error class, such as context_length_exceeded.
    code = terms.code or code_of(error)
    return {"message": message, "type": terms.kind, "param": None, "code": code}


# --- the strict simulator ----------------------------------------------------------------------


def _check_reasoning(body: Mapping[str, Any], quirks: Any) -> Iterator[str]:
    """Yield what a server refuses in a request in which the model reasons."""
    if body.get("tools") and not quirks.tools_while_reasoning:
        # hosted OpenAI and Azure from gpt-5.4 on (BerriAI/litellm#34569)
        yield (
            "Function tools with reasoning_effort are not supported in /v1/chat/completions. Use "
            "/v1/responses or set reasoning_effort to 'none'."
        )
    if not body.get("stream") and not quirks.unary_reasoning:
        # open models of Qwen at Alibaba (langchain-qwq#47)
        yield "parameter.enable_thinking must be set to false for non-streaming calls"


def _check_format(body: Mapping[str, Any], quirks: Any) -> Iterator[str]:
    """Yield the reason for which the server rejects the response format of a request.

    The texts are those of DeepSeek and Groq. Groq takes JSON mode in a stream, but not with
    tools.
    """
    kind = dig(body, "response_format", "type")
    if kind == "json_schema" and quirks.structured == "prompt":
        yield "This response_format type is unavailable now"
    if kind == "json_schema" and body.get("stream") and quirks.structured_streamed == "prompt":
        yield "Streaming is not currently supported with Structured Outputs"
    is_json = kind in ("json_schema", "json_object")
    if is_json and body.get("tools") and quirks.structured_with_tools == "prompt":
        yield "json mode cannot be combined with tool/function calling"


# The headers that only clients of this wire send.
HEADERS: Mapping[str, HeaderRule] = {
    "openai-beta": HeaderRule("ignored", "what it opens, such as assistants, is not served"),
    "openai-organization": BILLED,
    "openai-project": BILLED,
    "x-client-request-id": HeaderRule("ignored", "the gateway makes the id of a request"),
}


class OpenAIServer(ServerCodec):
    """The server side of the Chat Completions wire."""

    wire: ClassVar[str] = "openai"
    terms = TERMS
    headers = HEADERS
    table: ClassVar[FieldTable] = TABLE
    schema = RequestSchema(
        body_with_model(
            "messages",
            **COMMON,
            messages=MESSAGES,
            max_tokens=COUNT,
            max_completion_tokens=COUNT,
            stop=TEXT,
            response_format=FREE,
            tool_choice=WORD_OR_OBJECT,
        )
    )
    paths = ("/v1/chat/completions",)
    base_path = "/v1"
    # A client returns it only if it knows the fields of other servers; see state.py.
    returns_state: ClassVar[bool] = False
    mentions_json = True
    read_request = staticmethod(read_request)
    stream_type = _StreamEncoder
    body_type = _BodyEncoder

    def error_body(self, error: ProviderError) -> dict[str, Any]:
        return {"error": error_record(error)}

    def list_problems(
        self, body: Mapping[str, Any], quirks: Any, *, reasons: bool, known: Collection[str]
    ) -> Iterator[str]:
        """Yield what the server rejects: unknown fields, response formats, reasoning and turns.

        DeepSeek, Moonshot and Xiaomi demand the reasoning of every turn; Groq, Cerebras and
        Mistral reject it, as they reject every field that they do not know.
        """
        for name in body:
            if known and name not in known:
                yield f"property '{name}' is unsupported"
        yield from _check_format(body, quirks)
        if reasons:
            yield from _check_reasoning(body, quirks)
        wanted = quirks.send_reasoning
        for at, message in enumerate(body["messages"]):
            if message.get("role") != "assistant":
                continue
            calls = message.get("tool_calls")
            if calls and quirks.call_placeholder and not calls[0].get("extra_content"):
                # Google's compatible address (earendil-works/pi#6733, crmne/ruby_llm#588)
                yield f"Function call at messages.{at} is missing a thought_signature."
            if reasons and quirks.reasoning_required and not message.get(wanted):
                yield f"The {wanted} in the thinking mode must be passed back to the API."
            for name in ("reasoning_content", "reasoning"):
                if known and name != wanted and name in message:
                    yield f"property 'messages.{at}.{name}' is unsupported"
