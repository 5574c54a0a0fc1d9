"""Create packages in a folder that pip uses as its index: wheels, and a hostile source package."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dragoman.local.catalog import CatalogModel, Wheel


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure pip to find only the packages in ``folder``."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, package: str, content: bytes) -> Wheel:
    """Write a wheel with ``content`` in ``part.bin``; return its catalogue entry."""
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/part.bin", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(
        package, "1.0", f"{module}/part.bin", hashlib.sha256(path.read_bytes()).hexdigest()
    )


def write_source(folder: Path, package: str, marker: Path) -> Wheel:
    """Write a source package whose ``setup.py`` creates the file ``marker`` when it runs."""
    setup = (
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nfrom setuptools import setup\n"
    )
    setup += f"setup(name={package!r}, version='1.0')\n"
    path = folder / f"{package}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("setup.py", setup), ("PKG-INFO", f"Name: {package}\nVersion: 1.0\n")):
            entry = tarfile.TarInfo(f"{package}-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return Wheel(package, "1.0", "part.bin", hashlib.sha256(path.read_bytes()).hexdigest())


def make_entry(content: bytes, *wheels: Wheel) -> CatalogModel:
    """Return a catalogue entry for a model file with the given content."""
    digest = hashlib.sha256(content).hexdigest()
    return CatalogModel(
        model="tiny-1m",
        about="for tests",
        licence="MIT",
        file="tiny-1m.gguf",
        size=len(content),
        sha256=digest,
        wheels=wheels,
    )
