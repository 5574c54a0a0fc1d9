"""Test the strict reader of configuration mappings."""

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.errors import InvalidRequestError
from dragoman.validate.fields import Fields, accept_other_names, take_renamed

Read = Callable[[Fields], Any]

# Each case: a mapping, a function that reads its field ``a``, and the expected value.
READS: list[tuple[dict[str, Any], Read, Any]] = [
    ({}, lambda fields: fields.text("a"), None),
    ({"a": None}, lambda fields: fields.text("a"), None),
    ({"a": "x"}, lambda fields: fields.text("a"), "x"),
    ({"a": "x"}, lambda fields: fields.need_text("a"), "x"),
    ({"a": 1}, lambda fields: fields.number("a"), 1),
    ({"a": 1.5}, lambda fields: fields.number("a"), 1.5),
    ({"a": 1}, lambda fields: fields.whole("a"), 1),
    ({"a": False}, lambda fields: fields.flag("a"), False),
    ({}, lambda fields: fields.get("a", int, 7), 7),
    ({}, lambda fields: fields.choice("a", ("x", "y")), None),
    ({"a": "y"}, lambda fields: fields.choice("a", ("x", "y")), "y"),
    ({}, lambda fields: fields.items("a"), None),
    ({"a": (1, 2)}, lambda fields: fields.items("a"), (1, 2)),
    ({"a": []}, lambda fields: fields.items("a", required=True), []),
    ({}, lambda fields: fields.texts("a"), None),
    ({"a": ["x"]}, lambda fields: fields.texts("a"), ("x",)),
    ({}, lambda fields: fields.inner("a"), None),
    ({"a": {"b": 1}}, lambda fields: fields.need_inner("a").whole("b"), 1),
    ({}, lambda fields: fields.inners("a"), []),
    (
        {"a": [{"b": 1}, {"b": 2}]},
        lambda fields: [each.whole("b") for each in fields.inners("a", required=True)],
        [1, 2],
    ),
    ({"a": 1, "b": 2, "c": None}, lambda fields: (fields.take("a"), fields.rest()), (1, {"b": 2})),
    ({"a": 1}, lambda fields: ("a" in fields, "b" in fields), (True, False)),
    ({"a": [], "b": None}, lambda fields: fields.done(), None),
]


@pytest.mark.parametrize(("data", "read", "expected"), READS)
def test_a_field_of_the_expected_type_is_returned(
    data: dict[str, Any], read: Read, expected: Any
) -> None:
    assert read(Fields(data, "m")) == expected


PROBLEMS: list[tuple[Any, Read, str]] = [
    ({"a": 5}, lambda fields: fields.text("a"), "m.a must be a string, not an integer"),
    ({"a": True}, lambda fields: fields.number("a"), "m.a must be a number, not true or false"),
    ({"a": 1.5}, lambda fields: fields.whole("a"), "m.a must be an integer, not a number"),
    ({"a": "x"}, lambda fields: fields.flag("a"), "m.a must be true or false, not a string"),
    ({"a": {1}}, lambda fields: fields.get("a", (str, list)),
     "m.a must be a string or a list, not set"),
    ({"a": "z"}, lambda fields: fields.choice("a", ("x", "y")),
     "m.a must be one of x, y, not 'z'"),
    ({"a": "x"}, lambda fields: fields.items("a"), "m.a must be a list, not a string"),
    ({"a": {}}, lambda fields: fields.items("a"), "m.a must be a list, not an object"),
    ({"a": ["x", 1]}, lambda fields: fields.texts("a"), "m.a must be a list of strings"),
    ({"a": []}, lambda fields: fields.inner("a"), "m.a must be an object, not a list"),
    ({"a": [{}, None]}, lambda fields: fields.inners("a"), "m.a[1] must be an object, not null"),
    ({"a": {"b": 1}}, lambda fields: fields.need_inner("a").text("b"),
     "m.a.b must be a string, not an integer"),
    ({}, lambda fields: fields.need_text("a"), "m.a is required"),
    ({}, lambda fields: fields.items("a", required=True), "m.a is required"),
    ({}, lambda fields: fields.need_inner("a"), "m.a is required"),
    ({}, lambda fields: fields.inners("a", required=True), "m.a is required"),
    ({"a": 0}, lambda fields: fields.allow("b", "c"), "m.a is not a known field; one of b, c"),
    ({"conten": 0}, lambda fields: fields.allow("role", "content"), "did you mean content?"),
    ({"a": 1, 2: 3}, lambda fields: (fields.take("a"), fields.done()),
     "m.2 is not a known field; one of a"),
    ({}, lambda fields: fields.refuse("a", "is wrong"), "m.a is wrong"),
    ({"x" * 5000: 1}, lambda fields: fields.allow("a"), "x… is not a known field"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "read", "expected"), PROBLEMS)
def test_error_names_the_path_of_an_invalid_field(data: Any, read: Read, expected: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(Fields(data, "m"))
    assert expected in str(caught.value)


def test_error_about_the_whole_body_names_no_path() -> None:
    with pytest.raises(InvalidRequestError, match=r"^the body must be an object, not a list"):
        Fields([])
    with pytest.raises(InvalidRequestError, match=r"^a must be a string, not an integer"):
        Fields({"a": 5}).text("a")


def test_replaced_and_added_fields_are_among_the_remaining_fields() -> None:
    given = {"a": [1, 2]}
    fields = Fields(given)
    fields.put("a", fields.data["a"][1:])
    fields.put("b", 3)
    assert fields.rest() == {"a": [2], "b": 3}
    assert given == {"a": [1, 2]}


class _Collecting(Fields):
    """Collects problems instead of raising the first one."""

    def __init__(self, data: Any, path: str = "") -> None:
        super().__init__(data, path)
        self.problems: list[str] = []

    def complain(self, problem: str, name: str | None = None) -> None:
        self.problems.append(f"{name}: {problem}")


def test_a_subclass_may_collect_problems_instead_of_raising_the_first() -> None:
    fields = _Collecting({"a": 5, "b": "z", "c": "x", "d": [1], "e": 6})
    assert fields.get("a", str, "default") == "default"
    assert fields.choice("b", ("x",)) is None
    assert fields.items("c") is None
    assert fields.texts("d") is None
    fields.done()
    assert fields.problems == [
        "a: must be a string, not an integer",
        "b: must be one of x, not 'z'",
        "c: must be a list, not a string",
        "d: must be a list of strings",
        "e: is not a known field; one of a, b, c, d",
    ]


# --- settings with the names of other libraries -------------------------------------------------


class _Oven:
    """Has settings that other libraries call otherwise."""

    @accept_other_names({"temp": "degrees"}, {"power": "write degrees=, and the oven adjusts"})
    def __init__(self, degrees: int = 0, *, minutes: int = 0) -> None:
        self.degrees = degrees
        self.minutes = minutes


def make(**settings: Any) -> _Oven:
    return _Oven(**settings)


CALL = make.__code__.co_firstlineno + 1


def test_setting_with_the_name_of_another_library_is_used_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="^_Oven: write degrees= in place of temp=$") as caught:
        oven = make(temp=180, minutes=20)
    assert oven.degrees == 180
    assert oven.minutes == 20
    # the warning shows the line that passes the setting
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, CALL)]
    assert make(degrees=200).degrees == 200


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temp": 1, "degrees": 2}, "'temp'; write degrees="),
        ({"power": 9}, "'power'; write degrees=, and the oven adjusts"),
        ({"minuts": 9}, "'minuts'; did you mean minutes?"),
        ({"colour": "red"}, "'colour'; see help(_Oven)"),
    ],
)
def test_unknown_setting_is_an_error_with_advice(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(**settings)
    assert str(caught.value) == f"_Oven() has no setting {problem}"


def test_other_name_of_a_setting_is_taken_from_the_rest_with_a_warning() -> None:
    settings: dict[str, Any] = {"temp": 180, "minutes": 20}
    with pytest.warns(UserWarning, match="^bake: write degrees= in place of temp=$"):
        assert take_renamed("bake", settings, "degrees", "temp", None) == 180
    assert settings == {"minutes": 20}
    assert take_renamed("bake", settings, "degrees", "temp", 200) == 200
    with pytest.raises(TypeError, match=r"^bake\(\) has no setting 'temp'; write degrees=$"):
        take_renamed("bake", {"temp": 180}, "degrees", "temp", 200)
