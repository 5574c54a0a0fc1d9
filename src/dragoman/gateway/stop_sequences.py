"""Apply stop sequences in the gateway, for models whose wire does not support them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..events import Event, MessageComplete, TextDelta
from ..messages import AssistantBlock, Text


class StopCutter:
    """Cut a reply before the first stop sequence in its text, even across chunk boundaries."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        # held-back text that may be the beginning of a stop sequence
        self._held: TextDelta | None = None
        self._block = -1  # index of the block that the held-back text belongs to
        self._text: list[str] = []  # the parts of the current block's text that were forwarded
        self.found: str | None = None

    def feed(self, events: Sequence[Event]) -> list[Event]:
        """Return the events to forward to the client; after a stop sequence there are none."""
        passed: list[Event] = []
        for event in events:
            if self.found is not None:
                break
            if type(event) is not TextDelta:
                passed += self._release()
                passed.append(event)
                continue
            if event.content_block_index != self._block:
                passed += self._release()
                self._block = event.content_block_index
                self._text = []
            passed += self._cut(event)
        return passed

    def close(self, complete: MessageComplete) -> MessageComplete:
        """Return the reply's closing event as if the model had stopped at the stop sequence."""
        blocks: list[AssistantBlock] = list(complete.final_content[: self._block])
        if text := "".join(self._text):
            blocks.append(Text(text))
        return replace(
            complete,
            finish_reason="stop",
            finish_raw=None,
            stop_sequence=self.found,
            final_content=tuple(blocks),
            stop_details=None,
        )

    def _cut(self, event: TextDelta) -> list[Event]:
        held, self._held = self._held, None
        text = event.text if held is None else held.text + event.text
        # The stop sequence that ends first is found, and the longest of those that end together,
        # so that the result does not depend on the boundaries of chunks.
        places = [
            (place + len(stop), place, stop)
            for stop in self._stops
            if (place := text.find(stop)) >= 0
        ]
        if places:
            _, place, self.found = min(places)
            return self._pass(event, text[:place])
        keep = max([_overlap(text, stop) for stop in self._stops], default=0)
        if keep:
            self._held = replace(event, text=text[-keep:])
        return self._pass(event, text[: len(text) - keep])

    def _release(self) -> list[Event]:
        held, self._held = self._held, None
        return [] if held is None else self._pass(held, held.text)

    def _pass(self, event: TextDelta, text: str) -> list[Event]:
        if not text:
            return []
        self._text.append(text)
        return [replace(event, text=text)]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the text's longest suffix that is a prefix of a stop sequence."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
