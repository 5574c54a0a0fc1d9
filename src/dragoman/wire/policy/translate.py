"""Translate a client's request into the request for a model that may use another wire."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ...errors import UnsupportedFeatureError, cut
from ...messages import NO_CONFIG, LossWarning, Request, RuntimeConfig, System
from .. import CODECS, Asked, ServerCodec
from ..caching import drop_marks
from ..codec import HINTS
from ..endpoint import Endpoint
from ..losses import Leftover, merge, nest
from ..rules import FieldRule
from ..settings import find_lacking
from .hosted import fit_hosted, read_hosted

DEFAULT_MAX_TOKENS = 4096
"""The token limit for a wire that requires one, if neither client nor catalogue sets one."""

# Fields that only the codec writes; for example, it requests usage in every stream.
_OURS = frozenset({"model", "stream", "stream_options"})
_JSON_DIRECTIVE = "Reply with one JSON object and nothing else: no code fences, no comment."


class Translated(Struct, frozen=True):
    """A request for the model, and the warnings for the client."""

    request: Request
    warnings: tuple[LossWarning, ...]
    stops: tuple[str, ...] = ()
    """Stop sequences that the gateway applies itself, because the model's wire lacks them."""


class Target(Struct, frozen=True):
    """The model to which a request is sent, and the wires that it may use.

    ``needs_max_tokens`` is true if a wire requires a token limit and the model's own is unknown,
    ``separates_tools`` if the model rejects functions next to server tools.
    """

    name: str
    wires: frozenset[str]
    needs_max_tokens: bool = False
    separates_tools: bool = False


def translate(
    asked: Asked,
    front: ServerCodec,
    target: Target,
    *,
    is_native: bool = True,
    drops: bool = False,
) -> Translated:
    """Translate a client's request into the request for a model.

    ``front`` is the codec of the client's wire. If ``is_native`` is false, no field of the
    client's body is sent unchanged, even if the model uses the client's wire. If ``drops`` is
    true, fields such as ``logprobs`` are dropped and reported, instead of rejecting the request.

    Raises ``UnsupportedFeatureError`` for a field that cannot be dropped because the answer would
    have another meaning.
    """
    work = _Translation(asked, front, target, is_native=is_native, drops=drops)
    if asked.has_more:
        work.carry_own()
        work.pass_betas()
        work.pass_headers()
        work.report_left()
        work.give_directives()
        work.express_concepts()
    work.fit_settings()
    return work.done()


class _Translation:
    def __init__(
        self, asked: Asked, front: ServerCodec, target: Target, *, is_native: bool, drops: bool
    ) -> None:
        self.drops = drops
        self.asked = asked
        self.request = asked.request
        self.front = front
        self.wire = front.wire if is_native else ""
        self.target = target
        self.names = front.table.names
        self.native: dict[str, dict[str, Any]] = {}
        self.warnings: list[LossWarning] = []
        # top-level fields that are not sent unchanged, since a part of them needs a dropped beta
        self.withheld = frozenset(
            [root for left in asked.left if asked.betas.block(left.rule) for root in left.roots]
        )
        self.stops: tuple[str, ...] = ()

    @property
    def others(self) -> frozenset[str]:
        """The wires of the model except the client's; ``""`` stands for an unknown wire."""
        return (self.target.wires or frozenset({""})) - {self.wire}

    def carry_own(self) -> None:
        """Pass the client's native fields on unchanged if the model uses the client's wire."""
        for left in self.asked.left:
            if left.rule.always:
                self._refuse_or_warn(left.rule, left.code, left.path)
        if any(left.rule.held and not self._is_kept(left) for left in self.asked.left):
            self.request = drop_marks(self.request)
        if self.wire not in self.target.wires:
            return
        fields: dict[str, Any] = {}
        for left in self.asked.left:
            if not left.rule.always and self.withheld.isdisjoint(left.roots):
                roots = [root for root in left.roots if root not in _OURS]
                fields.update({root: self.asked.client.get(root) for root in roots})
        self.native[self.wire] = merge(fields, self.asked.own)

    def pass_betas(self) -> None:
        """Send the client's betas to a model of its wire; report the betas that are not sent."""
        betas = self.asked.betas
        header = self.front.beta_header
        if betas.passed and self.wire in self.target.wires:
            self._over(self.wire, {"betas": betas.passed})
        if betas.passed and self.others:
            self._warn("beta_dropped", header, "the model's wire has no betas")
        for name in betas.dropped:
            self._warn("beta_dropped", f"{header}[{cut(name, 100)}]", "it is not passed on here")

    def pass_headers(self) -> None:
        """Send the headers that a model of the client's wire gets unchanged."""
        if self.asked.headers and self.wire in self.target.wires:
            self._over(self.wire, {"headers": self.asked.headers})

    def report_left(self) -> None:
        """Report the fields that the model's wire cannot express, or reject the request."""
        for left in self.asked.left:
            is_sent = not self.others and self.withheld.isdisjoint(left.roots)
            if not (
                left.rule.always or is_sent or self._is_kept(left) or self._try_hosted_tool(left)
            ):
                self._refuse_or_warn(left.rule, left.code, left.path)
        if self.others and any(tool.deferred for tool in self.request.tools):
            tools = [replace(tool, deferred=False) for tool in self.request.tools]
            self.request = replace(self.request, tools=tools)

    def _is_kept(self, left: Leftover) -> bool:
        """Return whether a part is sent anyway, in a form other than the client's."""
        is_represented = left.rule.held or left.path in self.asked.own
        return is_represented and not self.others and not self.withheld.isdisjoint(left.roots)

    def _try_hosted_tool(self, left: Leftover) -> bool:
        """Offer a server tool to the model if the model's wire has it; return whether it does."""
        if left.tool is None or (self.request.tools and self.target.separates_tools):
            return False
        own = describe_wire(self.front.wire).hosted
        hosted = read_hosted(own, left.tool.kind, left.tool.options)
        if hosted is None:
            return False
        wires = [describe_wire(wire).hosted for wire in self.others] or [own]
        fitted = fit_hosted(hosted, wires)
        if fitted is None:
            return False
        tool, lost = fitted
        if tool not in self.request.server_tools:
            self.request = replace(self.request, server_tools=(*self.request.server_tools, tool))
        for name in lost:
            self._warn(
                "tool_option_dropped", f"{left.path}.{name}", "the model's wire has no such option"
            )
        return True

    def give_directives(self) -> None:
        """Add instructions to the prompt for settings that the model's wire has no field for."""
        if self.others and self.asked.directives:
            directives = [System(text) for text in self.asked.directives]
            self.request = replace(self.request, messages=(*directives, *self.request.messages))

    def express_concepts(self) -> None:
        """Write each setting to its field on the model's wire; report settings without a field."""
        for concept, setting in self.asked.concepts.items():
            if concept == "reasoning":
                # The codec of the client's wire sends either the client's fields or this amount.
                if self.wire in self.target.wires:
                    self._over(self.wire, setting.own)
                self._set(reasoning=setting.value)
                continue
            if concept == "json_mode":
                self._ask_for_json()
            if concept == "parallel_tool_calls" and not self.request.tools:
                continue
            for wire in sorted({self.wire} & self.target.wires | self.others):
                self._express(concept, setting.value, wire)

    def fit_settings(self) -> None:
        """Drop settings that the model's wire lacks; add a token limit if the wire needs one."""
        config = self.request.config
        if config is not NO_CONFIG:
            self._drop_lacking(config)
        if config.max_tokens is None and self.target.needs_max_tokens:
            budget = config.reasoning if type(config.reasoning) is int else 0
            self._set(max_tokens=DEFAULT_MAX_TOKENS + budget)
            why = (
                "the model's wire requires a limit, and the model's own is not known: "
                f"{DEFAULT_MAX_TOKENS} is used"
            )
            self._warn("max_tokens_added", self.names.get("max_tokens", "max_tokens"), why)

    def _drop_lacking(self, config: RuntimeConfig) -> None:
        # A codec of another package that is not an ``Endpoint`` checks the settings itself.
        known = [each for each in map(describe_wire, self.others) if each is not Endpoint]
        for name in sorted({name for each in known for name in find_lacking(each.setting_paths)}):
            value = getattr(config, name)
            if value is not None:
                self._set(**{name: None})
                if name == "stop_sequences":
                    self.stops = tuple([stop for stop in value if stop])
                elif value != 0 or name == "seed":
                    self._warn_lacking(name)

    def done(self) -> Translated:
        """Return the translated request, with its warnings."""
        request = self.request
        if self.native:
            native = {wire: fields for wire, fields in self.native.items() if fields}
            request = replace(request, native=native)
        return Translated(request, tuple(self.warnings), self.stops)

    # --- private methods

    def _refuse_or_warn(self, rule: FieldRule, code: str, path: str) -> None:
        if rule.effect == "refused" and not (self.drops and rule.can_drop):
            is_blocked = not self.others and self.asked.betas.block(rule)
            why = (
                f"{self.front.beta_header} must name its beta, and this gateway allow it: "
                f"{', '.join(rule.betas)}"
            )
            raise UnsupportedFeatureError(
                f"{path}: the model {self.target.name!r} cannot do this; "
                f"{why if is_blocked else rule.what}"
            )
        self._warn(code, path, rule.what)

    def _express(self, concept: str, value: Any, wire: str) -> None:
        if concept == "parallel_tool_calls" and self.request.tool_choice is None:
            self._over(wire, describe_wire(wire).beside_parallel)
        fields = _write_concept(concept, value, wire)
        if fields is not None:
            self._over(wire, fields)
        elif concept == "json_mode" or (concept == "parallel_tool_calls" and value is True):
            return
        else:
            self._warn_lacking(concept)

    def _ask_for_json(self) -> None:
        """Add an instruction to answer in JSON to the prompt, unless it is unnecessary.

        Some wires require that the client itself mentions JSON in the prompt. For their clients
        nothing is added if every wire of the model has a JSON mode.
        """
        is_told = self.wire and self.front.mentions_json
        have_mode = all("json_mode" in describe_wire(wire).concepts for wire in self.others)
        if self.others and not (is_told and have_mode):
            self.request = replace(
                self.request, messages=(System(_JSON_DIRECTIVE), *self.request.messages)
            )

    def _over(self, wire: str, fields: Mapping[str, Any]) -> None:
        self.native[wire] = merge(self.native.get(wire, {}), fields)

    def _set(self, **settings: Any) -> None:
        self.request = replace(self.request, config=replace(self.request.config, **settings))

    def _warn(self, code: str, path: str, why: str) -> None:
        self.warnings.append(LossWarning(code, path, why))

    def _warn_lacking(self, setting: str) -> None:
        name = self.names.get(setting, setting)
        self._warn(f"{setting}_dropped", name, "the model's wire has no such setting")


def describe_wire(wire: str) -> type[Endpoint[Any]]:
    """Return the codec that describes a wire; for other codecs, one that describes nothing."""
    codec = CODECS.get(wire)
    return codec if isinstance(codec, type) and issubclass(codec, Endpoint) else Endpoint


def _write_concept(concept: str, value: Any, wire: str) -> dict[str, Any] | None:
    """Return the fields of a wire's body that express a setting; ``None`` if there are none."""
    place = describe_wire(wire).concepts.get(concept)
    if place is None:
        return None
    path, convert = (place, None) if isinstance(place, str) else place
    return nest(path, value if convert is None else convert(value))


def refuse_losses(warnings: Collection[LossWarning], model: str) -> None:
    """Raise ``UnsupportedFeatureError`` for the first loss, if any (``on_loss: reject``)."""
    for first in [each for each in warnings if each.code not in HINTS][:1]:
        raise UnsupportedFeatureError(
            f"{first.path}: {first.detail}; {model!r} refuses losses (on_loss: reject)"
        )
