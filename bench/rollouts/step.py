"""One optimizer step over a frozen rollout: eight completions of four prompts, by a trainer's own loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import isobatch as ib

SPLITS = ("1x4x2", "1x2x4", "2x2x2")
LENGTHS = (12, 5, 9, 3, 6, 11, 7, 10)
LONGEST, WORDS, HIDDEN = 14, 40, 8


class Batch(dict[str, Any]):
    """The tensors of rows, with what trainers' own containers have."""

    @property
    def batch_size(self) -> tuple[int]:
        """The rows."""
        return (len(self["input_ids"]),)

    def select(self, *names: str) -> "Batch":
        """Keeps some tensors."""
        return Batch({name: self[name] for name in names})

    def to_padded_tensor(self) -> "Batch":
        """Keeps the tensors, which are padded."""
        return self


class Settings(dict[str, Any]):
    """A configuration whose fields are attributes, too."""

    __getattr__ = dict.get


class Policy(nn.Module):
    """A policy of each token by the one before it, with a value."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.inner = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.head, self.value = nn.Linear(HIDDEN, WORDS), nn.Linear(HIDDEN, 1)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits and the values of all places."""
        hidden = torch.tanh(self.inner(self.words(input_ids)))
        return self.head(hidden), self.value(hidden)[..., 0]


def rollout() -> list[dict[str, torch.Tensor]]:
    """Makes the rows: tokens, mask, advantages, old and reference log-probabilities, values, group ids."""
    generator = torch.Generator().manual_seed(7)

    def reals() -> torch.Tensor:
        return torch.randn(LONGEST - 1, generator=generator)

    rows = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(1, WORDS, (LONGEST,), generator=generator)
        mask = torch.zeros(LONGEST - 1)
        mask[1 : 1 + length] = 1
        ids[2 + length :] = 0
        row = {"input_ids": ids, "response_mask": mask, "group": torch.tensor(number // 2)}
        row["advantages"] = (torch.randn((), generator=generator) + 0.3) * mask
        row |= {"old_log_probs": -3.7 + 0.1 * reals(), "ref_log_prob": -3.7 + 0.2 * reals()}
        rows.append(row | {"values": reals(), "returns": reals()})
    return rows


@dataclass
class Arguments:
    """The split of a step; the rest is the test's."""

    per_device_train_batch_size: int = 1
    gradient_accumulation_steps: int = 1


class Passes:
    """The passes of one rank's step; what DDP and FSDP do with the gradient comes after them."""

    def __init__(self, policy: nn.Module, rows: list[dict[str, torch.Tensor]], arguments: Arguments) -> None:
        parallel = torch.distributed.is_initialized()
        self.ranks = torch.distributed.get_world_size() if parallel else 1
        rank = torch.distributed.get_rank() if parallel else 0
        self.micro_batch, self.count = (
            arguments.per_device_train_batch_size,
            arguments.gradient_accumulation_steps,
        )
        own = self.micro_batch * self.count
        self.policy, self.samples = policy, len(rows)
        self.whole, self.own = _stack(rows), _stack(rows[rank * own : (rank + 1) * own])
        self.parts = [
            Batch({name: value[at : at + self.micro_batch] for name, value in self.own.items()})
            for at in range(0, own, self.micro_batch)
        ]

    def __iter__(self) -> Iterator[Batch]:
        """Yields each pass's rows with the policy's log-probabilities, logits and values of them."""
        for part in self.parts:
            yield self.forward(part)

    def forward(self, part: Batch) -> Batch:
        """Takes rows through the policy."""
        logits, values = self.policy(input_ids=part["input_ids"])
        scores = logits[:, :-1].log_softmax(-1)
        log_probs = scores.gather(2, part["input_ids"][:, 1:, None])[..., 0]
        return Batch({**part, "log_probs": log_probs, "logits": logits, "new_values": values[:, :-1]})

    def summed(self, number: float | torch.Tensor) -> float:
        """Adds a number of each rank."""
        total = torch.as_tensor(number, dtype=torch.float64).clone()
        if self.ranks > 1:
            torch.distributed.all_reduce(total)
        return float(total)

    def scale(self, factor: float) -> None:
        """Multiplies the gradient, as a worker does before its optimizer's step."""
        for parameter in self.policy.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


Step = Callable[[Passes], None]


class Worker:
    """A trainer for `ib.same_model`: a step's passes, the mean over ranks, SGD."""

    def __init__(self, model: nn.Module, args: Arguments, train_dataset: Any, step: Step) -> None:
        self.passes, self.step = Passes(model, train_dataset, args), step

    def train(self) -> None:
        """Takes one step."""
        policy = self.passes.policy
        optimizer = torch.optim.SGD(policy.parameters(), 1e-3)
        self.step(self.passes)
        for parameter in policy.parameters() if self.passes.ranks > 1 else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.passes.ranks
        optimizer.step()


def ask(step: Step) -> tuple[bool | None, str]:
    """Asks a trainer's step: whether it is the same at each split, and the laws that it breaks."""
    from census.ask import cause_text

    same = ib.same_model(Policy(), rollout(), trainer=partial(Worker, step=step), splits=SPLITS)
    return same.same, cause_text(same.splits)


def _stack(rows: list[dict[str, torch.Tensor]]) -> Batch:
    return Batch({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
