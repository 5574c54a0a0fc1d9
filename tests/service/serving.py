"""Serve agents on a real socket, and speak to them as a client with a key."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from dragoman.gateway.app import create_app
from dragoman.gateway.keys import Key, KeyRing, hash_key
from dragoman.log import EventLog, MemoryLog
from dragoman.permission import Policy, Rule
from dragoman.service import Agent, Sessions
from dragoman.tools import tool
from tests.gateway.serving import serving
from tests.listed import Listed
from tests.session.playing import call, look, note, propose, ran
from tests.waiting import poll

PEOPLE = "\n".join(
    [
        f"ann admin {hash_key('ann-key-0001')}",
        f"bob viewer {hash_key('bob-key-0001')}",
        f"carla lead research {hash_key('carla-key-0001')}",
    ]
)
KEYS = [
    Key("one", hash_key("one-key-0001"), team="research", user="uma"),
    Key("two", hash_key("two-key-0001")),
    Key("narrow", hash_key("narrow-key-0001"), models=("other:*",)),
]
ASK = Policy([Rule("allow", side_effect=["none", "read"])])


@tool(side_effect="write")
async def pay(amount: int) -> str:
    """Pay an amount."""
    ran.append(amount)
    return f"paid {amount}"


@tool(side_effect="network", external=True)
async def ship(parcel: str) -> str:
    """Ship a parcel."""
    raise AssertionError("another service ships it")


TOOLS = [look, note, pay, ship]
PAY = propose(call("pay", amount=7))
LOOK = propose(call("look", word="x"))
SHIP = propose(call("ship", parcel="p"))


def make_agent(*replies: Any, **settings: Any) -> Agent:
    """Return an agent whose model gives these replies; the last one is repeated."""
    return Agent(
        Listed(*replies, "Done.", name="p", repeat=True), TOOLS, settings.pop("policy", ASK),
        **settings,
    )  # fmt: skip


def make_app(agents: Mapping[str, Agent], log: EventLog | None = None, **settings: Any) -> Any:
    keys = settings.pop("keys", KeyRing(KEYS))
    at_once = settings.pop("at_once", 100)
    sessions = Sessions(agents, log or MemoryLog(), at_once=at_once)
    models = settings.pop("models", {})
    return create_app(models, keys=keys, admin=PEOPLE, sessions=sessions, **settings)


class Client:
    """A client with one key; a call returns the status and the body of the reply."""

    def __init__(self, http: aiohttp.ClientSession, who: str | None, app: Any = None) -> None:
        self._http = http
        self.app = app
        self.headers = {} if who is None else {"authorization": f"Bearer {who}-key-0001"}

    def act(self, who: str | None) -> "Client":
        """Return a client with another key."""
        return Client(self._http, who, self.app)

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._http.request(
            method, f"/v1{path}", json=body, headers=self.headers
        ) as reply:
            text = await reply.text()
            return reply.status, json.loads(text) if text else None

    async def stream(self, path: str, body: Any) -> tuple[int, list[Any]]:
        """Send a request; return its status, and the objects of the stream, or the error."""
        async with self._http.post(f"/v1{path}", json=body, headers=self.headers) as reply:
            if reply.status != 200:
                return reply.status, [await reply.json()]
            return reply.status, [event["data"] async for event in read_stream(reply)]

    async def start(self, goal: str = "Go.", **more: Any) -> dict[str, Any]:
        """Start a session of the agent ``main``; return its row."""
        status, row = await self("POST", "/sessions", {"agent": "main", "goal": goal, **more})
        assert status in (200, 201), row
        return dict(row)

    async def show(self, session: str) -> dict[str, Any]:
        """Return a session by itself."""
        status, shown = await self("GET", f"/sessions/{session}")
        assert status == 200, shown
        return dict(shown)

    async def reach(self, session: str, *statuses: str) -> dict[str, Any]:
        """Wait until a session is in one of some states; return it."""
        return await poll(
            lambda: self.show(session), lambda row: row["status"] in statuses, f"{statuses}"
        )

    async def read_events(
        self, session: str, after: int | None = None, *, most: int | None = None, **query: str
    ) -> tuple[int, list[dict[str, Any]]]:
        """Read the events of a session, at most some of them; return the status and the events."""
        headers = {} if after is None else {"last-event-id": str(after)}
        path = f"/v1/sessions/{session}/events"
        async with self._http.get(path, headers=self.headers | headers, params=query) as reply:
            found = []
            async for event in read_stream(reply):
                found.append(event)
                if len(found) == most:
                    break
            return reply.status, found


async def read_stream(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream: the fields of each, with its data decoded."""
    fields: dict[str, Any] = {}
    async for line in reply.content:
        text = line.decode().rstrip("\n")
        name, _, value = text.partition(": ")
        if text and not text.startswith(":"):
            fields[name] = json.loads(value) if name == "data" and value != "[DONE]" else value
        elif fields:
            yield fields
            fields = {}


@contextlib.asynccontextmanager
async def client_of(app: Any, who: str | None = "one") -> AsyncIterator[Client]:
    """Serve an application; yield a client of it."""
    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        yield Client(http, who, app)


@contextlib.asynccontextmanager
async def service(*replies: Any, who: str | None = "one", **more: Any) -> AsyncIterator[Client]:
    """Serve the agent ``main`` whose model gives these replies; yield a client of it."""
    async with client_of(make_app({"main": make_agent(*replies)}, **more), who) as client:
        yield client
