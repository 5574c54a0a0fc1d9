"""Folders of conformance cases, which the wheel has as one archive for each wire.

A checkout has a file for each part of a case, and ``scripts/pack_cases.py`` packs each folder
when the wheel is built: ``cases/openai`` becomes ``cases/openai.zip``.
"""

from __future__ import annotations

import zipfile
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path

_open_archive = cache(zipfile.Path)


def open_folder(place: Path) -> Traversable:
    """Return a folder of cases, or the archive that replaces it in the wheel."""
    archive = place.with_name(f"{place.name}.zip")
    return _open_archive(archive) if archive.is_file() and not place.is_dir() else place


def list_files(place: Path) -> list[Traversable]:
    """Return the files of a folder of cases by name; a folder that does not exist has none."""
    folder = open_folder(place)
    files = [each for each in folder.iterdir() if each.is_file()] if folder.is_dir() else []
    return sorted(files, key=lambda each: each.name)


def list_folders(parent: Path, pattern: str) -> list[Path]:
    """Return the folders of cases in ``parent`` whose names match, packed ones too."""
    names = {path.name for path in parent.glob(pattern) if path.is_dir()}
    names.update(path.stem for path in parent.glob(f"{pattern}.zip"))
    return [parent / name for name in sorted(names)]
