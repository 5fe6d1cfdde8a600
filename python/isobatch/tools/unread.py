"""Settings left unread in a file: harmless, known to matter, or unknown; and guesses at their meaning."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate
from functools import cache
from typing import Any

from isobatch.tools.page import SettingsPage, leaves
from isobatch.tools.tool import STAYS, Reader
from isobatch.words import few, nearest

EVERYWHERE = (
    "seed *_seed *_dir *_path *_paths *_file *_files *_folder *_token cache* run_name run_id project* "
    "output* eval evaluate eval_* evaluation_* val_* valid* test_* predict* do_* save* checkpoint* ckpt* "
    "resume* load* log log_* logging* logger* report* print* debug* verbose* profil* wandb* tensorboard* "
    "mlflow* comet* swanlab* trackio* neptune* clearml* hub_* push_to_hub* hf_* dataset* data data_* "
    "train_file* train_data* prompt* chat_template* text_* *_column *_columns preprocess* num_workers "
    "*_num_workers tokenizer* model model.* model_* base_model* pretrained* trust_remote_code adapter* lora* "
    "peft* use_peft quant* load_in_* freeze* tune_* *dropout* attn* attention* *_attn flash_attention* "
    "gradient_checkpointing* activation_checkpointing* torch_dtype dtype *compile* nproc_per_node nnodes "
    "node_rank master_* local_rank deepspeed fsdp* use_cache schema version "
    # of torchrun, accelerate launch and deepspeed, in front of the script
    "standalone rdzv* start_method redirects tee *_filter no_python module run_path virtual_local_rank "
    "signals_to_handle event_log_handler duplicate_* local_addr max_restarts monitor_interval role "
    "config_file gpu_ids machine_rank main_process_* same_network num_cpu_* multi_gpu dynamo_* use_deepspeed "
    "use_fsdp zero_stage zero3_* offload_* *_offload deepspeed_* hostfile launcher launcher_args bind_core* "
    "*_elastic_nodes enable_each_rank_log het_group pack_group enable_cpu_affinity no_local_rank no_ssh* "
    "ssh_port venv_script force_multi"
)
"""Patterns of settings that change neither batch nor schedule in any file of a tool or a script."""

_DEEPEST = 4
_LOOKED_UP = 50
"""Unknown names that are compared with the known ones: a comparison takes a millisecond."""
_OFF = {"", "none", "no", "null", "off", "false", "disabled", "0", "0.0", "-1", "auto", "[]", "{}", "()"}
_ONE = frozenset({"1", "1.0"})
_ALIKE = 0.85
"""The least likeness of a misspelt name to the right one."""
_DIVIDES = re.compile(r"parallel|(^|_)(tp|cp|sp|pp)(_size|_degree)?$")
"""Names for the GPUs of one replica: never harmless by a pattern."""
_OWN_ARGUMENTS = re.compile(
    r"(^|\.)((\w*_)?(optim|optimizer|scheduler|loader|dataloader|model|dataset|data)"
    r"|lr_scheduler_kwargs|model_config|training_args)\."
    r"|^(optim|optimizer|adam|adamw|lion|muon|soap|sgd|galore|qgalore|badam|apollo|dion|dataloader)_"
)
"""Arguments of an optimizer, a scheduler, a loader or a model: never harmless by a pattern."""
_ELSEWHERE = re.compile(
    r"(^|[._-])(eval|evaluate|evals|val|valid|validation|test|predict|save|saves|saving|log|logs|logging|"
    r"print|report|checkpoint|ckpt|generation|profile|profiler|profiling|rdzv|hub|timeout)([._-]|$)",
    re.IGNORECASE,
)
"""Lengths and batches of evaluation, saving, logging and the like, not of the training."""
_SIZE = r"(batch(_?size)?|bsz|bs)"
_PER = r"_per_(gpu|device|rank|replica|dp_rank)"
_PER_GPU = (
    rf"per_(device|gpu|rank)(_train(ing)?)?_{_SIZE}|(train_)?(micro_?{_SIZE}|mbs)({_PER})?"
    rf"|(local|device)_{_SIZE}|(train_)?{_SIZE}{_PER}"
)
_ALL_GPUS = rf"(train_)?(global|effective|total)_(train_)?{_SIZE}|{_SIZE}_(global|total)|gbs"
_ACCUMULATION = (
    r"(num_|n_)?(gradients?|grads?|batch)_?acc(um(ulation)?)?(_(steps?|iters?|freq|per_replica))?"
    r"|(num_)?acc(um(ulation)?)?_(steps?|iters?|freq)|accum(ulation)?|accumulate_grad_batches"
    r"|num_micro_?batches|update_freq|accumulative_counts"
)
_GROUP = re.compile(r"(^|\.)(rollout\.n|n_(samples|resp)_per_prompt|num_generations|group_size)$")
_REPLICAS = re.compile(r"(dp|data_parallel)(_(shards?|replicate|replicas))?(_(size|degree))?|num_replicas")
_FACTOR = re.compile(r"(^|_)(freq|accum\w*|acc|counts?|shards?|replic\w*|degree|repeats?|micro\w*)(_|$)")
"""Names for what may multiply a batch, in a tool that is not known."""
_GPUS = re.compile(r"(n|num)_?gpus|world_size|num_processes|gpus")
_NODES = re.compile(r"nnodes|num_nodes|num_machines|n_?nodes")
_NODE_GPUS = re.compile(r"nproc_per_node|(n_|num_)?gpus_per_node|devices")
_SHARES = re.compile(r"(tp|cp|sp|pp|(tensor|pipeline|context|sequence)(_model)?_parallel)(_size|_degree)?")
_GENERATES = re.compile(r"(^|\.)(vllm|sglang|rollout|generator|inference)\w*\.")
"""Settings of the engine that generates: its GPUs' shares are none of the training's."""
_LENGTH = re.compile(r"[\d.e+]+(ep|st|sp|tok|%)?")
_TOKENS = 2**16
"""A global batch from here on probably counts tokens."""
KINDS = (
    ("batch_per_gpu", _PER_GPU),
    ("effective_batch", _ALL_GPUS),
    ("batch", rf"(train_)?{_SIZE}|batch_size_train"),
    ("accumulation", _ACCUMULATION),
    (
        "warmup",
        r"(num_|lr_)?warm_?up"
        r"(_(steps|iters|ratio|epochs|fraction|samples|proportion|percent|pct|tokens|updates))?",
    ),
    ("min_lr", r"(min_lr|lr_min|eta_min|min_learning_rate)(_(ratio|rate|factor))?"),
    ("lr", r"(base_|max_|peak_|init_)?(lr|learning_rate)|lr0"),
    (
        "schedule",
        r"((lr|learning_rate)_)?(schedul(e|er|ing)|sched|decay(?=_))"
        r"(_(type|name|kind|style|schedule|function))?",
    ),
    (
        "duration",
        r"(num_|max_|n_|train_|total_)*(epochs?|steps|iters|iterations|samples|updates?)|max_duration",
    ),
    ("optimizer", r"optim(izer)?"),
    ("weight_decay", r"weight_decay|wd"),
)  # fmt: skip
_ANY_KIND = re.compile("|".join(f"(?:{pattern})" for _, pattern in KINDS))
_MATTERS = {kind for kind, _ in KINDS} - {"optimizer", "weight_decay"}


def note_unread(page: SettingsPage, reader: Reader) -> list[str]:
    """Adds a fault for each unread setting known to matter, notes the unknown ones, and returns these."""
    reading = page.reading
    unknown = []
    for key, value in _switched_on(page.settings, reading.used):
        standing = standing_of(key, reader)
        if standing is None and guess_field(key) == "min_lr" and "min_lr" not in reading.fields:
            page.ask("min_lr", f"{page.name(key)} {value} is the script's own", page.name(key))
        elif standing is None:
            unknown.append(key)
        elif standing == STAYS:
            page.note(f"{page.name(key)} {value} stays as it is: no plan moves it")
        elif standing and _text(value) not in _ONE:
            text = f"{page.name(key)} {value} changes the training, and is not modelled"
            page.ask(standing, text, page.name(key))
    known = {*reading.used, *(name for name in reader.harmless.split() if "*" not in name)}
    for key in unknown[:_LOOKED_UP]:
        near = nearest(key, sorted(known - page.settings.keys()), _ALIKE)
        if near is not None:
            reading.misspelt[page.name(key)] = page.name(near)
    if unknown:
        names = map(page.name, unknown)
        hints = [
            f"{name} ({reading.misspelt[name]}?)" if name in reading.misspelt else name for name in names
        ]
        page.note(f"not understood, may change the batch: {few(hints)} (--set overrides)")
    return unknown


def standing_of(key: str, reader: Reader) -> str | None:
    """Returns the field to give if this setting matters; empty: it is harmless, None: it is unknown.

    >>> standing_of("logging_dir", Reader("1", print, print, harmless="dpo_beta"))
    ''
    >>> standing_of("batch_size", Reader("1", print, print, harmless="batch_*"))
    """
    for field, patterns in reader.matters.items():
        if _any_of(patterns).match(key):
            return field
    if key in reader.harmless.split():
        return ""
    if is_about_training(key) or _DIVIDES.search(key.rpartition(".")[2]) or _OWN_ARGUMENTS.search(key):
        return None
    return "" if _any_of(f"{reader.harmless} {EVERYWHERE}").match(key) else None


@cache
def _any_of(patterns: str) -> re.Pattern[str]:
    """Returns one expression for all patterns: a file may have thousands of names."""
    return re.compile("|".join(map(translate, patterns.split())) or "(?!)")


def is_everywhere(key: str) -> bool:
    """Tells whether a setting has no effect on the training in any tool, as a launcher's."""
    return guess_field(key) is None and _any_of(EVERYWHERE).match(key) is not None


def _switched_on(
    settings: Mapping[Any, Any], used: Iterable[str], inside: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yields the unread settings, without those switched off: null, false, 0, an empty text."""
    for name, value in settings.items():
        key = f"{inside}{name}"
        if key in used:
            continue
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _switched_on(value, used, f"{key}.", depth + 1)
        elif _text(value) not in _OFF:
            yield key, value


def _text(value: Any) -> str:
    return str(value).strip().lower()


def guess_field(key: str) -> str | None:
    """Guesses a name's meaning: a field of a recipe, or "batch", which may count per GPU.

    >>> [guess_field(key) for key in ("batch_size", "train.grad_accum", "lr", "epochs", "eval_steps")]
    ['batch', 'accumulation', 'lr', 'duration', None]
    """
    name = key.rpartition(".")[2].replace("-", "_").lower()
    if not _ANY_KIND.fullmatch(name) or _ELSEWHERE.search(key):
        return None
    return next((kind for kind, pattern in KINDS if re.fullmatch(pattern, name)), None)


def is_about_training(key: str) -> bool:
    """Tells whether a name looks like a batch, a learning rate, a length or a schedule.

    >>> is_about_training("train.batch_size"), is_about_training("seed")
    (True, False)
    """
    return guess_field(key) in _MATTERS


def as_recipe(settings: Mapping[str, Any]) -> list[str]:
    """Guesses the lines of a recipe from a file of no known tool, for its author to check.

    >>> print("\\n".join(as_recipe({"micro_batch": 16, "accum": 4, "lr": 3e-3, "epochs": 2})))
    effective_batch=N   micro_batch 16 × accum 4 × the GPUs of that run
    lr=0.003            lr
    duration=2ep        epochs
    """
    guesses: dict[str, tuple[str, Any]] = {}
    for key, value in leaves(settings).items():
        kind = guess_field(key)
        if kind in ("duration", "warmup") and isinstance(value, str):
            value = re.sub(r"(?<=\d)ba$", "st", value)  # MosaicML's batches
            kind = kind if _LENGTH.fullmatch(value) else None
        if kind is not None and _is_plain(value):
            guesses.setdefault(kind, (key, value))
    pairs = [_batch(guesses, settings)]
    for field in ("lr", "duration", "warmup", "schedule", "min_lr", "optimizer", "weight_decay"):
        if field in guesses:
            key, value = guesses[field]
            pairs.append((f"{field}={_value(field, key, value)}", key))
    width = max(len(line) for line, _ in pairs)
    return [f"{line:<{width}}   {right}" for line, right in pairs]


def _is_plain(value: Any) -> bool:
    """Tells whether a value can be typed as it is: none of Hydra's `${…}`, which a shell would replace."""
    if isinstance(value, str) and "$" in value:
        return False
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", 0, -1)


def _batch(guesses: Mapping[str, tuple[str, Any]], settings: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the line with the global batch, as a number if the file has all of its factors."""
    if "effective_batch" in guesses:
        key, value = guesses["effective_batch"]
        is_tokens = (_count(value) or 0) >= _TOKENS
        if drawn := [f"{name} {count}" for name, count in leaves(settings).items() if _is_group(name, count)]:
            return "effective_batch=N", f"{key} {value}, times {few(drawn)} where it counts prompts"
        return (
            f"effective_batch={value}",
            f"{key}{' (divide tokens by the sequence length)' if is_tokens else ''}",
        )
    kind = next((kind for kind in ("batch_per_gpu", "batch") if kind in guesses), None)
    if kind is None:
        return "effective_batch=N", "samples in an optimizer step, over all GPUs"
    key, _ = guesses[kind]
    own = [guesses[name] for name in (kind, "accumulation") if name in guesses]
    replicas, source, counted = _replicas(settings)
    text = " × ".join([*(f"{name} {value}" for name, value in own), source])
    sizes = [_count(value) for _, value in own]
    counted_names = {name.rpartition(".")[2] for name in (*counted, *(name for name, _ in own))}
    if kind == "batch_per_gpu" and "batch" in guesses:
        name, value = guesses["batch"]
        return "effective_batch=N", f"{name} {value} if it counts all GPUs, else {text}"
    factors = [
        f"{name} {value}"
        for name, value in leaves(settings).items()
        if (_count(value) or 0) > 1 and name.rpartition(".")[2] not in counted_names and _may_multiply(name)
    ]
    if factors:
        return "effective_batch=N", f"{text}, and {few(factors)} where that multiplies it"
    if replicas is None or None in sizes:
        without = f" (without them if {key} counts all GPUs)" if kind == "batch" else ""
        return "effective_batch=N", f"{text}{without}"
    batch = math.prod(size or 1 for size in sizes)
    if kind == "batch" and replicas > 1:
        return "effective_batch=N", f"{batch * replicas} = {text}, or {batch} if {key} counts all GPUs"
    return f"effective_batch={batch * replicas}", text


def _is_group(key: str, value: Any) -> bool:
    """Tells whether a name counts the several completions of a prompt."""
    return (_count(value) or 0) > 1 and _GROUP.search(key.replace("-", "_").lower()) is not None


def _may_multiply(key: str) -> bool:
    """Tells whether an unknown name may be a factor of the batch."""
    name = key.rpartition(".")[2].replace("-", "_").lower()
    return _FACTOR.search(name) is not None and not _ELSEWHERE.search(key)


def _replicas(settings: Mapping[str, Any]) -> tuple[int | None, str, list[str]]:
    """Counts the data-parallel replicas of a file (None if it does not say), with their source and keys."""
    counts = {key: count for key, value in leaves(settings).items() if (count := _count(value)) is not None}
    named = {key: key.rpartition(".")[2].replace("-", "_").lower() for key in counts}

    def find(pattern: re.Pattern[str]) -> list[str]:
        return [key for key in counts if pattern.fullmatch(named[key])]

    if replicas := find(_REPLICAS):
        text = " × ".join(f"{key} {counts[key]}" for key in replicas)
        return math.prod(counts[key] for key in replicas), text, replicas
    shares = [key for key in find(_SHARES) if counts[key] > 1 and not _GENERATES.search(key)]
    shared = math.prod(counts[key] for key in shares)
    divided = f" / ({' × '.join(f'{key} {counts[key]}' for key in shares)})" if shares else ""
    gpus = find(_NODE_GPUS)[:1]
    gpus = [*find(_NODES)[:1], *gpus] if gpus else find(_GPUS)[:1]
    if not gpus:
        of_run = f"the replicas of that run: its GPUs{divided}" if divided else "the GPUs of that run"
        return None, of_run, shares
    text = " × ".join(f"{key} {counts[key]}" for key in gpus)
    return math.prod(counts[key] for key in gpus) // shared or None, text + divided, [*gpus, *shares]


def _count(value: Any) -> int | None:
    """Reads a whole number from 1, also as a text, or as the first word behind a launcher's flag."""
    value = value[0] if isinstance(value, list) and value else value
    is_text = isinstance(value, str) and value.isdecimal()
    return int(value) if (is_text or type(value) is int) and int(value) > 0 else None


def _value(field: str, key: str, value: Any) -> str:
    """Writes a value; a length gets the unit implied by its name."""
    name = key.rpartition(".")[2].lower()
    if field in ("duration", "warmup") and isinstance(value, str):  # of a command line
        try:
            value = float(value)
        except ValueError:
            return str(value)
    if field not in ("duration", "warmup") or not isinstance(value, int | float):
        return str(value)
    if "epoch" in name:
        return f"{value:g}ep"
    if field == "warmup" and value < 1:
        return f"{value * 100:g}%"
    return f"{value:g}sp" if "sample" in name else f"{int(value) if value == int(value) else value}st"
