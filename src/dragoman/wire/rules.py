"""Rules: what happens to each field of a client's request if the model uses another wire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct

Effect = Literal["read", "mapped", "hint", "refused"]


class FieldRule(Struct, frozen=True):
    """What happens to a field if the model's wire differs from the client's wire.

    The ``effect`` is one of these. ``read``: Dragoman's requests represent the field. ``mapped``:
    the field is converted to the corresponding field of the model's wire; if there is none, it is
    dropped and reported. ``hint``: the field is dropped and reported. ``refused``: the request is
    rejected, because the answer would have another meaning without the field. ``concept`` is the
    name of a setting that several wires have under different names.
    """

    effect: Effect
    what: str = ""
    """The reason why the field can be dropped, or what the client can do instead."""
    default: tuple[Any, ...] = ()
    """Values that request the default behaviour; they are neither sent nor reported."""
    concept: str | None = None
    always: bool = False
    """Whether the rule applies even if the model uses the client's wire."""
    held: bool = False
    """Whether ``Request`` represents the field too, so that nothing is lost without the rule."""
    can_drop: bool = False
    """Whether a key may have a refused field left out, since only the reply is poorer without."""
    betas: tuple[str, ...] = ()
    """Patterns of the betas (opt-ins in a header) with which a server of the wire accepts the
    field.
    """
    released: bool = False
    """Whether newer servers accept the field without one of its ``betas``."""
    opt_in: str = ""
    """A name that the operator's list of betas must match, since the field raises the price. It is
    the beginning of a beta's name, or a name of its own for a field without a beta.
    """
    cheap: tuple[Any, ...] = ()
    """The values that need no ``opt_in``. The others are sent on the same wire only."""


def mapped(concept: str, *default: Any, what: str = "", **facts: Any) -> FieldRule:
    """Return the rule of a setting that several wires have under different names."""
    return FieldRule("mapped", what, default, concept, **facts)


def hint(what: str, *default: Any, **facts: Any) -> FieldRule:
    """Return the rule of a field that is dropped and reported."""
    return FieldRule("hint", what, default, **facts)


def refused(what: str, *default: Any, **facts: Any) -> FieldRule:
    """Return the rule of a field without which the answer would have another meaning."""
    return FieldRule("refused", what, default, **facts)


CACHE = hint("each endpoint sets its own marks for the prompt cache")
HELD_CACHE = FieldRule(CACHE.effect, CACHE.what, held=True)
"""The rule of a mark for the prompt cache that ``Request`` represents."""
READ = FieldRule("read")
HINT = hint("it does not change what the answer means")
LOGPROBS = refused("ask a model of the same wire, or leave it out", False, 0, can_drop=True)
UNKNOWN = hint("the model's wire has no such field")
# Service tiers are sent if the operator's list matches this name, but for those that are known not
# to raise the price, so that a key spends no more than its operator expects. OpenAI's ``priority``
# or ``fast`` costs 2 to 2.5 times as much, ``ultrafast`` 6 times (openai.com/api-fast-mode,
# developers.openai.com/api/docs/guides/ultrafast-mode), Gemini's 1.75 to 2 times (ai.google.dev/
# gemini-api/docs/optimization), and Bedrock's 1.75 times (docs.aws.amazon.com/bedrock/latest/
# userguide/service-tiers-inference.html; seen 2026-11-19).
TIER = "priority-tier"
TIER_IS_SET = "which capacity serves a request is the endpoint's setting"
# Settings that the openai and the responses wire write alike.
CONCEPTS = {
    **{
        name: mapped(name)
        for name in ("parallel_tool_calls", "user", "prompt_cache_key", "prompt_cache_retention")
    },
    "safety_identifier": mapped("safety_identifier"),
    "service_tier": mapped(
        "service_tier",
        "auto",
        "default",
        what=TIER_IS_SET,
        opt_in=TIER,
        cheap=("flex", "on_demand", "scale", "standard"),
    ),
}
NOTHING: tuple[Any, ...] = (None, [], {}, "")


class Betas(Struct, frozen=True):
    """The betas that a client opts in to: those that the model's server may be sent, and others."""

    passed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    """The operator's list of patterns, if it has more than the default."""

    def block(self, rule: FieldRule) -> bool:
        """Return whether a field must not be sent unchanged, since its beta is not sent.

        A field without a rule may belong to any beta that is dropped.
        """
        if rule is UNKNOWN:
            return bool(self.dropped)
        if rule.opt_in:
            is_allowed = matches_any([rule.opt_in], self.allowed)
            return not (is_allowed or matches_any(self.passed, rule.betas))
        if not rule.betas or matches_any(self.passed, rule.betas):
            return False
        return not rule.released or matches_any(self.dropped, rule.betas)


NO_BETAS = Betas()


def matches_any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return whether one of the names matches one of the patterns, in which ``*`` is any text."""
    patterns = tuple(patterns)
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def sort_betas(names: Sequence[str], allowed: Sequence[str], safe: Sequence[str]) -> Betas:
    """Return betas sorted by a list of allowed patterns; ``default`` in it stands for ``safe``."""
    more = tuple([pattern for pattern in allowed if pattern != "default"])
    if not (names or more):
        return NO_BETAS
    patterns = [*more, *safe] if "default" in allowed else more
    passed = [name for name in names if matches_any([name], patterns)]
    return Betas(tuple(passed), tuple([name for name in names if name not in passed]), more)


class FieldTable(Struct, frozen=True):
    """The fields of a client's request on one wire."""

    rules: Mapping[str, FieldRule]
    """The rule of each field of the body."""
    conversation: tuple[str, ...]
    """The fields that contain the conversation, the messages first. If one of them is sent to the
    model unchanged, all of them are.
    """
    names: Mapping[str, str]
    """Dragoman's names of settings, mapped to the names on the wire where they differ."""
    inner: Mapping[str, Mapping[str, FieldRule]] = {}
    """The rules of the fields of objects in the body."""
    extra_name: Callable[[str, str], str] = "{}.{}".format
    """Return the name in ``config.extras`` of a field, given the path of its object."""

    def find_unread(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that ``Request`` does not represent."""
        return {
            name: value
            for name, value in fields.items()
            if name in self.rules and self.rules[name].effect != "read"
        }


class HostedTools(Struct, frozen=True):
    """The tools that providers of a wire run and that other wires may have too."""

    names: Mapping[str, str] = {}
    """The wire's names of these tools, without dates, mapped to the portable names."""
    options: tuple[str, ...] = ()
    """The portable options that the tools take."""
    renamed: Mapping[str, str] = {}
    """The wire's names of options, mapped to the portable names where they differ."""
    defaults: Mapping[str, Any] = {}
    """The options that a client may leave out, with the values that they have then."""
    depend_on_model: bool = False
    """Whether only some models have them, so that they are not offered to other wires' clients."""
    nest_domains: bool = False
    """Whether the allowed domains are nested in ``filters``."""


NO_HOSTED = HostedTools()
NO_FIELDS: Mapping[str, Any] = {}
NO_TABLE = FieldTable({}, (), {})


def is_empty(value: Any) -> bool:
    """Return whether a value is null or empty, as many SDKs send for a field that is not set."""
    return value in NOTHING


def is_among(value: Any, values: Collection[Any]) -> bool:
    """Return whether a value equals one of several JSON values; ``true`` does not equal 1."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )
