"""Examine a live server: run the checks and report its capabilities."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from .. import errors
from ..capabilities import Capabilities
from ..events import StreamContractError
from ..provider.http_model import show_url
from ..transport import Transport
from ..wire import CODECS
from .checks import CHECKS, REFUSALS, Check, Failed, NotApplicable, NotObserved, Unsupported
from .families import describe_rate
from .provider import leave_out
from .report import CheckOutcome, Report, Status
from .server import Server, find_model, find_window, find_wire, reach

Progress = Callable[[int, int, str], None]


async def check_server(
    url: str,
    model: str | None = None,
    wire: str | None = None,
    api_key: str | None = None,
    *,
    seconds: float = 60.0,
    budget: float = 600.0,
    max_tokens: int = 48,
    context: int | None = None,
    skip: Collection[str] = (),
    by: str = "dragoman",
    progress: Progress | None = None,
    transport: Transport | None = None,
) -> Report:
    """Run every check against the server at ``url`` and return a report.

    ``seconds`` limits each call and ``budget`` the total time; no reply is longer than about four
    times ``max_tokens``, except those that are cancelled at their first event. ``context`` is the
    size of the model's context window, if the server does not report it. ``skip`` omits checks by
    name, with ``*`` as a wildcard. Exchanges in the report are truncated and have no headers; they
    never contain the key.
    """
    if wire is not None and wire not in CODECS:
        raise ValueError(f"unknown wire {wire!r}; one of {', '.join(sorted(CODECS))}")
    chosen = leave_out(CHECKS, skip, "check")
    if transport is None:
        await reach(url, seconds)
    wire = wire or await find_wire(url, api_key, seconds)
    model = model or await find_model(url, wire, api_key, seconds)
    if model is None:
        raise errors.InvalidModelError("the server lists no model; name one with --model")
    server = Server(
        url, wire, model, api_key, seconds=seconds, max_tokens=max_tokens, transport=transport
    )
    try:
        server.window = context or await find_window(server)
        server.witness.take()
        outcomes = await _run_all(server, chosen, time.monotonic() + budget, progress)
    finally:
        await server.close()
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = {outcome.name: outcome for outcome in outcomes}
    flags: dict[str, Any] = {flag: _answer(found, names) for flag, names in _FLAGS.items()}
    flags["max_context_tokens"] = server.window
    probed = Capabilities.of(flags, "probed", at=at, by=f"{by} check")
    probes: dict[str, Any] = {probe: _answer(found, names) for probe, names in _PROBES.items()}
    probes["faulty_tool_calls"] = describe_rate(server.judged)
    return Report(
        url=show_url(url),
        wire=wire,
        model=model,
        by=by,
        at=at,
        outcomes=tuple(outcomes),
        # ``ready()`` has read what the server's model list states.
        capabilities=server.provider.capabilities.merged(probed),
        probes=probes,
        tool_calls=server.judged,
    )


async def _run_all(
    server: Server, checks: list[Check], until: float, progress: Progress | None
) -> list[CheckOutcome]:
    outcomes: list[CheckOutcome] = []
    why = ""
    for at, check in enumerate(checks):
        if progress is not None:
            progress(at, len(checks), check.name)
        if time.monotonic() >= until:
            why = "the time budget was used up"
        if why:
            late = CheckOutcome(
                name=check.name,
                title=check.title,
                status="not_applicable",
                detail=why,
                about=False,
            )
            outcomes.append(late)
            continue
        outcome = await run_check(check, server)
        evidence = server.witness.take()[-3:]
        is_lacking = outcome.status in ("fail", "unsupported")
        outcomes.append(replace(outcome, evidence=evidence if is_lacking else ()))
        if outcome.status == "fail" and not outcome.about and await _is_gone(server):
            why = "the server can no longer be reached"
    if progress is not None:
        progress(len(checks), len(checks), "")
    return outcomes


async def _is_gone(server: Server) -> bool:
    """Return whether a server refuses connections."""
    try:
        await reach(server.url, server.timeouts.total or 10.0)
    except errors.NetworkError:
        return True
    return False


async def run_check(check: Check, subject: Any) -> CheckOutcome:
    """Run a check of a server or a model, and return its outcome without evidence."""
    began = time.perf_counter()
    status: Status = "pass"
    about = True
    try:
        detail = await check.run(subject) or ""
    except NotApplicable as found:
        status = "not_applicable"
        detail = str(found)
    except NotObserved as found:
        status = "not_observed"
        detail = str(found)
    except Unsupported as found:
        status = "unsupported"
        detail = str(found)
    except Failed as found:
        status = "fail"
        detail = str(found)
    except StreamContractError as error:
        status = "fail"
        detail = f"the stream breaks a rule: {error}"
    except errors.ProviderError as error:
        lacks = isinstance(error, errors.UnsupportedFeatureError | errors.UnsupportedContentError)
        refused = check.optional and isinstance(error, REFUSALS) and error.status is not None
        status = "unsupported" if refused else "fail"
        detail = _in_a_line(error)
        if lacks and error.status is None:
            status = "not_applicable"  # the wire lacks the feature, so nothing was sent
        about = lacks or refused or not error.transient
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except Exception as error:  # the check itself has a bug; the other checks are run anyway
        status = "fail"
        about = False
        detail = f"the check itself failed: {type(error).__name__}: {errors.scrub(str(error))}"
    seconds = round(time.perf_counter() - began, 3)
    return CheckOutcome(
        name=check.name,
        title=check.title,
        status=status,
        detail=detail,
        evidence=(),
        seconds=seconds,
        about=about,
    )


def _in_a_line(error: errors.ProviderError) -> str:
    reason = (
        f": {' '.join(error.provider_message.split())[:200]}" if error.provider_message else ""
    )
    status = f" (HTTP {error.status})" if error.status is not None else ""
    return f"{type(error).__name__}{status}: {error.message}{reason}"


# --- results and capabilities ------------------------------------------------------------------

_PROBES = {
    "tools": ("tools.auto", "tools.required", "tools.forced"),
    "forced_choice": ("tools.forced",),
    "parallel_tools": ("tools.parallel",),
    "schema": ("schema.native",),
    "images": ("images.inline",),
    "streaming": ("stream.rules",),
    "streaming_usage": ("stream.usage",),
    "stop": ("limits.stop",),
    "seed": ("sampling.seed",),
    "logprobs": ("sampling.logprobs",),
    "context_limit": ("limits.context",),
    "cancel": ("cancel.stops",),
}
_FLAGS = {
    "supports_tools": ("tools.auto", "tools.required", "tools.forced"),
    "supports_parallel_tool_calls": ("tools.parallel",),
    "supports_structured_output": ("schema.native",),
    "supports_images": ("images.inline",),
    "supports_streaming": ("stream.rules",),
    "supports_streaming_tool_calls": ("tools.streamed",),
    "supports_system_prompt": ("text.system",),
}


def _answer(found: Mapping[str, CheckOutcome], names: tuple[str, ...]) -> bool | None:
    """Return whether any of the named checks passed.

    Return ``None`` if no check was conclusive, or if one failed for an unrelated reason such as a
    lost connection.
    """
    conclusive = [
        found[name]
        for name in names
        if name in found and found[name].status not in ("not_observed", "not_applicable")
    ]
    if any(outcome.status == "pass" for outcome in conclusive):
        return True
    return False if conclusive and all(outcome.about for outcome in conclusive) else None
