"""Store API keys under the name of the environment variable they replace.

A key is stored in the system's keyring (``pip install 'dragoman[keys]'``) or, without one, in
``keys.json`` in the settings folder, readable by its owner only. The file also lists the names of
the keys in the keyring, because keyrings cannot be listed. An environment variable always
overrides a stored key; see ``Adapter.key``.
"""

from __future__ import annotations

import logging
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..validate.yaml import ConfigError
from .folders import user_folder, write_private

log = logging.getLogger("dragoman")

Place = Literal["keyring", "file"]

_SERVICE = "dragoman"
_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
# the lowest priority of a recommended keyring backend; plain-text and failing ones have less
_USABLE = 1.0


class _StoredKey(Struct, frozen=True, omit_defaults=True):
    place: Place
    key: str | None = None

    def __repr__(self) -> str:
        return f"_StoredKey({self.place!r})"


def keys_path() -> Path:
    """Return the path of the key file: ``$DRAGOMAN_KEYS``, or a file in the settings folder."""
    if chosen := os.environ.get("DRAGOMAN_KEYS"):
        return Path(chosen)
    return user_folder("config") / "keys.json"


def stored_keys() -> dict[str, Place]:
    """Return the names of the stored keys and where each is stored.

    Raise ``ConfigError`` if the file is unreadable.
    """
    return {name: entry.place for name, entry in _read(keys_path()).items()}


def read_key(name: str) -> str | None:
    """Return the key stored for an environment variable.

    If the store is unreadable, log that and return ``None``.
    """
    try:
        entry = _read(keys_path()).get(name)
        if entry is None or entry.place == "file":
            return entry.key if entry else None
        return _read_keyring(name)
    except ConfigError as error:
        log.warning("%s", error)
        return None


def store_key(name: str, key: str) -> Place:
    """Store a key in the keyring if it is usable, otherwise in the file; return which was used."""
    if not _NAME.fullmatch(name):
        # The message does not repeat the name: the user may have given the key by mistake.
        raise ValueError(
            "a key is stored by a vendor's name or an environment variable's, such as "
            "EXAMPLE_API_KEY"
        )
    if not key or not key.isprintable() or not key.isascii() or " " in key:
        raise ValueError("a key is one line of printable ASCII characters, without spaces")
    path = keys_path()
    keyring = open_keyring()
    entries = _read(path)
    if keyring is None:
        _write(path, {**entries, name: _StoredKey("file", key)})
        return "file"
    _call(keyring.set_password, _SERVICE, name, key)
    _read_keyring.cache_clear()
    _write(path, {**entries, name: _StoredKey("keyring")})
    return "keyring"


def remove_key(name: str) -> bool:
    """Delete a stored key; return whether it existed."""
    path = keys_path()
    entries = _read(path)
    entry = entries.pop(name, None)
    if entry is None:
        return False
    if entry.place == "keyring":
        keyring = _need_keyring(name)
        if _call(keyring.get_password, _SERVICE, name) is not None:
            _call(keyring.delete_password, _SERVICE, name)
        _read_keyring.cache_clear()
    _write(path, entries)
    return True


# --- the file of API keys ----------------------------------------------------------------------


def _read(path: Path) -> dict[str, _StoredKey]:
    try:
        facts = path.stat()
    except OSError:
        return {}
    return dict(_parse(path, facts.st_mtime_ns, facts.st_size, facts.st_mode))


@lru_cache(maxsize=4)
def _parse(path: Path, _changed: int, _size: int, mode: int) -> dict[str, _StoredKey]:
    try:
        if os.name == "posix" and mode & 0o077:
            # Restore the mode if another program has made the key file readable to others.
            path.chmod(0o600)
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _StoredKey])
    except (OSError, ValueError) as error:
        problem = "is not a file of keys"
        if isinstance(error, OSError):
            problem = f"cannot be read: {error.strerror}"
        raise _fail(f"the file of stored keys {problem}") from None


def _write(path: Path, entries: dict[str, _StoredKey]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, msgspec.json.format(msgspec.json.encode(entries)))
    except OSError as error:
        raise _fail(f"the file of stored keys cannot be written: {error.strerror}") from None


# --- the keyring of the operating system -------------------------------------------------------


def open_keyring() -> Any:
    """Return the system's keyring; ``None`` if the extra or a usable backend is missing."""
    try:
        import keyring  # keyring is an optional dependency, and slow to import
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        backend = keyring.get_keyring()
        return backend if float(backend.priority) >= _USABLE else None
    except (KeyringError, RuntimeError):
        return None


@lru_cache(maxsize=64)
def _read_keyring(name: str) -> str | None:
    found: str | None = _call(_need_keyring(name).get_password, _SERVICE, name)
    return found


def _need_keyring(name: str) -> Any:
    keyring = open_keyring()
    if keyring is None:
        raise _fail(f"{name} is in a keyring that is currently unavailable")
    return keyring


def _call(method: Any, *given: str) -> Any:
    """Call the keyring.

    Backends raise many kinds of errors. Each is converted to a ``ConfigError`` that contains only
    the class name of the original.
    """
    try:
        return method(*given)
    except Exception as error:
        raise _fail(f"the keyring failed: {type(error).__name__}") from None


def _fail(problem: str) -> ConfigError:
    return ConfigError(str(keys_path()), None, problem)
