"""Ask judges about a subject within a deadline, and record each verdict."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ...blocking import run_in_thread
from ...calls import GuardJudged
from ...errors import cut
from ..layer import is_async
from .subject import STRICTER, Judge, Subject, Verdict

log = logging.getLogger("dragoman")

Failure = Literal["closed", "open"]
FAILED = "judge_failed"
LATE = "judge_late"
MAX_REASON = 500
# A code is a word: it is shown to clients, so it must not contain what was judged.
_CODE = re.compile(r"[\w.:/-]{1,64}")


class Judgement(Struct, frozen=True):
    """The strictest verdict on a subject, and the records of all verdicts on it."""

    verdict: Verdict
    records: tuple[GuardJudged, ...]


class Bench:
    """The judges of a guard, which are asked side by side; the strictest verdict counts.

    A judge that fails, answers something else than a verdict, or takes longer than ``deadline``
    seconds, blocks the subject, or allows it if ``on_failure`` is ``open``.
    """

    def __init__(
        self,
        judges: Sequence[Judge],
        *,
        deadline: float,
        on_failure: Failure,
        include_content: bool,
    ) -> None:
        self.judges = judges
        self.deadline = deadline
        self.on_failure = on_failure
        self._include_content = include_content

    async def judge(self, subject: Subject) -> Judgement:
        """Return the strictest verdict of the judges."""
        if len(self.judges) == 1:
            answers = [await self._ask(self.judges[0], subject)]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(each, subject)) for each in self.judges]
            answers = [task.result() for task in tasks]
        verdicts = [verdict for verdict, _ in answers]
        strictest = max(verdicts, key=lambda verdict: STRICTER.index(verdict.action))
        return Judgement(strictest, tuple([record for _, record in answers]))

    async def _ask(self, judge: Judge, subject: Subject) -> tuple[Verdict, GuardJudged]:
        began = time.perf_counter()
        verdict: Verdict | None = None
        problem = FAILED
        try:
            async with asyncio.timeout(self.deadline):
                verdict = _read_answer(await _call(judge, subject))
        except TimeoutError:
            problem = LATE
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.warning("the judge %s was cancelled from within", name_judge(judge))
        except Exception as error:
            # Only the type is logged, because the message may quote what was judged.
            log.warning("the judge %s failed: %s", name_judge(judge), type(error).__name__)
        is_failed = verdict is None
        if verdict is None:
            verdict = Verdict("block" if self.on_failure == "closed" else "allow", code=problem)
        seconds = time.perf_counter() - began
        return verdict, self._record(judge, subject, verdict, seconds, is_failed)

    def _record(
        self, judge: Judge, subject: Subject, verdict: Verdict, seconds: float, is_failed: bool
    ) -> GuardJudged:
        reason = verdict.reason if self._include_content else None
        return GuardJudged(
            stage=subject.stage,
            part=subject.part,
            action=verdict.action,
            judge=name_judge(judge),
            version=_read_word(verdict.version or getattr(judge, "version", None)),
            code=read_code(verdict),
            reason=None if reason is None else cut(reason, MAX_REASON),
            failed=is_failed,
            latency_ms=round(seconds * 1000, 3),
            cost_usd=verdict.cost_usd,
            sha256=subject.digest(),
            characters=len(subject.text),
            request_id=subject.request.request_id,
        )


async def _call(judge: Judge, subject: Subject) -> Any:
    """Call a judge; run a plain function in a thread, because it may be slow."""
    if is_async(judge):
        return await judge(subject)  # type: ignore[misc]
    answer = await run_in_thread(lambda: judge(subject), "dragoman-judge")
    return await answer if inspect.isawaitable(answer) else answer


def _read_answer(answer: object) -> Verdict:
    if isinstance(answer, Verdict):
        answer.check()
        return answer
    return Verdict(answer)  # type: ignore[arg-type]  # which refuses other words


def read_code(verdict: Verdict) -> str | None:
    """Return the code of a verdict; ``None`` if it is not a word, since it might quote the content."""
    return _read_word(verdict.code)


def _read_word(given: object) -> str | None:
    return given if isinstance(given, str) and _CODE.fullmatch(given) else None


def name_judge(judge: Any) -> str:
    """Return the name of a judge: its ``name``, or that of the function or class."""
    named = getattr(judge, "name", None) or getattr(judge, "__name__", None)
    return cut(named if isinstance(named, str) else type(judge).__name__)
