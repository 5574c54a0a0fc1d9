"""Limit what calls cost: ``Spend`` reserves the expected cost of each call in a ``Wallet``."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from decimal import Decimal, InvalidOperation
from typing import Any

from ..calls import CallCompleted, CallFailed
from ..errors import QuotaExceededError
from ..events import Event, Usage
from ..messages import Request
from ..prices import Unpriced
from ..prices.results import EXACT
from ..provider import LayerCall, Model
from ..provider.model import Kind, OfKind
from ..retrieval import RerankRequest
from ..validate.fields import accept_other_names
from ..wire.terms import list_asked
from .attempts import Attempt
from .fallback import NotConfigured
from .layer import Middleware, Wrapper, walk_served
from .ratelimit import estimate_texts

_MOST = Decimal(10) ** 15
# The number of documents that rerankers bill as one search unit.
_SEARCH_UNIT = 100


class Wallet:
    """An amount of money that several ``Spend`` layers share.

    ``spent_usd`` is the cost of all calls so far, including failed and cancelled ones.
    ``reserved_usd`` is the expected cost of the calls in flight, which has been set aside.
    """

    @accept_other_names({"cost_usd": "usd"}, {"budget": "write usd="})
    def __init__(self, usd: Decimal | float | str) -> None:
        self.usd = _read_money(usd)
        self.spent_usd = Decimal(0)
        self.reserved_usd = Decimal(0)
        self.unpriced: str | None = None
        """Why the cost of an earlier call is unknown; no further call is sent then."""
        self._most_output: int | None = None
        self._in_flight = 0
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()  # the layers may be used in several event loops

    @property
    def left_usd(self) -> Decimal:
        """What is neither spent nor reserved; not less than 0."""
        used = EXACT.add(self.spent_usd, self.reserved_usd)
        return max(Decimal(0), EXACT.subtract(self.usd, used))

    def __repr__(self) -> str:
        return f"Wallet(usd={self.usd}, spent_usd={self.spent_usd})"

    # --- what the layers use

    def guess_output(self) -> int | None:
        """Return the most output tokens of a call so far; ``None`` before the first call ends."""
        return self._most_output

    async def reserve(self, find_cost: Any) -> Decimal:
        """Set the expected cost of a call aside, and return it.

        ``find_cost(most_output)`` returns the cost, or ``None`` if it cannot be known before
        another call has ended. Wait, in order, while the calls in flight may leave enough; raise
        ``QuotaExceededError`` if they cannot.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop)
        self._waiting.append(waiter)
        try:
            while True:
                with self._lock:
                    amount = self._try(find_cost) if self._waiting[0] is waiter else None
                    if amount is not None:
                        return amount
                    turn = waiter.renew()
                await turn
        finally:
            with self._lock:
                self._waiting.remove(waiter)
                self._wake()

    def _try(self, find_cost: Any) -> Decimal | None:
        if self.unpriced is not None:
            raise _refuse(f"the cost of an earlier call is not known: {self.unpriced}")
        amount: Decimal | None = find_cost(self._most_output)
        if amount is None and self._in_flight:
            return None
        needed = Decimal(0) if amount is None else amount
        expected = EXACT.add(self.spent_usd, needed)
        if self.spent_usd >= self.usd or expected > self.usd:
            spent = f"${self.spent_usd:f} of ${self.usd:f} is spent"
            raise _refuse(f"{spent}, and this call may cost ${needed:f}; it was not sent")
        if EXACT.add(expected, self.reserved_usd) > self.usd:
            return None
        self.reserved_usd = EXACT.add(self.reserved_usd, needed)
        self._in_flight += 1
        return needed

    def settle(self, reserved: Decimal, attempt: Attempt) -> None:
        """Replace the reservation of a call by what it has cost."""
        with self._lock:
            self.reserved_usd = EXACT.subtract(self.reserved_usd, reserved)
            self._in_flight -= 1
            for record in attempt.finish():
                if isinstance(record, CallCompleted | CallFailed):
                    self._count(record)
            self._wake()

    def _count(self, call: CallCompleted | CallFailed) -> None:
        if isinstance(call, CallFailed) and call.usage == Usage():
            return  # a rejected call used nothing
        if call.output_tokens is not None:
            self._most_output = max(self._most_output or 0, call.output_tokens)
        if call.cost_usd is not None:
            self.spent_usd = EXACT.add(self.spent_usd, call.cost_usd)
        else:
            reason = call.cost_unknown or "the server reported no usage"
            self.unpriced = f"{call.provider}:{call.model}: {reason}"

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].wake()


class _Waiter:
    """A call that waits for its turn in a wallet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn: asyncio.Future[None] = loop.create_future()

    def renew(self) -> asyncio.Future[None]:
        """Return the future of the next turn."""
        if self._turn.done():
            self._turn = self._loop.create_future()
        return self._turn

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, self._turn)


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class Spend(Wrapper[Kind], Middleware[Kind]):
    """Refuse calls that would cost more than an amount of US dollars.

    ``Spend(model, usd=5)`` has an amount of its own. Several layers share a ``Wallet``:
    ``Spend(model, wallet)``. A call sets its expected cost aside before it is sent: the estimated
    input tokens and ``max_tokens`` of output. Without ``max_tokens``, the longest output of a call
    so far is expected, so the first call runs alone; then a call can exceed the amount only if its
    output is longer than that of each call before it.

    A call waits if the calls in flight may leave enough for it, and is refused with
    ``QuotaExceededError`` if they cannot. The price of each model must be known: unknown is not
    zero. Put this layer around ``Retry`` and ``Fallback``, so that all attempts are counted. If
    calls pass several wallets, nest the layers in the same order everywhere: a call holds what it
    has set aside while it waits for the next wallet, so that two calls in reverse order can wait
    for ever.
    """

    @accept_other_names({"cost_usd": "usd"}, {"budget": "write usd="})
    def __init__(
        self,
        provider: OfKind[Kind],
        wallet: Wallet | None = None,
        *,
        usd: Decimal | float | str | None = None,
    ) -> None:
        super().__init__(provider)
        if (wallet is None) == (usd is None):
            raise ValueError("Spend: give usd=, such as usd=5, or a Wallet that layers share")
        if wallet is not None and not isinstance(wallet, Wallet):
            raise ValueError(f"Spend: wallet must be a Wallet, not {type(wallet).__name__}")
        self.wallet = wallet if wallet is not None else Wallet(usd or 0)
        for each in _find_priced(self.inner):
            problem = each.priced_as.find_problem()
            if problem is not None:
                raise ValueError(
                    f"Spend: the price of {each.name}:{each.model} is not known: {problem}; set "
                    "priced_as, such as connect(..., priced_as='vendor:model')"
                )

    def settings(self) -> Mapping[str, Any]:
        return {"usd": f"{self.wallet.usd:f}", "spent_usd": f"{self.wallet.spent_usd:f}"}

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        tokens = self._count_input(request)
        reserved = await self.wallet.reserve(lambda most: self._expect(request, tokens, most))
        attempt = Attempt(self.inner, request)
        failure: BaseException | None = None
        try:
            async with aclosing(self.inner.open(request)) as reply:
                served.reply = attempt.reply = reply
                while batch := await reply.next():
                    attempt.hear(batch)
                    yield batch
        except BaseException as error:
            failure = error
            raise
        finally:
            is_left = isinstance(failure, asyncio.CancelledError | GeneratorExit)
            attempt.stop(failure)
            if is_left and attempt.answer is None:
                # The caller estimates the usage of an interrupted reply after this generator ends.
                loop = asyncio.get_running_loop()
                loop.call_soon(self.wallet.settle, reserved, attempt)
            else:
                self.wallet.settle(reserved, attempt)
            del attempt, failure  # the error refers to this frame

    def _count_input(self, request: Any) -> int:
        if isinstance(request, Request):
            return self.inner.estimate_input_tokens(request.messages, request.tools)
        return estimate_texts(request)

    def _expect(self, request: Any, tokens: int, most_output: int | None) -> Decimal | None:
        """Return the expected cost of a call with the most expensive model that may serve it."""
        output: int | None = 0
        if isinstance(request, Request):
            output = request.config.max_tokens
            output = most_output if output is None else output
        if output is None:
            return None
        found = expect_cost(self.inner, request, tokens, output)
        if isinstance(found, Unpriced):
            raise _refuse(f"the cost of this call is not known: {found.reason}")
        return found


def expect_cost(model: Any, request: Any, tokens: int, output: int) -> Decimal | Unpriced:
    """Return the cost of a call with the most expensive model that may serve it.

    ``tokens`` and ``output`` are the expected numbers of tokens. If one of the prices is not
    known, return why.
    """
    terms = list_asked(request) if isinstance(request, Request) else ()
    usage = Usage(tokens, output, terms=terms)
    if isinstance(request, RerankRequest):
        units = -(-len(request.documents) // _SEARCH_UNIT)
        usage = Usage(tokens, output, search_units=units)
    costs = [each.priced_as.cost(usage) for each in _find_priced(model)]
    for found in costs:
        if isinstance(found, Unpriced):
            return found
    return max([found.total for found in costs if found], default=Decimal(0))


def _find_priced(provider: Model) -> list[Model]:
    """Return the models that may serve a call and be billed for it."""
    return [each for each in walk_served(provider) if not isinstance(each, NotConfigured)]


def _refuse(problem: str) -> QuotaExceededError:
    return QuotaExceededError(
        f"the budget of Spend: {problem}",
        provider_code="budget",
        advice="Raise usd= of Spend or Wallet, or lower max_tokens of the call.",
    )


def _read_money(given: Any) -> Decimal:
    try:
        money = Decimal("NaN") if isinstance(given, bool) else Decimal(str(given))
    except InvalidOperation:
        money = Decimal("NaN")
    if not money.is_finite() or not 0 < money <= _MOST:
        raise ValueError(f"usd must be a number above 0, such as 5 or '0.50', not {given!r}")
    return money
