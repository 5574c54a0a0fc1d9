"""Sessions as tasks of Ray: `python examples/engines/on_ray.py GOAL SESSION...`."""

import asyncio
import sys

import ray
from payments import PAUSE, advance


@ray.remote(max_retries=-1, retry_exceptions=True)
def agent(name: str, goal: str) -> str:
    return asyncio.run(finish(name, goal))


async def finish(name: str, goal: str) -> str:
    while True:
        done = await advance(name, goal)
        if done.get("outcome") == "waiting":
            await asyncio.sleep(PAUSE)
        elif done:
            return done["text"]


def main(goal: str, *names: str) -> None:
    ray.init(include_dashboard=False)
    tasks = [agent.remote(name, f"{goal} {name}") for name in names]
    for name, text in zip(names, ray.get(tasks), strict=True):
        print(name, text)


if __name__ == "__main__":
    main(*sys.argv[1:])
