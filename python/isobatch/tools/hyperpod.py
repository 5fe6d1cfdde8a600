"""SageMaker HyperPod's recipes with a `scale_config`: a row for each number of nodes, read and checked."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isobatch.errors import InputError, must_be
from isobatch.tools.page import Reading, SettingsPage, value_at
from isobatch.tools.tool import Case, Issue, Reader, Tool, inside
from isobatch.words import counted, few

SOURCE = "aws/sagemaker-hyperpod-recipes at 2631995"
_GPUS = {
    f"{kind}.{size}xlarge": gpus
    for gpus, kinds, sizes in (
        (1, ("g5", "g6", "g6e"), ("", 2, 4, 8, 16)),
        (4, ("g5", "g6", "g6e"), (12, 24)),
        (8, ("g5", "g6", "g6e", "p5", "p5e", "p5en"), (48,)),
        (8, ("p4d", "p4de"), (24,)),
    )
    for kind in kinds
    for size in sizes
}
"""Of an instance type: launcher/accelerator_devices.py there."""
_DEVICES = 8
"""`trainer.devices` where neither the recipe nor its instance types say (hydra_config/llmft/default.yaml)."""
_ARGUMENTS = "training_config.training_args"
_UNDER = [
    f"{_ARGUMENTS}.{key}"
    for key in ("train_batch_size", "micro_train_batch_size", "learning_rate", "uneven_batch")
]
_UNEVEN = ("num_dp_groups_with_small_batch_size", "small_local_batch_size", "large_local_batch_size")


class ScaleRow(NamedTuple):
    """The training on a number of nodes: samples of a step over all GPUs, and of each GPU.

    `groups`, where these differ: how many GPUs take less, the samples of one of them, and of another one.
    """

    nodes: int
    batch: int
    lr: int | float | str | None
    micro_batch: int
    groups: tuple[int, int, int] | None


def rows(settings: Mapping[str, Any]) -> list[ScaleRow]:
    """Reads the rows, each over the recipe's own arguments; a row must be a table of settings."""
    scale = settings.get("scale_config")
    if not isinstance(scale, Mapping) or not scale:
        raise must_be("a table with a row for each number of nodes", scale, field="scale_config")
    return [_row(settings, row, f"scale_config.{name}") for name, row in scale.items()]


def _row(settings: Mapping[str, Any], row: Any, at: str) -> ScaleRow:
    """Reads a row over the recipe's own arguments, merged as in launcher/nemo/recipe_stages.py."""
    own, common = (value_at(table, _ARGUMENTS) for table in (row, settings))
    merged = {**(common if isinstance(common, Mapping) else {}), **(own if isinstance(own, Mapping) else {})}
    place = f"{at}.{_ARGUMENTS}"
    uneven, groups = merged.get("uneven_batch"), None
    if isinstance(uneven, Mapping) and uneven.get("use_uneven_batch", True):
        number, small, large = (_whole(uneven.get(name), f"{place}.uneven_batch.{name}") for name in _UNEVEN)
        groups = (number, small, large)
    if type(rate := merged.get("learning_rate")) not in (int, float, str, type(None)):
        raise must_be("a number", rate, field=f"{place}.learning_rate")
    return ScaleRow(
        _whole(value_at(row, "trainer.num_nodes"), f"{at}.trainer.num_nodes"),
        _whole(merged.get("train_batch_size"), f"{place}.train_batch_size"),
        rate,
        _whole(merged.get("micro_train_batch_size", 1), f"{place}.micro_train_batch_size"),
        groups,
    )


def _whole(value: Any, place: str) -> int:
    if type(value) is not int or value < 1:
        raise must_be("a whole number from 1", value, field=place)
    return value


def instances(settings: Mapping[str, Any]) -> dict[int, list[str]]:
    """Groups the recipe's instance types by their GPUs, unknown types under 0.

    >>> instances({"instance_types": ["ml.g5.12xlarge", "ml.p5.48xlarge"]})
    {4: ['ml.g5.12xlarge'], 8: ['ml.p5.48xlarge']}
    """
    devices, types = value_at(settings, "trainer.devices"), settings.get("instance_types")
    if devices is not None or not types:
        each = _DEVICES if devices is None else _whole(devices, "trainer.devices")
        return {each: [f"trainer.devices {each}"]}
    groups: dict[int, list[str]] = {}
    for name in map(str, _listed(types)):
        groups.setdefault(_GPUS.get(name.removeprefix("ml."), 0), []).append(name)
    return dict(sorted(groups.items()))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def read(page: SettingsPage) -> None:
    """Reads the batch and the learning rate if all rows agree; the lengths are in the recipe's base files."""
    for key in ("scale_config", "instance_types", "trainer.devices", *_UNDER):
        page.raw(key)
    page.note_bases("defaults")
    page.name_absent(
        effective_batch="train_batch_size", batch_per_gpu="micro_train_batch_size", lr="learning_rate"
    )
    if any(str(part).endswith("/peft/lora") for part in _listed(page.raw("defaults"))):
        page.give("adapter", "lora", "defaults")
    page.table(_ARGUMENTS).read_parallel("ring_attn_size")
    try:
        scale = rows(page.settings)
        strange = instances(page.settings).get(0, [])
    except InputError as error:
        page.fault("scale_config", error)
        return
    if strange:
        page.note(f"{few(strange)}: GPUs of such a node are not known here, and no row is checked on it")
    _share(page, "effective_batch", "train_batch_size", {row.batch: row.nodes for row in scale})
    _share(page, "lr", "learning_rate", {row.lr: row.nodes for row in scale if row.lr is not None})


def _share(page: SettingsPage, field: str, key: str, values: Mapping[Any, int]) -> None:
    """Gives a value shared by all rows, and a fault where they differ."""
    if len(values) > 1:
        text = "; ".join(f"{value} at {counted(nodes, 'node')}" for value, nodes in values.items())
        page.fault(field, InputError(f"rows differ: {text}. Give {field} a value", field=key))
    for value in values if len(values) == 1 else ():
        number = page.as_number(key, value, field)
        if number is not None:
            page.give(field, number, key)


def table(reading: Reading) -> tuple[str, list[Issue]]:
    """Lists the rows and their instance types, and finds rows with wrong products."""
    where = instances(reading.settings)
    nodes = ", ".join(str(row.nodes) for row in rows(reading.settings))
    types = "; ".join(f"{counted(each, 'GPU')} ({few(names)})" for each, names in where.items() if each)
    return f"rows for {nodes} nodes of {types}", list(_issues(reading))


def check(case: Case) -> Iterator[Issue]:
    """Finds rows with wrong products for these GPUs, and GPUs without a row."""
    yield from _issues(case.reading, case.gpus)
    where, scale = instances(case.reading.settings), rows(case.reading.settings)
    if all(row.nodes * each != case.gpus for row in scale for each in where):
        yield Issue(
            f"no row is for {counted(case.gpus, 'GPU')}",
            f"the rows are for {', '.join(str(row.nodes) for row in scale)} nodes of "
            f"{' or '.join(str(each) for each in where if each)} GPUs",
            f"{SOURCE}: replica_space is the keys of scale_config",
            "isobatch counts --split ragged --to hyperpod writes the rows that there can be",
        )


def _issues(reading: Reading, gpus: int | None = None) -> Iterator[Issue]:
    for row in rows(reading.settings):
        for each, names in instances(reading.settings).items():
            replicas = row.nodes * each // (reading.fields.get("model_parallel") or 1)
            if replicas and gpus in (None, row.nodes * each) and (miss := _miss(row, replicas)):
                yield Issue(
                    f"the row for {counted(row.nodes, 'node')} does not add up on {few(names)}: {miss}",
                    f"{counted(row.nodes, 'node')} of {counted(each, 'GPU')} are "
                    f"{counted(replicas, 'replica')}",
                    f"{SOURCE}: uneven_batch" if row.groups else f"{SOURCE}: micro_train_batch_size",
                    _right(row, replicas),
                )


def _miss(row: ScaleRow, replicas: int) -> str:
    """Describes a row's wrong product; empty for a right row."""
    if row.groups is None:
        divides = row.batch % (row.micro_batch * replicas) == 0
        return "" if divides else f"{row.batch} samples are not a multiple of {row.micro_batch} × {replicas}"
    number, small, large = row.groups
    if number > replicas:
        return f"{number} small groups are more than the {replicas} that there are"
    batch = number * small + (replicas - number) * large
    text = f"{number} × {small} + {replicas - number} × {large} = {batch} samples, not {row.batch}"
    return "" if batch == row.batch else text


def _right(row: ScaleRow, replicas: int) -> str:
    """Writes the settings for the right batch."""
    less, more = divmod(row.batch, replicas)
    if not less:
        return f"no row: {row.batch} samples are fewer than {replicas} GPUs"
    if not more:
        micro = max(size for size in range(1, max(row.micro_batch, 1) + 1) if less % size == 0)
        return f"micro_train_batch_size: {less if row.groups else micro}, and no uneven_batch"
    values = (replicas - more, less, less + 1)
    return ", ".join(f"{name}: {value}" for name, value in zip(_UNEVEN, values, strict=True))


HYPERPOD = Tool(
    "hyperpod",
    "HyperPod",
    Reader(
        "recipes of 2026",
        read,
        check,
        f"""
            display_name elastic_policy.* run.* trainer.* training_config.datasets.* training_config.mlflow.*
            training_config.force_rerun
            {inside("training_config.model_config", "chat_template_key model_name_or_path model_save_name")}
            {inside(_ARGUMENTS, "merge_weights strategy.fsdp_config.sharding_strategy")}
        """,
        table=table,
        tables="training_config trainer run",
    ),
)
