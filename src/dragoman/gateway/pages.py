"""The gateway's pages: what clients and operators read with GET requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.requests import Request as HttpAsked
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import InvalidModelError, InvalidRequestError, ProviderError, scrub
from ..messages.ulid import new_ulid
from ..wire import SERVER_CODECS, ServerCodec
from ..wire.listing import ListedModel
from .access import Caller, Service, read_headers
from .openapi import document
from .people import READERS
from .spend_page import show_spend
from .unknown_paths import find_codec

_PAGE = 100  # rows of a page, unless the query asks for another number
_MOST = 1000

Page = Callable[[HttpAsked, Caller], Awaitable[Any]]
"""Return the JSON of a page, or a complete response, for a caller that may read it."""


def serve_page(
    service: Service,
    make: Page,
    front: ServerCodec | None = None,
    caller: Caller | None = None,
) -> Callable[[HttpAsked], Awaitable[Response]]:
    """Return a route handler that checks the client's key and reports errors to the client.

    Without a ``front``, the wire of a request is found by its path and headers. With a ``caller``,
    the key was checked already.
    """

    async def answer(asked: HttpAsked) -> Response:
        spoken = front or find_codec(asked.url.path, asked.headers)
        try:
            headers = read_headers(asked.scope)
            made = await make(asked, caller or service.identify(asked.scope, headers, spoken))
        except ProviderError as error:
            return refuse(spoken, error)
        return made if isinstance(made, Response) else JSONResponse(made)

    return answer


class ConflictError(Exception):
    """The request does not fit the state of what it is about; the status of the reply is 409."""


async def answer_json(asked: HttpAsked, make: Callable[[], Awaitable[Any]]) -> Response:
    """Return what a handler makes as JSON; report its errors in the format of the client's wire.

    A ``LookupError`` becomes the status 404, a ``ValueError`` 400.
    """
    try:
        made = await make()
    except ProviderError as error:
        return refuse(find_codec(asked.url.path, asked.headers), error)
    except ConflictError as error:
        wrong = InvalidRequestError(scrub(str(error)))
        return refuse(find_codec(asked.url.path, asked.headers), wrong, 409)
    except LookupError as error:
        missing = InvalidRequestError(scrub(str(error.args[0])), status=404)
        return refuse(find_codec(asked.url.path, asked.headers), missing)
    except ValueError as error:
        wrong = InvalidRequestError(scrub(str(error)))
        return refuse(find_codec(asked.url.path, asked.headers), wrong)
    return made if isinstance(made, Response) else write_json(made)


def write_json(made: Any, status: int = 200) -> Response:
    """Return a value as a reply of JSON."""
    return JSONResponse(msgspec.to_builtins(made), status)


async def read_body(asked: HttpAsked, kind: Any) -> Any:
    """Read the body of a request as JSON; a missing body is an empty object."""
    sort = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await asked.body()
    if body and sort != "application/json":
        raise InvalidRequestError("the body must be JSON", status=415)
    return msgspec.json.decode(body or b"{}", type=kind)


def read_size(asked: HttpAsked) -> int:
    """Return the size of a page that a query asks for with ``limit``."""
    return read_number(asked, "limit", _PAGE, _MOST) or _PAGE


def read_number(asked: HttpAsked, name: str, default: int, most: int) -> int:
    """Return a positive number of a query; raise ``InvalidRequestError`` if it is out of range."""
    text = asked.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and 1 <= int(text) <= most):
        raise InvalidRequestError(f"{name}: must be a number from 1 to {most}")
    return int(text)


def refuse(front: ServerCodec, error: ProviderError, status: int | None = None) -> Response:
    """Return an error in the format of a wire, with its own status unless another is given."""
    made = error.request_id = error.request_id or new_ulid()
    reply = front.error(error)
    named = {"x-request-id": made, front.request_id_header or "x-request-id": made}
    return Response(reply.body, status or reply.status, {**reply.headers, **named})


class Pages:
    """The pages about the gateway's models, its state and its API."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._openapi: Response | None = None

    def routes(self) -> list[Route]:
        """Return the routes of the pages."""
        closed: dict[str, Page] = {}
        for root in ("/v1/models", "/v1beta/models"):
            closed |= {root: self._list_models, root + "/{name:path}": self._show_model}
        for front in SERVER_CODECS.values():
            closed |= {path: partial(self._show, each) for path, each in front.pages.items()}
        ready = self._show_ready
        handlers = {path: serve_page(self._service, make) for path, make in closed.items()}
        handlers |= {
            "/health": self._show_health,
            "/ready": ready if self._service.open_ready else serve_page(self._service, ready),
            "/metrics": self._show_metrics,
            "/v1/spend": self._show_spend,
            "/openapi.json": self._show_openapi,
        }
        return [Route(path, handle, methods=["GET"]) for path, handle in handlers.items()]

    async def _show_health(self, asked: HttpAsked) -> Response:
        """Report that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def _show_ready(self, asked: HttpAsked, caller: Caller | None = None) -> Response:
        """Report whether the models are ready, and name those that are not.

        The check contacts upstream servers, so it requires a key, and it names only models that
        the key may use. With ``open_ready``, load balancers can check without a key; the report
        then names no models, and fails only if no model is ready.
        """
        status, problems = await self._service.check_readiness()
        if caller is None or status in ("ready", "draining"):
            is_serving = status in ("ready", "degraded")
            return JSONResponse({"status": status}, 200 if is_serving else 503)
        shown = {name: why for name, why in problems.items() if caller.may_use(name)}
        return JSONResponse({"status": "not ready", "models": shown}, 503)

    async def _show_metrics(self, asked: HttpAsked) -> Response:
        """Return the metrics of all workers in the text format of Prometheus.

        A person who reads all figures gets all of them. A gateway key reads no budget and no cost
        of another key.
        """
        person = self._service.find_person(asked.headers)
        if person is not None and person.role in READERS:
            return await self._write_metrics(asked, Caller({}, None))
        return await serve_page(self._service, self._write_metrics)(asked)

    async def _show_spend(self, asked: HttpAsked) -> Response:
        """Return the bill: all of it, the team's to its lead, and its own part to a gateway key."""
        person = self._service.find_person(asked.headers)

        async def show(asked: HttpAsked, caller: Caller) -> Any:
            owned = {"key": caller.owner} if caller.key is not None else {}
            if person is not None and person.team is not None:
                owned["team"] = person.team
            return await show_spend(self._service, asked, owned)

        known = None if person is None else Caller({}, None)
        return await serve_page(self._service, show, caller=known)(asked)

    async def _write_metrics(self, asked: HttpAsked, caller: Caller) -> Response:
        service = self._service
        own = caller.key
        budgets = await service.read_budgets(own)
        text = service.gather_metrics().text(budgets, None if own is None else own.id)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _list_models(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return the models that the client's key may use, in the format of the client's wire."""
        return find_codec(asked.url.path, asked.headers).list_models(self._list(caller))

    async def _show_model(self, asked: HttpAsked, caller: Caller) -> Any:
        """Return the description of one model, in the format of the client's wire."""
        name = asked.path_params["name"]
        models = self._service.models
        served = models.resolve(name)
        if not caller.may_use(name) or (served == name and name not in models.names()):
            raise InvalidModelError("no model of this name is served here")
        front = find_codec(asked.url.path, asked.headers)
        return front.show_model(replace(models.list_model(served), name=name))

    async def _show(
        self, write: Callable[[list[ListedModel], str], Any], asked: HttpAsked, caller: Caller
    ) -> Any:
        """Return a page that only one wire has."""
        return write(self._list(caller), version("dragoman"))

    async def _show_openapi(self, asked: HttpAsked) -> Response:
        """Return the OpenAPI document, cached because clients without a key may request it."""
        if self._openapi is None:
            sessions = self._service.sessions
            self._openapi = JSONResponse(document(() if sessions is None else sessions.operations))
        return self._openapi

    def _list(self, caller: Caller) -> list[ListedModel]:
        models = self._service.models
        return [models.list_model(name) for name in models.names() if caller.may_use(name)]
