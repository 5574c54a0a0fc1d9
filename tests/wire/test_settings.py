"""A setting is sent only by the wires that name it."""

import subprocess
import sys

import msgspec
import pytest

import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS, settings
from dragoman.wire.endpoint import Endpoint

# Load the table of settings as if it had one more, then ask every wire to send it.
LATER = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader

class Later(SourceFileLoader):
    def get_code(self, name):
        source = self.get_source(name)
        assert '"seed": Fields.whole,' in source
        return compile(source.replace('"seed":', '"tempo": Fields.number, "seed":'), "later", "exec")

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        if name == "dragoman.wire.settings":
            spec.loader = Later(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)
import dragoman as d
from dragoman.capabilities import Capabilities
from dragoman.wire import CODECS
from dragoman.wire.settings import find_lacking

class Longer(d.RuntimeConfig):
    tempo: float | None = None

for wire in CODECS:
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9/v1", None, Capabilities())
    codec.encode(d.Request([d.User("x")], config=Longer(max_tokens=5)))
    assert "tempo" in find_lacking(codec.setting_paths), wire
    try:
        codec.encode(d.Request([d.User("x")], config=Longer(max_tokens=5, tempo=1.0)))
    except d.UnsupportedFeatureError as error:
        assert "config.tempo: this wire has no such setting" in str(error), wire
    else:
        sys.exit(f"{wire} sends a setting that it does not name")
"""


def test_new_setting_is_rejected_by_every_wire_that_does_not_name_it() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize("wire", CODECS)
def test_gateway_omits_exactly_the_settings_that_the_wire_rejects(wire: str) -> None:
    codec = CODECS[wire].connect("m", "http://127.0.0.1:9/v1", None, Capabilities())
    assert isinstance(codec, Endpoint)
    rejected = []
    for name in settings._READERS:  # noqa: SLF001
        value = {"stop_sequences": ("x",), "temperature": 0.5}.get(name, 1)
        config = msgspec.structs.replace(d.RuntimeConfig(max_tokens=5), **{name: value})
        try:
            codec.encode(d.Request([d.User("x")], config=config))
        except d.UnsupportedFeatureError:
            rejected.append(name)
    assert settings.find_lacking(codec.setting_paths) == rejected
