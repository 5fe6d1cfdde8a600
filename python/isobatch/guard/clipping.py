"""Measures gradients between backward and step: likeness to a reference, clipping, other changes."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.likeness import Likeness
from isobatch.equivalence.tensors import ELEMENTS, chunks, likeness, square
from isobatch.guard.optimizer import clips_itself
from isobatch.guard.run import Run, has_room, local, outside_of_graphs, sharded
from isobatch.limits import within

TOLERANCE = 0.02  # the relative distance of a clipped norm from its bound
EXACT = 3e-3  # the relative distance between gradients of the same precision
HIDDEN = "the gradient's size (its direction was checked): its norm before the clipping is unknown"

Summed = Callable[[str, list[float]], list[float]]
"""(tag, figures) → the figures, summed over ranks if each rank holds its own part of the gradient."""


class Clipped(NamedTuple):
    """A gradient beside the reference, where clipping may have shortened it.

    `ratio` is its size along the reference (NaN if it was shortened other than as a whole), `unclipped` the
    same before clipping, `residual` its share in another direction; `norm` and `planned` are both norms.
    """

    ratio: float
    unclipped: float
    residual: float
    norm: float
    planned: float

    @classmethod
    def of(cls, like: Likeness, times: float = 1.0) -> Self:
        """Reads a comparison of a gradient, made `times` smaller by clipping."""
        norm, planned = math.sqrt(max(like.own, 0.0)), math.sqrt(max(like.reference, 0.0))
        return cls(like.ratio, like.ratio * times, like.residual, norm, planned)

    def close(self, gate: float) -> bool:
        """Tells whether the size is the reference's, now or before the clipping."""
        return any(within(ratio - 1, gate) for ratio in self[:2])


def compare(
    grads: list[Tensor], reference: list[Tensor], before: float, gate: float, summed: Summed
) -> Clipped:
    """Compares a gradient with a reference, without making anything as large as a parameter.

    `before` is its norm before it was clipped, NaN where unknown. Above the residual `gate`, clipping by
    element or by row is considered.
    """
    like = Likeness(*summed("sums", [*likeness(grads, reference)]))
    clipped = Clipped.of(like, 1.0 if math.isnan(before) or not like.own else before / math.sqrt(like.own))
    if within(clipped.residual, gate) or math.isnan(clipped.residual) or math.isnan(before):
        return clipped
    # Clipped by element or by row? Then no element grew, and the norm before clipping gives the scale.
    ratio, off = before / clipped.planned, 0.0
    for pair in zip(grads, reference, strict=True):
        nonzero = bool(pair[0].any())  # a gradient of 0 as a whole was taken away, not clipped
        for f, r in zip(*map(chunks, pair), strict=True):
            f, whole = f.double(), ratio * r.double()
            off += 0.0 if nonzero else float(whole @ whole)
            off += float((f - f.clamp(whole.clamp(max=0), whole.clamp(min=0))).square().sum())
    residual = math.sqrt(summed("beyond", [off])[0] / like.own)
    shortened = clipped._replace(ratio=math.nan, unclipped=ratio, residual=residual)
    return shortened if within(residual, gate) else clipped


def clipped_early(
    passes: Iterable[list[Tensor]], bound: float, averaged: Callable[[list[Tensor]], list[Tensor]]
) -> dict[str, list[Tensor]]:
    """Lists a step's gradient after each premature clipping.

    `passes` are this rank's gradients, which may be written to; `averaged` averages over ranks, in place.
    """
    whole, unsynced, averages, several = list[Tensor](), list[Tensor](), list[Tensor](), False
    for grads in passes:
        several = bool(whole)
        whole, unsynced = _plus(whole, grads), _plus(unsynced, grads)
        last = [grad.clone() for grad in unsynced]
        _clip(unsynced, bound)
        averages = _plus(averages, averaged(grads))
        _clip(averages, bound)
    _clip(whole, bound)
    last = averaged(last)
    _clip(last, bound)
    return {
        **({"in each pass": averages, "in each pass, before the averaging": last} if several else {}),
        "on each rank, before the averaging": averaged(whole),
    }


def _plus(total: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, grads, strict=True)] if total else [grad.clone() for grad in grads]


def _clip(grads: list[Tensor], bound: float) -> None:
    """Shortens a gradient to a norm of at most `bound`, in place."""
    norm = math.sqrt(sum(float(square(grad)) for grad in grads))
    if norm > bound:
        for grad in grads:
            grad *= bound / norm


def beside_weights(
    grads: list[Tensor], reference: list[Tensor], weights: list[Tensor], like: Clipped, summed: Summed
) -> Clipped:
    """Compares a gradient with the reference, both without their part along the weights, as of an L2."""
    figures = list[float]()
    for f, r, w in zip(grads, reference, weights, strict=True):
        along, across = likeness([f], [w]), likeness([r], [w])
        figures += [*likeness([f], [r]), along.along, across.along, along.reference]
    figures = summed("weights", figures)
    rows = [figures[at : at + 7] for at in range(0, len(figures), 7)]
    parts = [Likeness(*row[:4]).without(*row[4:]) for row in rows]
    whole = Likeness(*map(sum, zip(*parts, strict=True)))
    if min(whole.own, whole.reference) <= 0:
        return like._replace(residual=math.nan)
    return Clipped.of(whole, like.unclipped / like.ratio)._replace(norm=like.norm, planned=like.planned)


class Clipping:
    """Remembers the norm of each step's gradient before the clipping.

    `partial`: the script may have clipped other parameters together with these; their norm says nothing.
    """

    def __init__(
        self, run: Run, model: nn.Module, params: list[nn.Parameter], optimizer: Any, *, scaled: bool
    ) -> None:
        self._run, self._model, self._params, self._optimizer = run, model, params, optimizer
        self._sharded, self._scaled = sharded(model), scaled
        self._before: float | None = None
        self._sums: list[float] | None = None
        self._versions = list[int]()
        self._queued, self.partial, self.rescaled = False, False, False
        self._noted = False  # a note says that it is clipped otherwise
        # A norm before clipping would be in the loss scaler's units.
        for p in [] if scaled else params:
            handle = p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            run.first_hooks.callback(handle.remove)

    @property
    def hidden(self) -> bool:
        """Whether the norm is unknown."""
        return self._before is None

    @outside_of_graphs
    def _accumulated(self, _: Tensor) -> None:
        if not self._queued and not self._run.own:
            self._queued = True
            engine = torch.autograd.Variable._execution_engine
            # DDP's last callback is queued after this one: queue again, to run after it.
            engine.queue_callback(lambda: engine.queue_callback(self._backward_done))

    @outside_of_graphs
    def _backward_done(self) -> None:
        """Measures gradients after the averaging and before the clipping."""
        self._queued = False
        if has_room(self._params[0].device, 8 * min(ELEMENTS, max(p.numel() for p in self._params))):
            grads = [p.grad for p in self._params]
            self._sums = self._sums_of(grads)
            self._before = math.hypot(*self._sums[len(grads) :])
            self._versions = self._versions_of(grads)

    def _versions_of(self, grads: Iterable[Tensor | None]) -> list[int]:
        return [0 if g is None else g._version for g in grads]

    def _sums_of(self, grads: Iterable[Tensor | None]) -> list[float]:
        """Returns each gradient's sum and norm: clipping by the norm multiplies all alike.

        Sums alone do not do: those of a classifier's last layer are 0.
        """
        parts = [None if g is None else local(g) for g in grads]
        sums = [0.0 if g is None else float(g.sum(dtype=torch.float32)) for g in parts]
        return sums + [0.0 if g is None else math.sqrt(float(square(g))) for g in parts]

    def changed(self, grads: list[Tensor]) -> bool:
        """Tells whether the script changed the gradients' direction between the backward and this step."""
        pairs = [] if self._sums is None else list(zip(self._sums_of(grads), self._sums, strict=True))
        before, both = sum(b * b for _, b in pairs), sum(a * b for a, b in pairs)
        off = sum((a * before - both * b) ** 2 for a, b in pairs)
        return off > (EXACT * both) ** 2 * before

    def hooked(self) -> bool:
        """Tells whether DDP averages by a hook, perhaps quantized."""
        return bool(getattr(getattr(self._model, "_orig_mod", self._model), "_comm_hooks", None))

    def summed(self, tag: str, own: list[float]) -> list[float]:
        """Sums a gradient's figures over ranks if it is sharded, else returns them unchanged."""
        return (
            [sum(parts) for parts in zip(*self._run.exchange(tag, own), strict=True)]
            if self._sharded
            else own
        )

    def norms(self, grads: list[Tensor]) -> tuple[float, float]:
        """Returns the gradient's norm before the clipping, or NaN if unknown, and its norm now."""
        if self._before is None:
            return math.nan, math.nan
        after = sum(float(square(g)) for g in grads)
        squares = self.summed("norms", [self._before**2, after])
        return math.sqrt(squares[0]), math.sqrt(squares[1])

    def check(self, grads: list[Tensor]) -> None:
        """Stops for an unclipped gradient above the planned norm."""
        run = self._run
        versions = zip(self._versions_of(p.grad for p in self._params), self._versions, strict=False)
        # The clipping is one write: with another, the script may have rescaled the gradients before it.
        self.rescaled = min((now - then for now, then in versions), default=0) > 1
        norms = run.exchange("norms before", self._before)
        apart = not self._sharded and None not in norms and max(norms) - min(norms) > EXACT * max(norms)
        if None in norms or apart:
            self._before = self._sums = None  # the script averages after the backward
        before, after = self.norms(grads)
        bound = None if clips_itself(self._optimizer) else run.plan.recipe.clip_norm
        unclipped = within(after / before - 1, TOLERANCE / 100) if before else False
        if bound is not None and unclipped and not within(max(before / bound - 1, 0.0), TOLERANCE):
            text = f"the gradient's norm is {after:.4g} when the optimizer steps, {bound:.4g} planned at most"
            run.stop(Cause.CLIPPED_OTHERWISE, text)

    def look(self) -> None:
        """Notes, at a later step, a gradient above the planned norm: the first ones may have been shorter."""
        run, bound = self._run, self._run.plan.recipe.clip_norm
        if bound is None or self._scaled or self.partial or clips_itself(self._optimizer):
            return
        own = sum(float(square(local(p.grad))) for p in self._params if p.grad is not None)
        norm = math.sqrt(self.summed("norm", [own])[0])
        if not (self._noted or within(max(norm / bound - 1, 0.0), TOLERANCE)):
            self._noted = True
            run.note(f"the gradient's norm is {norm:.4g} at step {run.step:,}, {bound:.4g} planned at most")

    def check_bound(self, grads: list[Tensor], like: Clipped) -> None:
        """Checks the norm of a clipped gradient, and notes one shortened other than by its norm."""
        bound = self._run.plan.recipe.clip_norm
        if bound is None or self.partial:
            return
        before, after = self.norms(grads)
        if math.isnan(like.ratio):
            self._noted = True
            self._run.note(f"the gradient is not clipped by its norm; the plan's clip_norm is {bound:g}")
        elif (
            before
            and not math.isnan(before + after)  # a norm that is not known is no other norm
            and not within(max(1 - after / before, 0.0), TOLERANCE)
            and not any(within(after / min(bound, norm) - 1, TOLERANCE) for norm in (before, like.planned))
        ):
            text = f"the gradient is clipped to a norm of {after:.4g}, {bound:.4g} planned"
            self._run.stop(Cause.CLIPPED_OTHERWISE, text)

    def check_shards(self, grads: list[Tensor], reference: list[Tensor], gate: float) -> None:
        """Stops if each rank clipped its own shard, by a factor of its own."""
        alone: Summed = lambda _, figures: figures  # noqa: E731
        parts = self._run.exchange("shards", compare(grads, reference, math.nan, gate, alone), Clipped)
        parts = [part for part in parts if part.planned]
        if len(parts) > 1 and all(within(part.residual, gate) for part in parts):
            times = ", ".join(f"{part.ratio:.4g}" for part in parts)
            text = f"the gradient's parts are {times} × the planned ones on the ranks"
            self._run.stop(Cause.CLIPPED_OTHERWISE.likely("each rank by the norm of its own part"), text)

    def allows(self, like: Clipped, gate: float, *, explained: bool) -> bool:
        """Tells whether a gradient has the norm of the clipped reference.

        It matters only if the norm before clipping is unknown. `explained`: another factor is known.
        """
        bound = self._run.plan.recipe.clip_norm
        if bound is None or not (self.hidden or self.rescaled):
            return False
        bound *= float(getattr(self._optimizer, "grad_scale", None) or 1.0)
        shorter = min(bound, like.planned)
        if self._scaled and like.norm < 0.5 * shorter and not explained:
            text = (
                f"the gradient's norm is {like.norm / shorter:.4g} × the planned one's when the optimizer "
                "steps"
            )
            self._run.stop(Cause.CLIPPED_OTHERWISE.likely("before scaler.unscale_(optimizer)"), text)
        if not self._scaled and shorter < like.planned and within(like.norm / bound - 1, gate):
            self._run.leave(HIDDEN)
        return within(like.norm / shorter - 1, gate)
