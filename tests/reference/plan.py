"""One row of a fleet by the plainest means: a recipe, a cluster and the options as dicts, all result columns
out.
"""

from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from isobatch import _core
from reference import grid, ramp, rules, split, steps

COLUMNS = [name for name, _, _, of_profile, *_ in _core.results() if not (of_profile or name == "reasons")]
"""Result columns of the planner that need no profile; `reasons` beside them is a set of names."""


_GPUS = range(1, 2**31 + 1)  # in a cluster, at most


class _Infeasible(Exception):
    """The row cannot be planned; the message is the reason's name."""


def plan_row(recipe: dict[str, Any], cluster: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Plans one row of valid input: all result columns, and in `reasons` the names of its cautions."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row["reasons"] = set()
    row["world_size"] = cluster["nodes"] * cluster["gpus_per_node"]
    try:
        _plan(row, recipe, cluster, options)
    except (_Infeasible, rules.NotPossible) as reason:
        keep = ("world_size", "data_parallel", "nearest_world_size", "nearest_batch")
        row = {name: value if name in keep else None for name, value in row.items()}
        row |= {"status": "infeasible", "reasons": {str(reason)}}
    else:
        row["status"] = "caution" if row["reasons"] else "ok"
    return row


def _plan(
    row: dict[str, Any], recipe: dict[str, Any], cluster: dict[str, Any], options: dict[str, Any]
) -> None:
    say = row["reasons"].add
    model_parallel = cluster.get("model_parallel") or recipe.get("model_parallel", 1)
    expert_parallel = cluster.get("expert_parallel") or recipe.get("expert_parallel", 1)
    group = lcm(model_parallel, expert_parallel) // model_parallel
    replicas = split.replicas_of(row["world_size"], model_parallel)
    if replicas is None or replicas % group:
        row["nearest_world_size"] = _nearest_whole(row["world_size"], model_parallel, group, recipe, options)
        raise _Infeasible("expert_parallel" if replicas else "model_parallel")
    row["data_parallel"] = replicas

    batch, cap = _batch(row, recipe, options, replicas, group)
    if options.get("max_batch") and batch > options["max_batch"]:
        raise _Infeasible("above_max_batch")
    row["effective_batch"] = batch
    row["micro_batch"], row["accumulation"] = _split(row, batch, replicas, cap, recipe, options)
    _lr(row, recipe, options, batch)
    _length(row, recipe, options, replicas, batch)

    tuned_micro = _tuned_micro(recipe)
    if tuned_micro and 2 * row["micro_batch"] <= tuned_micro:
        say("micro_batch_shrunk")
    couples = recipe.get("batch_norm") or recipe.get("coupled")
    if tuned_micro and couples and (row["micro_batch"] != tuned_micro or "ragged" in row["reasons"]):
        say("coupled_moved")
    if recipe.get("adapter") and batch > recipe["effective_batch"]:
        say("lora_growth")
    tuned_on = _tuned_replicas(recipe)
    if cap is None and tuned_on:
        own = Fraction(recipe["effective_batch"], tuned_on)
        if row["micro_batch"] > own:
            say("micro_batch_open")


def _tuned_replicas(recipe: dict[str, Any]) -> int | None:
    gpus = recipe.get("gpus")
    return gpus // recipe.get("model_parallel", 1) if gpus else None


def _tuned_micro(recipe: dict[str, Any]) -> int | None:
    """The tuned micro-batch, as it is said or as GPUs and accumulation make it."""
    replicas, passes = _tuned_replicas(recipe), recipe.get("accumulation")
    if recipe.get("micro_batch") or not (replicas and passes) or recipe.get("device_batches"):
        return recipe.get("micro_batch")
    return recipe["effective_batch"] // replicas // passes


def _batch(
    row: dict[str, Any], recipe: dict[str, Any], options: dict[str, Any], replicas: int, group: int
) -> tuple[int, int | None]:
    """The effective batch, not yet split, and the cap on the micro-batch."""
    policy = options.get("policy", "keep")
    cap = _cap(recipe, options)
    target = policy
    if policy == "keep":
        target = recipe["effective_batch"]
    elif policy == "grow":
        tuned = _tuned_replicas(recipe)
        if not tuned and not options.get("max_micro_batch"):
            raise _Infeasible("needs_tuned_gpus")
        target = (recipe["effective_batch"] // tuned if tuned else cap) * replicas
    if cap and grid.demand(options) > cap:
        raise _Infeasible("multiple_unmet")
    if cap and options.get("min_micro_batch", 1) > cap:
        raise _Infeasible("micro_batch_unmet")
    highest = options.get("max_batch")
    if highest and target > highest and not options.get("batch_tolerance"):
        raise _Infeasible("above_max_batch")
    if _ragged(recipe, options, target, replicas, cap) or _uneven(recipe, options, target, replicas, cap):
        return target, cap
    batch = grid.tolerated(recipe, options, replicas, target, cap)
    if batch is None:
        if highest and target > highest:
            raise _Infeasible("above_max_batch")
        if policy != "grow":  # it fits any count of replicas, or none
            each = row["world_size"] // replicas
            counts = grid.nearest_replicas(recipe, options, (replicas, replicas), group, target, cap)
            count = split.nearest([count for count in counts if count * each in _GPUS], replicas)
            row["nearest_world_size"] = count and count * each
        row["nearest_batch"] = grid.nearest_batch(recipe, options, replicas, target, cap)
        raise _Infeasible(_why(recipe, options, target, replicas))
    if batch != target:
        row["reasons"].add("batch_moved")
    return batch, cap


def _cap(recipe: dict[str, Any], options: dict[str, Any]) -> int | None:
    return options.get("max_micro_batch") or _tuned_micro(recipe)


def _why(recipe: dict[str, Any], options: dict[str, Any], target: int, replicas: int) -> str:
    if target % replicas or target % options.get("batch_multiple", 1):
        return "not_divisible"
    share, demand = target // replicas, grid.demand(options)
    if share % demand:
        return "micro_batch_unmet" if grid.fixed(options) else "multiple_unmet"
    passes = share // demand
    if passes % options.get("accumulation_multiple", 1):
        return "accumulation_unmet"
    fine = options | {"min_micro_batch": 1}
    only_too_small = grid.micro_batch(recipe, fine, replicas, target, None, demand)
    return "micro_batch_unmet" if only_too_small else "ramp_not_divisible"


def _nearest_whole(
    world: int, model_parallel: int, group: int, recipe: dict[str, Any], options: dict[str, Any]
) -> int | None:
    """The nearest GPU count of whole groups of replicas with an even batch."""
    policy = options.get("policy", "keep")
    groups = world // model_parallel // group
    down, up = groups * group, (groups + 1) * group
    if policy == "grow":
        counts = [down, up]
    else:
        batch = recipe["effective_batch"] if policy == "keep" else policy
        counts = grid.nearest_replicas(recipe, options, (down, up), group, batch, _cap(recipe, options))
    return split.nearest(
        [count * model_parallel for count in counts if count * model_parallel in _GPUS], world
    )


def _split(
    row: dict[str, Any],
    batch: int,
    replicas: int,
    cap: int | None,
    recipe: dict[str, Any],
    options: dict[str, Any],
) -> tuple[int, int]:
    # A batch that was moved is one that divides: then nothing differs.
    moved = "batch_moved" in row["reasons"]
    if not moved and _ragged(recipe, options, batch, replicas, cap):
        sizes = split.ragged(batch, replicas, cap)
        assert sizes is not None
        micro = sizes[0][0]
        if any(stage % (replicas * micro) for stage in grid.stages(recipe, batch)):
            row["reasons"].add("ragged")
        return micro, len(sizes[0])
    uneven = None if moved else _uneven(recipe, options, batch, replicas, cap)
    if uneven:
        row["reasons"].add("uneven")
        return uneven, -(-batch // uneven // replicas)
    even_micro = grid.micro_batch(recipe, options, replicas, batch, cap, grid.demand(options))
    if even_micro is None:
        raise _Infeasible("multiple_unmet")
    return even_micro, batch // replicas // even_micro


def _each_has_some(recipe: dict[str, Any], options: dict[str, Any], target: int, replicas: int) -> bool:
    """Whether the batch is whole, in groups and within its limit, and each replica has samples, in every
    stage.
    """
    sizes = grid.stages(recipe, target)
    groups = options.get("batch_multiple", 1)
    in_groups = bool(sizes) and all(size >= replicas and size % groups == 0 for size in sizes)
    return in_groups and target <= (options.get("max_batch") or target)


def _ragged(
    recipe: dict[str, Any], options: dict[str, Any], target: int, replicas: int, cap: int | None
) -> bool:
    if options.get("split") != "ragged" or not _each_has_some(recipe, options, target, replicas):
        return False
    return not grid.micro_batch(recipe, options, replicas, target, cap, grid.demand(options))


def _uneven(
    recipe: dict[str, Any], options: dict[str, Any], target: int, replicas: int, cap: int | None
) -> int | None:
    """The micro-batch where the first replicas may do one more; each does one at least, in every stage."""
    if options.get("split") != "uneven" or not _each_has_some(recipe, options, target, replicas):
        return None
    sizes = grid.stages(recipe, target)
    if grid.micro_batch(recipe, options, replicas, target, cap, grid.demand(options)):
        return None  # It comes out even.
    most = min(sizes) // replicas if cap is None else min(cap, min(sizes) // replicas)
    whole = [d for d in range(1, most + 1) if all(size % d == 0 for size in sizes)]
    large = [d for d in whole if d >= options.get("min_micro_batch", 1)]
    fits = [d for d in large if d % grid.demand(options) == 0]
    return fits[-1] if fits else None


def _duration_scale(value: str | float | None) -> tuple[float, float | None]:
    """The ratio, and the power where one is asked for."""
    ratio, _, power = str(1.0 if value is None else value).partition("^")
    return float(ratio), float(power) if power else None


def _floor(beta2: str) -> float:
    return float(beta2.partition(":")[2] or 0.0)


def _lr(row: dict[str, Any], recipe: dict[str, Any], options: dict[str, Any], batch: int) -> None:
    say = row["reasons"].add
    optimizer = recipe.get("optimizer", "adamw")
    tuned = recipe["effective_batch"]
    defaults = rules.DEFAULTS.get(optimizer, (None, None, None))
    beta1, beta2 = recipe.get("betas") or defaults[:2]
    eps = defaults[2] if recipe.get("eps") is None else recipe["eps"]
    row["batch_change"] = batch / tuned - 1
    noise = rules.Noise(recipe.get("noise_scale"), recipe.get("sigma_sq"), recipe.get("mu_sq"))

    rule = options.get("rule", "auto")
    rule = rules.auto(optimizer, noise) if rule == "auto" else rule
    if options.get("policy", "keep") == "keep":
        rule = "none"
    k = batch / tuned
    scale = by_rule = 1.0 if k == 1 else rules.lr_scale(rule, tuned, batch, noise, recipe.get("power"))
    ratio, duration_power = _duration_scale(options.get("duration_scale"))
    by_length = 1.0 if duration_power is None else ratio**-duration_power
    longer = 1.0 if duration_power is None else ratio
    scale *= by_length
    row["lr_scale"], row["lr"] = scale, recipe["lr"] * scale
    row["min_lr"] = recipe.get("min_lr", 0.0) * scale
    row["warmup_lr"] = recipe["lr"] * by_length * min(1.0, k - 1) if rule == "linear" and k > 1 else 0.0
    row["weight_decay"] = recipe.get("weight_decay", 0.0)
    row["ema_decay"] = recipe.get("ema_decay")
    keep = options.get("policy", "keep") == "keep"
    gain = rules.adascale_gain(k, noise) if rule in rules.HOLD_LOSS and k != 1 else k
    decay = recipe.get("decay")
    # Under keep a batch that moved within the tolerance moves nothing.
    row["weight_decay"] = rules.weight_decay(
        optimizer,
        decay,
        row["weight_decay"],
        1.0 if keep else k,
        scale,
        longer * (1.0 if keep else k / gain),
        by_length,
    )
    if optimizer == "muon" and row["weight_decay"] != recipe.get("weight_decay", 0.0):
        say("muon_decay")
    moved = longer != 1 or (k != 1 and not keep)
    if optimizer == "adamw" and decay is None and row["weight_decay"] and moved:
        say("decay_unknown")
    if not keep:
        if row["ema_decay"] is not None:
            row["ema_decay"] = rules.ema_decay(row["ema_decay"], k)
        if rule == "sde":
            beta1, beta2 = (b if b is None else rules.sde_beta(b, tuned, batch) for b in (beta1, beta2))
            eps = eps if eps is None else rules.sde_eps(eps, k)
        elif rule == "sde_smooth":
            beta1, beta2 = (b if b is None else rules.sde_smooth_beta(b, k) for b in (beta1, beta2))
            eps = eps if eps is None else rules.sde_eps(eps, k)
        elif options.get("beta2_rule", "auto").startswith("half_life") and beta2 is not None:
            beta2 = rules.half_life_beta2(beta2, k)
        if beta2 is not None:
            tuned_beta2 = (recipe.get("betas") or defaults[:2])[1]
            beta2 = rules.floored_beta2(beta2, tuned_beta2, _floor(options.get("beta2_rule", "auto")))
            if beta2 < 0.9 and beta2 < tuned_beta2:
                say("beta2_low")
    row["beta1"], row["beta2"], row["eps"], row["momentum"] = beta1, beta2, eps, recipe.get("momentum")
    row["rule"], row["warmup_lr"] = rule, rules.warmup_start(rule, k, recipe["lr"] * by_length)

    if recipe.get("ramp") and options.get("ramp_rule", "none") != "none":
        rules.lr_scale(
            rules.auto(optimizer, noise) if options["ramp_rule"] == "auto" else options["ramp_rule"],
            batch,
            batch + 1,
            noise,
            recipe.get("power"),
        )
        say("ramp_rule")
    if k > 8 and noise.scale is None:
        say("large_growth")
    if noise.scale is not None and batch > noise.scale:
        say("above_critical_batch")
    if (optimizer, rule) in (("sgd", "sqrt"), ("adam", "linear"), ("adamw", "linear")) and k != 1:
        say("rule_mismatch")
    if rule == "sqrt" and not 1 / 8 <= k <= 4:
        say("sqrt_scale_range")
    if optimizer == "sgd" and rule in ("linear", "saturating") and by_rule != 1 and scale > 2:
        say("sgd_scale_up")
    assumed = {"lion": ("sqrt", "saturating"), "muon": ("sqrt", "saturating"), "adafactor": ("sqrt",)}
    if by_rule != 1 and rule in assumed.get(optimizer, ()):
        say("rule_assumed")
    if ratio != 1:
        say("duration_moved")
    if rule in ("sde", "sde_smooth") and beta1 is not None and beta1 < 0.5 and k != 1:
        say("beta1_low")


def _length(
    row: dict[str, Any], recipe: dict[str, Any], options: dict[str, Any], replicas: int, batch: int
) -> None:
    say = row["reasons"].add
    convention, policy = recipe.get("convention", "torch"), options.get("policy", "keep")
    dataset, tuned = recipe.get("dataset_size"), recipe["effective_batch"]
    drop_last = recipe.get("drop_last", False)
    known = {"dataset": dataset, "seq_len": recipe.get("seq_len")}
    per_epoch = None
    if dataset is not None and convention != "megatron":
        fills = recipe.get("even_batches", True)
        exact = bool({"ragged", "uneven"} & row["reasons"]) or convention == "exact"
        if exact:
            epoch = steps.exact_epoch(dataset, batch, drop_last)
        else:
            epoch = steps.epoch(
                dataset, replicas, row["micro_batch"], row["accumulation"], drop_last, convention, fills=fills
            )
        if epoch.steps == 0 or (batch > dataset and not options.get("short_epochs")):
            raise _Infeasible("batch_above_dataset")
        if batch > dataset:
            say("short_epochs")
        row["steps_per_epoch"] = per_epoch = epoch.steps
        row["samples_per_epoch"], row["padded_samples"], row["dropped_samples"] = (
            epoch.served,
            epoch.padded,
            epoch.dropped,
        )
        if epoch.tail and (exact or row["accumulation"] > 1 or not fills):
            say("uneven_tail")
        if epoch.padded > dataset / 100:
            say("padded")
        if epoch.dropped > dataset / 100:
            say("dropped")

    rule, optimizer = row["rule"], recipe.get("optimizer", "adamw")
    of_tuned = rule in rules.HOLD_LOSS  # its steps are the tuned run's, divided by the gain
    gain = _exact_gain(recipe, batch) if of_tuned and batch != tuned else Fraction(1)
    known["convention"] = convention
    length = {"steps_per_epoch": per_epoch, **known}
    tuned_per_epoch = (
        _tuned_steps_per_epoch(recipe) if dataset is not None and convention != "megatron" else None
    )
    tuned_length = {**length, "steps_per_epoch": tuned_per_epoch}
    total = tuned_total = None
    ramp_text = ramp.scaled(recipe["ramp"], batch, tuned) if recipe.get("ramp") else None
    if recipe.get("duration"):
        if ramp_text:
            value, unit = steps.length(recipe["duration"])
            samples = steps.samples(value, unit, tuned, known["seq_len"], dataset)
            total, _ = ramp.run(
                ramp_text, batch, ceil(samples), floored=convention == "megatron", seq_len=known["seq_len"]
            )
            tuned_total, _ = ramp.run(
                recipe["ramp"],
                tuned,
                ceil(samples),
                floored=convention == "megatron",
                seq_len=known["seq_len"],
            )
        else:
            total = steps.total_steps(recipe["duration"], batch, tuned, **length)
            tuned_total = steps.total_steps(recipe["duration"], tuned, tuned, **tuned_length)
        if of_tuned:
            total = (floor if convention == "megatron" else ceil)(tuned_total / gain)
        if total == 0:
            raise _Infeasible("run_below_step")
        row["total_steps"] = total
    for name in ("eval", "save", "log"):
        every = recipe.get(f"{name}_every")
        if every:
            row[f"{name}_steps"] = _interval(every, recipe, batch, per_epoch)

    if recipe.get("warmup") is None:
        row["warmup_steps"] = 0
        if row["batch_change"] > 0 and policy != "keep":
            say("no_warmup")
        return
    held_in_steps = optimizer in ("lars", "lamb")
    in_steps = held_in_steps or of_tuned
    if ramp_text and not recipe["warmup"].endswith("%"):
        value, unit = steps.length(recipe["warmup"])
        floored = convention == "megatron" and unit == "tok"
        exact_samples = steps.samples(value, unit, tuned, known["seq_len"], dataset)
        samples = floor(exact_samples) if floored else ceil(exact_samples)
        text, full = (recipe["ramp"], tuned) if in_steps else (ramp_text, batch)
        warmup, _ = ramp.run(text, full, samples, floored=floored, seq_len=known["seq_len"])
    elif in_steps:
        warmup = steps.warmup_steps(
            recipe["warmup"], tuned, tuned, tuned_total, steps_per_epoch=tuned_per_epoch, **known
        )
    else:
        warmup = steps.warmup_steps(recipe["warmup"], batch, tuned, total, steps_per_epoch=per_epoch, **known)
    if of_tuned and not held_in_steps and warmup is not None:
        floored = convention == "megatron" and steps.length(recipe["warmup"])[1] in ("%", "tok")
        warmup = (floor if floored else ceil)(warmup / gain)
    row["warmup_steps"] = warmup
    if warmup == 0 and row["batch_change"] > 0 and policy != "keep":
        say("no_warmup")
    if warmup and optimizer in ("adam", "adamw", "rmsprop", "lamb") and warmup < 1 / (1 - row["beta2"]):
        say("warmup_short")
    if warmup and total:
        if warmup > total / 5:
            say("warmup_long")
        if warmup > total:
            say("warmup_past_end")


def _interval(every: str, recipe: dict[str, Any], batch: int, per_epoch: int | None) -> int:
    """Steps between two evaluations and the like: the nearest whole number, the larger of two, at least 1."""
    value, unit = steps.length(every)
    if unit == "ep" and per_epoch is not None:
        exact = value * per_epoch
    else:
        samples = steps.samples(
            value, unit, recipe["effective_batch"], recipe.get("seq_len"), recipe.get("dataset_size")
        )
        exact = samples / batch
    return max(1, floor(exact + Fraction(1, 2)))


def _exact_gain(recipe: dict[str, Any], batch: int) -> Fraction:
    """AdaScale's r without rounding: a whole count of steps stays whole."""
    sigma_sq, mu_sq = Fraction(recipe["sigma_sq"]), Fraction(recipe["mu_sq"])
    return (sigma_sq + mu_sq) / (sigma_sq * recipe["effective_batch"] / batch + mu_sq)


def _tuned_steps_per_epoch(recipe: dict[str, Any]) -> int:
    """Of the tuned run; where its GPUs are not known, as if one process served the whole batch."""
    replicas = _tuned_replicas(recipe) or 1
    if recipe.get("convention") == "exact":
        batch, drop_last = recipe["effective_batch"], recipe.get("drop_last", False)
        return steps.exact_epoch(recipe["dataset_size"], batch, drop_last).steps
    share = recipe["effective_batch"] // replicas
    micro = recipe.get("micro_batch") or share
    return steps.epoch(
        recipe["dataset_size"],
        replicas,
        micro,
        share // micro,
        recipe.get("drop_last", False),
        recipe.get("convention", "torch"),
        fills=recipe.get("even_batches", True),
    ).steps
