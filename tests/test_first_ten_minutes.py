"""Run every line of the README and of "First steps" in an environment with only the built package.

The environment shares the dependencies that are installed for the tests. In ``make
test-exhaustive``, pip installs the dependencies of the wheel and its extras, as for a new user.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from .pages import ROOT, answer_everything, read_blocks
from .test_sync import Background
from .waiting import PATIENCE

README = ROOT / "README.md"
FIRST_STEPS = ROOT / "docs" / "howto" / "first-steps.md"
RUN_COMMANDS = """\
import json, shlex, sys
from click.testing import CliRunner
from dragoman.cli import main
done = {line: CliRunner().invoke(main, shlex.split(line)[1:]) for line in json.loads(sys.argv[1])}
print(json.dumps({line: [result.exit_code, result.output] for line, result in done.items()}))
"""


class Install:
    """A folder with an environment in which the package is installed, and an empty home folder."""

    def __init__(self, folder: Path, wheel: Path, *, borrow: bool) -> None:
        self.folder = folder
        uv = [sys.executable, "-m", "uv"]
        self.call([*uv, "venv", "-q", "--python", sys.executable, str(folder / "venv")])
        self.bin = folder / "venv" / "bin"
        [self.packages] = (folder / "venv" / "lib").glob("*/site-packages")
        into = ["--python", str(self.bin / "python")]
        if borrow:
            self.call([*uv, "pip", "install", "-q", *into, "--no-deps", str(wheel)])
            own = [path for path in sys.path if path.endswith("site-packages")]
            borrowed = "\n".join([*own, sysconfig.get_path("platlib")])
            (self.packages / "borrowed.pth").write_text(borrowed)
        else:
            pip = [sys.executable, "-m", "pip", *into, "install", "-q"]
            self.call([*pip, f"{wheel}[cli,local]", "pydantic"])

    def call(self, command: list[str], **variables: str) -> str:
        """Run a command in the environment of a new user, without keys; return its output."""
        dropped = re.compile(r"_API_KEY$|^DRAGOMAN|^PYTHONPATH$|^PYTHONDONTWRITEBYTECODE$")
        kept = {name: value for name, value in os.environ.items() if not dropped.search(name)}
        home = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"), str(self.folder))
        path = {"PATH": f"{self.folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            command, cwd=self.folder, env={**kept, **home, **path, **variables},
            capture_output=True, text=True,
            timeout=5 * PATIENCE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    def run_python(self, code: str, **variables: str) -> str:
        """Run a program; return its output."""
        (self.folder / "typed.py").write_text(code)
        return self.call([str(self.bin / "python"), "typed.py"], **variables)


@pytest.fixture(
    scope="module", params=["borrowed", pytest.param("installed", marks=pytest.mark.exhaustive)]
)
def install(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    built: tuple[Path, Path],
) -> Install:
    if request.param == "installed" and "DRAGOMAN_EXHAUSTIVE" not in os.environ:
        pytest.skip("fetches every dependency anew; make test-exhaustive does it")
    folder = tmp_path_factory.mktemp("fresh")
    return Install(folder, built[0], borrow=request.param == "borrowed")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Background(answer_everything) as background:
        yield background.url


def shell_lines(page: Path) -> list[str]:
    """Return the shell commands of a page: lines indented by four spaces, without comments."""
    fenced = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in fenced.splitlines() if line.startswith("    ")]
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def test_tests_use_the_installed_package(install: Install) -> None:
    where = install.run_python("import dragoman\nprint(dragoman.__file__)")
    assert where.startswith(str(install.folder))
    assert install.call(["dragoman", "--version"]).startswith("dragoman")


def test_readme_program_runs(install: Install) -> None:
    [program, *_] = [block.text for block in read_blocks(README) if block.language == "python"]
    assert '"anthropic:claude-sonnet-4-6"' in program
    printed = install.run_python(program.replace('"anthropic:claude-sonnet-4-6"', '"local"'))
    assert "stop" in printed or "length" in printed
    assert len(printed) > 20


def test_commands_of_the_first_steps_page_run(install: Install, server: str) -> None:
    """Run each code block of "First steps"; a test server answers every request."""
    blocks = [block.text for block in read_blocks(FIRST_STEPS) if block.language == "python"]
    assert len(blocks) >= 9
    address = {"OPENAI_BASE_URL": f"{server}/v1", "OPENAI_API_KEY": "k"}
    printed = "".join(
        [
            install.run_python(each.replace("http://127.0.0.1:8080", server), **address)
            for each in blocks
        ]
    )
    for wanted in ("The Rhine rises in the Alps.", "0.0000", "stop", "completed"):
        assert wanted in printed


def test_documented_install_commands_name_existing_extras(install: Install) -> None:
    """Each ``pip install`` in the docs names the package and existing extras."""
    lines = [line for line in shell_lines(FIRST_STEPS) if line.startswith("pip install")]
    lines += re.findall(r"`(pip install [^`]*)`", README.read_text())
    named = {
        extra
        for line in lines
        for found in re.findall(r"dragoman\[([\w,]+)\]", line)
        for extra in found.split(",")
    }
    [built] = distributions(name="dragoman", path=[str(install.packages)])
    assert named == {"cli", "local"}
    assert named <= set(built.metadata.get_all("Provides-Extra") or ())


COMMANDS = {
    "dragoman ask MODEL PROMPT": [
        "dragoman ask box:llama3 'What is the capital of France?' --no-log"
    ],
    "dragoman chat": ["dragoman chat --prompt 'Say hello' --max-tokens 9 --no-log"],
    "dragoman models · cost · ready": [
        "dragoman models openai --json",
        "dragoman cost --model openai:gpt-6-sol --input 1000 --output 10",
        "dragoman ready local",
    ],
    "dragoman plan FILE --to MODEL": [
        "dragoman plan conversation.json --to anthropic:claude-sonnet-4-6"
    ],
    "dragoman serve --model fast=openai:gpt-6-luna --model small=local": ["dragoman serve --help"],
    "dragoman serve · sim · check URL": [
        "dragoman serve --help",
        "dragoman sim script.yaml --check",
        "dragoman check --help",
    ],
    "dragoman agent GOAL": ["dragoman agent 'What does notes.txt contain?' --model box:llama3"],
    "dragoman log · replay": [
        "dragoman ask box:llama3 Hello",
        "dragoman log list",
        "dragoman replay last",
    ],
}


def test_every_readme_command_is_tested() -> None:
    lines = [
        part
        for line in shell_lines(README)
        for part in re.split(r"\s{2,}", line)
        if part.startswith("dragoman")
    ]
    assert set(lines) == set(COMMANDS)


@pytest.fixture(scope="module")
def printed(install: Install, server: str) -> dict[str, tuple[int, str]]:
    """Run the commands in one process; return the exit code and the output of each."""
    box = f"adapters: {{box: {{type: openai-compatible, base_url: {server}/v1}}}}\n"
    (install.folder / "models.yaml").write_text(box)
    (install.folder / "notes.txt").write_text("A river.\n")
    (install.folder / "conversation.json").write_text('[{"role": "user", "content": "Hello?"}]')
    (install.folder / "script.yaml").write_text("rules:\n  - reply: {text: Hello}\n")
    lines = [line for lines in COMMANDS.values() for line in lines]
    python = [str(install.bin / "python"), "-c", RUN_COMMANDS, json.dumps(lines)]
    found: dict[str, tuple[int, str]] = json.loads(
        install.call(python, DRAGOMAN_CONFIG="models.yaml")
    )
    return found


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_command_runs(printed: dict[str, tuple[int, str]], line: str) -> None:
    for command in COMMANDS[line]:
        code, output = printed[command]
        assert code == 0, output
        assert output.strip(), command
