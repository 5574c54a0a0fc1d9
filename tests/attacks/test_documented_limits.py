"""The limits on the security page match those in the code, and the tests on it exist."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from dragoman.gateway.access import Bounds
from dragoman.transport import Timeouts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
ROWS = {
    name: default
    for default, name in re.findall(r"^- .*: (.+) \(.*`(\w+(?:\.\w+)+)`\)$", PAGE, re.MULTILINE)
}
_TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def read_default(text: str) -> Any:
    """Return the number of a limit such as ``64 KiB`` or ``10,000``."""
    if text == "allowed":
        return True
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * _UNITS.get(unit, 1)


def find_value(name: str) -> Any:
    """Return a constant of a module, or the default value of a struct field."""
    *parts, last = name.split(".")
    if parts[-1][0].isupper():
        (field,) = [each for each in fields(find_value(".".join(parts))) if each.name == last]
        return field.default
    return getattr(importlib.import_module(".".join(["dragoman", *parts])), last)


def test_limits_page_lists_limits() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("name", ROWS)
def test_documented_default_limits_match_the_code(name: str) -> None:
    assert find_value(name) == read_default(ROWS[name])


def test_every_gateway_bound_and_timeout_is_documented() -> None:
    for place, struct in (("gateway.access.Bounds", Bounds), ("transport.Timeouts", Timeouts)):
        assert {f"{place}.{name}" for name in struct.__struct_fields__} <= set(ROWS)


@pytest.mark.parametrize("option", sorted(set(re.findall(r"`(--[a-z-]+)", PAGE))))
def test_options_on_the_limits_page_exist(option: str) -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text()
    assert re.search(rf"{option}\b", reference) or option in ("--require-hashes",)


def test_tests_on_the_security_page_exist() -> None:
    found = {
        name
        for path in ROOT.glob("tests/**/test_*.py")
        for name in _TEST.findall(path.read_text())
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert named - found == set()


def test_security_policy_links_to_the_limits_page() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    assert "docs/security.md" in policy
    for part in (
        "Threat model",
        "Limits and defaults",
        "Secrets",
        "Supply chain",
        "Reporting a vulnerability",
    ):
        assert f"\n## {part}\n" in PAGE
