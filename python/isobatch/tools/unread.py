"""What a reader leaves in a file: settings that cannot matter, that matter and are not modelled, and that are not known here; and
guesses at what a setting of anybody's script means, by its name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from isobatch.tools.page import SettingsPage, leaves
from isobatch.tools.tool import STAYS, Reader
from isobatch.words import few, nearest

EVERYWHERE = (
    "seed *_seed *_dir *_path *_paths *_file *_files *_folder *_token cache* run_name run_id project* output* "
    "eval evaluate eval_* evaluation_* val_* valid* test_* predict* do_* save* checkpoint* ckpt* resume* load* log log_* logging* logger* "
    "report* print* debug* verbose* profil* wandb* tensorboard* mlflow* comet* swanlab* trackio* neptune* clearml* hub_* push_to_hub* hf_* "
    "dataset* data data_* train_file* train_data* prompt* chat_template* text_* *_column *_columns preprocess* num_workers *_num_workers "
    "tokenizer* model model.* model_* base_model* pretrained* trust_remote_code adapter* lora* peft* use_peft quant* load_in_* freeze* tune_* "
    "*dropout* attn* attention* *_attn flash_attention* gradient_checkpointing* activation_checkpointing* torch_dtype dtype *compile* "
    "nproc_per_node nnodes node_rank master_* local_rank deepspeed fsdp* use_cache schema version "
    # of torchrun, accelerate launch and deepspeed, in front of the script
    "standalone rdzv* start_method redirects tee *_filter no_python module run_path virtual_local_rank signals_to_handle event_log_handler "
    "duplicate_* local_addr max_restarts monitor_interval role config_file gpu_ids machine_rank main_process_* same_network num_cpu_* "
    "multi_gpu dynamo_* use_deepspeed use_fsdp zero_stage zero3_* offload_* *_offload deepspeed_* hostfile launcher launcher_args bind_core* "
    "*_elastic_nodes enable_each_rank_log het_group pack_group enable_cpu_affinity no_local_rank no_ssh* ssh_port venv_script force_multi"
)
"""Patterns of settings that change neither batch nor schedule in any tool's files, or a training script's own."""

_DEEPEST = 4
_OFF = {"", "none", "no", "null", "off", "false", "disabled", "0", "0.0", "-1", "auto", "[]", "{}", "()"}
_ONE = frozenset({"1", "1.0"})
_ALIKE = 0.85
"""How alike a misspelt name is to the right one."""
_DIVIDES = re.compile(r"parallel|(^|_)(tp|cp|sp|pp)(_size|_degree)?$")
"""GPUs that hold one replica: never harmless by a pattern."""
_OWN_ARGUMENTS = re.compile(
    r"(^|\.)((\w*_)?(optim|optimizer|scheduler|loader|dataloader|model|dataset|data)|lr_scheduler_kwargs|model_config|training_args)\."
    r"|^(optim|optimizer|adam|adamw|lion|muon|soap|sgd|galore|qgalore|badam|apollo|dion|dataloader)_"
)
"""Arguments of an optimizer, a scheduler, a loader or a model: never harmless by a pattern."""
_ELSEWHERE = re.compile(
    r"(^|[._-])(eval|evaluate|evals|val|valid|validation|test|predict|save|saves|saving|log|logs|logging|print|report|checkpoint|ckpt|"
    r"generation|profile|profiler|profiling|rdzv|hub|timeout)([._-]|$)",
    re.IGNORECASE,
)
"""Lengths and batches of what is no training."""
_PER_GPU = r"(per_(device|gpu)(_train)?_batch(_size)?|(train_)?micro_?batch(_size)?(_per_gpu)?|local_batch(_size)?|batch_per_gpu)"
KINDS = (
    ("batch_per_gpu", rf"{_PER_GPU}"),
    ("effective_batch", r"(global|effective|total)_(train_)?batch(_size)?"),
    ("batch", r"(train_)?(batch_size|batch|bs)|batch_size_train|batchsize"),
    ("accumulation", r"(gradient|grad)_?accum(ulation)?(_steps)?|accum(ulation)?(_steps|_iter)?|accumulate_grad_batches"),
    ("warmup", r"(num_|lr_)?warm_?up(_(steps|iters|ratio|epochs|fraction|samples))?"),
    ("min_lr", r"(min_lr|lr_min|eta_min|min_learning_rate)"),
    ("lr", r"(base_|max_|peak_|init_)?(lr|learning_rate)|lr0"),
    ("schedule", r"(lr_)?(scheduler|schedule|scheduler_type|schedule_type|sched|decay_style)"),
    ("duration", r"(num_|max_|n_|train_|total_)*(epochs?|steps|iters|iterations|samples)"),
    ("optimizer", r"optim(izer)?"),
    ("weight_decay", r"weight_decay|wd"),
)  # fmt: skip
_MATTERS = {kind for kind, _ in KINDS} - {"optimizer", "weight_decay"}


def note_unread(page: SettingsPage, reader: Reader) -> list[str]:
    """Judges the settings of a file that its reader did not ask for.

    Those that are known to matter are faults, which a value for the recipe's field mends; those that are not known are named.

    Returns:
        The settings that are not known.
    """
    reading = page.reading
    unknown = []
    for key, value in _switched_on(page.settings, reading.used):
        standing = standing_of(key, reader)
        if standing is None:
            unknown.append(key)
        elif standing == STAYS:
            page.note(f"{page.name(key)} {value} stays as it is: no plan moves it")
        elif standing and _text(value) not in _ONE:
            text = f"{page.name(key)} {value} changes the training, and is not modelled"
            page.ask(standing, text, page.name(key))
    known = {*reading.used, *(name for name in reader.harmless.split() if "*" not in name)}
    for key in unknown:
        near = nearest(key, sorted(known - page.settings.keys()), _ALIKE)
        if near is not None:
            reading.misspelt[page.name(key)] = page.name(near)
    if unknown:
        names = map(page.name, unknown)
        told = [f"{name} ({reading.misspelt[name]}?)" if name in reading.misspelt else name for name in names]
        page.note(f"not understood, may change the batch: {few(told)} (--set overrides)")
    return unknown


def standing_of(key: str, reader: Reader) -> str | None:
    """Returns the field to give where this setting matters, an empty text where it is harmless, None where it is not known.

    >>> standing_of("logging_dir", Reader("1", print, print, harmless="dpo_beta"))
    ''
    >>> standing_of("batch_size", Reader("1", print, print, harmless="batch_*", matters={"schedule": "relora"}))
    """
    for field, patterns in reader.matters.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns.split()):
            return field
    if key in reader.harmless.split():
        return ""
    if is_about_training(key) or _DIVIDES.search(key.rpartition(".")[2]) or _OWN_ARGUMENTS.search(key):
        return None
    is_listed = any(fnmatchcase(key, pattern) for pattern in (*reader.harmless.split(), *EVERYWHERE.split()))
    return "" if is_listed else None


def _switched_on(
    settings: Mapping[Any, Any], used: Iterable[str], inside: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """The settings that were not asked for, but those that are off: null, false, 0, an empty text."""
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
    """Guesses the meaning of a name: a field of a recipe, or "batch" where the name leaves open whether it counts per GPU.

    >>> [guess_field(key) for key in ("batch_size", "train.grad_accum", "lr", "epochs", "lr_scheduler", "eval_steps", "profiler.warmup_steps")]
    ['batch', 'accumulation', 'lr', 'duration', 'schedule', None, None]
    """
    if _ELSEWHERE.search(key):
        return None
    name = key.rpartition(".")[2].replace("-", "_").lower()
    return next((kind for kind, pattern in KINDS if re.fullmatch(pattern, name)), None)


def is_about_training(key: str) -> bool:
    """Whether a name looks like a batch, a learning rate, a length or a schedule.

    >>> is_about_training("train.batch_size"), is_about_training("seed")
    (True, False)
    """
    return guess_field(key) in _MATTERS


def as_recipe(settings: Mapping[str, Any]) -> list[str]:
    """Guesses the lines of a recipe for a file of nobody's tool; its author checks them.

    >>> print("\\n".join(as_recipe({"batch_size": 16, "accum": 4, "lr": 3e-3, "epochs": 2})))
    effective_batch=N   batch_size 16 × accum 4 × the GPUs of that run (without them if batch_size counts all GPUs)
    lr=0.003            lr
    duration=2ep        epochs
    """
    found: dict[str, tuple[str, Any]] = {}
    for key, value in leaves(settings).items():
        kind = guess_field(key)
        if kind is not None and _is_given(value):
            found.setdefault(kind, (key, value))
    pairs = [_batch(found)]
    for field in ("lr", "duration", "warmup", "schedule", "min_lr", "optimizer", "weight_decay"):
        if field in found:
            key, value = found[field]
            pairs.append((f"{field}={_value(field, key, value)}", key))
    width = max(len(left) for left, _ in pairs)
    return [f"{left:<{width}}   {right}" for left, right in pairs]


def _is_given(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", 0, -1)


def _batch(found: Mapping[str, tuple[str, Any]]) -> tuple[str, str]:
    if "effective_batch" in found:
        key, value = found["effective_batch"]
        return f"effective_batch={value}", key
    for kind in ("batch_per_gpu", "batch"):
        if kind not in found:
            continue
        key, value = found[kind]
        factors = f"{key} {value}"
        if "accumulation" in found:
            factors += " × {} {}".format(*found["accumulation"])
        sure = "" if kind == "batch_per_gpu" else f" (without them if {key} counts all GPUs)"
        return "effective_batch=N", f"{factors} × the GPUs of that run{sure}"
    return "effective_batch=N", "samples in an optimizer step, over all GPUs"


def _value(field: str, key: str, value: Any) -> str:
    """Adds the unit implied by its name to a length."""
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
