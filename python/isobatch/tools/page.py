"""Settings of a file, taken one at a time: each is checked, and remembered with the field that it gives."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.words import count, number_of, printable

_FIELDS = (
    (r"warmup", "warmup"),
    (r"scheduler", "schedule"),
    (r"beta", "betas"),
    (r"(^|_)(expert|ep)_|autoep|ep_size", "expert_parallel"),
    (r"parallel|_degree|(^|_)(tp|cp|sp|pp)_size", "model_parallel"),
    (r"nproc|nnodes|num_(nodes|machines|gpus)|n_gpus|devices|WORLD_SIZE", "gpus"),
    (r"decay_(iters|samples|steps|ratio)|cycles|timescale|power|GAMMA", "schedule"),
    (r"(^|[._])(log|logging|eval|save)_(interval|steps|freq)$", "log_every"),
    (r"steps|epochs|iters|samples|MAX_ITER|T_max", "duration"),
    (r"(^|[._])optim(izer)?($|[._])", "optimizer"),
    (r"decay_style|sched", "schedule"),
    (r"precision|dtype|bf16|fp16", "precision"),
    (r"rollout\.n$|num_generations", "effective_batch"),
    (r"clip|norm", "clip_norm"),
)
"""The recipe's field to give instead of a setting that becomes no field by itself."""
_ASKED = {"batch_per_gpu", *(name for name, record, _ in _core.fields() if record != "settings")}
_ASKED -= {"log_every", "eval_every", "save_every", "precision", "seq_len", "clip_norm"}
"""Fields that reach a number of a plan: a setting of no other is asked for (seq_len only by a length in
tokens)."""
_EXAMPLES = {"lr": "2e-5", "min_lr": "1e-6", "schedule": "cosine", "duration": "1000st", "warmup": "100st"}
_EXAMPLES |= {"optimizer": "adamw", "betas": "0.9,0.95", "adapter": "lora", "coupled": "experts"}
_EXAMPLES |= {"ramp": "'32 32 100000'"}
"""Values of fields that are no whole numbers, as --set takes them."""
_OPTIMIZERS = ("adamw", "adafactor", "rmsprop", "lamb", "lars", "lion", "muon", "adam", "sgd")
_NAMED = re.compile(r"\$\{([\w.]+)\}")
_TRUE = ("true", "yes", "on", "1")


class Unknown:
    """A value without a literal: a call, an import, or a variable of a shell known only in the run.

    Attributes:
        name: of what was imported, such as the class of an optimizer; else empty.
        why: ends a sentence about a setting; if empty, the setting counts as missing.
    """

    def __init__(self, name: str = "", why: str = "") -> None:
        self.name, self.why = name, why

    def __repr__(self) -> str:
        return f"<{self.name or self.why or 'not a literal'}>"

    def __str__(self) -> str:
        return f"({self.why or self.name or 'not a literal'})"


UNKNOWN = Unknown()


def value_at(settings: Any, key: str) -> Any:
    """Returns the value at a place such as `optimizer.params.lr`; None for a missing one."""
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def leaves(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns every value by its place.

    >>> leaves({"optimizer": {"lr": 0.1}, "steps": 3})
    {'optimizer.lr': 0.1, 'steps': 3}
    """
    places: dict[str, Any] = {}
    for name, value in settings.items():
        at = f"{path}.{name}" if path else str(name)
        places.update(leaves(value, at) if isinstance(value, Mapping) and value else {at: value})
    return places


@dataclass
class Joined:
    """The fields of a run, once all its files and settings are joined.

    Attributes:
        owners: the file of each field; a field given by hand has none.
        tools: of the run's files.
    """

    fields: dict[str, Any]
    owners: Mapping[str, "Reading"]
    tools: frozenset[str]

    def is_of(self, field: str, reading: "Reading") -> bool:
        """Tells whether a field's value comes from this file."""
        owner = self.owners.get(field)
        return owner is not None and owner.settings is reading.settings


@dataclass
class Reading:
    """The contents of a tool's file.

    Attributes:
        tool, title: the reader's name, and the tool's as people write it.
        fields: of a recipe, and `batch_per_gpu`.
        keys: for each of them what the file calls it.
        notes: what was assumed, or is not read.
        faults: what is wrong, by the field that mends it.
        step: of a checkpoint, the optimizer steps done.
        used: the settings that were asked for, by their places in the file.
        absent: for each field without a value what the file would call it.
        misspelt: settings that are not known, and the names that they are probably meant as.
        guessed: whether the tool was found by what is in the file.
        multiple, accumulation_multiple: of a batch, and of its micro-batches on a replica.
        gaps: settings among the faults that lack a value, such as a length that the script counts to.
        job: the numbers that its #SBATCH lines ask for, by option.
        named: the files of DeepSpeed that it names, with the note on each.
        later: steps to take once all files and settings of the run are joined.
    """

    tool: str
    title: str
    file: str
    settings: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    faults: list[tuple[str, InputError]] = field(default_factory=list)
    step: int | None = None
    used: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    misspelt: dict[str, str] = field(default_factory=dict)
    guessed: bool = False
    multiple: int = 1
    accumulation_multiple: int = 1
    gaps: set[str] = field(default_factory=set)
    job: dict[str, str] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    later: list[Callable[[Joined], None]] = field(default_factory=list)

    def drop(self, field: str) -> Any:
        """Takes a field out again, and returns its value; None for a missing one."""
        self.keys.pop(field, None)
        return self.fields.pop(field, None)

    def value_of(self, name: str) -> Any:
        """Returns the value of a setting by its name in the file, `--micro-batch-size` too; None without."""
        return value_at(self.settings, name[2:].replace("-", "_") if name.startswith("--") else name)

    @property
    def demands(self) -> dict[str, Any]:
        """Returns the tool's own demands as settings of a plan."""
        demands = {"batch_multiple": self.multiple, "accumulation_multiple": self.accumulation_multiple}
        return {name: multiple for name, multiple in demands.items() if multiple > 1}


class SettingsPage:
    """Reads settings by name; dots go into tables (`optimizer.params.lr`)."""

    def __init__(
        self, settings: Mapping[str, Any], reading: Reading, *, dashes: bool = False, inside: str = ""
    ) -> None:
        self.settings, self.reading, self.dashes, self.inside = settings, reading, dashes, inside

    def raw(self, key: str) -> Any:
        """Returns the value as it is written; None for a missing one."""
        self.reading.used.add(f"{self.inside}{key}")
        return value_at(self.settings, key)

    def has(self, key: str) -> bool:
        """Tells whether there is a value."""
        return self.raw(key) is not None

    def first(self, *keys: str) -> str:
        """Returns the first name in use, or the first of all."""
        return next((key for key in keys if self.has(key)), keys[0])

    def name(self, key: str) -> str:
        """Returns a setting's name as the tool's users write it."""
        return f"--{key.replace('_', '-')}" if self.dashes else f"{self.inside}{key}"

    def give(self, field: str, value: Any, key: str) -> None:
        """Sets a field of the recipe, and its source in the file."""
        self.reading.fields[field] = value
        self.reading.keys[field] = self.name(key)

    def note(self, text: str) -> None:
        """Adds a note for readers of the plan."""
        if text not in self.reading.notes:
            self.reading.notes.append(text)

    def note_until(self, text: str, is_answered: Callable[[Joined], bool]) -> None:
        """Adds a note, dropped again if the other files and settings of the run answer it."""

        def drop(run: Joined) -> None:
            if is_answered(run) and text in self.reading.notes:
                self.reading.notes.remove(text)

        self.note(text)
        self.reading.later.append(drop)

    def note_assumed(self, field: str, text: str) -> None:
        """Adds a note on a field's assumed value, dropped if another file or a setting gives the field."""
        reading = self.reading

        def is_answered(run: Joined) -> bool:
            return not run.is_of(field, reading) and (field in run.fields or field in reading.fields)

        self.note_until(text, is_answered)

    def derive(self, field: str, compute: Callable[[Mapping[str, Any]], Any], key: str) -> None:
        """Gives a field computed from others of this file, and again from those of the whole run."""
        reading = self.reading
        if (value := compute(reading.fields)) is not None:
            self.give(field, value, key)

        def give_anew(run: Joined) -> None:
            is_ours = run.is_of(field, reading) or not (field in run.fields or field in run.owners)
            if is_ours and (value := compute(run.fields)) is not None:
                run.fields[field] = value

        reading.later.append(give_anew)

    def leave_out_rest(self, rollout: Callable[[Mapping[str, Any]], int], why: str) -> None:
        """Shortens the dataset to whole rollouts before steps are counted; `why` begins the note."""

        def shorten(run: Joined) -> None:
            unit = rollout(run.fields) if epochs_of(run.fields) else 0
            samples = run.fields.get("dataset_size") or 0
            if unit and samples > unit and samples % unit:
                run.fields["dataset_size"] = samples // unit * unit
                self.note(f"{why}: {count(samples % unit)} of {count(samples)} samples")

        self.reading.later.insert(0, shorten)

    def fault(self, to: str, error: InputError) -> None:
        """Adds a fault; the field `to`, given by hand, mends it."""
        fault = error.at(file=self.reading.file)
        if str(fault) not in [str(known) for _, known in self.reading.faults]:
            self.reading.faults.append((to, fault))

    def number(self, key: str, to: str | None = None, *, default: float | None = None) -> float | None:
        """Reads a finite number, also as a text such as "2e-5"."""
        value = self.raw(key)
        number = default if value is None else self.as_number(key, value, to or _field(key))
        if to is not None and number is not None:
            self.give(to, number, key)
        elif to is not None:
            self.name_absent(**{to: key})
        return number

    def name_absent(self, **keys: str) -> None:
        """Remembers the file's names of missing fields."""
        self.reading.absent = {field: self.name(key) for field, key in keys.items()} | self.reading.absent

    def whole(self, key: str, to: str | None = None, *, default: int | None = None) -> int | None:
        """Reads a whole number."""
        value = self.raw(key)
        number = default if value is None else self.as_number(key, value, to or _field(key))
        if number is None or number != int(number) or abs(number) >= 2**63:
            if number is not None:
                self.fault(to or _field(key), must_be("a whole number", value, field=self.name(key)))
            if to is not None:
                self.name_absent(**{to: key})
            return None
        if to is not None:
            self.give(to, int(number), key)
        return int(number)

    def length(self, key: str, to: str, unit: str, *, default: int | None = None) -> int | None:
        """Reads a whole number above 0 as a length of the recipe, in this unit."""
        count = self.whole(key, default=default)
        if count and count > 0:
            self.give(to, length(count, unit), key)
        else:
            self.name_absent(**{to: key})
        return count

    def times_lr(self, to: str, factor: float | None, key: str) -> None:
        """Gives a multiple of the learning rate, also of one from another file or a setting."""
        if factor:
            self.derive(to, lambda fields: fields["lr"] * factor if _is_rate(fields.get("lr")) else None, key)

    def word(self, key: str, default: str | None = None) -> str | None:
        """Reads a text; None for a missing one."""
        value = self.raw(key)
        if isinstance(value, Unknown):
            if value.why:
                self.as_number(key, value, _field(key))
            return value.name or default
        if not isinstance(value, str | None):
            self.fault(key, must_be("a text", value, field=self.name(key)))
        return value if isinstance(value, str) else default

    def choice(self, key: str, to: str, names: Mapping[str, str], default: str = "") -> None:
        """Reads a field by the tool's words for its values; another word gives nothing."""
        if (value := names.get(self.word(key, default) or "")) is not None:
            self.give(to, value, key)

    def flag(self, key: str) -> bool:
        """Tells whether something is switched on."""
        value = self.raw(key)
        if isinstance(value, Unknown) and value.why:
            self.note(f"{self.name(key)} {value.why}: not planned")
            return False
        return (value.lower() if isinstance(value, str) else value) in (*_TRUE, 1)

    def table(self, key: str) -> "SettingsPage":
        """Returns a table inside as a page of its own."""
        value = value_at(self.settings, key)
        inner = value if isinstance(value, Mapping) else {}
        return SettingsPage(inner, self.reading, dashes=self.dashes, inside=f"{self.inside}{key}.")

    def as_number(self, key: str, value: Any, to: str) -> float | None:
        """Reads a setting's value as a number, or adds a fault."""
        name = self.name(key)
        why = None
        if isinstance(value, str) and value.strip().lower() == "auto":
            why = f'{name}: "auto" is not known before the run'
        elif isinstance(value, Unknown):
            why = f"{name} {value.why or 'is computed, and nothing here is executed'}"
        if why is not None:
            self.ask(to, why, name)
            return None
        read: Any = value
        if isinstance(value, str):
            read = number_of(value.replace("_", ""))
            if read is not None and set(".eE") & set(value):
                read = float(read)  # 1.0 is written as 1.0 again
        most = math.inf if type(read) is float else 2**63
        if type(read) not in (int, float) or not abs(read) < most:
            error = must_be("a number", value, field=name)
            if to in _ASKED:
                self.fault(to, error)
            else:
                self.note(f"{error}: not planned")
            return None
        return read  # type: ignore[no-any-return]

    def optimizer(self, key: str, name: str | None) -> None:
        """Reads the optimizer by any of its names: adamw_torch_fused, paged_adamw_8bit, decoupled_adamw."""
        if name is None:
            return None
        plain = name.lower().replace("-", "_")
        kind = next((known for known in _OPTIMIZERS if known in plain), None)
        if kind is None:
            return self.ask(
                "optimizer", f"{self.name(key)} {printable(name)} is none of {', '.join(_OPTIMIZERS)}", key
            )
        if plain.replace("_torch", "").replace("_fused", "").replace("_bnb", "") != kind:
            self.note(f"{self.name(key)}: {name} is planned as {kind}")
        return self.give("optimizer", kind, key)

    def betas(self, first: str, second: str, default: tuple[float, float] | None = None) -> None:
        """Reads Adam's betas from two settings; beside a single one the other is Adam's own."""
        fallback = default or ((0.9, 0.999) if self.has(first) or self.has(second) else (None, None))
        beta1 = self.number(first, default=fallback[0])
        beta2 = self.number(second, default=fallback[1])
        if beta1 is not None and beta2 is not None:
            self.give("betas", (beta1, beta2), first)

    def torch_optimizer(self) -> None:
        """Reads the numbers of torch's optimizers by its names and defaults, after the optimizer itself."""
        name = self.reading.fields.get("optimizer")
        self.pair("betas")
        self.number("eps", "eps")
        self.number("weight_decay", "weight_decay", default=0.01 if name == "adamw" else None)
        self.number("momentum", "momentum", default=0.0 if name == "sgd" else None)

    def pair(self, key: str) -> None:
        """Reads Adam's betas from a list of two."""
        value = self.raw(key)
        if isinstance(value, list | tuple) and len(value) == 2:
            beta1, beta2 = (self.as_number(key, item, "betas") for item in value)
            if beta1 is not None and beta2 is not None:
                self.give("betas", (beta1, beta2), key)
        elif value is not None:
            self.number(key, "betas")  # says what is wrong

    def clip(self, key: str, *, default: float | None = None) -> None:
        """Reads a gradient norm; 0 and below switch clipping off."""
        value = self.number(key, default=default)
        if value is not None and value > 0:
            self.give("clip_norm", value, key)

    def precision(self, names: dict[str, str]) -> None:
        """Reads the first precision switched on: {"bf16": "bf16", "fp16": "fp16"}."""
        on = [key for key in names if self.flag(key)]
        key = next((name for name in names if name in on or self.raw(name) == "auto"), "")
        if key in on:
            self.give("precision", names[key], key)
        elif key:
            text = f"{self.name(key)}: auto is decided on the machine; the precision is not planned"
            self.note_until(text, lambda run: "precision" in run.fields)

    def interpolated(self) -> "SettingsPage":
        """Returns the page with each text `${name}` replaced by its plain value, as OmegaConf does."""

        def fill(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {str(key): fill(item) for key, item in value.items()}
            match = _NAMED.fullmatch(value.strip()) if isinstance(value, str) else None
            named = None if match is None else self.raw(match[1])
            return value if named is None or isinstance(named, Mapping | list) else named

        return SettingsPage(fill(self.settings), self.reading)

    def read_launch_line(self) -> None:
        """Reads the GPUs of a torchrun, accelerate or deepspeed line; the script may follow a value."""
        first = {key: value[0] for key, value in self.settings.items() if isinstance(value, list) and value}
        page = SettingsPage({**self.settings, **first}, self.reading, dashes=self.dashes)
        nodes = page.whole(page.first("nnodes", "num_nodes", "num_machines"), default=1)
        own = included_gpus(page.word("include") or "") if page.has("include") else None
        if own:
            page.give("gpus", own, "include")
        elif page.has(key := page.first("nproc_per_node", "num_gpus")):
            each = page.whole(key)
            if nodes and each:
                page.give("gpus", nodes * each, key)
        elif page.has("num_processes"):
            page.whole("num_processes", "gpus")

    def read_parallel(self, *keys: str) -> int:
        """Reads the GPUs of one replica: the product of these settings."""
        sizes = {key: size for key in keys if (size := self.whole(key, default=1) or 1) > 1}
        if sizes:
            self.give("model_parallel", math.prod(sizes.values()), next(iter(sizes)))
        return math.prod(sizes.values())

    def read_experts(self, key: str, *beside: str, tensor: str = "") -> int:
        """Reads the GPUs of one full set of experts: `key` splits them, the settings in `beside` multiply.

        `tensor` is of an expert's own tensors; without a value the first of `beside` stands in its place.
        """
        experts = self.whole(key, default=1) or 1
        own = self.whole(tensor) if tensor else None
        if experts <= 1 and (own or 1) <= 1:
            return 1
        sizes = [self.whole(setting, default=1) or 1 for setting in (beside[1:] if own else beside)]
        gpus = math.prod([experts, own or 1, *sizes])
        self.give("expert_parallel", gpus, key)
        return gpus

    def lora(self, key: str, default: str = "") -> None:
        """Reads an adapter of low rank, plain or over quantized weights (qlora, dora, …)."""
        if (self.word(key, default) or "").lower().endswith(("lora", "dora")):
            self.give("adapter", "lora", key)

    def ask(self, field: str, why: str, key: str, *, is_gap: bool = False) -> None:
        """Adds a setting's fault, and leaves a field open; `is_gap`: the file only lacks the value."""
        if field not in _ASKED:
            return self.note(f"{why}: not planned")
        if is_gap:
            self.reading.gaps.add(key)
        example = _EXAMPLES.get(field, "N")
        text = f"{why}: give {field} a value, as in --set {field}={example}"
        return self.fault(field, InputError(text, field=key))

    def unsupported(self, key: str, text: str) -> None:
        """Adds the fault of a schedule beyond a recipe's texts."""
        self.ask("schedule", f"{text} cannot be planned", self.name(key))

    def note_bases(self, key: str) -> bool:
        """Tells, and notes, whether the file builds on unread files: then nothing has a default."""
        if (names := self.raw(key)) is None:
            return False
        listed = names if isinstance(names, list) else [names]
        self.note(
            f"builds on {', '.join(map(str, listed))}, which is not beside it and not read: give what is set "
            "there with --set"
        )
        return True


def included_gpus(hosts: str) -> int | None:
    """Counts the GPUs of deepspeed's `--include`; None for a host without a list.

    >>> included_gpus("localhost:0,1"), included_gpus("a:0,1@b:3"), included_gpus("a@b:3")
    (2, 3, None)
    """
    own = [host.partition(":")[2] for host in hosts.split("@")]
    return sum(len(devices.split(",")) for devices in own) if all(own) else None


def length(number: float, unit: str) -> str:
    """Writes a length as a recipe has it.

    >>> length(3.0, "ep"), length(0.5, "ep"), length(2000, "st")
    ('3ep', '0.5ep', '2000st')
    """
    return f"{int(number) if float(number).is_integer() else repr(float(number))}{unit}"


def steps_of(fields: Mapping[str, Any]) -> int | None:
    """Returns the optimizer steps of a run by the fields of its recipe; None if they do not say.

    >>> steps_of({"duration": "1000st"}), steps_of({"duration": "1000sp", "effective_batch": 300})
    (1000, 4)
    """
    run, batch = _core.length(str(fields.get("duration"))), fields.get("effective_batch")
    if run is None or run[2] not in ("st", "sp") or not (run[2] == "st" or batch):
        return None
    return math.ceil(Fraction(run[0], run[1] * (1 if run[2] == "st" else batch or 1)))


def epochs_of(fields: Mapping[str, Any]) -> tuple[Fraction, int] | None:
    """Returns the epochs of a run and the samples of an epoch; None unless the fields say both.

    >>> epochs_of({"duration": "3ep", "dataset_size": 1000, "effective_batch": 32})
    (Fraction(3, 1), 1000)
    """
    run, rows = _core.length(str(fields.get("duration"))), cast("Any", fields.get("dataset_size"))
    if isinstance(rows, bool) or not hasattr(rows, "__index__") or rows < 1:
        return None
    if run is None or run[2] != "ep" or not fields.get("effective_batch"):
        return None
    return Fraction(run[0], run[1]), int(rows)


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _field(key: str) -> str:
    return next((field for pattern, field in _FIELDS if re.search(pattern, key)), key)
