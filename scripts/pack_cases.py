"""Pack the conformance cases into one archive for each wire, when the wheel is built.

Hatchling runs this file as a build hook. An editable installation reads the folders.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/dragoman")
FOLDERS = ("conformance/cases/*", "conformance/retrieval/cases/*/*")
STAMP = (1980, 1, 1, 0, 0, 0)  # every build gives the same bytes


def pack(folder: Path, archive: Path) -> None:
    """Write the files of a folder to an archive, uncompressed: the wheel compresses it."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.iterdir()):
            packed.writestr(zipfile.ZipInfo(path.name, STAMP), path.read_bytes())


class PackCases(BuildHookInterface[Any]):
    """Replace the folders of cases in the wheel by archives."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._made = Path(tempfile.mkdtemp())
        root = Path(self.root) / SOURCE
        folders = [path for pattern in FOLDERS for path in sorted(root.glob(pattern))]
        for number, folder in enumerate(folders):
            archive = self._made / f"{number}.zip"
            pack(folder, archive)
            place = folder.relative_to(root).with_name(f"{folder.name}.zip")
            build_data["force_include"][str(archive)] = f"dragoman/{place.as_posix()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._made)
