"""Test budgets by key, user, team and tag: their periods, their reset, and what calls reserve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman import database as database_module
from dragoman.errors import QuotaExceededError, RateLimitError
from dragoman.events import Usage
from dragoman.gateway import ledger_writer as ledger_module
from dragoman.gateway.app import create_app
from dragoman.gateway.budgets import Budget, read_name
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.gateway.ledger import Ledger
from tests.listed import Clock, Listed, reply
from tests.waiting import PATIENCE, arrival, until

from .serving import serving
from .test_app import BODY, bearer, post

USED = Usage(input_tokens=1000, output_tokens=1000, total_tokens=2000)
PRICE = Decimal("0.018")  # of USED with this model
NOON = datetime(2030, 1, 16, 12, tzinfo=UTC)  # a Wednesday
DAY = 86_400


def priced(*answers: Any) -> Listed:
    return Listed(*answers, name="anthropic", model="claude-sonnet-4-5", repeat=True)


# --- periods and names --------------------------------------------------------------------------

PERIODS = [
    ("day", "2030-01-16", "2030-01-17T00:00:00"),
    ("week", "2030-W03", "2030-01-21T00:00:00"),
    ("month", "2030-01", "2030-02-01T00:00:00"),
    ("total", "", None),
]


@pytest.mark.parametrize(("period", "counter", "ends"), PERIODS)
def test_period_has_a_counter_and_an_end_and_a_reset_begins_another_counter(
    period: Any, counter: str, ends: str | None
) -> None:
    budget = Budget("team:core", period, Decimal(1))
    end = None if ends is None else datetime.fromisoformat(ends).replace(tzinfo=UTC)
    now = NOON.timestamp()
    assert budget.find_counter(now) == counter
    assert budget.find_end(now) == end
    reset = replace(budget, began=datetime(2030, 1, 16, 9, tzinfo=UTC))
    assert reset.find_counter(now) == f"{counter}@1894784400000"
    assert reset.find_end(now) == end
    if end is not None:
        later = end.timestamp()
        assert reset.find_counter(later) == budget.find_counter(later) != counter


def test_thirty_days_are_counted_from_the_time_at_which_the_budget_began() -> None:
    began = datetime(2030, 1, 10, 8, tzinfo=UTC)
    budget = Budget("ann", "30d", Decimal(1), began)
    first = budget.find_counter(NOON.timestamp())
    assert first == "30d 2030-01-10T08:00:00.000000Z"
    assert budget.find_end(NOON.timestamp()) == datetime(2030, 2, 9, 8, tzinfo=UTC)
    assert budget.find_counter(began.timestamp() + 30 * DAY - 1) == first
    assert budget.find_counter(began.timestamp() + 30 * DAY) != first


@given(
    st.text("abc:.team usr", min_size=1, max_size=12),
    st.sampled_from(["day", "week", "month", "30d", "total"]),
)
def test_name_of_a_budget_gives_its_account_and_its_period(account: str, period: Any) -> None:
    if account in ("team:", "user:", "tag:"):
        account += "x"
    assert read_name(Budget(account, period).name) == (account, period)


@pytest.mark.parametrize("name", ["", "ann", "ann:year", ":day", "team::day", "day"])
def test_text_that_names_no_budget_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="write ACCOUNT:PERIOD"):
        read_name(name)


# --- the ledger ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("account", "told"),
    [
        ("ann", "the budget of this key for the week"),
        ("user:ann@x", "the budget of the user ann@x for the week"),
        ("team:core", "the budget of this key's team for the week"),
        ("tag:ci", "the budget of the tag ci for the week"),
    ],
)
def test_exhausted_budget_of_each_account_refuses_until_its_period_ends(
    account: str, told: str
) -> None:
    clock = Clock(NOON.timestamp())
    ledger = Ledger(clock=clock)
    key = Key(
        "ann", "h", user="ann@x", team="core", budgets=(Budget(account, "week", Decimal(1)),)
    )
    ledger.settle(None, key, money=Decimal("0.9"))
    ledger.admit(key)
    ledger.settle(None, key, money=Decimal("0.1"))
    with pytest.raises(QuotaExceededError) as caught:
        ledger.admit(key)
    assert caught.value.message == (
        f"{told} is exhausted; the next period begins at 2030-01-21T00:00Z"
    )
    clock.now = datetime(2030, 1, 21, tzinfo=UTC).timestamp()
    ledger.admit(key)
    ledger.close()


def test_largest_budget_does_not_widen_a_smaller_one() -> None:
    """A request needs room in the budgets of its key, its user and its team."""
    limits = {"ann": 3, "user:ann@x": 2, "team:core": 1}
    for exhausted in limits:
        ledger = Ledger(clock=lambda: NOON.timestamp())
        budgets = [
            Budget(each, "day", Decimal(1 if each == exhausted else 100)) for each in limits
        ]
        key = Key("ann", "h", user="ann@x", team="core", budgets=tuple(budgets))
        ledger.settle(None, key, money=Decimal(1))
        with pytest.raises(QuotaExceededError):
            ledger.admit(key)
        ledger.close()


def test_reset_budget_begins_with_nothing_and_the_cost_in_all_stays() -> None:
    ledger = Ledger(clock=lambda: NOON.timestamp())
    key = Key("ann", "h", budget_usd=Decimal(1), budget_usd_month=Decimal(1))
    ledger.settle(None, key, money=Decimal(1))
    with pytest.raises(QuotaExceededError):
        ledger.admit(key)
    began = NOON.replace(hour=11)
    resets = (Budget("ann", "total", began=began), Budget("ann", "month", began=began))
    fresh = replace(key, budgets=resets)
    ledger.admit(fresh)
    ledger.settle(None, fresh, money=Decimal("0.25"))
    assert [each.left for each in ledger.read_budgets(fresh.limits)] == [Decimal("0.75")] * 2
    assert ledger.spent("ann") == Decimal("1.25")
    ledger.close()


def test_reserved_cost_refuses_calls_until_it_is_given_back_or_expires() -> None:
    clock = Clock(NOON.timestamp())
    ledger = Ledger(clock=clock)
    key = Key("ann", "h", budget_usd=Decimal(1))
    first = ledger.admit(key, 60, usd=Decimal("0.6"))
    ledger.admit(key, 60, usd=Decimal("0.6"))  # something was left, so one call may exceed it
    with pytest.raises(RateLimitError, match="reserved by calls in progress") as caught:
        ledger.admit(key, 60, usd=Decimal("0.1"))
    assert not isinstance(caught.value, QuotaExceededError)
    assert caught.value.retry_after == 1
    ledger.settle(first, key)
    third = ledger.admit(key, 60, usd=Decimal("0.6"))
    with pytest.raises(RateLimitError):
        ledger.admit(key, 60)
    ledger.settle(third, key, money=Decimal("0.3"))
    clock.now += 61  # the lease of the second call has expired
    ledger.admit(key, 60, usd=Decimal("0.6"))
    ledger.close()


NAMES = [("ann", "ann@x", "core"), ("bob", "ann@x", "core"), ("eve", "eve@x", "core")]
LIMITS = {"ann": "0.7", "user:ann@x": "1.3", "team:core": "2", "tag:ci": "1"}
amounts = st.integers(0, 9).map(lambda cents: Decimal(cents) / 10)
actions = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 2), st.booleans(), amounts),
    st.tuples(st.just("settle"), st.integers(0, 9), amounts),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([30, 70])),
)


@settings(deadline=None)
@given(st.lists(actions, max_size=30))
def test_gateways_admit_exactly_while_something_is_neither_spent_nor_reserved(
    steps: list[Any],
) -> None:
    """Two ledgers over one file, as two gateways have; a killed call is never settled."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        clock = Clock(NOON.timestamp())
        ledgers = [Ledger(Path(folder) / "used.db", clock=clock) for _ in range(2)]
        for each in ledgers:
            stack.callback(each.close)
        spent = dict.fromkeys(LIMITS, Decimal(0))
        running: list[tuple[str | None, Key, Decimal, float]] = []
        killed: list[tuple[str | None, Key, Decimal, float]] = []
        overrun = Decimal(0)
        for number, step in enumerate(steps):
            ledger = ledgers[number % 2]
            if step[0] == "wait":
                clock.now += step[1]
            elif step[0] == "kill" and running:
                killed.append(running.pop(step[1] % len(running)))
            elif step[0] == "settle" and running:
                lease, key, usd, _ = running.pop(step[1] % len(running))
                ledger.settle(lease, key, money=step[2])
                overrun += max(Decimal(0), step[2] - usd)
                for budget in key.limits:
                    spent[budget.account] += step[2]
            elif step[0] == "admit":
                key = make_key(*NAMES[step[1]], is_tagged=step[2])
                held = {
                    account: sum(
                        usd for _, other, usd, until in [*running, *killed]
                        if until > clock.now and account in {each.account for each in other.limits}
                    )
                    for account in LIMITS
                }  # fmt: skip
                left = [Decimal(LIMITS[each.account]) - spent[each.account] for each in key.limits]
                free = [
                    amount - held[each.account]
                    for amount, each in zip(left, key.limits, strict=True)
                ]
                expected: type[Exception] | None = None
                if min(free) <= 0:
                    expected = RateLimitError
                if min(left) <= 0:
                    expected = QuotaExceededError
                if expected is not None:
                    with pytest.raises(expected) as caught:
                        ledger.admit(key, 60, usd=step[3])
                    assert type(caught.value) is expected
                    continue
                lease = ledger.admit(key, 60, usd=step[3])
                running.append((lease, key, step[3], clock.now + 60))
            for account, limit in LIMITS.items():
                assert ledger.spent(account) == spent[account]
                # above a budget is at most one expected cost, and what was not expected
                assert spent[account] <= Decimal(limit) + Decimal("0.9") + overrun


def make_key(name: str, user: str, team: str, *, is_tagged: bool) -> Key:
    accounts = [name, f"user:{user}", f"team:{team}", *(["tag:ci"] if is_tagged else [])]
    budgets = [Budget(each, "total", Decimal(LIMITS[each])) for each in accounts if each in LIMITS]
    return Key(name, "h", user=user, team=team, budgets=tuple(budgets))


HOLDING = """
import os, sys
from decimal import Decimal
from dragoman.gateway.keys import Key
from dragoman.gateway.ledger import Ledger
ledger = Ledger(sys.argv[1])
ledger.admit(Key("ann", "h", budget_usd=Decimal(1)), 3600, usd=Decimal(2))
print("reserved", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows releases it when it expires")
def test_what_a_killed_process_has_reserved_is_given_back_at_once(tmp_path: Path) -> None:
    place = tmp_path / "used.db"
    key = Key("ann", "h", budget_usd=Decimal(1))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reserved\n"
        ledger = Ledger(place)
        with pytest.raises(RateLimitError, match="reserved"):
            ledger.admit(key, 60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        ledger.admit(key, 60)
        assert ledger.spent("ann") == 0
        ledger.close()


class _Counted:
    """Count the statements and transactions of a ledger's database."""

    def __init__(self, ledger: Ledger) -> None:
        self._base = ledger._base  # noqa: SLF001 - its statements are counted
        ledger._base = self  # noqa: SLF001
        self.statements = 0

    def run(self, *args: Any) -> Any:
        self.statements += 1
        return self._base.run(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def count(self, work: Any) -> int:
        before = self.statements
        work()
        return self.statements - before


COSTS = [
    # (key, statements of an admission, of a settlement)
    (Key("k", "h", requests_per_minute=9), 3, 1),
    (Key("k", "h", max_concurrency=9), 4, 2),
    (Key("k", "h", budget_usd=Decimal(1)), 6, 5),
    (Key("k", "h", team="t", user="u", budgets=tuple(
        [Budget(account, "day", Decimal(9)) for account in ("k", "user:u", "team:t")])), 6, 5),
]  # fmt: skip


@pytest.mark.parametrize(("key", "admission", "settlement"), COSTS)
def test_statements_of_a_request_do_not_grow_with_its_budgets(
    key: Key, admission: int, settlement: int
) -> None:
    ledger = Ledger()
    counted = _Counted(ledger)
    leases: list[Any] = []
    found = counted.count(lambda: leases.append(ledger.admit(key, 60, usd=Decimal("0.1"))))
    assert found == admission
    money = Decimal("0.2") if key.has_budget else Decimal(0)
    assert counted.count(lambda: ledger.settle(leases[0], key, 7, money)) == settlement
    ledger.close()


# --- the gateway --------------------------------------------------------------------------------


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return the place of a database that two gateways share."""
    if request.param == "file":
        return tmp_path / "used.db"
    return request.getfixturevalue("postgres_url")


async def test_calls_at_once_at_two_gateways_exceed_a_budget_by_one_call_at_most(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may need seconds for the decisions
    monkeypatch.setattr(database_module, "BUSY_SECONDS", PATIENCE)
    monkeypatch.setattr(ledger_module, "_BUSY_SECONDS", PATIENCE)
    body = {**BODY, "max_tokens": 1000}
    limit = 10 * PRICE
    key = Key("ann", hash_key("dg-ann"), user="ann@x")
    gate = asyncio.Event()
    model = priced(lambda request: [gate, *reply("Hello", usage=USED)(request)])
    rings = [KeyRing([key]), KeyRing([key])]
    for ring in rings:
        budget = Budget("user:ann@x", "day", limit)
        monkeypatch.setattr(ring, "_budgets", {"user:ann@x": (budget,)})
    ledgers = [Ledger(place) for _ in range(2)]
    apps = [
        create_app({"fast": model}, keys=ring, ledger=ledger)
        for ring, ledger in zip(rings, ledgers, strict=True)
    ]
    async with serving(apps[0]) as one, serving(apps[1]) as two:
        calls = [
            asyncio.ensure_future(
                post(f"{(one, two)[at % 2]}/v1/chat/completions", body, bearer("dg-ann"))
            )
            for at in range(60)
        ]
        await until(
            lambda: sum(each.done() for each in calls) + model.running == 60, "60 decisions"
        )
        gate.set()
        statuses = [status for status, _, _ in await asyncio.gather(*calls)]
        admitted = statuses.count(200)
        assert {*statuses} == {200, 429}
        # A call is expected to cost its 1,000 tokens of output and few of input.
        assert 10 <= admitted <= 12
        assert ledgers[0].spent("user:ann@x") == admitted * PRICE
        status, _, text = await post(f"{one}/v1/chat/completions", body, bearer("dg-ann"))
        assert status == 429
        assert b"the budget of the user ann@x for the day is exhausted" in text
    for ledger in ledgers:
        ledger.close()


async def test_cancelled_call_gives_back_what_it_has_reserved(tmp_path: Path) -> None:
    gate = asyncio.Event()
    model = priced(lambda request: [gate, *reply("Hello", usage=USED)(request)])
    ring = KeyRing([Key("ann", hash_key("dg-ann"), budget_usd=Decimal("0.001"))])
    ledger = Ledger(tmp_path / "used.db")
    async with serving(create_app({"fast": model}, keys=ring, ledger=ledger)) as url:
        first = asyncio.ensure_future(post(f"{url}/v1/chat/completions", BODY, bearer("dg-ann")))
        await until(lambda: model.running == 1, "the first call")
        assert (await post(f"{url}/v1/chat/completions", BODY, bearer("dg-ann")))[0] == 429
        first.cancel()
        await until(lambda: model.running == 0, "the end of the call")
        gate.set()

        async def ask() -> int:
            return (await post(f"{url}/v1/chat/completions", BODY, bearer("dg-ann")))[0]

        while await arrival(ask(), "an answer") != 200:
            await asyncio.sleep(0.01)
    ledger.close()
