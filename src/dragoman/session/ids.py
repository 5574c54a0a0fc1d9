"""Two names for one call: ours, ``tu_<ulid>``, and the one a provider gave it or is told."""

from __future__ import annotations


class ToolIds:
    """A session's map between intents and call ids, both ways, for every provider it talked to.

    Whoever issued an id hears it again verbatim. Another provider is told the intent's own id instead,
    so that two providers' ``call_1`` are never taken for one another. The log holds all of it: the map
    is made anew from ``MessageRecorded.tool_ids``.
    """

    def __init__(self) -> None:
        self._outward: dict[tuple[str, str], str] = {}
        self._inward: dict[tuple[str, str], str] = {}

    def issue(self, provider: str, call_id: str, intent_id: str) -> None:
        """A provider called this intent by that id. An id it has used before stays the earlier call's."""
        if self._inward.get((provider, call_id), intent_id) != intent_id:
            call_id = intent_id  # some servers begin every reply with call_0, and others refuse a repeated id
        self._outward[provider, intent_id] = call_id
        self._inward[provider, call_id] = intent_id

    def to_provider(self, provider: str, intent_id: str) -> str:
        """What a provider is told an intent's call is named."""
        known = self._outward.get((provider, intent_id))
        if known is None:
            self.issue(provider, intent_id, intent_id)
            known = intent_id
        return known

    def to_intent(self, provider: str, call_id: str) -> str | None:
        """The intent a provider means by a call id, if it is known."""
        return self._inward.get((provider, call_id))
