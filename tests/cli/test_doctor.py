"""``dragoman doctor`` finds altered files, code that runs at the start, and unexpected packages."""

import base64
import hashlib
import json
import site
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dragoman.cli import doctor, main


def install(folder: Path, name: str, *files: str, needs: str = "", asked: bool = False) -> None:
    """Write a package with its metadata, as an installer does."""
    about = folder / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{needs}")
    lines = [f"{about.name}/RECORD,,"]
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("import os\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"import os\n").digest()).rstrip(b"=")
        lines.append(f"{file},sha256={digest.decode()},10")
    (about / "RECORD").write_text("\n".join(lines))
    if asked:
        (about / "REQUESTED").touch()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with dragoman as it is, and packages that can be altered."""
    folder = tmp_path / "site-packages"
    install(folder, "web_tools", "web_tools/a.py", "tools.pth", needs="Requires-Dist: Parts>=1\n")
    install(folder, "parts", "parts.py")
    install(
        folder, "wanted", "wanted.py", needs="Requires-Dist: web.tools[x]; extra == 'y'\n",
        asked=True,
    )  # fmt: skip
    install(folder, "editable")
    (folder / "editable-1.dist-info/direct_url.json").write_text(
        '{"dir_info": {"editable": true}}'
    )

    def find() -> list[Distribution]:
        return [*distributions(path=[str(folder)]), distribution("dragoman")]

    monkeypatch.setattr(doctor, "distributions", find)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(folder)])
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "none"))
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "models.yaml"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789abcdef")
    return folder


def run(*words: str) -> tuple[int, dict[str, list[Any]]]:
    result = CliRunner().invoke(main, ["doctor", "--json", *words])
    found: dict[str, list[Any]] = {}
    for each in json.loads(result.stdout):
        found.setdefault(each["name"], []).append(each["detail"])
    return result.exit_code, found


def test_unaltered_environment_passes_and_unusual_files_are_listed(environment: Path) -> None:
    code, found = run("--integrity")
    assert code == 0
    assert "changed" not in found
    assert "missing" not in found
    assert "editable" in [each.partition(":")[0] for each in found["unrecorded"]]
    assert [each.partition(":")[0] for each in found["unasked"]] == ["editable"]
    (pth,) = found[".pth"]
    assert pth.endswith("tools.pth: runs code at every start of Python; of web-tools")


def test_altered_environment_is_reported(environment: Path) -> None:
    (environment / "web_tools/a.py").write_text("import socket\n")
    (environment / "parts.py").unlink()
    (environment / "new.pth").write_text("/somewhere\n")
    install(environment, "stranger", "stranger.py")
    code, found = run("--integrity")
    assert code == 1
    assert found["changed"] == ["web-tools: web_tools/a.py"]
    assert found["missing"] == ["parts: parts.py"]
    assert found[".pth"][0] == f"{environment / 'new.pth'}: adds folders; of no package"
    assert [each.partition(":")[0] for each in found["unasked"]] == ["editable", "stranger"]
    shown = CliRunner().invoke(main, ["doctor", "--integrity"])
    assert "changed     web-tools: web_tools/a.py; install the package again" in shown.output


@pytest.mark.parametrize("start", [b"", b"/somewhere\r", b"/somewhere\n", b"\xef\xbb\xbf"])
def test_path_file_that_runs_code_is_recognised_as_python_reads_it(
    environment: Path, start: bytes
) -> None:
    (environment / "new.pth").write_bytes(start + b"import socket")
    _, found = run("--integrity")
    assert "new.pth: runs code at every start of Python; of no package" in found[".pth"][0]


def test_modules_that_no_package_recorded_are_listed(environment: Path) -> None:
    (environment / "web_tools/planted.py").touch()
    (environment / f"fast{EXTENSION_SUFFIXES[0]}").touch()
    code, found = run("--integrity")
    listed = [each for each in found["unrecorded"] if "RECORD" in each]
    assert code == 0
    assert listed == [
        f"{environment / f'fast{EXTENSION_SUFFIXES[0]}'}: 1 of its modules are in no RECORD",
        f"{environment / 'web_tools'}: 1 of its modules are in no RECORD",
    ]
    record = environment / "web_tools-1.dist-info/RECORD"
    record.write_text(record.read_text().replace("web_tools/a.py", "web_tools/b.py"))
    (environment / "sitecustomize.py").touch()
    code, found = run("--integrity")
    assert code == 1
    assert f"{environment / 'web_tools'}: 2 of its modules are in no RECORD" in found["unrecorded"]
    assert any(
        "sitecustomize.py" in each and "every start" in each for each in found["unrecorded"]
    )


def test_installation_is_described_without_keys(environment: Path, tmp_path: Path) -> None:
    code, found = run()
    assert code == 0
    assert found["dragoman"][0].startswith(distribution("dragoman").version)
    assert found["extras"] == ["none"]
    assert "openai" in found["keys"][0]
    assert "does not exist" in found["models"][0]
    assert "integrity" not in found
    (tmp_path / "models.yaml").write_text("adaptors: {}\n")
    shown = CliRunner().invoke(main, ["doctor"])
    assert "dragoman config check" in shown.output
    assert shown.exit_code == 1
    assert "canary" not in shown.output
    (tmp_path / "models.yaml").write_text("adapters: [\n")
    assert run()[0] == 1
