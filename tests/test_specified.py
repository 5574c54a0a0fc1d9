"""Every rule of the specifications has a test, and the page lists them all."""

from collections import Counter

from .specified import PAGE, find_tests, read_rules, with_rules


def test_every_rule_of_the_specifications_has_a_test() -> None:
    places = find_tests()
    for rule in read_rules():
        assert rule.tests, f"{rule.number} has no test: {rule.text}"
        for test in rule.tests:
            found = places.get(test, [])
            assert len(found) == 1, f"{rule.number}: {test} is in {found or 'no file'}"


def test_rules_are_read_from_every_document() -> None:
    counted = Counter([rule.number.partition(".")[0] for rule in read_rules()])
    assert counted.keys() == {"spec", "core", "choice", "contract", "runtime"}
    assert sum(counted.values()) > 480


def test_page_lists_every_rule_and_difference() -> None:
    assert sum([bool(rule.difference) for rule in read_rules()]) > 50
    assert PAGE.read_text() == with_rules(PAGE.read_text()), "run: python -m tests.specified"
