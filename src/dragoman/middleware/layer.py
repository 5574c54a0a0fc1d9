"""The base classes of middleware, and ``describe``, which lists the layers of a provider."""

from __future__ import annotations

import inspect
import logging
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, cast

from ..errors import StreamInterruptedError, UnsupportedFeatureError
from ..events import Event
from ..messages import Message, Request
from ..prices import PricedAs
from ..provider import LayerCall, Messages, Model, Provider, Reply, WrappedReply, read_events
from ..provider.model import Kind, OfKind
from ..retrieval import Embedder, Reranker, RetrievalModel
from ..wire import SwapPlan

log = logging.getLogger("dragoman")

RETRY_REASON = "dragoman.retry_reason"
"""The key of ``Request.metadata`` with the reason for a further attempt: ``"transient"`` or
``"reask"``.
"""


def _of_inner(name: str) -> Any:
    """Return a property that reads an attribute of the wrapped model."""
    return property(attrgetter(f"inner.{name}"))


class Layer(Provider, Embedder, Reranker, Generic[Kind]):
    """A model that wraps one or more other models of one operation: chat, embed or rerank.

    The layer has the methods of all three. A method that the wrapped models do not support raises
    ``UnsupportedFeatureError``. ``Kind`` is the kind of the wrapped models, for type checkers.
    """

    if TYPE_CHECKING:

        @property
        def _kind(self) -> Kind: ...  # type: ignore[override]

    @abstractmethod
    def parts(self) -> tuple[Model, ...]:
        """Return the wrapped models."""

    def check(self, request: Any) -> None:
        if request.operation != self.operation:
            raise UnsupportedFeatureError(f"this model does not {request.operation}")
        if self.operation == "chat":
            Provider.check(self, request)
        else:
            RetrievalModel.check(self, request)

    async def send(self, request: Any) -> Any:
        """Check and send a request that is already built; return its complete answer."""
        send = Provider.send if request.operation == "chat" else RetrievalModel.send
        return await send(self, request)

    async def answer(self, request: Any) -> Any:
        """Answer one request to an embedder or a reranker."""
        return await read_whole(self.open(request))

    def find_sold(self, name: str, model: str) -> PricedAs:
        return find_served(self, name, model).priced_as

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that ``describe`` prints; never a key or a URL."""
        return {}


class Wrapper(Layer[Kind]):
    """A layer that wraps the replies of its inner providers.

    If a call is cancelled, all data that the inner reply has received is kept. A subclass
    implements ``serve``.

    Custom middleware may be derived from ``Middleware`` and override ``events`` instead; then a
    cancelled call keeps only the data that its events contain.
    """

    def events(self, request: Request) -> AsyncIterator[Event]:
        return read_events(self.open(request))

    @abstractmethod
    def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a call in batches, and set ``served.reply`` to the inner reply."""

    def open(self, request: Any) -> Reply:
        return WrappedReply(request, self.name, self.model, self.serve)


class Middleware(Layer[Kind]):
    """A layer around one model; methods that a subclass does not override call that model."""

    def __init__(self, provider: OfKind[Kind]) -> None:
        if not isinstance(provider, Model) or (
            provider.operation != "chat" and not isinstance(self, Wrapper)
        ):
            raise TypeError(
                f"{type(self).__name__}: provider must be a Provider, not "
                f"{type(provider).__name__}"
            )
        # typed as a provider, since only layers around one use methods that other models lack
        self.inner = cast("Provider", provider)
        self.operation = provider.operation
        self.batch_size = getattr(provider, "batch_size", None)

    name = _of_inner("name")
    model = _of_inner("model")
    capabilities = _of_inner("capabilities")
    token_family = _of_inner("token_family")
    searches_tools = _of_inner("searches_tools")

    def _find_seller(self) -> PricedAs:
        return self.inner.priced_as

    def parts(self) -> tuple[Model, ...]:
        return (self.inner,)

    def check(self, request: Any) -> None:
        if request.operation == self.operation == "chat":
            self.inner.check(request)  # a group checks each candidate when its turn comes
        else:
            super().check(request)

    async def ready(self) -> None:
        await self.inner.ready()

    async def close(self) -> None:
        await self.inner.close()

    def estimate_input_tokens(
        self, messages: Messages, tools: Any = None, system_prompt: str | None = None
    ) -> int:
        return self.inner.estimate_input_tokens(messages, tools, system_prompt)

    def compaction(self, tokens: int | None) -> dict[str, Any] | None:
        return self.inner.compaction(tokens)

    def compacted_at(self, messages: Sequence[Message]) -> int:
        return self.inner.compacted_at(messages)

    def plan(self, messages: Messages) -> SwapPlan:
        return self.inner.plan(messages)

    def add_defaults(self, request: Request) -> Request:
        if self.operation != "chat":
            return request  # ``check`` rejects it
        return self.inner.add_defaults(request)


@asynccontextmanager
async def reading(source: AsyncIterator[Event]) -> AsyncIterator[AsyncIterator[Event]]:
    """Return a context manager that closes a source of events as soon as its reader stops.

    Otherwise the event loop would close an abandoned generator later, and its socket would stay
    open until then.
    """
    try:
        yield source
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def read_whole(reply: Reply) -> Any:
    """Read the reply of an embedder or a reranker to its end, and return the answer."""
    async with aclosing(reply):
        batch = await reply.next()
        if not batch:
            raise StreamInterruptedError("the reply ended without an answer")
        await reply.next()  # layers report and store a call at the end of its reply
    return batch[-1]


def walk(provider: Model) -> Iterator[Model]:
    """Yield the provider and all providers that it wraps, outermost first."""
    yield provider
    if isinstance(provider, Layer):
        for part in provider.parts():
            yield from walk(part)


def walk_served(provider: Model) -> Iterator[Model]:
    """Yield the providers without layers that may serve a call."""
    return (each for each in walk(provider) if not isinstance(each, Layer))


def find_served(provider: Model, name: str, model: str) -> Model:
    """Return the inner provider with this name and model.

    If there is none, return the first inner provider with this model. If there is none either,
    return ``provider``.
    """
    if not isinstance(provider, Layer):
        return provider
    inside = [each for each in walk_served(provider) if each.model == model]
    return next((each for each in inside if each.name == name), inside[0] if inside else provider)


def describe(provider: Model) -> str:
    """Return a description of a provider and its layers: one line per layer, outermost first."""
    return "\n".join(_lines(provider))


def _lines(provider: Model) -> list[str]:
    if not isinstance(provider, Layer):
        learned = [f"  learned: {detail}" for detail in provider.lessons]
        return [
            f"{type(provider).__name__} {provider.name or '?'}:{provider.model or '?'}",
            *learned,
        ]
    settings = ", ".join([f"{name}={_show(value)}" for name, value in provider.settings().items()])
    lines = [f"{type(provider).__name__}({settings})"]
    parts = provider.parts()
    if isinstance(provider, Middleware) and len(parts) == 1:
        return lines + _lines(parts[0])
    for number, part in enumerate(parts, 1):
        first, *rest = _lines(part)
        lines += [f"  {number}. {first}", *[f"     {line}" for line in rest]]
    return lines


def _show(value: Any) -> str:
    """Return a setting as short text.

    Functions and objects are shown only by name, since a ``repr`` may contain a secret.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join([_show(item) for item in value])}]"
    if inspect.isroutine(value) or inspect.isclass(value):
        return str(value.__qualname__).replace("<locals>.", "")
    return type(value).__name__


def notify(name: str, listener: Callable[..., object] | None, *facts: Any) -> None:
    """Call the function that the caller gave as ``name``, if any; log the error if it fails."""
    if listener is None:
        return
    try:
        listener(*facts)
    except Exception:
        log.warning("%s failed; the call goes on", name, exc_info=True)


def is_async(function: object) -> bool:
    """Return whether a function, or an object that can be called, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    least: float = 0,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    """Raise a ``ValueError`` that names the setting if its ``value`` is out of range."""
    kinds = int if whole else int | float
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not least <= value <= most
        or value == math.inf
    ):
        what = "a whole number" if whole else "a number"
        bounds = f"from {least:g} to {most:g}" if most != math.inf else f"of at least {least:g}"
        raise ValueError(f"{owner}: {name} must be {what} {bounds}, not {value!r}")
