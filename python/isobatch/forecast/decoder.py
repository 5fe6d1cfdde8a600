"""The arithmetic of a dense decoder: parameters, operations and kept activations, from its shape.

Operations are those of Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B): 6 for each parameter of a matrix product and token,
and 12 · layers · heads · head size · span for the attention's two products, a causal mask not taken off. Activations are
counted as in Korthikanti et al. 2022 (arXiv 2205.05198, section 4): for a GPT layer in 16 bits 34·s·h bytes a sample, and 5·a·s² more where the attention's
scores are kept.
"""

from __future__ import annotations

import msgspec


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder.

    ``intermediate`` is the MLP's width, ``gated`` whether it has a gate beside it (SwiGLU, GeGLU); ``query_norm`` whether queries
    and keys have a norm of their own; ``biases`` whether all linear maps and norms have one, ``query_bias`` whether only
    queries, keys and values do; ``positions`` are learned ones; ``window`` is the farthest that attention looks back.
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
        """All parameters, tied ones once.

        >>> gpt2 = Decoder(family="gpt2", layers=12, hidden=768, heads=12, kv_heads=12, head_dim=64, intermediate=3072,
        ...     vocabulary=50257, gated=False, tied=True, biases=True, positions=1024)
        >>> gpt2.parameters
        124439808
        """
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
        """Floating-point operations of a sample of `seq_len` tokens, forward and backward."""
        matrices = self.layers * self.layer_matrices + self.vocabulary * self.hidden
        span = min(seq_len, self.window or seq_len)
        return float(seq_len) * (6 * matrices + 12 * self.layers * self.query * span)

    def layer_bytes(self, seq_len: int, width: int, *, keep_scores: bool) -> float:
        """Bytes that a layer keeps of a sample for its backward pass, each value `width` bytes, a dropout's mask one.

        >>> gpt = Decoder(family="gpt", layers=1, hidden=64, heads=4, kv_heads=4, head_dim=16, intermediate=256, vocabulary=1,
        ...     gated=False, tied=True, dropout=True)
        >>> gpt.layer_bytes(10, 2, keep_scores=False) / (10 * 64), gpt.layer_bytes(10, 2, keep_scores=True) - 34 * 640
        (34.0, 2000.0)
        """
        h, f = self.hidden, self.intermediate
        attention = h + self.query + 2 * self.key_value + self.query
        mlp = h + (4 if self.gated else 2) * f
        norms = 2 * h
        masks = 2 * h if self.dropout else 0
        kept = float(seq_len) * (width * (attention + mlp + norms) + masks)
        if keep_scores:
            scores = float(self.heads) * seq_len * seq_len
            kept += scores * ((2 * width + 1) if self.dropout else width)
        return kept

    def head_bytes(self, seq_len: int, width: int) -> float:
        """Bytes kept of a sample after the layers: the last norm's input, the head's, and the logits in float32."""
        return float(seq_len) * (2 * width * self.hidden + 4 * self.vocabulary)
