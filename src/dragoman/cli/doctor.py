"""Implement the command ``dragoman doctor``."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import platform
import re
import site
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Annotated

import click
from msgspec import Struct

from ..registry import ConfigError, config_path, load_vendor, read_file, stored_keys, vendor_names
from ..registry.keys import open_keyring
from .console import legible, show_json
from .errors import report_mistakes
from .parameters import Json, add_options

_NEED = re.compile(r"\s*([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_REMEDY = "install the package again from an index that you trust, and look for the cause"


class Finding(Struct, frozen=True):
    """What was examined, whether it is in order, and what to do if it is not."""

    name: str
    fine: bool
    detail: str
    advice: str = ""


@click.command("doctor")
@add_options
def command(
    *,
    integrity: Annotated[bool, "Compare all installed files with their recorded hashes."] = False,
    as_json: Annotated[Json, "Print the findings as JSON."] = False,
) -> None:
    """Examine the installation: version, extras, keyring, models.yaml and keys.

    With --integrity, list changed and missing files, .pth files, and packages that nothing asked
    for. Exit code 1 means that a file is changed or missing, or models.yaml has a mistake. No
    model is called; dragoman ready MODEL and dragoman agent doctor check more.
    """
    packages = {_normalise(each.name): each for each in distributions()}
    with report_mistakes():
        found = [*examine(packages)]
    found += [*check_integrity(packages)] if integrity else []
    if as_json:
        show_json(found)
    else:
        for each in found:
            name = click.style(f"{each.name:10}", fg="green" if each.fine else "red")
            text = "; ".join(filter(None, (each.detail, each.advice)))
            click.echo(f"{name}  {legible(text)}")
    if not all(each.fine for each in found):
        raise SystemExit(1)


def examine(packages: Mapping[str, Distribution]) -> Iterator[Finding]:
    """Yield a finding for each part of the installation; nothing is sent."""
    own = packages["dragoman"]
    python = f"Python {platform.python_version()}, {platform.platform(terse=True)}"
    yield Finding("dragoman", True, f"{own.version}, {python}")
    needs = [(name, extra) for name, extra in _read_needs(own) if extra]
    absent = sorted({extra for name, extra in needs if name not in packages})
    present = sorted({extra for _, extra in needs} - {*absent})
    advice = f"pip install 'dragoman[NAME]' adds {', '.join(absent)}" if absent else ""
    yield Finding("extras", True, ", ".join(present) or "none", advice)
    place = "the system's keyring" if open_keyring() else "a file that only you can read"
    yield Finding("keyring", True, f"keys are stored in {place}")
    path = config_path()
    try:
        problems = read_file(path).problems if path.exists() else ()
    except ConfigError as error:
        problems = (error,)
    detail = str(path) if path.exists() else f"{path} does not exist, and none is needed"
    advice = f"{len(problems)} mistakes: see dragoman config check" if problems else ""
    yield Finding("models", not problems, detail, advice)
    kept = stored_keys()
    vendors = [load_vendor(name) for name in vendor_names()]
    usable = [
        vendor.id
        for vendor in vendors
        if vendor.api_key_env in kept or any(map(os.environ.get, vendor.key_variables))
    ]
    advice = "" if usable else "dragoman keys set NAME stores one; dragoman chat needs none"
    yield Finding("keys", True, ", ".join(usable) or "none", advice)


def check_integrity(packages: Mapping[str, Distribution]) -> Iterator[Finding]:
    """Compare the files of packages with ``RECORD``, in which their installer wrote the hashes."""
    count = 0
    owners = dict[Path, str]()
    for name, package in sorted(packages.items()):
        record = package.read_text("RECORD")
        if not record or "editable" in (package.read_text("direct_url.json") or ""):
            yield Finding("unrecorded", True, f"{name}: its installer recorded no hashes")
        # ``Distribution.files`` leaves out missing files
        for file, expected, *_ in csv.reader((record or "").splitlines()):
            path = Path(os.path.normpath(str(package.locate_file(file))))
            owners[path] = name
            count += bool(expected)
            if expected and not path.is_file():
                yield Finding("missing", False, f"{name}: {file}", _REMEDY)
            elif expected and not _is_recorded(expected, path):
                yield Finding("changed", False, f"{name}: {file}", _REMEDY)
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        for path in sorted(Path(folder).glob("*.pth")):
            # Python reads the lines as text, which ends at a carriage return too
            lines = path.read_bytes().decode("utf-8-sig", "replace").splitlines()
            is_code = any(line.startswith(("import ", "import\t")) for line in lines)
            does = "runs code at every start of Python" if is_code else "adds folders"
            yield Finding(".pth", True, f"{path}: {does}; of {owners.get(path, 'no package')}")
        yield from _find_unowned(Path(folder), owners)
    for name in find_unasked(packages):
        yield Finding("unasked", True, f"{name}: no package needs it, and it was not asked for")
    yield Finding("integrity", True, f"{count} files were compared with RECORD")


def _find_unowned(folder: Path, owners: Mapping[Path, str]) -> Iterator[Finding]:
    """Yield the modules of a folder that no ``RECORD`` names, by the package that they are in."""
    unowned: Counter[str] = Counter()
    for path in folder.rglob("*"):
        is_module = path.name.endswith((".py", *EXTENSION_SUFFIXES))
        if is_module and Path(os.path.normpath(path)) not in owners:
            unowned[path.relative_to(folder).parts[0]] += 1
    for name, count in sorted(unowned.items()):
        is_first = name in ("sitecustomize.py", "usercustomize.py")
        does = ", and runs at every start of Python" if is_first else ""
        detail = f"{folder / name}: {count} of its modules are in no RECORD{does}"
        yield Finding("unrecorded", not is_first, detail, _REMEDY if is_first else "")


def find_unasked(packages: Mapping[str, Distribution]) -> list[str]:
    """Return the packages that no other package needs and that were not installed by name.

    Installers mark a package that was asked for with the file ``REQUESTED``. A package that any
    extra of a needed one names counts as needed, since no installer records the chosen extras.
    """
    waiting = [name for name, each in packages.items() if each.read_text("REQUESTED") is not None]
    waiting += [name for name in ("dragoman", "pip", "setuptools", "uv") if name in packages]
    reached = {*waiting}
    while waiting:
        needed = {name for name, _ in _read_needs(packages[waiting.pop()])} & {*packages}
        waiting += needed - reached
        reached |= needed
    return sorted({*packages} - reached)


def _is_recorded(expected: str, path: Path) -> bool:
    kind, _, value = expected.partition("=")
    digest = base64.urlsafe_b64encode(hashlib.new(kind, path.read_bytes()).digest())
    return digest.rstrip(b"=").decode() == value


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_needs(package: Distribution) -> Iterator[tuple[str, str | None]]:
    """Yield the packages that a package needs, each with the extra that needs it, if any."""
    for text in package.requires or ():
        need = _NEED.match(text)
        extra = _EXTRA.search(text)
        if need is not None:
            yield _normalise(need[1]), None if extra is None else extra[1]
