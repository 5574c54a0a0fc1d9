"""Execute a notebook or show streams in an environment with nbclient, and print the outputs as
JSON.

``python notebook.py execute FILE`` runs every cell in a kernel; ``python notebook.py show`` shows
one reply that succeeds and one that fails, in IPython without a kernel.
"""

import asyncio
import json
import sys


def execute(path: str) -> object:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, 4)
    NotebookClient(book, kernel_name="python3").execute()
    return [cell.outputs for cell in book.cells if cell.cell_type == "code"]


async def show_replies() -> object:
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    from dragoman import ProviderError
    from dragoman.integrations.notebook import show
    from dragoman.sim import Answer, Fault, ScriptedProvider, ScriptRule

    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    answer = Answer("One <b>two</b> three.", thinking="Hm.")
    model = ScriptedProvider(
        answer, ScriptRule(answer, fault=Fault(error="UnavailableError", after=2))
    )
    response = await show(model.stream("Hi"), seconds=0)
    shown = [output["data"]["text/html"] for output in shell.display_pub.outputs]
    updates = [output["update"] for output in shell.display_pub.outputs]
    shell.display_pub.outputs.clear()
    try:
        await show(model.stream("Hi"), seconds=1000)
        failure = None
    except ProviderError as error:
        failure = type(error).__name__
    kept = [output["data"]["text/html"] for output in shell.display_pub.outputs]
    return {
        "text": response.text,
        "shown": shown,
        "updates": updates,
        "failure": failure,
        "kept": kept,
    }


if __name__ == "__main__":
    print(
        json.dumps(
            execute(sys.argv[2]) if sys.argv[1] == "execute" else asyncio.run(show_replies())
        )
    )
