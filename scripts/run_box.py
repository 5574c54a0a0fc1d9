"""Run the tests of one box in a copy of the repository without the others: ``make test BOX=core``.

The copy has the box, what it may import, and what its tests use (``tests/boxes.py``). Its
environment has the packages of these alone, in the versions of requirements/dev.lock.
``all`` runs every box, one after the other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.boxes import BOXES, find_box_of_test, list_absent, list_parts

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = "src/dragoman/"


def list_files() -> list[str]:
    """Return the files of the checkout that git does not ignore; its history is not needed."""
    with tempfile.TemporaryDirectory() as empty:
        git = ["git", f"--git-dir={empty}", f"--work-tree={ROOT}"]
        subprocess.run([git[0], "init", "--quiet", "--bare", empty], check=True)
        command = [*git, "ls-files", "-z", "--others", "--exclude-standard"]
        listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def copy_box(box: str, folder: Path) -> list[str]:
    """Copy the files that a box has; return the paths of its tests."""
    files = list_files()
    package = [name.removeprefix(_PACKAGE) for name in files if name.startswith(_PACKAGE)]
    absent = {_PACKAGE + name for name in list_absent(box, package)}
    tests = []
    for name in files:
        is_test = re.fullmatch(r"tests/(.*/)?test_\w+\.py", name)
        if is_test and find_box_of_test(name.removeprefix("tests/")) == box:
            tests.append(name)
        if name not in absent:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return tests


def install(box: str, folder: Path) -> Path:
    """Install the packages of a box and of its tests; return the interpreter."""
    python = folder / ".venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    locked = folder / "constraints.txt"  # without hashes, which an editable package cannot have
    lines = (ROOT / "requirements/dev.lock").read_text().splitlines()
    found = [re.match(r"([\w.-]+)(?:\[.*\])?(==[^\\]+)", line) for line in lines]
    locked.write_text("".join([f"{each[1]}{each[2]}\n" for each in found if each]))
    parts = list_parts(box)
    used = [each for each in BOXES.values() if parts & {*each.holds.split()}]
    extras = ",".join([name for each in used for name in each.extras.split()])
    packages = [name for each in used for name in each.packages.split()]
    wanted = ["psutil", *packages, "--editable", f".[{extras}]"]
    command = ["install", "--quiet", "--constraint", locked, "--group", "portable", *wanted]
    uv = [sys.executable, "-m", "uv", "pip", *command, "--python", python]
    pip = [sys.executable, "-m", "pip", "--python", python, *command]
    # pip knows the indexes that only its own configuration names
    if subprocess.run(uv, cwd=folder, check=False).returncode:
        subprocess.run(pip, cwd=folder, check=True)
    return python


def run(box: str, more: list[str]) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"box-{box}-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # some tests run PostgreSQL as another user
        tests = copy_box(box, folder)
        python = install(box, folder)
        command = [python, "-m", "pytest", "-q", "-m", "not exhaustive", *more, *tests]
        environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        installed = time.monotonic() - began
        code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    spent = time.monotonic() - began
    print(f"box {box}: exit code {code}, {installed:.0f} s to install, {spent:.0f} s in all")
    return code


def main(arguments: list[str]) -> int:
    names = arguments[:1]
    more = arguments[1:]
    if names == ["all"]:
        names = list(BOXES)
    if not names or names[0] not in BOXES:
        print(f"name a box: {', '.join(BOXES)}, or all", file=sys.stderr)
        return 2
    codes = [run(name, more) for name in names]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
