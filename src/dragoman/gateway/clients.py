"""The settings with which coding agents use the gateway, for the address and the model of a reader."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

_TABLE = Path(__file__).resolve().parents[1] / "catalog" / "clients" / "agents.yaml"

ADDRESS = "http://127.0.0.1:8100"
"""The address that stands for the gateway's in the table."""
MODELS = ("clever", "gpt-5.5")
"""The names that stand for the served model."""
WINDOW = 200_000
"""The number that stands for the model's context window, in tokens."""
LONGEST_REPLY = 64_000
"""The number that stands for the model's longest reply, in tokens."""
FULL_PART = "0.129"
"""The number that stands for the longest prompt as a part of the assumed window."""
# Gemini CLI takes each name that it does not know for a model of this window (0.61.0, function
# tokenLimit, read 2026-11-19), and lets users set only the part of it at which it compacts.
_ASSUMED_WINDOW = 1_048_576


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """A command to run, or a file and its text."""

    run: str = ""
    file: str = ""
    text: str = ""


class Client(Struct, frozen=True, forbid_unknown_fields=True):
    """A program, the steps that connect it to the gateway, and how they were tried.

    ``seen`` is the release that was seen to work, and the day. ``checked`` is the documentation
    that the settings of a program without a command line were checked against, and the day.
    """

    name: str
    steps: tuple[Step, ...]
    seen: str = ""
    checked: str = ""

    @property
    def trial(self) -> str:
        """How the steps were tried, as the page says it."""
        if self.seen:
            return f"Seen to work: {self.seen}."
        return f"Not run; checked against {self.checked}."


class Target(Struct, frozen=True):
    """What a client is connected to; ``None`` stands for the value in the table."""

    url: str = ADDRESS
    model: str | None = None
    window: int | None = None
    longest_reply: int | None = None


def read_clients() -> dict[str, Client]:
    """Return the programs of the table by name."""
    read = msgspec.yaml.decode(_TABLE.read_bytes(), type=tuple[Client, ...])
    return {client.name: client for client in read}


def fill_steps(client: Client, target: Target) -> list[Step]:
    """Return the steps of a program for a gateway, a model and its sizes."""
    window = target.window or WINDOW
    # A reply that could fill a small window would leave no place for the prompt.
    longest = target.longest_reply or min(LONGEST_REPLY, window // 2)
    prompt = max(window - longest, 1)
    thousandths = min(max(1000 * prompt // _ASSUMED_WINDOW, 1), 1000)
    values = {
        ADDRESS: target.url.rstrip("/"),
        FULL_PART: f"{thousandths / 1000:.3f}",
        str(WINDOW - LONGEST_REPLY): str(prompt),
        str(WINDOW): str(window),
        str(LONGEST_REPLY): str(longest),
    }
    values |= {} if target.model is None else dict.fromkeys(MODELS, target.model)
    found = re.compile("|".join(map(re.escape, values)))

    def fill(text: str) -> str:
        return found.sub(lambda match: values[match[0]], text)

    return [replace(each, run=fill(each.run), text=fill(each.text)) for each in client.steps]
