"""A FastAPI endpoint that streams text: `MODEL=openai:gpt-5 uvicorn examples.api:app`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from dragoman import ProviderError, connect


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with connect(os.environ["MODEL"]) as app.state.model:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/ask")
async def ask(prompt: str) -> StreamingResponse:
    texts = app.state.model.stream(prompt).text()
    try:  # wait for the first text before the status is sent, so that a 429 stays a 429
        first = await anext(texts, "")
    except ProviderError as error:
        raise HTTPException(error.status or 502, str(error)) from error

    async def body() -> AsyncIterator[str]:
        yield first
        async for text in texts:
            yield text

    return StreamingResponse(body(), media_type="text/plain")
