"""The program that the MCP conformance suite runs: open a server by ``McpServer``, call its tools.

    python -m scoreboards.mcp_client [--idle] URL

With ``--idle``, as a negative control, it neither logs in nor calls a tool. The arguments of a call are made from the tool's schema. The login page of the suite redirects at
once, so that no browser is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth.extensions.client_credentials import (
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)

from dragoman.permission import Decision
from dragoman.tools import McpOAuth, McpServer, Toolbox, ToolFailure

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
# the document that the suite expects as the id of a client; it is not fetched
METADATA = "https://conformance-test.local/client-metadata.json"
PATIENCE = 100.0  # seconds; the suite itself limits the time of a client
VALUES: dict[str, Any] = {
    "string": "test",
    "integer": 5,
    "number": 3,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def make_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an argument for each property of a schema."""
    properties = schema.get("properties", {})
    return {
        name: each.get("default", each.get("const", VALUES.get(str(each.get("type")), "test")))
        for name, each in properties.items()
        if isinstance(each, dict) and "$ref" not in each
    }


def find_arguments() -> dict[str, list[dict[str, Any]]]:
    """Return the arguments of the calls that the scenario asks for, by the name of the tool."""
    calls: dict[str, list[dict[str, Any]]] = {}
    for call in CONTEXT.get("toolCalls", ()):
        calls.setdefault(call["name"], []).append(call.get("arguments", {}))
    return calls


async def authorize(url: str) -> str:
    """Return the address that the suite's login page redirects to."""
    async with httpx2.AsyncClient() as client:
        return str((await client.get(url)).headers["location"])


def find_issuer(url: str) -> str:
    """Return the authorization server of a scenario that does not name it to the client."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    return str(httpx2.get(place).json()["authorization_servers"][0])


class Memory:
    """The storage that the MCP library's own providers need; nothing is stored."""

    async def get_tokens(self) -> None:
        """Return nothing."""

    async def set_tokens(self, tokens: Any) -> None:
        """Do nothing."""


def make_oauth(url: str, context: dict[str, Any]) -> Any:
    """Return how to log in, from what the suite tells the client about the scenario."""
    client: dict[str, Any] = {"client_id": context.get("client_id")}
    if SCENARIO == "auth/client-credentials-jwt":
        issuer = find_issuer(url)
        who = context["client_id"]
        key = context["private_key_pem"]
        signed = SignedJWTParameters(
            issuer=who,
            subject=who,
            signing_key=key,
            signing_algorithm=context["signing_algorithm"],
        )
        assertions = signed.create_assertion_provider()
        memory = cast("Any", Memory())
        return PrivateKeyJWTOAuthProvider(url, memory, who, assertions, issuer=issuer)
    if "client_secret" in context:
        client["client_secret"] = context["client_secret"]
        client["issuer"] = context.get("issuer") or find_issuer(url)
    if SCENARIO == "auth/client-credentials-basic":
        return McpOAuth(grant="client_credentials", tokens={}, **client)
    if SCENARIO == "auth/basic-cimd":
        client["client_metadata_url"] = METADATA
    return McpOAuth(authorize=authorize, tokens={}, **client)


async def approve(question: dict[str, Any]) -> Decision:
    """Accept what a server asks, with the defaults of its form or a value of each type."""
    fields = question["fields"]
    answer = {name: VALUES.get(str(each.get("type")), "test") for name, each in fields.items()}
    return Decision(True, "suite", input={"answer": {**answer, **question["answer"]}})


async def main(url: str, *, is_idle: bool) -> None:
    """Open the server and call each of its tools; an idle client only opens it."""
    wanted = find_arguments()
    has_login = SCENARIO.startswith("auth/") and not is_idle
    oauth = make_oauth(url, CONTEXT) if has_login else None
    async with McpServer(url, start_timeout=PATIENCE, timeout=PATIENCE, oauth=oauth) as server:
        tools = Toolbox(server.tools)
        for tool in () if is_idle else server.tools:
            usual = [make_arguments(tool.description.parameters)]
            if tool.name == "json_schema_echo":  # one scenario asks which schema was received
                usual = [{"schema": server.tools[0].description.parameters}]
            for arguments in wanted.get(tool.name, usual):
                try:
                    print(tool.name, await tools.execute(tool.name, arguments, ask=approve))
                except ToolFailure as failure:
                    print(f"{tool.name}: {failure}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1], is_idle="--idle" in sys.argv))
