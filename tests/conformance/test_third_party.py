"""The conformance kit as the author of an adapter uses it: with a new codec and a new provider."""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import pytest

import dragoman as d
from dragoman.conformance import CodecCase, CodecRule, ProviderCase, suite
from dragoman.events import Assembler
from dragoman.validate import Expectation
from dragoman.wire import Codec, Decoder, Encoded, HttpReply, HttpRequest
from dragoman.wire.errors import build_error, read_failure
from dragoman.wire.sse import Frame

# --- the suite with a codec of a third party ----------------------------------------------------


class ParrotDecoder(Decoder):
    """Decodes events such as ``data: {"say": "word"}`` until ``data: {"bye": "stop"}``, or an
    unstreamed body ``{"all": "words"}``.
    """

    def frame(self, frame: Frame) -> None:
        said = msgspec.json.decode(frame.data, type=dict[str, str])
        if not self.out.started:
            self.out.start()
        if "say" in said:
            self.out.text(said["say"])
        elif "bye" in said:
            self.out.finish("stop", said["bye"])
        else:
            raise d.InvalidResponseError("neither say nor bye")

    def body(self, data: bytes) -> None:
        said = msgspec.json.decode(data, type=dict[str, str])
        if "all" not in said:
            raise d.InvalidResponseError("no all")
        self.out.start()
        self.out.text(said["all"])
        self.out.finish("stop", "stop")

    def at_end(self) -> None:
        self.interrupted()


class ParrotCodec:
    """A codec for a wire that carries only text, and declares that it supports nothing else."""

    wire: ClassVar[str] = "parrot"

    def __init__(self, model: str, base_url: str) -> None:
        self._model = model
        self._base_url = base_url

    @classmethod
    def connect(
        cls,
        model: str,
        base_url: str,
        quirks: Any,
        capabilities: d.Capabilities,
        *,
        vendor: str | None = None,
        keep_raw: bool = True,
    ) -> Self:
        return cls(model, base_url)

    @property
    def issuer_vendor(self) -> str | None:
        return None

    def encode(self, request: d.Request) -> Encoded:
        asked = request.config
        unknown = [
            name
            for name in asked.__struct_fields__
            if name != "max_tokens" and getattr(asked, name)
        ]
        if unknown or request.tools or request.response_schema is not None:
            raise d.UnsupportedFeatureError(
                f"a parrot takes no {', '.join(unknown) or 'tools or schema'}"
            )
        words = [[message.__struct_config__.tag, message.content] for message in request.messages]
        body = {
            "model": self._model,
            "most": asked.max_tokens,
            "slowly": request.stream,
            "words": words,
        }
        sent = msgspec.json.encode(
            {name: value for name, value in body.items() if value is not None}
        )
        url = f"{self._base_url}/parrot"
        return Encoded(HttpRequest("POST", url, {"content-type": "application/json"}, sent))

    def decoder(self, request: d.Request, out: Assembler) -> Decoder:
        return ParrotDecoder(request, out)

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, now: float | None = None
    ) -> d.ProviderError:
        return build_error(status, headers, read_failure(body), (), now)

    def authorise(self, key: str) -> dict[str, str]:
        return {"x-cracker": key}

    def ready(self) -> Generator[HttpRequest, HttpReply, None]:
        reply = yield HttpRequest("GET", f"{self._base_url}/awake", {})
        if reply.status >= 300:
            raise self.error(reply.status, reply.headers, reply.body)

    def learn(self, error: d.ProviderError, request: d.Request) -> Codec | None:
        return None


@pytest.mark.parametrize("case", suite(wire="parrot", codec=ParrotCodec), ids=str)
def test_third_party_codec_passes_the_conformance_rules(case: CodecCase | CodecRule) -> None:
    case.run()


def test_third_party_codec_can_be_tested_with_its_own_cases(tmp_path: Path) -> None:
    folder = tmp_path / "parrot"
    folder.mkdir()
    (folder / "hello.reply.sse").write_bytes(
        b'data: {"say": "hel"}\n\ndata: {"say": "lo"}\n\ndata: {"bye": "stop"}\n\n'
    )
    (folder / "hello.folded.json").write_text('{"text": "hello", "finish": "stop", "raw": "stop"}')
    lines = [
        {"type": "message.start", "message_id": "M", "request_id": "R", "model": "test-model",
         "provider": "test"},
        {"type": "text.delta", "message_id": "M", "request_id": "R", "content_block_index": 0,
         "text": "hel"},
        {"type": "text.delta", "message_id": "M", "request_id": "R", "content_block_index": 0,
         "text": "lo"},
    ]  # fmt: skip
    lines[0]["role"] = "assistant"
    end = {
        "type": "message.complete", "message_id": "M", "request_id": "R", "finish_reason": "stop",
        "final_content": [{"type": "text", "text": "hello"}], "usage": {}, "finish_raw": "stop",
        "stop_sequence": None, "model": "test-model", "parsed": None, "structured_path": None,
        "warnings": [],
        "kept": None,
    }  # fmt: skip
    (folder / "hello.events.jsonl").write_bytes(
        b"\n".join(map(msgspec.json.encode, [*lines, end]))
    )
    cases = [
        case
        for case in suite(wire="parrot", codec=ParrotCodec, cases=tmp_path)
        if isinstance(case, CodecCase)
    ]
    assert [str(case) for case in cases] == ["hello"]
    cases[0].run()
    (folder / "hello.folded.json").write_text('{"text": "hell", "finish": "stop", "raw": "stop"}')
    with pytest.raises(AssertionError, match="the folded reply, fed whole"):
        cases[0].run()


# --- the suite with a provider of a third party -------------------------------------------------


class Clockwork(d.Provider):
    """A minimal third-party provider: it only emits events through the assembler."""

    name = "clockwork"
    model = "spring-1"

    def __init__(
        self, error: d.ProviderError | None = None, *, breaks: bool = False, known: Any = None
    ) -> None:
        self._error = error
        self._breaks = breaks
        self.capabilities = d.Capabilities.of(known or {})

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._annotate(self._error, request)
        out = self._begin(request)
        for event in out.take():
            yield event
        self._say(request, out)
        if self._breaks:
            out.fail(self._annotate(d.StreamInterruptedError("the spring broke"), request))
        else:
            out.usage(d.Usage(3, 4, total_tokens=7))
            out.finish("tool_calls" if out.has_calls else "stop", "done")
        for event in out.take():
            yield event
            await asyncio.sleep(0)
        if out.error is not None:
            raise out.error

    async def ready(self) -> None:
        if self._error is not None:
            raise self._error

    def _begin(self, request: d.Request) -> Assembler:
        out = Assembler(
            request_id=request.request_id,
            model=self.model,
            provider=self.name,
            expected=Expectation(request),
            structured_path="native" if request.response_schema else None,
        )
        out.start()
        return out

    def _say(self, request: d.Request, out: Assembler) -> None:
        if isinstance(request.tool_choice, d.ForceTool):
            out.tool_start(0, "call-1", request.tool_choice.name)
            out.tool_input(0, '{"city": "Bern"}')
        elif request.response_schema is not None:
            out.text('{"city": "Bern", "population": 137000}')
        else:
            out.text("Tick ")
            out.text("tock.")

    def _annotate(self, error: d.ProviderError, request: d.Request) -> d.ProviderError:
        error.provider = self.name
        error.model = self.model
        error.request_id = request.request_id
        return error


@pytest.mark.parametrize(
    "case",
    suite(
        Clockwork,
        failing={
            d.RateLimitError: lambda: Clockwork(d.RateLimitError("slow down", retry_after=1.0))
        },
        breaking=lambda: Clockwork(breaks=True),
        unready={d.ModelNotLoadedError: lambda: Clockwork(d.ModelNotLoadedError("winding up"))},
        other=lambda: Prompt(),
    ),
    ids=str,
)
async def test_third_party_provider_passes_the_conformance_suite(case: ProviderCase) -> None:
    await case.run()


class Prompt(Clockwork):
    """A provider that answers without awaiting anything."""

    name = "prompt"

    async def events(self, request: d.Request) -> AsyncIterator[d.Event]:
        out = self._begin(request)
        self._say(request, out)
        out.finish("tool_calls" if out.has_calls else "stop", "done")
        for event in out.take():
            yield event


@pytest.mark.parametrize("case", suite(Prompt), ids=str)
async def test_provider_that_never_waits_passes_the_conformance_suite(case: ProviderCase) -> None:
    await case.run()


WITHOUT = {
    "supports_tools": False,
    "supports_images": False,
    "supports_system_prompt": False,
    "supports_streaming": False,
    "supports_structured_output": False,
}


@pytest.mark.parametrize(
    "case", suite(lambda: Clockwork(known=WITHOUT), capabilities=WITHOUT), ids=str
)
def test_provider_without_optional_features_passes_the_conformance_suite(
    case: ProviderCase,
) -> None:
    case.run_sync()
