"""Every response has the fields that Open Responses requires, whichever wire the model has.

``make scoreboards`` validates the same replies against the types of the specification.
"""

from typing import Any

from scoreboards.open_responses import REQUESTS, WIRES, collect

TEXT = (str,)
NUMBER = (int, float)
NOTHING = type(None)
# The required fields of a response, and the types of their values.
REQUIRED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "object", "status", "model", "truncation", "service_tier"), TEXT),
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty"), NUMBER),
    **dict.fromkeys(("created_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("output", "tools"), (list,)),
    **dict.fromkeys(("text", "metadata"), (dict,)),
    **dict.fromkeys(("completed_at", "max_output_tokens", "max_tool_calls"), (int, NOTHING)),
    **dict.fromkeys(("previous_response_id", "instructions"), (str, NOTHING)),
    **dict.fromkeys(("safety_identifier", "prompt_cache_key"), (str, NOTHING)),
    **dict.fromkeys(("error", "reasoning", "incomplete_details", "usage"), (dict, NOTHING)),
    "tool_choice": (str, dict),
}
EVENTS = {
    *(f"response.{step}" for step in ("created", "in_progress", "completed")),
    *(f"response.output_item.{step}" for step in ("added", "done")),
    *(f"response.content_part.{step}" for step in ("added", "done")),
    *(f"response.output_text.{step}" for step in ("delta", "done")),
    *(f"response.function_call_arguments.{step}" for step in ("delta", "done")),
}


def missing_fields(response: dict[str, Any]) -> list[str]:
    """Return the required fields that a response lacks, or that have another type."""
    return [
        name
        for name, kinds in REQUIRED.items()
        if name not in response or type(response[name]) not in kinds
    ]


async def test_responses_have_the_fields_that_open_responses_requires() -> None:
    cells = await collect()
    assert len(cells) == len(REQUESTS) * len(WIRES) == 49
    assert {key: found for key, found in cells.items() if isinstance(found, str)} == {}
    for key, found in cells.items():
        for each in found:
            assert isinstance(each, dict)
            response = each.get("response", each if "sequence_number" not in each else None)
            assert response is None or missing_fields(response) == [], key
        final = found[-1]
        assert isinstance(final, dict)
        final = final.get("response", final)
        assert final["completed_at"] >= final["created_at"], key
        assert final["usage"]["total_tokens"] > 0, key
        tools = [{"description", "parameters", "strict"} - set(tool) for tool in final["tools"]]
        assert tools == [set()] * len(tools), key
        events = {each["type"] for each in found if "sequence_number" in each}  # type: ignore[index]
        assert events <= EVENTS, key
