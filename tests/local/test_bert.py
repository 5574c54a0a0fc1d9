"""The weights of a BERT model in a package become a GGUF file with the same values."""

import json
import zipfile
from pathlib import Path

import gguf
import numpy as np

from dragoman.local.bert import write_gguf

CONFIG = {
    "vocab_size": 8, "hidden_size": 8, "max_position_embeddings": 4, "num_hidden_layers": 1,
    "intermediate_size": 16, "num_attention_heads": 2, "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}  # fmt: skip
WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "##s"]
SHAPES = {
    "embeddings.position_ids": (1, 4), "embeddings.word_embeddings.weight": (8, 8),
    "encoder.layer.0.attention.self.query.weight": (8, 8),
    "encoder.layer.0.intermediate.dense.bias": (16,),
    "encoder.layer.0.intermediate.dense.weight": (16, 8), "pooler.dense.weight": (8, 8),
}  # fmt: skip
NAMES = {
    "token_embd.weight": "embeddings.word_embeddings.weight",
    "blk.0.attn_q.weight": "encoder.layer.0.attention.self.query.weight",
    "blk.0.ffn_up.bias": "encoder.layer.0.intermediate.dense.bias",
    "blk.0.ffn_up.weight": "encoder.layer.0.intermediate.dense.weight",
}


def test_weights_and_vocabulary_are_converted(tmp_path: Path) -> None:
    values = {name: np.random.default_rng(7).random(SHAPES[name], "f4") for name in SHAPES}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, value in values.items():
        places = [offset, offset := offset + value.nbytes]
        header[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": places}
    text = json.dumps(header).encode()
    data = b"".join(value.tobytes() for value in values.values())
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("m/config.json", json.dumps(CONFIG))
        archive.writestr("m/vocab.txt", "\n".join([*WORDS, ""]))
        archive.writestr("m/model.safetensors", len(text).to_bytes(8, "little") + text + data)
    path = tmp_path / "model.gguf"
    with zipfile.ZipFile(tmp_path / "x.whl") as archive, path.open("wb") as target:
        write_gguf(archive, "m/model.safetensors", target)

    found = gguf.GGUFReader(path)
    assert {tensor.name for tensor in found.tensors} == set(NAMES)
    for tensor in found.tensors:
        assert np.array_equal(tensor.data, values[NAMES[tensor.name]])
    facts = {name: field.contents() for name, field in found.fields.items()}
    assert facts["general.architecture"] == "bert"
    assert facts["bert.embedding_length"] == 8
    assert facts["bert.attention.causal"] is False
    assert facts["tokenizer.ggml.tokens"] == [*WORDS[:6], "▁river", "s"]
    assert facts["tokenizer.ggml.token_type"] == [3, 5, 3, 3, 3, 3, 1, 1]
    assert facts["tokenizer.ggml.seperator_token_id"] == WORDS.index("[SEP]")
