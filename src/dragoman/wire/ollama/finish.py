"""The finish reasons of the ollama wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "stop load unload",
        "length": "length",
        # A guess: Ollama has no filter, and its clients accept any text as the reason.
        "content_filter": "content_filter",
    },
)
