"""A backend of ``keyring`` that keeps passwords in a JSON file."""

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import PasswordDeleteError


class FileKeyring(KeyringBackend):
    priority = 5.0  # type: ignore[assignment]

    def _load(self) -> dict[str, str]:
        path = Path(os.environ["FILE_KEYRING"])
        return json.loads(path.read_text()) if path.exists() else {}

    def _save(self, kept: dict[str, str]) -> None:
        Path(os.environ["FILE_KEYRING"]).write_text(json.dumps(kept))

    def get_password(self, service: str, username: str) -> str | None:
        return self._load().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._save({**self._load(), f"{service}/{username}": password})

    def delete_password(self, service: str, username: str) -> None:
        kept = self._load()
        if kept.pop(f"{service}/{username}", None) is None:
            raise PasswordDeleteError
        self._save(kept)
