"""A pytest plugin: append one line of JSON for each test to the file ``DRAGOMAN_TEST_REPORT``.

``scripts/run_tests.py`` reads the file while the tests run. The signal ``SIGUSR1`` makes the process
print the stack of each of its threads.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from pathlib import Path
from typing import Any

_report = Path(os.environ["DRAGOMAN_TEST_REPORT"]).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115
# pytest replaces the standard streams later.
faulthandler.register(signal.SIGUSR1, os.fdopen(os.dup(2), "w"))


def _write(**event: Any) -> None:
    _report.write(json.dumps(event) + "\n")


def pytest_collection_finish(session: Any) -> None:
    _write(collected=len(session.items))


def pytest_collectreport(report: Any) -> None:
    if not report.passed:
        pytest_runtest_logreport(report)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        sections = [f"--- {title} ---\n{text}" for title, text in report.sections]
        text = "\n".join([report.longreprtext, *sections])
        _write(outcome="failed", name=report.nodeid, text=text)
    elif report.skipped and not hasattr(report, "wasxfail"):
        _write(outcome="skipped", reason=_explain(report))
    elif getattr(report, "when", "") == "call":  # an expected failure is a pass
        _write(outcome="passed")


def _explain(report: Any) -> str:
    """Return the reason of a skipped test; tests that wait for the same command share one."""
    path, _, reason = report.longrepr
    if "dragoman local pull" in reason:
        return "a model of 1.1 GB: dragoman local pull qwen, then make test-exhaustive"
    if "exhaustive" in report.keywords:
        return "long runs: make test-exhaustive"
    if "langchain_tests" in path:
        return "LangChain's suites: the model or the wire does not have the feature"
    return str(reason.removeprefix("Skipped: "))
