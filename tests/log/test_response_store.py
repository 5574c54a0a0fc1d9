"""Test the gateway's store of responses in PostgreSQL."""

from dragoman.gateway.store import ResponseStore


async def test_stored_responses_are_visible_to_their_owner_only(address: str) -> None:
    store = ResponseStore(address)
    other = ResponseStore(address)
    await store.put("ann", [("response", "r1", {"a": 1}), ("response", "r2", {"a": [2]})])
    await store.put("ann", [("response", "r1", {"a": 3})])
    assert await other.get("ann", "response", ["r1", "r2", "r3"]) == {
        "r1": {"a": 3},
        "r2": {"a": [2]},
    }
    assert await other.get("bob", "response", ["r1"]) == {}
    assert await other.delete("bob", "response", "r1") is False
    assert await other.delete("ann", "response", "r1") is True
    assert await store.get("ann", "response", ["r1"]) == {}
    store.close()
    other.close()
