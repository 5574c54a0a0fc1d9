"""The conformance kit: test whether a codec, a provider or a server fulfils its contract.

Box: kit.

``suite(wire="openai")`` returns the cases for a wire, ``suite(make_provider)`` the cases for a
provider, and ``retrieval_suite(make_embedder)`` the cases for an embedder or a reranker. Run them
with ``pytest.mark.parametrize`` or in a loop. ``check_server(url)`` examines a live server and
returns a report, and ``BeliefCheck(vendor, model)`` asks a vendor's server whether what the
catalogue believes about it is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from ..capabilities import Capabilities
from ..errors import ProviderError
from ..provider.http_model import read_capabilities
from ..wire import CODECS
from .believed import BeliefCheck, BeliefOutcome, BeliefReport, write_beliefs
from .cases import CASES, CodecCase, CodecType, find_cases
from .codec import RULES, CodecRule
from .contract import build_cases
from .live import check_server
from .provider import Factory, Kit, ProviderCase, check_settings, leave_out
from .report import CheckOutcome, Report, write_html, write_junit, write_markdown, write_text
from .retrieval import RetrievalKit, RetrievalModelCase, retrieval_suite
from .violation import Violation

__all__ = [
    "BeliefCheck", "BeliefOutcome", "BeliefReport", "CheckOutcome", "CodecCase", "CodecRule", "Factory", "Kit", "ProviderCase", "Report",
    "RetrievalKit", "RetrievalModelCase", "Violation", "check_server", "retrieval_suite", "suite",
    "write_beliefs", "write_html", "write_junit", "write_markdown", "write_text",
]  # fmt: skip


@overload
def suite(
    factory: None = None,
    *,
    wire: str,
    codec: CodecType | None = None,
    cases: str | Path | None = None,
    skip: Iterable[str] = (),
) -> Sequence[CodecCase | CodecRule]: ...
@overload
def suite(
    factory: Factory,
    *,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    failing: Mapping[type[ProviderError], Factory] | None = None,
    breaking: Factory | None = None,
    unready: Mapping[type[ProviderError], Factory] | None = None,
    other: Factory | None = None,
    skip: Iterable[str] = (),
    **settings: Any,
) -> Sequence[ProviderCase]: ...
def suite(
    factory: Factory | None = None,
    *,
    wire: str | None = None,
    codec: CodecType | None = None,
    cases: str | Path | None = None,
    capabilities: Capabilities | Mapping[str, Any] | None = None,
    failing: Mapping[type[ProviderError], Factory] | None = None,
    breaking: Factory | None = None,
    unready: Mapping[type[ProviderError], Factory] | None = None,
    other: Factory | None = None,
    skip: Iterable[str] = (),
    **settings: Any,
) -> Sequence[CodecCase | CodecRule | ProviderCase]:
    """Return the cases of a codec or a provider; run each with ``case.run()``.

    For a codec, give its ``wire``. ``codec`` is the class to test, by default Dragoman's own, and
    ``cases`` is a folder of your own case files, with one folder per wire.

    For a provider, give ``factory``: ``factory()`` returns a new provider for each case, or an
    awaitable that returns one. ``capabilities`` select the cases: if a feature is known to be
    missing, the cases check that it is rejected cleanly. ``failing`` and ``unready`` map an error
    class to a factory whose calls, or whose ``ready()``, must raise it; ``breaking`` returns a
    provider whose stream breaks off after its first text. ``other`` is the factory of a second
    provider: further cases then check that the two answer alike and continue each other's
    conversations. ``settings`` are fields of ``Kit``: ``prompt``, ``tool``, ``schema``,
    ``config``, ``at_once``, ``seconds``.

    ``skip`` omits cases by name, with ``*`` as a wildcard; a name that matches no case is an
    error.
    """
    if (factory is None) == (wire is None):
        raise ValueError("suite: give either a factory of providers or wire=")
    if wire is not None:
        given = {
            "capabilities": capabilities,
            "failing": failing,
            "breaking": breaking,
            "unready": unready,
            "other": other,
            **settings,
        }
        if wrong := [name for name, value in given.items() if value is not None]:
            raise ValueError(f"suite: {', '.join(wrong)} do not apply to a codec (wire={wire!r})")
        return leave_out(
            _codec_cases(wire, codec, Path(cases) if cases is not None else CASES), skip
        )
    assert factory is not None
    check_settings("suite", Kit, settings)
    known = read_capabilities(capabilities)
    kit = Kit(factory, known, failing or {}, breaking, unready or {}, other, **settings)
    return leave_out(build_cases(kit), skip)


def _codec_cases(wire: str, codec: CodecType | None, folder: Path) -> list[CodecCase | CodecRule]:
    kind = codec or CODECS.get(wire)
    if kind is None:
        raise ValueError(
            f"suite: no wire {wire!r}; one of {', '.join(sorted(CODECS))}, or give codec="
        )
    found = find_cases(wire, folder=folder, kind=kind)
    if not found and folder != CASES:
        raise ValueError(f"suite: no cases found in {folder / wire}")
    return [*[CodecRule(name, check, kind) for name, check in RULES.items()], *found]
