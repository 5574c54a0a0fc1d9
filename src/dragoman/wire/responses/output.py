"""Track the output items of a reply while it is decoded, and what has been emitted of each.

A stream announces each item, sends its fragments, and sends the complete item once it is done. A
body is a list of complete items. The method ``end`` serves both: it emits the content of a
complete item that no fragment contained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...events import Assembler, read_object
from ...messages import Continuity, Image, Inline, Issuer, Opaque, Text, Thinking, ToolCall
from ..json import dig, json_text, list_of, string_of

_BETWEEN = "\n\n"  # the separator between the parts of one reasoning item
_OWN_FIELDS = frozenset(
    {"type", "id", "call_id", "name", "arguments", "status", "item_id", "output_index"}
)


class Item:
    """One item of a reply's output: a message, reasoning, a call or an opaque item."""

    __slots__ = (
        "call_id", "digest", "done", "given", "id", "key", "kind", "name", "own", "part", "parts",
        "phase", "received", "started",
    )  # fmt: skip

    def __init__(self, key: int, kind: str, item_id: str) -> None:
        self.key = key
        self.kind = kind
        self.id = item_id
        self.done = False
        self.received: list[str] = []  # every fragment, in the order of arrival
        self.parts: dict[Any, list[str]] = {}  # the fragments of a message, by part number
        self.part: tuple[str, int] | None = None  # the part of the last reasoning fragment
        self.phase: Any = None
        self.digest = ""  # the call id or the text of an item that is done
        self.name = ""
        self.call_id = ""
        self.given: Any = None  # the complete arguments, if the server sent them in one event
        self.started = False  # whether the start of the call was emitted
        self.own: dict[str, Any] = {}  # the provider-specific fields of a call


_MARKS: tuple[Callable[[int, str, str], Any], ...] = (
    lambda key, item_id, digest: key,
    lambda key, item_id, digest: item_id,
    lambda key, item_id, digest: digest,
)


class OutputItems:
    """The output items of one reply.

    This class finds the item that an event belongs to, and emits each fragment once.
    """

    def __init__(self, out: Assembler) -> None:
        self.refused = False  # whether the model refused to answer
        self.cut = False  # whether the server reported that a call is truncated
        self._out = out
        self._items: dict[int, Item] = {}
        self._by_id: dict[str, Item] = {}
        self._last: Item | None = None
        self._next = 0
        # the item and part whose text or thinking is open
        self._place: tuple[int, Any] | None = None

    def start(self, model: Any = None) -> None:
        """Start the message, unless it has started."""
        if not self._out.started:
            self._out.start(model if isinstance(model, str) else None)

    # --- finding the item of an event

    def find(self, index: Any, item_id: Any, kind: str) -> Item | None:
        """Return the open item that an event belongs to, by its id or its index, or the last item.

        GitHub Copilot sends another id for the same item in every event (case:
        responses/ids-that-change-stream). llama.cpp sends no index (case:
        responses/no-indices-stream).
        """
        named = self._by_id.get(item_id) if type(item_id) is str else None
        indexed = self._items.get(index) if type(index) is int else self._last
        if indexed is not None and indexed.done:
            indexed = self._last  # some servers give every item the same index
        for item in (named, indexed):
            if item is not None and item.kind == kind and not item.done:
                return item
        return None

    def find_announced(self, index: Any, item_id: str, kind: str) -> Item | None:
        """Return the item that an event announces, if it was announced before, otherwise ``None``.

        The item must have the same id. If it has no id, it must have the same index.
        """
        item = self.find(index, item_id, kind)
        if item is None or (item.id and item_id != item.id) or (not item.id and item.key != index):
            return None
        return item

    def knows(self, item_id: str, kind: str) -> bool:
        """Return whether there is an item with this id, complete or not."""
        return item_id in self._by_id and self._by_id[item_id].kind == kind

    def open(self, index: Any, item_id: Any, kind: str) -> Item:
        """Add an item at ``index``, or after the last item if the index is in use or missing."""
        key = index if type(index) is int and index not in self._items else self._next
        item = self._items[key] = self._last = Item(
            key, kind, item_id if type(item_id) is str else ""
        )
        if item.id:
            self._by_id[item.id] = item
        self._next = max(self._next, key + 1)
        return item

    def item_of(self, index: Any, item_id: Any, kind: str) -> Item:
        """Return the item that a delta belongs to; add one if the item was not announced."""
        item = self._last
        if item is not None and item_id == item.id != "" and item.kind == kind and not item.done:
            return item  # a fast path, because most deltas belong to the last item
        self.start()
        return self.find(index, item_id, kind) or self.open(index, item_id, kind)

    # --- emitting fragments of items

    def _switch_to(self, place: tuple[int, Any] | None) -> None:
        """Close the open text or thinking, unless it belongs to ``place`` (an item and a part)."""
        if self._place != place:
            if self._place is not None:
                self._out.block_end()
            self._place = place

    def add_text(self, item: Item, number: Any, piece: Any) -> None:
        """Emit a fragment of part ``number`` of a message."""
        if piece and isinstance(piece, str):
            begins = self._place != (item.key, number)
            self._switch_to((item.key, number))
            item.parts.setdefault(number, []).append(piece)
            item.received.append(piece)
            phase = Continuity(opaque={"phase": item.phase}) if begins and item.phase else None
            self._out.text(piece, phase)

    def open_part(self, item: Item) -> Any:
        """Return the number of the open part of a message, or ``None`` if no part is open."""
        return self._place[1] if self._place is not None and self._place[0] == item.key else None

    def close_text(self, item: Item, part: Any) -> None:
        """Close the open text, and store its citations and the item's phase as opaque state."""
        own = {"annotations": dig(part, "annotations"), "phase": item.phase}
        state = {name: value for name, value in own.items() if value}
        if state and state != {"phase": item.phase}:
            self._out.attach(Text, opaque=state)
        self._switch_to(None)

    def add_thought(self, item: Item, part: tuple[str, int], piece: Any) -> None:
        """Emit a fragment of a reasoning part."""
        if piece and isinstance(piece, str):
            self._open_thought(item)
            pieces = [_BETWEEN, piece] if item.received and part != item.part else [piece]
            item.part = part
            item.received += pieces
            for each in pieces:
                self._out.thinking(each)

    def _open_thought(self, item: Item) -> None:
        """Switch to the thought of an item.

        A server that passes the reply on needs the item's id at its start. The rest of the item
        follows at its end.
        """
        if self._place != (item.key, "thinking"):
            self._switch_to((item.key, "thinking"))
            if item.id:
                self._out.attach(Thinking, opaque={"id": item.id})

    def start_call(self, item: Item) -> None:
        """Start a call, if its name is known and it has not started."""
        if item.name and not item.started:
            self._begin_call(item)

    def _begin_call(self, item: Item) -> None:
        item.started = True
        self._switch_to(None)
        self._out.tool_start(item.key, item.call_id or None, item.name, opaque=item.own or None)
        for piece in item.received:
            self._out.tool_input(item.key, piece)

    def add_arguments(self, item: Item, piece: str) -> None:
        """Emit a fragment of a call's arguments, or keep the fragment until the call starts."""
        item.received.append(piece)
        if item.started:
            self._out.tool_input(item.key, piece)

    # --- the end of an item: emit the content that its fragments did not contain

    def end(self, item: Item, record: dict[str, Any]) -> None:
        """Finish an item: emit the content of ``record`` that no fragment contained.

        ``record`` is the complete item.
        """
        item.done = True
        item.digest = _digest(record)
        if item.kind == "message":
            self._end_message(item, record)
        elif item.kind == "reasoning":
            self._end_reasoning(item, record)
        elif item.kind == "function_call":
            self._end_call(item, record)
        else:
            self._switch_to(None)
            self._out.whole(read_picture(record) or Opaque(record))

    def _end_message(self, item: Item, record: dict[str, Any]) -> None:
        """Emit the rest of a message's text, which no fragment contained.

        Parts are compared by their text, because part numbers are unreliable: bedrock-mantle gives
        the only part the number 1 (case: responses/parts-counted-from-one-stream).
        """
        item.phase = record.get("phase") or item.phase
        parts = _parts_of(record)
        received = "".join(item.received)
        whole = "".join([text_of(part) or "" for part in parts])
        # Emitted text cannot be changed. Only text that continues it is added.
        left = len(received) if whole.startswith(received) else len(whole)
        for at, part in enumerate(parts):
            text = text_of(part)
            if text is None:
                self._switch_to(None)
                self._out.whole(
                    Opaque({"type": "message", "role": "assistant", "content": [part]})
                )
                continue
            self.refused = self.refused or (bool(text) and _is_refusal(part))
            self.add_text(item, self.open_part(item) if left else ("end", at), text[left:])
            left = max(0, left - len(text))
            if text and not left and self.open_part(item) is not None:
                self.close_text(item, part)

    def _end_reasoning(self, item: Item, record: dict[str, Any]) -> None:
        parts = [
            part for channel in ("summary", "content") for part in list_of(record.get(channel))
        ]
        whole = _BETWEEN.join([text for part in parts if (text := text_of(part))])
        rest = rest_of(item.received, whole)
        if item.received or whole or record.get("encrypted_content"):
            # An item with neither text nor encrypted content refers to state that the server has
            # not stored. Such an item is dropped.
            if rest:
                self._open_thought(item)
                self._out.thinking(rest)
            self._switch_to((item.key, "thinking"))
            self._out.attach(Thinking, opaque=record)
            self._switch_to(None)

    def _end_call(self, item: Item, record: dict[str, Any]) -> None:
        item.name = item.name or string_of(record.get("name"))
        item.call_id = (
            item.call_id or string_of(record.get("call_id")) or string_of(record.get("id"))
        )
        before, item.own = item.own, own_fields_of(record)
        if not item.started:
            self._begin_call(item)
        elif item.own != before:
            self._out.attach(ToolCall, opaque=item.own or None, key=item.key)
        self.end_arguments(item, record.get("arguments") or item.given)
        if record.get("status") == "incomplete":
            # The truncated call stays open. If it were closed without arguments, it would count as
            # a call that needs none.
            self.cut = True
        else:
            self._out.block_end(item.key)

    def end_arguments(self, item: Item, final: Any) -> None:
        """Emit the part of the final arguments that no fragment contained."""
        if final is None:
            final = ""
        text = final if isinstance(final, str) else json_text(final)
        received = "".join(item.received)
        if text.startswith(received):
            if text != received:
                self.add_arguments(item, text[len(received) :])
        elif text and (
            read_object(received) is None or read_object(received) != read_object(text)
        ):
            # The final arguments differ from the fragments. Both are emitted, so that the result
            # is invalid JSON and the call fails (case:
            # responses/arguments-differ-from-their-deltas-stream).
            self.add_arguments(item, text)

    def unfinished(self, output: list[Any]) -> Iterator[tuple[Item, dict[str, Any]]]:
        """Yield each item in the final list that is not done yet, with its complete record.

        An item in the list is matched with a streamed item by position, id or content. The list
        may be empty although items were streamed (chatgpt.com), or contain items that were not
        streamed.
        """
        records = {at: record for at, record in enumerate(output) if isinstance(record, dict)}
        left = dict(self._items)
        found: dict[int, Item] = {}
        for mark in _MARKS:
            marked = {mark(item.key, item.id, item.digest): item for item in left.values()}
            for at, record in records.items():
                wanted = (
                    "" if at in found else mark(at, string_of(record.get("id")), _digest(record))
                )
                item = marked.get(wanted) if wanted != "" else None
                if (
                    item is not None
                    and item.kind == kind_of(record)
                    and left.pop(item.key, None) is not None
                ):
                    found[at] = item
        for at, record in records.items():
            item = found.get(at) or self.open(at, record.get("id"), kind_of(record))
            if not item.done:
                yield item, record

    def end_calls(self) -> None:
        """Emit what has arrived of each call whose done event is missing."""
        for item in self._items.values():
            if item.kind == "function_call" and not item.done:
                # A call without a name is also emitted, and fails validation.
                if not item.started:
                    self._begin_call(item)
                if not item.received:
                    self.end_arguments(item, item.given)


def read_picture(record: dict[str, Any], issuer: Issuer | None = None) -> Image | None:
    """Return the image of an image-generation item; ``None`` for other items.

    The other fields of the item become the opaque state of the image.
    """
    data = record.get("result")
    form = record.get("output_format")
    if record.get("type") != "image_generation_call" or not data or not isinstance(data, str):
        return None
    own = {name: value for name, value in record.items() if name != "result"}
    kind = f"image/{form if isinstance(form, str) and form else 'png'}"
    return Image(Inline(data), kind, continuity=Continuity(opaque=own, issuer=issuer))


def own_fields_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the provider-specific fields of a function call, which must be sent back."""
    return {
        name: value
        for name, value in record.items()
        if name not in _OWN_FIELDS and value is not None
    }


def kind_of(record: dict[str, Any]) -> str:
    """Return the kind of an item: ``message``, ``reasoning``, ``function_call`` or ``opaque``."""
    kind = record.get("type")
    if kind == "message" and record.get("role") in (None, "assistant"):
        return "message"
    return kind if kind in ("reasoning", "function_call") else "opaque"


def _parts_of(record: dict[str, Any]) -> list[Any]:
    content = record.get("content")
    return [content] if isinstance(content, str) else list_of(content)


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def text_of(part: Any) -> str | None:
    """Return the text of a part, or ``None`` if the part is not text."""
    if isinstance(part, str) or not isinstance(part, dict):
        return part if isinstance(part, str) else ""
    name = "refusal" if _is_refusal(part) else "text"
    return string_of(part[name]) if name in part else None


def _digest(record: dict[str, Any]) -> str:
    """Return the string by which items are compared.

    It is the call id of a function call, or the text of any other item.
    """
    if record.get("type") == "function_call":
        return string_of(record.get("call_id"))
    parts = [*_parts_of(record), *list_of(record.get("summary"))]
    return "".join([text_of(part) or "" for part in parts])


def index_of(value: Any) -> int:
    """Return the value if it is an integer, otherwise 0."""
    return value if type(value) is int else 0


def rest_of(pieces: Iterable[str], final: str) -> str:
    """Return the part of the final text that has not been received.

    It is empty if the received pieces are not the beginning of the final text.
    """
    received = "".join(pieces)
    return final[len(received) :] if final.startswith(received) else ""
