"""Files load checked or are an InputError, soon; a loaded value obeys arithmetic and survives its file."""

import copy
import functools
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import isobatch as ib
from invariants.plans import PROFILE
from isobatch.forecast.measurements import AllReduceRecord, Measurements, StepRecord, load_measurements

SLOW = 2.0
"""Seconds of processor time that no file of a few kilobytes may take."""

LONG = 10_000
"""Characters that no message may have."""

POOL: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**40, 2**53 + 1, 2**63, 10**30, 0.5, -0.0, 1e308, 5e-324, 1e-300,
    "", "0", "keep", "90ep",
    "1e999ep", "nan", "NaN", "infinity", "H100", "ok", "infeasible", "cosine", "cosine(", "multistep(1ep)",
    "16 16 9765", "0:64 1M:256",
    "\u0000", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "a" * 300, [], {}, [[]],
    [1, 2], [0.9, 0.95], {"a": 1},
]  # fmt: skip
BYTES = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"{", b"}", b"[" * 40, b'"', b"\\u0000", b"\n", b"\t", b"e", b"-",
    b"9", b"0", b":", b"&a", b"*a", b"!!python/object", b"1e400", b"NaN",
]  # fmt: skip


def _recipes() -> Iterator[ib.Recipe]:
    base = {"lr": 0.1, "duration": "90ep", "dataset_size": 50_000, "warmup": "5ep"}
    yield ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, optimizer="sgd", momentum=0.9, **base)
    yield ib.Recipe(
        effective_batch=250, betas=(0.9, 0.95), weight_decay=0.1, decay="independent", noise_scale=3e3, **base
    )
    yield ib.Recipe(
        effective_batch=64, ramp="16 16 9765", lr=1e-3, duration="1e5sp", schedule="wsd(decay=20%)"
    )
    yield ib.Recipe(
        effective_batch=64, lr=1e-3, duration="1000st", schedule=ib.schedules.cosine_restarts(1.0, 100, 2.0)
    )
    yield ib.Recipe.from_gpus(gpus=2, batch_per_gpu=[3, 5], lr=0.1, duration="300st", convention="lightning")


def _plans() -> Iterator[ib.Plan]:
    for recipe in _recipes():
        for gpus, settings in ((8, {}), (7, {}), (16, {"policy": "grow"}), (3, {"split": "ragged"})):
            yield ib.plan(recipe, gpus, **settings)
    run = ib.plan(next(_recipes()), 8)
    for step, gpus in ((100, 16), (700, 4)):
        run = ib.replan(run, at_step=step, cluster=gpus)
    yield run
    yield ib.plan(next(_recipes()), ib.Cluster(memory_gib=80.0, price_per_gpu_hour=2.0), profile=PROFILE)


def _by_this_version_and_another(plan: ib.Plan) -> Iterator[bytes]:
    """Another version's file is not computed anew, and must be consistent."""
    yield plan.to_json().encode()
    yield plan.to_json().replace(f'"isobatch": "{ib.__version__}"', '"isobatch": "0.0.1"').encode()


def _measured() -> Measurements:
    steps = (
        StepRecord(gpus=gpus, gpus_per_node=8, micro_batch=micro, accumulation=1,
            step_seconds=(0.01 + micro / 1e3,) * 3, memory_gib=2.0)
        for gpus in (1, 2) for micro in (8, 16, 32)
    )  # fmt: skip
    reduced = (
        AllReduceRecord(gpus=2, gpus_per_node=8, bytes=size, seconds=(size / 1e10,)) for size in (1e6, 1e8)
    )
    return Measurements(
        gradient_bytes=1e8, steps=tuple(steps), all_reduce=tuple(reduced), noise_scale=500.0, gpu="H100"
    )


def _toml(fields: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())


def _yaml(fields: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())


def _recipe_fields() -> Iterator[dict[str, Any]]:
    for recipe in _recipes():
        fields = msgspec.structs.asdict(recipe)
        if isinstance(fields["schedule"], str):
            yield {name: value for name, value in fields.items() if value is not None}
    yield {"gpus": 8, "batch_per_gpu": 32, "lr": 0.1, "duration": "90ep", "dataset_size": 50_000}


@functools.cache
def seeds() -> dict[str, tuple[str, list[bytes]]]:
    """Each kind of file: its suffix, and whole files of it."""
    measured = msgspec.json.encode(_measured())
    recipes = list(_recipe_fields())
    return {
        "plan": (".json", [text for plan in _plans() for text in _by_this_version_and_another(plan)]),
        "profile": (".json", [msgspec.json.encode(PROFILE)]),
        "measurements": (".json", [measured, b'{"measurements": ' + measured + b"}"]),
        "schedule": (".json", [ib.schedules.cosine_restarts(1.0, 100, 2.0).to_json().encode(),
            ib.schedules.wsd(1.0, 100, 10).to_json().encode()]),
        "recipe.json": (".json", [json.dumps(fields).encode() for fields in recipes]),
        "recipe.toml": (".toml", [_toml(fields).encode() for fields in recipes]),
        "recipe.yaml": (".yaml", [_yaml(fields).encode() for fields in recipes]),
    }  # fmt: skip


def _load_plan(path: Path) -> None:
    plan = ib.Plan.load(path)
    again = ib.Plan.from_json(plan.to_json())
    assert again == plan, "load(save) is another plan"
    if plan.status == "infeasible":
        assert plan.reasons, "infeasible without a reason"
        return
    assert plan.world_size == plan.data_parallel * (plan.cluster.model_parallel or plan.recipe.model_parallel)
    product = plan.micro_batch * plan.accumulation * plan.data_parallel
    laid_out = {ib.Reason.RAGGED, ib.Reason.UNEVEN} & set(plan.reasons)
    assert product >= plan.effective_batch if laid_out else product == plan.effective_batch, "the product"
    plan.micro_batches(plan.data_parallel - 1)
    plan.loss_weights(0)
    plan.explain()
    last = plan.position(plan.total_steps or 10**6)
    assert last.samples >= plan.position(5).samples >= 0
    if plan.total_steps is not None:
        assert all(abs(plan.lr_at(step)) < float("inf") for step in (0, 5, plan.total_steps - 1))


def _load_profile(path: Path) -> None:
    profile = ib.Profile.load(path)
    recipe = ib.Recipe(effective_batch=256, lr=0.1, noise_scale=1e3, duration="1000st")
    plan = ib.plan(recipe, 8, profile=profile)
    for name in ("step_seconds", "hours", "memory_gib", "samples_per_second"):
        value = getattr(plan, name)
        assert value is None or 0 <= value < float("inf"), f"{name} is {value}"
    again = path.with_suffix(".again")
    profile.save(again)
    assert ib.Profile.load(again) == profile, "load(save) is another profile"


def _load_measurements(path: Path) -> None:
    load_measurements(path)  # a profile comes of them by a fit, which takes too long for each


def _load_schedule(path: Path) -> None:
    schedule = ib.schedules.Schedule.from_json(path.read_bytes())
    assert ib.schedules.Schedule.from_json(schedule.to_json()) == schedule, "load(save) is another schedule"
    end = schedule.end
    for step in (0, 5, 1e6):
        if end is None or step <= end:
            value = schedule.at(step)
            assert value == value, f"NaN at {step}"


def _load_recipe(path: Path) -> None:
    recipe = ib.Recipe.load(path)
    ib.plan(recipe, 8)
    ib.plan(recipe, 7, policy="grow")


LOADERS: dict[str, Callable[[Path], None]] = {
    "plan": _load_plan,
    "profile": _load_profile,
    "measurements": _load_measurements,
    "schedule": _load_schedule,
    "recipe.json": _load_recipe,
    "recipe.toml": _load_recipe,
    "recipe.yaml": _load_recipe,
}


# YAML takes as long as all others together.
OFTEN = tuple(kind for kind in LOADERS if kind != "recipe.yaml") * 4 + ("recipe.yaml",)


def check_files(seed: int, files: int, folder: Path, kinds: tuple[str, ...] = OFTEN) -> int:
    """Mutates whole files and loads each: it works or is an InputError. The file at hand stays."""
    draw = random.Random(seed)
    for number in range(files):
        kind = kinds[number % len(kinds)]
        suffix, whole = seeds()[kind]
        path = folder / f"{kind}{suffix}"
        text = mutated(draw, whole)
        path.write_bytes(text)
        try:
            check_soon(functools.partial(LOADERS[kind], path), f"{kind}, seed {seed}")
        except AssertionError as error:
            saved = folder / f"finding-{seed}-{number}-{kind}{suffix}"
            saved.write_bytes(text)
            raise AssertionError(f"{error}: {saved}") from error
    return files


def check_soon(use: Callable[[], Any], case: str) -> None:
    """Checks that a use answers or raises an InputError of some words, and soon."""
    output = "an answer"
    started = time.process_time()
    try:
        use()
    except ib.InputError as error:
        output = str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is none of Exception
        raise AssertionError(f"{case}: {type(error).__name__}: {str(error)[:300]}") from error
    assert 0 < len(output) < LONG, f"a message of {len(output)} characters: {case}"
    took = time.process_time() - started
    assert took < SLOW, f"{case}: {took:.1f} s"


def mutated(draw: random.Random, whole: list[bytes]) -> bytes:
    """One of the files, changed in a few places: as a tree where it is JSON, else as bytes."""
    text = draw.choice(whole)
    if text.startswith(b"{") and draw.random() < 0.6:
        try:
            return json.dumps(grafted(draw, json.loads(text))).encode()
        except RecursionError:  # deeper than Python can write
            return text
    return changed_bytes(draw, whole, text)


def grafted(draw: random.Random, tree: Any) -> Any:
    """The tree, changed in a few places."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        _graft(draw, tree)
    return tree


def changed_bytes(draw: random.Random, whole: list[bytes], text: bytes) -> bytes:
    """Changes the bytes of a file in a few places, also by bytes of other places."""
    data = bytearray(text)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(data) + 1)
        second = min(len(data), at + draw.choice([1, 1, 3, 20, 400]))
        kind = draw.randrange(7)
        if kind == 0:
            data[at:second] = b""
        elif kind == 1:
            data[at:at] = draw.choice(BYTES)
        elif kind == 2:
            data[at:second] = draw.choice(BYTES)
        elif kind == 3 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 4:
            data[at:at] = data[at:second]
        elif kind == 5:
            rival = draw.choice(whole)
            start = draw.randrange(len(rival))
            data[at:second] = rival[start : start + draw.choice([3, 40, 1000])]
        else:
            _numeral(draw, data, at)
    return bytes(data)


def _numeral(draw: random.Random, data: bytearray, at: int) -> None:
    """The next number becomes an extreme one."""
    digits = b"0123456789.e+-"
    start = next((i for i in range(at, len(data)) if data[i : i + 1].isdigit()), None)
    if start is not None:
        end = next((i for i in range(start, len(data)) if data[i] not in digits), len(data))
        numbers = [
            b"0",
            b"-1",
            b"1e308",
            b"1e-320",
            b"9" * 25,
            b"9007199254740993",
            b"2147483648",
            b"0.1",
            b"1e5",
            b"3",
        ]
        data[start:end] = draw.choice(numbers)


def _graft(draw: random.Random, tree: Any) -> None:
    """A value somewhere in the tree is replaced, dropped, doubled or moved elsewhere."""
    places = list(_places(tree))
    if not places:
        return
    parent, key = draw.choice(places)
    kind = draw.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind in (1, 2):
        value = parent[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        near = [value + 1, value - 1, value * 2, -value, value / 3, 0, float(value)] if number else POOL
        # A copy: else what is changed later is in the tree twice, and in the pool.
        parent[key] = copy.deepcopy(draw.choice(near if draw.random() < 0.7 else POOL))
    elif kind == 3:
        second, name = draw.choice(places)
        if name in second if isinstance(second, dict) else name < len(second):
            parent[key] = json.loads(json.dumps(second[name]))
    elif kind == 4:
        if isinstance(parent, dict):
            parent[draw.choice([f"{key}_", key.upper(), "", "schema"])] = parent[key]
        else:
            parent.append(parent[key])
    else:
        nested: Any = parent[key]
        for _ in range(draw.choice([1, 5, 400])):
            nested = draw.choice([[nested], {"a": nested}])
        parent[key] = nested


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (parent, key) in a tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        keys = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            yield node, key
            if isinstance(node[key], (dict, list)) and node[key]:
                waiting.append(node[key])
