"""Convert the weights of a BERT model, as packages contain them, to a GGUF file for llama.cpp.

Both formats consist of a header and the values of the tensors in 32-bit floating point. The values
are copied; only the header is converted.
"""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from typing import IO, Any

from .store import BLOCK

_ALIGNMENT = 32  # GGUF aligns the values of each tensor; the sizes of the tensors are multiples

_TENSORS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
"""The names of tensors in ``model.safetensors``, without the number of the layer, and in GGUF."""

# llama.cpp spells one of the keys like this.
_SPECIAL = {"bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]", "unknown": "[UNK]"}
_SPECIAL |= {"padding": "[PAD]", "mask": "[MASK]"}


def write_gguf(archive: zipfile.ZipFile, member: str, target: IO[bytes]) -> None:
    """Convert ``model.safetensors``, with the files next to it, to GGUF and write it."""
    folder = member.removesuffix("model.safetensors")
    config = json.loads(archive.read(f"{folder}config.json"))
    words = archive.read(f"{folder}vocab.txt").decode().split("\n")[: config["vocab_size"]]
    facts = _describe(config, words)
    with archive.open(member) as weights:
        length = int.from_bytes(weights.read(8), "little")
        tensors = sorted(
            (*each["data_offsets"], name, each["shape"])
            for source, each in json.loads(weights.read(length)).items()
            if (name := _rename(source)) is not None
        )
        first = int(tensors[0][0])
        last = int(tensors[-1][1])
        header = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts))]
        for key, value in facts.items():
            kind, data = _pack(value)
            header += [_pack(key)[1], struct.pack("<I", kind), data]
        for start, _, name, shape in tensors:
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            header += [_pack(name)[1], sizes, struct.pack("<IQ", 0, start - first)]  # 0: 32-bit
        written = target.write(b"".join(header))
        written += target.write(bytes(-written % _ALIGNMENT))
        weights.seek(8 + length + first)
        shutil.copyfileobj(weights, target, BLOCK)
        target.truncate(written + last - first)


def _rename(source: str) -> str | None:
    """Return the name of a tensor in GGUF; ``None`` if llama.cpp does not use the tensor."""
    place, _, end = source.removeprefix("encoder.layer.").rpartition(".")
    number, _, rest = place.partition(".")
    if number.isdigit():
        return f"blk.{number}.{_TENSORS[rest]}.{end}"
    return f"{_TENSORS[place]}.{end}" if place in _TENSORS else None


def _describe(config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """Return the metadata of a model and its tokenizer in GGUF's terms."""
    pieces = []
    kinds = []
    for word in words:
        if word in _SPECIAL.values() or word.startswith("[unused"):
            kinds.append(3 if word in _SPECIAL.values() else 5)
            pieces.append(word)
            continue
        # llama.cpp marks the first piece of a word; BERT's vocabulary marks the other pieces.
        kinds.append(1)
        pieces.append(word[2:] if word.startswith("##") else f"▁{word}")
    return {
        "general.architecture": "bert",
        "bert.context_length": config["max_position_embeddings"],
        "bert.embedding_length": config["hidden_size"],
        "bert.block_count": config["num_hidden_layers"],
        "bert.feed_forward_length": config["intermediate_size"],
        "bert.attention.head_count": config["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": config["layer_norm_eps"],
        "bert.attention.causal": False,
        "bert.pooling_type": 1,  # the vector of a text is the mean of its tokens' vectors
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        **{f"tokenizer.ggml.{key}_token_id": words.index(_SPECIAL[key]) for key in _SPECIAL},
    }


def _pack(value: Any) -> tuple[int, bytes]:
    """Return the number of a value's type in GGUF, and the value as bytes."""
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else 5  # the integers of a list are signed
        items = [_pack(each)[1] for each in value]
        return 9, struct.pack("<IQ", kind, len(items)) + b"".join(items)
    number, form = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}[type(value)]
    return number, struct.pack(form, value)
