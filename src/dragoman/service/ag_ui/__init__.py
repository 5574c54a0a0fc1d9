"""AG-UI: what happens in a session as events of the protocol, and its requests as goals and answers.

Box: service.

The events and the input are those of ``@ag-ui/core`` 1.0.0 (npm, 2026-11-19).
"""

from .events import RunEvents
from .input import RunInput, read_resumed

__all__ = ["RunEvents", "RunInput", "read_resumed"]
