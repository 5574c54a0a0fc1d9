"""Run the recipe of a coding agent from the text of its section, against a gateway."""

from collections.abc import Mapping
from pathlib import Path

from dragoman.gateway.app import create_app
from dragoman.gateway.clients import ADDRESS, read_clients
from dragoman.provider import Provider
from tests.cli.test_clients import read_sections
from tests.gateway.serving import serving
from tests.pages import read_blocks
from tests.programs import require

from .running import find_program, make_repository, run_program

NODE = ("node", "node_modules", ".bin")
# Where each program is installed, and the options with which it answers one prompt by itself.
PROGRAMS = {
    "aider": (("aider", "bin", "aider"), "--yes-always --message"),
    "claude-code": ((*NODE, "claude"), "--allowedTools Bash -p"),
    "claude-code-bedrock": ((*NODE, "claude"), "--allowedTools Bash -p"),
    "codex": ((*NODE, "codex"), "exec --dangerously-bypass-approvals-and-sandbox"),
    "continue": ((*NODE, "cn"), "--auto -p"),
    "copilot": ((*NODE, "copilot"), "--allow-all-tools -p"),
    "gemini-cli": ((*NODE, "gemini"), "--yolo --skip-trust -p"),
    "opencode": ((*NODE, "opencode"), "run"),
    "qwen-code": ((*NODE, "qwen"), "--approval-mode yolo -p"),
}


async def run_recipe(
    name: str, models: Mapping[str, Provider], folder: Path, prompt: str, *, resume: str = ""
) -> tuple[int, str]:
    """Write the files of a recipe and run its commands in the repository ``folder/toy``, with the
    port of a gateway in place of the page's; return the exit code and the output.

    The last command gets the options with which the program answers one prompt without a person.
    It is run a second time if ``resume`` is the option that continues the conversation.
    """
    place, options = PROGRAMS[name]
    program = Path(find_program(*place))
    page = folder / "section.md"
    page.write_text(read_sections()[name.removesuffix("-cli")])
    files = [step.file for step in read_clients()[name].steps]
    home = folder / "home"
    repository = await make_repository(folder, {"a.txt": "a\n"})
    script = ""
    async with serving(create_app(models)) as url:
        for file, block in zip(files, read_blocks(page), strict=True):
            text = block.text.replace(ADDRESS, url)
            if file:
                target = home / file[2:] if file.startswith("~/") else repository / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
            else:
                command = text.rstrip()
                script = f"{command} {options} '{prompt}'\n"
                if resume:
                    script += f"{command} {resume} {options} '{prompt}'\n"
        bash = require("bash")
        return await run_program(
            [str(bash), "-c", f'export PATH="{program.parent}:$PATH"\n{script}'], repository, {}
        )
