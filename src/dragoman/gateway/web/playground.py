"""The playground: call a model with a request of the page, and show what would be sent.

A call is handled like any request to the gateway: with its key, limits, records and metrics.
The request and the events of its reply are those of the library, written as JSON, so that nothing
is lost on the way to the page. No tool is executed.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpAsked
from starlette.types import Receive, Scope, Send

from ...errors import InvalidModelError, InvalidRequestError, ProviderError, scrub
from ...events import Event, MessageComplete, encode_event
from ...messages import Request, new_ulid
from ...middleware.translation import check_translated
from ...prices import Unpriced
from ...provider import Provider, connect
from ...provider.http_model import show_url
from ...validate import build_request
from ...wire import CODECS, Asked, Encoded, ReplyEncoder
from ...wire.policy import Translated
from ..access import Service, resolve_model
from ..exchange import handle, identify
from ..keys import Key
from ..models import Models, find_ends
from ..people import Person
from ..reading import Incoming, parse_body
from ..request_account import Account, ChatCall
from ..unknown_paths import find_codec
from ..writing import ReplyWriter, write_events
from .keys import PERSON

_CALL_KEY = b"x-call-key"
_KEY = "$API_KEY"  # stands for the key of a model in what the page shows
_UNSENT: dict[str, Any] = {"url": "", "headers": {}, "body": "", "notes": [], "refused": None}
_WIRE = "dragoman"  # the name of the page's own format in records and metrics


class PlaygroundCall(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request of the page: a model, and the arguments of ``Provider.stream``.

    ``conversation`` is the session of the log that an earlier reply named.
    """

    messages: list[Any]
    model: str = ""
    tools: list[Any] = []
    config: dict[str, Any] = {}
    response_schema: dict[str, Any] | None = None
    conversation: str = ""

    def build(self, model: str) -> Request:
        """Return the request to a model; its tool calls are shown even if they are invalid."""
        tools = self.tools or None
        config = self.config or None
        return build_request(
            self.messages, tools, config, self.response_schema, model=model, stream=True,
            check_calls=False,
        )  # fmt: skip


class PlaygroundChat:
    """Handle the requests of the playground that call a model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._front = find_codec("/", {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The authorization header has the admin key. The key that pays for a call is in another.
        keys = [value for name, value in scope["headers"] if name == _CALL_KEY]
        if keys:
            others = [each for each in scope["headers"] if each[0] != b"authorization"]
            paying = (b"authorization", b"Bearer " + keys[0])
            scope = {**scope, "headers": [*others, paying]}
        await handle(self._service, self._front, scope, receive, send, self._answer)

    async def _answer(
        self, incoming: Incoming, writer: ReplyWriter, account: Account, models: Models
    ) -> None:
        service = self._service
        account.wire = _WIRE
        caller = identify(service, self._front, incoming.scope, account, _find_own(incoming.scope))
        body = await incoming.receive_body(caller.headers, self._front)
        account.size = len(body)
        question = _read_question(await incoming.work(parse_body, body, service.bounds))
        del body
        incoming.release_body()
        resolved = resolve_model(models, caller, question.model)
        account.model = resolved.name
        request = question.build(resolved.provider.model)
        asked = account.note_request(Asked(request=request))
        service.bounds.check_request(request)
        await incoming.work(
            check_translated, resolved, Translated(asked.request, ()), caller.refuses_losses
        )
        await account.admit(resolved.provider, asked.request)
        known = service.calls is not None and service.calls.has_conversation(question.conversation)
        account.conversation = question.conversation if known else f"chat_{new_ulid()}"
        call = account.call = ChatCall(resolved.provider, asked.request)
        if resolved.upstream.is_group:
            writer.route = call.reply
        encoder = EventLines(account, call)
        incoming.watch(service.bounds.reply_seconds)
        last = await write_events(call, encoder, (), incoming, writer)
        await account.settle_early()
        await writer.finish(encoder, last)


class EventLines(ReplyEncoder):
    """Write each event of a reply as a line of JSON, and a last line with time and cost."""

    content_type = "application/x-ndjson"
    wire = _WIRE

    def __init__(self, account: Account, call: ChatCall) -> None:
        super().__init__(Asked(request=call.request))
        self._account = account
        self._call = call

    def feed(self, event: Event) -> bytes:
        if type(event) is MessageComplete:
            self.complete = event
        return encode_event(event) + b"\n"

    def fail(self, error: ProviderError) -> bytes:
        return self.write_error(error)

    def write_end(self, complete: MessageComplete) -> bytes:
        return self._end()

    def write_error(self, error: ProviderError) -> bytes:
        text = f"{error.message} {error.advice}".strip()
        return self._end(error=scrub(text), category=error.category)

    def _end(self, **facts: Any) -> bytes:
        call = self._call
        reply = self._call.reply
        cost = call.provider.find_sold(reply.provider, reply.model).cost(reply.usage)
        line = {
            "type": "end",
            "conversation": self._account.conversation,
            "served_by": f"{reply.provider}:{reply.model}",
            "usage": reply.usage,
            "cost_usd": cost.total,
            "cost_unknown": cost.reason if isinstance(cost, Unpriced) else None,
            "first_ms": None if call.first is None else round(call.first * 1000),
            "latency_ms": round((time.perf_counter() - self._account.began) * 1000),
            **facts,
        }
        return msgspec.json.encode(line) + b"\n"


def _find_own(scope: Scope) -> Key | None:
    """Return what a person who logged in may do as a caller, if the request has no key."""
    person = scope.get(PERSON)
    has_key = any(name == b"authorization" for name, _ in scope["headers"])
    return None if has_key or not isinstance(person, Person) else person.own


def _read_question(fields: dict[str, Any]) -> PlaygroundCall:
    try:
        return msgspec.convert(fields, PlaygroundCall)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(str(error)) from None


# --- what is sent --------------------------------------------------------------------------------


async def preview(service: Service, asked: HttpAsked) -> dict[str, Any]:
    """Return the page's request in the format of each named model's wire and of all others.

    The query names the models. Each has a swap plan: which messages the model would receive.
    """
    question = _read_question(parse_body(await asked.body(), service.bounds))
    sent: list[dict[str, Any]] = []
    person = asked.scope.get(PERSON)
    for name in dict.fromkeys(asked.query_params.getlist("model")):
        if person is not None and not person.sees(name):
            raise InvalidModelError("no model of this name is served here")
        provider = service.models.find(name)
        plan = provider.plan(question.messages) if question.messages else None
        shown = None if plan is None else {**msgspec.to_builtins(plan), "fits": plan.fits}
        ends = [end for end in find_ends(provider) if isinstance(end, Provider)]
        sent += [{**_preview(name, end, question), "plan": shown} for end in ends]
    known = {each["wire"] for each in sent}
    for wire in CODECS:
        if wire not in known:
            model = connect("MODEL", base_url=f"https://{wire}.example", wire=wire)
            sent.append(_preview("", model, question, wire))
    return {"sent": sent}


def _preview(name: str, end: Provider, question: PlaygroundCall, wire: str = "") -> dict[str, Any]:
    codec = getattr(end, "codec", None)
    shown = {
        "model": name,
        "served_by": f"{end.name}:{end.model}" if name else "",
        "wire": wire or getattr(codec, "wire", ""),
        **_UNSENT,
    }
    try:
        encoded = end.preview(question.build(end.model))
    except ProviderError as error:
        return {**shown, "refused": scrub(error.message)}
    if encoded is None:
        return shown
    http = encoded.http
    keys = {} if codec is None else codec.authorise(_KEY)
    sent = {"url": show_url(http.url), "headers": {**http.headers, **keys}}
    return {**shown, **sent, "body": http.body.decode(), "notes": _list_notes(encoded)}


def _list_notes(encoded: Encoded) -> list[dict[str, Any]]:
    """Return what is rewritten or dropped, including fields that the model is known to reject."""
    notes = [msgspec.to_builtins(note) for note in encoded.notes]
    paths = {note["path"] for note in notes}
    fitted = [each for each in encoded.warnings if each.path not in paths]
    lost = {"outcome": "dropped", "loss": True}
    return notes + [{**lost, "code": e.code, "path": e.path, "detail": e.detail} for e in fitted]
