"""Circuit breaker: which models and providers are unavailable, and when they are tried again.

A target is one model of one provider. These are the rules, with the default thresholds:

==================================================================  =================================
5 failures of one target in a row, the first at most 2 min ago      that model is unavailable
3 models of a provider became unavailable within 2 min              the provider is unavailable
an authentication error                                             the provider is unavailable
2 network errors of a provider within 30 s                          the provider is unavailable
5 min without an attempt                                            one probe call is allowed
a success                                                           model and provider are available
==================================================================  =================================

Only transient failures and authentication errors count. A call does not count if it was cancelled,
if it was rejected as invalid, too long or unsupported, or if the reply was invalid.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from ..calls import ProviderRecovered, ProviderUnavailable, Scope, Trigger
from ..errors import AuthenticationError, NetworkError, ProviderError
from .layer import check_number, notify

log = logging.getLogger("dragoman")


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits at which a target becomes unavailable, and the seconds until a probe is sent."""

    failures: int = 5
    failure_seconds: float = 120.0
    models: int = 3
    model_seconds: float = 120.0
    network_errors: int = 2
    network_seconds: float = 30.0
    quiet_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in ("failures", "models", "network_errors"):
            check_number("availability", name, getattr(self, name), least=1, most=1000, whole=True)
        for name in ("failure_seconds", "model_seconds", "network_seconds", "quiet_seconds"):
            check_number("availability", name, getattr(self, name), least=0.001, most=1e6)


class _State:
    """The circuit breaker's state for one model or one provider."""

    __slots__ = ("failed", "failures", "probe", "quiet", "since", "trigger")

    def __init__(self, memory: int, quiet: float) -> None:
        self.quiet = quiet
        # times of consecutive failures of a model, or of network errors of a provider
        self.failures: deque[float] = deque(maxlen=memory)
        self.since: float | None = None  # the time at which the target became unavailable
        self.trigger: Trigger | None = None
        # the time of the last failure; a probe may be sent ``quiet`` seconds later
        self.failed = 0.0
        self.probe: Admission | None = None

    def burst(self, span: float) -> bool:
        """Return whether the maximum number of failures occurred within ``span`` seconds."""
        return (
            len(self.failures) == self.failures.maxlen
            and self.failures[-1] - self.failures[0] <= span
        )

    def reopens_in(self, now: float) -> float:
        """Return the seconds until a probe may be sent; 0 if a call or a probe may be sent now."""
        return 0.0 if self.since is None else max(0.0, self.quiet - (now - self.failed))


class Admission:
    """Permission for one call of a target. The caller must report the result of the call."""

    __slots__ = ("_availability", "_done", "changes", "is_probe", "model", "provider")

    def __init__(
        self, availability: Availability, provider: str, model: str, *, is_probe: bool
    ) -> None:
        self.provider = provider
        self.model = model
        self.is_probe = is_probe
        # the changes of availability that the result of this call has caused
        self.changes: list[ProviderUnavailable | ProviderRecovered] = []
        self._availability = availability
        self._done = False

    def succeed(self) -> None:
        """Report that the target answered."""
        if not self._done:
            self._done = True
            self._availability._succeeded(self)

    def fail(self, error: ProviderError) -> None:
        """Report that the call failed. Only errors that indicate an outage count as failures."""
        if self._done:
            return
        if isinstance(error, AuthenticationError) or error.transient:
            self._done = True
            self._availability._failed(self, error)
        else:
            self.release()

    def release(self) -> None:
        """Report that the call neither succeeded nor failed, for example if it was cancelled."""
        if not self._done:
            self._done = True
            # if this call was a probe, allow another probe at once, since this one had no result
            self._availability._end_probe(self)


class Availability:
    """The circuit breaker for all models and providers.

    Layers that call the same providers should share one instance.

    ``on_event`` is called with ``ProviderUnavailable`` or ``ProviderRecovered`` for every change
    of availability.
    """

    def __init__(
        self,
        on_event: Callable[[ProviderUnavailable | ProviderRecovered], object] | None = None,
        thresholds: Thresholds | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.thresholds = thresholds or Thresholds()
        self._on_event = on_event
        self._clock = clock
        self._providers: dict[str, _State] = {}
        self._models: dict[tuple[str, str], _State] = {}

    async def refresh(self) -> None:
        """Read the changes that other processes have written, if the state is shared."""

    async def close(self) -> None:
        """Close the connection to the shared state, if there is one."""

    def admit(self, provider: str, model: str) -> Admission | None:
        """Return permission for one call, or ``None`` if the target is unavailable.

        The caller must report the result of the call to the returned object.
        """
        now = self._clock()
        closed = [state for state in self._states(provider, model) if state.since is not None]
        if any(state.probe is not None or state.reopens_in(now) > 0 for state in closed):
            return None
        admission = Admission(self, provider, model, is_probe=bool(closed))
        for state in closed:
            state.probe = admission
        return admission

    def is_available(self, provider: str, model: str) -> bool:
        """Return whether a target is available; do not admit a call or start a probe."""
        return all(state.since is None for state in self._states(provider, model))

    def reopens_in(self, provider: str, model: str) -> float:
        """Return the seconds until a probe may be sent to the target; 0 if it is available."""
        now = self._clock()
        return max([state.reopens_in(now) for state in self._states(provider, model)])

    def trigger(self, provider: str, model: str) -> Trigger | None:
        """Return why the target is unavailable, or ``None`` if it is available.

        If both the provider and the model are unavailable, return the provider's cause.
        """
        return next(
            (state.trigger for state in self._states(provider, model) if state.since is not None),
            None,
        )

    # --- methods that admissions call with the outcome of a call

    def _succeeded(self, admission: Admission) -> None:
        whole, state = self._states(admission.provider, admission.model)
        self._end_probe(admission)
        whole.failures.clear()
        state.failures.clear()
        self._open(admission, state, "model_specific", (admission.model,))
        available = [
            model
            for (provider, model), each in self._models.items()
            if provider == admission.provider and each.since is None
        ]
        self._open(admission, whole, "provider_wide", tuple(sorted(available)))

    def _failed(self, admission: Admission, error: ProviderError) -> None:
        provider = admission.provider
        model = admission.model
        whole, state = self._states(provider, model)
        self._end_probe(admission)
        now = whole.failed = state.failed = self._clock()
        if isinstance(error, AuthenticationError):
            self._trip(admission, whole, "provider_wide", "auth_error")
            return
        state.failures.append(now)
        fell = state.burst(self.thresholds.failure_seconds) and self._trip(
            admission, state, "model_specific", "5_consecutive_failures", model
        )
        if error.error_class == "network":
            whole.failures.append(now)
            if whole.burst(self.thresholds.network_seconds):
                is_dns = isinstance(error, NetworkError) and error.is_unresolved
                trigger: Trigger = "dns_error" if is_dns else "network_error"
                self._trip(admission, whole, "provider_wide", trigger)
        if fell and self._count_unavailable(provider, now) >= self.thresholds.models:
            self._trip(admission, whole, "provider_wide", "multi_model_failures")

    # --- private methods of the circuit breaker

    def _states(self, provider: str, model: str) -> tuple[_State, _State]:
        whole = self._providers.get(provider)
        if whole is None:
            whole = self._providers[provider] = _State(
                self.thresholds.network_errors, self.thresholds.quiet_seconds
            )
        state = self._models.get((provider, model))
        if state is None:
            state = self._models[provider, model] = _State(
                self.thresholds.failures, self.thresholds.quiet_seconds
            )
        return whole, state

    def _end_probe(self, admission: Admission) -> None:
        for state in self._states(admission.provider, admission.model):
            if state.probe is admission:
                state.probe = None

    def _count_unavailable(self, provider: str, now: float) -> int:
        """Count the models of a provider that recently became unavailable and still are."""
        times = [state.since for (owner, _), state in self._models.items() if owner == provider]
        return sum(
            [since is not None and now - since <= self.thresholds.model_seconds for since in times]
        )

    def _trip(
        self, admission: Admission, state: _State, scope: Scope, trigger: Trigger, *models: str
    ) -> bool:
        """Mark a model or provider as unavailable; return false if it already was."""
        provider = admission.provider
        if state.since is not None:
            return False
        state.since = self._clock()
        state.trigger = trigger
        affected = models or tuple(
            sorted([model for owner, model in self._models if owner == provider])
        )
        self._report(admission, ProviderUnavailable(provider, scope, trigger, affected))
        return True

    def _open(
        self, admission: Admission, state: _State, scope: Scope, models: tuple[str, ...]
    ) -> None:
        if state.since is None:
            return
        downtime = self._clock() - state.since
        state.since = state.trigger = None
        self._report(admission, ProviderRecovered(admission.provider, scope, downtime, models))

    def _report(
        self, admission: Admission, event: ProviderUnavailable | ProviderRecovered
    ) -> None:
        admission.changes.append(event)
        log.log(
            logging.WARNING if type(event) is ProviderUnavailable else logging.INFO, "%s", event
        )
        notify("on_event", self._on_event, event)
