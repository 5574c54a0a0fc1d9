"""The finish reasons of the gemini wire, which both of its sides use."""

from ..finish import FinishWords

FINISH = FinishWords.of(
    {
        "stop": "STOP",
        "length": "MAX_TOKENS",
        # only Vertex AI sends MODEL_ARMOR
        "content_filter": "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY"
        " IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION MODEL_ARMOR",
        "error": "OTHER",
    },
)
