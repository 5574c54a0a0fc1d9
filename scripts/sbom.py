"""Write a software bill of materials as CycloneDX 1.6 JSON: every locked package with its hashes,
licences and dependencies.

Versions and hashes come from ``requirements/*.lock``, licences and dependencies from the metadata
of the installed packages. The same locks and packages give the same bytes: the document has no
date, and its serial number is a digest.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_CLASSIFIER = "License :: OSI Approved :: "


class Locked(NamedTuple):
    """Describe a package in a lock file."""

    name: str
    version: str

    @property
    def reference(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


class Needed(NamedTuple):
    """Describe a dependency in package metadata: its name, its extras, and the extra that requires
    it.
    """

    name: str
    extras: tuple[str, ...]
    extra: str | None


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_locks(texts: Iterable[str]) -> dict[Locked, list[str]]:
    """Return the packages of all locks with the hashes of their files."""
    found: dict[Locked, set[str]] = {}
    hashes: set[str] = set()
    for text in texts:
        for line in text.splitlines():
            start = _LOCKED.match(line)
            if start:
                hashes = found.setdefault(Locked(normalize(start[1]), start[2]), set())
            hashes.update(_HASH.findall(line))
    return {package: sorted(found[package]) for package in sorted(found)}


def read_needed(package: Distribution) -> Iterator[Needed]:
    for text in package.requires or ():
        start = _REQUIREMENT.match(text)
        extra = _EXTRA.search(text)
        if start:
            extras = tuple(each.strip() for each in (start[2] or "").split(",") if each.strip())
            yield Needed(normalize(start[1]), extras, extra[1] if extra else None)


def read_licenses(package: Distribution) -> list[dict[str, Any]]:
    """Return the licences of a package: the SPDX expression, or else the classifiers, or else the
    first line of the free text.
    """
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    names = [
        each.removeprefix(_CLASSIFIER)
        for each in metadata.get_all("Classifier") or ()
        if _CLASSIFIER in each
    ]
    text = (metadata.get("License") or "").strip().partition("\n")[0][:100]
    return [{"license": {"name": name}} for name in sorted(names) or ([text] if text else [])]


def find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:  # the package is only for another platform
        return None


def reach(start: Iterable[Needed]) -> set[str]:
    """Return the names of the given dependencies and of all packages that they need, directly or
    indirectly.
    """
    seen: set[tuple[str, str | None]] = set()
    waiting = list(start)
    while waiting:
        needed = waiting.pop()
        for extra in (None, *needed.extras):
            package = find(needed.name) if (needed.name, extra) not in seen else None
            seen.add((needed.name, extra))
            waiting += (
                [each for each in read_needed(package) if each.extra == extra] if package else []
            )
    return {name for name, _ in seen}


def describe(locked: Locked, hashes: list[str], scope: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": locked.reference,
        "name": locked.name,
        "version": locked.version,
        "scope": scope,
        "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
    }
    package = find(locked.name)
    licenses = read_licenses(package) if package and package.version == locked.version else []
    if licenses:
        component["licenses"] = licenses
    return {**component, "purl": locked.reference}


def build(locks: Iterable[str], root: Distribution) -> dict[str, Any]:
    """Return the bill of materials. The scope of a package shows whether the core, an extra or
    only development needs it.
    """
    packages = read_locks(locks)
    needed = list(read_needed(root))
    required = reach(each for each in needed if each.extra is None)
    optional = reach(needed)
    own = f"pkg:pypi/{root.name}@{root.version}"

    def scope(name: str) -> str:
        if name in required:
            return "required"
        return "optional" if name in optional else "excluded"

    def edges(reference: str, package: Distribution | None) -> dict[str, Any]:
        names = {each.name for each in read_needed(package)} if package else set()
        return {
            "ref": reference,
            "dependsOn": [each.reference for each in packages if each.name in names],
        }

    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": root.name,
                "version": root.version,
                "licenses": read_licenses(root),
                "purl": own,
            }
        },
        "components": [
            describe(each, hashes, scope(each.name)) for each, hashes in packages.items()
        ],
        "dependencies": [
            edges(own, root),
            *[edges(each.reference, find(each.name)) for each in packages],
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    return {**document, "serialNumber": serial.urn}


def main() -> None:
    output = Path(sys.argv[1])
    document = build(
        [path.read_text() for path in sorted(ROOT.glob("requirements/*.lock"))],
        distribution("dragoman"),
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(document, indent=1) + "\n")
    without = [each["name"] for each in document["components"] if "licenses" not in each]
    print(
        f"{output}: {len(document['components'])} packages; no licence known of: "
        f"{', '.join(without) or 'none'}"
    )


if __name__ == "__main__":
    main()
