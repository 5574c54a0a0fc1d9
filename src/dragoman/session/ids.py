"""Map between the two ids of a call: the session's, ``tu_<ulid>``, and the provider's."""

from __future__ import annotations


class ToolIds:
    """A session's two-way map between intents and call ids, for every provider it used.

    The provider that issued an id receives it again verbatim. Any other provider receives the
    intent's own id, so that ``call_1`` of two providers cannot be confused. The map is rebuilt
    from ``MessageRecorded.tool_ids`` in the log.
    """

    def __init__(self) -> None:
        self._outward: dict[tuple[str, str], str] = {}
        self._inward: dict[tuple[str, str], str] = {}

    def issue(self, provider: str, call_id: str, intent_id: str) -> None:
        """Register the id that a provider gave to an intent.

        If the provider has already used this id for another intent, the id still refers to that
        intent, and the new intent is sent under the session's own id for it.
        """
        if self._inward.get((provider, call_id), intent_id) != intent_id:
            # Some servers start every reply with call_0, but other servers reject a conversation
            # that repeats an id.
            call_id = intent_id
        self._outward[provider, intent_id] = call_id
        self._inward[provider, call_id] = intent_id

    def to_provider(self, provider: str, intent_id: str) -> str:
        """Return the call id to send to a provider for an intent."""
        known = self._outward.get((provider, intent_id))
        if known is None:
            self.issue(provider, intent_id, intent_id)
            known = intent_id
        return known

    def to_intent(self, provider: str, call_id: str) -> str | None:
        """Return the intent's id for a provider's call id; ``None`` if the call id is unknown."""
        return self._inward.get((provider, call_id))
