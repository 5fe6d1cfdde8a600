"""What was tuned, and where it shall run."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from isobatch import _core
from isobatch.errors import InputError
from isobatch.schedules import Schedule, check_spec

INTEGERS = frozenset(
    (
        "effective_batch",
        "dataset_size",
        "seq_len",
        "gpus",
        "micro_batch",
        "accumulation",
        "model_parallel",
        "parameters",
        "nodes",
        "gpus_per_node",
    )
)


def _plain(name: str, value: Any) -> Any:
    """A NumPy scalar as the Python number it stands for; anything else as it is."""
    if type(value) in (int, float, str, bool, tuple, type(None)) or not hasattr(value, "dtype"):
        return value
    return operator.index(value) if name in INTEGERS and hasattr(value, "__index__") else value.item()


if TYPE_CHECKING:
    ScheduleSpec: TypeAlias = str | Schedule
else:
    ScheduleSpec = Any  # msgspec reads no union with a class of ours


class _Record(msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """A record whose numbers are plain Python numbers."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            plain = _plain(name, value)
            if plain is not value:
                msgspec.structs.force_setattr(self, name, plain)


class Recipe(_Record, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """A training recipe as somebody tuned it.

    Args:
        effective_batch: samples in an optimizer step, over all replicas and micro-batches.
        lr: the peak learning rate at that batch.
        optimizer: sgd, adam, adamw, rmsprop, lars, lamb, lion, muon or adafactor.
        momentum, betas, eps, weight_decay: the optimizer's; betas and eps are torch's defaults where None.
        decay: "lr_multiplied" (torch's AdamW) or "independent"; None: not known, taken as the first, with a caution.
        ema_decay: of a running average of the weights, a step.
        dataset_size: samples in an epoch; needed where a length is in `ep`.
        duration: the run's length, a number with a unit: `ep` epochs, `st` optimizer steps, `sp` samples, `tok` tokens.
        warmup: the same, or `%` of the duration.
        schedule: a kind of `isobatch.schedules` by name, or a call such as "multistep(30ep, 60ep, gamma=0.1)".
        min_lr: where the schedule ends; scales with the peak.
        seq_len: tokens in a sample.
        drop_last: False, True (sampler and loader), "sampler" or "loader".
        convention: whose trainer counts the steps: torch, lightning, transformers or megatron.
        gpus, micro_batch, accumulation, model_parallel: the hardware it was tuned on, where known.
        power: the exponent of rule "power".
        noise_scale: the simple gradient noise scale tr(Σ)/|G|², in samples.
        sigma_sq, mu_sq: the gradient's variance at the tuned batch, and the true gradient's squared norm (rule "adascale").
        ramp: a batch that grows: "START INCREMENT SAMPLES" or "TOKENS:BATCH TOKENS:BATCH …" from 0 upwards.
        parameters, precision, clip_norm, bucket_cap_mb, batch_norm: of the model and its training step.
        device_batches: the batch of each replica, where they differ (see `from_gpus`).

    Raises:
        InputError: a value is not legal; the message names the field and what is.

    >>> Recipe(effective_batch=256, lr=0.1, optimizer="sgd", duration="2000st").effective_batch
    256
    """

    effective_batch: int
    lr: float
    optimizer: str = "adamw"
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float = 0.0
    decay: str | None = None
    ema_decay: float | None = None
    dataset_size: int | None = None
    duration: str | None = None
    warmup: str | None = None
    schedule: ScheduleSpec = "cosine"
    min_lr: float = 0.0
    seq_len: int | None = None
    drop_last: bool | str = False
    convention: str = "torch"
    gpus: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    model_parallel: int = 1
    power: float | None = None
    noise_scale: float | None = None
    sigma_sq: float | None = None
    mu_sq: float | None = None
    ramp: str | None = None
    parameters: int | None = None
    precision: str | None = None
    clip_norm: float | None = None
    bucket_cap_mb: float | None = None
    batch_norm: bool = False
    device_batches: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        betas: Any = self.betas
        if type(betas) is list:
            msgspec.structs.force_setattr(self, "betas", tuple(betas))
        if isinstance(self.schedule, dict):
            schedule = Schedule.from_json(msgspec.json.encode(self.schedule))
            msgspec.structs.force_setattr(self, "schedule", schedule)
        elif isinstance(self.schedule, str):
            check_spec(self.schedule)
        elif not isinstance(self.schedule, Schedule):
            raise InputError(f"{self.schedule!r} is no schedule", field="schedule")
        self.core  # noqa: B018 - compiles, and so checks, the fields

    @property
    def core(self) -> _core.Job:
        """The recipe as the core holds it, checked once."""
        job: _core.Job | None = self.__dict__.get("_core")
        if job is None:
            fields = msgspec.structs.asdict(self)
            del fields["schedule"]  # read by isobatch.schedules
            job = _core.Job(fields)
            self.__dict__["_core"] = job
        return job

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), msgspec.structs.asdict(self))

    @classmethod
    def from_gpus(
        cls,
        *,
        gpus: int,
        batch_per_gpu: int | Sequence[int],
        accumulation: int = 1,
        model_parallel: int = 1,
        **fields: Any,
    ) -> Self:
        """The recipe of a run that is known by its GPUs.

        Args:
            gpus: GPUs in the tuned run.
            batch_per_gpu: samples in a micro-batch of one replica (a replica is a GPU where model_parallel is 1); a list
                with one number a replica where devices are unequal.
            accumulation: micro-batches in an optimizer step.
            model_parallel: GPUs that hold one replica.
            fields: the Recipe's other fields.

        >>> Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd").effective_batch
        256
        """
        for name in ("effective_batch", "micro_batch"):
            if name in fields:
                raise InputError("comes from gpus × batch_per_gpu × accumulation: leave it out", field=name)
        gpus, accumulation, model_parallel = (
            _count(name, value)
            for name, value in (
                ("gpus", gpus),
                ("accumulation", accumulation),
                ("model_parallel", model_parallel),
            )
        )
        if gpus % model_parallel:
            raise InputError(f"{model_parallel} does not divide {gpus} GPUs", field="model_parallel")
        replicas = gpus // model_parallel
        known: dict[str, Any] = {"gpus": gpus, "accumulation": accumulation, "model_parallel": model_parallel}
        if isinstance(batch_per_gpu, Sequence):
            batches = tuple(_count("batch_per_gpu", batch) for batch in batch_per_gpu)
            if len(batches) != replicas:
                raise InputError(f"{len(batches)} batches for {replicas} replicas", field="batch_per_gpu")
            if len(set(batches)) > 1:
                return cls(
                    effective_batch=sum(batches) * accumulation, device_batches=batches, **known, **fields
                )
            batch_per_gpu = batches[0]
        micro = _count("batch_per_gpu", batch_per_gpu)
        return cls(effective_batch=micro * accumulation * replicas, micro_batch=micro, **known, **fields)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        tool: str | None = None,
        gpus: int | None = None,
        **fields: Any,
    ) -> Self:
        """The recipe that another tool's configuration describes. Nothing in the file is imported or executed.

        Args:
            path: a file, or a folder with a checkpoint of transformers' Trainer; several files that describe one run, such as
                TrainingArguments and an Accelerate configuration, as a list.
            tool: whose the first file is; None: found by what is in it. docs/tools.md lists the tools.
            gpus: the GPUs that it was tuned on.
            fields: fields of a Recipe, and `batch_per_gpu`; each wins over the file.

        Raises:
            InputError: the file cannot be read, contradicts itself, or does not say all that a plan needs: then the message
                lists what is missing.

        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "args.json"
        >>> _ = file.write_text('{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100}')
        >>> Recipe.read(file, gpus=4).effective_batch
        32
        """
        from isobatch.tools.reading.read import recipe_fields

        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        found, _ = recipe_fields(paths, fields if gpus is None else {**fields, "gpus": gpus}, tool=tool)
        try:
            return cls(**found)
        except InputError as error:
            raise error.at(file=os.fspath(paths[0])) from None


def _made(cls: type[Recipe], fields: dict[str, Any]) -> Recipe:
    return cls(**fields)


def _count(name: str, value: Any) -> int:
    value = _plain(name, value)
    if type(value) is not int or not 0 < value <= 2**40:
        raise InputError(f"{value!r} is not legal; legal: a whole number from 1", field=name)
    return value


class Cluster(_Record, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True):
    """A shape of hardware.

    Args:
        nodes, gpus_per_node: their product is the world size.
        model_parallel: GPUs that hold one replica here; None: as the recipe has it.
        gpu: the type's name.
        memory_gib: of one GPU.
        intra_gb_s, inter_gb_s: bus bandwidth of an all-reduce inside a node, and across nodes (a node's network bounds it), GB/s.
        latency_us: of one hop across nodes, microseconds.
        price_per_gpu_hour: in any currency; costs come out in the same.

    >>> Cluster(nodes=8, gpus_per_node=8).world_size
    64
    """

    nodes: int = 1
    gpus_per_node: int = 8
    model_parallel: int | None = None
    gpu: str | None = None
    memory_gib: float | None = None
    intra_gb_s: float | None = None
    inter_gb_s: float | None = None
    latency_us: float | None = None
    price_per_gpu_hour: float | None = None

    @property
    def world_size(self) -> int:
        """GPUs, which is processes."""
        return self.nodes * self.gpus_per_node
