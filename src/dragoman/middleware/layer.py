"""The base classes of middleware, and ``describe``, which lists the layers of a provider."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from ..capabilities import Capabilities
from ..events import Event
from ..messages import Request
from ..prices import PricedAs
from ..provider import Messages, Provider, Reply, ReplyProvider, Served, WrappedReply
from ..retrieval import Embedder, Reranker, RetrievalModel
from ..retrieval.layer import RetrievalPolicy
from ..wire import SwapPlan

ModelT = TypeVar("ModelT", Embedder, Reranker)

ATTEMPT = "dragoman.attempt"
"""The key of ``Request.metadata`` under which ``Retry`` numbers its attempts: ``"0"``, ``"1"``,
...
"""

RETRY_REASON = "dragoman.retry_reason"
"""The key of ``Request.metadata`` with the reason for a further attempt: ``"transient"`` or
``"reask"``.
"""


class Layer(Provider):
    """A provider that wraps one or more other providers."""

    @abstractmethod
    def parts(self) -> tuple[Provider, ...]:
        """Return the wrapped providers."""

    def find_sold(self, name: str, model: str) -> PricedAs:
        return find_served(self, name, model).priced_as

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that ``describe`` prints; never a key or a URL."""
        return {}


class Wrapper(ReplyProvider, Layer):
    """A layer that wraps the replies of its inner providers.

    If a call is cancelled, all data that the inner reply has received is kept. A subclass
    implements ``serve``.

    Custom middleware may be derived from ``Middleware`` and override ``events`` instead; then a
    cancelled call keeps only the data that its events contain.
    """

    @abstractmethod
    def serve(self, request: Request, served: Served) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a call in batches, and set ``served.reply`` to the inner reply."""

    def open(self, request: Request) -> Reply:
        return WrappedReply(request, self.name, self.model, self.serve)


class Middleware(Layer):
    """A layer around one provider; methods that a subclass does not override call that provider.

    If a middleware class is called with an embedder or a reranker instead of a provider, it
    returns an embedder or a reranker to which the same policy applies.
    """

    if TYPE_CHECKING:

        @overload
        def __new__(cls, provider: Provider, *arguments: Any, **settings: Any) -> Self: ...
        @overload
        def __new__(cls, provider: ModelT, *arguments: Any, **settings: Any) -> ModelT: ...  # type: ignore[misc]
        def __new__(cls, provider: Any, *arguments: Any, **settings: Any) -> Any: ...

    else:

        def __new__(cls, provider=None, *arguments, **settings):
            if isinstance(provider, RetrievalModel):
                return cls.around_retrieval(provider, *arguments, **settings)
            return super().__new__(cls)

    @classmethod
    def around_retrieval(
        cls, model: RetrievalModel[Any, Any], *arguments: Any, **settings: Any
    ) -> Any:
        """Return an embedder or reranker wrapped by this layer.

        By default, raise ``TypeError``, since the layer does not support them.
        """
        raise TypeError(f"{cls.__name__}: provider must be a Provider, not {type(model).__name__}")

    def __init__(self, provider: Provider) -> None:
        if not isinstance(provider, Provider):
            raise TypeError(
                f"{type(self).__name__}: provider must be a Provider, not "
                f"{type(provider).__name__}"
            )
        self.inner = provider

    @property
    def name(self) -> str:  # type: ignore[override]
        """The inner provider's name."""
        return self.inner.name

    @property
    def model(self) -> str:  # type: ignore[override]
        """The inner provider's model."""
        return self.inner.model

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """The known capabilities of the inner provider's model."""
        return self.inner.capabilities

    @property
    def token_family(self) -> str:  # type: ignore[override]
        """The tokenizer family used to estimate token counts for the inner provider."""
        return self.inner.token_family

    def _find_seller(self) -> PricedAs:
        return self.inner.priced_as

    def parts(self) -> tuple[Provider, ...]:
        return (self.inner,)

    async def ready(self) -> None:
        await self.inner.ready()

    async def close(self) -> None:
        await self.inner.close()

    def estimate_input_tokens(
        self, messages: Messages, tools: Any = None, system_prompt: str | None = None
    ) -> int:
        return self.inner.estimate_input_tokens(messages, tools, system_prompt)

    def plan(self, messages: Messages) -> SwapPlan:
        return self.inner.plan(messages)


class reading:  # noqa: N801 - used as a statement: ``async with reading(source) as events``
    """A context manager that closes a source of events as soon as its reader stops.

    Otherwise the event loop would close an abandoned generator later, and its socket would stay
    open until then.
    """

    __slots__ = ("_source",)

    def __init__(self, source: AsyncIterator[Event]) -> None:
        self._source = source

    async def __aenter__(self) -> AsyncIterator[Event]:
        return self._source

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


def walk(provider: Provider) -> Iterator[Provider]:
    """Yield the provider and all providers that it wraps, outermost first."""
    yield provider
    if isinstance(provider, Layer):
        for part in provider.parts():
            yield from walk(part)


def find_served(provider: Provider, name: str, model: str) -> Provider:
    """Return the inner provider with this name and model.

    If there is none, return the first inner provider with this model. If there is none either,
    return ``provider``.
    """
    inside = [
        each for each in walk(provider) if not isinstance(each, Layer) and each.model == model
    ]
    return next((each for each in inside if each.name == name), inside[0] if inside else provider)


def describe(provider: Provider | RetrievalModel[Any, Any]) -> str:
    """Return a description of a provider and its layers: one line per layer, outermost first."""
    return "\n".join(
        _lines_of_model(provider) if isinstance(provider, RetrievalModel) else _lines(provider)
    )


def _lines_of_model(model: RetrievalModel[Any, Any]) -> list[str]:
    policy: RetrievalPolicy | None = getattr(model, "policy", None)
    if policy is None:
        return [f"{type(model).__name__} {model.name or '?'}:{model.model or '?'}"]
    settings = ", ".join([f"{name}={_show(value)}" for name, value in policy.settings().items()])
    lines = [f"{policy.title}({settings})"]
    parts: tuple[RetrievalModel[Any, Any], ...] = getattr(model, "parts", tuple)()
    if len(parts) == 1:
        return lines + _lines_of_model(parts[0])
    for number, part in enumerate(parts, 1):
        first, *rest = _lines_of_model(part)
        lines += [f"  {number}. {first}", *[f"     {line}" for line in rest]]
    return lines


def _lines(provider: Provider) -> list[str]:
    if not isinstance(provider, Layer):
        learned = [f"  learned: {detail}" for detail in provider.lessons]
        return [
            f"{type(provider).__name__} {provider.name or '?'}:{provider.model or '?'}",
            *learned,
        ]
    settings = ", ".join([f"{name}={_show(value)}" for name, value in provider.settings().items()])
    lines = [f"{type(provider).__name__}({settings})"]
    parts = provider.parts()
    if isinstance(provider, Middleware):
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
