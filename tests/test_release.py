"""The distributions contain the files of the repository, and every build gives the same bytes."""

import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import yaml

import dragoman
from dragoman.conformance import suite
from dragoman.conformance.retrieval import find_retrieval_cases
from dragoman.wire import CODECS

from .distributions import build
from .pages import ROOT


def test_builds_in_other_folders_and_at_other_times_give_the_same_bytes(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    left_out = ("docs/", "src/dragoman/conformance/", "tests/")  # more files take more seconds
    some = {name: data for name, data in files.items() if not name.startswith(left_out)}
    first = build(some, tmp_path / "copy", 1_700_000_000)
    again = build(some, tmp_path / "another" / "deeper" / "folder", 1_800_000_000)
    assert [path.name for path in again] == [path.name for path in first]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_sdist_contains_the_repository(files: dict[str, bytes], built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        found = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.isfile()
        }
    del found["PKG-INFO"]
    assert set(found) == set(files)
    assert [name for name in files if found[name] != files[name]] == []


def test_wheel_contains_the_package(files: dict[str, bytes], built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    package = {
        name.removeprefix("src/"): data
        for name, data in files.items()
        if name.startswith("src/dragoman/")
    }
    assert len(found) < 800  # the cases of each wire are packed into one file
    for name in [name for name in found if name.endswith(".zip")]:
        with zipfile.ZipFile(io.BytesIO(found.pop(name))) as packed:
            folder = name.removesuffix(".zip")
            found |= {f"{folder}/{part}": packed.read(part) for part in packed.namelist()}
    assert {name for name in found if ".dist-info/" not in name} == set(package)
    assert [name for name in package if found[name] != package[name]] == []
    about = {name.partition("/")[2] for name in found if ".dist-info/" in name}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


INSTALLED = """
import dragoman
from dragoman.conformance import suite
from dragoman.conformance.retrieval import find_retrieval_cases
assert dragoman.__file__.startswith({folder!r})
for wire in {wires!r}:
    cases = suite(wire=wire)
    print(wire, len(cases))
    for case in cases[-3:]:
        case.run()
retrieval = find_retrieval_cases()
print("retrieval", len(retrieval))
retrieval[-1].run()
dragoman.connect("openai:gpt-5", api_key="k")
"""


def test_packed_cases_are_the_same_as_in_the_repository(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(tmp_path)
    program = INSTALLED.format(folder=str(tmp_path), wires=sorted(CODECS))
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    counts = {wire: len(suite(wire=wire)) for wire in sorted(CODECS)}
    counts["retrieval"] = len(find_retrieval_cases())
    assert done.stdout.splitlines() == [f"{name} {count}" for name, count in counts.items()]


def test_distributions_run_no_foreign_code_at_start_or_when_built(files: dict[str, bytes]) -> None:
    assert [name for name in files if name.endswith((".pth", "setup.py"))] == []
    project = tomllib.loads(files["pyproject.toml"].decode())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert "backend-path" not in project["build-system"]
    assert set(project["tool"]["hatch"]["build"]) == {"targets"}
    assert set(project["tool"]["hatch"]["build"]["targets"]) == {"wheel"}
    hooks = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    # The only hook packs the conformance cases, and needs hatchling alone.
    assert hooks == {"custom": {"path": "scripts/pack_cases.py"}}
    imported = set(
        re.findall(r"^(?:import|from) (\w+)", files["scripts/pack_cases.py"].decode(), re.M)
    )
    assert imported - sys.stdlib_module_names == {"hatchling"}


def test_every_file_with_the_version_has_the_same_one() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy/helm/dragoman/Chart.yaml").read_text())
    named = {"__init__.py": {dragoman.__version__}, "Chart.yaml": {chart["appVersion"]}}
    for name in ("deploy/compose.yaml", "deploy/README.md", "docs/recipes/docker.md"):
        named[name] = set(re.findall(r"dragoman:([0-9.]+)", (ROOT / name).read_text()))
    assert named == {name: {version} for name in named}
    minor = version.rpartition(".")[0]
    assert f"`dragoman>={minor},<" in (ROOT / "docs/reference/policy.md").read_text()


def test_changelog_has_three_sections_for_each_release_and_links_the_complete_list() -> None:
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases[0].startswith("Unreleased\n")
    assert releases[1].startswith(f"{dragoman.__version__} (")
    for release in releases:
        sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert sections == ["Added", "Changed", "Fixed"][: len(sections)]
        if not release.startswith("Unreleased"):
            version = release.partition(" ")[0]
            assert f"](changes/{version}.md)" in release
            assert (ROOT / f"changes/{version}.md").is_file()


def test_supported_versions_of_python_are_the_declared_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = re.findall(r":: (3\.\d+)", " ".join(project["classifiers"]))
    table = re.findall(r"^\| (3\.\d+) ", (ROOT / "docs/reference/policy.md").read_text(), re.M)
    assert declared == table
    assert project["requires-python"] == f">={declared[0]}"
