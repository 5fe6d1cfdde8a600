"""The gradient noise scale, for free: DDP sees each gradient before the all-reduce, and the mean after it."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from isobatch.equivalence.tensors import square
from isobatch.validate.figures import Noise
from isobatch.validate.report import Proof, Verdict, pass_claim, skip_claim
from isobatch.validate.training import Training
from isobatch.validate.trial import Claim, Trial
from isobatch.words import figure

Hook = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]


class Norms:
    """A communication hook around another one: takes each bucket's squared norms before and after."""

    def __init__(self, hook: Hook) -> None:
        # Norms stay apart until the step is over: on a GPU buckets may be on streams of their own at once.
        self._hook, self._local, self._averaged = hook, list[Tensor](), list[Tensor]()

    def take(self) -> tuple[float, float]:
        """Returns the squared norms of this rank's own and of the averaged gradient of the last step."""
        sums = sum(map(float, self._local)), sum(map(float, self._averaged))
        self._local.clear()
        self._averaged.clear()
        return sums

    def __call__(self, process_group: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's call for each bucket."""
        self._local.append(square(bucket.buffer()))

        def after(future: torch.futures.Future[Tensor]) -> Tensor:
            value = future.value()
            result = value[0] if isinstance(value, list) else value
            self._averaged.append(square(result))
            return result

        return self._hook(process_group, bucket).then(after)


def noise_scale(
    local: NDArray[np.float64], averaged: NDArray[np.float64], small: float, large: float
) -> tuple[float | None, float | None, float, float]:
    """Computes the simple noise scale from squared gradient norms, shape (steps,), at two batch sizes.

    McCandlish 2018, arXiv 1812.06162, appendix A: |G|² = (B·g_B − b·g_b)/(B − b) and tr Σ = (g_b − g_B)/(1/b
    − 1/B), each averaged over the steps, then divided. Returns (noise scale in samples, its standard error by
    the jackknife over steps, |G|², tr Σ); the first two None where |G|² is not above 0, or would not be with
    a step less.

    >>> noise_scale(np.array([3.0, 3.0]), np.array([2.0, 2.0]), small=1, large=2)
    (2.0, 0.0, 1.0, 2.0)
    """
    g_sq = (large * averaged - small * local) / (large - small)
    trace = (local - averaged) / (1 / small - 1 / large)
    n = len(g_sq)
    mean_g, mean_s = float(g_sq.mean()), float(trace.mean())
    without_g, without_s = (g_sq.sum() - g_sq) / (n - 1), (trace.sum() - trace) / (n - 1)
    if mean_g <= 0 or (without_g <= 0).any():
        return None, None, mean_g, mean_s
    ratios = without_s / without_g
    error = float(np.sqrt((n - 1) / n * np.square(ratios - ratios.mean()).sum()))
    return mean_s / mean_g, error, mean_g, mean_s


def measure(training: Training, steps: int) -> tuple[Noise | None, Proof]:
    """Trains some steps under the hook. Leaves a new wrapper behind, since a hook cannot be taken off."""
    group = training.group
    samples = {sum(sizes) for sizes in training.sizes}
    why = None
    if steps == 0:
        why = "not asked for"
    elif group.world_size == 1:
        why = "one rank: the local gradient is the averaged one"
    elif len(samples) > 1:
        why = "ranks hold different numbers of samples"
    elif training.workload.weight is not None:
        why = "the loss is not weighted by samples"
    if why is not None:
        return None, skip_claim("noise_scale", why)
    norms = Norms(training.hook or default_hooks.allreduce_hook)
    training.rewrap(norms)
    training.model.train()
    optimizer, scaler = training.optimizer(), training.scaler()
    local, averaged = [], []
    for step in range(steps):
        weights = training.weights(training.micro_batches(100 + step))
        scale = 1.0 if scaler is None else scaler.get_scale()
        training.backward(training.micro_batches(100 + step), weights, scaler=scaler, dtype=training.dtype)
        own, mean = norms.take()
        if np.isfinite(mean):  # on all ranks or on none; a scaler skips such a step, too
            local.append(own / scale**2)
            averaged.append(mean / scale**2)
        training.step(optimizer, scaler)
        optimizer.zero_grad(set_to_none=True)
    if len(local) < 2:
        text = f"the gradient was finite in {len(local)} of {steps} steps only"
        return None, skip_claim("noise_scale", text)
    mean_local = group.total(torch.tensor(local, dtype=torch.float64)).numpy() / group.world_size
    small, large = samples.pop(), training.batch
    scale_value, error, g_sq, trace = noise_scale(mean_local, np.array(averaged), small, large)
    noise = Noise(
        steps=len(local),
        noise_scale=scale_value,
        standard_error=error,
        gradient_norm_sq=g_sq,
        variance_trace=trace,
        small_batch=small,
        large_batch=large,
    )
    owner = " of a built-in model on random data, not of your training" if training.workload.stand_in else ""
    return noise, judge(noise, owner)


def judge(noise: Noise, owner: str) -> Proof:
    """Judges a noise scale: unchecked if zero is within twice its error; `owner` ends the sentence."""
    value, error, how = noise.noise_scale, noise.standard_error, f"{noise.steps} steps{owner}"
    if value is None or error is None:
        text = f"the mean gradient cannot be distinguished from zero in {how}: take more (--noise-steps)"
        return skip_claim("noise_scale", text)
    text = f"{figure(value)} ± {figure(error, 2)} samples over {how}"
    if 2 * error >= value:
        return skip_claim("noise_scale", f"{text}: too uncertain to use, take more steps (--noise-steps)")
    return pass_claim("noise_scale", text)


def prove(trial: Trial) -> list[Proof]:
    """Trains some steps for a figure; it is never a fault."""
    noise, proof = measure(trial.timed, trial.options.noise_steps)
    trial.draft.add(noise=noise)
    if noise is not None and proof.verdict is Verdict.PASS and trial.measurements is not None:
        measurements = msgspec.structs.replace(trial.measurements, noise_scale=noise.noise_scale)
        trial.draft.add(measurements=measurements)
    return [proof]


CLAIM = Claim(phase="noise scale", names=("noise_scale",), prove=prove)
