"""Recognise a chunk that differs from the chunk before it only in its text.

In most streams nearly all chunks do, since the server repeats the same JSON around each piece of
text. The text of such a chunk is decoded without the rest of the chunk.
"""

from __future__ import annotations

from msgspec import DecodeError, json

from .chunks import Choice, Chunk, Part, decode_chunk

# The text of a test chunk, which shows that the right part of a chunk is decoded as its text.
_PROBE = "\0probe"
_read_string = json.Decoder(str).decode


class RepeatedChunk:
    """The bytes before and after the text of a chunk, each with one of its quotation marks."""

    __slots__ = ("_after", "_before", "_learned", "_recognised")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._learned = 0  # how often a chunk was learned
        self._recognised = 0  # how many chunks were like the one that was learned

    def read(self, data: bytes) -> str | None:
        """Return the text of a chunk; ``None`` if anything else differs from the learned chunk."""
        before, after = self._before, self._after
        if not before or not data.startswith(before) or not data.endswith(after):
            return None
        try:
            text = _read_string(data[len(before) - 1 : len(data) - len(after) + 1])
        except (DecodeError, UnicodeDecodeError):
            return None  # the bytes between are more than a string, or less
        self._recognised += 1
        return text

    def learn(self, chunk: Chunk, data: bytes, chosen: int | None) -> None:
        """Learn a chunk if it has one choice with a text, and nothing else that is decoded.

        ``chunk`` is the decoded ``data``, and ``chosen`` is the index of the choice to decode. The
        chunk that was learned before is forgotten.
        """
        self._before = b""
        # OpenAI, for one, adds a random text to each chunk, so that no chunk is recognised.
        if self._learned > 2 + self._recognised // 8:
            return
        choice = chunk.choices[0] if chunk.choices else None
        text = choice.delta.content if choice is not None and choice.delta is not None else None
        if choice is None or type(text) is not str or chunk != _make(chunk, choice, text):
            return
        if chosen != (choice.index if type(choice.index) is int else 0):
            return
        begin, found, end = data.partition(json.encode(text))
        if not found:
            return
        self._learned += 1
        # The bytes that were found may be another part of the chunk, such as the model's name.
        try:
            probed = decode_chunk(begin + json.encode(_PROBE) + end)
        except DecodeError:
            return
        if probed == _make(chunk, choice, _PROBE):
            self._before, self._after = begin + b'"', b'"' + end


def _make(chunk: Chunk, choice: Choice, text: str) -> Chunk:
    """Return a chunk with the given text and nothing else that is decoded."""
    return Chunk(chunk.model, [Choice(choice.index, Part(text))])
