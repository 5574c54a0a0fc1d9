"""Strict rules: refuse the requests that real vendors refuse, by the beliefs about a model.

A lenient simulator answers whatever it can read. With ``strict``, it refuses what the vendor of
the model refuses: settings and amounts of reasoning that the model does not accept, a forced tool
while it reasons, thinking that is missing, changed, or made by another model, a conversation that
ends with the model's own text, instructions in the middle of it, blank texts, response formats,
cache settings and unknown fields. The rules are the rows in ``catalog/families``; the model's name
and the vendor of the script select them.

The simulator signs its thinking, as vendors do: a token is bound to the wire, the model, the text
and, where the vendor binds it, to the conversation before it. A token that comes back with
anything else is refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from .. import messages as m
from ..capabilities import Capabilities
from ..errors import InvalidModelError, InvalidRequestError
from ..registry.vendors import load_vendor, vendor_names
from ..wire import CODECS, SERVER_CODECS
from ..wire.beliefs import find_beliefs, list_known_fields, paths_of_reasoning
from ..wire.caching import list_cache_problems
from ..wire.continuity import model_line
from ..wire.endpoint import places_of
from ..wire.gemini.names import to_standard_base64
from ..wire.json import dig, entries_of
from ..wire.quirks import WireQuirks
from .script import Answer, Call, Said

_NOWHERE = "https://sim.invalid"
_LENGTH = 24  # of a digest as base64; a token is two of them


class StrictModel:
    """A model on a wire, with the rules by which its vendor refuses requests."""

    def __init__(self, wire: str, model: str, vendor: str | None = None) -> None:
        self.wire = wire
        self.model = model
        self._vendor = vendor
        codec: Any = CODECS[wire].connect(model, _NOWHERE, None, Capabilities(), vendor=vendor)
        self._codec = codec
        self._server = SERVER_CODECS[wire]
        self.quirks: WireQuirks = codec.quirks
        routes = getattr(self.quirks, "reasoning_details", False)
        self._place = "details" if routes else self._server.state_place

    def check(self, body: Mapping[str, Any], request: m.Request) -> None:
        """Raise ``InvalidRequestError`` for the first thing that the vendor refuses.

        ``request`` is the decoded form of ``body``.
        """
        for problem in self._list_problems(body, request):
            raise InvalidRequestError(problem, status=400, provider_message=problem)

    def check_end(self, today: str | None) -> None:
        """Raise ``InvalidModelError`` if the vendor has switched the model off by a day."""
        if today is None or self._vendor not in vendor_names():
            return
        end = load_vendor(self._vendor).ends.get(self.model, Capabilities())
        day = end.known("end_date")
        if day is not None and str(day) <= today:
            raise InvalidModelError(f"The model `{self.model}` was shut down on {day}", status=404)

    @property
    def always_reports_usage(self) -> bool:
        """Whether streams have usage without a request, for which the vendor has no field."""
        known = list_known_fields(self._vendor)
        return bool(known) and "stream_options" not in known

    def list_dropped(self, body: Mapping[str, Any], request: m.Request) -> list[int]:
        """Return the numbers of the thoughts in a request that the vendor drops, as it is asked to.

        Their prefix has changed. Thoughts are counted from 0.
        """
        if not self._drops_unbound(body):
            return []
        dropped: list[int] = []
        number = 0
        for at, message in enumerate(request.messages):
            if isinstance(message, m.Assistant):
                prefix = self._digest(request, at)
                for block in message.content:
                    if isinstance(block, m.Thinking):
                        if _find_token(block.continuity, "signature") != self._token(
                            block.text, prefix
                        ):
                            dropped.append(number)
                        number += 1
        return dropped

    def sign(self, answer: Answer, request: m.Request) -> Answer:
        """Return an answer whose thinking and calls have the tokens of this model."""
        place = self._place
        if place is None:
            return answer
        prefix = self._digest(request, len(request.messages))
        signed: list[Said] = []
        has_signed_call = False
        thoughts = 0
        for block in answer.said:
            if place == "call" and isinstance(block, Call) and not has_signed_call:
                # Gemini signs the first of the calls that are made together.
                has_signed_call = True
                block = replace(block, signature=self._token(block.name, prefix))
            elif place != "call" and isinstance(block, m.Thinking) and block.continuity is None:
                token = self._token(block.text, prefix)
                block = replace(block, continuity=self._make_state(block.text, token, thoughts))
                thoughts += 1
            signed.append(block)
        return replace(answer, content=tuple(signed), text="", thinking="", tool_calls=())

    def _make_state(self, text: str, token: str, number: int) -> m.Continuity:
        """Return the state of the thought of an answer that has this number."""
        if self._place == "signature":
            return m.Continuity(token)
        issuer = m.Issuer(self.wire, None, self.model)
        if self._place == "details":
            detail = {"type": "reasoning.text", "text": text, "signature": token, "index": number}
            return m.Continuity(opaque=[detail], issuer=issuer)
        item = {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": text}] if text else [],
            "encrypted_content": token,
        }
        return m.Continuity(opaque=item, issuer=issuer)

    # --- the rules

    def _list_problems(self, body: Mapping[str, Any], request: m.Request) -> Iterator[str]:
        yield from self._check_settings(body, request)
        yield from self._check_amount(body)
        yield from self._check_choice(request)
        yield from self._check_late_system(request)
        yield from self._check_thinking(body, request)
        yield from self._server.list_problems(
            body,
            self.quirks,
            reasons=self._codec.reasons(request, self.quirks),
            known=list_known_fields(self._vendor),
        )
        # Only a row counts, since the quirk has a default for servers that ignore these fields.
        form = find_beliefs(self.wire, self._vendor, self.model).get("cache_form")
        yield from list_cache_problems(body, form)
        last = request.messages[-1]
        if isinstance(last, m.Assistant) and not getattr(self.quirks, "prefill", True):
            yield (
                "This model does not support assistant message prefill. The conversation must end "
                "with a user message."
            )

    def _check_late_system(self, request: m.Request) -> Iterator[str]:
        # Only a row counts, since the quirk's default is the form that every server accepts.
        place = find_beliefs(self.wire, self._vendor, self.model).get("late_system", "in_place")
        _, rest = m.join_system(request.messages)
        if place != "in_place" and any(isinstance(message, m.System) for message in rest):
            yield "Unexpected role 'system': this model takes instructions at the beginning only."

    def _check_settings(self, body: Mapping[str, Any], request: m.Request) -> Iterator[str]:
        refused = dict(self.quirks.refused_settings)
        if self._codec.reasons(request, self.quirks):
            refused |= self.quirks.refused_while_reasoning
        paths = places_of(self._codec)
        for name in refused:
            path = paths.get(name, name)
            if dig(body, *path.split(".")) is not None:
                yield f"Unsupported parameter: '{path}' is not supported with this model."
        together = [paths.get(name, name) for name in self.quirks.one_setting_of]
        if len([path for path in together if dig(body, *path.split(".")) is not None]) > 1:
            yield f"{' and '.join(together)} cannot both be specified for this model."

    def _check_amount(self, body: Mapping[str, Any]) -> Iterator[str]:
        style = self.quirks.reasoning
        if style is None:
            return
        known = style.list_values()
        places = tuple(self._codec.reasoning_places.items())
        parent = self._codec.reasoning_parent
        fields = dig(body, parent) if parent else body
        for path in sorted(paths_of_reasoning(self.wire, self._codec.reasoning_root, places)):
            value = dig(fields, *path.split("."))
            if value is None:
                continue
            # Google's servers accept words in capitals, and its SDK writes them.
            word = value.lower() if isinstance(value, str) else value
            if path not in known:
                yield f"Unrecognized request argument supplied: {path}"
            elif path != style.budget and word not in known[path]:
                values = ", ".join(map(repr, known[path]))
                yield f"Invalid value: {value!r} for '{path}'. Supported values are: {values}."
            elif path == style.budget and isinstance(value, int):
                is_free = value in (self._codec.dynamic_budget, *(style.off or {}).values())
                if not is_free and not style.least <= value <= (style.most or value):
                    most = "" if style.most is None else f" and at most {style.most}"
                    yield f"{path} must be at least {style.least}{most}, not {value}."

    def _check_choice(self, request: m.Request) -> Iterator[str]:
        choice = request.tool_choice
        if choice is not None and not request.tools and not request.server_tools:
            yield "A tool_choice was set on the request but no tools were specified."
        if choice in (None, "auto", "none") or self.quirks.forced_tools == "yes":
            return
        if self.quirks.forced_tools == "no":
            yield 'tool_choice: type "tool" and "any" are not supported for this model.'
        elif self._codec.reasons(request, self.quirks):
            yield "Thinking may not be enabled when tool_choice forces tool use."

    def _check_thinking(self, body: Mapping[str, Any], request: m.Request) -> Iterator[str]:
        place = self._place
        if place == "call":
            yield from self._check_calls(request)
        elif place is not None:
            drops = self._drops_unbound(body)
            for at, message in enumerate(request.messages):
                if isinstance(message, m.Assistant):
                    prefix = self._digest(request, at)
                    for block in message.content:
                        if isinstance(block, m.Thinking):
                            token = _find_token(block.continuity, place)
                            # A router takes thinking without details, too.
                            if token is not None or place != "details":
                                yield from self._check_token(token, block.text, prefix, drops)
        if getattr(self.quirks, "needs_thinking", False):
            yield from self._check_open_turn(request)

    def _drops_unbound(self, body: Mapping[str, Any]) -> bool:
        """Return whether a request asks the vendor to drop thinking whose prefix has changed."""
        root = self._codec.reasoning_root
        place = dig(body, root) if root else body
        binding = dig(place, "thinking", "block_binding")
        return bool(dig(binding, self._server.binding_field) == "drop_block")

    def _check_calls(self, request: m.Request) -> Iterator[str]:
        """Check that the first call of each turn has its signature, or the documented placeholder."""
        placeholder = getattr(self.quirks, "placeholder_signature", None)
        if placeholder is None:
            return
        for at, message in enumerate(request.messages):
            if not isinstance(message, m.Assistant) or not message.tool_calls:
                continue
            call = message.tool_calls[0]
            token = call.continuity.signature if call.continuity is not None else None
            if token is not None and token != placeholder:
                # Google's SDK for Python sends signatures back in the URL-safe alphabet.
                token = to_standard_base64(token)
            own = self._token(call.name, self._digest(request, at))
            if token is None:
                yield f"Function call `{call.name}` is missing a thought_signature."
            elif token not in (own, placeholder):
                yield "Thought signature is not valid."

    def _check_token(
        self, token: str | None, text: str, prefix: str, drops: bool
    ) -> Iterator[str]:
        if token is None:
            yield "Invalid `signature` in `thinking` block: it is missing."
        elif token[:_LENGTH] != self._token(text, prefix)[:_LENGTH]:
            yield "Invalid `signature` in `thinking` block."
        elif token != self._token(text, prefix) and not drops:
            yield (
                "Invalid `signature` in `thinking` block. The block is bound to a different "
                "conversation."
            )

    def _check_open_turn(self, request: m.Request) -> Iterator[str]:
        """Check that the turn that is not finished begins with the model's thinking."""
        if not self._codec.reasons(request, self.quirks):
            return
        turn: list[m.AssistantBlock] = []
        for message in reversed(request.messages):
            if isinstance(message, m.User | m.System):
                break
            if isinstance(message, m.Assistant):
                turn[:0] = message.content
        if turn and not isinstance(turn[0], m.Thinking | m.RedactedThinking):
            yield (
                "Expected `thinking` or `redacted_thinking`, but found another block. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking "
                "block."
            )

    # --- tokens

    def _token(self, text: str, prefix: str) -> str:
        """Return the token of a text: bound to wire, model and text, and to a conversation."""
        own = "\0".join((self.wire, model_line(self.model), text))
        bound = prefix if getattr(self.quirks, "binds_thinking", False) else ""
        return _short(own) + _short(bound)

    def _digest(self, request: m.Request, end: int) -> str:
        """Return a digest of the tools and of the messages before a position."""
        parts = msgspec.to_builtins([list(request.tools), list(request.messages[:end])])
        return _short(msgspec.json.encode(_without_marks(parts)).decode())


def _short(text: str) -> str:
    data = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:18]
    return base64.b64encode(data).decode()


def _without_marks(value: Any) -> Any:
    """Return a value without marks for the prompt cache, which move from request to request."""
    if isinstance(value, list):
        return [_without_marks(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_marks(each) for name, each in value.items() if name != "cache"}
    return value


def _find_token(state: m.Continuity | None, place: str) -> str | None:
    if state is None:
        return None
    if place == "signature":
        return state.signature
    if place == "details":
        token = next((each.get("signature") for each in entries_of(state.opaque)), None)
        return token if isinstance(token, str) else None
    token = state.opaque.get(place) if isinstance(state.opaque, dict) else None
    return token if isinstance(token, str) else None
