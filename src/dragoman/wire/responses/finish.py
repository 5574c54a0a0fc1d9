"""The finish reasons of the responses wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "completed",
        "length": "max_output_tokens",
        "content_filter": "content_filter",
    },
    # mistral.rs sends ``complete``
    read_only={
        "stop": "complete",
        "length": "max_tokens",
    },
)
