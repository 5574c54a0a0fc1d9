"""Log calls: a line for each at the level INFO, its request and its reply at DEBUG.

The logger is ``dragoman``. Nothing is computed unless it is enabled for INFO. The environment
variable ``DRAGOMAN_LOG`` prints records of its level and above to the standard error output, for
programs that do not configure ``logging``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..errors import ProviderError, scrub
from ..events import Usage
from ..wire import HttpRequest

log = logging.getLogger("dragoman")

ATTEMPT = "dragoman.attempt"
"""The key of the number of the attempt in ``Request.metadata``; ``Retry`` counts from "0"."""
_LEVELS = ("debug", "info", "warning", "error")
_PRINTING = "dragoman-log"  # the name of the handler that prints
_MOST_CHARACTERS = 200  # of a text in a request or a reply
# the items of a longer list that are logged, such as the chunks of a stream
_FIRST = 10
_LAST = 2
_MOST_LOGGED = 20_000  # characters of a request or a reply


def print_log(level: str) -> None:
    """Print records of a level and above to the standard error output.

    Raise ``ValueError`` if there is no such level.
    """
    if level.lower() not in _LEVELS:
        raise ValueError(f"DRAGOMAN_LOG must be one of {', '.join(_LEVELS)}, not {level!r}")
    log.setLevel(level.upper())
    if _PRINTING in [handler.get_name() for handler in log.handlers]:
        return
    handler = logging.StreamHandler()
    handler.set_name(_PRINTING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False  # or the root logger would print each record again


class CallLine:
    """The facts of one attempt that is logged; ``reveal_secrets`` returns what must be hidden."""

    def __init__(
        self,
        model: str,
        request_id: str,
        metadata: Mapping[str, Any],
        reveal_secrets: Callable[[], Sequence[str]],
    ) -> None:
        self._model = model
        self._reveal_secrets = reveal_secrets
        self._request_id = request_id
        attempt = str(metadata.get(ATTEMPT, ""))
        self._attempt = int(attempt) + 1 if attempt.isdecimal() else 1
        self._address = ""
        self._status: int | None = None
        self._began = time.monotonic()

    def send(self, http: HttpRequest) -> None:
        """Note the address; at DEBUG, log the request."""
        parts = urlsplit(http.url)
        self._address = parts.netloc.rpartition("@")[2]
        if log.isEnabledFor(logging.DEBUG):
            where = f"{http.method} {self._address}{parts.path}"
            text = _write(_read(http.body), self._reveal_secrets())
            log.debug("%s %s: %s %s", self._model, self._request_id, where, text)

    def receive(self, status: int) -> None:
        """Note the status of the reply."""
        self._status = status

    def end(self, usage: Usage, read_raw: Callable[[], Any], error: BaseException | None) -> None:
        """Log the line of the call; at DEBUG, log the reply too, which ``read_raw`` returns."""
        raw = read_raw() if log.isEnabledFor(logging.DEBUG) else None
        if raw is not None:
            text = _write(raw, self._reveal_secrets())
            log.debug("%s %s: reply %s", self._model, self._request_id, text)
        facts = [str(self._status or "no reply")]
        if isinstance(error, ProviderError):
            facts.append(type(error).__name__)
        elif error is not None:
            facts.append("cancelled")
        facts.append(f"{(time.monotonic() - self._began) * 1000:.0f} ms")
        counts = {"input": usage.input_tokens, "output": usage.output_tokens}
        facts += [f"{count} {name} tokens" for name, count in counts.items() if count is not None]
        facts.append(f"attempt {self._attempt}")
        address = self._address or "an address"
        log.info("%s at %s %s: %s", self._model, address, self._request_id, ", ".join(facts))


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return f"{len(body)} bytes"


def _write(value: Any, secrets: Sequence[str]) -> str:
    """Return a value as JSON without secrets; long texts and lists are cut."""
    text = json.dumps(_shorten(value), ensure_ascii=False, default=repr)
    return scrub(text, secrets, _MOST_LOGGED)


def _shorten(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return f"{value[:_MOST_CHARACTERS]}... ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {name: _shorten(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > _FIRST + _LAST:
            left_out = f"... ({len(value) - _FIRST - _LAST} left out)"
            value = [*value[:_FIRST], left_out, *value[-_LAST:]]
        return [_shorten(each) for each in value]
    return value


if level := os.environ.get("DRAGOMAN_LOG"):
    print_log(level)
