"""Credentials other than a fixed key: functions, tokens, signatures, ``auth:`` settings."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from dragoman import AuthenticationError, ProviderError, connect
from dragoman.provider import AccessKeys, SignatureAuth, Token, TokenAuth, sign_v4
from dragoman.registry import Registry
from dragoman.registry import credentials as auth_module
from dragoman.transport import FixtureTransport
from dragoman.wire import HttpRequest

from .gateway.upstream import write_reply
from .listed import Clock
from .server import Connection, completion, replying, serve
from .waiting import settle

answer = replying(200, completion("Hi"))


async def test_key_function_is_called_for_every_request() -> None:
    keys = iter(["one", "two", "three"])

    async def later() -> str:
        return next(keys)

    async with serve(answer) as server:
        async with connect("m", base_url=server.base_url, api_key=lambda: next(keys)) as model:
            await model.complete("Hi")
        async with connect("m", base_url=server.base_url, api_key=later) as model:
            await model.complete("Hi")
            # The test server has no list of models, so the readiness check fails.
            with contextlib.suppress(ProviderError):
                await model.ready()
    expected = ["Bearer one", "Bearer two"]
    assert [seen.headers["authorization"] for seen in server.requests[:2]] == expected
    assert server.requests[-1].headers["authorization"] == "Bearer three"


async def test_token_is_renewed_once_before_it_expires() -> None:
    made: list[float] = []
    now = [1000.0]

    async def make() -> Token:
        made.append(now[0])
        await settle()
        return Token(f"token-{len(made)}", now[0] + 300)

    async with serve(answer) as server:
        auth = TokenAuth(make, clock=lambda: now[0])
        async with connect("m", base_url=server.base_url, api_key=auth) as model:
            await asyncio.gather(*[model.complete("Hi") for _ in range(10)])
            now[0] += 200
            await model.complete("Hi")
            assert len(made) == 1
            now[0] += 50  # the token expires in less than a minute
            await asyncio.gather(*[model.complete("Hi") for _ in range(5)])
            assert len(made) == 2
    assert server.requests[-1].headers["authorization"] == "Bearer token-2"
    assert "token-1" not in repr(Token("token-1"))


async def test_rejected_token_is_discarded_and_hidden_in_errors() -> None:
    made = iter([Token("canary-one", time.time() + 900), Token("canary-two", time.time() + 900)])

    async def refuse(connection: Connection) -> None:
        connection.reply(401, connection.seen.headers["authorization"].encode())

    async with (
        serve(refuse) as server,
        connect("m", base_url=server.base_url, api_key=lambda: next(made)) as model,
    ):
        for _ in range(2):
            with pytest.raises(AuthenticationError) as caught:
                await model.complete("Hi")
            assert "canary" not in repr(caught.value) + str(caught.value) + repr(
                caught.value.provider_message
            )
    expected = ["Bearer canary-one", "Bearer canary-two"]
    assert [seen.headers["authorization"] for seen in server.requests] == expected


async def test_failing_key_function_raises_an_authentication_error() -> None:
    def fail() -> str:
        raise OSError("canary")

    for source, problem in (
        (fail, "could not be obtained: OSError"),
        (lambda: 3, "must return"),
        (lambda: "", "empty"),
    ):
        async with connect("m", base_url="http://127.0.0.1:1/v1", api_key=source) as model:  # type: ignore[arg-type]
            with pytest.raises(AuthenticationError, match=problem) as caught:
                await model.complete("Hi")
        assert "canary" not in str(caught.value)
    with pytest.raises(ValueError, match="api_key must be a text"):
        connect("m", base_url="http://127.0.0.1:1/v1", api_key=3)  # type: ignore[arg-type]


async def test_old_token_is_used_until_it_expires_if_renewal_fails() -> None:
    now = [0.0]
    answers = [Token("old", 100.0)]

    def make() -> Token:
        if not answers:
            raise OSError
        return answers.pop()

    auth = TokenAuth(make, bearer=True, clock=lambda: now[0])
    request = HttpRequest("GET", "http://a", {})
    codec = connect("m", base_url="http://a").codec  # type: ignore[attr-defined]
    for at in (0.0, 99.0):
        now[0] = at
        assert (await auth.headers(request, codec))["authorization"].reveal() == "Bearer old"
    now[0] = 100.0
    with pytest.raises(AuthenticationError):
        await auth.headers(request, codec)


@pytest.mark.parametrize("token", [None, "session/token+with=signs"])
@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-3%3A0/converse",
         b'{"a": 1}'),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com:8443/", b""),
        ("https://x.amazonaws.com/a%20b/c?z=1&a=%2F2&a=1&empty=", b"\xff"),
    ],
)  # fmt: skip
def test_signatures_equal_those_of_botocore(url: str, body: bytes, token: str | None) -> None:
    now = datetime.datetime(2026, 11, 15, 12, 30, 45, tzinfo=datetime.UTC)
    headers = {"content-type": "application/json"}
    ours = sign_v4(
        HttpRequest("POST", url, headers, body), AccessKeys("AKID", "secret", token), "eu-west-1",
        "bedrock",
        now.timestamp(),
    )  # fmt: skip
    added = {
        "X-Amz-Content-SHA256": ours["x-amz-content-sha256"],
        "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
    }
    if token:
        added["X-Amz-Security-Token"] = token
    theirs = AWSRequest("POST", url, headers={**headers, **added}, data=body)
    theirs.context["timestamp"] = added["X-Amz-Date"]
    signer = SigV4Auth(Credentials("AKID", "secret", token), "bedrock", "eu-west-1")
    canonical = signer.canonical_request(theirs)
    signature = signer.signature(signer.string_to_sign(theirs, canonical), theirs)
    assert ours["authorization"].endswith(f"Signature={signature}")
    assert ours.get("x-amz-security-token") == token


async def test_requests_are_signed_when_they_are_sent() -> None:
    async with serve(answer) as server:
        auth = SignatureAuth(lambda: AccessKeys("AKID", "canary"), "us-east-1", "bedrock")
        async with connect("m", base_url=server.base_url, api_key=auth) as model:
            await model.complete("Hi")
    sent = server.requests[0].headers
    assert sent["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert "canary" not in repr(sent) + repr(AccessKeys("a", "canary"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "models.yaml"


def command(text: str) -> str:
    return json.dumps([sys.executable, "-c", f"print({text!r})"])


@pytest.mark.parametrize(
    "text", ["from-a-command", '{"token": "from-a-command", "expires_in": 600}']
)
async def test_api_key_is_read_from_the_output_of_a_command(file: Path, text: str) -> None:
    async with serve(answer) as server:
        file.write_text(
            f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url},"
            f" auth: {{type: command, command: {command(text)}}}}}}}\n"
        )
        async with Registry.load(file) as registry:
            assert registry.find("a:m").status == "configured"
            await registry.open("a:m").complete("Hi")
    assert server.requests[0].headers["authorization"] == "Bearer from-a-command"


async def test_failing_key_command_is_reported(file: Path) -> None:
    failing = json.dumps([sys.executable, "-c", "print('canary'); raise SystemExit(3)"])
    file.write_text(
        "adapters: {a: {type: openai-compatible, base_url: 'http://127.0.0.1:1/v1', "
        f"max_retries: 0, auth: {{type: command, command: {failing}}}}}}}\n"
    )
    async with Registry.load(file) as registry:
        with pytest.raises(AuthenticationError, match="ended with status 3") as caught:
            await registry.open("a:m").complete("Hi")
    assert "canary" not in str(caught.value)


async def test_renewed_key_file_is_read_again_when_its_time_is_over(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(4e9)  # in 2096, so that what is read first stays valid
    monkeypatch.setattr(auth_module, "time", SimpleNamespace(time=clock))
    key = tmp_path / "key"
    key.write_text("first-key\n")
    async with serve(answer) as server:
        file.write_text(
            f"adapters: {{a: {{type: openai-compatible, base_url: {server.base_url},"
            f" auth: {{type: file, path: '{key}'}}}}}}\n"
        )
        async with Registry.load(file) as registry:
            await registry.open("a:m").complete("Hi")
            key.write_text("second-key")
            await registry.open("a:m").complete("Hi")
        clock.now = 0
        async with Registry.load(file) as registry:
            await registry.open("a:m").complete("Hi")
            key.write_text("third-key")
            await registry.open("a:m").complete("Hi")
    sent = [each.headers["authorization"] for each in server.requests]
    assert sent == [f"Bearer {name}-key" for name in ("first", "first", "second", "third")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "FileNotFoundError"), (b"  ", "is empty"), (b"k" * 65537, "more than 65536 bytes")],
)
async def test_unusable_key_file_is_reported(
    file: Path, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    file.write_text(
        "adapters: {a: {type: openai-compatible, base_url: 'http://127.0.0.1:1/v1', "
        f"max_retries: 0, auth: {{type: file, path: '{key}'}}}}}}\n"
    )
    async with Registry.load(file) as registry:
        with pytest.raises(AuthenticationError, match=problem) as caught:
            await registry.open("a:m").complete("Hi")
    assert str(key) in str(caught.value)


async def test_cloud_tokens_are_sent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def token(scope: str) -> Token:
        asked.append(scope)
        return Token("cloud-token", time.time() + 3600)

    monkeypatch.setattr(auth_module, "_ask_entra", token)
    monkeypatch.setattr(auth_module, "_ask_google", token)
    async with serve(any_shape) as server:
        cloud = f"{server.url}/v1/projects/p/locations/l/publishers"
        file.write_text(
            f"adapters:\n  entra: {{type: azure, base_url: {server.url}/openai/v1, auth: {{type: "
            f"entra}}}}\n  vertex: {{type: google, base_url: {cloud}/google, auth: {{type: "
            f"google}}}}\n  claude: {{type: anthropic, base_url: {cloud}/anthropic, auth: {{type:"
            " google}, quirks: {raw_predict: true}}\n"
        )
        async with Registry.load(file) as registry:
            await registry.open("entra:gpt-5").complete("Hi")
            await registry.open("vertex:gemini-2.5-pro").complete("Hi")
            await registry.open("claude:claude-sonnet-4-5").complete("Hi", max_tokens=5)
            async with registry.open("claude:claude-sonnet-4-5").stream(
                "Hi", max_tokens=5
            ) as stream:
                async for _ in stream:
                    pass
            assert (
                registry.find("claude:claude-sonnet-4-5").priced_as.model
                == "anthropic:claude-sonnet-4-5"
            )
    paths = [seen.path for seen in server.requests]
    place = "/v1/projects/p/locations/l/publishers"
    assert paths == [
        "/openai/v1/chat/completions",
        f"{place}/google/models/gemini-2.5-pro:generateContent",
        f"{place}/anthropic/models/claude-sonnet-4-5:rawPredict",
        f"{place}/anthropic/models/claude-sonnet-4-5:streamRawPredict",
    ]
    assert {seen.headers["authorization"] for seen in server.requests} == {"Bearer cloud-token"}
    assert not any(
        "x-goog-api-key" in seen.headers or "x-api-key" in seen.headers for seen in server.requests
    )
    assert server.requests[2].json["anthropic_version"] == "vertex-2023-10-16"
    assert "model" not in server.requests[2].json
    assert asked[0] == "https://cognitiveservices.azure.com/.default"


async def any_shape(connection: Connection) -> None:
    wire = {"google": "gemini", "anthropic": "anthropic"}
    named = [wire[name] for name in wire if name in connection.seen.path]
    connection.reply(200, write_reply([*named, "openai"][0], "Hi"))


async def test_aws_environment_keys_sign(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    async with serve(answer) as server:
        kind = (
            f"{{type: openai-compatible, base_url: {server.base_url}, auth: {{type: aws, region: "
            "eu-west-3}}"
        )
        file.write_text(f"adapters: {{a: {kind}}}\n")
        async with Registry.load(file) as registry:
            await registry.open("a:m").complete("Hi")
    assert "Credential=AKENV/" in server.requests[0].headers["authorization"]
    assert "/eu-west-3/bedrock/" in server.requests[0].headers["authorization"]


def test_tokens_come_from_the_vendors_authentication_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import azure.identity
    import google.auth

    class Credential:
        def __enter__(self) -> Credential:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def get_token(self, scope: str) -> Any:
            return type(
                "AccessToken", (), {"token": f"for {scope}", "expires_on": 2_000_000_000}
            )()

    class Google:
        token = "g"
        expiry = datetime.datetime(2033, 5, 18, 3, 33, 20)

        def refresh(self, request: object) -> None:
            pass

    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Credential)
    monkeypatch.setattr(google.auth, "default", lambda scopes: (Google(), "project"))
    # Only this private function calls the vendor's authentication library.
    assert auth_module._ask_entra("scope") == Token("for scope", 2_000_000_000.0)  # noqa: SLF001
    # Only this private function calls the vendor's authentication library.
    assert auth_module._ask_google("a b").value == "g"  # noqa: SLF001
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = AKFILE\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    # Only this private function calls the vendor's authentication library.
    assert auth_module._find_access_keys("work").access_key == "AKFILE"  # noqa: SLF001


class _Witness(FixtureTransport):
    """A transport that records the authorisation header of each request."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self.headers: list[str | None] = []

    @contextlib.asynccontextmanager
    async def send(
        self, request: HttpRequest, credentials: Any, timeouts: Any, *, stream: bool = False
    ) -> Any:
        self.headers.append(credentials["authorization"].reveal())
        async with super().send(request, credentials, timeouts, stream=stream) as reply:
            yield reply


async def test_bedrock_reads_region_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEARER_TOKEN_BEDROCK", "ACCESS_KEY_ID", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    name = "bedrock:us.amazon.nova-lite-v1:0"
    body = b'{"output":{"message":{"content":[{"text":"Hi"}]}},"stopReason":"end_turn"}'
    transport = _Witness((200, {}, [body]), (200, {}, [body]))
    with pytest.raises(AuthenticationError, match="AWS_BEARER_TOKEN_BEDROCK"):
        await connect(name, transport=transport).complete("x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert (await connect(name, transport=transport).complete("x")).text == "Hi"
    root = "https://bedrock-runtime.eu-west-1.amazonaws.com/model/us.amazon.nova-lite-v1%3A0"
    assert transport.requests[0].url == f"{root}/converse"
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "an-api-key-of-bedrock")
    assert (await connect(name, transport=transport).complete("x")).text == "Hi"
    signed, keyed = transport.headers
    assert signed.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-west-1/bedrock/aws4_request" in signed
    assert keyed == "Bearer an-api-key-of-bedrock"


@pytest.mark.parametrize(
    ("key", "mistake"),
    [
        ("sk-1\n", r"contains a line break.* key\.strip\(\)"),
        ("sk-1\r\nx: y", "contains a line break.* Copy the key again"),
        (" sk-1 ", "contains a space"),
        ("Bearer sk-1", "contains a space"),
        ("\u201csk-1\u201d", "contains typographic quotes.* Copy the key again"),
        ('"sk-1"', "contains quotes"),
        ("sk-\u00e4", "contains characters that no key has"),
        ("", "no key was given"),
    ],
)
async def test_key_that_cannot_be_one_is_refused_before_anything_is_sent(
    key: str, mistake: str
) -> None:
    with pytest.raises(AuthenticationError, match=mistake) as caught:
        connect("m", base_url="http://127.0.0.1:9/v1", api_key=key)
    assert not caught.value.transient
    assert not key.strip() or key.strip() not in str(caught.value)
    assert caught.value.model == "m"
    if key:
        model = connect("m", base_url="http://127.0.0.1:9/v1", api_key=lambda: key)
        with pytest.raises(AuthenticationError, match=mistake):
            await model.complete("Hi")
