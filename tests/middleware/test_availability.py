"""Test the circuit breaker: each of its rules, and then any sequence of outcomes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dragoman as d
from dragoman.calls import Trigger
from dragoman.middleware import Admission, Availability, ProviderRecovered, ProviderUnavailable
from tests.listed import Clock


class Machine:
    """Hold the availability state under test, its clock and its events."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        self.events: list[Any] = []
        self.availability = Availability(self.events.append, clock=self.clock)

    def admit(self, model: str = "m", *, is_probe: bool = False) -> Admission:
        admission = self.availability.admit("p", model)
        assert admission is not None
        assert admission.is_probe == is_probe
        return admission

    def fail(self, model: str = "m", error: d.ProviderError | None = None) -> None:
        self.admit(model).fail(error or d.UnavailableError("down"))

    def fails(
        self,
        times: int,
        every: float = 1.0,
        model: str = "m",
        error: d.ProviderError | None = None,
    ) -> None:
        for at in range(times):
            if at:
                self.clock.now += every
            self.fail(model, error)


@pytest.mark.parametrize(
    ("every", "times", "unavailable"),
    [(0.0, 5, True), (30.0, 5, True), (30.1, 12, False), (1.0, 4, False)],
)
def test_five_failures_in_a_row_within_two_minutes_open_the_circuit(
    every: float, times: int, unavailable: bool
) -> None:
    machine = Machine()
    machine.fails(times, every)
    assert machine.availability.is_available("p", "m") is not unavailable
    assert machine.availability.is_available("p", "other")
    told = ProviderUnavailable("p", "model_specific", "5_consecutive_failures", ("m",))
    assert machine.events == ([told] if unavailable else [])


def test_success_resets_the_failure_count_of_a_circuit() -> None:
    machine = Machine()
    machine.fails(4)
    machine.admit().succeed()
    machine.fails(4)
    assert machine.availability.is_available("p", "m")
    machine.fails(1)
    assert not machine.availability.is_available("p", "m")


@pytest.mark.parametrize(("gap", "wide"), [(60.0, True), (60.1, False)])
def test_three_failed_models_within_two_minutes_make_the_provider_unavailable(
    gap: float, wide: bool
) -> None:
    machine = Machine()
    for number, model in enumerate("abc"):
        machine.clock.now = number * gap
        machine.fails(5, 0.0, model)
    assert machine.availability.is_available("p", "never asked") is not wide
    if wide:
        assert machine.events[-1] == ProviderUnavailable(
            "p", "provider_wide", "multi_model_failures", ("a", "b", "c")
        )
    assert len(machine.events) == 3 + wide


def test_recovered_provider_stays_available_after_one_failure() -> None:
    machine = Machine()
    held = machine.admit("d")
    for model in "abc":
        machine.fails(5, 0.0, model)
    held.succeed()
    assert machine.availability.is_available("p", "d")
    machine.fail("d")
    assert machine.availability.is_available("p", "d")


def test_authentication_error_makes_the_provider_unavailable_at_once() -> None:
    machine = Machine()
    machine.admit("other").succeed()
    machine.fail("m", d.AuthenticationError("no"))
    assert machine.events == [
        ProviderUnavailable("p", "provider_wide", "auth_error", ("m", "other"))
    ]
    assert machine.availability.admit("p", "other") is None
    assert machine.availability.admit("q", "m") is not None


def unresolved() -> d.NetworkError:
    error = d.NetworkError("x")
    error.is_unresolved = True
    return error


@pytest.mark.parametrize(
    ("error", "trigger"),
    [
        (unresolved(), "dns_error"),
        (d.NetworkError("x"), "network_error"),
        (d.TimedOutError("x"), "network_error"),
        (d.StreamInterruptedError("x"), "network_error"),
    ],
)
@pytest.mark.parametrize(("gap", "wide"), [(0.0, True), (30.0, True), (30.1, False)])
def test_two_network_errors_within_thirty_seconds_make_the_provider_unavailable(
    gap: float, wide: bool, error: d.ProviderError, trigger: Trigger
) -> None:
    machine = Machine()
    machine.fail("a", error)
    machine.clock.now += gap
    machine.fail("b", error)
    told = ProviderUnavailable("p", "provider_wide", trigger, ("a", "b"))
    assert machine.events == ([told] if wide else [])


@pytest.mark.parametrize(
    "kind",
    [
        d.CallCancelledError, d.ContextOverflowError, d.InvalidModelError, d.InvalidRequestError,
        d.InvalidResponseError,
        d.MalformedToolCallError, d.QuotaExceededError, d.StructuredOutputError, d.UnsupportedContentError,
        d.UnsupportedFeatureError,
    ],
)  # fmt: skip
def test_errors_that_do_not_indicate_an_outage_never_open_the_circuit(
    kind: type[d.ProviderError],
) -> None:
    machine = Machine()
    machine.fails(4, 0.0)
    for _ in range(20):
        machine.fail("m", kind("x"))
    assert machine.events == []
    machine.fails(1)  # the fifth failure counts: unrelated errors did not reset the count
    assert len(machine.events) == 1


@pytest.mark.parametrize(
    "kind", [d.RateLimitError, d.OverloadedError, d.ModelNotLoadedError, d.UnavailableError]
)
def test_transient_errors_count_towards_opening_the_circuit(kind: type[d.ProviderError]) -> None:
    machine = Machine()
    machine.fails(5, 0.0, error=kind("x"))
    assert len(machine.events) == 1


def test_one_probe_call_is_allowed_after_five_minutes() -> None:
    machine = Machine()
    machine.fails(5, 0.0)
    for wait in (0.0, 299.9):
        machine.clock.now = wait
        assert machine.availability.admit("p", "m") is None
    assert machine.availability.reopens_in("p", "m") == pytest.approx(0.1)
    machine.clock.now = 300.0
    probe = machine.admit(is_probe=True)
    assert machine.availability.admit("p", "m") is None
    probe.succeed()
    assert machine.events[-1] == ProviderRecovered("p", "model_specific", 300.0, ("m",))
    machine.admit()


def test_cancelled_probe_allows_another_probe() -> None:
    machine = Machine()
    machine.fails(5, 0.0)
    machine.clock.now = 300.0
    probe = machine.admit(is_probe=True)
    probe.release()
    probe.succeed()  # the probe was released, so its result has no effect
    probe.fail(d.AuthenticationError("late as well"))
    assert not machine.availability.is_available("p", "m")
    machine.admit(is_probe=True)


def test_provider_probe_is_shared_by_all_its_models() -> None:
    machine = Machine()
    machine.fail("a", d.AuthenticationError("no"))
    machine.clock.now = 300.0
    probe = machine.admit("b", is_probe=True)
    assert machine.availability.admit("p", "a") is None
    probe.succeed()
    assert machine.events[-1] == ProviderRecovered("p", "provider_wide", 300.0, ("a", "b"))
    machine.admit("a")


def test_success_marks_only_its_own_model_and_provider_as_available() -> None:
    machine = Machine()
    for model in "abc":
        machine.fails(5, 0.0, model)
    machine.clock.now = 300.0
    machine.admit("a", is_probe=True).succeed()
    assert machine.events[-2:] == [
        ProviderRecovered("p", "model_specific", 300.0, ("a",)),
        ProviderRecovered("p", "provider_wide", 300.0, ("a",)),
    ]
    assert machine.availability.is_available("p", "a")
    assert not machine.availability.is_available("p", "b")


# --- the circuit breaker under random sequences of outcomes ------------------------------------

TARGETS = [("p", "a"), ("p", "b"), ("p", "c"), ("p", "d"), ("q", "a")]
ENDINGS: dict[str, Any] = {
    "success": None,
    "down": d.UnavailableError("x"),
    "network": d.NetworkError("x"),
    "auth": d.AuthenticationError("x"),
    "cancelled": d.CallCancelledError("x"),
}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([0.0, 29.0, 31.0, 119.0, 299.0, 300.0, 300.0])),
        st.tuples(st.just("ask"), st.sampled_from(TARGETS)),
        st.tuples(st.just("burst"), st.sampled_from(TARGETS)),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(list(ENDINGS))),
    ),
    min_size=40,  # a short run rarely reaches a probe
    max_size=80,
)


class Oracle:
    """Implement the rules of the circuit breaker a second time in a simple way, with complete
    histories instead of counters.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}
        self.network: dict[str, list[float]] = {}
        self.down: dict[Any, float] = {}  # time at which a model or a provider became unavailable
        # The times of attempts and failures, each with its call.
        self.tried: dict[Any, list[tuple[float, object]]] = {}

    def closed(self, target: tuple[str, str]) -> list[Any]:
        return [scope for scope in (target, target[0]) if scope in self.down]

    def quiet(self, target: tuple[str, str], now: float) -> bool:
        return all(now - at >= 300 for scope in self.closed(target) for at, _ in self.tried[scope])

    def note(self, target: tuple[str, str], now: float, whose: object = None) -> None:
        for scope in (target, target[0]):
            self.tried.setdefault(scope, []).append((now, whose))

    def forget(self, scope: Any, whose: object) -> None:
        self.tried[scope] = [each for each in self.tried[scope] if each[1] is not whose]

    def end(self, target: tuple[str, str], ending: str, now: float) -> None:
        provider = target[0]
        if ending == "success":
            self.rows[target] = []
            self.network[provider] = []
            self.down.pop(target, None)
            self.down.pop(provider, None)
        elif ending == "auth":
            self.note(target, now)
            self.down.setdefault(provider, now)
        elif ending in ("down", "network"):
            self.note(target, now)
            self._failed(target, ending, now)

    def _failed(self, target: tuple[str, str], ending: str, now: float) -> None:
        provider = target[0]
        row = self.rows.setdefault(target, [])
        row.append(now)
        if len([at for at in row if now - at <= 120]) >= 5 and target not in self.down:
            self.down[target] = now
            fallen = [
                at for scope, at in self.down.items() if scope in TARGETS and scope[0] == provider
            ]
            if len([at for at in fallen if now - at <= 120]) >= 3:
                self.down.setdefault(provider, now)
        if ending == "network":
            errors = self.network.setdefault(provider, [])
            errors.append(now)
            if len([at for at in errors if now - at <= 30]) >= 2:
                self.down.setdefault(provider, now)


@settings(max_examples=2 * settings().max_examples)
@given(STEPS)
def test_unavailable_model_receives_at_most_one_probe_at_a_time(
    steps: list[tuple[Any, ...]],
) -> None:
    machine = Machine()
    oracle = Oracle()
    under_way: list[tuple[Admission, tuple[str, str]]] = []
    probing: dict[Any, Admission] = {}

    def end(at: int, ending: str) -> None:
        admission, target = under_way.pop(at)
        was_probe = [scope for scope, probe in probing.items() if probe is admission]
        for scope in was_probe:
            del probing[scope]
        error = ENDINGS[ending]
        oracle.end(target, ending, machine.clock.now)
        for scope in was_probe if ending == "cancelled" else []:
            oracle.forget(scope, admission)
        if error is None:
            admission.succeed()
        else:
            admission.fail(error)

    def ask(target: tuple[str, str]) -> None:
        closed = oracle.closed(target)
        admission = machine.availability.admit(*target)
        may = oracle.quiet(target, machine.clock.now) and not any(
            scope in probing for scope in closed
        )
        assert (admission is not None) == (not closed or may)
        if admission is None:
            return
        assert admission.is_probe == bool(closed)
        for scope in closed:
            assert scope not in probing
            probing[scope] = admission
        oracle.note(target, machine.clock.now, admission)
        under_way.append((admission, target))

    for step in steps:
        if step[0] == "wait":
            machine.clock.now += step[1]
        elif step[0] == "ask":
            ask(step[1])
        elif step[0] == "burst":
            for _ in range(5):
                count = len(under_way)
                ask(step[1])
                if len(under_way) > count:
                    end(count, "down")
        elif under_way:
            end(step[1] % len(under_way), step[2])
        for target in TARGETS:
            assert machine.availability.is_available(*target) == (not oracle.closed(target))
    downs = [event for event in machine.events if isinstance(event, ProviderUnavailable)]
    ups = [event for event in machine.events if isinstance(event, ProviderRecovered)]
    assert len(downs) - len(ups) == len(oracle.down)
