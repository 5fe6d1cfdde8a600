"""Trials: what one short training was and came to, and the file in which they are kept. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from isobatch.errors import InputError, unreadable, unwritable
from isobatch.files.whole import read_whole, write_whole

SCHEMA = "isobatch-trials-1"
PARTS = 32
"""Into so many parts are the evaluation samples divided."""


CHANGED = 1e-3
"""Relative: a loss before the first step that differs by more is another workload's. Ranks and threads move it by about 1e-7."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One short training: its effective batch, peak learning rate, seed and samples, and the losses that it came to on each part of
    the evaluation samples; none where it diverged. `beside_seconds` of its seconds were no steps: making the model, evaluating."""

    batch: int
    lr: float
    seed: int
    samples: int
    losses: tuple[float, ...]
    steps: int
    seconds: float
    beside_seconds: float = 0.0

    @property
    def diverged(self) -> bool:
        """Whether it was stopped because its loss grew, or was not finite."""
        return not self.losses

    @property
    def loss(self) -> float:
        """The mean over the evaluation samples; infinity where it diverged."""
        return sum(self.losses) / len(self.losses) if self.losses else float("inf")


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    key: str
    samples: int
    first_loss: float | None = None
    """Before the first step: a workload that was edited has another."""


class Journal:
    """The trials of one probe, and the file that keeps them.

    Args:
        path: a file, of lines of JSON; None: nothing is kept.
        key: what makes the probe: recipe, workload and the like. Another probe's file is refused.
    """

    def __init__(self, path: str | None, key: str) -> None:
        self._path, self._key = None if path is None else Path(path), key
        self.samples: int | None = None
        self.first_loss: float | None = None
        self.found: list[Trial] = []
        self.reused = 0
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def _read(self, path: Path) -> None:
        lines = read_whole(path).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines = lines[:-1]  # cut off while it was written
        if not lines:
            if path.stat().st_size:
                raise unreadable(ValueError("no line is whole"), os.fspath(path))
            return
        try:
            header = msgspec.json.decode(lines[0], type=_Header)
            trials = [msgspec.json.decode(line, type=Trial) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise unreadable(error, os.fspath(path)) from None
        if header.schema != SCHEMA or header.key != self._key:
            raise InputError(
                "holds the trials of another probe (its recipe, plan, workload or checkpoint differs): name another file, or "
                "remove it",
                file=os.fspath(path),
                field="trials",
            )
        self.samples, self.found, self.reused = header.samples, trials, len(trials)
        self.first_loss = header.first_loss
        self._write()  # without a line that was cut off

    def begin(self, samples: int, first_loss: float) -> int:
        """The samples of a whole trial: these, or those of the probe that goes on.

        Raises:
            InputError: the file cannot be written, or its trials began with another loss.
        """
        if self.samples is None:
            self.samples, self.first_loss = samples, first_loss
            self._write()
        elif self.first_loss is not None and abs(first_loss - self.first_loss) > CHANGED * abs(
            self.first_loss
        ):
            raise InputError(
                f"its trials began with a loss of {self.first_loss:.6g}, and the workload's is now {first_loss:.6g}: it has "
                "changed, or its data has. Name another file, or remove it",
                file=None if self._path is None else os.fspath(self._path),
                field="trials",
            )
        return self.samples

    def get(self, batch: int, lr: float, seed: int, samples: int) -> Trial | None:
        """A trial that was made already."""
        for trial in self.found:
            same = (trial.batch, trial.seed, trial.samples) == (batch, seed, samples)
            if same and abs(trial.lr / lr - 1) < 1e-9:
                return trial
        return None

    def add(self, trial: Trial) -> None:
        """Keeps a trial, at once."""
        self.found.append(trial)
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(trial) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(error, os.fspath(self._path)) from None

    def _write(self) -> None:
        if self._path is not None:
            header = _Header(
                schema=SCHEMA, key=self._key, samples=self.samples or 0, first_loss=self.first_loss
            )
            lines = [msgspec.json.encode(one) for one in (header, *self.found)]
            write_whole(self._path, b"\n".join(lines) + b"\n")
