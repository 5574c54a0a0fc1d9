"""The workflows of the repository: pinned actions, few permissions, and the declared platforms."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

import dragoman

from .boxes import BOXES
from .programs import require

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github/workflows"
TEXTS = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.yml"))}
READ: dict[str, Any] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
WRITES = {
    ("release.yml", "publish"): {"id-token"},
    ("release.yml", "attach"): {"attestations", "contents", "id-token"},
    ("release.yml", "image"): {"id-token", "packages"},
    ("release.yml", "pages"): {"id-token", "pages"},
}


def test_zizmor_finds_nothing() -> None:
    command = [Path(sys.executable).with_name("zizmor"), "--offline", "--persona=pedantic", FOLDER]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_action_is_pinned_by_its_commit() -> None:
    used = re.findall(r"uses: (\S+)(.*)", "\n".join(TEXTS.values()))
    assert len(used) > 10
    own = "./.github/workflows/test.yml"
    pinned = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
    assert [
        name
        for name, comment in used
        if name != own
        and not (pinned.fullmatch(name) and re.match(r" # v\d+\.\d+\.\d+$", comment))
    ] == []


def test_only_the_listed_jobs_may_write() -> None:
    writing: dict[tuple[str, str], set[str]] = {}
    for name, workflow in READ.items():
        assert workflow["permissions"] == {}
        for job, facts in workflow["jobs"].items():
            rights = {right for right, may in facts["permissions"].items() if may == "write"}
            writing |= {(name, job): rights} if rights else {}
    assert writing == WRITES
    assert "secrets." not in "".join(TEXTS.values())


def test_matrix_has_the_supported_versions_and_its_tests_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    job = READ["test.yml"]["jobs"]["matrix"]
    declared = re.findall(r":: (3\.\d+)", " ".join(project["project"]["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == declared
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert [
        name for name in re.findall(r"tests/\S+", commands) if not (ROOT / name).exists()
    ] == []
    assert "--group portable" in commands
    assert "portable" in project["dependency-groups"]


def test_workflow_runs_every_box() -> None:
    job = READ["test.yml"]["jobs"]["boxes"]
    assert job["strategy"]["matrix"]["box"] == list(BOXES)


def test_release_refuses_a_tag_of_another_version() -> None:
    steps = READ["release.yml"]["jobs"]["build"]["steps"]
    (check,) = [step["run"] for step in steps if "TAG" in step.get("env", {})]
    codes = [
        subprocess.run([require("bash"), "-c", check], cwd=ROOT, env={"TAG": tag}).returncode
        for tag in (f"v{dragoman.__version__}", "v9.9.9")
    ]
    assert codes == [0, 1]
