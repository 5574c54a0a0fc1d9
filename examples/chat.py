"""A streaming chat; Ctrl-C stops the answer and keeps the part that has arrived: `python
examples/chat.py [MODEL]`.
"""

import asyncio
import signal
import sys

from dragoman import Message, Provider, User, connect


async def answer(model: Provider, history: list[Message]) -> None:
    """Print the answer as it arrives, and append it to the history."""
    async with model.stream(history) as stream:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(stream.cancel()))
        async for text in stream.text():
            print(text, end="", flush=True)
        loop.remove_signal_handler(signal.SIGINT)
    print(f"\n[{stream.response.finish_reason}]")
    history.append(stream.response.message)


async def main(name: str) -> None:
    history: list[Message] = []
    async with connect(name) as model:
        while line := await asyncio.to_thread(input, "> "):
            history.append(User(line))
            await answer(model, history)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["openai:gpt-6-sol"]))
