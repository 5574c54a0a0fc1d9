"""Sessions as workflows of Temporal: `python examples/engines/on_temporal.py` runs a worker.

`python examples/engines/on_temporal.py GOAL SESSION...` runs sessions on the workers. `TEMPORAL`
is the address of the server.
"""

import asyncio
import os
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from payments import PAUSE, advance

LIMIT = timedelta(seconds=float(os.environ.get("STEP_SECONDS", "600")))
"""The time for one step. Temporal notices by it that a worker was killed, and repeats the step."""


@activity.defn
async def step(name: str, goal: str) -> dict[str, str]:
    return await advance(name, goal)


@workflow.defn
class Agent:
    @workflow.run
    async def run(self, name: str, goal: str) -> str:
        while True:
            done: dict[str, str] = await workflow.execute_activity(
                step, args=[name, goal], start_to_close_timeout=LIMIT
            )
            if done.get("outcome") == "waiting":
                await workflow.sleep(PAUSE)
            elif done:
                return done["text"]


async def main(*arguments: str) -> None:
    client = await Client.connect(os.environ.get("TEMPORAL", "localhost:7233"))
    if not arguments:
        await Worker(client, task_queue="agents", workflows=[Agent], activities=[step]).run()
    goal, *names = arguments
    handles = [
        await client.start_workflow(
            Agent.run, args=[name, f"{goal} {name}"], id=name, task_queue="agents",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        for name in names
    ]  # fmt: skip
    for name, handle in zip(names, handles, strict=True):
        print(name, await handle.result())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
