"""Completions of a model: generated once, in the first run, and played back at every other split.

A split has other passes and ranks, so that a sampler draws other numbers for a prompt; with the same
completions, whatever follows (rewards, advantages, old log-probabilities, the loss) is the trainer's own.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from . import current
from .record import Recorder

PLAYED = "completions played back from the first run"


class Rollouts:
    """The completions of one run by prompt, in the order of the ranks' calls."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before = Counter[str]()
        self.calls = 0
        played = recorder.settings["rollouts"]
        self._played: dict[str, list[list[int]]] = json.loads(Path(played).read_text()) if played else {}

    def complete(self, prompts: list[str]) -> list[list[int]] | None:
        """Returns the completion of each prompt in the first run; None where it had none for one of them.

        Ranks that share a prompt take its completions in the order of their ranks.
        """
        self.calls += 1
        by_rank = [Counter(prompts)]
        if self._recorder.world > 1:
            by_rank = [Counter[str]()] * self._recorder.world
            torch.distributed.all_gather_object(by_rank, Counter(prompts))
        own = self._before + sum(by_rank[: self._recorder.rank], Counter[str]())
        self._before += sum(by_rank, Counter[str]())
        completions = []
        for prompt in prompts:
            if len(known := self._played.get(prompt, [])) <= own[prompt]:
                return None
            completions.append(known[own[prompt]])
            own[prompt] += 1
        return completions

    def keep(self, prompts: list[str], completions: list[list[int]]) -> None:
        """Writes the completions of a call, for the other runs to play."""
        name = f"rollouts-{self.calls}-{self._recorder.rank}.json"
        self._recorder.write(name, json.dumps([*zip(prompts, completions)]))

    def seed(self) -> None:
        """Seeds torch's generator for a call: its draws leave no trace in those of the training."""
        torch.default_generator.manual_seed(1000 * self.calls + self._recorder.rank)


def patch(module: ModuleType) -> None:
    """Plays back completions in the place of `generate` of a language model."""
    mixin: Any = module.GenerationMixin
    generate = mixin.generate

    @functools.wraps(generate)
    def generate_once(self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        recorder = current()
        prompts = inputs if inputs is not None else kwargs.get("input_ids")
        plays = not (recorder.busy or recorder.settings["untouched"] or recorder.settings["bits"])
        if not plays or not torch.is_tensor(prompts) or self.config.is_encoder_decoder:
            return generate(self, inputs, *args, **kwargs)
        if recorder.rollouts is None:
            recorder.rollouts = Rollouts(recorder)
        settings = kwargs.get("generation_config") or self.generation_config
        mask = kwargs.get("attention_mask")
        times = kwargs.get("num_return_sequences") or getattr(settings, "num_return_sequences", None) or 1
        texts = [text for text in _texts(prompts, mask) for _ in range(times)]
        completions = recorder.rollouts.complete(texts)
        if completions is not None:
            recorder.note(PLAYED)
            return _output(module, prompts.repeat_interleave(times, 0), completions, _pad(settings), kwargs)
        state = torch.get_rng_state()
        recorder.rollouts.seed()
        with recorder.unseen():  # its passes train nothing, and its draws are not to be alike
            output = generate(self, inputs, *args, **kwargs)
        torch.set_rng_state(state)
        sequences = output if torch.is_tensor(output) else output.sequences
        ends = _ends(settings)
        recorder.rollouts.keep(
            texts, [_until(row, ends) for row in sequences[:, prompts.shape[1] :].tolist()]
        )
        return output

    mixin.generate = generate_once


def _texts(prompts: torch.Tensor, mask: torch.Tensor | None) -> list[str]:
    """Returns each prompt's tokens without its padding."""
    rows = prompts.tolist() if mask is None else [row[m.bool()].tolist() for row, m in zip(prompts, mask)]
    return [" ".join(map(str, row)) for row in rows]


def _ends(settings: Any) -> set[int]:
    ends = settings.eos_token_id
    return set() if ends is None else {int(end) for end in (ends if isinstance(ends, list) else [ends])}


def _pad(settings: Any) -> int:
    return int(
        settings.pad_token_id if settings.pad_token_id is not None else min(_ends(settings), default=0)
    )


def _until(tokens: list[int], ends: set[int]) -> list[int]:
    """Leaves out the padding after a completion's end, up to the longest of its call."""
    return tokens[: next((at + 1 for at, token in enumerate(tokens) if token in ends), len(tokens))]


def _output(
    module: Any, prompts: torch.Tensor, completions: list[list[int]], pad: int, kwargs: dict[str, Any]
) -> Any:
    """Makes the output of `generate`."""
    longest = max(map(len, completions))
    rows = [row + [pad] * (longest - len(row)) for row in completions]
    sequences = torch.cat([prompts, torch.tensor(rows, dtype=prompts.dtype, device=prompts.device)], 1)
    if not kwargs.get("return_dict_in_generate"):
        return sequences
    return module.GenerateDecoderOnlyOutput(sequences=sequences)
