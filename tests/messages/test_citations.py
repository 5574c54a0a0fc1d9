"""Citations of replies: all wires give the same values."""

import json
from typing import Any

import pytest

import dragoman as d
from dragoman.events import Assembler
from dragoman.messages import read_citations
from dragoman.wire import CODECS, SERVER_CODECS
from dragoman.wire.server import Asked
from tests.rows import read_table

URL = "https://example.com/a"
PLACE = {"start_index": 0, "end_index": 4}


def reply_of(wire: str, body: Any, stream: bool = False, **config: Any) -> Any:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    out = Assembler(request_id="R", issuer=d.Issuer(wire, None, "m"))
    decoder = codec.decoder(d.Request([d.User("x")], stream=stream, **config), out)
    if stream:
        data = (
            b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in body)
            + b"data: [DONE]\n\n"
        )
    else:
        data = json.dumps(body).encode()
    return d.fold([*decoder.feed(data), *decoder.end()])


def chat(**message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "Paris is big.", **message}
    return {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}


def cited(**fields: Any) -> dict[str, Any]:
    return {
        "type": "url_citation",
        "url_citation": {"url": URL, "title": "A", "start_index": 0, "end_index": 5, **fields},
    }


def gemini(**candidate: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": "Né à Paris."}]}
    return {"candidates": [{"content": content, "finishReason": "STOP", **candidate}]}


SUPPORT = {"segment": {"startIndex": 7, "endIndex": 13}, "groundingChunkIndices": [0, 9, "x"]}
CHUNKS = [
    {"web": {"uri": URL, "title": "A"}},
    {"retrievedContext": {"text": "q", "fileSearchStore": "s"}},
    {},
]
REPLIES: list[tuple[str, Any, tuple[d.Citation, ...]]] = [
    (
        "openai",
        chat(annotations=[cited()]),
        (d.Citation(url=URL, title="A", quote=None, start=0, end=5),),
    ),
    (
        "openai",
        chat(annotations=[{"type": "file_citation", "file_id": "f"}]),
        (d.Citation(source="f"),),
    ),
    ("openai", chat(annotations=[{"type": "file", "file": {}}, 5]), ()),
    ("openai", {**chat(), "citations": [URL, 5]}, (d.Citation(url=URL),)),
    (
        "openai",
        {
            **chat(),
            "citations": [URL],
            "search_results": [{"url": URL, "title": "A", "snippet": "q"}, {}],
        },
        (d.Citation(url=URL, title="A", quote="q"),),
    ),
    ("openai", chat(annotations="none"), ()),
    (
        "anthropic",
        {
            "content": [
                {
                    "type": "text",
                    "text": "Yes.",
                    "citations": [
                        {
                            "type": "web_search_result_location",
                            "url": URL,
                            "title": "A",
                            "cited_text": "q",
                        },
                        {
                            "type": "char_location",
                            "cited_text": "q",
                            "document_index": 0,
                            "document_title": "D",
                        },
                    ],
                }
            ],
            "stop_reason": "end_turn",
        },
        (
            d.Citation(url=URL, title="A", quote="q"),
            d.Citation(url=None, title="D", quote="q", source="0"),
        ),
    ),
    (
        "responses",
        {
            "status": "completed",
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [
                        {
                            "type": "output_text",
                            "text": "Yes.",
                            "annotations": [
                                {"type": "url_citation", "url": URL, "title": "A", **PLACE}
                            ],
                        }
                    ],
                }
            ],
        },
        (d.Citation(url=URL, title="A", quote=None, start=0, end=4),),
    ),
    (
        "gemini",
        gemini(
            groundingMetadata={
                "groundingChunks": CHUNKS,
                "groundingSupports": [SUPPORT, {"segment": 5}],
            }
        ),
        (
            d.Citation(url=URL, title="A", quote=None, start=5, end=11),
            d.Citation(quote="q", source="s"),
            d.Citation(),
        ),
    ),
    (
        "gemini",
        gemini(
            citationMetadata={
                "citations": [{"startIndex": 0, "endIndex": 3, "uri": URL}, {"uri": URL}]
            }
        ),
        (d.Citation(url=URL, start=0, end=2), d.Citation(url=URL)),
    ),
    ("gemini", gemini(groundingMetadata=5, citationMetadata=5), ()),
    (
        "bedrock",
        {
            "output": {
                "message": {
                    "content": [
                        {
                            "citationsContent": {
                                "content": [{"text": "a"}, {}],
                                "citations": [
                                    {
                                        "location": {
                                            "documentPage": {"documentIndex": 1, "start": 2}
                                        },
                                        "sourceContent": [{"text": "q"}],
                                    },
                                    {"title": "t", "location": {"web": {"url": URL}}},
                                    {"location": 5},
                                ],
                            }
                        }
                    ]
                }
            },
            "stopReason": "end_turn",
        },
        (
            d.Citation(url=None, title=None, quote="q", source="1"),
            d.Citation(url=URL, title="t"),
            d.Citation(),
        ),
    ),
    (
        "cohere",
        {
            "message": {
                "content": [{"type": "text", "text": "is 22C"}],
                "citations": [
                    {
                        "start": 3,
                        "end": 6,
                        "text": "22C",
                        "type": "TEXT_CONTENT",
                        "sources": [
                            {"id": "t:0", "tool_output": {"content": "22C", "url": URL}},
                            {"id": "d"},
                        ],
                    },
                    {"start": 0, "end": 1, "sources": [{"id": "p"}], "type": "PLAN"},
                ],
            },
            "finish_reason": "COMPLETE",
        },
        (
            d.Citation(url=URL, title=None, quote="22C", start=3, end=6, source="t:0"),
            d.Citation(url=None, title=None, quote=None, start=3, end=6, source="d"),
        ),
    ),
]


@pytest.mark.parametrize(("wire", "body", "citations"), REPLIES)
def test_reply_citations_are_read(wire: str, body: Any, citations: tuple[d.Citation, ...]) -> None:
    reply = reply_of(wire, body)
    assert reply.citations == citations
    assert reply.message.citations == citations


def test_citations_of_a_stream_are_read() -> None:
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "Paris "}}]},
        {"choices": [{"index": 0, "delta": {"content": "is big.", "annotations": [cited()]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    assert reply_of("openai", chunks, stream=True).citations == (
        d.Citation(url=URL, title="A", quote=None, start=0, end=5),
    )


def test_sources_of_a_reply_without_text_give_no_citations() -> None:
    assert reply_of("openai", {**chat(content=None), "citations": [URL]}).citations == ()


def test_text_blocks_made_by_the_caller_have_no_citations() -> None:
    assert d.Text("a").citations == ()
    assert read_citations({"phase": "final"}, "a") == read_citations([], "a") == ()
    assert read_citations({"citations": 5}, "a") == ()


@pytest.mark.parametrize("wire", ["openai", "gemini"])
def test_citations_are_omitted_from_later_requests_without_a_warning(wire: str) -> None:
    body = (
        chat(annotations=[cited()])
        if wire == "openai"
        else gemini(groundingMetadata={"groundingChunks": CHUNKS})
    )
    said = reply_of(wire, body).message
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    encoded = codec.encode(d.Request([d.User("x"), said, d.User("y")]))
    assert encoded.warnings == ()
    assert [note.code for note in encoded.notes] == ["citations_dropped"]
    assert URL not in encoded.http.body.decode()
    other = CODECS["responses"].connect("m", "https://api.example.com", None, d.Capabilities())
    assert [
        warning.code
        for warning in other.encode(d.Request([d.User("x"), said, d.User("y")])).warnings
    ] == ["continuity_dropped"]


def serve(upstream: str, body: Any, client: str, *, stream: bool = False) -> bytes:
    """Decode the reply of a server; return it as the gateway writes it for a client."""
    request = d.Request([d.User("x")], stream=stream)
    codec = CODECS[upstream].connect("m", "https://api.example.com", None, d.Capabilities())
    decoder = codec.decoder(request, Assembler(issuer=d.Issuer(upstream)))
    encoder = SERVER_CODECS[client].encoder(Asked(request=request))
    events = [*decoder.feed(json.dumps(body).encode()), *decoder.end()]
    return b"".join([encoder.feed(event) for event in events]) + encoder.end()


def frames_of(written: bytes) -> list[Any]:
    lines = written.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("stream", [False, True])
def test_gateway_clients_receive_citations(stream: bool) -> None:
    written = serve("openai", chat(annotations=[cited()]), "openai", stream=stream)
    codec = CODECS["openai"].connect("m", "https://api.example.com", None, d.Capabilities())
    decoder = codec.decoder(d.Request([d.User("x")], stream=stream), Assembler())
    again = d.fold([*decoder.feed(written), *decoder.end()])
    assert again.citations == (d.Citation(url=URL, title="A", quote=None, start=0, end=5),)


def source(title: str, end: int) -> dict[str, Any]:
    """Return a citation as clients of the Responses API receive it."""
    place = {"start_index": 0, "end_index": end}
    return {"type": "url_citation", "url": URL, "title": title, **place}


def test_responses_api_clients_receive_citations_from_other_wires() -> None:
    body = gemini(groundingMetadata={"groundingChunks": CHUNKS})
    (item,) = json.loads(serve("gemini", body, "responses"))["output"]
    assert item["content"][0]["annotations"] == [source("A", len("Né à Paris."))]


def test_responses_api_stream_contains_the_sources_of_each_text() -> None:
    """A Claude model cites in each text, and the first text ends before its sources come."""
    search = {"type": "web_search_result_location", "url": URL, "cited_text": "c"}
    texts = [
        {"type": "text", "text": word, "citations": [{**search, "title": word}]}
        for word in ("One.", "Two.")
    ]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    content = [texts[0], call, texts[1], {"type": "text", "text": "Three."}]
    body = {"content": content, "stop_reason": "end_turn"}
    frames = frames_of(serve("anthropic", body, "responses", stream=True))
    added = [frame for frame in frames if frame["type"] == "response.output_text.annotation.added"]
    first = source("One.", 4)
    second = source("Two.", 4)
    expected = [(0, first), (2, second)]
    assert [(frame["output_index"], frame["annotation"]) for frame in added] == expected
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    output = frames[-1]["response"]["output"]
    found = [item["content"][0]["annotations"] for item in output if item["type"] == "message"]
    assert found == [[first], [second], []]
    done = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert done[-1] == output[-1]


def test_responses_api_stream_keeps_citations_that_arrive_late() -> None:
    """The sources arrive while the last text block is open, so its end contains them."""
    part = {"type": "output_text", "text": "Yes", "annotations": [source("A", 3)]}
    item = {"type": "message", "role": "assistant", "phase": "final_answer", "content": [part]}
    body = {"id": "r", "status": "completed", "output": [item]}
    frames = frames_of(serve("responses", body, "responses", stream=True))
    (done,) = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
    assert done["phase"] == "final_answer"
    assert done["content"][0]["annotations"] == [source("A", 3)]


@pytest.mark.parametrize(("data", "summary"), read_table("opaque_block_has_a_one_line_summary"))
def test_opaque_block_has_a_one_line_summary(data: Any, summary: str) -> None:
    assert d.Opaque(data, d.Continuity(issuer=d.Issuer("x"))).summary == summary


@pytest.mark.parametrize(
    ("wire", "extras", "codes"),
    [
        ("openai", {"n": 1}, []),
        ("openai", {"n": 3}, ["choices_dropped"]),
        ("openai", {"logprobs": False}, []),
        ("openai", {"logprobs": True}, ["logprobs_in_raw"]),
        ("gemini", {"candidateCount": 1}, []),
        ("gemini", {"candidateCount": 2}, ["choices_dropped"]),
        ("cohere", {"n": 2}, ["choices_dropped"]),
        ("gemini", {"responseLogprobs": True}, ["logprobs_in_raw"]),
    ],
)
def test_fields_stay_in_the_raw_reply(wire: str, extras: dict[str, Any], codes: list[str]) -> None:
    codec = CODECS[wire].connect("m", "https://api.example.com", None, d.Capabilities())
    encoded = codec.encode(d.Request([d.User("x")], config=d.RuntimeConfig(extras=extras)))
    assert [warning.code for warning in encoded.warnings] == codes


TWO: dict[str, dict[str, Any]] = {
    "openai": {"choices": [{"index": at, "message": {"role": "assistant", "content": text},
                            "finish_reason": "stop"} for at, text in enumerate("ab")]},
    "gemini": {"candidates": [{"index": at, "content": {"parts": [{"text": text}]},
                               "finishReason": "STOP"} for at, text in enumerate("ab")]},
}  # fmt: skip


@pytest.mark.parametrize("wire", TWO)
def test_unrequested_additional_choices_are_reported(wire: str) -> None:
    reply = reply_of(wire, TWO[wire])
    assert reply.text == "a"
    assert [warning.code for warning in reply.warnings] == ["choices_dropped"]
    # If the caller requests several choices, the encoder already warns that only one is read.
    asked = {"openai": {"n": 2}, "gemini": {"candidateCount": 2}}[wire]
    assert reply_of(wire, TWO[wire], config=d.RuntimeConfig(extras=asked)).warnings == ()


def reference(*ids: Any) -> dict[str, Any]:
    return {"type": "reference", "reference_ids": list(ids)}


def test_reference_parts_cite_the_text_before_them() -> None:
    parts = [
        {"type": "text", "text": "Paris"}, reference(0, "s"), reference(2),
        {"type": "text", "text": " is big"}, reference(1), {"type": "text", "text": "."},
    ]  # fmt: skip
    expected = tuple(
        d.Citation(start=start, end=end, source=source)
        for start, end, source in [(0, 5, "0"), (0, 5, "s"), (0, 5, "2"), (5, 12, "1")]
    )
    whole = reply_of("openai", chat(content=parts))
    deltas: list[Any] = ["Pa", "ris", parts[1:3], " is big", [parts[4]], "."]
    chunks: list[Any] = [
        {"choices": [{"index": 0, "delta": {"content": delta}}]} for delta in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    for reply in (whole, reply_of("openai", chunks, stream=True)):
        assert reply.text == "Paris is big."
        assert reply.citations == expected
        assert reply.warnings == ()
    codec = CODECS["openai"].connect("m", "https://api.example.com", None, d.Capabilities())
    assert codec.encode(d.Request([d.User("x"), whole.message, d.User("y")])).warnings == ()


def test_reference_parts_belong_to_the_text_block_before_them() -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    said = [
        {"type": "text", "text": "One"}, reference(0), thought, {"type": "text", "text": "Three"},
        reference(1),
    ]  # fmt: skip
    first, _, second = reply_of("openai", chat(content=said)).message.content
    assert first.citations == (d.Citation(start=0, end=3, source="0"),)
    assert second.citations == (d.Citation(start=0, end=5, source="1"),)
    quoted = {**reference(0), "text": "20 degrees"}
    reply = reply_of("openai", chat(content=[{"type": "text", "text": "It is "}, quoted]))
    expected = ("It is 20 degrees", (d.Citation(start=0, end=16, source="0"),))
    assert (reply.text, reply.citations) == expected


def test_reference_parts_without_text_are_reported() -> None:
    thought = {
        "type": "thinking",
        "thinking": [reference(0), "x", None, {"type": "text", "text": "hm"}],
    }
    reply = reply_of(
        "openai", chat(content=[reference(1), thought, {"type": "text", "text": "a"}])
    )
    assert [warning.code for warning in reply.warnings] == ["reference_in_raw", "thinking_in_raw"]
    assert reply.message.thinking == "hm"
    assert reply.text == "a"
    assert reply.citations == ()


def test_unknown_content_parts_become_opaque_blocks() -> None:
    part = {"type": "document_url", "document_url": URL}
    reply = reply_of(
        "openai", chat(content=[{"type": "text", "text": "a"}, part, {"type": "text"}, {}, 5])
    )
    said, kept = reply.message.content
    assert said.text == "a"
    assert kept.data == part
    assert reply.warnings == ()


RAN = {"index": 0, "type": "search", "arguments": '{"query": "Rhine"}', "output": "1233 km"}


def test_calls_of_server_tools_become_opaque_blocks() -> None:
    begun = {name: value for name, value in RAN.items() if name != "output"}
    chunks = [
        {"choices": [{"index": 0, "delta": {"executed_tools": [begun]}}]},
        {"choices": [{"index": 0, "delta": {"executed_tools": [RAN, {"type": "python"}]}}]},
        {"choices": [{"index": 0, "delta": {"content": "Long.", "executed_tools": 5},
                      "finish_reason": "stop"}]},
    ]  # fmt: skip
    for reply in (
        reply_of("openai", chat(content="Long.", executed_tools=[RAN, {"type": "python"}])),
        reply_of("openai", chunks, stream=True),
    ):
        assert [block.data for block in reply.message.content[1:]] == [RAN, {"type": "python"}]
        assert reply.message.content[1].summary == "search: 1233 km"
        codec = CODECS["openai"].connect("m", "https://api.example.com", None, d.Capabilities())
        encoded = codec.encode(d.Request([d.User("x"), reply.message, d.User("y")]))
        expected = (["opaque_dropped"] * 2, ())
        assert ([note.code for note in encoded.notes], encoded.warnings) == expected


def test_images_and_related_questions_of_a_search_are_kept() -> None:
    found = {"images": [{"image_url": URL}], "related_questions": ["Why?"]}
    (said,) = reply_of("openai", {**chat(), **found, "citations": [URL]}).message.content
    assert said.continuity.opaque == {**found, "citations": [URL]}
    assert said.citations == (d.Citation(url=URL),)
    (said,) = reply_of("openai", {**chat(), **found}).message.content
    assert said.continuity.opaque == found
    assert said.citations == ()
    codec = CODECS["openai"].connect("m", "https://api.example.com", None, d.Capabilities())
    encoded = codec.encode(
        d.Request([d.User("x"), reply_of("openai", {**chat(), **found}).message, d.User("y")])
    )
    assert [note.code for note in encoded.notes] == ["citations_dropped"]
    assert encoded.warnings == ()
