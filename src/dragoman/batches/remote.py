"""The runner for batch APIs: submit rows in chunks, and fetch the answers when they are done.

The state file has the id of every batch, so a restart waits for these batches instead of
submitting the rows again. Keys of requests are derived from line numbers, and the input is read
again to decode the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from ..errors import InvalidRequestError, InvalidResponseError, ProviderError, UnavailableError
from ..events import Response, Usage, fold
from ..messages import new_ulid
from ..prices import Cost, Unpriced
from ..prices.results import EXACT
from ..validate import check_request
from .apis import BatchApi, KeyedAnswer, KeyedRequest
from .job import BatchState, StateFile
from .results import Result, find_usage, write_failure, write_reply
from .rows import BadRow, Row, Skipped
from .runner import RowWriter

_SLOWEST = 60.0  # longest pause in seconds between two polls of the provider
_GROWTH = 1.5

Rows = Callable[[], Iterator[Row | BadRow | Skipped]]


class Submitted(Struct):
    """A batch at the provider: its id and its range of lines.

    ``over`` is true once its answers are on disk.
    """

    id: str
    first: int
    last: int
    over: bool = False


@dataclass(eq=False)
class RemoteRunner(RowWriter):
    """Submit the rows of a batch, wait, and write the answers to the output."""

    rows: Rows
    api: BatchApi
    file: StateFile
    state: BatchState
    _: KW_ONLY
    poll_seconds: float

    def __post_init__(self) -> None:
        self._batches = [Submitted(**each) for each in self.state.provider.get("batches", ())]

    async def run(self, *, cancel: bool = False) -> None:
        """Submit the remaining rows, wait for all batches, and write their answers."""
        saving = asyncio.create_task(self.output.run(self.on_saved))
        working = asyncio.create_task(self._process(cancel=cancel))
        try:
            # A provider may take a day for a batch. If the answers of another one cannot be
            # written, that is reported at once.
            await asyncio.wait([saving, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            self.output.close()
            await saving
        for batch in self._batches:  # mark the batches as finished: their answers are on disk now
            batch.over = True
        self._save()

    async def _process(self, *, cancel: bool) -> None:
        if cancel:
            self.stopped = "cancelled"
            for batch in self._batches:
                if not batch.over:
                    await self.api.cancel(batch.id)
        else:
            await self._submit_all()
        await self._fetch_all()

    # --- submitting rows

    async def _submit_all(self) -> None:
        chunk: list[tuple[Row, KeyedRequest]] = []
        size = 0
        for row in self.rows():
            if not isinstance(row, Row) or self._is_covered(row.line):
                continue
            asked = self._encode(row)
            if isinstance(asked, ProviderError):
                continue
            length = len(asked.encoded.http.body) + 200
            if chunk and (len(chunk) >= self.api.max_rows or size + length > self.api.max_bytes):
                await self._submit(chunk)
                chunk = []
                size = 0
            chunk.append((row, asked))
            size += length
        if chunk:
            await self._submit(chunk)

    async def _submit(self, chunk: list[tuple[Row, KeyedRequest]]) -> None:
        batch_id = await self.api.submit(
            f"dragoman-{new_ulid().lower()}", [asked for _, asked in chunk]
        )
        self._batches.append(Submitted(batch_id, chunk[0][0].line, chunk[-1][0].line))
        self._save()

    def _save(self) -> None:
        listed = [asdict(each) for each in self._batches]
        self.state.provider = {"wire": self.api.provider.codec.wire, "batches": listed}
        self.file.save(self.state)

    def _is_covered(self, line: int) -> bool:
        return any(each.first <= line <= each.last for each in self._batches if not each.over)

    def _encode(self, row: Row) -> KeyedRequest | ProviderError:
        """Encode a row's request for the wire; return the error if the request is invalid."""
        try:
            check_request(row.request)
            return KeyedRequest(f"line-{row.line}", self.api.provider.codec.encode(row.request))
        except ProviderError as error:
            return error

    # --- fetching answers

    async def _fetch_all(self) -> None:
        """Read the input again, batch by batch, and write the result of each row."""
        waiting = sorted(
            [each for each in self._batches if not each.over], key=lambda each: each.first
        )
        chunk: dict[int, Row] = {}
        for row in self.rows():
            while waiting and row.line > waiting[0].last:
                await self._fetch(waiting.pop(0), chunk)
                chunk = {}
            if not isinstance(row, Row):
                self.pass_over(row)
            elif isinstance(error := self._encode(row), ProviderError):
                self.put_first(write_failure(row, error, None))
            elif waiting and waiting[0].first <= row.line:
                chunk[row.line] = row
                self.output.begin(row.line)
        while waiting:
            await self._fetch(waiting.pop(0), chunk)
            chunk = {}

    async def _fetch(self, batch: Submitted, rows: dict[int, Row]) -> None:
        """Wait for a batch and write its answers.

        A row without an answer counts as failed, unless the batch was cancelled.
        """
        progress = await self._wait(batch.id)
        order = list(rows)
        if progress.refusal is not None:
            error = InvalidRequestError(
                f"the provider did not take the batch {batch.id}: {progress.refusal}"
            )
            for row in rows.values():
                self.put(write_failure(row, error, None))
            return
        answers: AsyncIterator[KeyedAnswer] = self.api.download(batch.id, progress)
        async for answer in answers:
            line = _read_line(answer, order)
            found = rows.pop(line, None) if line is not None else None
            if found is not None and not (answer.lost == "cancelled" and self.stopped):
                self.put(self._decode(found, answer))
            elif found is not None:
                self.output.forget(found.line)
        for row in rows.values():
            if self.stopped or progress.state in ("cancelled", "CANCELLED"):
                # without a result, the next run submits this row again
                self.output.forget(row.line)
            else:
                self.put(write_failure(row, _lost(progress.state), None))

    async def _wait(self, batch_id: str) -> Any:
        pause = self.poll_seconds
        while not (progress := await self.api.poll(batch_id)).is_over:
            await asyncio.sleep(pause)
            pause = min(max(_SLOWEST, self.poll_seconds), pause * _GROWTH)
        return progress

    # --- decoding and pricing answers

    def _decode(self, row: Row, answer: KeyedAnswer) -> Result:
        provider = self.api.provider
        if answer.lost is not None:
            return write_failure(row, _lost(answer.lost), None)
        try:
            response = self._read(row, answer)
        except ProviderError as error:
            error.provider = error.provider or provider.name
            error.model = error.model or provider.model
            usage = find_usage(error)
            return write_failure(row, error, None if usage == Usage() else self._price(usage))
        return write_reply(row, response, self._price(response.usage))

    def _read(self, row: Row, answer: KeyedAnswer) -> Response[Any]:
        provider = self.api.provider
        request = row.request
        codec = provider.codec
        if answer.status >= 300:
            raise codec.error(answer.status, {}, answer.body)
        encoded = codec.encode(request)
        decoder = codec.decoder(request, provider.make_assembler(request, encoded))
        events = [*decoder.feed(answer.body), *decoder.end()]
        if decoder.error is not None:
            raise decoder.error
        return fold(events)

    def _price(self, usage: Usage) -> Cost | Unpriced:
        """Return the cost of a call, with the discount of the batch API."""
        bill = self.api.provider.priced_as.cost(usage)
        if isinstance(bill, Unpriced):
            return bill
        part = self.api.discount
        parts = {name: EXACT.multiply(value, part) for name, value in bill.parts.items()}
        return replace(bill, total=EXACT.multiply(bill.total, part), parts=parts)


def _read_line(answer: KeyedAnswer, order: list[int]) -> int | None:
    """Return the line number of the row that an answer belongs to.

    The row is found by the answer's key or position; ``None`` if no row has this position.
    """
    if answer.key is None:
        return order[answer.place] if answer.place < len(order) else None
    number = answer.key.removeprefix("line-")
    if not number.isdecimal():
        raise InvalidResponseError(
            f"the batch has an answer to {answer.key!r}, which was not asked"
        )
    return int(number)


def _lost(state: str) -> UnavailableError:
    return UnavailableError(
        f"the batch ended ({state.lower()}) before this row was answered",
        provider_code=state.lower(),
    )
