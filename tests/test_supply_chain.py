"""Dependencies are locked after a cool-down period and listed in a software bill of materials."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from datetime import date
from importlib.metadata import Distribution, distribution
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOCK = runpy.run_path(str(ROOT / "scripts/lock.py"))
SBOM = runpy.run_path(str(ROOT / "scripts/sbom.py"))
LOCKS = [path.read_text() for path in sorted(ROOT.glob("requirements/*.lock"))]


@pytest.mark.parametrize(
    ("override", "day"),
    [("", "2026-11-08"), ("2026-11-14", "2026-11-14"), ("2027-01-01", "2027-01-01")],
)
def test_lock_script_uses_releases_at_least_a_week_old_by_default(override: str, day: str) -> None:
    assert LOCK["choose_day"](date(2026, 11, 15), override) == day


def test_lock_script_rejects_an_invalid_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/lock.py"], env={"LOCK_BEFORE": "now; rm"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == ""
    assert done.returncode == 1
    assert "LOCK_BEFORE must be a day" in done.stderr


def test_every_lock_file_is_made_with_hashes_and_the_release_date_limit() -> None:
    commands = LOCK["commands"]("2026-11-08")
    assert [command[-1] for command in commands] == [
        "requirements/dev.lock", "requirements/chat.lock", "requirements/image.lock",
        "requirements/installer.lock",
    ]  # fmt: skip
    assert {path.name for path in ROOT.glob("requirements/*.lock")} == {
        Path(each[-1]).name for each in commands
    }
    for command in commands:
        assert command[command.index("--exclude-newer") + 1] == "2026-11-08"
        assert "--generate-hashes" in command
        exempt = [word for word in command if "=false" in word]
        assert exempt == ["helm-binary=false"]  # the only package without an upload time


def test_every_dependency_of_a_user_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert [each for each in asked if not re.search(r",<\d", each)] == []


def test_every_locked_package_is_pinned_and_hashed() -> None:
    for text in LOCKS:
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert re.match(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+", entry), entry[:100]
            assert "--hash=sha256:" in entry, entry[:100]
            assert "://" not in entry, "an index or a URL is named"


@pytest.fixture(scope="module")
def bill() -> Any:
    return SBOM["build"](LOCKS, distribution("dragoman"))


def test_bill_of_materials_lists_every_locked_package(bill: Any) -> None:
    listed = {(each["name"], each["version"]): each for each in bill["components"]}
    pinned = re.compile(r"^([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([^\s;]+)", re.MULTILINE)
    locked = {found for text in LOCKS for found in pinned.findall(text)}
    assert set(listed) == locked
    hashes = {each["content"] for component in listed.values() for each in component["hashes"]}
    assert hashes == {found for text in LOCKS for found in re.findall(r"sha256:(\w{64})", text)}
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in listed.values())
    assert len({each["bom-ref"] for each in listed.values()}) == len(listed)


def test_bill_of_materials_separates_core_extras_and_development(bill: Any) -> None:
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    shown = [
        scopes[name]
        for name in ("msgspec", "click", "starlette", "psycopg-binary", "pytest", "ruff")
    ]
    assert shown == ["required", "required", "optional", "optional", "excluded", "excluded"]


def test_licences_of_the_core_packages_are_known(bill: Any) -> None:
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    for each in bill["components"]:
        if each["scope"] == "required" and SBOM["find"](each["name"]) is not None:
            text = json.dumps(each.get("licenses", "unknown"))
            assert re.search("MIT|BSD|Apache|PSF|Python Software Foundation", text), (
                f"{each['name']}: {text}"
            )


def test_bill_of_materials_dependencies_refer_to_listed_packages(bill: Any) -> None:
    own = bill["metadata"]["component"]["bom-ref"]
    known = {own, *[each["bom-ref"] for each in bill["components"]]}
    edges = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert set(edges) == known
    assert all(set(targets) <= known for targets in edges.values())
    (uvicorn,) = [each for each in edges if each.startswith("pkg:pypi/uvicorn@")]
    assert uvicorn in edges[own]
    assert any(each.startswith("pkg:pypi/h11@") for each in edges[uvicorn])


def test_bill_of_materials_is_deterministic(bill: Any, tmp_path: Path) -> None:
    output = tmp_path / "new" / "bill.json"
    command = [sys.executable, str(ROOT / "scripts/sbom.py"), str(output)]
    subprocess.run(command, check=True, capture_output=True, env={"PYTHONHASHSEED": "1"})
    document = json.loads(output.read_bytes())
    assert document == bill
    assert document["bomFormat"] == "CycloneDX"
    assert document["specVersion"] == "1.6"
    assert document["serialNumber"].startswith("urn:uuid:")
    assert "timestamp" not in document["metadata"]


@pytest.mark.parametrize(
    ("fields", "licenses"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: other",
         [{"expression": "MIT OR Apache-2.0"}]),
        ("Classifier: License :: OSI Approved :: MIT License\nLicense: x",
         [{"license": {"name": "MIT License"}}]),
        ("License: BSD\n        all of its text", [{"license": {"name": "BSD"}}]),
        ("Summary: no licence", []),
    ],
)  # fmt: skip
def test_licences_are_read_from_files(fields: str, licenses: list[Any], tmp_path: Path) -> None:
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{fields}\n")
    assert SBOM["read_licenses"](Distribution.at(folder)) == licenses


@pytest.mark.parametrize(
    ("target", "script"), [("lock", "scripts/lock.py"), ("sbom", "scripts/sbom.py")]
)
def test_make_targets_run_the_lock_and_bill_of_materials_scripts(target: str, script: str) -> None:
    done = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert script in done.stdout
