"""Test that no query of a page, however strange, is an internal error or hides a later answer."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import quote

import pytest

from dragoman.gateway.keys import Key, hash_key
from dragoman.gateway.keystore import KeyStore, load_keys
from dragoman.gateway.usage_book import UsageBook
from dragoman.log import SqliteLog

from ..databases import postgres_url as postgres_url
from ..databases import server as server
from ..listed import reply
from .test_site import DIGEST, QUESTION, SIGNED, get, open_site, priced, read

NUMBERS = ["-1", "0", "1.5", "1e3", "NaN", "9223372036854775808", "1" + "0" * 400, "9" * 5000]
TEXTS = ["", "%", "_", "\\", "'", "\0", "a\0b", "\ud800", "²", "٣", "\u202e", "x" * 50_001]
TIMES = ["0001-01-01", "9999-12-31", "2026-11-19T12:30Z", "0001-01-01T00:00+23:59"]
VALUES = [*NUMBERS, *TEXTS, *TIMES]
PLACES = {
    "/ui/api/overview": ["range"],
    "/ui/api/calls": [
        "range",
        "since",
        "until",
        "sort",
        "model",
        "key",
        "user",
        "team",
        "tag",
        "error",
        "failed",
    ],
    "/ui/api/names": ["of", "order", "range", "search", "page"],
    "/ui/api/models": ["check"],
    "/ui/api/clients": ["url", "model"],
    "/ui/traces/api/sessions": ["offset", "limit", "model", "outcome", "text", "since"],
    "/ui/traces/api/find?session=s": ["query", "session"],
    "/ui/traces/api/steps?session=s": ["after", "limit", "session"],
    "/ui/traces/api/record?session=s": ["seq", "session"],
    "/v1/spend": [
        "from",
        "to",
        "by",
        "limit",
        "page",
        "format",
        "team",
        "user",
        "key",
        "tag",
        "model",
        "vendor",
    ],
}
QUERIES = [(path, name) for path, names in PLACES.items() for name in names]


def write(path: str, name: str, value: str) -> str:
    text = quote(value.encode("utf-8", "surrogatepass"), safe="")
    return f"{path}{'&' if '?' in path else '?'}{name}={text}"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_strange_query_is_answered_or_rejected(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    place = request.getfixturevalue("postgres_url") if kind == "postgres" else tmp_path / "u.db"
    store = KeyStore(tmp_path / "keys.db", actor="root")
    store.add([Key("one", hash_key("dg-one"))])
    ring = load_keys(store.place)
    book = UsageBook(place)
    strange = []
    with SqliteLog(tmp_path / "log.db") as log:
        models = {"fast": priced(reply("Hello"))}
        async with open_site(models, keys=ring, admin=DIGEST, log=log, usage=book) as url:
            signed = {"authorization": "Bearer dg-one"}
            answer = await get(f"{url}/v1/chat/completions", signed, "POST", json=QUESTION)
            assert answer[0] == 200
            await read(url, "overview")
            for (path, name), value in itertools.product(QUERIES, VALUES):
                status, _, text = await get(url + write(path, name, value), SIGNED)
                is_echo = path == "/ui/api/clients"
                if status >= 500 or "Traceback" in text or (len(text) > 10_000 and not is_echo):
                    strange.append(f"{path} {name} {value[:20]!a} {status} {text[:100]}")
            [row] = (await read(url, "names?of=key&search=n"))["rows"]
            assert row["name"] == "one"
            assert row["requests"] == 1
            assert (await read(url, "names?of=key&search=_n"))["rows"] == []
    assert not strange, "\n".join(strange)
    assert "Traceback" not in caplog.text
    book.close()
    ring.close()
    store.close()
