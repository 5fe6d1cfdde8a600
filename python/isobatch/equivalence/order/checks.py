"""Checks of a step of two runs: parameters, settings, loss, gradient, update."""

from typing import Any

import numpy as np

from isobatch.equivalence.causes import nearest_scale
from isobatch.equivalence.checks import EQUAL, SETTINGS
from isobatch.equivalence.order.pair import Pair, Unlike, Unseen, trained
from isobatch.equivalence.records import RankStep
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import distance, solve
from isobatch.limits import within
from isobatch.words import counted, few


def parameters(pair: Pair) -> Unlike | Unseen | None:
    """Compares the tensors: names, shapes, and those of the optimizer."""
    if pair.details is None:
        return Unseen("the recorder kept no details")
    sides = [
        {name: str(tuple(details.shapes[at])) for name, at in trained(record).items()}
        for record, details in zip(pair.records, pair.details, strict=True)
    ]
    if sides[0] == sides[1]:
        return None
    only = [[f"{name} {a[name]}" for name in a if a[name] != b.get(name)] for a, b in (sides, sides[::-1])]
    counts = [f"{len(side)} tensors" for side in sides]
    texts = [
        f"{count}: {few(names, 4)}" if names else count for count, names in zip(counts, only, strict=True)
    ]
    return Unlike.of(texts, "the tensors that are trained")


def weights(pair: Pair) -> Unlike | Unseen | None:
    """Compares the weights before the first step; later ones are the update's."""
    if pair.event[1]:
        return None
    reference, second = pair.aligned([step.weights[0] for step in pair.steps])
    apart = distance(second, reference)
    if within(apart, EQUAL) or _is_rounded(pair, apart):
        return None
    sides = [trained(record) for record in pair.records]
    ends = np.cumsum([pair.records[0].sizes[at] for at in sides[0].values()])
    parts = zip(np.split(reference, ends[:-1]), np.split(second, ends[:-1]), strict=True)
    worst = max(zip(sides[0], parts, strict=True), key=lambda item: distance(item[1][1], item[1][0]))[0]
    spreads = ["?", "?"]
    if pair.details is not None:
        entries = pair.records[0].entries[sides[0][worst]]
        norms = [details.norms[side[worst]] for details, side in zip(pair.details, sides, strict=True)]
        spreads = [f"{(norm or 0.0) / max(entries, 1) ** 0.5:.3g}" for norm in norms]
    if spreads[0] == spreads[1]:
        text = f"the weights differ by {apart:.1g}, most in {worst}, as widely spread: drawn anew"
    else:
        text = f"the weights differ by {apart:.1g}, most in {worst}"
    return Unlike.of((f"root mean square {spread}" for spread in spreads), text)


def dtypes(pair: Pair) -> Unlike | Unseen | None:
    """Compares the dtype of each tensor."""
    if pair.details is None:
        return Unseen("the recorder kept no details")
    sides = [
        {name: details.dtypes[at] for name, at in trained(record).items()}
        for record, details in zip(pair.records, pair.details, strict=True)
    ]
    names = [name for name in sides[0] if sides[0][name] != sides[1].get(name)]
    if not names:
        return None
    texts = [few(sorted({side.get(name, "none") for name in names})) for side in sides]
    return Unlike.of(texts, f"the dtype of {len(names)} of {len(sides[0])} tensors, such as {names[0]}")


def precision(pair: Pair) -> Unlike | Unseen | None:
    """Compares reduced precision, left out in the runs, and the probabilities of dropout."""
    if pair.event[1]:
        return None
    sides = [
        {note.removesuffix(" off") for note in run.notes("off")} - {"dropout", "CUDA"}
        for run in (pair.run, pair.second_run)
    ]
    if sides[0] != sides[1]:
        return Unlike.of((few(sorted(side)) or "float32" for side in sides), "the precision of a pass")
    if pair.details is not None and pair.details[0].dropouts.keys() != pair.details[1].dropouts.keys():
        texts = [", ".join(sorted(details.dropouts)) or "none" for details in pair.details]
        return Unlike.of(texts, "the probabilities of dropout")
    return None


def rates(pair: Pair) -> Unlike | Unseen | None:
    """Compares the learning rate of each tensor."""
    if _unlike_setting(pair, "lr") is None:
        return None
    sides = [record.lrs for record in pair.records]
    texts = [", ".join(f"{rate:.6g}" for rate in dict.fromkeys(side)) for side in sides]
    return Unlike.of(texts, "the learning rate")


def groups(pair: Pair) -> Unlike | Unseen | None:
    """Compares the optimizer's kind, its groups' tensors, and their settings."""
    kinds = [record.kind.removesuffix("Torch") for record in pair.records]
    if kinds[0] != kinds[1]:
        return Unlike(kinds[0], kinds[1], "the optimizer")
    return next(filter(None, (_unlike_setting(pair, setting) for setting in SETTINGS)), None)


def _unlike_setting(pair: Pair, setting: str) -> Unlike | None:
    """Compares a setting of each tensor: groups may divide the tensors otherwise."""
    sides = [_settings_of(record) for record in pair.records]
    values = [{name: group.get(setting) for name, group in side.items()} for side in sides]
    unlike = [
        name
        for name, value in values[0].items()
        if None not in (value, values[1].get(name)) and not _are_alike(value, values[1][name])
    ]
    if not unlike:
        return None
    some = f"{counted(len(unlike), 'tensor')}, such as {unlike[0]}"
    where = "all tensors" if len(unlike) == len(sides[0]) else some
    return Unlike(str(values[0][unlike[0]]), str(values[1][unlike[0]]), f"{setting} of {where}")


def _settings_of(record: RankStep) -> dict[str, dict[str, Any]]:
    """Returns the settings of each trained tensor of a step's optimizer."""
    groups = [group for group in record.groups for _ in range(group.get("tensors", 0))]
    own = [at for at, is_own in enumerate(record.own) if is_own]
    if len(groups) != len(own):  # an engine's optimizer has flat parts of the parameters
        return {f"parameter group {number}": group for number, group in enumerate(record.groups)}
    by_place = dict(zip(own, groups, strict=True))
    return {name: by_place[at] for name, at in trained(record).items() if at in by_place}


def losses(pair: Pair) -> Unlike | Unseen | None:
    """Compares the loss of each pass."""
    tolerance, seen = pair.tolerances[0], False
    for rank, (record, second) in enumerate(zip(*(step.ranks for step in pair.steps), strict=False)):
        for number, (taken, their) in enumerate(zip(record.passes, second.passes, strict=False)):
            if taken.loss is None or their.loss is None:
                continue
            seen = True
            if within(their.loss - taken.loss, tolerance * max(abs(taken.loss), 1e-3)):
                continue
            factor = their.loss / taken.loss if taken.loss else float("inf")
            where = f"pass {number} of rank {rank}" if rank else f"pass {number}"
            text = f"the loss of {where}{_scale_text(pair, factor)}"
            return Unlike(f"{taken.loss:.6g}", f"{their.loss:.6g}", text)
    return None if seen else Unseen("no pass shows a loss: its backward begins with a gradient")


def gradient(pair: Pair) -> Unlike | Unseen | None:
    """Compares the gradient over all ranks; a difference is named by the weights of the passes."""
    reference, second = pair.aligned([step.gradients.mean(0) for step in pair.steps])
    if not reference.any() and not second.any():
        return Unseen("all entries of the gradient are 0")
    apart = distance(second, reference)
    if within(apart, pair.tolerances[0]):
        return None
    norms = [f"norm {np.linalg.norm(vector):.4g}" for vector in (reference, second)]
    factor = float(second @ reference) / float(reference @ reference or 1.0)
    if within(distance(second, factor * reference), pair.tolerances[0]):
        return Unlike.of(norms, f"the gradient{_scale_text(pair, factor)}")
    changes = pair.steps[0].changes
    solution = solve(changes, second) if len(changes) > 1 and len(pair.steps[0].ranks) == 1 else None
    text = f"the gradient differs by {apart:.2g}"
    if solution is not None and within(solution.residual, 1e-3):
        text += f"; its passes weigh {' '.join(f'{weight:.2f}' for weight in solution.weights)}"
    return Unlike.of(norms, text)


def clipping(pair: Pair) -> Unlike | Unseen | None:
    """Compares the number of clippings in a step, and their norms."""
    limits = [[limit for _, limit in record.clips] for record in pair.records]
    if limits[0] != limits[1]:
        return Unlike.of((f"to {few(map(str, side))}" if side else "none" for side in limits), "clipping")
    return None


def update(pair: Pair) -> Unlike | Unseen | None:
    """Compares the change of the weights by a step."""
    changes = [None if step.after is None else step.after[0] - step.weights[0] for step in pair.steps]
    if changes[0] is None or changes[1] is None:
        return Unseen("the step was not seen to end")
    reference, second = pair.aligned([change for change in changes if change is not None])
    if not reference.any() and not second.any():
        return Unseen("no weight changed")
    apart = distance(second, reference)
    if within(apart, pair.tolerances[1]):
        return None
    factor = float(second @ reference) / float(reference @ reference or 1.0)
    norms = [f"norm {np.linalg.norm(vector):.4g}" for vector in (reference, second)]
    return Unlike.of(norms, f"the change of the weights differs by {apart:.2g}, as a whole × {factor:.4g}")


def _is_rounded(pair: Pair, apart: float) -> bool:
    """Tells whether the weights are the same in another dtype: the next row names it."""
    return (
        pair.details is not None and pair.details[0].dtypes != pair.details[1].dtypes and within(apart, 4e-3)
    )


def _are_alike(value: Any, second: Any) -> bool:
    values, others = ([part] if not isinstance(part, list) else part for part in (value, second))
    return len(values) == len(others) and all(
        within(a - b, EQUAL * abs(b)) if isinstance(a, int | float) and isinstance(b, int | float) else a == b
        for a, b in zip(values, others, strict=True)
    )


def _scale_text(pair: Pair, factor: float) -> str:
    """Writes a factor, in ranks, passes, samples or tokens where it is their number."""
    step, passes = pair.steps[0], pair.records[0].passes
    split = Split(len(step.ranks), max(1, len(passes)), max(1, pair.run.split.micro_batch))
    scale = nearest_scale(split, factor)
    text = "" if scale is None else scale.text
    counts = {"samples": len(passes[0].hashes), "tokens": max(passes[0].tokens, default=0)} if passes else {}
    for noun, count in counts.items():
        if scale is None and count > 1 and within(factor / count - 1, EQUAL):
            text = f"a sum over the pass's {count} {noun}, and not their mean"
    return f" is × {factor:.4g}" + (f" ({text})" if text else "")
