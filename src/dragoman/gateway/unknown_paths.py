"""Answer requests that no route matches with an explanation, in the client's own format."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import InvalidRequestError, cut
from ..wire import SERVER_CODECS, ServerCodec

_TWICE = re.compile("^/v1/(v1|v1beta|api)(/|$)")
_VERSIONED = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
    "/models",
    "/embeddings",
)
# Codex with a provider named OpenAI posts here to compact, and falls back to nothing
# (caozhiyuan/copilot-api#359 of 2026-08-16, router-for-me/CLIProxyAPI#5857 of 2026-09-16). With a
# store, /v1/responses/ID takes GET and DELETE.
_COMPACT = "/responses/compact"
_CANNOT_COMPACT = (
    "conversations are not compacted here; let the client do it, in Codex by another name of the"
    " provider than OpenAI"
)
# Parts of the vendors' APIs that the gateway does not serve, and what a client can do instead.
_PARTS = (
    ("/v1/completions", "legacy completions are not served here; use /v1/chat/completions"),
    ("/v1/embeddings", "embeddings are not served here"),
    ("/v1/audio", "audio is not served here"),
    ("/v1/images", "images are not made here"),
    ("/v1/moderations", "moderation is not served here"),
    ("/v1/files", "files are not kept here; send their content in the request"),
    ("/v1/batches", "batches are not served here; send each request by itself"),
    ("/v1/messages/batches", "batches are not served here; send each request by itself"),
    ("/v1/conversations", "conversations are not kept here; start the gateway with --store"),
    ("/v1/responses/", "responses are not kept here; start the gateway with --store"),
    ("/v1/sessions", "sessions are not served here; start the gateway with --sessions"),
    ("/v1/agents", "agents are not served here; start the gateway with --sessions"),
    ("/v1/questions", "sessions are not served here; start the gateway with --sessions"),
    ("/api/embed", "embeddings are not served here"),
    ("/api/pull", "models are added by the gateway's operator"),
    ("/api/push", "models are added by the gateway's operator"),
    ("/api/create", "models are added by the gateway's operator"),
    ("/api/copy", "models are added by the gateway's operator"),
    ("/model/", "only /model/MODEL/converse, /invoke and their streams are served here"),
    ("/api/delete", "models are removed by the gateway's operator"),
    ("/api/blobs", "models are added by the gateway's operator"),
)


def explain(method: str, path: str, status: int) -> InvalidRequestError:
    """Return the error for a request that no route matches."""
    if path.endswith(_COMPACT):
        return InvalidRequestError(f"{cut(path, 100)}: {_CANNOT_COMPACT}", status=404)
    if status == 405:
        return InvalidRequestError(f"{cut(path, 100)} does not take {cut(method, 20)}", status=405)
    return InvalidRequestError(_find_reason(method, path), status=404)


def _find_reason(method: str, path: str) -> str:
    found = [(part, reason) for part, reason in _PARTS if path.startswith(part)]
    if found:
        return max(found)[1]
    shown = f"{cut(method, 20)} {cut(path, 100)}"
    if _TWICE.match(path):
        return (
            f"{shown}: the address has /v1 once too often; leave it out of the client's base URL"
        )
    if path.startswith(_VERSIONED):
        return f"{shown}: the client's base URL must end with /v1"
    return f"{shown} is not served here; GET /openapi.json lists what is"


def find_codec(path: str, headers: Mapping[str, str]) -> ServerCodec:
    """Guess a client's wire from the request's path and headers; return the wire's codec."""
    codecs = SERVER_CODECS.values()
    found = [front for front in codecs if any(mark in path for mark in front.path_marks)] or [
        front for front in codecs if any(mark in headers for mark in front.header_marks)
    ]
    return found[0] if found else next(iter(codecs))
