"""torchtitan's trainer with a GlobalLoader, on CPUs.

Its device detection is told of them, else nothing of it is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule

torch._utils._get_available_device_type = lambda: "cpu"
for name, value in {
    "get_device_name": "cpu",
    "get_device_properties": SimpleNamespace(total_memory=1),
    "current_device": 0,
    "memory_stats": {},
    "reset_peak_memory_stats": None,
    "empty_cache": None,
}.items():  # what it asks torch.cuda for its log
    setattr(torch.cpu, name, lambda *_, value=value: value)

from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.data.loader import BaseDataLoader  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.components.validate import Validator  # noqa: E402
from torchtitan.config.configs import TrainingConfig  # noqa: E402
from torchtitan.experiments.graph_trainer import common_utils  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel_ce_loss  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

LENGTH = 16
"""Tokens of a sample, each its number."""
MAKE: Callable[..., Any]
"""Makes the loader, set by `train`; torchtitan's configurations hold values only."""


def collate(ids: list[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A micro-batch as torchtitan's collators give it."""
    tokens = torch.tensor(ids).repeat_interleave(LENGTH)
    return {"input": tokens, "positions": torch.arange(LENGTH).repeat(len(ids))}, tokens


class IdsLoader(BaseDataLoader):
    """The adapter: torchtitan gives rank and size, and takes micro-batches without end."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """No field."""

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **_: Any) -> None:
        self.loader = MAKE(rank=dp_rank, ranks=dp_world_size, drop_last=True, collate_fn=collate)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        """The loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The loader's."""
        self.loader.load_state_dict(state_dict)


class NoTokenizer(BaseTokenizer):
    """Nothing is tokenized."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """No field."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    encode = decode = get_vocab_size = None


NoTokenizer.__abstractmethods__ = frozenset()


def train(folder: Path, stop: int | None, record: Any, make: Callable[..., Any]) -> None:
    """Trains to a step, from the newest checkpoint in the folder.

    And notes the samples that the trainer computes with.
    """
    global MAKE
    MAKE = make

    class Recorded(Trainer):
        def post_dataloading_process(self, input_dict: Any, labels: Any) -> Any:
            record.note(self.step - 1, input_dict["input"][::LENGTH])
            return super().post_dataloading_process(input_dict, labels)

    micro, batch, steps = 2, 12, 8  # two epochs of full steps
    config = llama3_debugmodel_ce_loss()
    for layer in (
        config.model_spec.model.layers
    ):  # its FlexAttention has no backward on CPUs; its graph trainer's tests take this one
        layer.attention.inner_attention = common_utils.GraphTrainerScaledDotProductAttention.Config()
    config.tokenizer, config.dataloader = NoTokenizer.Config(), IdsLoader.Config()
    config.training = TrainingConfig(
        num_tokens_per_microbatch_per_dp_rank=micro * LENGTH,
        num_tokens_per_train_step=batch * LENGTH,
        max_context_length=LENGTH,
        steps=stop or steps,
        disable_cuda_graphs=True,
        mixed_precision_param="float32",
    )
    config.validator = Validator.Config(enable=False)
    config.metrics = MetricsProcessor.Config(log_freq=1)
    config.checkpoint = CheckpointManager.Config(enable=True, interval=100, last_save_model_only=False)
    config.dump_folder = str(folder)
    trainer = Recorded(config)
    for part in trainer.model_parts[0].modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(enable=True)  # gloo has no other
    try:
        trainer.train()
    finally:
        trainer.close()
