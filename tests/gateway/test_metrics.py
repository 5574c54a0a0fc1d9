"""Test ``/metrics``: cost, latency, tokens and budgets, who may read them, and their bounds."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import Fallback
from dragoman.calls import CallCompleted, RoutingSwitched
from dragoman.errors import OverloadedError
from dragoman.events import Usage
from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key, new_key
from dragoman.gateway.ledger import KeyBudget, Ledger
from dragoman.gateway.metrics import Metrics
from dragoman.log import MemoryLog
from dragoman.sim import ScriptedProvider, ScriptRule

from ..listed import Listed, reply
from ..log.test_tool_calls import CALLS, answer, count, look
from ..web.test_site import get
from .serving import serving
from .test_app import ANN, BOB, BODY, bearer, post

ADMIN, DIGEST = new_key()
USED = Usage(input_tokens=1000, output_tokens=500, cached_input_tokens=400, total_tokens=1500)
KEYS = KeyRing(
    [
        Key("ann", hash_key(ANN), budget_usd=Decimal(5), team="rivers",
            team_budget_usd_month=Decimal(1)),
        Key("bob", hash_key(BOB), budget_usd_month=Decimal("0.01")),
    ]
)  # fmt: skip
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def read(text: str) -> dict[str, dict[str, float]]:
    """Return the values of a page in the text format, by name and labels."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            found.setdefault(match[1], {})[(match[2] or "").replace('"', "")] = float(match[3])
    return found


def priced(*answers: Any, **more: Any) -> Listed:
    return Listed(*answers, name="anthropic", model="claude-sonnet-4-5", repeat=True, **more)


async def scrape(url: str, key: str) -> dict[str, dict[str, float]]:
    status, _, text = await get(f"{url}/metrics", bearer(key))
    assert status == 200
    return read(text)


async def test_metrics_have_cost_latency_tokens_and_budgets() -> None:
    broken = Listed(OverloadedError("no"), name="openai", model="gpt-5-mini", repeat=True)
    models = {
        "fast": Fallback([broken, priced(reply("Hello", usage=USED))]),
        "free": Listed(reply("Hello", usage=USED), name="own", model="m", repeat=True),
    }
    keys = KeyRing([*KEYS.keys, Key("eve", hash_key("dg-eve"))])
    async with serving(create_app(models, keys=keys, admin=DIGEST)) as url:
        for key, model in ((ANN, "fast"), (ANN, "fast"), (BOB, "fast"), ("dg-eve", "free")):
            status, _, _ = await post(
                f"{url}/v1/chat/completions", {**BODY, "model": model}, bearer(key)
            )
            assert status == 200
        found = await scrape(url, ADMIN)
    cost = float(Decimal("600") * 3 + Decimal("400") * Decimal("0.3") + 500 * 15) / 1_000_000
    assert found["dragoman_cost_usd_total"] == {
        "model=fast,key=ann": pytest.approx(2 * cost),
        "model=fast,key=bob": pytest.approx(cost),
    }
    assert found["dragoman_unpriced_calls_total"] == {"model=free": 1}
    assert found["dragoman_cache_hits_total"] == {"model=fast": 3, "model=free": 1}
    assert found["dragoman_tokens_total"] == {
        "model=fast,kind=input": 3000, "model=fast,kind=output": 1500,
        "model=fast,kind=cached": 1200, "model=free,kind=input": 1000,
        "model=free,kind=output": 500, "model=free,kind=cached": 400,
    }  # fmt: skip
    for name in ("request", "first_event"):
        assert found[f"dragoman_{name}_seconds_count"] == {
            "model=fast,provider=listed": 3,
            "model=free,provider=listed": 1,
        }
    assert found["dragoman_budget_usd"] == {
        "account=ann,period=total": 5,
        "account=bob,period=month": 0.01,
        "account=team:rivers,period=month": 1,
    }
    assert found["dragoman_budget_left_usd"] == {
        "account=ann,period=total": pytest.approx(5 - 2 * cost),
        "account=bob,period=month": pytest.approx(0.01 - cost),
        "account=team:rivers,period=month": pytest.approx(1 - 2 * cost),
    }


async def test_key_reads_no_cost_and_no_budget_of_another_key() -> None:
    app = create_app({"fast": priced(reply("Hello", usage=USED))}, keys=KEYS, admin=DIGEST)
    async with serving(app) as url:
        for key in (ANN, BOB, BOB):
            await post(f"{url}/v1/chat/completions", BODY, bearer(key))
        every = await scrape(url, ADMIN)
        own = await scrape(url, BOB)
        assert (await get(f"{url}/metrics"))[0] == 401
        assert (await get(f"{url}/metrics", bearer("dg-wrong")))[0] == 401
    costs = every["dragoman_cost_usd_total"]
    assert own["dragoman_cost_usd_total"] == {
        "model=fast,key=bob": costs["model=fast,key=bob"],
        "model=fast,key=other": costs["model=fast,key=ann"],
    }
    assert set(own["dragoman_budget_left_usd"]) == {"account=bob,period=month"}
    for name in set(every) - {"dragoman_cost_usd_total", "dragoman_budget_usd"}:
        assert name == "dragoman_budget_left_usd" or own[name] == every[name], name


def count_values(found: dict[str, dict[str, float]], label: str) -> set[str]:
    series = [labels for values in found.values() for labels in values]
    return {value for labels in series for value in re.findall(rf"(?:^|,){label}=([^,]*)", labels)}


def test_labels_have_a_bounded_number_of_values() -> None:
    metrics = Metrics()
    record = CallCompleted(
        provider="p", model="m", request_id="r", at=0.0, latency_ms=1.0, input_tokens=1,
        cost_usd=Decimal(1), stop_reason="end_turn",
    )  # fmt: skip
    for number in range(300):
        name = f"n{number}"
        metrics.count("openai", name, 200)
        metrics.use(name, f"key{number}", [record])
        metrics.time(name, f"provider{number}", request=0.2)
        metrics.switch(
            name, [RoutingSwitched(from_=f"a:{number}", to=f"b:{number}", reason="timeout")]
        )
    budgets = [KeyBudget(f"key{n}", "total", Decimal(300), Decimal(300 - n)) for n in range(300)]
    found = read(metrics.text(budgets))
    for label in ("model", "key", "provider"):
        values = count_values(found, label)
        assert len(values) == 101, label
        assert "other" in values
    assert len(count_values(found, "from") | count_values(found, "to")) == 101
    # nothing is lost: what has no series of its own is in the sum of the others
    assert sum(found["dragoman_requests_total"].values()) == 300
    assert found["dragoman_requests_total"]["wire=openai,model=other,status=200"] == 200
    assert sum(found["dragoman_cost_usd_total"].values()) == 300
    assert sum(found["dragoman_request_seconds_count"].values()) == 300
    assert sum(found["dragoman_switches_total"].values()) == 300
    # of budgets, those with the least left are shown
    assert max(found["dragoman_budget_left_usd"].values()) == 100
    assert len(found["dragoman_budget_left_usd"]) == 100


def test_large_counts_are_exact() -> None:
    metrics = Metrics()
    metrics.time("m", "p", request=0.2)
    saved = metrics.save()
    for _, held in saved.seconds["request"]:
        held[3] = 12_345_678.0
    other = Metrics()
    other.add(saved)
    found = read(other.text())
    assert found["dragoman_request_seconds_count"] == {"model=m,provider=p": 12_345_678}
    assert "e+" not in other.text()


async def test_metrics_are_served_while_budgets_cannot_be_read(
    own_postgres: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(own_postgres.url)
    app = create_app({"fast": priced(reply("Hello"))}, keys=KEYS, ledger=ledger, admin=DIGEST)
    async with serving(app) as url:
        found = await scrape(url, ADMIN)
        assert len(found["dragoman_budget_left_usd"]) == 3
        assert found["dragoman_budgets_unread_total"] == {"": 0.0}
        own_postgres.stop()
        found = await scrape(url, ADMIN)
        assert "dragoman_budget_left_usd" not in found
        assert found["dragoman_budgets_unread_total"] == {"": 1.0}
        assert "the budgets cannot be read" in caplog.text
        own_postgres.start()
        assert len((await scrape(url, ADMIN))["dragoman_budget_left_usd"]) == 3
    ledger.close()


def test_budget_that_is_exceeded_has_nothing_left(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "used.db", clock=lambda: 0.0)
    key = Key("ann", "x", budget_usd=Decimal(1), budget_usd_month=Decimal(3), team="rivers")
    ledger.settle(None, key, money=Decimal(2))
    assert ledger.read_budgets(key.limits) == [
        KeyBudget("ann", "total", Decimal(1), Decimal(0)),
        KeyBudget("ann", "month", Decimal(3), Decimal(1), datetime(1970, 2, 1, tzinfo=UTC)),
    ]
    ledger.close()


async def test_gateway_counts_faults_in_its_metrics_and_its_log() -> None:
    offered = {"type": "function", "function": msgspec.to_builtins(look.description)}
    body = {"model": "m", "tools": [offered]}
    with MemoryLog() as log:
        app = create_app({"m": ScriptedProvider(ScriptRule(answer), model="m")}, log=log)
        async with serving(app) as url:
            for words in ("sound unknown_name", "invalid_json", "schema_mismatch", "nothing"):
                asked = {**body, "messages": [{"role": "user", "content": words}]}
                await post(f"{url}/v1/chat/completions", asked)
            found = read((await get(f"{url}/metrics"))[2])["dragoman_tool_calls_total"]
        assert found == {f"model=m,provider=sim,outcome={name}": 1 for name in CALLS}
        assert count(log) == dict.fromkeys(CALLS, 1)
        assert "sea" not in str([record.line for record in log.find("llm.call_failed")])
