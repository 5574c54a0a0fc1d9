"""A FastAPI endpoint that streams events: `MODEL=openai:gpt-6-sol uvicorn examples.api:app`.

An error before the first event gives an HTTP status with a JSON body, so that a 429 stays a 429. A
later error is sent as the last event. If the client disconnects, the call to the model is
cancelled.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response

from dragoman import connect
from dragoman.integrations.starlette import sse_response


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with connect(os.environ["MODEL"]) as app.state.model:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(prompt: str) -> Response:
    return await sse_response(app.state.model.stream(prompt))
