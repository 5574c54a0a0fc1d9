"""Test every rejection of a request, the path it names, and the order of capability checks."""

# mypy: disable-error-code="arg-type,list-item"

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.capabilities import Capabilities, Refusal
from dragoman.errors import (
    ContextOverflowError,
    InvalidRequestError,
    ProviderError,
    UnsupportedContentError,
    UnsupportedFeatureError,
)
from dragoman.messages import (
    EFFORTS,
    Assistant,
    Continuity,
    Document,
    ForceTool,
    Image,
    Inline,
    Issuer,
    Opaque,
    RedactedThinking,
    Request,
    RuntimeConfig,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Url,
    User,
)
from dragoman.validate import check_request, find_refusal
from tests import strategies as some

U, A, S, R = User("u"), Assistant("a"), System("s"), ToolResult("1", "r")
CALL = Assistant(tool_calls=[ToolCall("1", "f", {})])
PNG = Image(Inline("aGk="), "image/png")
T = Tool("t")
NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}}
GOOD_CALL = Assistant(tool_calls=[ToolCall("1", "f", {"a": 1}), ToolCall("2", "f", {"a": 2})])
BAD_CALL = Assistant(tool_calls=[ToolCall("1", "f", {"a": "no"})])
OBJECT = {"type": "object"}


def req(*messages: Any, **fields: Any) -> Request:
    return Request(messages or (U,), **fields)


# --- valid requests ----------------------------------------------------------------------------

SOUND: list[Request] = [
    req(U),
    req(S, S, U),
    req(S, U, A, U),
    req(U, A, A, U, U),
    req(U, CALL, R),
    req(U, CALL, R, CALL, R, U),
    req(U, Assistant(tool_calls=[ToolCall("1", "f", {}), ToolCall("2", "f", {})]),
        ToolResult("2", "b"), R),
    req(U, CALL, CALL, R, R),
    req(U, CALL, U),
    req(U, CALL, ToolResult("1", "")),
    req(U, CALL, ToolResult("1", [Text("r"), PNG])),
    req(U, CALL, ToolResult("1", ())),
    req(U, Assistant([Thinking("t"), RedactedThinking("d"), Opaque(1), Text("", Continuity("s"))]),
        U),
    req(User([Text("u"), PNG, Image(Url("https://x")), Document(Url("u")),
              Document(Inline("aGk="))])),
    req(U, Assistant([Text("a"), Text("")]), U),
    req(U, Assistant([Text(""), ToolCall("1", "f", {"a": [1, {"b": None}]})]), R),
    req(U, GOOD_CALL, R, tools=[Tool("f", "", NUMBER)]),
    # The request does not offer this tool any more.
    req(U, BAD_CALL, R, tools=[Tool("g", "", NUMBER)]),
    req(U, BAD_CALL, ToolResult("1", "a must be an integer", True), tools=[Tool("f", "", NUMBER)]),
    req(User([Image(Inline("aGk="), "Image/PNG", "low"),
              Document(Url("u"), "application/pdf", "a.pdf")])),
    req(User([Text("a", Continuity("s", issuer=Issuer("gemini")))])),
    req(tools=[T, Tool("u", "d", OBJECT), Tool("v", "d", {}), Tool("w", strict=True)]),
    req(config=RuntimeConfig(reasoning=1024)),
    req(tool_choice="auto"),
    req(tool_choice="none"),
    req(tools=[T], tool_choice="required"),
    req(tools=[T], tool_choice=ForceTool("t")),
    req(response_schema=OBJECT),
    req(config=RuntimeConfig(0, 1, 0.5, -1, -2, 2.0, ["a"], "low", {"x": object()})),
    req(config=RuntimeConfig(stop_sequences=[])),
]  # fmt: skip


@pytest.mark.parametrize("request_", SOUND)
def test_valid_requests_are_accepted(request_: Request) -> None:
    check_request(request_)


# --- invalid requests --------------------------------------------------------------------------

REASONING = f"config.reasoning must be one of {', '.join(EFFORTS)}, or a number of tokens, not "
LAST = "the last message must be the user's or a tool's: there is nothing to answer"
REFUSED: list[tuple[Request, str]] = [
    (Request(()), "messages is empty"),
    (req(U, config=RuntimeConfig(cache="always")),
     'config.cache must be "auto", "off" or a PromptCache'),  # type: ignore[arg-type]
    (req(S), LAST),
    (req(U, A), LAST),
    (req({"role": "user"}), LAST),
    (req(U, S, U), "messages[1]: a system message may only lead the conversation"),
    (req(S, U, S, U), "messages[2]: a system message may only lead the conversation"),
    (req(System(""), U), "messages[0].content must be non-empty text"),
    (req(System([Text("s")]), U), "messages[0].content must be non-empty text"),
    (req(A, U), "messages[0]: the conversation must begin with the user"),
    (req(S, R), "messages[1]: the conversation must begin with the user"),
    (req(U, 5, U), "messages[1] is not a message but int"),
    # invalid user messages
    (req(User("")), "messages[0].content is empty"),
    (req(User(())), "messages[0].content is empty"),
    (req(User(5)), "messages[0].content must be text or blocks, not int"),
    (req(User([Text("")])), "messages[0].content[0].text is empty"),
    (req(User([Text("a"), Thinking("t")])),
     "messages[0].content[1]: Thinking cannot be said by this role"),
    (req(User(["a"])), "messages[0].content[0]: str cannot be said by this role"),
    (req(User([Image(Url(""))])),
     "messages[0].content[0].source must be a Url or Inline with content"),
    (req(User([Image(5)])), "messages[0].content[0].source must be a Url or Inline with content"),
    (req(User([Document(Url(""))])),
     "messages[0].content[0].source must be a Url or Inline with content"),
    (req(User([Image(Inline(""), "image/png")])),
     "messages[0].content[0].source.base64_data is empty"),
    (req(User([Image(Inline("aGk="))])),
     "messages[0].content[0].media_type is required for inline content"),
    (req(User([Document(Inline("aGk="), "")])),
     "messages[0].content[0].media_type is required for inline content"),
    (req(User([Image(Inline("aGk="), "text/html")])),
     "messages[0].content[0].media_type must be an image type, not 'text/html'"),
    # values of the wrong type
    (req(User([Text(5)])), "messages[0].content[0].text must be a string, not an integer"),
    (req(User([Text("a", 5)])),
     "messages[0].content[0].continuity must be a Continuity, not an integer"),
    (req(User([Image(Url(5))])),
     "messages[0].content[0].source.url must be a string, not an integer"),
    (req(User([Image(Inline(b"abc"), "image/png")])),
     "messages[0].content[0].source.base64_data must be base64 text; Image(data) takes bytes"),
    (req(User([Image(Inline(5), "image/png")])),
     "messages[0].content[0].source.base64_data must be a string, not an integer"),
    (req(User([Image(Url("u"), detail="ultra")])),
     "messages[0].content[0].detail must be one of auto, low, high, not 'ultra'"),
    (req(User([Image(Url("u"), 5)])),
     "messages[0].content[0].media_type must be a string, not an integer"),
    (req(User([Document(Url("u"), "application/pdf", 5)])),
     "messages[0].content[0].name must be a string, not an integer"),
    (req(U, Assistant([Text(5)]), U),
     "messages[1].content[0].text must be a string, not an integer"),
    (req(U, Assistant([Thinking(None)]), U),
     "messages[1].content[0].text must be a string, not null"),
    (req(U, Assistant([RedactedThinking(5)]), U),
     "messages[1].content[0].data must be a string, not an integer"),
    (req(U, Assistant([Text("a", Continuity(5))]), U),
     "messages[1].content[0].continuity.signature must be a string, not an integer"),
    (req(U, Assistant([ToolCall(5, "f", {})]), U),
     "messages[1].content[0].id must be a string, not an integer"),
    (req(U, Assistant([ToolCall("1", 5, {})]), U),
     "messages[1].content[0].name must be a string, not an integer"),
    (req(U, Assistant([ToolCall("1", "f", [])]), U),
     "messages[1].content[0].arguments must be an object, not a list"),
    (req(U, Assistant([ToolCall("1", "f", {"a": [b"x"]})]), U),
     "messages[1].content[0].arguments must be JSON; bytes is not"),
    (req(U, Assistant([ToolCall("1", "f", {"a": {5: 1}})]), U),
     "messages[1].content[0].arguments must be JSON, whose keys are strings"),
    (req(U, CALL, ToolResult(5, "r")),
     "messages[2].tool_call_id must be a string, not an integer"),
    (req(U, CALL, ToolResult("1", "r", "no")),
     "messages[2].is_error must be true or false, not a string"),
    (req(tools=[Tool(5)]), "tools[0].name must be a string, not an integer"),
    (req(tools=[Tool("g", None)]), "tools[0].description must be a string, not null"),
    (req(tools=[Tool("g", strict="yes")]), "tools[0].strict must be true or false, not a string"),
    (req(tool_choice="any"), "tool_choice must be auto, required, none or a ForceTool, not 'any'"),
    (req(config=RuntimeConfig(reasoning="much")), REASONING + "'much'"),
    (req(config=RuntimeConfig(reasoning=True)), REASONING + "True"),
    # invalid arguments of earlier calls
    (
        req(U, BAD_CALL, R, tools=[Tool("f", "", NUMBER)]),
        "messages[1].content[0].arguments violate the parameters of 'f': \"no\" is not of type \"integer\" at /a",
    ),
    # invalid assistant messages
    (req(U, Assistant(), U), "messages[1]: an assistant message needs text or tool calls"),
    (req(U, Assistant([Text("")]), U),
     "messages[1]: an assistant message needs text or tool calls"),
    (req(U, Assistant([Text(""), Text("")]), U),
     "messages[1]: an assistant message needs text or tool calls"),
    (req(U, Assistant([Text("a"), PNG]), U),
     "messages[1].content[1]: Image cannot be said by this role"),
    (req(U, Assistant([Document(Url("u"))]), U),
     "messages[1].content[0]: Document cannot be said by this role"),
    (req(U, Assistant(["a"]), U), "messages[1].content[0]: str cannot be said by this role"),
    (req(U, Assistant([ToolCall("", "f", {})]), U),
     "messages[1].content[0]: a tool call needs an id and a name"),
    (req(U, Assistant([ToolCall("1", "", {})]), U),
     "messages[1].content[0]: a tool call needs an id and a name"),
    (req(U, Assistant([ToolCall("1", "f", {}), ToolCall("1", "g", {})]), U),
     "messages[1].content[1].id is used twice in this message"),
    (req(U, Assistant([ToolCall("1", "f", None)]), U),
     "messages[1].content[0].arguments could not be read when it arrived; repair or remove it"),
    # invalid tool results
    (req(U, R), "messages[1].tool_call_id matches no earlier tool call"),
    (req(U, R, CALL, U), "messages[1].tool_call_id matches no earlier tool call"),
    (req(U, CALL, R, R), "messages[3].tool_call_id: this call was answered before"),
    (req(U, CALL, ToolResult("1", [Text("")])), "messages[2].content[0].text is empty"),
    (req(U, CALL, ToolResult("1", None)),
     "messages[2].content must be text or blocks, not NoneType"),
    (req(U, CALL, ToolResult("1", [Thinking("t")])),
     "messages[2].content[0]: Thinking cannot be said by this role"),
    # invalid tool definitions
    (req(tools=[T, {"name": "t"}]), "tools[1] is not a Tool but dict"),
    (req(tools=[Tool("")]), "tools[0].name is empty"),
    (req(tools=[T, Tool("u"), T]), "tools[2].name: 't' is used twice"),
    (req(tools=[Tool("t", "", {"type": "objekt"})]),
     "tools[0].parameters is not a valid JSON Schema: "),
    (req(tools=[T, Tool("u", "", True)]),
     "tools[1].parameters must be a JSON Schema object, not bool"),
    (req(tools=[Tool("t", "", {"type": "string"})]),
     'tools[0].parameters must be an object schema: "type": "object" at its root'),
    (req(tools=[Tool("t", "", {"type": ["object", "null"]})]),
     'tools[0].parameters must be an object schema: "type": "object" at its root'),
    (req(tools=[Tool("t", "", {"$ref": "file:///etc/passwd"})]),
     "tools[0].parameters is not a valid JSON Schema: "),
    # invalid tool choices
    (req(tool_choice="required"), "tool_choice asks for a tool call, and tools is empty"),
    (req(tool_choice=ForceTool("t")), "tool_choice asks for a tool call, and tools is empty"),
    (req(tools=[T], tool_choice=ForceTool("u")),
     "tool_choice forces 'u', which is not among tools"),
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
        (req(config=RuntimeConfig(**{name: value})), f"config.{name} must be a finite number")
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
        for value in (True, "1", float("nan"), float("inf"), 10**400, -(10**400))
    ],
    *[
        (req(config=RuntimeConfig(**{name: value})), f"config.{name} must be a whole number")
        for name in ("max_tokens", "seed")
        for value in (True, "1", 1.0)
    ],
    (req(config=RuntimeConfig(stop_sequences="a")),
     "config.stop_sequences must be a list of texts"),
    (req(config=RuntimeConfig(stop_sequences=[1])),
     "config.stop_sequences must be a list of texts"),
    (req(config=RuntimeConfig(extras=[])), "config.extras must be a mapping whose keys are text"),
    (req(config=RuntimeConfig(extras={1: 2})),
     "config.extras must be a mapping whose keys are text"),  # type: ignore[dict-item]
]  # fmt: skip


@pytest.mark.parametrize(("request_", "message"), REFUSED)
def test_invalid_requests_are_rejected(request_: Request, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(request_)
    assert caught.value.message.startswith(message)
    assert caught.value.message == message or message.endswith(": ")
    assert caught.value.status is None


@given(st.lists(some.messages, max_size=5), st.lists(some.tools, max_size=2), some.tool_choices)
def test_any_request_is_accepted_or_rejected_with_an_error(
    messages: list[Any], tools: list[Tool], choice: Any
) -> None:
    outcome = ""
    try:
        check_request(Request(messages, tools, tool_choice=choice))
    except InvalidRequestError as error:
        outcome = error.message
    answerable = bool(messages) and isinstance(messages[-1], User | ToolResult)
    assert outcome.startswith(
        ("messages", "the last message", "tool") if outcome or not answerable else ""
    )


# --- requests that exceed known capabilities ---------------------------------------------------

# A request that uses every feature that a model may lack.
EVERYTHING = Request([S, User([Text("u"), PNG])], tools=[T], response_schema=OBJECT)
DECLINED: list[tuple[dict[str, Any], Refusal, type[ProviderError], str]] = [
    ({"supports_images": False}, "no_vision_support", UnsupportedContentError,
     "messages[1].content[1]: this model is known not to see images"),
    ({"max_context_tokens": 999}, "exceeds_context_window", ContextOverflowError,
     "about 1000 tokens do not fit the model's window of 999"),
    ({"supports_tools": False}, "no_tool_support", UnsupportedFeatureError,
     "this model is known not to support tools"),
    ({"supports_system_prompt": False}, "no_system_prompt_support", UnsupportedFeatureError,
     "this model is known not to take a system prompt"),
    ({"supports_structured_output": False}, "no_structured_output_support",
     UnsupportedFeatureError, "this model is known not to support structured output"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "refusal", "kind", "message"), DECLINED)
def test_requests_that_exceed_known_capabilities_are_rejected(
    facts: dict[str, Any], refusal: Refusal, kind: type[ProviderError], message: str
) -> None:
    found = find_refusal(EVERYTHING, Capabilities.of(facts), 1000)
    assert found is not None
    word, error = found
    assert (word, type(error), error.message) == (refusal, kind, message)


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


@pytest.mark.parametrize("messages", [[U], [U, Assistant([Opaque(1)]), User([Text("u")])]])
def test_only_features_that_a_request_uses_are_checked(messages: Sequence[Any]) -> None:
    assert find_refusal(Request(messages), NOTHING) is None


PDF = Document(Url("u"))
JPEG = Image(Inline("aGk="), "image/jpeg")
PLAIN = Image(Url("u"))
MEDIA: list[tuple[list[Any], dict[str, Any], str | None]] = [
    ([User([PDF])], {"supports_documents": False},
     "messages[0].content[0]: this model is known not to read documents"),
    ([User([PDF])], {"supports_images": False}, None),
    ([User([PNG])], {"supports_documents": False}, None),
    ([U, CALL, ToolResult("1", [Text("r"), PNG])], {"supports_images": False},
     "messages[2].content[1]: this model is known not to see images"),
    ([User([PNG, JPEG])], {"accepted_image_media_types": ["image/png"]},
     "messages[0].content[1]: this model is known not to read image/jpeg"),
    ([User([PNG, PLAIN])], {"accepted_image_media_types": ["image/png"]}, None),
    ([User([PDF])], {"accepted_image_media_types": []}, None),
    ([User([Image(Url("u"), "image/jpeg")])], {"accepted_image_media_types": ["image/png"]}, None),
    ([User([PNG])], {"supports_images": True, "supports_documents": True}, None),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "facts", "message"), MEDIA)
def test_unsupported_media_are_rejected(
    messages: list[Any], facts: dict[str, Any], message: str | None
) -> None:
    found = find_refusal(Request(messages), Capabilities.of(facts))
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert (found[0], found[1].message) == ("no_vision_support", message)


# --- nesting depth, non-finite numbers and other borderline requests ---------------------------


def nest(levels: int) -> Any:
    value: Any = ()
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda value: Request((User("a"),), config=RuntimeConfig(extras={"x": value})),
         "config.extras"),
        (lambda value: Request((User("a"), Assistant([ToolCall("c", "t", {"x": value})]),
                                ToolResult("c", "r"))), "messages[1].content[0].arguments"),
        (lambda value: Request((User("a"), Assistant([Opaque({"x": value})]), User("b"))),
         "messages[1].content[0].data"),
    ],
)  # fmt: skip
def test_nesting_depth_of_requests_is_limited(make: Any, path: str) -> None:
    check_request(make(nest(126)))
    for levels in (128, 5000):
        with pytest.raises(InvalidRequestError) as caught:
            check_request(make(nest(levels)))
        assert caught.value.message == f"{path} is nested more than 128 levels deep"


def test_earlier_tool_calls_are_accepted_even_if_the_tools_changed() -> None:
    check_request(req(U, BAD_CALL, R, tools=[Tool("f", "", NUMBER)]), history=False)


def test_paused_reply_may_be_the_last_message() -> None:
    messages = [User("hi"), Assistant("Searching.")]
    check_request(Request(messages, continues=True))
    with pytest.raises(InvalidRequestError, match=LAST):
        check_request(Request(messages))
    with pytest.raises(InvalidRequestError, match=LAST):
        check_request(Request([System("Be brief.")], continues=True))
