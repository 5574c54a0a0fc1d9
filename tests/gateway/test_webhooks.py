"""Test alerts about budgets: when they are written, how they are sent, and to whom again."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.alerts import Alert, Alerts
from dragoman.gateway.budgets import Budget
from dragoman.gateway.keys import Key
from dragoman.gateway.ledger import Ledger
from dragoman.gateway.ledger_writer import LedgerWriter
from dragoman.gateway.webhooks import WebhookSender, make_request
from dragoman.registry import read_file
from dragoman.registry.webhooks import Webhook
from dragoman.transport import Timeouts
from tests.listed import Clock
from tests.server import Connection, serve

SECRET = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
NOON = 1_894_795_200.0  # 2030-01-16, a Wednesday
DAY = 86_400
LIMIT = Budget("team:core", "day", Decimal(10))
KEY = Key("ann", "h", team="core", budgets=(LIMIT,))


@pytest.fixture(params=["memory", "file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return the place of a database: in memory, a SQLite file, and PostgreSQL."""
    if request.param == "server":
        return request.getfixturevalue("postgres_url")
    return tmp_path / "used.db" if request.param == "file" else None


class Gateways:
    """Two gateways with one database, or one with a database in memory."""

    def __init__(self, place: Any, *webhooks: Webhook, **more: Any) -> None:
        self.clock = Clock(NOON)
        self.webhooks = list(webhooks)
        self.writers = [
            LedgerWriter(Ledger(place, clock=self.clock)) for _ in range(1 if place is None else 2)
        ]
        self.senders = [
            WebhookSender(each, lambda: self.webhooks, **more) for each in self.writers
        ]

    def spend(self, usd: str, key: Key = KEY) -> None:
        """Count a cost at each gateway in turn."""
        self.writers.reverse()
        self.writers[0].ledger.settle(None, key, money=Decimal(usd))

    async def send(self) -> int:
        """Let all gateways send what is due at the same time; return how much it was."""
        return sum(await asyncio.gather(*[each.send_due() for each in self.senders]))

    async def close(self) -> None:
        for sender in self.senders:
            await sender.close()
        for writer in self.writers:
            await writer.close()
            writer.ledger.close()


def accept(status: int = 200, **headers: str) -> Any:
    async def answer(connection: Connection) -> None:
        connection.reply(status, b"ok", "text/plain", **headers)

    return answer


def test_signature_is_the_one_of_the_published_example() -> None:
    """The example stands in the tests of the reference library for JavaScript."""
    alert = Alert("p5jXN8AQM9LWM0D4loKWxJek", "finance", b'{"test": 2432232314}', 1)
    webhook = Webhook(name="finance", url="https://x.example", secret=SECRET)
    sent = make_request(alert, webhook, 1_614_265_330)
    assert sent.headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sent.headers["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert sent.headers["webhook-timestamp"] == "1614265330"


async def test_each_share_is_sent_once_in_a_period_by_several_gateways(place: Any) -> None:
    async with serve(accept()) as server:
        gateways = Gateways(
            place, Webhook(name="finance", url=f"{server.url}/hook", secret=SECRET)
        )

        def read() -> list[int]:
            found = [each.json["data"]["percent"] for each in server.requests]
            server.requests.clear()
            return found

        gateways.spend("4.99")
        assert await gateways.send() == 0
        gateways.spend("0.01")
        gateways.spend("0.5")
        assert await gateways.send() == 1
        sent = server.requests[0]
        assert sent.json["type"] == "budget.reached"
        assert sent.json["data"] == {
            "kind": "team", "name": "core", "period": "day", "percent": 50,
            "limit_usd": "10", "spent_usd": "5.00", "ends_at": "2030-01-17T00:00:00Z",
        }  # fmt: skip
        named = sent.headers
        signed = f"{named['webhook-id']}.{named['webhook-timestamp']}.".encode() + sent.body
        digest = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
        assert named["webhook-signature"] == f"v1,{digest}"
        assert read() == [50]
        for _ in range(3):
            gateways.spend("3")
            await gateways.send()
        assert sorted(read()) == [80, 100]
        gateways.clock.now += DAY
        gateways.spend("9")
        await gateways.send()
        assert sorted(read()) == [50, 80]
        await gateways.close()


FAILURES = [
    ("fails", accept(500), "status 500"),
    ("is missing", accept(404), "status 404"),
    ("redirects", accept(307, location="/other"), "status 307"),
]


@pytest.mark.parametrize(("name", "answer", "problem"), FAILURES)
async def test_alert_that_is_not_accepted_is_sent_again_a_bounded_number_of_times(
    name: str, answer: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(answer) as server:
        secret_url = f"{server.url}/T000/B000/not-for-logs"
        gateways = Gateways(None, Webhook(name="finance", url=secret_url, secret=SECRET, at=(50,)))
        lost: list[None] = []
        gateways.senders[0].on_miss = lambda: lost.append(None)
        gateways.spend("5")
        ids = set()
        waits = []
        for _ in range(20):
            before = len(server.requests)
            start = gateways.clock.now
            while not await gateways.send() and gateways.clock.now < start + 20 * DAY:
                gateways.clock.now += 5
                if gateways.clock.now - start > 30_000:
                    gateways.clock.now = start + 20 * DAY
            if len(server.requests) == before:
                break
            waits.append(gateways.clock.now - start)
            ids |= {each.headers["webhook-id"] for each in server.requests}
        assert waits == [0, 5, 60, 300, 1800, 7200, 18_000]
        assert len(ids) == 1, "each attempt has the same id"
        assert {each.path for each in server.requests} == {"/T000/B000/not-for-logs"}
        assert lost == [None]
        assert caplog.text.count(problem) == 7
        assert caplog.text.count("it is given up") == 1
        assert "not-for-logs" not in caplog.text
        await gateways.close()


async def test_redirect_to_another_origin_is_not_followed() -> None:
    async with serve(accept()) as other, serve(accept(302, location=f"{other.url}/x")) as server:
        gateways = Gateways(None, Webhook(name="finance", url=server.url, secret=SECRET, at=(50,)))
        gateways.spend("5")
        assert await gateways.send() == 1
        assert len(server.requests) == 1
        assert other.requests == []
        await gateways.close()


async def test_server_that_hangs_is_left_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    async def hang(connection: Connection) -> None:
        await gate.wait()
        connection.reply(200, b"ok")

    async with serve(hang) as server:
        webhook = Webhook(name="finance", url=server.url, secret=SECRET, at=(50,))
        gateways = Gateways(None, webhook, timeouts=Timeouts(total=0.2))
        gateways.spend("5")
        assert await gateways.send() == 1
        assert "TimedOutError" in caplog.text
        gate.set()
        gateways.clock.now += 5
        assert await gateways.send() == 1
        gateways.clock.now += 100 * DAY
        assert await gateways.send() == 0, "the second attempt was accepted"
        await gateways.close()


async def test_receiver_that_is_gone_gets_no_further_attempt() -> None:
    async with serve(accept(410)) as server:
        gateways = Gateways(None, Webhook(name="finance", url=server.url, secret=SECRET, at=(50,)))
        gateways.spend("5")
        assert await gateways.send() == 1
        gateways.clock.now += 30 * DAY
        assert await gateways.send() == 0
        await gateways.close()


async def test_alert_of_a_gateway_that_died_while_it_sent_is_sent_by_another(place: Any) -> None:
    async with serve(accept()) as server:
        gateways = Gateways(
            place, Webhook(name="finance", url=server.url, secret=SECRET, at=(50,))
        )
        gateways.spend("5")
        claimed = await gateways.writers[0].run(lambda ledger: ledger.run_alone(Alerts.claim))
        assert len(claimed) == 1
        assert await gateways.send() == 0, "one gateway sends it"
        gateways.clock.now += 61
        assert await gateways.send() == 1
        assert [each.headers["webhook-id"] for each in server.requests] == [f"msg_{claimed[0].id}"]
        await gateways.close()


async def test_each_webhook_gets_its_own_shares_and_its_own_format() -> None:
    async with serve(accept()) as server:
        gateways = Gateways(
            None,
            Webhook(name="finance", url=f"{server.url}/f", secret=SECRET, at=(100,)),
            Webhook(name="channel", url=f"{server.url}/c", format="slack", at=(80,)),
        )
        key = Key("ann", "h", user="<ann&x>", budgets=(Budget("user:<ann&x>", "30d", Decimal(1)),))
        gateways.spend("1.2", key)
        assert await gateways.send() == 2
        found = {each.path: each for each in server.requests}
        assert found["/f"].json["data"]["percent"] == 100
        assert found["/c"].json == {
            "text": "The user &lt;ann&amp;x&gt; has spent $1.2 of its budget of $1 of 30 days: "
            "80 % are reached. The period ends at 2030-02-15T00:00:00Z."
        }
        assert "webhook-signature" not in found["/c"].headers
        await gateways.close()


def test_cost_that_is_not_written_writes_no_alert(tmp_path: Path) -> None:
    """The alert is a part of the transaction that counts the cost."""
    ledger = Ledger(tmp_path / "used.db", clock=lambda: NOON)
    ledger.alerts.find_webhooks = lambda: [Webhook(name="f", url="https://x.example")]
    key = Key("ann", "h", budgets=(LIMIT, Budget("ann", "day", Decimal(1))))

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    ledger.alerts._write = fail  # type: ignore[method-assign] # noqa: SLF001 - the middle of the transaction
    with pytest.raises(OSError, match="disk"):
        ledger.settle(None, key, money=Decimal(8))
    assert ledger.spent("ann") == 0
    del ledger.alerts._write  # noqa: SLF001
    ledger.settle(None, key, money=Decimal(8))
    found = ledger.run_alone(Alerts.claim)
    assert sorted(json.loads(each.data)["data"]["percent"] for each in found) == [
        50,
        50,
        80,
        80,
        100,
    ]
    ledger.close()


# --- the file -----------------------------------------------------------------------------------

STANDARD = "webhooks:\n  finance:\n    url: https://x.example/hook\n"
MISTAKES = [
    (STANDARD, "needs secret_env or secret_file"),
    (f"{STANDARD}    secret_env: NO_SUCH_VARIABLE\n", "the variable NO_SUCH_VARIABLE is not set"),
    (f"{STANDARD}    secret_file: no-such-file\n", "the file no-such-file cannot be read"),
    (f"{STANDARD}    secret_file: short\n", "24 to 64 bytes in base64"),
    (f"{STANDARD}    secret_file: good\n    at: [0]\n", "a list of percentages from 1 to 1000"),
    (f"{STANDARD}    secret_file: good\n    at: []\n", "a list of percentages from 1 to 1000"),
    (f"{STANDARD}    secret: whsec_plain-secret\n", "secret"),
    ("webhooks:\n  c: {format: slack}\n", "needs one of url, url_env and url_file"),
    (
        "webhooks:\n  c: {format: slack, url: http://x.example/s3cret}\n",
        "must begin with https://",
    ),
    ("webhooks:\n  c: {format: teams, url: https://x.example}\n", "one of standard, slack"),
    ("webhooks:\n  c: {format: slack, url: 'ftp://x.example/s3cret'}\n", "must be an address"),
    ("webhooks:\n  c: {format: slack, url: 'https://a:b@x.example/'}\n", "without a user name"),
]


@pytest.mark.parametrize(("text", "problem"), MISTAKES)
def test_mistake_in_the_file_is_named_without_a_secret(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "short").write_text("whsec_c2hvcnQ=")
    (tmp_path / "good").write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    path = tmp_path / "models.yaml"
    path.write_text(text)
    file = read_file(path)
    assert file.webhooks == ()
    told = " ".join(map(str, file.problems))
    assert problem in told
    assert "s3cret" not in told
    assert "c2hvcnQ" not in told


def test_webhooks_are_read_with_secrets_from_files_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANNEL_URL", "https://hooks.example/T0/s3cret")
    (tmp_path / "key").write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    path = tmp_path / "models.yaml"
    path.write_text(
        f"{STANDARD}    secret_file: key\n    at: [100, 80]\n"
        "  channel: {format: slack, url_env: CHANNEL_URL}\n"
    )
    file = read_file(path)
    assert file.problems == ()
    assert file.webhooks == (
        Webhook(name="finance", url="https://x.example/hook", secret=SECRET, at=(80, 100)),
        Webhook(name="channel", url="https://hooks.example/T0/s3cret", format="slack"),
    )
    assert "s3cret" not in repr(file.webhooks)
    assert "MfKQ" not in repr(file.webhooks)
