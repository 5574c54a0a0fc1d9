"""Every rule of the specifications has a test, the page lists them all, and mutations are tried."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from scripts.run_rules import find_file

from .specified import PAGE, ROOT, find_place, find_tests, read_rules, with_rules
from .waiting import PATIENCE


def test_every_rule_of_the_specifications_has_a_test() -> None:
    places = find_tests()
    for rule in read_rules():
        assert rule.tests, f"{rule.number} has no test: {rule.text}"
        for test in rule.tests:
            assert find_place(test, places), f"{rule.number}: {test}"


def test_rules_are_read_from_every_document() -> None:
    counted = Counter([rule.number.partition(".")[0] for rule in read_rules()])
    assert counted.keys() == {"spec", "core", "choice", "contract", "runtime"}
    assert sum(counted.values()) > 480


def test_page_lists_every_rule_and_difference() -> None:
    assert sum([bool(rule.difference) for rule in read_rules()]) > 50
    assert PAGE.read_text() == with_rules(PAGE.read_text()), "run: python -m tests.specified"


def test_every_mutation_can_be_applied() -> None:
    """Each text that a mutation replaces is in the source, where ``make test-rules`` finds it."""
    stale = []
    for rule in read_rules():
        assert rule.mutation is not None, rule.number
        assert rule.mutation.before != rule.mutation.after, rule.number
        try:
            find_file(ROOT.parent, rule.mutation)
        except LookupError as error:
            stale.append(f"{rule.number} ({rule.mutation.file}): {error}")
    assert not stale, "renew `break` in tests/tables/rules_*.jsonl: " + "\n".join(stale)


KEEPS_NO_MODULES = "PYTHONDONTWRITEBYTECODE"
SOUND = """\
def answer():
    return 42


def greet():
    return "hello"
"""
TESTS = """\
import os
import subprocess
import sys

from dragoman.it import answer, greet


def test_answer():
    assert answer() == 42


def test_greeting():
    assert greet()


def test_program():
    program = "from dragoman.it import answer; assert answer() == 42"
    subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": os.environ["PYTHONPATH"]}, check=True
    )
"""
TRY = """\
import os
import sys
from pathlib import Path
from scripts import run_rules
from scripts.run_rules import SOUND, Job, check
from tests.specified import Mutation

run_rules.PACKAGES = ("pytest",)
answer = ("tests/test_it.py::test_answer",)
greeting = ("tests/test_it.py::test_greeting",)
program = ("tests/test_it.py::test_program",)
sound = [Job(SOUND, (*answer, *greeting, *program), None)]
noticed = Job("noticed", answer, Mutation("it.py", "42", "41"))
jobs = {
    "noticed": [noticed],
    "moved": [Job("moved", answer, Mutation("elsewhere/that.py", "42", "41"))],
    "unnoticed": [noticed, Job("unnoticed", greeting, Mutation("it.py", "hello", "bye"))],
    "stale": [noticed, Job("stale", answer, Mutation("it.py", "43", "41"))],
    "unreadable": [noticed, Job("unreadable", answer, Mutation("it.py", "def answer", "deaf"))],
    "compiled": [
        Job("harmless", program, Mutation("it.py", "return 42", "return+42")),
        Job("compiled", program, Mutation("it.py", "return 42", "return 41")),
    ],
    "failing": [],
}
write_text = Path.write_text


def write_in_the_same_second(place, *arguments, **options):
    before = place.stat()
    write_text(place, *arguments, **options)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


Path.write_text = write_in_the_same_second
for case, broken in jobs.items():
    more = [Job(SOUND, ("tests/test_it.py::none",), None)] if case == "failing" else []
    os.cpu_count = lambda: 1 if case == "compiled" else 2  # the number of copies
    code = check([*sound, *more], broken, Path(sys.argv[1]), verbose=False)
    print(f"<{case} {code}>")
"""


def test_mutation_that_no_test_notices_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "src/dragoman").mkdir(parents=True)
    (tmp_path / "src/dragoman/__init__.py").touch()
    (tmp_path / "src/dragoman/it.py").write_text(SOUND)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--disable-plugin-autoload"\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        env={name: value for name, value in os.environ.items() if name != KEEPS_NO_MODULES},
        timeout=PATIENCE,
    )
    printed = done.stdout
    for case, code, text in [
        ("noticed", 0, "1 mutations, 1 noticed; 0 failures"),
        ("moved", 0, "1 mutations, 1 noticed; 0 failures"),
        ("unnoticed", 1, "unnoticed: was not noticed"),
        ("stale", 1, "stale: 0 files have the text once: '43'"),
        ("unreadable", 1, "unreadable: no test ran"),
        ("compiled", 1, "2 mutations, 1 noticed; 1 failures"),
        ("failing", 1, "without a mutation: fails without a mutation"),
    ]:
        before, mark, printed = printed.partition(f"<{case} {code}>\n")
        assert mark, (case, done)
        assert text in before, case
    assert (tmp_path / "src/dragoman/it.py").read_text() == SOUND
