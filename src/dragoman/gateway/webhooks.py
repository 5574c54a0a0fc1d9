"""Send alerts about budgets to webhooks: signed, several times if necessary, once for each.

The format is that of Standard Webhooks 1.0.0: the headers ``webhook-id``, which stays the same in
each attempt, ``webhook-timestamp`` and ``webhook-signature``. A reply with a status from 200 to
299 accepts an alert. A redirect is not followed, since its origin is not the one that is
configured.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import ProviderError
from ..registry.webhooks import Webhook
from ..transport import HttpTransport, Timeouts, Transport
from ..wire.codec import HttpRequest
from .alerts import Alert, Alerts
from .ledger import Ledger
from .ledger_writer import LedgerWriter

log = logging.getLogger("dragoman")

_TIMEOUTS = Timeouts(connect=5, total=15)
_PAUSE = 2.0  # seconds between two looks at the alerts
_GONE = 410  # the status of a receiver that has been removed


class WebhookSender:
    """Send the alerts of a ledger to the webhooks that ``find_webhooks`` returns."""

    def __init__(
        self,
        ledger: LedgerWriter,
        find_webhooks: Callable[[], Sequence[Webhook]],
        *,
        transport: Transport | None = None,
        timeouts: Timeouts = _TIMEOUTS,
    ) -> None:
        self._ledger = ledger
        self._find_webhooks = find_webhooks
        self._transport = transport or HttpTransport()
        self._timeouts = timeouts
        ledger.ledger.alerts.find_webhooks = find_webhooks
        self.on_miss: Callable[[], None] | None = None  # called for each alert that is given up

    async def keep_sending(self) -> None:
        """Send what is due every two seconds until the task is cancelled."""
        while True:
            await asyncio.sleep(_PAUSE)
            if self._find_webhooks():
                await self.send_due()

    async def send_due(self) -> int:
        """Send the alerts that are due; return how many there were."""
        alerts = await self._ledger.run(lambda ledger: ledger.run_alone(Alerts.claim))
        known = {each.name: each for each in self._find_webhooks()}
        sent = [self._send(alert, known[alert.webhook]) for alert in alerts]
        await asyncio.gather(*sent)
        return len(alerts)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    # --- private methods

    async def _send(self, alert: Alert, webhook: Webhook) -> None:
        try:
            reply = await self._transport.exchange(
                make_request(alert, webhook, int(time.time())), {}, self._timeouts
            )
            problem = None if 200 <= reply.status < 300 else f"status {reply.status}"
            is_refused = reply.status == _GONE
        except ProviderError as error:
            # The message may have the address, which is a secret.
            problem = type(error).__name__
            is_refused = False

        def finish(ledger: Ledger) -> bool:
            is_over = problem is None or is_refused
            return ledger.run_alone(lambda alerts, now: alerts.finish(alert, now, is_sent=is_over))

        is_left = await self._ledger.run(finish)
        if problem is None:
            return
        later = "it is tried again later" if is_left else "it is given up"
        level = logging.WARNING if is_left else logging.ERROR
        log.log(
            level, "the webhook %s did not accept the alert %s: %s; %s",
            webhook.name, alert.id, problem, later,
        )  # fmt: skip
        if not is_left and self.on_miss is not None:
            self.on_miss()


def make_request(alert: Alert, webhook: Webhook, now: int) -> HttpRequest:
    """Return the request that sends an alert at a time."""
    headers = {"content-type": "application/json", "user-agent": "dragoman"}
    if webhook.format == "slack":
        text = describe(msgspec.json.decode(alert.data)["data"])
        return HttpRequest("POST", webhook.url, headers, msgspec.json.encode({"text": text}))
    made = f"msg_{alert.id}"
    signed = f"{made}.{now}.".encode() + alert.data
    digest = hmac.new(webhook.secret, signed, hashlib.sha256).digest()
    headers["webhook-id"] = made
    headers["webhook-timestamp"] = str(now)
    headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return HttpRequest("POST", webhook.url, headers, alert.data)


def describe(data: Mapping[str, Any]) -> str:
    """Return a sentence about the data of an alert, in the markup of Slack."""
    # Slack reads < > & as markup (api.slack.com/reference/surfaces/formatting, 2026-11-19).
    name = data["name"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    period = {"total": "in all", "30d": "of 30 days"}.get(
        data["period"], f"of the {data['period']}"
    )
    ends = "" if data["ends_at"] is None else f" The period ends at {data['ends_at']}."
    return (
        f"The {data['kind']} {name} has spent ${data['spent_usd']} of its budget of "
        f"${data['limit_usd']} {period}: {data['percent']} % are reached.{ends}"
    )
