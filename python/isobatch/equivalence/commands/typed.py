"""The numbers of a split in a script's code, as a first run of the command shows them."""

import re
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.commands.braces import settled_by
from isobatch.equivalence.commands.command import Command, cannot_split
from isobatch.equivalence.records import Recording
from isobatch.equivalence.split import MAX_RANKS, MAX_SAMPLES, Split, shrink
from isobatch.words import few

_GOVERNING = ("arguments", "lightning", "accelerate", "deepspeed")
"""Kinds of objects that say an accumulation, in the order in which they win: a Trainer has an Accelerator."""
_SET = "set by the split"
_ACCUMULATION = re.compile("accum", re.IGNORECASE)
_RANKS = re.compile(r"(^|[._])(devices|gpus)$", re.IGNORECASE)


class Seen(msgspec.Struct, frozen=True):
    """The numbers in the code, as rank 0 of a first run saw them.

    Attributes:
        world: its ranks.
        objects: those of the code that have numbers of a split, in the order in which they were made.
        loader: whose batches reached a backward pass; None where no loader of the code does.
        loaders: all that the code made.
        splits_batches: whether a loader's batch is that of all ranks.
        passes: of a step; 0 where the run ended before one.
        is_long: whether it did so after more passes than samples are compared.
    """

    world: int
    objects: list[dict[str, Any]]
    loader: dict[str, Any] | None
    loaders: list[dict[str, Any]]
    splits_batches: bool
    passes: int
    is_long: bool = False

    @property
    def governing(self) -> dict[str, Any]:
        """Returns the object with the accumulation; empty where the loop goes its own way."""
        for kind in _GOVERNING:
            entries = [entry for entry in self.objects if entry["kind"] == kind]
            if entries and entries[-1].get("accumulates", True):
                return entries[-1]
        return {}

    @property
    def micro_batch(self) -> int | None:
        """Returns a pass's samples on a rank; None where neither an object nor a loader says them."""
        micro_batch = self.governing.get("micro_batch")
        if micro_batch is None and self.loader is not None:
            micro_batch = max(1, self.loader["size"] // (self.world if self.splits_batches else 1))
        return micro_batch

    @property
    def accumulation(self) -> int | None:
        """Returns a rank's passes of a step, by an object or a flag; None where neither says them."""
        accumulation = self.governing.get("accumulation")
        flags = self.flags(accumulation or self.passes)
        if accumulation or flags:
            return int(accumulation or min(flags.values()))
        of_step = self.step_flags()
        return min(of_step.values()) // self._of_ranks if of_step and self.passes != 1 else None

    @property
    def numbers(self) -> list[tuple[str, int]]:
        """Returns the flags for numbers of a split."""
        flags = [entry["numbers"] for entry in self.objects if entry["kind"] == "flags"]
        return [item for numbers in flags for item in numbers.items()]

    def flags(self, passes: int) -> dict[str, int]:
        """Returns the flags with the passes of a step; before its end (0), all for an accumulation."""
        return {
            name: value
            for name, value in self.numbers
            if _ACCUMULATION.search(name)
            and value > (MAX_SAMPLES if self.is_long else 0)
            and value == (passes or value)
        }

    def batch_flags(self) -> dict[str, int]:
        """Returns the flags with the loader's batch size."""
        if self.loader is None or self.splits_batches:
            return {}
        return self._of_samples(self.loader["size"])

    def step_flags(self) -> dict[str, int]:
        """Returns the flags with the samples of a step over all ranks, where a pass has fewer."""
        unit = self._of_ranks
        if self.is_long:
            values = [value for _, value in self.numbers if value > MAX_SAMPLES * unit and not value % unit]
            return self._of_samples(values[0]) if len({*values}) == 1 else {}
        samples = unit * (self.passes or self.governing.get("accumulation") or 0)
        return {} if samples == self.micro_batch else self._of_samples(samples)

    @property
    def _of_ranks(self) -> int:
        """The samples of one pass on all ranks."""
        return (self.micro_batch or 1) * self.world

    def rank_flags(self) -> dict[str, int]:
        """Returns the flags with the number of ranks."""
        return {name: value for name, value in self.numbers if _RANKS.search(name) and value == self.world}

    def _of_samples(self, samples: int) -> dict[str, int]:
        return {
            name: value
            for name, value in self.numbers
            if value == samples and not _ACCUMULATION.search(name) and not _RANKS.search(name)
        }

    def loader_key(self) -> dict[str, Any] | None:
        """Returns the marks of the training's loader: its line, and more where the line makes others."""
        if self.loader is None:
            return None
        key = {"place": self.loader["place"]}
        others = [entry for entry in self.loaders if entry["place"] == key["place"]]
        for name in ("size", "dataset"):
            if any(entry[name] != self.loader[name] for entry in others):
                key[name] = self.loader[name]
                others = [entry for entry in others if entry[name] == self.loader[name]]
        return key


class TypedSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The split as the code has it, and how it is set.

    Attributes:
        own: the split of the first run.
        sets: kinds of objects that the recorder sets.
        loader: what tells the loader of the training from others; None where it is not set.
        flags: those to set, each with the number of a split that it is.
        over_ranks: whether only the ranks and the micro-batch can be another, since the script does not
            accumulate.
        changes: what the split sets, with the numbers as they are in the code.
    """

    command: Command
    own: Split
    sets: tuple[str, ...]
    loader: dict[str, Any] | None
    flags: dict[str, str]
    over_ranks: bool
    changes: list[str]

    @property
    def asked(self) -> Split:
        """The split to ask for: the code's own, made smaller; of one rank alone, over two."""
        if not self.over_ranks:
            return shrink(self.own)
        batch = min(self.own.effective_batch, MAX_SAMPLES)
        ranks = max(2, min(self.own.ranks, MAX_RANKS))
        return Split(ranks, 1, max(1, batch // ranks))

    def check_ranks(self, recording: Recording) -> None:
        """Refuses a script without accumulation and without ranks."""
        ranks = recording.split.ranks
        if self.over_ranks and recording.last.first.world < ranks:
            why = f"its {ranks} processes form no process group, no object of the code says an accumulation"
            raise cannot_split(self.command.words, self.command.launch, why)


def read_typed(command: Command, folder: Path) -> TypedSplit | None:
    """Reads the numbers in the code, written by rank 0 of a first run; None where no backward pass began.

    Raises:
        InputError: neither an object nor a loader says the split; the message says what to write.
    """
    file = folder / "typed-0.json"
    if not file.exists():
        return None
    seen = msgspec.json.decode(file.read_bytes(), type=Seen)
    start, settled = command.default, settled_by(command.words, command.launch.environment)
    micro_batch = start.micro_batch if settled.micro_batch else seen.micro_batch
    accumulation = start.accumulation if settled.accumulation else seen.accumulation
    if micro_batch is None:
        why = "its batches come through no torch DataLoader whose batch size could be set"
        raise cannot_split(command.words, command.launch, why)
    if accumulation is None and (seen.passes > 1 or seen.is_long):
        passes = seen.passes or f"more than {MAX_SAMPLES}"
        why = f"its loop takes {passes} passes a step, and no object or flag says so"
        raise cannot_split(command.words, command.launch, why)
    sets, changes, flags = [], [], dict[str, int]()
    if not settled.accumulation and accumulation is not None:
        flags |= dict.fromkeys(seen.flags(accumulation), accumulation)
        if seen.governing:
            sets.append(seen.governing["kind"])
            changes.append(seen.governing["text"])
    # DeepSpeed's configuration says the micro-batch, and the script's own loader loads it.
    says_batch = "micro_batch" in seen.governing and seen.governing["kind"] != "deepspeed"
    by_loader = not settled.micro_batch and not says_batch
    numbers = dict.fromkeys(flags, "accumulation")
    if by_loader and seen.loader is not None:
        sets.append("loader")
        changes.append(f"DataLoader(batch_size={seen.loader['size']}) {_SET}")
        flags |= seen.batch_flags()
        numbers |= dict.fromkeys(seen.batch_flags(), "micro_batch")
        if of_step := seen.step_flags():  # the code divides it by its ranks
            flags |= of_step | seen.rank_flags()
            numbers |= dict.fromkeys(of_step, "effective_batch") | dict.fromkeys(seen.rank_flags(), "ranks")
    if flags:
        changes.append(f"{few([f'{name}={value}' for name, value in flags.items()])} {_SET}")
    return TypedSplit(
        command=command,
        own=Split(seen.world, accumulation or 1, micro_batch),
        sets=tuple(sets),
        loader=seen.loader_key() if by_loader else None,
        flags=numbers,
        over_ranks=accumulation is None,
        changes=changes,
    )
