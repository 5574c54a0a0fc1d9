"""A number of any size in any numeric field of a reply, a request, a record, a file or an option.

Each number is put in the place of each number that a conformance case, a file or a log has, one at
a time. What is accepted can be written, and read back; everything else is an error of Dragoman.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import dragoman as d
from dragoman import log as logs
from dragoman.cli import main
from dragoman.conformance.cases import CodecCase as Case
from dragoman.conformance.cases import decode, write_frames
from dragoman.conformance.retrieval import RetrievalCase, find_retrieval_cases
from dragoman.prices import PriceTable
from dragoman.replay import ReplayMismatch
from dragoman.sim import ConfigError, read_script
from dragoman.transport import FixtureTransport
from dragoman.wire import CODECS

from ..sim.test_yaml import WHOLE
from ..test_numbers import NUMBERS, check_records, check_usage
from ..wire.cases import find_cases
from . import fuzzers
from .test_damaged_logs import read_everything, replay, write_line, write_log

EXHAUSTIVE = os.environ.get("DRAGOMAN_EXHAUSTIVE") == "1"
MARK = "@number"
FEW = ("2^63", "10^400", "-1", "1e400", "0.5", "NaN")
TRIED = [NUMBERS[name] for name in (NUMBERS if EXHAUSTIVE else FEW)]
UPSTREAMS = [None, *CODECS]
PARTS = ("reply.json", "reply.sse", "reply.ndjson", "reply.frames")
PRICES = """
version: '1'
rows:
- provider: acme
  match: {starts_with: [m]}
  input: 1.25
  output: 10
  cache_read: 0.125
  tiers: [{above: 1000, input: 2, output: 3}]
  search: 2
"""


def find_numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each number in a JSON value."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from find_numbers(each, (*path, name))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from find_numbers(each, (*path, at))
    elif type(value) in (int, float):
        yield path


def mark(value: Any, path: tuple[Any, ...]) -> str:
    """Return a JSON value as text in which a mark takes the place of one number."""
    root = json.loads(json.dumps(value))
    holder = root
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = MARK
    return json.dumps(root)


def put(text: str, number: str) -> str:
    return text.replace(f'"{MARK}"', number)


def shape(path: tuple[Any, ...]) -> str:
    """Return a path without the positions in lists, so that each field is tried once."""
    return ".".join(["*" if type(step) is int else step for step in path])


# --- replies -----------------------------------------------------------------------------------


def mark_replies(wire: str) -> dict[tuple[str, ...], tuple[Case, str, str]]:
    """Return a case, the part and the marked text for each numeric field of a wire's replies."""
    found: dict[tuple[str, ...], tuple[Case, str, str]] = {}
    for case in find_cases(wire):
        part = next((part for part in PARTS if case.part(part) is not None), None)
        if part is None:
            continue
        text = (case.part(part) or b"").decode("utf-8", "surrogateescape")
        pieces = [text] if part == "reply.json" else text.split("\n")
        for at, piece in enumerate(pieces):
            head, opening, _ = piece.partition("{")
            try:
                value = json.loads(piece[len(head) :]) if opening else None
            except ValueError:  # a case with a damaged reply
                continue
            kind = str(value.get("type")) if isinstance(value, dict) else ""
            for path in find_numbers(value):
                key = (part, str(case.options.status < 300), kind, shape(path))
                marked = [*pieces[:at], head + mark(value, path), *pieces[at + 1 :]]
                found.setdefault(key, (case, part, "\n".join(marked)))
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", CODECS)
async def test_number_in_a_reply_gives_a_response_that_can_be_recorded_or_an_error(
    wire: str,
) -> None:
    fields = mark_replies(wire)
    assert len(fields) > 6
    for case, part, text in fields.values():
        for number in TRIED:
            data = put(text, number).encode("utf-8", "surrogateescape")
            if part == "reply.frames":
                try:
                    data = write_frames(data)
                except msgspec.DecodeError:  # not JSON, so the test cannot write the frame
                    continue
            stream = part != "reply.json"
            await fuzzers.read_reply(case, case.options.status, {}, [data], stream=stream)
            if case.options.status < 300:
                request = msgspec.structs.replace(case.request, stream=stream)
                response = decode(case.codec(), request, [data]).response
                if response is not None:
                    check_usage(response.usage)
                    check_records(response)


HEADERS = ("retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-remaining-tokens")


@pytest.mark.parametrize("wire", CODECS)
async def test_number_in_a_header_of_an_error_gives_a_wait_that_a_program_can_sleep(
    wire: str,
) -> None:
    case = next(case for case in find_cases(wire) if case.options.status == 429)
    for name, number in itertools.product(HEADERS, NUMBERS.values()):
        error = case.codec().error(429, {name: number}, case.reply or b"")
        wait = error.retry_after
        assert wait is None or 0 <= wait <= 31 * 86400, (name, number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", find_retrieval_cases(), ids=str)
async def test_number_in_vectors_or_a_ranking_is_read_or_an_error(case: RetrievalCase) -> None:
    reply = case.data.get("reply")
    fields = {shape(path): mark(reply, path) for path in find_numbers(reply)}
    for text, number in itertools.product(fields.values(), TRIED):
        body = put(text, number).encode()
        settings: dict[str, Any] = {
            "wire": case.wire, "base_url": "http://127.0.0.1:9", "api_key": "k",
            "transport": FixtureTransport((200, {}, [body])),
        }  # fmt: skip
        try:
            if case.operation == "embed":
                vectors = await d.connect_embedder("m", **settings).embed(["red", "green"])
                usage = vectors.usage
            else:
                ranking = await d.connect_reranker("m", **settings).rerank("q", ["red", "green"])
                usage = ranking.usage
                msgspec.json.decode(msgspec.json.encode(ranking.results))
        except d.ProviderError:
            continue
        check_usage(usage)


# --- requests ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("wire", fuzzers.PATHS)
async def test_number_in_a_request_is_answered_or_rejected_whatever_the_model_speaks(
    wire: str,
) -> None:
    fields: dict[str, str] = {}
    for seed in fuzzers.request_seeds(wire):
        value = json.loads(seed)
        for path in find_numbers(value):
            fields.setdefault(shape(path), mark(value, path))
    assert len(fields) > 4
    turns = itertools.cycle(UPSTREAMS)
    for text, number in itertools.product(fields.values(), TRIED):
        for upstream in UPSTREAMS if EXHAUSTIVE else [next(turns)]:
            await fuzzers.send_request(wire, put(text, number).encode(), upstream=upstream)


@pytest.mark.parametrize("wire", CODECS)
@pytest.mark.parametrize("name", ["max_tokens", "seed", "reasoning", "temperature", "top_p"])
async def test_setting_of_any_size_is_sent_or_rejected(wire: str, name: str) -> None:
    for number in (0, -1, 10**9, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400)):
        model = d.connect(
            "m", wire=wire, base_url="http://127.0.0.1:9", api_key="k",
            transport=FixtureTransport((500, {}, [b"{}"])), retries=0,
        )  # fmt: skip
        with pytest.raises(d.ProviderError) as caught:
            await model.complete("Hi", config=d.RuntimeConfig(**{name: number}))
        is_sent = isinstance(caught.value, d.UnavailableError)
        assert not is_sent or abs(number) <= 2**64 or name in ("temperature", "top_p")
        assert len(str(caught.value)) < 1000


# --- files and records -------------------------------------------------------------------------


def use_prices(path: Path) -> None:
    table = PriceTable.load(path)
    most = d.cost(d.Usage(10**9, 10**9, cached_input_tokens=10**9), "acme:m1", table=table)
    assert not isinstance(most, d.Cost) or 0 <= most.total < 10**30


FILES = {
    **fuzzers.FILES,
    "prices": (PRICES.encode(), use_prices),
    "script": (WHOLE.encode(), read_script),
}
SPELLINGS = [*TRIED, ".nan", ".inf", "-.inf", "0x" + "f" * 400, "1_000", "null"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "policy"])
def test_number_in_a_file_is_read_or_reported(kind: str, tmp_path: Path) -> None:
    text, use = FILES[kind]
    path = tmp_path / f"{kind}.yaml"
    places = list(re.finditer(r"(?<=[ \[{])-?\d+(\.\d+)?(?=[,\]}\s])", text.decode()))
    assert len(places) >= 3
    use_at_all(path, text, use)
    for found, number in itertools.product(places, SPELLINGS):
        changed = text.decode()[: found.start()] + number + text.decode()[found.end() :]
        complaint = ""
        try:
            use_at_all(path, changed.encode(), use)
        except (ConfigError, ValueError) as error:
            complaint = str(error)
        assert len(complaint) < 1000
        assert "Traceback" not in complaint


def use_at_all(path: Path, data: bytes, use: Any) -> None:
    path.write_bytes(data)
    use(path)


@pytest.mark.exhaustive
async def test_number_in_a_record_is_read_by_everything_that_reads_logs(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db")
    path = tmp_path / "log.jsonl"
    with logs.open_log(tmp_path / "log.db", readonly=True) as log:
        log.export(path)
    fields: dict[str, Any] = {}
    for line in path.read_bytes().splitlines():
        record = json.loads(line)
        for at in find_numbers(record["payload"]):
            fields.setdefault(f"{record['type']} {shape(at)}", (record, at))
    assert len(fields) > 20
    for (record, at), number in itertools.product(fields.values(), TRIED):
        path.write_bytes(forge(record, put(mark(record["payload"], at), number)))
        try:
            with logs.open_log(path, readonly=True) as log:
                log.verify()
                read_everything(log, record["session"])
                await replay(log, record["session"])
        except (logs.LogError, d.ProviderError, ReplayMismatch):
            continue


def forge(record: dict[str, Any], payload: str) -> bytes:
    """Return a line of an export with another payload and the hash that belongs to it."""
    start = hashlib.sha256(f"dragoman.log/1 {record['session']}".encode()).hexdigest()
    made = {**record, "payload": MARK, "previous": start, "seq": 1}
    del made["hash"]
    body = put(write_line(made).decode(), payload).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    return body.replace(b',"id":', b',"hash":"' + digest + b'","id":', 1) + b"\n"


# --- options -----------------------------------------------------------------------------------


def list_options(command: click.Command, *path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield each option of a command and its subcommands that takes a number."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from list_options(inner, *path, name)
    for each in command.params:
        if isinstance(each.type, click.types.IntParamType | click.types.FloatParamType):
            yield " ".join([*path, each.opts[0]]), each


OPTIONS = dict(list_options(main))


@pytest.mark.parametrize("name", OPTIONS)
def test_number_of_an_option_is_within_a_range(name: str) -> None:
    option = OPTIONS[name]
    context = click.Context(main)
    if option.default is not None:
        assert option.process_value(context, option.default) == option.default
    for number in NUMBERS.values():
        try:
            value = option.process_value(context, number)
        except click.BadParameter:
            continue
        assert abs(value) <= 10**12, number
    with pytest.raises(click.BadParameter):
        option.process_value(context, "nan")
