"""A number of any size that a server reports gives a reply whose records can all be read back."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import ProviderError, Response, Usage
from dragoman import log as logs
from dragoman.events import MAX_COUNT
from dragoman.gateway.keys import Key
from dragoman.gateway.ledger import Ledger
from dragoman.prices import PriceRow, cost
from dragoman.prices.rows import Match
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from .wire.replies import reply

NUMBERS = {
    "10^9": "1000000000",
    "10^9+1": "1000000001",
    "10^18": "1" + "0" * 18,
    "2^63": "9223372036854775808",
    "10^30": "1" + "0" * 30,
    "10^400": "1" + "0" * 400,
    "10^5000": "1" + "0" * 5000,
    "-1": "-1",
    "-2^63": "-9223372036854775808",
    "-10^400": "-1" + "0" * 400,
    "1e18": "1e18",
    "1e400": "1e400",
    "1e-400": "1e-400",
    "0.5": "0.5",
    "400 decimals": "0." + "3" * 400,
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
}
# Every number of the usage record of each wire, with the vendors' own names.
RECORDS: dict[str, dict[str, Any]] = {
    "openai": {
        "usage": {
            "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cost": 0.25,
            "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
            "completion_tokens_details": {"reasoning_tokens": 1},
            "prompt_cache_hit_tokens": 2, "cached_tokens": 2, "num_cached_tokens": 2,
            "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1, "reasoning_tokens": 1,
        }
    },
    "anthropic": {
        "usage": {
            "input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 1, "output_tokens_details": {"thinking_tokens": 1},
        }
    },
    "gemini": {
        "usageMetadata": {
            "promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 1,
            "cachedContentTokenCount": 2, "totalTokenCount": 13, "toolUsePromptTokenCount": 2,
        }
    },
    "responses": {
        "usage": {
            "input_tokens": 7, "output_tokens": 3, "total_tokens": 10,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
            "output_tokens_details": {"reasoning_tokens": 1},
        },
        "created_at": 1,
    },
    "ollama": {
        "prompt_eval_count": 7, "eval_count": 3, "total_duration": 1, "load_duration": 1,
        "prompt_eval_duration": 1, "eval_duration": 1,
    },
    "cohere": {
        "usage": {
            "billed_units": {"input_tokens": 7, "output_tokens": 3},
            "tokens": {"input_tokens": 7, "output_tokens": 3, "reasoning_tokens": 1},
            "cached_tokens": 2,
        }
    },
    "bedrock": {
        "usage": {
            "inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cacheReadInputTokens": 2,
            "cacheWriteInputTokens": 1,
        },
        "metrics": {"latencyMs": 1},
    },
}  # fmt: skip
ROW = PriceRow("acme", Match(("m",)), input=Decimal("1.25"), output=Decimal("10.5"))
KEY = Key("k", "0" * 64, requests_per_minute=9, tokens_per_minute=9, budget_usd=Decimal(5))


def paths(record: Any, *above: str) -> Iterator[tuple[str, ...]]:
    if not isinstance(record, dict):
        yield above
        return
    for name, value in record.items():
        yield from paths(value, *above, name)


def with_number(wire: str, path: tuple[str, ...], number: str) -> bytes:
    """Return a reply of the wire in which the number at the path is ``number``, digit by digit."""
    body = json.loads(json.dumps({**reply(wire, "Hello."), **RECORDS[wire]}))
    holder = body
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = "@number"
    return json.dumps(body).replace('"@number"', number).encode()


PLACES = [(wire, path) for wire, record in RECORDS.items() for path in paths(record)]


def check_usage(usage: Usage) -> None:
    for name in Usage.__struct_fields__:
        value = getattr(usage, name)
        if type(value) is int:
            assert 0 <= value <= MAX_COUNT, name
    if usage.stated_cost_usd is not None:
        assert 0 <= usage.stated_cost_usd <= 10**6
        assert len(f"{usage.stated_cost_usd:f}") < 60


def check_records(response: Response) -> None:
    """Write the record of a call to a log, and read it back."""
    message = logs.MessageRecorded(
        message=response.message,
        usage=response.usage,
        warnings=response.warnings,
        cost_usd=cost(response).total,
    )
    with logs.MemoryLog() as log:
        log.append_sync("s", message)
        assert log.verify().ok
        [record] = log.read("s")
        assert record.payload == message
        assert record.data["message"]["role"] == "assistant"


def test_every_wire_is_in_the_table() -> None:
    assert set(RECORDS) == set(CODECS)


async def answer(wire: str, body: bytes) -> Response:
    model = dragoman.connect(
        "m", wire=wire, base_url="http://127.0.0.1:9", api_key="k", priced_as=ROW,
        transport=FixtureTransport((200, {}, [body])),
    )  # fmt: skip
    return await model.complete("Hi", config={"max_tokens": 99})


@pytest.mark.parametrize(("wire", "path"), PLACES, ids=str)
async def test_number_of_any_size_gives_a_usage_that_can_be_counted_and_recorded(
    wire: str, path: tuple[str, ...], tmp_path: Path
) -> None:
    usual = await answer(wire, with_number(wire, path, "2"))
    ledger = Ledger(tmp_path / "ledger.db")
    for number in NUMBERS.values():
        try:
            response = await answer(wire, with_number(wire, path, number))
        except ProviderError:
            # a number that no JSON decoder reads makes the reply invalid
            assert len(number) > 4300 or number in ("NaN", "Infinity", "-Infinity", "1e400")
            continue
        check_usage(response.usage)
        check_records(response)
        if number.isdigit() and len(number) > 10 and response.usage != usual.usage:
            assert {warning.code for warning in response.warnings} == {"usage_dropped"}
        tokens = response.total_usage.input_tokens or 0
        ledger.settle(None, KEY, tokens, cost(response).total or Decimal(0))
    assert ledger.read_budgets(KEY.limits)[0].left >= 0
    ledger.close()
