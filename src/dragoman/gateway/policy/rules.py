"""Rules for request fields that Dragoman cannot represent, and records of dropped fields.

Each wire's module in this package has a table with a ``Rule`` for each field. A field without a
rule is treated as a hint: if the model uses another wire, the field is dropped and reported. A
model that uses the client's own wire receives every field unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from msgspec import Struct

from ...errors import cut
from .hosted import Hosted

Effect = Literal["read", "mapped", "hint", "refused"]


class Rule(Struct, frozen=True):
    """What happens to a field if the model's wire differs from the client's wire.

    The ``effect`` is one of these. ``read``: Dragoman's requests represent the field. ``mapped``:
    the field is converted to the corresponding field of the model's wire; if there is none, it is
    dropped and reported. ``hint``: the field is dropped and reported. ``refused``: the request is
    rejected, because the answer would have another meaning without the field. ``concept`` is the
    setting's name in the module ``concepts``, which lists the corresponding fields.
    """

    effect: Effect
    what: str = ""
    """The reason why the field can be dropped, or what the client can do instead."""
    default: tuple[Any, ...] = ()
    """Values that request the default behaviour; they are neither sent nor reported."""
    concept: str | None = None
    always: bool = False
    """Whether the rule applies even if the model uses the client's wire."""


UNKNOWN = Rule("hint", "the model's wire has no such field")
NOTHING: tuple[Any, ...] = (None, [], {}, "")


class Leftover(Struct, frozen=True):
    """A part of a body that Dragoman's requests cannot represent.

    ``roots`` are the top-level fields that are sent unchanged if the model uses the client's wire.
    """

    path: str
    code: str
    rule: Rule
    roots: tuple[str, ...]
    hosted: Hosted | None = None
    """The server tool, if it is portable; ``rule`` applies only if the model's wire lacks it."""


class Sorter:
    """Collect the parts of a body that Dragoman's requests cannot represent.

    ``together`` lists the top-level fields that contain the conversation. If one of them is sent
    to the model unchanged, all of them are.
    """

    def __init__(self, rules: Mapping[str, Rule], together: tuple[str, ...]) -> None:
        self.rules = rules
        self.left: list[Leftover] = []
        self.wishes: dict[str, Any] = {}
        # fields to add to the body if the model uses the client's wire
        self.own: dict[str, Any] = {}
        self.directives: list[str] = []  # instructions to add to the prompt
        self.custom: set[str] = set()  # names of custom tools, which are replaced by functions
        # for each function that replaces a namespaced tool: the namespace and the tool's name
        self.grouped: dict[str, tuple[str, str]] = {}
        self._together = together

    def leave(
        self,
        path: str,
        rule: Rule = UNKNOWN,
        code: str | None = None,
        hosted: Hosted | None = None,
    ) -> None:
        """Record that a part of the body is dropped or converted.

        ``code`` is a label in the metrics, so it must not contain client input.
        """
        root = path.partition(".")[0].partition("[")[0]
        roots = self._together if root in self._together else (root,)
        if code is None:
            name = path.rpartition(".")[2].partition("[")[0]
            code = "field_dropped" if rule is UNKNOWN else f"{name}_dropped"
        self.left.append(Leftover(cut(path, 200), code, rule, roots, hosted))

    def done(self, body: dict[str, Any], client: Mapping[str, Any]) -> Prepared:
        """Return the prepared body, with the records of dropped and converted parts."""
        return Prepared(
            body,
            client,
            tuple(self.left),
            self.wishes,
            self.own,
            frozenset(self.custom),
            tuple(self.directives),
            self.grouped,
        )

    def wish(self, concept: str, value: Any) -> None:
        """Record a setting that only some wires have a field for; see the module ``concepts``."""
        self.wishes[concept] = value

    def keep(
        self,
        record: Mapping[str, Any],
        path: str,
        names: Collection[str],
        rules: Mapping[str, Rule] | None = None,
    ) -> dict[str, Any]:
        """Return the fields with the given names; record every other field as dropped.

        A field that is empty or has its default value is dropped without a record.
        """
        kept = {name: value for name, value in record.items() if name in names}
        if len(kept) == len(record):
            return kept
        for name, value in record.items():
            rule = (rules or {}).get(name, UNKNOWN)
            if (
                name not in kept
                and not is_among(value, NOTHING)
                and not is_among(value, rule.default)
            ):
                self.leave(f"{path}.{name}" if path else name, rule)
        return kept

    def sort_root(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the top-level fields that the wire's server codec can decode.

        Record every other field as its rule requires, unless it is empty or has its default value.
        """
        kept: dict[str, Any] = {}
        for name, value in body.items():
            rule = self.rules.get(name, UNKNOWN)
            if rule.effect == "read":
                kept[name] = value
            elif is_among(value, NOTHING) or is_among(value, rule.default):
                continue
            elif rule.concept is not None and not rule.always:
                self.wish(rule.concept, value)
            else:
                self.leave(name, rule)
        return kept


def is_among(value: Any, values: Collection[Any]) -> bool:
    """Return whether a value equals one of several JSON values; ``true`` does not equal 1."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


class Prepared(Struct, frozen=True):
    """A body that the wire's server codec can decode, and the parts that were removed from it."""

    body: dict[str, Any]
    client: Mapping[str, Any]
    """The body as the client wrote it."""
    left: tuple[Leftover, ...] = ()
    wishes: Mapping[str, Any] = {}
    own: Mapping[str, Any] = {}
    custom: frozenset[str] = frozenset()
    """The names of custom tools, which are replaced by functions."""
    directives: tuple[str, ...] = ()
    """Instructions to add to the prompt if the model uses another wire."""
    grouped: Mapping[str, tuple[str, str]] = {}
    """For each function that replaces a namespaced tool: the namespace, and the tool's name."""

    @property
    def has_more(self) -> bool:
        """Whether anything in the client's body is missing in ``body``."""
        return bool(self.left or self.wishes or self.own or self.directives)
