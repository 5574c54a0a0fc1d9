"""Judges behind HTTP: a service of your own, OpenAI's moderation endpoint, and Presidio."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import InvalidResponseError, UnavailableError, cut
from ...provider.auth import check_key
from ...transport import HttpTransport, Secret, Timeouts, Transport
from ...wire.codec import HttpRequest
from .subject import Action, Subject, Verdict

_JSON = {"Content-Type": "application/json", "Accept": "application/json"}
_MAX_REASON = 500


class HttpJudge:
    """A judge that posts each subject to a URL, and reads the verdict from the reply.

    It posts a JSON object with ``stage``, ``part``, ``text``, ``position``, ``final``,
    ``tool_name``, ``input``, ``request_id`` and ``model``, and reads an object with ``action``
    (``allow``, ``flag`` or ``block``) and, if given, ``code``, ``reason``, ``version``, or the
    ``text`` or ``input`` of a ``rewrite``. The key is sent to this address only, as a bearer
    token. ``retries`` is how often it asks again after a failed connection or a status of 429 or
    5xx; the guard's deadline limits all attempts together. A reply of more than 1 MB is an error.
    """

    name = "http"

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        retries: int = 0,
        name: str | None = None,
        transport: Transport | None = None,
    ) -> None:
        if not url.startswith(("https://", "http://")):
            raise ValueError("HttpJudge: url must begin with https:// or http://")
        if not 0 <= retries <= 10:
            raise ValueError(f"HttpJudge: retries must be from 0 to 10, not {retries!r}")
        if api_key is not None:
            check_key(api_key)
        self.name = name or self.name
        self._url = url
        self._credentials = {"Authorization": Secret(f"Bearer {api_key}")} if api_key else {}
        self._retries = retries
        self._transport = transport or HttpTransport()

    async def __call__(self, subject: Subject) -> Verdict:
        question = HttpRequest(
            "POST", self._url, dict(_JSON), msgspec.json.encode(self.ask(subject))
        )
        for attempt in range(self._retries + 1):
            try:
                return self.read(await self._send(question))
            except UnavailableError:
                if attempt == self._retries:
                    raise
                await asyncio.sleep(0.1 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, question: HttpRequest) -> Any:
        reply = await self._transport.exchange(question, self._credentials, Timeouts())
        if reply.status == 429 or reply.status >= 500:
            raise UnavailableError("the judge is not available", status=reply.status)
        if reply.status != 200:
            raise InvalidResponseError("the judge rejected the question", status=reply.status)
        try:
            return msgspec.json.decode(reply.body)
        except ValueError:
            raise InvalidResponseError("the judge sent no JSON") from None

    def ask(self, subject: Subject) -> dict[str, Any]:
        """Return the body of the question."""
        return {
            "stage": subject.stage,
            "part": subject.part,
            "text": subject.text,
            "position": subject.position,
            "final": subject.final,
            "tool_name": subject.tool_name,
            "input": subject.input,
            "request_id": subject.request.request_id,
            "model": subject.request.model,
        }

    def read(self, answer: Any) -> Verdict:
        """Read the verdict from the reply."""
        return msgspec.convert(answer, _Answer).verdict()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class _Answer(msgspec.Struct):
    action: Action
    code: str | None = None
    reason: str | None = None
    version: str | None = None
    text: str | None = None
    input: dict[str, Any] | None = None

    def verdict(self) -> Verdict:
        return Verdict(
            self.action,
            self.reason,
            code=self.code,
            text=self.text,
            input=self.input,
            version=self.version,
        )


class _Reader(HttpJudge):
    """An ``HttpJudge`` that asks about the text alone; a text without content is allowed unasked."""

    async def __call__(self, subject: Subject) -> Verdict:
        if not subject.text.strip():
            return Verdict("allow")
        return await super().__call__(subject)

    @abstractmethod
    def ask(self, subject: Subject) -> dict[str, Any]: ...


class Moderations(_Reader):
    """A judge that asks an endpoint like OpenAI's ``/v1/moderations``.

    ``action`` applies if the endpoint flags a text, or, with ``categories``, if it flags one of
    them. The code is the first flagged category.
    """

    name = "moderations"

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        categories: Sequence[str] = (),
        action: Action = "block",
        **settings: Any,
    ) -> None:
        super().__init__(url, **settings)
        self._model = model
        self._categories = frozenset(categories)
        self._action: Action = action

    def ask(self, subject: Subject) -> dict[str, Any]:
        named = {} if self._model is None else {"model": self._model}
        return {**named, "input": subject.text}

    def read(self, answer: Any) -> Verdict:
        found = msgspec.convert(answer, _Moderated)
        flagged = [name for each in found.results for name, hit in each.categories.items() if hit]
        if self._categories:
            flagged = [name for name in flagged if name in self._categories]
        is_flagged = bool(flagged) or (
            not self._categories and any(each.flagged for each in found.results)
        )
        if not is_flagged:
            return Verdict("allow", version=found.model)
        code = flagged[0] if flagged else "flagged"
        return Verdict(
            self._action, ", ".join(flagged)[:_MAX_REASON], code=code, version=found.model
        )


class _Result(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}


class _Moderated(msgspec.Struct):
    results: list[_Result]
    model: str | None = None


class Presidio(_Reader):
    """A judge that asks the analyzer of Microsoft Presidio, at ``/analyze``, about personal data.

    ``action`` applies if it finds one of ``entities`` (all that it knows, by default) with a score
    of at least ``threshold``. The code is the kind of the first.
    """

    name = "presidio"

    def __init__(
        self,
        url: str,
        *,
        entities: Sequence[str] = (),
        language: str = "en",
        threshold: float = 0.5,
        action: Action = "block",
        **settings: Any,
    ) -> None:
        super().__init__(url, **settings)
        if not 0 <= threshold <= 1:
            raise ValueError(f"Presidio: threshold must be from 0 to 1, not {threshold!r}")
        self._entities = list(entities)
        self._language = language
        self._threshold = threshold
        self._action: Action = action

    def ask(self, subject: Subject) -> dict[str, Any]:
        wanted = {"entities": self._entities} if self._entities else {}
        return {
            "text": subject.text,
            "language": self._language,
            "score_threshold": self._threshold,
            **wanted,
        }

    def read(self, answer: Any) -> Verdict:
        found = msgspec.convert(answer, list[_Entity])
        kinds = [each.entity_type for each in found if each.score >= self._threshold]
        if not kinds:
            return Verdict("allow")
        return Verdict(
            self._action, cut(", ".join(dict.fromkeys(kinds)), _MAX_REASON), code=kinds[0]
        )


class _Entity(msgspec.Struct):
    entity_type: str
    score: float
