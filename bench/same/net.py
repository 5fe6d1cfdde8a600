"""The model of the loops by hand."""

import torch
from torch import nn


class Layers(nn.Module):
    """Two layers over a vocabulary of 64 tokens; each loop adds its loss."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in "12"
        )
        self.head = nn.Linear(32, 64)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits of each token, over all rows."""
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden).flatten(0, 1)
