"""Test every rejection of a request, the path it names, and the order of capability checks."""

# mypy: disable-error-code="arg-type,list-item"

import re
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman as d
from dragoman.capabilities import Capabilities, Refusal
from dragoman.messages import EFFORTS
from dragoman.validate import check_request, find_refusal
from tests import strategies as some

U = d.User("u")
A = d.Assistant("a")
S = d.System("s")
R = d.ToolResult("1", "r")
CALL = d.Assistant(tool_calls=[d.ToolCall("1", "f", {})])
PNG = d.Image(d.Inline("aGk="), "image/png")
T = d.Tool("t")
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}}
GOOD_CALL = d.Assistant(
    tool_calls=[d.ToolCall("1", "f", {"a": 1}), d.ToolCall("2", "f", {"a": 2})]
)
BAD_CALL = d.Assistant(tool_calls=[d.ToolCall("1", "f", {"a": "no"})])
OBJECT = {"type": "object"}


def req(*messages: Any, **fields: Any) -> d.Request:
    return d.Request(messages or (U,), **fields)


# --- valid requests ----------------------------------------------------------------------------

SOUND: list[d.Request] = [
    req(U),
    req(S, S, U),
    req(S, U, A, U),
    req(U, A, A, U, U),
    req(U, CALL, R),
    req(U, CALL, R, CALL, R, U),
    req(
        U,
        d.Assistant(tool_calls=[d.ToolCall("1", "f", {}), d.ToolCall("2", "f", {})]),
        d.ToolResult("2", "b"),
        R,
    ),
    req(U, CALL, CALL, R, R),
    req(U, CALL, U),
    req(U, CALL, d.ToolResult("1", "")),
    req(U, CALL, d.ToolResult("1", [d.Text("r"), PNG])),
    req(U, CALL, d.ToolResult("1", ())),
    req(
        U,
        d.Assistant(
            [d.Thinking("t"), d.RedactedThinking("d"), d.Opaque(1), d.Text("", d.Continuity("s"))]
        ),
        U,
    ),
    req(
        d.User(
            [
                d.Text("u"),
                PNG,
                d.Image(d.Url("https://x")),
                d.Document(d.Url("u")),
                d.Document(d.Inline("aGk=")),
            ]
        )
    ),
    req(U, d.Assistant([d.Text("a"), d.Text("")]), U),
    req(U, d.Assistant([d.Text(""), d.ToolCall("1", "f", {"a": [1, {"b": None}]})]), R),
    req(U, GOOD_CALL, R, tools=[d.Tool("f", "", parameters=NUMBER)]),
    # The request does not offer this tool any more.
    req(U, BAD_CALL, R, tools=[d.Tool("g", "", parameters=NUMBER)]),
    req(
        U,
        BAD_CALL,
        d.ToolResult("1", "a must be an integer", True),
        tools=[d.Tool("f", "", parameters=NUMBER)],
    ),
    req(
        d.User(
            [
                d.Image(d.Inline("aGk="), "Image/PNG", detail="low"),
                d.Document(d.Url("u"), "application/pdf", "a.pdf"),
            ]
        )
    ),
    req(d.User([d.Text("a", d.Continuity("s", issuer=d.Issuer("gemini")))])),
    req(
        tools=[
            T,
            d.Tool("u", "d", parameters=OBJECT),
            d.Tool("v", "d", parameters={}),
            d.Tool("w", strict=True),
        ]
    ),
    req(config=d.RuntimeConfig(reasoning=1024)),
    req(tool_choice="auto"),
    req(tool_choice="none"),
    req(tools=[T], tool_choice="required"),
    req(server_tools=[d.ServerTool("web_search")], tool_choice="required"),
    req(config=d.RuntimeConfig(extras={"tools": [{"type": "custom"}]}), tool_choice="required"),
    req(tools=[T], tool_choice=d.ForceTool("t")),
    req(response_schema=OBJECT),
    req(
        config=d.RuntimeConfig(
            temperature=0,
            max_tokens=1,
            top_p=0.5,
            seed=-1,
            frequency_penalty=-2,
            presence_penalty=2.0,
            stop_sequences=["a"],
            reasoning="low",
            extras={"x": object()},
        )
    ),
    req(config=d.RuntimeConfig(stop_sequences=[])),
]


@pytest.mark.parametrize("request_", SOUND)
def test_valid_requests_are_accepted(request_: d.Request) -> None:
    check_request(request_)


# --- invalid requests --------------------------------------------------------------------------

REASONING = f"config.reasoning must be one of {', '.join(EFFORTS)}, or a number of tokens, not "
LAST = "the last message must be the user's or a tool's: add User(...), so that there is something to answer"
REFUSED: list[tuple[d.Request, str]] = [
    (d.Request(()), "messages is empty; give a text or a User(...)"),
    (req(U, config=d.RuntimeConfig(cache="always")),
     'config.cache must be "auto", "off" or a PromptCache'),  # type: ignore[arg-type]
    (req(S), LAST),
    (req(U, A), LAST),
    (req({"role": "user"}), LAST),
    (req(U, A, S), LAST),
    (req(U, d.System(""), U), "messages[1].content must be non-empty text"),
    (req(U, d.System([d.Text("s")])), "messages[1].content must be non-empty text"),
    (req(d.System(""), U), "messages[0].content must be non-empty text"),
    (req(d.System([d.Text("s")]), U), "messages[0].content must be non-empty text"),
    (req(A, U), "messages[0]: the conversation must begin with the user; put a User message first"),
    (req(S, R), "messages[1]: the conversation must begin with the user; put a User message first"),
    (req(U, 5, U), "messages[1] is not a message but int"),
    # invalid user messages
    (req(d.User("")), "messages[0].content is empty; leave the message out"),
    (req(d.User(())), "messages[0].content is empty; leave the message out"),
    (req(d.User(5)), "messages[0].content[0] must be text, an Image, a Document or an Audio, not int"),
    (req(d.User([d.Text("")])), "messages[0].content[0].text is empty; leave the block out"),
    (req(d.User([d.Text("a"), d.Thinking("t")])),
     "messages[0].content[1] must be text, an Image, a Document or an Audio, not Thinking"),
    (req(d.User("a", True)),
     "messages[0].content[1] must be text, an Image, a Document or an Audio, not bool"),
    (req(d.User([d.Image(d.Url(""))])),
     "messages[0].content[0].source must be a Url or Inline with content"),
    (req(d.User([d.Image(5)])), "messages[0].content[0].source must be a Url or Inline with content"),
    (req(d.User([d.Document(d.Url(""))])),
     "messages[0].content[0].source must be a Url or Inline with content"),
    (req(d.User([d.Image(d.Inline(""), "image/png")])),
     "messages[0].content[0].source.base64_data is empty"),
    (req(d.User([d.Image(d.Inline("aGk="))])),
     "messages[0].content[0].media_type is required for inline content"),
    (req(d.User([d.Document(d.Inline("aGk="), "")])),
     "messages[0].content[0].media_type is required for inline content"),
    (req(d.User([d.Image(d.Inline("aGk="), "text/html")])),
     "messages[0].content[0].media_type must be an image type, not 'text/html'"),
    # values of the wrong type
    (req(d.User([d.Text(5)])), "messages[0].content[0].text must be a string, not an integer"),
    (req(d.User([d.Text("a", 5)])),
     "messages[0].content[0].continuity must be a Continuity, not an integer"),
    (req(d.User([d.Image(d.Url(5))])),
     "messages[0].content[0].source.url must be a string, not an integer"),
    (req(d.User([d.Image(d.Inline(b"abc"), "image/png")])),
     "messages[0].content[0].source.base64_data must be base64 text; Image(data) takes bytes"),
    (req(d.User([d.Image(d.Inline(5), "image/png")])),
     "messages[0].content[0].source.base64_data must be a string, not an integer"),
    (req(d.User([d.Image(d.Url("u"), detail="ultra")])),
     "messages[0].content[0].detail must be one of auto, low, high, not 'ultra'"),
    (req(d.User([d.Image(d.Url("u"), 5)])),
     "messages[0].content[0].media_type must be a string, not an integer"),
    (req(d.User([d.Document(d.Url("u"), "application/pdf", 5)])),
     "messages[0].content[0].name must be a string, not an integer"),
    (req(U, d.Assistant([d.Text(5)]), U),
     "messages[1].content[0].text must be a string, not an integer"),
    (req(U, d.Assistant([d.Thinking(None)]), U),
     "messages[1].content[0].text must be a string, not null"),
    (req(U, d.Assistant([d.RedactedThinking(5)]), U),
     "messages[1].content[0].data must be a string, not an integer"),
    (req(U, d.Assistant([d.Text("a", d.Continuity(5))]), U),
     "messages[1].content[0].continuity.signature must be a string, not an integer"),
    (req(U, d.Assistant([d.ToolCall(5, "f", {})]), U),
     "messages[1].content[0].id must be a string, not an integer"),
    (req(U, d.Assistant([d.ToolCall("1", 5, {})]), U),
     "messages[1].content[0].name must be a string, not an integer"),
    (req(U, d.Assistant([d.ToolCall("1", "f", [])]), U),
     "messages[1].content[0].arguments must be an object, not a list"),
    (req(U, d.Assistant([d.ToolCall("1", "f", {"a": [b"x"]})]), U),
     "messages[1].content[0].arguments must be JSON; bytes is not"),
    (req(U, d.Assistant([d.ToolCall("1", "f", {"a": {5: 1}})]), U),
     "messages[1].content[0].arguments must be JSON, whose keys are strings"),
    (req(U, CALL, d.ToolResult(5, "r")),
     "messages[2].tool_call_id must be a string, not an integer"),
    (req(U, CALL, d.ToolResult("1", "r", is_error="no")),
     "messages[2].is_error must be true or false, not a string"),
    (req(tools=[d.Tool(5)]), "tools[0].name must be a string, not an integer"),
    (req(tools=[d.Tool("g", None)]), "tools[0].description must be a string, not null"),
    (req(tools=[d.Tool("g", strict="yes")]), "tools[0].strict must be true or false, not a string"),
    (req(tool_choice="any"), "tool_choice must be auto, required, none or a ForceTool, not 'any'"),
    (req(config=d.RuntimeConfig(reasoning="much")), REASONING + "'much'"),
    (req(config=d.RuntimeConfig(reasoning=True)), REASONING + "True"),
    # invalid arguments of earlier calls
    (
        req(U, BAD_CALL, R, tools=[d.Tool("f", "", parameters=NUMBER)]),
        "messages[1].content[0].arguments violate the parameters of 'f': \"no\" is not of type \"integer\" at /a",
    ),
    # invalid assistant messages
    (req(U, d.Assistant(), U), "messages[1]: an assistant message needs text or tool calls"),
    (req(U, d.Assistant([d.Text("")]), U),
     "messages[1]: an assistant message needs text or tool calls"),
    (req(U, d.Assistant([d.Text(""), d.Text("")]), U),
     "messages[1]: an assistant message needs text or tool calls"),
    (req(U, d.Assistant([d.Text("a"), PNG]), U),
     "messages[1].content[1]: an assistant cannot send Image"),
    (req(U, d.Assistant([d.Document(d.Url("u"))]), U),
     "messages[1].content[0]: an assistant cannot send Document"),
    (req(U, d.Assistant(["a", 5]), U), "messages[1].content[1]: an assistant cannot send int"),
    (req(U, d.Assistant([d.ToolCall("", "f", {})]), U),
     "messages[1].content[0]: a tool call needs an id and a name"),
    (req(U, d.Assistant([d.ToolCall("1", "", {})]), U),
     "messages[1].content[0]: a tool call needs an id and a name"),
    (req(U, d.Assistant([d.ToolCall("1", "f", {}), d.ToolCall("1", "g", {})]), U),
     "messages[1].content[1].id is used twice in this message"),
    (req(U, d.Assistant([d.ToolCall("1", "f", None)]), U),
     "messages[1].content[0].arguments could not be read when it arrived; repair or remove it"),
    # invalid tool results
    (req(U, R), "messages[1].tool_call_id matches no earlier tool call; use its id"),
    (req(U, R, CALL, U), "messages[1].tool_call_id matches no earlier tool call; use its id"),
    (req(U, CALL, R, R), "messages[3].tool_call_id: this call has a result already"),
    (req(U, CALL, d.ToolResult("1", [d.Text("")])), "messages[2].content[0].text is empty; leave the block out"),
    (req(U, CALL, d.ToolResult("1", None)),
     "messages[2].content[0] must be text, an Image, a Document or an Audio, not NoneType"),
    (req(U, CALL, d.ToolResult("1", [d.Thinking("t")])),
     "messages[2].content[0] must be text, an Image, a Document or an Audio, not Thinking"),
    # invalid tool definitions
    (req(tools=[T, {"name": "t"}]), "tools[1] is not a Tool but dict"),
    (req(tools=[d.Tool("")]), "tools[0].name is empty; name the tool"),
    (req(tools=[T, d.Tool("u"), T]), "tools[2].name: 't' is used twice; rename one"),
    (req(tools=[d.Tool("t", "", parameters={"type": "objekt"})]),
     "tools[0].parameters is not a valid JSON Schema: "),
    (req(tools=[T, d.Tool("u", "", parameters=True)]),
     "tools[1].parameters must be a JSON Schema object, not bool"),
    (req(tools=[d.Tool("t", "", parameters={"type": "string"})]),
     'tools[0].parameters must be an object schema: "type": "object" at its root'),
    (req(tools=[d.Tool("t", "", parameters={"type": ["object", "null"]})]),
     'tools[0].parameters must be an object schema: "type": "object" at its root'),
    (req(tools=[d.Tool("t", "", parameters={"$ref": "file:///etc/passwd"})]),
     "tools[0].parameters is not a valid JSON Schema: "),
    # invalid tool choices
    (req(tool_choice="required"), "tool_choice asks for a tool call; pass tools=[...]"),
    (req(tool_choice=d.ForceTool("t")), "tool_choice asks for a tool call; pass tools=[...]"),
    (req(tools=[T], tool_choice=d.ForceTool("u")),
     "tool_choice forces 'u', which is not among tools; force one of them"),
    # invalid response schemas
    (req(response_schema={"type": "array"}),
     'response_schema must be an object schema: "type": "object" at its root'),
    (req(response_schema={}),
     'response_schema must be an object schema: "type": "object" at its root'),
    (req(response_schema={"type": "object", "required": 1}),
     "response_schema is not a valid JSON Schema: "),
    (req(response_schema={"$ref": "http://127.0.0.1:1/x"}),
     "response_schema is not a valid JSON Schema: "),
    (req(response_schema=[]), "response_schema must be a JSON Schema object, not list"),
    # invalid settings
    *[
        (req(config=d.RuntimeConfig(**{name: value})), f"config.{name} must be a finite number")
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
        for value in (True, "1", float("nan"), float("inf"), 10**400, -(10**400))
    ],
    *[
        (req(config=d.RuntimeConfig(**{name: value})), f"config.{name} must be a whole number")
        for name in ("max_tokens", "seed")
        for value in (True, "1", 1.0)
    ],
    (req(config=d.RuntimeConfig(stop_sequences="a")),
     "config.stop_sequences must be a list of texts"),
    (req(config=d.RuntimeConfig(stop_sequences=[1])),
     "config.stop_sequences must be a list of texts"),
    (req(config=d.RuntimeConfig(extras=[])), "config.extras must be a mapping whose keys are text"),
    (req(config=d.RuntimeConfig(extras={1: 2})),
     "config.extras must be a mapping whose keys are text"),  # type: ignore[dict-item]
]  # fmt: skip


@pytest.mark.parametrize(("request_", "message"), REFUSED)
def test_invalid_requests_are_rejected(request_: d.Request, message: str) -> None:
    with pytest.raises(d.InvalidRequestError) as caught:
        check_request(request_)
    assert caught.value.message.startswith(message)
    assert caught.value.message == message or message.endswith(": ")
    assert caught.value.status is None


@given(st.lists(some.messages, max_size=5), st.lists(some.tools, max_size=2), some.tool_choices)
def test_any_request_is_accepted_or_rejected_with_an_error(
    messages: list[Any], tools: list[d.Tool], choice: Any
) -> None:
    outcome = ""
    try:
        check_request(d.Request(messages, tools=tools, tool_choice=choice))
    except d.InvalidRequestError as error:
        outcome = error.message
    answerable = bool(messages) and isinstance(messages[-1], d.User | d.ToolResult)
    assert outcome.startswith(
        ("messages", "the last message", "tool") if outcome or not answerable else ""
    )


# --- requests that exceed known capabilities ---------------------------------------------------

# A request that uses every feature that a model may lack.
EVERYTHING = d.Request([S, d.User([d.Text("u"), PNG])], tools=[T], response_schema=OBJECT)
DECLINED: list[tuple[dict[str, Any], Refusal, type[d.ProviderError], str]] = [
    ({"supports_images": False}, "no_vision_support", d.UnsupportedContentError,
     "messages[1].content[1]: this model is known not to see images"),
    ({"max_context_tokens": 999}, "exceeds_context_window", d.ContextOverflowError,
     "about 1000 tokens do not fit the model's window of 999"),
    ({"supports_tools": False}, "no_tool_support", d.UnsupportedFeatureError,
     "this model is known not to support tools"),
    ({"supports_system_prompt": False}, "no_system_prompt_support", d.UnsupportedFeatureError,
     "this model is known not to take a system prompt"),
    ({"supports_structured_output": False}, "no_structured_output_support",
     d.UnsupportedFeatureError, "this model is known not to support structured output"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "refusal", "kind", "message"), DECLINED)
def test_requests_that_exceed_known_capabilities_are_rejected(
    facts: dict[str, Any], refusal: Refusal, kind: type[d.ProviderError], message: str
) -> None:
    found = find_refusal(EVERYTHING, Capabilities.of(facts), 1000)
    assert found is not None
    word, error = found
    assert word == refusal
    assert type(error) is kind
    assert error.message == message


@given(st.sets(st.integers(0, 4)))
def test_first_of_several_reasons_to_reject_a_request_is_reported(which: set[int]) -> None:
    facts = {name: value for at in which for name, value in DECLINED[at][0].items()}
    found = find_refusal(EVERYTHING, Capabilities.of(facts), 1000)
    order = list(get_args(Refusal))
    expected = min((DECLINED[at][1] for at in which), key=order.index, default=None)
    assert (found and found[0]) == expected


@pytest.mark.parametrize("value", [True, None])
def test_supported_or_unknown_capabilities_do_not_reject_a_request(value: bool | None) -> None:
    facts = {
        name: value for facts, *_ in DECLINED for name in facts if name.startswith("supports")
    }
    assert find_refusal(EVERYTHING, Capabilities.of(facts), 1000) is None


@pytest.mark.parametrize(("estimate", "declined"), [(999, False), (1000, True), (None, False)])
def test_estimated_tokens_are_compared_with_the_context_window(
    estimate: int | None, declined: bool
) -> None:
    found = find_refusal(req(), Capabilities.of({"max_context_tokens": 999}), estimate)
    assert (found is not None) == declined


NOTHING = Capabilities.of(
    {
        "supports_images": False,
        "supports_documents": False,
        "supports_tools": False,
        "supports_system_prompt": False,
        "supports_structured_output": False,
    }
)


@pytest.mark.parametrize("messages", [[U], [U, d.Assistant([d.Opaque(1)]), d.User([d.Text("u")])]])
def test_only_features_that_a_request_uses_are_checked(messages: Sequence[Any]) -> None:
    assert find_refusal(d.Request(messages), NOTHING) is None


PDF = d.Document(d.Url("u"))
JPEG = d.Image(d.Inline("aGk="), "image/jpeg")
GIF = d.Image(d.Url("data:image/gif;base64,aGk="))
PLAIN = d.Image(d.Url("u"))
MEDIA: list[tuple[list[Any], dict[str, Any], str | None]] = [
    ([d.User([PDF])], {"supports_documents": False},
     "messages[0].content[0]: this model is known not to read documents"),
    ([d.User([PDF])], {"supports_images": False}, None),
    ([d.User([PNG])], {"supports_documents": False}, None),
    ([U, CALL, d.ToolResult("1", [d.Text("r"), PNG])], {"supports_images": False},
     "messages[2].content[1]: this model is known not to see images"),
    ([d.User([PNG, JPEG])], {"accepted_image_media_types": ["image/png"]},
     "messages[0].content[1]: this model is known not to read image/jpeg"),
    ([d.User([GIF])], {"accepted_image_media_types": ["image/png"]},
     "messages[0].content[0]: this model is known not to read image/gif"),
    ([d.User([PNG, PLAIN])], {"accepted_image_media_types": ["image/png"]}, None),
    ([d.User([PDF])], {"accepted_image_media_types": []}, None),
    ([d.User([d.Image(d.Url("u"), "image/jpeg")])], {"accepted_image_media_types": ["image/png"]}, None),
    ([d.User([PNG])], {"supports_images": True, "supports_documents": True}, None),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "facts", "message"), MEDIA)
def test_unsupported_media_are_rejected(
    messages: list[Any], facts: dict[str, Any], message: str | None
) -> None:
    found = find_refusal(d.Request(messages), Capabilities.of(facts))
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] == "no_vision_support"
        assert found[1].message == message


# --- nesting depth, non-finite numbers and other borderline requests ---------------------------


def nest(levels: int) -> Any:
    value: Any = ()
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda value: d.Request((d.User("a"),), config=d.RuntimeConfig(extras={"x": value})),
         "config.extras"),
        (lambda value: d.Request((d.User("a"), d.Assistant([d.ToolCall("c", "t", {"x": value})]),
                                d.ToolResult("c", "r"))), "messages[1].content[0].arguments"),
        (lambda value: d.Request((d.User("a"), d.Assistant([d.Opaque({"x": value})]), d.User("b"))),
         "messages[1].content[0].data"),
    ],
)  # fmt: skip
def test_nesting_depth_of_requests_is_limited(make: Any, path: str) -> None:
    check_request(make(nest(126)))
    for levels in (128, 5000):
        with pytest.raises(d.InvalidRequestError) as caught:
            check_request(make(nest(levels)))
        assert caught.value.message == f"{path} is nested more than 128 levels deep"


def test_earlier_tool_calls_are_accepted_even_if_the_tools_changed() -> None:
    check_request(req(U, BAD_CALL, R, tools=[d.Tool("f", "", parameters=NUMBER)]), history=False)


def test_paused_reply_may_be_the_last_message() -> None:
    messages = [d.User("hi"), d.Assistant("Searching.")]
    check_request(d.Request(messages, continues=True))
    with pytest.raises(d.InvalidRequestError, match=re.escape(LAST)):
        check_request(d.Request(messages))
    with pytest.raises(d.InvalidRequestError, match=re.escape(LAST)):
        check_request(d.Request([d.System("Be brief.")], continues=True))


@pytest.mark.parametrize("name", ["max_tokens", "seed"])
@pytest.mark.parametrize("value", [2**64, 10**400, -(2**65)])
def test_numbers_of_a_request_have_at_most_64_bits(name: str, value: int) -> None:
    config = d.RuntimeConfig(**{name: value})
    with pytest.raises(d.InvalidRequestError, match=f"config.{name} must be"):
        check_request(req(config=config))
