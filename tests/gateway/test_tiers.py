"""Test that the gateway's records, ledger and budgets have the price of the tier that was served."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from dragoman.log import MemoryLog

from ..wire.sold import INPUT, OUTPUT, TABLE, Sold, open_model, tier, write_body, write_stream
from .serving import serving
from .test_app import ANN, bearer, post
from .upstream import BODIES, PATHS

ANNS = KeyRing([Key("ann", hash_key(ANN), budget_usd=Decimal(9))])
STREAM_PATHS = {
    "gemini": "/v1beta/models/{model}:streamGenerateContent?alt=sse",
    "bedrock": "/model/{model}/converse-stream",
}


USUAL = Usage(INPUT, OUTPUT)


def read_price(sold: Sold) -> Decimal:
    model, _ = open_model(sold, b"")
    usual = model.priced_as.cost(USUAL)
    assert usual
    return usual.total


@contextlib.asynccontextmanager
async def offer(rows: Sequence[Sold], stream: bool, *betas: str) -> AsyncIterator[Offer]:
    """Serve a model for each row, named after its place."""
    write = write_stream if stream else write_body
    opened = {str(at): open_model(sold, write(sold)) for at, sold in enumerate(rows)}
    ledger = Ledger()
    log = MemoryLog()
    models = {name: model for name, (model, _) in opened.items()}
    app = create_app(models, keys=ANNS, ledger=ledger, log=log, betas=betas)
    async with serving(app) as url:
        sent = {name: transport.requests for name, (_, transport) in opened.items()}
        yield Offer(url, stream, ledger, log, sent)


class Offer(NamedTuple):
    """A gateway and what came of its calls."""

    url: str
    stream: bool
    ledger: Ledger
    log: MemoryLog
    sent: dict[str, list[Any]]

    async def ask(self, name: str, sold: Sold) -> tuple[int, Any]:
        """Ask a model with its own wire."""
        path = PATHS[sold.wire]
        body = {**BODIES[sold.wire], **sold.asked}
        if sold.wire not in STREAM_PATHS:
            body |= {"model": name, "stream": self.stream}
        elif self.stream:
            path = STREAM_PATHS[sold.wire]
        status, _, said = await post(self.url + path.format(model=name), body, bearer(ANN))
        return status, said


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", ["openai", "responses", "anthropic", "gemini", "bedrock"])
async def test_key_is_charged_what_the_service_tier_costs(wire: str, stream: bool) -> None:
    rows = [sold for sold in TABLE if sold.wire == wire]
    async with offer(rows, stream, "*") as gateway:
        for at, sold in enumerate(rows):
            before = gateway.ledger.spent("ann")
            status, said = await gateway.ask(str(at), sold)
            sent = len(gateway.sent[str(at)])
            if sold.factor is None and sold.asked and sold.asked != tier("auto"):
                # A budget cannot be kept if the price of what the client asks for is not known.
                assert status == 402, sold
                assert sent == 0
                assert "budget cannot be kept" in str(said)
                continue
            assert status == 200, sold
            assert sent == 1
            end: Any = [each.payload for each in gateway.log.find("llm.call_completed")][-1]
            expected = None if sold.factor is None else read_price(sold) * Decimal(sold.factor)
            assert end.cost_usd == expected, sold
            assert (end.cost_unknown is None) == (sold.factor is not None)
            assert gateway.ledger.spent("ann") - before == (expected or 0)


async def test_tier_that_is_not_allowed_is_neither_sent_nor_billed() -> None:
    sold = Sold("openai:gpt-6-astra", "openai", tier("ultrafast"), tier("default"), "1")
    async with offer([sold], False, "default") as gateway:
        status, _ = await gateway.ask("0", sold)
        [request] = gateway.sent["0"]
        assert status == 200
        assert b"service_tier" not in request.body
        assert gateway.ledger.spent("ann") == read_price(sold)
