"""Call models through another HTTP client, here httpx: `python examples/httpx_transport.py
[BASE_URL [MODEL [PROXY]]]`.

The timeouts limit how long the transport waits for the next bytes. The settings of the httpx
client, such as a proxy, decide where requests go: a PROXY may be `socks5://127.0.0.1:1080`, which
needs `pip install "httpx2[socks]"`. The other code is what every transport needs.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2

from dragoman import NetworkError, StreamInterruptedError, TimedOutError, Timeouts, connect
from dragoman.transport import HttpStream, Secret, Transport
from dragoman.wire import HttpRequest


class HttpxStream(HttpStream):
    def __init__(self, reply: httpx2.Response) -> None:
        self.status = reply.status_code
        self.headers = reply.headers
        self._chunks = reply.aiter_bytes()

    async def receive(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except httpx2.TimeoutException:
            raise TimedOutError("nothing arrived in time", which="idle") from None
        except httpx2.TransportError:
            raise StreamInterruptedError(
                "the connection was lost in the middle of the reply"
            ) from None


class HttpxTransport(Transport):
    def __init__(self, client: httpx2.AsyncClient | None = None) -> None:
        self._client = client or httpx2.AsyncClient()

    @asynccontextmanager
    async def send(
        self,
        request: HttpRequest,
        credentials: Mapping[str, Secret],
        timeouts: Timeouts,
        *,
        stream: bool = False,
    ) -> AsyncIterator[HttpStream]:
        headers = {
            **request.headers,
            **{name: key.reveal() or "" for name, key in credentials.items()},
        }
        limits = httpx2.Timeout(
            timeouts.idle if stream else timeouts.total, connect=timeouts.connect
        )
        built = self._client.build_request(
            request.method, request.url, content=request.body, headers=headers, timeout=limits
        )
        try:
            reply = await self._client.send(built, stream=True, follow_redirects=False)
        except httpx2.ConnectTimeout:
            raise TimedOutError("no connection in time", which="connect") from None
        except httpx2.TimeoutException:
            raise TimedOutError("no reply in time", which="total") from None
        except httpx2.TransportError as error:
            raise NetworkError(f"no reply: {type(error).__name__}") from None
        try:
            yield HttpxStream(reply)
        finally:
            await reply.aclose()

    async def close(self) -> None:
        await self._client.aclose()


async def main(
    base_url: str = "http://127.0.0.1:8080/v1", model: str = "default", proxy: str | None = None
) -> None:
    transport = HttpxTransport(httpx2.AsyncClient(proxy=proxy))
    async with connect(model, base_url=base_url, transport=transport) as provider:
        async for text in provider.stream("Name a river.").text():
            print(text, end="", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
