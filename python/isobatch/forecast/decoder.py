"""The arithmetic of a dense decoder: parameters, operations and stored activations, from its `config.json`.

The file is read as data: nothing in it is imported or run. Operations are those of Chowdhery et al. 2022
(PaLM, arXiv 2204.02311, appendix B): 6 for each parameter of a matrix product and token, and 12 · layers ·
heads · head size · span for the attention's two products, a causal mask not taken off. Activations are
counted as in Korthikanti et al. 2022 (arXiv 2205.05198, section 4): for a GPT layer in 16 bits 34·s·h bytes a
sample, and 5·a·s² more where the attention's scores are kept.
"""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from isobatch.errors import InputError, missing, must_be, unreadable
from isobatch.files.whole import read_whole
from isobatch.limits import plain_whole
from isobatch.words import shown


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder.

    ``intermediate`` is the MLP's width, ``gated`` whether it has a gate beside it (SwiGLU, GeGLU);
    ``query_norm`` whether queries and keys have a norm of their own; ``biases`` whether all linear maps and
    norms have one, ``query_bias`` whether only queries, keys and values do; ``positions`` are learned ones;
    ``window`` is the farthest that attention looks back.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    gated: bool
    tied: bool
    biases: bool = False
    query_bias: bool = False
    query_norm: bool = False
    positions: int = 0
    window: int | None = None
    dropout: bool = False

    @property
    def query(self) -> int:
        """The width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """The width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrix products."""
        attention = 2 * self.hidden * (self.query + self.key_value)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        h, projections = self.hidden, self.query + 2 * self.key_value
        layer = self.layer_matrices + 2 * h
        norm = h
        if self.biases:
            layer += projections + h + self.intermediate + h + 2 * h
            norm += h
        if self.query_bias:
            layer += projections
        if self.query_norm:
            layer += 2 * self.head_dim
        embeddings = (self.vocabulary * (1 if self.tied else 2) + self.positions) * h
        return self.layers * layer + norm + embeddings

    def operations(self, seq_len: int) -> float:
        """Counts the floating-point operations of a sample of `seq_len` tokens, forward and backward."""
        matrices = self.layers * self.layer_matrices + self.vocabulary * self.hidden
        span = min(seq_len, self.window or seq_len)
        return float(seq_len) * (6 * matrices + 12 * self.layers * self.query * span)

    def layer_bytes(self, seq_len: int, width: int, *, keep_scores: bool) -> float:
        """Counts the bytes per sample for a layer's backward pass: `width` a value, 1 a dropout mask.

        >>> gpt = Decoder(family="gpt", layers=1, hidden=64, heads=4, kv_heads=4, head_dim=16,
        ...     intermediate=256, vocabulary=1,
        ...     gated=False, tied=True, dropout=True)
        >>> gpt.layer_bytes(10, 2, keep_scores=False) / (10 * 64), gpt.layer_bytes(10, 2,
        ...     keep_scores=True) - 34 * 640
        (34.0, 2000.0)
        """
        h, f = self.hidden, self.intermediate
        attention = h + self.query + 2 * self.key_value + self.query
        mlp = h + (4 if self.gated else 2) * f
        norms = 2 * h
        masks = 2 * h if self.dropout else 0
        stored = float(seq_len) * (width * (attention + mlp + norms) + masks)
        if keep_scores:
            scores = float(self.heads) * seq_len * seq_len
            stored += scores * ((2 * width + 1) if self.dropout else width)
        return stored

    def head_bytes(self, seq_len: int, width: int) -> float:
        """Counts the bytes per sample after the layers: the norm's and head's input, float32 logits."""
        return float(seq_len) * (2 * width * self.hidden + 4 * self.vocabulary)


_MAX_WIDTH = 2**31
Fields = Mapping[str, Any]

_NOT_DENSE = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
"""Fields that only a mixture of experts has."""


def read_model(path: str | os.PathLike[str]) -> Decoder:
    """Reads a decoder's shape from a config.json, or from its folder."""
    file = os.fspath(path)
    if Path(file).is_dir():
        file = os.fspath(Path(file) / "config.json")
    try:
        fields = json.loads(read_whole(file))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, InputError) else unreadable(error, file) from None
    try:
        return decoder_of(fields)
    except InputError as error:
        raise error.at(file=file) from None


def decoder_of(fields: Any) -> Decoder:
    """Returns the shape of a config's fields."""
    if not isinstance(fields, dict):
        raise must_be("a table of a model's fields", fields, field="the file")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise InputError(
            f"model_type is {shown(kind)}, estimates know {', '.join(_FAMILIES)}; for another dense "
            "model pass --parameters and --seq-len",
            field="model_type",
        )
    if experts := [name for name in _NOT_DENSE if fields.get(name)]:
        raise InputError(f"has {experts[0]}: mixtures of experts are not estimated", field=experts[0])
    if fields.get("quantization_config"):
        raise InputError(
            "has quantization_config: quantized weights are not estimated", field="quantization_config"
        )
    return _FAMILIES[kind](kind, fields)


def _count(fields: Fields, name: str, default: int | None = None) -> int:
    value = fields.get(name)
    if value is None:
        value = default
    if value is None:
        raise missing(name, "the model's size depends on it")
    number = plain_whole(value)
    if type(number) is not int or not 1 <= number <= _MAX_WIDTH:
        raise must_be("a whole number from 1 to 2^31", value, field=name)
    return number


def _flag(fields: Fields, name: str, default: bool) -> bool:
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise must_be("true or false", value, field=name)
    return default if value is None else value


def _drops(fields: Fields, *names: str, default: float = 0.0) -> bool:
    values = [fields.get(name, default) for name in names]
    return any(type(value) in (int, float) and value > 0 for value in values)


def _gpt2(kind: str, fields: Fields) -> Decoder:
    hidden, heads = _count(fields, "n_embd"), _count(fields, "n_head")
    return Decoder(
        family=kind,
        layers=_count(fields, "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=_divided(hidden, heads, "n_head"),
        intermediate=_count(fields, "n_inner", 4 * hidden),
        vocabulary=_count(fields, "vocab_size"),
        positions=_count(fields, "n_positions"),
        gated=False,
        tied=_flag(fields, "tie_word_embeddings", True),
        biases=True,
        dropout=_drops(fields, "resid_pdrop", default=0.1),
    )


def _gpt_neox(kind: str, fields: Fields) -> Decoder:
    if not _flag(fields, "attention_bias", True):
        raise InputError("attention_bias is false: only models with it are estimated", field="attention_bias")
    return _decoder(kind, fields, gated=False, biases=True, dropout=_drops(fields, "hidden_dropout"))


def _llama(kind: str, fields: Fields) -> Decoder:
    for name in ("attention_bias", "mlp_bias"):
        if _flag(fields, name, False):
            raise InputError(f"{name} is true: only models without these biases are estimated", field=name)
    return _decoder(kind, fields)


def _mistral(kind: str, fields: Fields) -> Decoder:
    window = None if fields.get("sliding_window") is None else _count(fields, "sliding_window")
    return _decoder(kind, fields, window=window)


def _decoder(kind: str, fields: Fields, *, gated: bool = True, tied: bool = False, **more: Any) -> Decoder:
    """Reads a model under the names of all but GPT-2."""
    hidden, heads = _count(fields, "hidden_size"), _count(fields, "num_attention_heads")
    head_dim = fields.get("head_dim")
    return Decoder(
        family=kind,
        layers=_count(fields, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_count(fields, "num_key_value_heads", heads),
        head_dim=_divided(hidden, heads, "num_attention_heads")
        if head_dim is None
        else _count(fields, "head_dim"),
        intermediate=_count(fields, "intermediate_size"),
        vocabulary=_count(fields, "vocab_size"),
        gated=gated,
        tied=_flag(fields, "tie_word_embeddings", tied),
        **more,
    )


def _divided(hidden: int, heads: int, field: str) -> int:
    if hidden % heads:
        raise must_be(f"a divisor of the width {hidden}", heads, field=field)
    return hidden // heads


_FAMILIES: dict[str, Callable[[str, Fields], Decoder]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": partial(_decoder, query_bias=True),
    "qwen3": partial(_decoder, query_norm=True),
    "gemma": partial(_decoder, tied=True),
    "phi3": _mistral,
}
