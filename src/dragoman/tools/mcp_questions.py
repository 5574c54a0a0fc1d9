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
        """Return the answer to a question as the protocol has it: accepted or declined."""
        question = str(params.get("message"))[:_MAX_QUESTION]
        schema = params.get("requestedSchema")
        decision, answer = Decision(False, "nobody", "there is no approver to ask"), None
        if len(self.asked) >= _MAX_QUESTIONS or not isinstance(schema, dict):
            decision = Decision(False, "policy", "too many questions, or one without a form")
        elif self._ask is not None:
            decision, answer = await self._decide(self._ask, question, schema)
        record = {"question": question, "by": decision.by, "reason": decision.reason}
        if len(self.asked) <= _MAX_QUESTIONS:
            self.asked.append({**record, "answer": answer})
        return {"action": "decline"} if answer is None else {"action": "accept", "content": answer}

    async def _decide(
        self, ask: Ask, question: str, schema: dict[str, Any]
    ) -> tuple[Decision, dict[str, Any] | None]:
        """Ask; the decision's input may have another answer than the defaults of the form."""
        fields = schema.get("properties")
        fields = fields if isinstance(fields, dict) else {}
        answer: Any = {
            name: each["default"]
            for name, each in fields.items()
            if isinstance(each, dict) and "default" in each
        }
        asked = {"question": question, "answer": answer, "fields": fields}
        self._asking = asyncio.ensure_future(ask(asked))
        decision = await self._asking
        if decision.allowed is not True:
            return decision, None
        answer = answer if decision.input is None else decision.input.get("answer")
        try:
            wrong = first_error(compile_schema(schema, "the form"), answer)
        except InvalidRequestError as error:
            wrong = error.message
        if wrong is not None:
            return Decision(False, decision.by, f"the answer does not fit the form: {wrong}"), None
        return decision, answer

    def close(self) -> None:
        """Stop asking: the call has ended."""
        if self._asking is not None:
            self._asking.cancel()
