"""Download, find, list and remove models: from the catalogue, from a hub, or from a file."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from msgspec import Struct

from . import store
from .catalog import load_catalog
from .hub import download, locate
from .store import Found
from .wheels import discard_wheels, join_wheels

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class LocalModel(Struct, frozen=True, kw_only=True):
    """A model that can run on this machine: in the catalogue, or already downloaded."""

    name: str
    path: str
    is_present: bool
    size: int
    sha256: str
    source: str
    calls_tools: bool | None = None
    licence: str | None = None
    about: str = ""


def find_model(spec: str | Path | None, *, embeds: bool = False) -> Found:
    """Find a model by name or path; ``None`` or an empty string is the default model.

    With ``embeds`` the default is the embedding model.
    """
    catalog = load_catalog()
    text = str(spec or "")
    name = text or (catalog.default_embedder if embeds else catalog.default)
    if (entry := catalog.models.get(name)) is not None:
        first, *others = [f"pypi:{wheel.package}" for wheel in entry.wheels]
        source = f"{first} and {len(others)} more" if others else first
        path = store.models_folder() / entry.file
        return Found(name, path, entry, source=source, sha256=entry.sha256)
    if (known := store.receipts().get(name)) is not None:
        path, receipt = known
        return Found(name, path, source=receipt.source, sha256=receipt.sha256)
    if isinstance(spec, Path) or is_path(text):
        path = Path(text).expanduser()
        return Found(path.stem, path, is_managed=False)
    pulled = [other for other in store.receipts() if other not in catalog.models]
    raise store.WeightsError(
        f"no local model is named {name!r}; known are {', '.join([*catalog.models, *pulled])}, and"
        f" any .gguf file by its path; pull {_hub_prefixes()} adds others"
    )


def is_path(text: str) -> bool:
    """Return whether a string is a path rather than a name."""
    return text.endswith(".gguf") or text.startswith(("~", ".")) or "/" in text or os.sep in text


def check_model(found: Found, progress: store.Progress | None = None) -> Path:
    """Return the path of a model's file; raise an error if it is missing or has changed."""
    if not found.is_managed:
        return found.path
    if store.is_intact(found, progress):
        return found.path
    if not found.path.exists():
        size = f" ({found.entry.size / 1e6:,.0f} MB)" if found.entry else ""
        raise store.WeightsError(
            f"{found.name} has not been pulled; run: dragoman local pull {found.name}{size}"
        )
    raise store.WeightsError(
        f"{found.path} has changed since it was pulled; run: dragoman local rm {found.name}, and "
        "pull it again"
    )


def pull_model(
    spec: str | Path = "",
    *,
    name: str | None = None,
    sha256: str | None = None,
    progress: store.Progress | None = None,
) -> LocalModel:
    """Store a model in the models folder, unless it is already there.

    ``spec`` is the name of a model in the catalogue, a file on a hub as
    ``hf:owner/repo/file.gguf``, or the path of a file. ``name`` defaults to the name of the file;
    ``sha256`` is the digest that the file must have. Both are fixed for models of the catalogue.
    An interrupted download is resumed.
    """
    text = str(spec)
    catalog = load_catalog()
    if sha256 is not None and not _DIGEST.fullmatch(sha256):
        raise store.WeightsError(f"sha256 must be 64 hexadecimal digits, not {sha256!r}")
    if text in ("", *catalog.models):
        if name is not None or sha256 is not None:
            raise store.WeightsError("leave out name and sha256; the catalogue states them")
        return _pull_entry(text or catalog.default, progress)
    prefix, _, rest = text.partition(":")
    if prefix in catalog.hubs:
        return _pull_remote(prefix, rest, name, sha256, progress)
    if isinstance(spec, Path) or is_path(text):
        return _pull_file(Path(text).expanduser(), name, sha256, progress)
    raise store.WeightsError(
        f"the catalogue has no model {text!r}; give one of {', '.join(catalog.models)}, "
        f"{_hub_prefixes()} or the path of a .gguf file"
    )


def list_models() -> list[LocalModel]:
    """Return the models of the catalogue, then other downloaded models."""
    catalog = load_catalog().models
    others = [name for name in store.receipts() if name not in catalog]
    return [_describe(find_model(name)) for name in [*catalog, *others]]


def remove_model(name: str = "") -> bool:
    """Delete a downloaded model; return whether it existed."""
    found = find_model(name)
    if not found.is_managed:
        raise store.WeightsError(
            f"{name} is your own file; only pulled models can be removed, by name"
        )
    if found.entry is not None:
        discard_wheels(found.entry, _parts_folder())
    return store.remove(found.path)


def _pull_entry(name: str, progress: store.Progress | None) -> LocalModel:
    found = find_model(name)
    assert found.entry is not None
    if not store.is_intact(found, progress):
        parts = _parts_folder()
        arrived = join_wheels(found.entry, parts, progress)
        discard_wheels(found.entry, parts)
        store.keep(arrived, found, progress)
    return _describe(found)


def _pull_remote(
    prefix: str, spec: str, name: str | None, sha256: str | None, progress: store.Progress | None
) -> LocalModel:
    source = f"{prefix}:{spec}"
    hub = load_catalog().hubs[prefix]
    name = _new_name(name or Path(spec).stem, source)
    path = store.models_folder() / f"{name}.gguf"
    known = store.read_receipt(path)
    digest = sha256 or (known.sha256 if known is not None else "")
    found = Found(name, path, source=source, sha256=digest)
    if known is None or not store.is_intact(found, progress):
        remote = locate(hub, spec, sha256)
        arrived = download(remote, hub, _parts_folder(), progress)
        found = Found(name, path, source=source, sha256=remote.sha256)
        store.keep(arrived, found, progress)
    return _describe(find_model(name))


def _pull_file(
    path: Path, name: str | None, sha256: str | None, progress: store.Progress | None
) -> LocalModel:
    if not path.is_file():
        raise store.WeightsError(f"the file {path} does not exist")
    source = str(path.resolve())
    name = _new_name(name or path.stem, source)
    store.make_room(_parts_folder(), path.stat().st_size)
    handle, copy = tempfile.mkstemp(suffix=".new", dir=_parts_folder())
    os.close(handle)
    try:
        shutil.copyfile(path, copy)
        digest = sha256.lower() if sha256 is not None else store.hash_file(path)
        place = store.models_folder() / f"{name}.gguf"
        store.keep(Path(copy), Found(name, place, source=source, sha256=digest), progress)
    finally:
        Path(copy).unlink(missing_ok=True)
    return _describe(find_model(name))


def _new_name(name: str, source: str) -> str:
    """Return ``name`` if it is valid and not in use; raise an error otherwise."""
    store.check_name(name)
    known = store.receipts().get(name)
    if name in load_catalog().models or (known is not None and known[1].source != source):
        raise store.WeightsError(
            f"a model named {name!r} exists already; choose another with --name, or remove it"
        )
    return name


def _describe(found: Found) -> LocalModel:
    entry = found.entry
    receipt = store.read_receipt(found.path)
    facts: dict[str, Any] = {
        "name": found.name,
        "path": str(found.path),
        "is_present": found.path.is_file(),
        "sha256": found.sha256,
        "source": found.source,
    }
    if entry is not None:
        return LocalModel(
            **facts,
            size=entry.size,
            calls_tools=entry.calls_tools,
            licence=entry.licence,
            about=entry.about,
        )
    assert receipt is not None
    return LocalModel(**facts, size=receipt.size)


def _parts_folder() -> Path:
    folder = store.models_folder() / ".parts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _hub_prefixes() -> str:
    return " or ".join(f"{prefix}:owner/repo/file.gguf" for prefix in load_catalog().hubs)
