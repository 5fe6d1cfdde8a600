"""The tuned recipe."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

import msgspec

from isobatch import _core
from isobatch.errors import InputError, missing, must_be
from isobatch.files.formats import read_fields
from isobatch.files.texts import write_fields
from isobatch.limits import MAX_BATCH, plain_whole
from isobatch.recipes.cluster import Record, named_arguments, refuse_names
from isobatch.recipes.foreign import of_tools
from isobatch.recipes.names import with_our_names

Optimizer: TypeAlias = Literal["sgd", "adam", "adamw", "rmsprop", "lars", "lamb", "lion", "muon", "adafactor"]
Decay: TypeAlias = Literal["lr_multiplied", "independent", "sqrt"]
Convention: TypeAlias = Literal["torch", "lightning", "transformers", "megatron", "exact"]
Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16"]
Adapter: TypeAlias = Literal["lora"]
Coupling: TypeAlias = Literal["batch_norm", "negatives", "experts"]
_Kind = TypeVar("_Kind", bound="Recipe")
DropLast: TypeAlias = bool | Literal["sampler", "loader"]

if TYPE_CHECKING:
    from isobatch.schedules.schedule import Schedule

    ScheduleSpec: TypeAlias = str | Schedule
else:
    ScheduleSpec = Any  # msgspec reads no union with a class of ours


class HasSettings(Protocol):
    """An object with its settings as a table, such as transformers' TrainingArguments."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings."""


Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | HasSettings
"""Another tool's settings: a file of them, or themselves."""

_PAIRS = ("betas", "device_batches")
_TYPED = ("optimizer", "duration", "warmup", "eval_every", "save_every", "log_every", "ramp")
"""Fields of texts that have more than one form: they are kept in ours."""


class Recipe(
    Record, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True, repr_omit_defaults=True
):
    """A training recipe as somebody tuned it.

    Args:
        effective_batch: samples in an optimizer step, over all replicas and micro-batches.
        lr: the peak learning rate at that batch.
        optimizer: sgd, adam, adamw, rmsprop, lars, lamb, lion, muon or adafactor.
        momentum, betas, eps, weight_decay: the optimizer's; betas and eps are torch's defaults where None.
        decay: how the decay follows the batch and the learning rate: "lr_multiplied" (torch's AdamW),
            "independent", or "sqrt" (Muon's alone: by √k, as nanochat does; contested); None: not known,
            taken as the first, with a caution; Muon's stays.
        ema_decay: of a running average of the weights, a step.
        dataset_size: samples in an epoch; needed where a length is in `ep`.
        duration: the run's length, a number with a unit: `ep` epochs, `st` optimizer steps, `sp` samples,
            `tok` tokens.
        warmup: the same, or `%` of the duration.
        schedule: a kind of `isobatch.schedules` by name, or a call such as "multistep(30ep, 60ep,
            gamma=0.1)".
        min_lr: where the schedule ends; scales with the peak.
        seq_len: tokens in a sample.
        drop_last: False, True (sampler and loader), "sampler" or "loader".
        even_batches: whether Accelerate fills up the last micro-batches, so that all processes have as many
            (its `even_batches`; False under convention "transformers" alone).
        convention: whose trainer counts the steps: torch, lightning, transformers or megatron; exact: nothing
            is padded, so that an epoch has the same steps on any number of GPUs.
        gpus, micro_batch, accumulation, model_parallel: the hardware it was tuned on, where known.
        expert_parallel: GPUs that hold one full set of experts: expert × expert-tensor × pipeline parallel. A
            GPU count must be a multiple of it.
        power: the exponent of rule "power".
        noise_scale: the simple gradient noise scale tr(Σ)/|G|², in samples.
        sigma_sq, mu_sq: the gradient's variance at the tuned batch, and the true gradient's squared norm
            (rules "adascale" and "adamscale").
        ramp: a batch that grows: "START INCREMENT SAMPLES" or "TOKENS:BATCH TOKENS:BATCH …" from 0 upwards.
        eval_every, save_every, log_every: between two evaluations, checkpoints and lines of a log: a number
            with a unit as in duration, such as "500st"; a plan has them in its own steps.
        parameters, precision, clip_norm, bucket_cap_mb: of the model and its training step.
        coupled: why the loss of a sample depends on the other samples of its micro-batch: "batch_norm",
            "negatives" (a contrastive loss takes them as negatives) or "experts" (a loss balances the experts
            over them). Another micro-batch is then another training. batch_norm: True means the same as
            coupled "batch_norm", also beside another coupling.
        adapter: "lora" where matrices of low rank are trained in the place of the weights: its loss suffers
            from large batches earlier, and its best learning rate is about ten times that of full fine-tuning
            (Schulman & Thinking Machines Lab 2025).
        device_batches: the batch of each replica, where they differ (see `from_gpus`).

    Raises:
        InputError: there is no such field, or a value is illegal; the message names all such fields and what
            is legal.

    >>> Recipe(effective_batch=256, lr=0.1, optimizer="sgd", duration="2000st").effective_batch
    256
    """

    elsewhere: ClassVar[dict[str, str]] = {
        "batch_per_gpu": "belongs to Recipe.from_gpus(gpus=..., batch_per_gpu=..., ...)"
    }

    effective_batch: int
    lr: float
    optimizer: Optimizer = "adamw"
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float = 0.0
    decay: Decay | None = None
    ema_decay: float | None = None
    dataset_size: int | None = None
    duration: str | None = None
    warmup: str | None = None
    schedule: ScheduleSpec = "cosine"
    min_lr: float = 0.0
    seq_len: int | None = None
    drop_last: DropLast = False
    even_batches: bool = True
    convention: Convention = "torch"
    gpus: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    model_parallel: int = 1
    expert_parallel: int = 1
    power: float | None = None
    noise_scale: float | None = None
    sigma_sq: float | None = None
    mu_sq: float | None = None
    ramp: str | None = None
    eval_every: str | None = None
    save_every: str | None = None
    log_every: str | None = None
    parameters: int | None = None
    precision: Precision | None = None
    clip_norm: float | None = None
    bucket_cap_mb: float | None = None
    batch_norm: bool = False
    coupled: Coupling | None = None
    adapter: Adapter | None = None
    device_batches: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        betas: Any = self.betas
        if type(betas) is list:
            msgspec.structs.force_setattr(self, "betas", tuple(betas))
        schedule: Any = self.schedule
        if type(schedule) is not str or schedule != "cosine":  # the default, which loads no schedules
            _check_schedule(self)
        batches: Any = self.device_batches
        if isinstance(batches, list | tuple):
            msgspec.structs.force_setattr(
                self, "device_batches", tuple(_count("device_batches", batch) for batch in batches)
            )
        self.core  # noqa: B018 - checks all fields
        for name in _TYPED:
            text = getattr(self, name)
            if text is not None and (plain := _core.canonical(name, text)) not in (None, text):
                msgspec.structs.force_setattr(self, name, plain)

    @cached_property
    def core(self) -> _core.Recipe:
        """The recipe in the core, all fields checked; isobatch.schedules checks a `Schedule`."""
        fields = msgspec.structs.asdict(self)
        if not isinstance(self.schedule, str):
            del fields["schedule"]
        return _core.Recipe(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **msgspec.structs.asdict(self)), ()

    @classmethod
    @named_arguments
    def from_gpus(
        cls,
        *,
        gpus: int,
        batch_per_gpu: int | Sequence[int],
        accumulation: int = 1,
        model_parallel: int = 1,
        **fields: Any,
    ) -> Self:
        """Makes the recipe of a run known by its GPUs.

        Args:
            gpus: GPUs in the tuned run.
            batch_per_gpu: samples in a micro-batch of one replica (a replica is a GPU where model_parallel is
                1); a list with one number a replica where devices are unequal.
            accumulation: micro-batches in an optimizer step.
            model_parallel: GPUs that hold one replica.
            fields: the Recipe's other fields.

        Returns:
            The recipe; its effective batch is batch_per_gpu × accumulation × replicas.

        Raises:
            InputError: as Recipe; model_parallel does not divide the GPUs, or there is not one batch a
                replica.

        >>> Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd").effective_batch
        256
        """
        for name in ("effective_batch", "micro_batch"):
            if name in fields:
                raise InputError("comes from gpus × batch_per_gpu × accumulation: leave it out", field=name)
        counts = {"gpus": gpus, "accumulation": accumulation, "model_parallel": model_parallel}
        known: dict[str, Any] = {name: _count(name, value) for name, value in counts.items()}
        gpus, accumulation, model_parallel = known.values()
        replicas, rest = divmod(gpus, model_parallel)
        if rest:
            raise must_be(f"a divisor of the {gpus} GPUs", model_parallel, field="model_parallel")
        if isinstance(batch_per_gpu, Sequence):
            batches = tuple(_count("batch_per_gpu", batch) for batch in batch_per_gpu)
            if len(batches) != replicas:
                must = f"must have one number for each of {replicas} replicas"
                raise InputError(f"batch_per_gpu {must}, got {len(batches)}", field="batch_per_gpu")
            if len(set(batches)) > 1:
                batch = sum(batches) * accumulation
                return cls(effective_batch=batch, device_batches=batches, **known, **fields)
            batch_per_gpu = batches[0]
        micro = _count("batch_per_gpu", batch_per_gpu)
        return cls(effective_batch=micro * accumulation * replicas, micro_batch=micro, **known, **fields)

    @classmethod
    def read(
        cls,
        path: Source | Sequence[Source],
        *,
        tool: str | None = None,
        gpus: int | None = None,
        **fields: Any,
    ) -> Self:
        """Reads the recipe from another tool's configuration. Nothing in the file is imported or executed.

        Args:
            path: a file, or a folder with a checkpoint of transformers' Trainer; several files that describe
                one run, such as TrainingArguments and an Accelerate configuration, as a list. Also the
                settings themselves, as a dict or an object with `to_dict`:
                `Recipe.read(TrainingArguments(...), gpus=8)`.
            tool: whose the first file is; None: found by what is in it. docs/tools.md lists the tools.
            gpus: the GPUs that it was tuned on.
            fields: fields of a Recipe, and `batch_per_gpu`; each wins over the file.

        Returns:
            The recipe; its `notes` say what was assumed, and what was not understood.

        Raises:
            InputError: the file cannot be read, contradicts itself, or does not say all that a plan needs:
                then the message lists what is missing.

        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "args.json"
        >>> _ = file.write_text('{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100}')
        >>> Recipe.read(file, gpus=4).effective_batch
        32
        """
        fields = fields if gpus is None else {**fields, "gpus": gpus}
        recipe: Self = of_tools("read_recipe")(cls, path, fields, tool=tool)[0]
        return recipe

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The assumptions of `Recipe.read`, and the settings not understood, as the command prints them;
        empty for any other recipe. Not saved.

        >>> settings = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 9, "zebra": 1}
        >>> Recipe.read(settings, gpus=4).notes[-1]
        'the settings: not understood, may change the batch: zebra (--set overrides)'
        """
        return ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Makes the recipe of a file's fields, or of `batch_per_gpu` and the other arguments of `from_gpus`.

        >>> Recipe.of({"gpus": 8, "batch_per_gpu": 32, "lr": 0.1, "betas": [0.9, 0.95]}).effective_batch
        256
        """
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) and name in _PAIRS else value
            for name, value in fields.items()
        }
        if "batch_per_gpu" not in values:
            refuse_names(cls, values)
            return cls(**values)
        refuse_names(cls, {"effective_batch": 0, **values}.keys() - {"batch_per_gpu"})
        if "gpus" not in values:
            raise missing("gpus", "batch_per_gpu needs it")
        return cls.from_gpus(**values)

    @classmethod
    def load(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Self:
        """Reads a recipe file: a table of Recipe's fields, or `batch_per_gpu` and the other arguments of
        `from_gpus`.

        Args:
            path: a .toml, .yaml, .yml or .json file.
            changes: fields that replace those of the file.

        Raises:
            InputError: the file cannot be read, or as Recipe; the message names the file.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "job.toml"
        >>> _ = path.write_text("effective_batch = 256\\nlr = 0.1\\n")
        >>> Recipe.load(path, {"lr": 0.2}).lr
        0.2
        """
        file = os.fspath(path)
        fields = read_fields(file)
        try:
            renamed = with_our_names(fields, [*cls.__struct_fields__, "batch_per_gpu"])
            return cls.of({**renamed, **(changes or {})})
        except InputError as error:
            if changes and error.field in changes:
                raise
            of_tools("refuse_other_tools")(fields, file)
            raise error.at(file=file) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recipe, whole or not at all; fields at their defaults are left out.

        Args:
            path: a .toml, .yaml, .yml or .json file.

        Raises:
            InputError: the file cannot be written.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "job.toml"
        >>> Recipe(effective_batch=256, lr=0.1, duration="90st").save(path)
        >>> print(path.read_text(), end="")
        effective_batch = 256
        lr = 0.1
        duration = "90st"
        """
        changed = {
            field.name: value
            for field in msgspec.structs.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        if "schedule" in changed and not isinstance(self.schedule, str):
            changed["schedule"] = msgspec.json.decode(self.schedule.to_json())
        write_fields(path, changed)


def _check_schedule(recipe: Recipe) -> None:
    """Reads a schedule as files have it; refuses anything else."""
    from isobatch.schedules.schedule import Schedule
    from isobatch.schedules.text import check_spec

    if isinstance(recipe.schedule, dict):
        try:
            schedule = Schedule.from_json(msgspec.json.encode(recipe.schedule))
        except InputError as error:
            raise error.at(field="schedule") from None
        msgspec.structs.force_setattr(recipe, "schedule", schedule)
    elif isinstance(recipe.schedule, str):
        check_spec(recipe.schedule)
    elif not isinstance(recipe.schedule, Schedule):
        raise must_be("a schedule's name or a Schedule", recipe.schedule, field="schedule")


def _count(name: str, value: Any) -> int:
    number = plain_whole(value)
    if type(number) is not int or not 0 < number <= MAX_BATCH:
        raise must_be("a whole number from 1", value, field=name)
    return number


def with_notes(recipe: _Kind, notes: Iterable[str]) -> _Kind:
    """Adds its reader's assumptions to a recipe, beside its fields."""
    vars(recipe)["notes"] = tuple(notes)
    return recipe


def refuse_no_recipe(recipe: Any, expected: str = "a Recipe") -> None:
    """Refuses anything but a Recipe."""
    if not isinstance(recipe, Recipe):
        todo = "Recipe(**fields) makes one, Recipe.load and Recipe.read read one from a file"
        raise must_be(expected, recipe, field="recipe", todo=todo)
