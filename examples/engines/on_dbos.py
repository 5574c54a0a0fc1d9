"""Sessions as workflows of DBOS: `python examples/engines/on_dbos.py GOAL SESSION...`.

`DBOS_DATABASE` is the URL of the database in which DBOS keeps its workflows.
"""

import asyncio
import os
import sys

from dbos import DBOS, DBOSConfig, SetWorkflowID
from payments import PAUSE, advance


@DBOS.step(retries_allowed=True, max_attempts=1000, backoff_rate=1)
async def step(name: str, goal: str) -> dict[str, str]:
    return await advance(name, goal)


@DBOS.workflow()
async def agent(name: str, goal: str) -> str:
    while True:
        done: dict[str, str] = await step(name, goal)
        if done.get("outcome") == "waiting":
            await DBOS.sleep_async(PAUSE)
        elif done:
            return done["text"]


async def main(goal: str, *names: str) -> None:
    config: DBOSConfig = {
        "name": "payments",
        "application_version": "1",  # a repaired program continues the workflows of the old one
        "system_database_url": os.environ["DBOS_DATABASE"],
        "run_admin_server": False,
    }
    DBOS(config=config)
    DBOS.launch()  # this continues the workflows of a process that was killed
    handles = []
    for name in names:
        with SetWorkflowID(name):
            handles.append(await DBOS.start_workflow_async(agent, name, f"{goal} {name}"))
    for name, handle in zip(names, handles, strict=True):
        print(name, await handle.get_result())
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
