"""What is trained for bench/science: real data that needs no download, and small networks without biases, many of which are trained side by
side: a weight has the shape (networks, rows, columns), a batch (seeds, samples, …), and every seed has as many networks."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

CONTEXT, EMBEDDED, HIDDEN = 8, 16, 96
PARTS = 32
"""Into so many parts are the evaluation samples divided."""
HELD_OUT = 10**6
"""The seed of what is drawn for the evaluation."""


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16 - 0.3, torch.tensor(found.target)


@cache
def _source() -> Tensor:
    """The bytes of the first files of Python's standard library, by name."""
    folder, data = Path(sysconfig.get_paths()["stdlib"]), b""
    for path in sorted(folder.glob("*.py")):
        data += path.read_bytes()
        if len(data) > 2_000_000:
            break
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


class Digits:
    """scikit-learn's digits (1,797 images of 8 × 8) and a perceptron with two hidden layers of 64.

    Args:
        wrong: this part of the labels is drawn at random, anew each time: gradient noise that no model can learn away.

    The evaluation is on all images, which are the training's too; with `wrong`, on labels drawn for it.
    """

    shapes = ((64, 64), (64, 64), (10, 64))

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong

    def stream(self, seed: int, samples: int) -> Tensor:
        """Which image, and which label, for each sample of a seed: shape (samples, 2)."""
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(_digits()[0]), (samples,), generator=generator)
        return self._labelled(rows, generator)

    def held_out(self) -> Tensor:
        """As many, for the evaluation."""
        count = len(_digits()[0]) // PARTS * PARTS
        return self._labelled(torch.arange(count), torch.Generator().manual_seed(HELD_OUT))

    def _labelled(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(len(rows), generator=generator) < self.wrong
        label = torch.where(drawn, torch.randint(10, (len(rows),), generator=generator), _digits()[1][rows])
        return torch.stack([rows, label], dim=1)

    def losses(self, weights: list[Tensor], rows: Tensor) -> Tensor:
        """The loss of each sample, shape (networks, samples), of rows of shape (seeds, samples, 2)."""
        images = _digits()[0].to(rows.device)[rows[:, :, 0]]
        hidden = _spread(images, weights[0].shape[0])
        for at, weight in enumerate(weights):
            hidden = (functional.relu(hidden) if at else hidden) @ weight.mT
        return _cross_entropy(hidden, _spread(rows[:, :, 1], weights[0].shape[0]))


class Source:
    """The next byte of Python's standard library from the 8 before it, a perceptron over embeddings. A tenth of the bytes, the last, is for
    the evaluation alone."""

    shapes = ((256, EMBEDDED), (HIDDEN, EMBEDDED * CONTEXT), (256, HIDDEN))

    def stream(self, seed: int, samples: int) -> Tensor:
        """Where each sample of a seed begins, shape (samples, 1)."""
        generator = torch.Generator().manual_seed(seed)
        end = int(0.9 * len(_source()))
        return torch.randint(end - CONTEXT - 1, (samples, 1), generator=generator)

    def held_out(self) -> Tensor:
        """As many, for the evaluation."""
        generator, data = torch.Generator().manual_seed(HELD_OUT), _source()
        begin = int(0.9 * len(data))
        return torch.randint(begin, len(data) - CONTEXT - 1, (PARTS * 64, 1), generator=generator)

    def losses(self, weights: list[Tensor], rows: Tensor) -> Tensor:
        """The loss of each sample, shape (networks, samples), of rows of shape (seeds, samples, 1)."""
        networks, device = weights[0].shape[0], rows.device
        found = _source().to(device)[rows + torch.arange(CONTEXT + 1, device=device)]
        context = _spread(found[:, :, :-1], networks)
        # One table of all networks' embeddings: each looks up its own part of it.
        own = context + 256 * torch.arange(networks, device=device)[:, None, None]
        embedded = functional.embedding(own, weights[0].flatten(0, 1)).flatten(2)
        hidden = functional.relu(embedded @ weights[1].mT)
        return _cross_entropy(hidden @ weights[2].mT, _spread(found[:, :, -1], networks))


def _spread(rows: Tensor, networks: int) -> Tensor:
    """What is (seeds, …) for each network: those of a seed lie side by side."""
    return rows.repeat_interleave(networks // rows.shape[0], dim=0)


def _cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none")
    return losses.view(target.shape)


TASKS = {"digits": Digits(), "source": Source(), "noisy": Digits(wrong=0.5)}
