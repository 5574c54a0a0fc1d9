"""Test LangChain's chat models for each vendor, unmodified, through the gateway to every wire.

``make test-exhaustive`` runs the standard tests for every pair of client and wire, and for every
client directly with the simulator; ``make test`` runs a few pairs. The client for the Gemini wire
needs its own environment; ``tests/clients/test_langchain_google.py`` tests it.
"""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import httpx
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from msgspec.structs import replace

from dragoman import Request, User, connect
from dragoman.gateway.app import create_app
from dragoman.gateway.store import ResponseStore
from dragoman.sim import Answer, ScriptedProvider, ScriptRule, SimServer

from ..gateway.serving import serving
from ..gateway.upstream import WIRES
from ..waiting import PATIENCE
from .obliging import PNG, USAGE
from .obliging import answer as oblige

# LangChain's clients are never closed, so the server is asked to close each connection.
CLOSE = {"connection": "close"}
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


def answer(request: Request) -> Answer:
    """Answer as the tests expect: without thinking, and with JSON if the prompt requests it."""
    prompt = "".join([message.text for message in request.messages if isinstance(message, User)])
    if "nothing other than JSON" in prompt:
        return Answer(text='{"setup": "a", "punchline": "b"}', usage=USAGE)
    made = oblige(request)
    return made if made.content else replace(made, thinking="")


class Addresses(NamedTuple):
    gateway: str
    upstream: str


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Serve a gateway in a separate thread, because the clients block."""
    found: list[Addresses] = []
    ready = threading.Event()
    over = threading.Event()

    async def run() -> None:
        with SimServer(ScriptedProvider(ScriptRule(answer)), models=("sim",)) as upstream:
            models = {
                wire: connect("sim", wire=wire, base_url=upstream.base_urls[wire])
                for wire in WIRES
            }
            store = ResponseStore(tmp_path_factory.mktemp("store") / "store.db")
            async with serving(create_app(models, store=store)) as address:
                found.append(Addresses(address, upstream.url))
                ready.set()
                await asyncio.to_thread(over.wait)
            store.close()

    failures: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()  # the tests need not wait for a server that failed

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    if failures:
        raise failures[0]
    yield found[0]
    over.set()
    thread.join(PATIENCE)
    if failures:
        raise failures[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Free the connections that clients left open, so that no later test gets their warnings.
        gc.collect()


@pytest.fixture
def url(addresses: Addresses) -> str:
    return addresses.gateway


def make(client: str, wire: str, url: str) -> BaseChatModel:
    """Return a LangChain chat model that uses a model of the given wire through the gateway."""
    kinds: dict[str, type[Any]] = {"anthropic": ChatAnthropic, "ollama": ChatOllama}
    made: BaseChatModel = kinds.get(client, ChatOpenAI)(**params_of(client, wire, url))
    return made


def params_of(client: str, wire: str, url: str) -> dict[str, Any]:
    """Return the constructor arguments with which a client uses the gateway."""
    if client == "anthropic":
        return {
            "model": wire,
            "base_url": url,
            "api_key": "x",
            "max_tokens": 1000,
            "default_headers": CLOSE,
        }
    if client == "ollama":
        return {"model": wire, "base_url": url, "client_kwargs": {"headers": CLOSE}}
    params = {
        "model": wire,
        "base_url": f"{url}/v1",
        "api_key": "x",
        "stream_usage": True,
        "default_headers": CLOSE,
    }
    return {**params, "use_responses_api": client == "responses"}


@tool
def depth(river: str) -> int:
    """Return the depth of a river."""
    return 25


@pytest.mark.parametrize(
    ("client", "wire"),
    [
        ("openai", "gemini"),
        ("responses", "anthropic"),
        ("anthropic", "ollama"),
        ("ollama", "openai"),
    ],
)
def test_langchain_clients_work_with_a_few_combinations_of_wires(
    client: str, wire: str, url: str
) -> None:
    model = make(client, wire, url)
    assert model.invoke("Hello").text
    assert "".join([chunk.text for chunk in model.stream("Hello")])
    called = model.bind_tools(
        [depth], tool_choice="any" if client == "anthropic" else None
    ).invoke("How deep?")
    assert called.tool_calls[0]["name"] == "depth"


class Standard(ChatModelIntegrationTests):
    client: ClassVar[str]
    wire: ClassVar[str]
    address: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _world(self, addresses: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the tests use the gateway's address, and replace pictures that they would download
        from the internet.
        """
        type(self).address = addresses.upstream if self.wire == "sim" else addresses.gateway
        monkeypatch.setattr(httpx, "get", lambda url, **_: httpx.Response(200, content=PNG))

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return type(make(self.client, self.wire, self.address))

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return params_of(self.client, self.wire, self.address)

    @property
    def supports_json_mode(self) -> bool:
        return self.client == "openai"

    supports_image_inputs = True


if os.environ.get("DRAGOMAN_EXHAUSTIVE"):
    for _client in ("openai", "responses", "anthropic", "ollama"):
        for _wire in (*WIRES, "sim"):  # "sim" connects to the simulator without a gateway
            _name = f"Test{_client.title()}Over{_wire.title()}"
            _made = type(
                _name, (Standard,), {"client": _client, "wire": _wire, "__module__": __name__}
            )
            # Run all tests in one event loop, because the clients keep their connections.
            globals()[_name] = pytest.mark.exhaustive(
                pytest.mark.asyncio(loop_scope="module")(_made)
            )
