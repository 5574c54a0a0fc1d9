"""Sessions as virtual objects of Restate: `hypercorn on_restate:app` in `examples/engines`.

`POST /agent/SESSION/run` of Restate, with the goal as a JSON string, runs a session.
"""

from datetime import timedelta

import restate
from payments import PAUSE, advance

agent = restate.VirtualObject("agent")  # Restate runs one handler of a session at a time


@agent.handler()
async def run(context: restate.ObjectContext, goal: str) -> str:
    async def step() -> dict[str, str]:
        return await advance(context.key(), goal)

    while True:
        done: dict[str, str] = await context.run_typed("step", step)
        if done.get("outcome") == "waiting":
            await context.sleep(timedelta(seconds=PAUSE))
        elif done:
            return done["text"]


app = restate.app(services=[agent])
