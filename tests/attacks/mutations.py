"""Mutate JSON values, YAML, event streams, lines and bytes, but keep most of their structure."""

import copy
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import yaml

Rng = random.Random

_DEEP = "@@DEEP@@"
_LONG = "-eyJaaaaaaaaaa" * 3000
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5,
    1e308, -1e308, float("nan"), float("inf"), -float("inf"),
    "", " ", "x", "\x00", "\ud800", "\udfff\ud800", "\u202e", "\u2028", "\ufeff", "a" * 5000,
    "null", "NaN", "-1", "1e999", "[DONE]", "data: x\n\n", "</script>", "__proto__", "\r\nX: y",
    [], [None], [[]], {}, {"": ""}, {"__proto__": {"x": 1}}, [1, "2", {}],
    {"$ref": "file:///etc/passwd"}, {"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"type": "text", "text": "x"}, {"type": "tool_use", "id": "a", "name": "b", "input": {}},
    {"id": []}, {"type": 5}, "2026-01-01T00:00:00Z", _DEEP, _LONG,
    *["stop", "tool_calls", "length", "tool_use", "end_turn", "STOP", "function", "assistant", "user", "system", "tool"],
    *["model", "error"],
]  # fmt: skip
_NAMES = [
    "",
    *["error", "type", "id", "index", "x", "stream", "model", "n", "__proto__", "content", "$ref",
      "role"],
]  # fmt: skip
_PIECES = ["\x00", "\ud83d", "{", '"', "\\", "\n\n", "}", "]", "é", ""]


def mutate_value(value: Any, rng: Rng, times: int = 1, names: Sequence[str] = _NAMES) -> Any:
    """Return a randomly changed copy of a JSON value; ``names`` are keys to add."""
    root = json.loads(json.dumps(value))
    for _ in range(times):
        path = rng.choice(list(_paths(root)))
        try:
            root = _change(root, path, rng, names)
        except (KeyError, IndexError, TypeError, OverflowError, ValueError):
            continue
    return root


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from _paths(value[name], (*path, name))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _paths(item, (*path, at))


def _get(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _put(root: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    _get(root, path[:-1])[path[-1]] = value
    return root


def _odd(rng: Rng) -> Any:
    return copy.deepcopy(rng.choice(ODD))


def _change(root: Any, path: tuple[Any, ...], rng: Rng, names: Sequence[str]) -> Any:
    here = _get(root, path)
    kind = rng.randrange(11)
    if kind <= 3 or not path:
        return _put(root, path, _odd(rng))
    if kind == 4:
        del _get(root, path[:-1])[path[-1]]
    elif kind == 5 and isinstance(here, list) and here:
        here.insert(rng.randrange(len(here) + 1), copy.deepcopy(rng.choice(here)))
    elif kind == 5 and isinstance(here, dict):
        here[rng.choice(names)] = _odd(rng)
    elif kind == 6:
        return _put(root, path, copy.deepcopy(_get(root, rng.choice(list(_paths(root))))))
    elif kind == 7 and isinstance(here, str):
        at = rng.randrange(len(here) + 1)
        return _put(root, path, here[:at] + rng.choice(_PIECES) + here[at + rng.randrange(3) :])
    elif kind == 8 and isinstance(here, int | float) and not isinstance(here, bool):
        return _put(root, path, rng.choice([-here, here + 1, here * 10**18, str(here), here / 3]))
    elif kind == 9 and isinstance(here, list):
        rng.shuffle(here)
    elif kind == 10 and isinstance(here, dict) and here:
        name = rng.choice(list(here))
        here[rng.choice([name.upper(), name + " ", "x" + name, ""])] = here.pop(name)
    else:
        return _put(root, path, _odd(rng))
    return root


def dump(value: Any, rng: Rng) -> bytes:
    """Encode a mutated value as JSON, sometimes with deep nesting, repeated keys or very long
    numbers.
    """
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if _DEEP in text:
        start, end = rng.choice([("[", "]"), ('{"a":', "}")])
        depth = rng.choice([60, 127, 130, 260, 500, 1200, 20_000])
        text = text.replace(
            f'"{_DEEP}"', start * depth + ("1" if start != "[" else "") + end * depth, 1
        )
    if rng.random() < 0.03:
        text = re.sub(
            r'"(\w+)":', lambda found: f'"{found[1]}": null, "{found[1]}":', text, count=1
        )
    if rng.random() < 0.02:
        text = text.replace(
            '": "', '": 1' + "0" * rng.choice([20, 400, 4299, 4301, 9000]) + ', "zz": "', 1
        )
    return text.encode("utf-8", "surrogatepass")


_INSERTS = [
    b"\r", b"\n", b"\r\n", b"\n\n", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"data: ", b"event: error\n", b"[DONE]", b":", b"{", b"}", b'"', b"]",
]  # fmt: skip
_STARTS = [b"\xef\xbb\xbf", b" ", b"\n", b"<", b"[", b"{", b": x\n\n", b"\x1f\x8b"]


def mutate_bytes(data: bytes, rng: Rng, times: int = 1) -> bytes:
    """Return a randomly changed copy of a byte string."""
    changed = bytearray(data)
    for _ in range(times):
        if not changed:
            break
        at = rng.randrange(len(changed))
        kind = rng.randrange(9)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            changed[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 3:
            changed[at:at] = changed[at : at + rng.randrange(1, 60)]
        elif kind == 4:
            del changed[at:]
        elif kind == 5:
            changed[at:at] = rng.choice(_INSERTS)
        elif kind == 6:
            end = rng.choice([b"\r\n", b"\r", b"\n\n", b""])
            changed = bytearray(bytes(changed).replace(b"\n", end, rng.choice([-1, 1, 2])))
        elif kind == 7:
            changed[at] = rng.randrange(256)
        else:
            changed[:0] = rng.choice(_STARTS)
    return bytes(changed)


def mutate_json(data: bytes, rng: Rng) -> bytes:
    """Return a randomly changed copy of a JSON text."""
    try:
        return dump(mutate_value(json.loads(data), rng, rng.choice([1, 1, 2, 5])), rng)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng, 2)


def mutate_lines(data: bytes, rng: Rng) -> bytes:
    """Return a randomly changed copy of JSON lines."""
    lines = data.split(b"\n")
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(lines))
        kind = rng.randrange(6)
        if kind <= 2:
            lines[at] = mutate_json(lines[at], rng)
        elif kind == 3:
            lines[at] = mutate_bytes(lines[at], rng, 2)
        elif kind == 4 and len(lines) > 1:
            del lines[at]
        else:
            lines.insert(at, rng.choice(lines))
    return b"\n".join(lines)


_YAML_MARKS = [
    "!!python/object:os.system ", "!!binary ", "!x ", "&a ", "*a", "<<: *a", "|\n    ",
    ">-\n    ", "? ", "\t",
]  # fmt: skip
_YAML_SCALARS = [
    *["1e999", "-.inf", ".nan", "0x1F", "0o17", "1_000", "~", "no", "12:30:45", "2026-01-01",
      "{}", "[]", "'", "/etc/passwd"],
    *["re:(", "re:(a+)+$", "**/**/**", "../x"],
    *("", "{a: {b: [", '"\\ud800"', '"\\0"', "9" * 400, "1" + "0" * 400, "*" * 500),
]  # fmt: skip


def mutate_yaml(data: bytes, rng: Rng) -> bytes:
    """Return a randomly changed copy of a YAML text: changed values or changed notation."""
    value = yaml.safe_load(data)
    names = [
        *dict.fromkeys(step for path in _paths(value) for step in path if isinstance(step, str)),
        *_NAMES,
    ]
    changed = mutate_value(value, rng, rng.choice([0, 1, 1, 2, 5]), names)
    try:
        text = yaml.safe_dump(
            changed,
            sort_keys=False,
            default_flow_style=rng.choice([None, True, False]),
            width=10**6,
        )
    except (yaml.YAMLError, ValueError, UnicodeError):
        return dump(changed, rng)
    if _DEEP in text or rng.random() < 0.2:
        return dump(changed, rng)
    lines = text.split("\n")
    for _ in range(rng.choice([0, 0, 1, 1, 3])):
        _change_line(lines, rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _change_line(lines: list[str], rng: Rng) -> None:
    at = rng.randrange(len(lines))
    start, colon, rest = lines[at].partition(": ")
    kind = rng.randrange(6)
    if kind == 0:
        lines[at] = f"{start}{colon}{rng.choice(_YAML_MARKS)}{rest}"
    elif kind <= 2:
        lines[at] = f"{start}: {rng.choice(_YAML_SCALARS)}"
    elif kind == 3:
        lines[at] = " " * rng.randrange(5) + lines[at].lstrip()
    elif kind == 4:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    else:
        lines.insert(at, rng.choice(["---", "...", "%YAML 1.1", "# x", "}", "- x", "x", "\ufeff"]))


_EVENTS = [
    b"", *b"error message ping response.failed message_stop content_block_start".split()
]  # fmt: skip


def mutate_events(data: bytes, others: list[bytes], rng: Rng) -> bytes:
    """Return a randomly changed copy of an event stream; some events come from ``others``."""
    frames = data.replace(b"\r\n", b"\n").split(b"\n\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not frames:
            break
        at = rng.randrange(len(frames))
        kind = rng.randrange(10)
        if kind <= 4:
            frames[at] = b"\n".join(
                [
                    b"data: " + mutate_json(line[5:], rng) if line.startswith(b"data:") else line
                    for line in frames[at].split(b"\n")
                ]
            )
        elif kind == 5:
            del frames[at]
        elif kind == 6:
            frames.insert(rng.randrange(len(frames) + 1), frames[at])
        elif kind == 7:
            other = rng.randrange(len(frames))
            frames[at], frames[other] = frames[other], frames[at]
        elif kind == 8:
            frames.insert(at, rng.choice(rng.choice(others).split(b"\n\n")))
        else:
            frames[at] = re.sub(
                rb"(?m)^event:.*$", lambda _: b"event: " + rng.choice(_EVENTS), frames[at]
            )
    return b"\n\n".join(frames)


def cut_up(data: bytes, rng: Rng) -> list[bytes]:
    """Split the bytes at random offsets, as a network might deliver them."""
    kind = rng.randrange(5)
    if kind <= 1 or not data:
        return [data]
    if kind == 2:
        at = rng.randrange(len(data))
        return [data[:at], data[at:]]
    if kind == 3:
        size = rng.choice([1, 2, 3, 7, 64])
        return [data[at : at + size] for at in range(0, min(len(data), 4000), size)]
    places = sorted(rng.randrange(len(data)) for _ in range(5))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
