"""Download model files from a hub such as Hugging Face; resume downloads, and verify digests.

A hub responds to ``HEAD /owner/repo/resolve/revision/file`` with the sha256 of the file in
``X-Linked-Etag`` and its size in ``X-Linked-Size``, and redirects to a storage server. The token
is sent only to the hub's own origin, never to the target of a redirect; a redirect from https to
http is rejected.

``huggingface_hub`` is not used: it follows a redirect from https to http, and compares the size of
a file with the announced size only after all of its bytes are on the disk.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from .catalog import Hub
from .store import BLOCK, Progress, WeightsError, make_room

try:
    import fcntl
except ImportError:
    # On Windows, concurrent downloads of one file are detected only by a wrong digest.
    fcntl = None  # type: ignore[assignment]

_TIMEOUT = 60  # give up after this many seconds without data
_REDIRECTS = 8
_DIGEST = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_SPEC = re.compile(
    r"(?P<repo>[\w.-]++/[\w.-]++)(?:@(?P<revision>[\w.-]++))?/(?P<file>(?:[^/]++/)*+[^/]+\.gguf)"
)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


class Remote(NamedTuple):
    """A file on a hub: its URL, the expected size and digest, and the token for the hub."""

    url: str
    file: str
    sha256: str
    size: int
    token: str


def locate(hub: Hub, spec: str, sha256: str | None = None) -> Remote:
    """Find the URL and the digest of ``owner/repo/file.gguf``, optionally with ``@revision``."""
    found = _SPEC.fullmatch(spec)
    if found is None or ".." in spec.split("/"):
        raise WeightsError(
            f"{spec!r} is not of the form owner/repo/file.gguf or owner/repo@revision/file.gguf"
        )
    if _SPLIT.search(spec):
        raise WeightsError(
            f"{spec} is one part of a split model; only models in one file can be pulled"
        )
    base = os.environ.get(hub.url_env) or hub.url
    token = os.environ.get(hub.token_env, "")
    _check_address(base)
    revision = quote(found["revision"] or "main", safe="")
    url = f"{base.rstrip('/')}/{found['repo']}/resolve/{revision}/{quote(found['file'])}"
    named, size = _read_facts(url, token, hub)
    if sha256 is not None and named and named != sha256.lower():
        raise WeightsError(f"{spec}: its sha256 is {named}, not {sha256}")
    if not (sha256 or named):
        raise WeightsError(
            f"{spec}: the server does not report the sha256 of the file; give it with --sha256"
        )
    return Remote(url, found["file"].rpartition("/")[2], (sha256 or named).lower(), size, token)


def _read_facts(url: str, token: str, hub: Hub) -> tuple[str, int]:
    """Request the digest and size of a file from the hub.

    If the hub does not report them, return an empty string and 0.
    """
    try:
        for reply in _follow("HEAD", url, {}, token, hub):
            reply.close()
            if digest := _DIGEST.fullmatch(reply.headers.get("x-linked-etag", "")):
                return digest[1], _number(reply.headers.get("x-linked-size"))
    except (OSError, http.client.HTTPException) as error:
        raise WeightsError(f"{_host(url)} cannot be reached: {error}") from error
    return "", 0


def download(remote: Remote, hub: Hub, folder: Path, progress: Progress | None = None) -> Path:
    """Download a file into ``folder`` and return its path; the caller verifies the digest.

    A partial download stays in ``folder`` under the file's digest. After a broken connection the
    download resumes, as long as each attempt receives at least one byte.
    """
    path = folder / f"{remote.sha256}.part"
    make_room(folder, remote.size - (path.stat().st_size if path.exists() else 0))
    with path.open("ab") as file:  # append to the partial file of an earlier download
        _lock(file, remote.file)
        while True:
            before = file.tell()
            try:
                if _fetch_rest(remote, hub, file, progress):
                    return path
                reason = "the connection was closed early"
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
            if file.tell() <= before:
                kept = f"{file.tell() / 1e6:,.0f} MB are kept; pull again to fetch the rest"
                raise WeightsError(f"{remote.file} is incomplete: {reason}. {kept}")


def _fetch_rest(remote: Remote, hub: Hub, file: Any, progress: Progress | None) -> bool:
    """Download the missing bytes and append them to ``file``; return whether it is complete."""
    start = file.tell()
    if remote.size and start >= remote.size:
        file.seek(file.truncate(remote.size))
        return True
    headers = {"Range": f"bytes={start}-"} if start else {}
    try:
        *_, last = _follow("GET", remote.url, headers, remote.token, hub)
    except _StatusError as refused:
        if refused.status != 416 or not start:
            raise
        # Status 416 means that the server's file is not longer than the partial file, which is
        # therefore a part of another file. Download from the beginning.
        file.seek(file.truncate(0))
        return _fetch_rest(remote, hub, file, progress)
    with contextlib.closing(last) as reply:
        if reply.status == 206 and not reply.headers.get("content-range", "").startswith(
            f"bytes {start}-"
        ):
            raise WeightsError(f"{remote.file}: the server sent a different range than requested")
        if reply.status != 206:  # a server that ignores the Range header sends the complete file
            start = file.seek(file.truncate(0))
        length = _number(reply.headers.get("content-length"))
        total = remote.size or (start + length if length else 0)
        while block := reply.read(BLOCK):
            file.write(block)
            if total and file.tell() > total:
                raise WeightsError(
                    f"{remote.file}: the server sends more than the {total} bytes it announced"
                )
            if progress is not None:
                progress("fetching", file.tell(), total)
    file.flush()
    return not total or file.tell() == total


# --- HTTP requests -----------------------------------------------------------------------------


class _StatusError(WeightsError):
    """The server responded with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(HTTPRedirectHandler):
    """Return redirects to the caller; urllib would follow them and send the token to any host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _follow(method: str, url: str, headers: dict[str, str], token: str, hub: Hub) -> Iterator[Any]:
    """Follow redirects; yield each redirect response and the final response.

    A ``HEAD`` request is not redirected away from the hub's origin, because signed storage URLs
    work only for GET.
    """
    opener = build_opener(_NoRedirects)
    home = _origin(url)
    for _ in range(_REDIRECTS):
        sent = dict(headers)
        if token and _origin(url) == home and _is_protected(url):
            sent["Authorization"] = f"Bearer {token}"
        request = Request(url, headers=sent, method=method)  # noqa: S310 - _check_address allows http and https only
        try:
            reply: Any = opener.open(request, timeout=_TIMEOUT)
        except HTTPError as error:
            reply = error
        except URLError as error:
            raise ConnectionError(f"{_host(url)}: {error.reason}") from error
        target = (
            reply.headers.get("location") if reply.status in (301, 302, 303, 307, 308) else None
        )
        if reply.status >= 400:
            reply.close()
            raise _StatusError(reply.status, _refusal(reply.status, url, hub))
        yield reply
        if target is None:
            return
        reply.close()
        target = urljoin(url, target)
        _check_address(target, after=url)
        if method == "HEAD" and _origin(target) != home:
            return
        url = target
    raise WeightsError(f"{_host(url)}: more than {_REDIRECTS} redirects")


def _refusal(status: int, url: str, hub: Hub) -> str:
    if status in (401, 403):
        return (
            f"{_host(url)} refused access (HTTP {status}): set {hub.token_env}, and accept the "
            "model's terms there"
        )
    if status == 404:
        return f"{_host(url)} has no such file (HTTP 404)"
    return f"{_host(url)} answered with HTTP {status}"


def _check_address(url: str, after: str = "") -> None:
    """Raise an error unless ``url`` is http or https without credentials.

    ``after`` is the URL that redirected to ``url``, if any. A redirect from https to http is
    rejected.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise WeightsError(
            f"{_host(url)}: an address must begin with https:// or http:// and must not contain "
            "credentials"
        )
    if parts.scheme == "http" and after.startswith("https:"):
        raise WeightsError(f"{_host(after)} redirects from https to http, which is refused")


def _is_protected(url: str) -> bool:
    """Return whether a token may be sent to ``url``: over TLS, or to the loopback address."""
    parts = urlsplit(url)
    return parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _host(url: str) -> str:
    """Return only the host of a URL, since other parts may contain a signature."""
    return urlsplit(url).hostname or "the server"


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _lock(file: Any, name: str) -> None:
    if fcntl is not None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WeightsError(f"{name} is being downloaded by another process") from None
