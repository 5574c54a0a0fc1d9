"""Check the blocks of messages: values built in Python follow the same rules as plain records."""

from __future__ import annotations

from typing import Any

from .. import messages as m
from ..errors import InvalidRequestError, quote
from .fields import kind_of

MAX_DEPTH = 128
"""How many levels of lists and mappings any value of a request may have."""


def need_text(value: Any, path: str) -> None:
    """Raise ``InvalidRequestError`` for a value that is not a string."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{path} must be a string, not {kind_of(value)}")


def check_blocks(content: Any, path: str) -> None:
    """Check the blocks of a user's message or of a tool's result."""
    for at, block in enumerate(content):
        where = f"{path}.content[{at}]"
        if type(block) is m.Text:
            need_text(block.text, f"{where}.text")
            if not block.text:
                raise InvalidRequestError(f"{where}.text is empty; leave the block out")
            _check_continuity(block.continuity, where)
        elif type(block) is m.Image or type(block) is m.Document or type(block) is m.Audio:
            check_media(block, where)
            if isinstance(block, m.Image | m.Audio):
                _check_continuity(block.continuity, where)
        else:
            raise InvalidRequestError(
                f"{where} must be text, an Image, a Document or an Audio, "
                f"not {type(block).__name__}"
            )


def check_media(block: m.Image | m.Document | m.Audio, path: str) -> None:
    """Raise ``InvalidRequestError`` for media without data or with a wrong media type."""
    if block.media_type is not None:
        need_text(block.media_type, f"{path}.media_type")
    if type(block) is m.Image:
        if block.detail is not None and block.detail not in m.DETAILS:
            raise InvalidRequestError(
                f"{path}.detail must be one of {', '.join(m.DETAILS)}, not {quote(block.detail)}"
            )
    elif type(block) is m.Document and block.name is not None:
        need_text(block.name, f"{path}.name")
    elif type(block) is m.Audio and block.transcript is not None:
        need_text(block.transcript, f"{path}.transcript")
    source: Any = block.source
    if isinstance(source, m.Url):
        need_text(source.url, f"{path}.source.url")
    if isinstance(source, m.Inline):
        _check_inline(block, source.base64_data, path)
    elif not isinstance(source, m.Url) or not source.url:
        raise InvalidRequestError(f"{path}.source must be a Url or Inline with content")


def _check_inline(block: m.Image | m.Document | m.Audio, data: Any, path: str) -> None:
    if isinstance(data, bytes):
        raise InvalidRequestError(
            f"{path}.source.base64_data must be base64 text; Image(data) takes bytes"
        )
    need_text(data, f"{path}.source.base64_data")
    if not data:
        raise InvalidRequestError(f"{path}.source.base64_data is empty")
    if not block.media_type:
        raise InvalidRequestError(f"{path}.media_type is required for inline content")
    kind = _KINDS.get(type(block))
    if kind is not None and not block.media_type.lower().startswith(f"{kind}/"):
        raise InvalidRequestError(
            f"{path}.media_type must be an {kind} type, not {quote(block.media_type)}"
        )


_KINDS: dict[type, str] = {m.Image: "image", m.Audio: "audio"}


def check_assistant_block(block: Any, path: str) -> None:
    """Check a block of a model's message."""
    if type(block) is m.Text or type(block) is m.Thinking:
        need_text(block.text, f"{path}.text")
    elif type(block) is m.ToolCall:
        _check_call(block, path)
    elif type(block) is m.RedactedThinking:
        need_text(block.data, f"{path}.data")
    elif type(block) is m.Opaque:
        check_depth(block.data, f"{path}.data")
    elif type(block) is m.Audio or (type(block) is m.Image and block.continuity is not None):
        check_media(block, path)
    else:
        raise InvalidRequestError(f"{path}: an assistant cannot send {type(block).__name__}")
    _check_continuity(block.continuity, path)


def _check_call(call: m.ToolCall, path: str) -> None:
    need_text(call.id, f"{path}.id")
    need_text(call.name, f"{path}.name")
    if not call.id or not call.name:
        raise InvalidRequestError(f"{path}: a tool call needs an id and a name")
    if call.arguments is None:
        raise InvalidRequestError(
            f"{path}.arguments could not be read when it arrived; repair or remove it"
        )
    if not isinstance(call.arguments, dict):
        raise InvalidRequestError(
            f"{path}.arguments must be an object, not {kind_of(call.arguments)}"
        )
    if call.arguments:
        check_depth(call.arguments, f"{path}.arguments", plain=True)


def _check_continuity(state: Any, path: str) -> None:
    if state is None:
        return
    if not isinstance(state, m.Continuity):
        raise InvalidRequestError(f"{path}.continuity must be a Continuity, not {kind_of(state)}")
    if state.signature is not None:
        need_text(state.signature, f"{path}.continuity.signature")


_NESTING = (dict, list, tuple)
_PLAIN = (str, int, float, type(None), dict, list, tuple)


def check_depth(value: Any, path: str, *, plain: bool = False) -> None:
    """Raise ``InvalidRequestError`` if lists and mappings are nested beyond ``MAX_DEPTH``.

    With ``plain``, also raise it for a value that is not JSON, such as bytes or a date, which the
    encoder would convert to a string.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        if plain:
            _refuse_foreign(level, path)
        inner = [each for each in level if isinstance(each, _NESTING)]
        if not inner:
            return
        level = [
            part for each in inner for part in (each.values() if isinstance(each, dict) else each)
        ]
    raise InvalidRequestError(f"{path} is nested more than {MAX_DEPTH} levels deep")


def _refuse_foreign(level: list[Any], path: str) -> None:
    for part in level:
        if not isinstance(part, _PLAIN):
            raise InvalidRequestError(f"{path} must be JSON; {kind_of(part)} is not")
        if isinstance(part, dict) and not all(isinstance(name, str) for name in part):
            raise InvalidRequestError(f"{path} must be JSON, whose keys are strings")
