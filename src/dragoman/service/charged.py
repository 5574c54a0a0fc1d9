"""Charge the model calls of a session to the key that started it, as the gateway does for requests."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import date
from typing import Any

from ..errors import AuthenticationError, ProviderError
from ..events import Event, MessageComplete
from ..gateway.access import Caller, Service
from ..gateway.request_account import Account, ChatCall
from ..middleware.layer import Middleware, Wrapper
from ..provider import LayerCall, Provider
from ..wire.server_errors import status_of

WIRE = "sessions"
"""The name under which the calls of sessions are counted, in place of the wire of a client."""


class ChargedModel(Wrapper[Provider], Middleware[Provider]):
    """A model whose calls are counted like the requests of a gateway's client.

    Each call needs the permission of the key's limits, and adds its tokens and its cost to the
    ledger, to the statistics, to the metrics and to the logs of the gateway. ``find_caller`` is
    called for each, so that a key that was revoked ends its sessions.
    """

    def __init__(
        self, provider: Provider, service: Service, name: str, find_caller: Callable[[], Caller]
    ) -> None:
        super().__init__(provider)
        self._service = service
        self._name = name
        self._find_caller = find_caller

    async def close(self) -> None:
        """Leave the wrapped model open, since other sessions use it too."""

    async def serve(self, request: Any, served: LayerCall) -> AsyncGenerator[list[Event], None]:
        service = self._service
        account = Account(service, WIRE)
        account.request = request
        try:
            account.caller = self._find_caller()
            account.model = self._name
            await account.admit(self.inner, request)
            call = account.call = ChatCall(self.inner, request)
            served.reply = call.reply
            async with aclosing(call.reply):
                while batch := await call.reply.next():
                    if call.first is None:
                        call.first = time.perf_counter() - account.began
                    if isinstance(batch[-1], MessageComplete):
                        call.complete = batch[-1]
                    yield batch
            account.status = 200
            await account.settle_early()
        except ProviderError as error:
            account.error = error
            account.status = status_of(error)
            raise
        finally:
            account.close()


def find_caller(service: Service, owner: str) -> Caller:
    """Return the caller with a key's id; raise ``AuthenticationError`` if the key is gone."""
    if not owner:
        return Caller({}, None)
    keys = () if service.keys is None else service.keys.keys
    key = next((each for each in keys if each.id == owner), None)
    if key is None or (key.expires is not None and date.today() > key.expires):
        raise AuthenticationError("the key that started this session is not valid any more")
    service.check_user(key)
    return Caller({}, key, key if key.is_limited else None)
