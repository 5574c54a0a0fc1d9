"""Record what a client's request contains beyond the fields of ``Request``.

Each wire's ``server_request`` has a ``FieldTable`` with a ``FieldRule`` for each field of the
body. It reads a body with ``ClientRecord``, which rejects invalid values but records unknown
fields in ``Losses`` instead of rejecting them. A field without a rule is a hint: if the model uses
another wire, the field is dropped and reported. A model of the client's own wire receives every
field unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import replace

from ..errors import cut
from ..messages import LossWarning, Text
from ..validate.fields import Fields
from .rules import NO_FIELDS, NO_TABLE, UNKNOWN, FieldRule, FieldTable, hint, is_among, is_empty


class OfferedTool(NamedTuple):
    """A tool that a client offers and that the provider runs."""

    kind: str
    options: Any
    record: dict[str, Any]
    """The tool as the client wrote it."""

    @property
    def is_search(self) -> bool:
        """Whether the tool searches the client's deferred tools."""
        return self.kind.startswith("tool_search")


class Leftover(Struct, frozen=True):
    """A part of a body that ``Request`` does not represent, or that some wires do not accept.

    ``roots`` are the top-level fields that are sent unchanged if the model uses the client's wire.
    """

    path: str
    code: str
    rule: FieldRule
    roots: tuple[str, ...]
    tool: OfferedTool | None = None
    """The server tool, if the part is one; ``rule`` applies only if the model's wire lacks it."""


class ConceptValue(NamedTuple):
    """A setting for which ``Request`` has no field, and how the client's wire writes it."""

    value: Any
    own: Mapping[str, Any]
    extra: Mapping[str, Any] | None
    """The fields that become extras for a provider of the client's wire: those that ``value`` does
    not represent. ``None`` if they cannot be extras, since ``Request`` represents a part of them.
    """


class Losses:
    """Collect what a client's request contains beyond the fields of ``Request``."""

    def __init__(
        self, client: Mapping[str, Any] = NO_FIELDS, table: FieldTable = NO_TABLE
    ) -> None:
        self.client = client
        self.table = table
        self.left: list[Leftover] = []
        self.concepts: dict[str, ConceptValue] = {}
        self.own: dict[str, Any] = {}  # fields to send if the model uses the client's wire
        # how long marks for the prompt cache ask to keep it, if longer than usual
        self.ttl: Literal["1h"] | None = None
        self.directives: list[str] = []  # instructions to add to the prompt
        self.custom: set[str] = set()  # names of custom tools, which are replaced by functions
        # for each function that replaces a namespaced tool: the namespace and the tool's name
        self.grouped: dict[str, tuple[str, str]] = {}

    def leave(
        self,
        path: str,
        rule: FieldRule = UNKNOWN,
        code: str | None = None,
        tool: OfferedTool | None = None,
        root: str = "",
    ) -> None:
        """Record that a part of the body is dropped or converted.

        ``code`` is a label in the metrics, so it must not contain client input. ``root`` is the
        top-level field, if ``path`` is its name, which may have dots and brackets.
        """
        root = root or path.partition(".")[0].partition("[")[0]
        together = self.table.conversation
        if code is None:
            name = path.rpartition(".")[2].partition("[")[0]
            code = "field_dropped" if rule is UNKNOWN else f"{name}_dropped"
        roots = together if root in together else (root,)
        if root in self.table.inner:
            roots = ()  # ``own`` has the fields of this object that are sent unchanged
        self.left.append(Leftover(cut(path, 200), code, rule, roots, tool))

    def drop(self, path: str, code: str, detail: str) -> None:
        """Record that a field is dropped, whichever wire the model uses."""
        self.leave(path, hint(detail, always=True), code)

    def drop_fields(self, fields: Fields, names: Iterable[str], detail: str) -> None:
        """Record that the named fields are dropped, if they are present."""
        for name in names:
            if fields.take(name) is not None:
                self.drop(fields.at(name), f"{name}_dropped", detail)

    @property
    def warnings(self) -> tuple[LossWarning, ...]:
        """A warning for each part that neither the request nor a field of it contains."""
        return describe_left(self.left)

    def add_concept(
        self, concept: str, value: Any, own: Mapping[str, Any], **fields: Mapping[str, Any] | None
    ) -> None:
        """Record a setting that only some wires have a field for; see ``ConceptValue``."""
        self.concepts[concept] = ConceptValue(value, own, fields.get("extra", own))

    def keep_own(self, path: str, value: Any) -> None:
        """Send a field unchanged if the model uses the client's wire."""
        self.own = merge(self.own, nest(path, value))


class ClientRecord(Fields):
    """Read an object of a client's request; record unknown fields instead of rejecting them."""

    rules: ClassVar[Mapping[str, FieldRule]] = {}
    """The rules of fields that ``Request`` does not have."""

    def __init__(self, data: Any, path: str, losses: Losses) -> None:
        super().__init__(data, path)
        self.losses = losses

    def enter(self, name: str, value: Any) -> Self:
        return type(self)(value, self.at(name), self.losses)

    def leave(self, name: str, rule: FieldRule = UNKNOWN, code: str | None = None) -> None:
        """Record that a field is dropped or converted."""
        self._known[name] = None
        self.losses.leave(self.at(name), rule, code)

    def leave_part(self, rule: FieldRule) -> Text:
        """Record that this part of a message is dropped; return the text in its place."""
        self.losses.leave(self.where, rule, "content_dropped")
        return Text("[content of another kind]")

    def schema(self, name: str, *, required: bool = False) -> dict[str, Any] | None:
        """Return the value of a field that must be a JSON Schema."""
        value = self.take(name)
        if not isinstance(value, dict) and (required or value is not None):
            self.refuse(name, "must be a JSON Schema")
        return value

    def text_or_parts(self, name: str, problem: str) -> str | Sequence[Self]:
        """Return a text, or a reader for each object of a list; other values are a problem."""
        value = self.take(name)
        if not isinstance(value, str | list):
            self.refuse(name, problem)
        return value if isinstance(value, str) else self.inners(name)

    def done(self, rules: Mapping[str, FieldRule] | None = None) -> None:
        """Record the fields that were not read, unless they are empty or have default values."""
        known = self._known
        for name, value in self.data.items():
            if name not in known and not is_empty(value):
                rule = (rules or self.rules).get(name, UNKNOWN)
                if not is_among(value, rule.default):
                    self.losses.leave(self.at(name), rule)

    def sort(self, rules: Mapping[str, FieldRule], skip: Collection[str] = ()) -> None:
        """Record the fields that ``Request`` does not represent, as their rules require.

        A field that is empty or has its default value is ignored. The fields to ``skip`` are read
        by the caller.
        """
        for name, value in self.data.items():
            rule = rules.get(name, UNKNOWN)
            if rule.effect == "read" or name in skip:
                continue
            self._known[name] = None
            if is_empty(value) or is_among(value, rule.default):
                continue
            if is_among(value, rule.cheap):
                rule = replace(rule, opt_in="")
            if rule.concept is not None and not (rule.always or rule.opt_in):
                self.losses.add_concept(rule.concept, value, nest(self.at(name), value))
                continue
            self.losses.leave(self.at(name), rule, root=self.where or name)
            if self.where and not rule.always:
                self.losses.keep_own(self.where, {name: value})


def describe_left(left: Iterable[Leftover]) -> tuple[LossWarning, ...]:
    """Return a warning for each part that is lost even on the client's own wire.

    A top-level field is not lost, since it is sent unchanged. Nor is a part that a field of
    ``Request`` or of the client's own body represents.
    """
    return tuple(
        [
            LossWarning(each.code, each.path, each.rule.what)
            for each in left
            if each.rule.always
            or not (each.rule.held or each.tool or each.roots in ((), (each.path,)))
        ]
    )


def nest(path: str, value: Any) -> dict[str, Any]:
    """Return the nested objects in which a value has a path such as ``text.format``."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def merge(fields: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with the values of ``over``; nested objects are merged.

    A value of ``None`` is kept, since the codec then removes the field from the body.
    """
    if not fields:
        return dict(over)
    made = dict(fields)
    for name, value in over.items():
        present = made.get(name)
        made[name] = (
            merge(present, value)
            if isinstance(present, dict) and isinstance(value, dict)
            else value
        )
    return made
