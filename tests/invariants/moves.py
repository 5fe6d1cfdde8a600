"""Moves of a run under way: no sample is lost or doubled, and the learning rate follows the samples."""

import random
from fractions import Fraction
from math import ceil, floor, ulp

import msgspec

import isobatch as ib


def check_moves(seed: int, runs: int) -> int:
    """Moves random runs a few times each, and checks the conserved quantities."""
    draw = random.Random(seed)
    process = 0
    for number in range(runs):
        run = _run(draw)
        if run is None:
            continue
        for _ in range(draw.choice([1, 1, 2, 4])):
            first = run.moves[-1].step if run.moves else 0
            if run.total_steps - 1 <= first:
                break
            step = draw.randint(first, run.total_steps - 1)
            gpus = draw.choice([1, 2, 3, 4, 6, 8, 16, 64])
            changes = (
                {} if draw.random() < 0.6 else {"effective_batch": draw.choice([32, 60, 64, 128, 512, 1000])}
            )
            case = (f"seed {seed}, run {number}: {run.recipe}, {run.settings}, moves "
                    f"{[(m.step, m.before.world_size) for m in run.moves]}, at_step {step} on "
                    f"{gpus} {changes}")  # fmt: skip
            moved = ib.replan(run, at_step=step, cluster=gpus, **changes)
            if moved.status == "infeasible":
                assert moved.reasons, case
                continue
            _hold(run, moved, step, case)
            run = moved
            process += 1
        assert ib.Plan.from_json(run.to_json()) == run, f"its file is another plan: seed {seed}, run {number}"
    return process


def _run(draw: random.Random) -> ib.Plan | None:
    fields = {
        "duration": draw.choice(["4ep", "2.5ep", "90ep", "300st", "1000st", "54321sp"]),
        "dataset_size": draw.choice([197, 1000, 5120, 255]),
        "warmup": draw.choice(["1ep", "10%", "20st", "0st"]), "drop_last": draw.choice([False, False, True]),
        "convention": draw.choice(["torch", "torch", "lightning", "transformers", "megatron"]),
        "optimizer": draw.choice(["sgd", "adamw"]),
        "schedule": draw.choice(["cosine", "linear", "cosine", "constant"]), "lr": 0.1,
    }  # fmt: skip
    if fields["convention"] == "megatron":
        fields |= {"duration": "54321sp", "warmup": "10%"}
    batch = draw.choice([32, 64, 48])
    plan = ib.plan(
        ib.Recipe(effective_batch=batch, **fields),
        draw.choice([1, 2, 4, 8]),
        policy=draw.choice(["keep", "keep", "grow"]),
        max_micro_batch=draw.choice([None, 8]),
    )
    return None if plan.status == "infeasible" else plan


def _hold(run: ib.Plan, moved: ib.Plan, step: int, case: str) -> None:
    # Steps before the move stay as they were.
    for before in {0, step // 2, max(0, step - 1)}:
        if before < step:
            off = abs(moved.lr_at(before) - run.lr_at(before))  # The clock's knots are rounded.
            assert off <= 8 * ulp(run.lr), f"the learning rate of step {before}, done before: {case}"
            assert moved.position(before) == run.position(before), (
                f"the position of step {before}, done before: {case}"
            )
    place = run.position(step)
    assert moved.total_steps >= step, f"{moved.total_steps} steps, of which {step} were done: {case}"
    if moved.moves and moved.moves[-1].step == step:
        move = moved.moves[-1]
        assert move.samples == moved.position(step).samples, (
            f"{move.samples} samples in the move, {moved.position(step)}: {case}"
        )
        assert (move.epoch, move.offset) == moved.position(step)[2:], (
            f"{move.epoch, move.offset}, {moved.position(step)}: {case}"
        )
        # A move at the step of the one before takes its place, with what that one would have dropped.
        process = place
        if run.moves and run.moves[-1].step == step:
            process = msgspec.structs.replace(run.moves[-1].before, moves=run.moves[:-1]).position(step)
        assert moved.position(step).samples >= process.samples, f"samples are lost: {case}"
        if run.settings.policy != "grow" and moved.total_steps > step:
            back = ib.replan(moved, at_step=step, cluster=run.cluster, effective_batch=run.effective_batch)
            assert back.position(run.total_steps) == run.position(run.total_steps), f"there and back: {case}"
    # Samples only grow, by a batch a step at most, up to the end of the run.
    last = moved.total_steps
    marks = sorted({step, min(step + 1, last), (step + last) // 2, max(step, last - 1), last})
    values = [moved.position(mark).samples for mark in marks]
    assert values == sorted(values), f"the samples fall: {values}: {case}"
    most = max(moved.effective_batch, moved.recipe.dataset_size or 0)
    single = moved.position(step + 1).samples - moved.position(step).samples if step < last else 1
    assert 0 < single <= most, f"step {step} takes {single} samples: {case}"
    rates = [moved.lr_at(mark) for mark in marks if mark < last]
    assert all(0 <= rate < float("inf") for rate in rates), f"rates {rates}: {case}"
    if not moved.recipe.duration.endswith("ep"):
        _hold_by_samples(moved, marks, case)


def _hold_by_samples(moved: ib.Plan, marks: list[int], case: str) -> None:
    """Checks the learning rate: the first plan's after as many samples, times the rule's factor."""
    parts = [*(move.before for move in moved.moves), moved]
    starts = [0, *(move.step for move in moved.moves)]
    first = ib.plan(
        parts[0].recipe,
        parts[0].cluster,
        **{name: getattr(parts[0].settings, name) for name in ("policy", "max_micro_batch")},
    )
    tuned = moved.recipe
    samples = {"st": tuned.effective_batch, "sp": 1}[tuned.duration[-2:]] * int(tuned.duration[:-2])
    progress = Fraction(0)
    for leg, start, end in zip(parts, starts, [*starts[1:], None], strict=True):
        for mark in marks:
            if start <= mark and (end is None or mark < end) and mark < moved.total_steps:
                clock = (progress + (mark - start) * leg.effective_batch) / first.effective_batch
                expected = first.lr_at(float(clock)) * leg.lr / first.lr
                # A step of the clock is rounded, and the schedule is steep in its warmup.
                assert abs(moved.lr_at(mark) - expected) <= 1e-9 * moved.recipe.lr * max(
                    1, leg.lr / first.lr
                ), f"step {mark}: {moved.lr_at(mark)}, by its samples {expected}: {case}"
        if end is not None:
            progress += (end - start) * leg.effective_batch
    rest = (samples - progress) / parts[-1].effective_batch
    total = starts[-1] + (floor(rest) if tuned.convention == "megatron" else ceil(rest))
    assert moved.total_steps == max(total, starts[-1]), (
        f"{moved.total_steps} steps for {samples} samples, by hand {total}: {case}"
    )
