"""A live server under test: send requests to it, and record its replies as evidence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from ..capabilities import Capabilities
from ..errors import MIN_SECRET, NetworkError, ProviderError, cut, scrub
from ..events import Event, Response, check_events, read_json
from ..messages import Request, RuntimeConfig, User
from ..provider import HttpProvider
from ..transport import HttpStream, HttpTransport, Secret, Timeouts, Transport
from ..wire import CODECS, Codec, HttpReply, HttpRequest
from ..wire.urls import join_url, root_of
from .report import RecordedExchange

# number of characters that are kept of a request and of a reply
_SENT = 600
_GOT = 800
_LOOKED_AT = 32 * 1024
# fields that are omitted from recorded replies, since they differ from run to run
_NOISE = ("created", "id", "system_fingerprint", "timings")


class RecordingTransport(Transport):
    """Send requests through another transport; record the start of each request and reply.

    The records contain no headers.
    """

    def __init__(self, inner: Transport, secrets: list[str]) -> None:
        self._inner = inner
        self._secrets = [secret for secret in secrets if len(secret) >= MIN_SECRET]
        self.exchanges: list[RecordedExchange] = []
        self.last_headers: Mapping[str, str] = {}
        self.last_tail = b""

    @asynccontextmanager
    async def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AsyncIterator[HttpStream]:
        sent = self._show(request.body, _SENT)
        exchange = RecordedExchange(request.method, urlsplit(request.url).path, sent)
        at = len(self.exchanges)
        self.exchanges.append(exchange)
        async with self._inner.send(request, credentials, timeouts, stream=stream) as reply:
            recorded = _RecordedStream(reply)
            try:
                yield recorded
            finally:
                got = self._show(bytes(recorded.first), _GOT)
                self.exchanges[at] = replace(exchange, status=reply.status, got=got)
                self.last_headers = {name.lower(): value for name, value in reply.headers.items()}
                self.last_tail = bytes(recorded.last)

    async def close(self) -> None:
        await self._inner.close()

    def take(self) -> tuple[RecordedExchange, ...]:
        """Return the recorded exchanges, and start a new recording."""
        taken = tuple(self.exchanges)
        self.exchanges = []
        return taken

    def _show(self, data: bytes, most: int) -> str:
        data = _without_noise(data) if data[:1] == b"{" else data
        text = scrub(data.decode("utf-8", "replace"), self._secrets)
        return cut(text, most)


def _without_noise(data: bytes) -> bytes:
    try:
        record = read_json(data)
    except ValueError:
        return data
    return msgspec.json.encode(
        {name: value for name, value in record.items() if name not in _NOISE}
    )


class _RecordedStream(HttpStream):
    """A streamed reply that keeps a copy of its first and last bytes."""

    def __init__(self, reply: HttpStream) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers = reply.headers
        self.first = bytearray()
        self.last = bytearray()
        self.touch = reply.touch  # type: ignore[method-assign]

    async def receive(self) -> bytes:
        chunk = await self._reply.receive()
        if len(self.first) < _LOOKED_AT:
            self.first += chunk[: _LOOKED_AT - len(self.first)]
        self.last = (self.last + chunk)[-16 * 1024 :]
        return chunk


class Server:
    """One model of a live server. Every call to it is limited in tokens and in time."""

    def __init__(
        self,
        url: str,
        wire: str,
        model: str,
        key: str | None = None,
        *,
        seconds: float = 60.0,
        max_tokens: int = 48,
        transport: Transport | None = None,
    ) -> None:
        self.url = url
        self.wire = wire
        self.model = model
        self.max_tokens = max_tokens
        self.timeouts = Timeouts(
            connect=min(10.0, seconds), first_event=seconds, idle=seconds, total=seconds
        )
        self.has_key = bool(key)
        self.window: int | None = None
        # the outcomes of the tool calls for each family of schemas
        self.judged: dict[str, dict[str, int]] = {}
        self.witness = RecordingTransport(transport or HttpTransport(), [key] if key else [])
        self._key = key
        self.provider = self._connect(model, key)

    def codec(self, model: str | None = None) -> Codec:
        """Return a new codec for the server's wire."""
        return CODECS[self.wire].connect(model or self.model, self.url, None, Capabilities())

    def _connect(self, model: str, key: str | None) -> HttpProvider:
        return HttpProvider(
            self.codec(model), self.witness, name="server", model=model, api_key=key,
            timeouts=self.timeouts
        )  # fmt: skip

    async def ask(self, messages: Any, **settings: Any) -> Response:
        """Call the model, by default with temperature 0 and a token limit; return its reply."""
        return await self.provider.complete(messages, **self._bounded(settings))

    async def listen(self, messages: Any, **settings: Any) -> tuple[list[Event], Response]:
        """Stream a reply and check the order of its events; return the events and the response."""
        async with self.provider.stream(messages, **self._bounded(settings)) as stream:
            events = [event async for event in stream]
        check_events(events)
        return events, stream.response

    def _bounded(self, settings: dict[str, Any]) -> dict[str, Any]:
        given = {"temperature": 0.0, "max_tokens": self.max_tokens, **settings.pop("config", {})}
        return {"config": given, **settings}

    async def post(self, change: Callable[[dict[str, Any]], Any]) -> HttpReply:
        """Send a short request whose body the function ``change`` has altered.

        The function receives the body of a valid request, and returns one that no codec writes.
        """
        request = Request((User("Hello"),), config=RuntimeConfig(max_tokens=4), model=self.model)
        http = self.codec().encode(request).http
        body = change(msgspec.json.decode(http.body))
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        credentials = _authorise(self.codec(), self._key)
        return await self.witness.exchange(replace(http, body=data), credentials, self.timeouts)

    async def ask_as(self, model: str | None = None, key: str | None = None) -> Response:
        """Send a short prompt to another model, or with another key."""
        other = self._connect(model or self.model, key or self._key)
        return await other.complete("Hello", config={"max_tokens": 4})

    async def get(self, url: str) -> Any:
        """Send a GET request; return the JSON of the reply, or ``None`` if the request fails."""
        credentials = _authorise(self.codec(), self._key)
        return await _get(self.witness, url, credentials, self.timeouts)

    def read_refusal(self, reply: HttpReply) -> ProviderError:
        """Return the error that the codec reads from an error response."""
        return self.codec().error(reply.status, reply.headers, reply.body)

    async def close(self) -> None:
        """Close the connections to the server."""
        await self.provider.close()


# --- finding the wire, the model and the context window ----------------------------------------


def _authorise(codec: Codec, key: str | None) -> dict[str, Secret]:
    headers = codec.authorise(key) if key else {}
    return {name: Secret(value) for name, value in headers.items()}


async def _get(
    transport: Transport, url: str, credentials: Mapping[str, Secret], timeouts: Timeouts
) -> Any:
    try:
        reply = await transport.exchange(
            HttpRequest("GET", url, {"accept": "application/json"}), credentials, timeouts
        )
        return read_json(reply.body) if reply.status == 200 else None
    except (ProviderError, ValueError):
        return None


async def reach(url: str, seconds: float) -> None:
    """Raise ``NetworkError`` if no server accepts a connection at the address; send no key."""
    transport = HttpTransport()
    most = min(10.0, seconds)
    try:
        request = HttpRequest("GET", root_of(url) + "/", {"accept": "application/json"})
        await transport.exchange(request, {}, Timeouts(connect=most, total=most))
    except NetworkError as error:
        if error.is_unreached:
            raise
    except ProviderError:
        return  # any answer will do, and a busy server may not give one in time
    finally:
        await transport.close()


async def find_wire(url: str, key: str | None, seconds: float) -> str:
    """Guess the wire that a server uses from its URL, or from the known endpoint that responds."""
    path = urlsplit(url).path
    for wire, codec in CODECS.items():
        mark = getattr(codec, "base_mark", "")
        if mark and mark in path:
            return wire
    if path.strip("/"):
        return "openai"
    listed = await _ask("openai", url, join_url(url, "/models", default="/v1"), key, seconds)
    if listed is not None:
        return "openai"
    for wire, codec in CODECS.items():
        probe = getattr(codec, "probe_path", "")
        if probe and await _ask(wire, url, root_of(url) + probe, None, seconds) is not None:
            return wire
    return "openai"


async def _ask(wire: str, url: str, address: str, key: str | None, seconds: float) -> Any:
    """Send a GET request to a server whose wire or model is not known yet."""
    transport = HttpTransport()
    timeouts = Timeouts(connect=min(10.0, seconds), total=seconds)
    credentials = _authorise(CODECS[wire].connect("", url, None, Capabilities()), key)
    try:
        return await _get(transport, address, credentials, timeouts)
    finally:
        await transport.close()


async def find_model(url: str, wire: str, key: str | None, seconds: float) -> str | None:
    """Return the first model that a server lists."""
    own = getattr(CODECS[wire], "list_path", "")
    address = root_of(url) + own if own else join_url(url, "/models", default="/v1")
    for entry in _entries(await _ask(wire, url, address, key, seconds)):
        name = entry.get("id") or entry.get("name") or entry.get("model")
        if isinstance(name, str) and name:
            return name.removeprefix("models/")
    return None


def _entries(listed: Any) -> list[dict[str, Any]]:
    lists = [listed.get("data"), listed.get("models")] if isinstance(listed, dict) else [listed]
    found = next((each for each in lists if isinstance(each, list)), [])
    return [entry for entry in found if isinstance(entry, dict)]


# Names of the field with the context window in a list of models. vLLM and SGLang use the first,
# OpenRouter and others the next two, LM Studio the fourth, Gemini the last.
_WINDOWS = (
    "max_model_len", "context_length", "context_window", "max_context_length", "inputTokenLimit",
)  # fmt: skip


async def find_window(server: Server) -> int | None:
    """Return the context window that a server reports, in tokens."""
    props = await server.get(root_of(server.url) + "/props")  # only llama.cpp has this endpoint
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    if isinstance(settings, dict) and isinstance(settings.get("n_ctx"), int):
        return int(settings["n_ctx"])
    for entry in _entries(await server.get(join_url(server.url, "/models", default="/v1"))):
        if server.model in (entry.get("id"), entry.get("name")):
            return next(
                (entry[name] for name in _WINDOWS if isinstance(entry.get(name), int)), None
            )
    return None
