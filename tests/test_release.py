"""The distributions contain the files of the repository, and every build gives the same bytes."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import dragoman

from .pages import ROOT
from .programs import require

BUILD = """
import sys, time
time.time = lambda: float(sys.argv[2])
import hatchling.build
hatchling.build.build_wheel(sys.argv[1])
hatchling.build.build_sdist(sys.argv[1])
"""


def find_files(folder: Path) -> dict[str, bytes]:
    """Return the files of the repository that git does not ignore, by their names.

    An empty git folder lists them all, and works in a copy without the history too.
    """
    git = [require("git"), f"--git-dir={folder}", f"--work-tree={ROOT}"]
    subprocess.run([git[0], "init", "--quiet", "--bare", str(folder)], check=True)
    command = [*git, "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [name for name in listed.stdout.split("\0") if name]
    return {name: (ROOT / name).read_bytes() for name in paths}


def build(files: dict[str, bytes], folder: Path, clock: int) -> tuple[Path, Path]:
    """Build the wheel and the sdist from a copy of the files at another time; return both."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (clock, clock))
    out = folder.parent / f"{folder.name}-out"
    out.mkdir()
    settings = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(
        [sys.executable, "-c", BUILD, str(out), str(clock)], cwd=folder, check=True, env=settings
    )
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return find_files(tmp_path_factory.mktemp("git"))


@pytest.fixture(scope="module")
def built(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(files, tmp_path_factory.mktemp("first") / "repository", 1_700_000_000)


def test_builds_in_other_folders_and_at_other_times_give_the_same_bytes(
    files: dict[str, bytes], built: tuple[Path, Path], tmp_path: Path
) -> None:
    again = build(files, tmp_path / "another" / "deeper" / "copy", 1_800_000_000)
    assert [path.name for path in again] == [path.name for path in built]
    for one, other in zip(built, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    shutil.rmtree(tmp_path / "another")


def test_sdist_contains_exactly_the_files_of_the_repository(
    files: dict[str, bytes], built: tuple[Path, Path]
) -> None:
    with tarfile.open(built[1]) as archive:
        found = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
            if member.isfile()
        }
    del found["PKG-INFO"]
    assert set(found) == set(files)
    assert [name for name in files if found[name] != files[name]] == []


def test_wheel_contains_exactly_the_files_of_the_package(
    files: dict[str, bytes], built: tuple[Path, Path]
) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    package = {
        name.removeprefix("src/"): data
        for name, data in files.items()
        if name.startswith("src/dragoman/")
    }
    assert {name for name in found if ".dist-info/" not in name} == set(package)
    assert [name for name in package if found[name] != package[name]] == []
    about = {name.partition("/")[2] for name in found if ".dist-info/" in name}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_distributions_run_no_code_when_python_starts_or_when_they_are_built(
    files: dict[str, bytes],
) -> None:
    assert [name for name in files if name.endswith((".pth", "setup.py"))] == []
    project = tomllib.loads(files["pyproject.toml"].decode())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert "backend-path" not in project["build-system"]
    assert set(project["tool"]["hatch"]["build"]) == {"targets"}
    assert set(project["tool"]["hatch"]["build"]["targets"]) == {"wheel"}


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
