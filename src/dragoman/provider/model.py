"""``Model``: what chat, embedding and reranking models have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..calls import Operation
from ..capabilities import Capabilities
from ..errors import (
    CallCancelledError,
    InvalidRequestError,
    ProviderError,
    explain_attribute,
    quote,
)
from ..messages import Request
from ..prices import PricedAs, PriceRow
from ..validate import check_request
from .reply import Reply
from .stream import CallsInFlight

if TYPE_CHECKING:  # type checkers bundle typing_extensions, so it need not be installed
    from typing_extensions import TypeVar

    Kind = TypeVar("Kind", default=Any)
    KindOut = TypeVar("KindOut", default=Any, covariant=True)
else:
    from typing import TypeVar

    Kind = TypeVar("Kind")
    KindOut = TypeVar("KindOut", covariant=True)


_COMPLETE = "write model.complete(...)"
METHODS = {
    **dict.fromkeys(
        ("ask", "call", "chat", "completion", "completions", "create", "generate", "invoke",
         "messages", "predict", "prompt", "query", "responses", "run", "send_message"),
        _COMPLETE,
    ),
    "acomplete": "write await model.complete(...); dragoman.sync.connect gives a model that blocks",
    "astream": "write model.stream(...) and async for",
    "embeddings": "connect_embedder() gives a model with embed()",
    "tools": "pass tools=[...] to complete(), or to a Session, which runs them",
    "bind_tools": "pass tools=[...] to complete(), or to a Session, which runs them",
}  # fmt: skip
"""What the methods of other libraries are called here."""


class OfKind(Protocol[KindOut]):
    """A model, for type checkers: its kind is ``Provider``, ``Embedder`` or ``Reranker``.

    A layer has the kind of the model that it wraps, so ``Retry(chat).embed(...)`` is a type error.
    """

    if TYPE_CHECKING:

        @property
        def _kind(self) -> KindOut: ...


class Model(ABC):
    """One model that can be called: its name and price, and the calls in flight."""

    operation: Operation
    name: str = ""
    model: str = ""
    capabilities: Capabilities = Capabilities()
    server: str | None = None
    """The host and port that calls go to, such as ``api.example.com:443``; ``None`` if they use no
    network.
    """
    address_env: str | None = None
    """The environment variable from which the server's address was read, if it was."""
    _priced_as: PricedAs | None = None

    if TYPE_CHECKING:

        @property
        def _kind(self) -> Any: ...

    @property
    def priced_as(self) -> PricedAs:
        """The price of calls.

        To set the price, assign a ``"vendor:model"`` that a price table lists, ``"free"``, or a
        ``PriceRow``.
        """
        return self._priced_as or self._find_seller()

    @priced_as.setter
    def priced_as(self, given: PricedAs | PriceRow | str) -> None:
        self._priced_as = PricedAs.of(given, self.model)

    @property
    def lessons(self) -> tuple[str, ...]:
        """The fields that the endpoint has rejected, and what is sent instead.

        ``describe()`` prints them.
        """
        return ()

    @abstractmethod
    def open(self, request: Any) -> Reply:
        """Return the reply to a request; the first call of ``Reply.next`` sends the request."""

    @abstractmethod
    def check(self, request: Any) -> None:
        """Raise an error if the model is known not to support the request; nothing is sent."""

    async def ready(self) -> None:  # noqa: B027
        """Check whether the next call is likely to succeed; raise the expected error if not."""

    async def close(self) -> None:  # noqa: B027
        """Close the connections to the server."""

    async def cancel(self, request_id: str) -> bool:
        """Cancel the call with this request id; return whether it was in flight."""
        return await self._calls.cancel(request_id)

    def find_sold(self, name: str, model: str) -> PricedAs:
        """Return the price of a call that was answered by the given provider and model.

        In a group of providers, the price depends on the provider that answered.
        """
        return self.priced_as

    async def __aenter__(self) -> Self:
        return self

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves

        def __enter__(self):
            raise TypeError(
                "use 'async with', or dragoman.sync.connect for code that is not async"
            )

        def __exit__(self, *_):
            """Exist, so that Python calls ``__enter__``, which explains the mistake."""

        def __getattr__(self, name):
            return explain_attribute(self, name, METHODS)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'} {self.model or '?'}>"

    # --- methods for subclasses and middleware layers

    def _find_seller(self) -> PricedAs:
        return PricedAs(f"{self.name}:{self.model}")

    def _cancelled(self, request: Any, response: Any = None) -> CallCancelledError:
        """Return the error for a call that was cancelled; ``response`` is what has arrived."""
        return CallCancelledError(
            "the call was cancelled",
            provider=self.name or None,
            model=self.model or None,
            request_id=request.request_id,
            response=response,
        )

    @cached_property
    def _calls(self) -> CallsInFlight:
        # created on first use, so that subclasses need not call ``__init__``
        return CallsInFlight()

    def _check_request(self, request: Any) -> None:
        """Raise an error if a request is invalid, unsupported, or in flight already."""
        try:
            if isinstance(request, Request):
                check_request(request)
            self.check(request)
            if request.request_id in self._calls:
                raise InvalidRequestError(
                    f"request_id {quote(request.request_id)} is already in flight; wait for that call, or use another id"
                )
        except ProviderError as error:
            error.provider = self.name or None
            error.model = self.model or None
            error.request_id = request.request_id
            raise
