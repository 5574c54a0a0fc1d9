"""Known capabilities of models, and which source overrides another."""

import datetime
import json
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman import capabilities as module
from dragoman.capabilities import (
    NOTICE_DAYS,
    UNKNOWN,
    Capabilities,
    Fact,
    Refusal,
    Source,
    describe_end,
    join_candidates,
)

NAMES = [
    "supports_images", "supports_documents", "supports_thinking", "supports_tools",
    "supports_system_prompt", "supports_structured_output", "supports_streaming",
    "supports_streaming_tool_calls", "supports_parallel_tool_calls", "supports_prompt_caching",
    "max_context_tokens", "max_output_tokens", "accepted_image_media_types",
]  # fmt: skip
RETRIEVAL = [
    "supports_embeddings", "supports_reranking", "supports_dimensions", "max_dimensions",
    "max_batch_size",
]  # fmt: skip
LIFE = ["end_date", "successor"]
FLAGS = NAMES[:10]
WEAKEST_FIRST: list[Source] = ["unknown", "catalogue", "observed", "probed", "declared"]

values = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.booleans() for name in (*FLAGS, *RETRIEVAL[:3])},
        **{name: st.integers(1, 10**7) for name in RETRIEVAL[3:]},
        "max_context_tokens": st.integers(1, 10**7),
        "max_output_tokens": st.integers(1, 10**7),
        "accepted_image_media_types": st.lists(st.sampled_from(["image/png", "image/jpeg"])),
        "end_date": st.dates().map(str),
        "successor": st.sampled_from(["gpt-6-sol", "org/model:tag"]),
    },
)
sources = st.sampled_from(WEAKEST_FIRST)
capabilities = st.builds(Capabilities.of, values, sources)


def test_capability_names_match_the_contract() -> None:
    assert list(Capabilities.__struct_fields__) == NAMES + RETRIEVAL + LIFE
    assert set(WEAKEST_FIRST) == set(get_args(Source))


def test_refusal_reasons_match_the_contract() -> None:
    assert get_args(Refusal) == (
        "not_configured", "provider_unavailable", "no_vision_support", "exceeds_context_window",
        "no_tool_support", "no_system_prompt_support", "no_structured_output_support",
    )  # fmt: skip


def test_capabilities_are_unknown_by_default() -> None:
    assert {getattr(Capabilities(), name) for name in NAMES} == {UNKNOWN}
    assert [Capabilities().known(name) for name in NAMES] == [None] * len(NAMES)
    assert msgspec.json.encode(Capabilities()) == b"{}"
    assert UNKNOWN.value is None
    assert UNKNOWN.source == "unknown"


@given(values, sources)
def test_capabilities_are_kept_with_their_source_and_date(
    given: dict[str, Any], source: Source
) -> None:
    made = Capabilities.of(given, source, at="2026-01-01", by="a test")
    for name in NAMES:
        if name in given:
            kept = tuple(given[name]) if isinstance(given[name], list) else given[name]
            assert getattr(made, name) == Fact(kept, source, "2026-01-01", "a test")
            assert made.known(name) == kept
        else:
            assert getattr(made, name) is UNKNOWN


@given(capabilities)
def test_capabilities_round_trip_through_json(made: Capabilities) -> None:
    assert msgspec.json.decode(msgspec.json.encode(made), type=Capabilities) == made


def test_default_source_of_a_capability_is_the_user() -> None:
    assert Capabilities.of({"supports_tools": False}).supports_tools == Fact(False, "declared")


def test_context_window_of_one_token_is_accepted() -> None:
    assert Capabilities.of({"max_context_tokens": 1}).known("max_context_tokens") == 1


def test_capability_value_none_means_unknown() -> None:
    assert Capabilities.of(dict.fromkeys(NAMES)) == Capabilities()


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_media_types_may_be_given_as_any_collection(kind: Any) -> None:
    made = Capabilities.of({"accepted_image_media_types": kind(["image/png"])})
    assert made.known("accepted_image_media_types") == ("image/png",)


WRONG = [
    ({"supports_telepathy": True},
     "capabilities: unknown name 'supports_telepathy'; one of supports_images, "),
    ({"supports_images": 1}, "capabilities: supports_images must be true or false, not 1"),
    ({"supports_tools": "yes"}, "capabilities: supports_tools must be true or false, not 'yes'"),
    ({"max_context_tokens": 0},
     "capabilities: max_context_tokens must be a positive whole number, not 0"),
    ({"max_context_tokens": True},
     "capabilities: max_context_tokens must be a positive whole number, not True"),
    ({"max_output_tokens": 1.5},
     "capabilities: max_output_tokens must be a positive whole number, not 1.5"),
    ({"end_date": "soon"}, "capabilities: end_date must be a day such as 2026-12-11, not 'soon'"),
    ({"end_date": 20261211}, "capabilities: end_date must be a day such as 2026-12-11, not 20261211"),
    ({"successor": ""}, "capabilities: successor must be the name of a model, not ''"),
    ({"successor": "a\nb"}, "capabilities: successor must be the name of a model, not 'a\\nb'"),
    ({"max_output_tokens": "1"},
     "capabilities: max_output_tokens must be a positive whole number, not '1'"),
    ({"accepted_image_media_types": "image/png"},
     "must be a list of media types, not 'image/png'"),
    ({"accepted_image_media_types": [1]}, "must be a list of media types, not [1]"),
    ({"accepted_image_media_types": 5},
     "capabilities: accepted_image_media_types must be a list of media types, not 5"),
    ({"accepted_image_media_types": iter(())},
     "capabilities: accepted_image_media_types must be a list of media types"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_error_names_an_invalid_capability_or_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Capabilities.of(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("mine", WEAKEST_FIRST)
@pytest.mark.parametrize("theirs", WEAKEST_FIRST)
def test_merging_prefers_the_stronger_source_then_the_later(mine: Source, theirs: Source) -> None:
    merged = Capabilities.of({"supports_tools": True}, mine).merged(
        Capabilities.of({"supports_tools": False}, theirs)
    )
    wins = WEAKEST_FIRST.index(theirs) >= WEAKEST_FIRST.index(mine)
    assert merged.supports_tools == (Fact(False, theirs) if wins else Fact(True, mine))


@given(capabilities, capabilities)
def test_merging_keeps_every_known_capability(one: Capabilities, other: Capabilities) -> None:
    merged = one.merged(other)
    for name in NAMES:
        facts = [getattr(one, name), getattr(other, name)]
        known = [fact for fact in facts if fact.value is not None]
        assert getattr(merged, name) in (known or [UNKNOWN])


@given(capabilities)
def test_merging_with_unknown_capabilities_changes_nothing(made: Capabilities) -> None:
    assert made.merged(Capabilities()) == Capabilities().merged(made) == made.merged(made) == made


def test_capabilities_are_read_from_a_file_with_their_source(tmp_path: Path) -> None:
    fact = {"value": True, "source": "probed", "at": "2026-11-15", "by": "check"}
    (tmp_path / "facts.json").write_text(
        json.dumps({"model": "m", "capabilities": {"supports_tools": fact}})
    )
    read = Capabilities.read(tmp_path / "facts.json")
    assert read == Capabilities(supports_tools=Fact(True, "probed", "2026-11-15", "check"))


WRONG_FILES = [
    ("", "is not JSON"),
    ("[]", "no mapping named capabilities"),
    ('{"capabilities": {"supports_x": {"value": true}}}', "unknown name 'supports_x'"),
    ('{"capabilities": {"supports_tools": {"value": "yes"}}}', "supports_tools"),
    ('{"capabilities": {"supports_tools": {"value": 3}}}', "must be true or false"),
    (
        '{"capabilities": {"supports_tools": {"value": true, "source": "hearsay"}}}',
        "supports_tools",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG_FILES)
def test_invalid_capability_file_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "facts.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        Capabilities.read(tmp_path / "facts.json")


def test_missing_capability_file_is_reported() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Capabilities.read("/nowhere/facts.json")


ENDS = Capabilities.of({"end_date": "2026-12-11", "successor": "new"})


@pytest.mark.parametrize(
    ("today", "notice"),
    [
        ("2026-10-11", None),
        ("2026-10-12", "The vendor switches old off on 2026-12-11, in 60 days; it recommends new"),
        ("2026-12-10", "The vendor switches old off on 2026-12-11, in 1 day; it recommends new"),
        ("2026-12-11", "The vendor switched old off on 2026-12-11; it recommends new"),
        ("2027-06-01", "The vendor switched old off on 2026-12-11; it recommends new"),
    ],
)
def test_end_of_a_model_is_reported_sixty_days_ahead_and_afterwards(
    today: str, notice: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_read_today", lambda: datetime.date.fromisoformat(today))
    assert NOTICE_DAYS == 60
    assert describe_end("old", ENDS) == notice


def test_model_without_an_end_has_no_notice() -> None:
    assert describe_end("old", Capabilities()) is None
    known = Capabilities.of({"end_date": "2020-01-01"})
    assert describe_end("old", known) == "The vendor switched old off on 2020-01-01"


def test_group_has_a_feature_of_one_candidate_and_the_smallest_limits() -> None:
    wide = Capabilities.of({"supports_images": True, "max_context_tokens": 200_000})
    narrow = Capabilities.of({"supports_images": False, "max_context_tokens": 8_000})
    joined = join_candidates([wide, narrow])
    assert joined.known("supports_images") is True
    assert joined.known("max_context_tokens") == 8_000
    assert joined.known("supports_tools") is None
    plain = join_candidates([narrow, narrow])
    assert plain.known("supports_images") is False
    assert join_candidates([wide, Capabilities()]).known("max_context_tokens") is None


def test_group_accepts_the_media_types_of_the_candidate_with_most() -> None:
    types = [("image/png",), ("image/png", "image/webp")]
    known = [Capabilities.of({"accepted_image_media_types": each}) for each in types]
    assert join_candidates(known).known("accepted_image_media_types") == types[1]


@pytest.mark.parametrize("name", ["", 3, "a\nb"])
def test_successor_must_be_the_name_of_a_model(name: object) -> None:
    with pytest.raises(ValueError, match="successor must be the name of a model"):
        Capabilities.of({"successor": name})
