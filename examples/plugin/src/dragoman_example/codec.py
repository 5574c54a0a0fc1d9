"""A wire of a plugin: Chat Completions with one more header in every request."""

from typing import ClassVar

from msgspec.structs import replace

from dragoman.messages import Request
from dragoman.wire import Encoded
from dragoman.wire.openai.codec import OpenAICodec


class ExampleCodec(OpenAICodec):
    """The openai wire, with a header that names the plugin."""

    wire: ClassVar[str] = "example"

    def encode(self, request: Request) -> Encoded:
        encoded = super().encode(request)
        headers = {**encoded.http.headers, "x-plugin": "dragoman-example"}
        return replace(encoded, http=replace(encoded.http, headers=headers))
