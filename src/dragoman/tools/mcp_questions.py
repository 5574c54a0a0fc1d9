"""Questions that an MCP server asks during a call, answered by the session's approver."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequestError
from ..permission import Decision
from ..validate.schema import compile_schema, first_error
from .runtime import Ask

_MAX_QUESTIONS = 10  # in one call
_MAX_QUESTION = 4000  # characters of a question to show and to record


class Questions:
    """The questions of one call, and what was decided about each."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._asking: asyncio.Future[Decision] | None = None
        self.asked: list[dict[str, Any]] = []

    async def answer(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a question in the protocol's form: accepted or declined.

        A server may also ask the user to visit a page. The approver is shown its URL, which is
        never opened here; to allow it means that the user opens it.
        """
        asked = {"question": str(params.get("message"))[:_MAX_QUESTION]}
        schema = params.get("requestedSchema")
        if params.get("mode") == "url":
            asked["url"] = str(params.get("url"))
            is_page = asked["url"].startswith(("https://", "http://"))
            schema = {} if is_page and len(asked["url"]) <= _MAX_QUESTION else None
        decision = Decision(False, "nobody", reason="there is no approver to ask")
        answer = None
        if len(self.asked) >= _MAX_QUESTIONS or not isinstance(schema, dict):
            reason = "too many questions, or one without a form or the URL of a page"
            decision = Decision(False, "policy", reason=reason)
        elif self._ask is not None:
            decision, answer = await self._decide(self._ask, asked, schema)
        record = {**asked, "by": decision.by, "reason": decision.reason, "answer": answer}
        if len(self.asked) <= _MAX_QUESTIONS:
            self.asked.append(record)
        if answer is None:
            return {"action": "decline"}
        return {"action": "accept"} | ({} if "url" in asked else {"content": answer})

    async def _decide(
        self, ask: Ask, asked: dict[str, Any], schema: dict[str, Any]
    ) -> tuple[Decision, dict[str, Any] | None]:
        """Ask the approver; the input of its decision may replace the defaults of the form."""
        fields = schema.get("properties")
        fields = fields if isinstance(fields, dict) else {}
        answer: Any = {
            name: each["default"]
            for name, each in fields.items()
            if isinstance(each, dict) and "default" in each
        }
        form = {} if "url" in asked else {"answer": answer, "fields": fields}
        self._asking = asyncio.ensure_future(ask(asked | form))
        decision = await self._asking
        if decision.allowed is not True:
            return decision, None
        if form and decision.input is not None:
            answer = decision.input.get("answer")
        try:
            wrong = first_error(compile_schema(schema, "the form"), answer)
        except InvalidRequestError as error:
            wrong = error.message
        if wrong is not None:
            return Decision(
                False, decision.by, reason=f"the answer does not fit the form: {wrong}"
            ), None
        return decision, answer

    def close(self) -> None:
        """Stop asking: the call has ended."""
        if self._asking is not None:
            self._asking.cancel()
