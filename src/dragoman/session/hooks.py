"""Hooks: a program or a function that receives a proposal as JSON and decides about it.

::

    Session(..., approve=hook(["./check-proposal"], then=ask_me))

A hook returns an object: ``{"allowed": true}``, ``false``, or ``null`` to defer to ``then``;
optionally with ``reason``, ``by``, ``scope``, ``prefix`` and ``input``, as in ``Decision``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from ..permission import Approver, Decision, Proposal, Scope, Verdict, ask
from ..tools import ToolFailure
from ..tools.process import run_process

HookFunction: TypeAlias = Callable[[dict[str, Any]], "Any | Awaitable[Any]"]
_LONGEST = 1024 * 1024  # maximum size of an answer in bytes


class _Answer(Struct, forbid_unknown_fields=True):
    """The object that a hook returns."""

    allowed: bool | None = None
    reason: str = ""
    by: str = ""
    scope: Scope = "once"
    prefix: str | None = None
    input: dict[str, Any] | None = None


class HookError(RuntimeError):
    """A hook failed, timed out, or returned something other than a decision.

    The proposal is denied.
    """


def hook(
    target: Sequence[str] | HookFunction, *, then: Approver | None = None, timeout: float = 60
) -> Approver:
    """Return an approver that delegates the decision to a program or a function.

    A program receives the proposal as JSON on standard input and prints the answer; an exit code
    other than 0 denies, with the first line of standard error as the reason. A function receives
    the proposal as a dictionary and may be a coroutine function. Without an answer in ``timeout``
    seconds, the proposal is denied.
    """
    if isinstance(target, str) or (not callable(target) and not target):
        raise ValueError("hook: give a function, or a program as a list of words")
    name = (
        getattr(target, "__name__", "function") if callable(target) else PurePath(target[0]).name
    )

    async def approve(proposal: Proposal, verdict: Verdict) -> Decision:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(proposal))
        asked = {**plain, "rule": verdict.rule, "reason": verdict.reason}
        try:
            async with asyncio.timeout(timeout):
                given = await (_call(target, asked) if callable(target) else _run(target, asked))
            answer = msgspec.convert(
                {"allowed": given} if isinstance(given, bool | None) else given, _Answer
            )
        except TimeoutError:
            return Decision(
                False, f"hook {name}", reason=f"no answer after {timeout:g} s", rule=verdict.rule
            )
        except (HookError, msgspec.ValidationError) as error:
            return Decision(False, f"hook {name}", reason=str(error), rule=verdict.rule)
        if answer.allowed is None:
            return await ask(then, proposal, verdict)
        by = f"hook {name}" + (f" for {answer.by}" if answer.by else "")
        return Decision(
            answer.allowed,
            by,
            reason=answer.reason,
            rule=verdict.rule,
            scope=answer.scope,
            prefix=answer.prefix,
            input=answer.input,
        )

    return approve


async def _call(function: HookFunction, asked: dict[str, Any]) -> Any:
    try:
        answer = function(asked)
        return await answer if inspect.isawaitable(answer) else answer
    except (asyncio.CancelledError, TimeoutError):
        raise
    except Exception as error:
        raise HookError(f"the hook failed: {type(error).__name__}") from error


async def _run(command: Sequence[str], asked: dict[str, Any]) -> Any:
    given = msgspec.json.encode(asked) + b"\n"
    try:
        done = await run_process(command, stdin=given, limit=2 * _LONGEST)
    except ToolFailure as error:
        raise HookError(f"the hook cannot be run: {error.message}") from error
    if done.exit_code != 0:
        first = done.stderr.strip().partition("\n")[0][:500]
        raise HookError(first or f"the hook ended with exit code {done.exit_code}")
    if not done.stdout.strip():
        return None
    if done.stdout_bytes > _LONGEST:
        raise HookError(f"the hook printed more than {_LONGEST} bytes")
    if done.replaced_bytes and "\ufffd" in done.stdout:
        raise HookError("the hook printed text that is not UTF-8")
    try:
        return msgspec.json.decode(done.stdout)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HookError(f"the hook did not print JSON: {error}") from None
