"""Test logins at an MCP server with OAuth, against a server that checks each step."""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import keyring.core
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from dragoman.cli import main
from dragoman.cli.agent_view import AgentView
from dragoman.cli.errors import EXIT_CODES
from dragoman.cli.mcp_servers import McpOptions, open_servers
from dragoman.registry import stored_keys
from dragoman.tools import (
    KeyringTokens,
    McpOAuth,
    McpServer,
    Toolbox,
    ToolFailure,
    log_in_by_browser,
)
from dragoman.tools.mcp_oauth import name_tokens

from ..ports import find_free_port
from ..waiting import PATIENCE
from .test_mcp_http import USUAL

pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

ACCESS = "access-91c2e07f"
REFRESH = "refresh-5ab3107c"
SECRET = "client-secret-0c55d1"


class Place:
    """An MCP server and its authorization server; a login needs no person."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata = metadata
        self.registers = True
        self.reads_documents = False
        self.forms: list[dict[str, str]] = []
        self.keys: set[tuple[str, str | None]] = set()
        self.logins = 0
        self.asked: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.token: dict[str, Any] = {}
        self.url = ""

    async def authorize(self, url: str) -> str:
        """Return the redirect of the login page."""
        self.logins += 1
        self.asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        answer = {"code": "the-code", "state": self.asked["state"], **self.given}
        return self.asked["redirect_uri"] + "?" + "&".join(f"{k}={v}" for k, v in answer.items())

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve metadata, registration, tokens and MCP."""
        origin = f"http://{request.host}"
        self.keys.add((request.host.partition(":")[0], request.headers.get("X-Key")))
        issuer = f"{origin}/as"
        if request.path == "/.well-known/oauth-protected-resource/mcp":
            found = {"resource": f"{origin}/mcp", "authorization_servers": [issuer]}
            return web.json_response(found | self.metadata)
        if request.path == "/.well-known/oauth-authorization-server/as":
            parts = ("authorize", "token", "register")
            names = ["authorization_endpoint", "token_endpoint", "registration_endpoint"]
            ends = {name: f"{issuer}/{part}" for name, part in zip(names, parts, strict=True)}
            more = {"authorization_response_iss_parameter_supported": "iss" in self.given}
            more["client_id_metadata_document_supported"] = self.reads_documents
            return web.json_response({"issuer": issuer, **ends, **more})
        if request.path == "/as/register" and not self.registers:
            return web.json_response({"error": "access_denied"}, status=403)
        if request.path == "/as/register":
            body = {**await request.json(), "client_id": "registered"}
            return web.json_response(body, status=201)
        if request.path == "/as/token":
            self.forms.append({name: str(value) for name, value in (await request.post()).items()})
            token = {"access_token": f"{ACCESS}-{len(self.forms)}", "refresh_token": REFRESH}
            # a new token is expired when it is next used, a refreshed one is not
            life = 3600 if "refresh_token" in self.forms[-1] else -1
            token |= {"token_type": "Bearer", "expires_in": life}
            return web.json_response(token | self.token)
        return await self._answer(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/mcp" or not request.can_read_body:
            return web.Response(status=404 if request.path != "/mcp" else 405)
        bearer = request.headers.get("authorization", "")
        if bearer != f"Bearer {ACCESS}-{len(self.forms)}":
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        said = {"jsonrpc": "2.0", "id": asked["id"]}
        result = USUAL.get(asked["method"])
        if asked["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": f"you sent {bearer}"}]}
        if result is None:
            return web.json_response(said | {"error": {"code": -32601, "message": "no"}})
        return web.json_response(said | {"result": result})


@contextlib.asynccontextmanager
async def serve(**metadata: Any) -> AsyncIterator[Place]:
    place = Place(**metadata)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", place.handle)
    async with TestServer(app) as server:
        place.url = str(server.make_url("/mcp"))
        yield place


async def call(place: Place, **settings: Any) -> str:
    oauth = McpOAuth(**settings)
    more: Any = {"start_timeout": PATIENCE, "headers": {"X-Key": "header-7d20c4"}}
    async with McpServer(place.url, oauth=oauth, **more) as server:
        return str((await Toolbox(server.tools).execute("look", {})).content)


async def test_login_is_bound_stored_and_refreshed(caplog: pytest.LogCaptureFixture) -> None:
    store: dict[str, str] = {}
    async with serve() as place:
        issuer = place.url.replace("127.0.0.1", "localhost").replace("/mcp", "/as")
        place.metadata["authorization_servers"] = [issuer]
        with caplog.at_level(logging.DEBUG):
            said = await call(place, authorize=place.authorize, tokens=store)
        assert said == "you sent Bearer [hidden]"
        assert place.keys == {("127.0.0.1", "header-7d20c4"), ("localhost", None)}
        first, *refreshed = place.forms
        digest = hashlib.sha256(first["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        asked = place.asked["code_challenge"], place.asked["code_challenge_method"]
        assert asked == (challenge, "S256")
        assert place.asked["resource"] == first["resource"] == place.url
        assert first["grant_type"] == "authorization_code"
        assert first["client_id"] == "registered"
        assert [each["refresh_token"] for each in refreshed] == [REFRESH]
        # another process has only the store, which includes the address to refresh at
        saved = json.loads(base64.b64decode(store.pop(place.url)))
        assert store == {}
        saved["expires_at"] = 1.0
        store[place.url] = base64.b64encode(json.dumps(saved).encode()).decode()
        assert await call(place, tokens=store) == "you sent Bearer [hidden]"
        assert [each["grant_type"] for each in place.forms[2:]] == ["refresh_token"]
        assert place.logins == 1
        place.forms.append({})  # the server forgets the token
        with pytest.raises(ToolFailure, match="dragoman mcp login"):
            await call(place, tokens=store)
    assert not any(secret in caplog.text for secret in (ACCESS, REFRESH))


PROBLEMS: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"iss": "http://other.test"}, {}, "iss"),
    ({"state": "another"}, {}, "State parameter mismatch"),
    ({"error": "access_denied"}, {}, "the login was refused: access_denied"),
    ({}, {"authorization_servers": ["http://192.0.2.1/as"]}, "not an https:// address"),
    ({}, {"resource": "https://other.test/mcp"}, "does not match expected"),
    ({}, {"padding": "x" * 5_000_000}, "more than 4,194,304 bytes"),
]


@pytest.mark.parametrize(("given", "metadata", "reason"), PROBLEMS)
async def test_failed_login_ends_without_a_token(
    given: dict[str, str],
    metadata: dict[str, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serve(**metadata) as place:
        place.given = given
        with pytest.raises(ToolFailure, match=reason):
            await call(place, authorize=place.authorize, tokens={})
        assert place.forms == []
        assert place.logins <= 1
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("name", ["access_token", "refresh_token"])
@pytest.mark.parametrize("token", [f"{ACCESS}\r\nX-Evil: 1", f"{ACCESS}\0", f"{ACCESS}ü"])
async def test_token_that_no_header_can_have_is_neither_stored_nor_quoted(
    name: str, token: str
) -> None:
    store: dict[str, str] = {}
    async with serve() as place:
        place.token = {name: token}
        with pytest.raises(ToolFailure, match="a token that no header can have") as caught:
            await call(place, authorize=place.authorize, tokens=store)
    assert ACCESS not in str(caught.value)
    assert store == {}


@pytest.mark.parametrize("life", [0, -1, -(2**63), 2**63, 10**30, 10**308, 10**400])
async def test_life_of_a_token_of_any_length_is_used_or_refused(life: int) -> None:
    store: dict[str, str] = {}
    async with serve() as place:
        place.token = {"expires_in": life}
        for _ in range(2):
            said = ""
            try:
                assert await call(place, authorize=place.authorize, tokens=store)
            except ToolFailure as error:
                said = str(error)
            assert len(said) < 500
            assert ACCESS not in said


async def test_client_of_a_document_needs_no_registration() -> None:
    page = "https://client.test/dragoman.json"
    document = json.loads(CliRunner().invoke(main, ["mcp", "document", page]).stdout)
    async with serve() as place:
        place.registers = False
        settings = {"authorize": place.authorize, "tokens": {}, "client_metadata_url": page}
        with pytest.raises(ToolFailure, match=r"registers no clients.*dragoman mcp document"):
            await call(place, **settings)
        place.reads_documents = True
        assert await call(place, **settings) == "you sent Bearer [hidden]"
        assert place.asked["client_id"] == place.forms[0]["client_id"] == page
        assert document["client_id"] == page
        assert document["redirect_uris"] == [place.asked["redirect_uri"]]
    for wrong in ("http://client.test/a.json", "https://client.test/", "client.json"):
        done = CliRunner().invoke(main, ["mcp", "document", wrong])
        assert done.exit_code == 2
        assert "must be an https:// address with a path" in done.stderr


async def test_login_that_cannot_be_stored_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("FILE_KEYRING", str(tmp_path))  # a folder cannot be read as a file
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "tests.file_keyring.FileKeyring")
    keyring.core.init_backend()
    async with serve() as place:
        with pytest.raises(ToolFailure, match="the keyring failed: IsADirectoryError"):
            await call(place, authorize=place.authorize)


class Memory:
    """The storage of a provider of the MCP library."""

    async def get_tokens(self) -> None:
        return None

    async def set_tokens(self, tokens: Any) -> None:
        pass

    get_client_info: Any = get_tokens
    set_client_info: Any = set_tokens


async def test_client_credentials_are_sent_to_their_issuer_only() -> None:
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    facts: dict[str, Any] = {"client_id": "me", "client_secret": SECRET, "tokens": {}}
    async with serve() as place:
        issuer = place.url.replace("/mcp", "/as")
        grant: Any = {"grant": "client_credentials", "auth_method": "client_secret_post"}
        assert "[hidden]" in await call(place, issuer=issuer, **facts, **grant)
        assert {each["client_secret"] for each in place.forms} == {SECRET}
        own = ClientCredentialsOAuthProvider(place.url, Memory(), "me", SECRET, issuer=issuer)
        async with McpServer(place.url, oauth=own, start_timeout=PATIENCE) as server:
            seen = await Toolbox(server.tools).execute("look", {})
        assert seen.content == "you sent Bearer [hidden]"
        facts["tokens"] = {}
        count = len(place.forms)
        with pytest.raises(ToolFailure, match=r"https://other\.test") as caught:
            await call(place, issuer="https://other.test", **facts, **grant)
        assert "[hidden]" in await call(
            place, issuer="https://other.test", authorize=place.authorize, **facts
        )
        assert SECRET not in str(place.forms[count:])  # another client is registered
    assert SECRET not in f"{caught.value} {McpOAuth(issuer=issuer, **facts)!r}"


@pytest.mark.parametrize(
    ("target", "settings", "problem"),
    [
        (["server"], {}, "a program has no login"),
        ("http://mcp.example.com", {}, "not an https:// address"),
        ("https://mcp.example.com", {"client_secret": "s"}, "needs client_id and issuer"),
        ("https://mcp.example.com", {"grant": "client_credentials"}, "needs a client_secret"),
    ],
)
def test_wrong_settings_are_refused(target: Any, settings: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        McpServer(target, oauth=McpOAuth(**settings))
    with pytest.raises(ValueError, match="the header Authorization is set already"):
        McpServer("https://a.test", oauth=McpOAuth(), headers={"authorization": "Bearer x"})


async def test_browser_is_sent_back_to_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    redirect = f"http://127.0.0.1:{find_free_port()}/callback"
    loop = asyncio.get_running_loop()
    answers = list[int]()

    async def browse() -> None:
        async with aiohttp.ClientSession() as client:
            for path in (
                "/favicon.ico", "/callback", "/callback?x", "/callback?code=c&state=other",
                "/callback?code=c&state=s",
            ):  # fmt: skip
                async with client.get(redirect.replace("/callback", path)) as answer:
                    answers.append(answer.status)

    def open_page(url: str) -> bool:
        asyncio.run_coroutine_threadsafe(browse(), loop)
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    landed = await log_in_by_browser(f"https://login.test/?state=s&redirect_uri={redirect}")
    assert landed == f"{redirect}?code=c&state=s"
    assert answers[:4] == [404] * 4
    with pytest.raises(ValueError, match="must be http://127"):
        await log_in_by_browser("https://login.test/?redirect_uri=https://a.test/")


@pytest.mark.parametrize(
    "backend", ["tests.file_keyring.FileKeyring", "keyring.backends.fail.Keyring"]
)
def test_tokens_are_in_the_keyring_or_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    server = "https://mcp.example.com/mcp"
    kept = tmp_path / "keyring.json"
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("FILE_KEYRING", str(kept))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", backend)
    keyring.core.init_backend()
    KeyringTokens()[server] = "dG9rZW4="
    assert KeyringTokens().get(server) == "dG9rZW4="
    assert list(stored_keys()) == ([name_tokens(server)] if "tests" in backend else [])
    assert [path for path in tmp_path.iterdir() if "dG9rZW4=" in path.read_text()] == (
        [kept] if "tests" in backend else []
    )
    assert KeyringTokens().pop(server) == "dG9rZW4="
    assert KeyringTokens().get(server) is None
    assert stored_keys() == {}


async def test_command_logs_in_for_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAGOMAN_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("FILE_KEYRING", str(tmp_path / "keyring.json"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "tests.file_keyring.FileKeyring")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("DRAGOMAN_MCP", str(tmp_path / "mcp.yaml"))
    keyring.core.init_backend()

    async def run(*words: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, ["mcp", *words])

    def open_page(page: str) -> bool:
        urllib.request.urlopen(asyncio.run(place.authorize(page))).close()
        return True

    def refuse(page: str) -> bool:
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(page).query)
        (back,) = asked["redirect_uri"]
        (state,) = asked["state"]
        urllib.request.urlopen(f"{back}?error=access_denied&state={state}").close()
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    async with serve() as place:
        redirect = f"http://127.0.0.1:{find_free_port()}/callback"
        server = {"url": place.url, "oauth": {"redirect_uri": redirect}}
        (tmp_path / "mcp.yaml").write_text(json.dumps({"servers": {"tracker": server}}))
        done = await run("login", "tracker")
        assert done.stdout == f"{place.url}: logged in; it has 1 tools\n"
        assert done.exit_code == 0
        assert "log in at http://127.0.0.1" in done.stderr
        for name in ("tracker", place.url):
            options = McpOptions(servers=(name,), mcp_accept=True)
            view = AgentView(as_json=True)
            async with contextlib.AsyncExitStack() as stack:
                tools = await open_servers(stack, options, view, None)
            assert [tool.name for tool in tools] == ["look"]
        assert place.logins == 1
        stored = stored_keys()
        monkeypatch.setattr("webbrowser.open", refuse)
        failed = await run("login", "tracker")
        assert stored_keys() == stored
        assert failed.exit_code == EXIT_CODES["session_failed"]
        assert (await run("logout", "tracker")).exit_code == 0
        assert stored_keys() == {}
        assert (await run("logout", "tracker")).exit_code == 1
        with pytest.raises(ToolFailure, match=r"oauth= or dragoman mcp login"):
            await McpServer(place.url).open()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "must have either a url, or a command"),
        ({"url": "https://a.test", "oauth": {"secret": "s"}}, "secret: unknown key"),
        ({"url": "https://a.test", "oauth": {"client_secret_env": "NONE"}}, "NONE is not set"),
        ({"url": "https://a.test", "oauth": {"grant": "client_credentials"}}, "needs a client_"),
        ({"command": ["server"]}, "must be a URL"),
    ],
)
def test_mistakes_in_the_file_of_servers_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "mcp.yaml"
    monkeypatch.setenv("DRAGOMAN_MCP", str(path))
    path.write_text(json.dumps({"servers": {"tracker": entry}}))
    done = CliRunner().invoke(main, ["mcp", "login", "tracker"])
    assert done.exit_code == 2
    assert problem in done.stderr
