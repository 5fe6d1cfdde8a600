"""The critical batch and the learning rate's exponent from runs at several batches.

"Critical batch" has several definitions; everything here says which it means.
"""

import math

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isobatch.errors import InputError
from isobatch.limits import reals

# 97.5 % quantiles of Student's t with 1 to 10 degrees of freedom, and of the normal distribution.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z = 1.959964


class CriticalBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The trade of samples for steps, from runs at several batches.

    The samples to the target are ``min_samples + min_steps · batch``, the steps ``min_steps + min_samples / batch``:
    the hyperbola (S/Smin − 1)(E/Emin − 1) = 1. ``critical_batch`` is Emin/Smin, where both are twice their least
    (McCandlish et al., 1812.06162; Kaplan et al., 2001.08361 eq. 5.1). ``interval`` is its 95 % interval, ``None``
    from two runs; an upper end of infinity says that the runs do not show a cost of larger batches. ``scatter`` is
    the relative root mean square of the runs around the curve. ``caution`` says where the hyperbola is not what the
    runs look like; None where they do.
    """

    min_samples: float
    min_steps: float
    critical_batch: float
    interval: tuple[float, float] | None
    scatter: float
    caution: str | None = None

    def samples(self, batch: ArrayLike) -> NDArray[np.float64]:
        """Samples to the target at each batch."""
        return self.min_samples + self.min_steps * np.asarray(batch, np.float64)

    def steps(self, batch: ArrayLike) -> NDArray[np.float64]:
        """Steps to the target at each batch."""
        return self.samples(batch) / np.asarray(batch, np.float64)


class PowerFit(msgspec.Struct, frozen=True, kw_only=True):
    """lr = coefficient · batch^exponent; ``interval`` is the exponent's 95 % interval, ``None`` from two runs."""

    coefficient: float
    exponent: float
    interval: tuple[float, float] | None

    def lr(self, batch: ArrayLike) -> NDArray[np.float64]:
        """The learning rate at each batch."""
        return np.asarray(self.coefficient * np.asarray(batch, np.float64) ** self.exponent)


def fit_critical_batch(
    batch: ArrayLike, samples_to_target: ArrayLike, *, weights: ArrayLike | None = None
) -> CriticalBatch:
    """Fits the critical batch to the samples of runs at several batches to the same target.

    Fits samples = Emin + Smin · batch with each run's relative error held equal, or with ``weights`` (one a run, above
    0: how much it counts, such as the number of seeds behind it). The interval is Fieller's for a ratio.

    The hyperbola has no optimum inside: samples only grow with the batch. Where a batch inside the range takes at least a
    tenth fewer samples than the smallest, which is usual with AdamW and decaying schedules (arXiv 2601.05034), it is
    fitted to that batch and the larger ones alone, and ``caution`` says so.

    Raises :class:`isobatch.errors.InputError` for fewer than two different batches, values that are not above 0, and
    runs that contradict the hyperbola: samples that fall as the batch grows (no cost of larger batches was
    measured), or that grow faster than the batch (every run is far above the critical batch).

    The reference convergence points of MLPerf's Llama-3.1-405B (samples of 8192 tokens):

    >>> fit = fit_critical_batch([1152, 2304], [313344, 368640])
    >>> round(float(fit.samples(4608))), fit.interval is None
    (479232, True)
    >>> three = fit_critical_batch([1152, 2304, 4608], [313344, 368640, 488448])
    >>> round(three.critical_batch), [round(end) for end in three.interval]
    (5021, [3386, 7933])
    >>> print(fit_critical_batch([64, 128, 256, 512, 1024], [10, 8.2, 7.5, 8, 10.1]).caution)
    the samples are lowest at batch 256, inside the range: the curve, which has no such optimum, is fitted from there on
    """
    b, e, w = _runs(batch, samples_to_target, "samples_to_target", weights)
    b, e, w, caution = _rising(b, e, w)
    # Relative errors: divide each row by its measured samples.
    rows = np.stack([1 / e, b / e], axis=1)
    (least, slope), covariance, residual = _least_squares(rows, np.ones_like(e), w)
    if slope <= 0:
        raise InputError(
            "falls as the batch grows: these runs show no cost of larger batches, and so no critical batch",
            field="samples_to_target",
        )
    if least <= 0:
        raise InputError(
            "grows faster than the batch: these runs lie far above the critical batch and do not tell it",
            field="samples_to_target",
        )
    return CriticalBatch(
        min_samples=least,
        min_steps=slope,
        critical_batch=least / slope,
        interval=None if covariance is None else _ratio_interval(least, slope, covariance, len(e) - 2),
        scatter=residual,
        caution=caution,
    )


_DIP = 0.9
"""Below this part of the smallest batch's samples, a batch inside the range is an optimum and no scatter."""


def _rising(
    b: NDArray[np.float64], e: NDArray[np.float64], w: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], str | None]:
    """Returns the runs from an optimum inside the range on, with a caution; all runs where there is none."""
    batches = np.unique(b)
    means = np.array([np.average(e[b == one], weights=w[b == one]) for one in batches])
    at = int(np.argmin(means))
    if not 0 < at < len(batches) - 1 or means[at] > _DIP * means[0]:
        return b, e, w, None
    keep = b >= batches[at]
    return (
        b[keep],
        e[keep],
        w[keep],
        f"the samples are lowest at batch {batches[at]:,.0f}, inside the range: the curve, which has no such optimum, is "
        "fitted from there on",
    )


def fit_power(batch: ArrayLike, lr: ArrayLike, *, weights: ArrayLike | None = None) -> PowerFit:
    """Fits the exponent of the best learning rate over the batch: the line through the logarithms.

    Feed the exponent to ``Recipe(power=...)`` and rule ``"power"``. Raises as :func:`fit_critical_batch`, without
    its last two cases.

    >>> round(fit_power([1152, 2304, 4608], [8e-5, 1.6e-4, 3.2e-4]).exponent, 9)
    1.0
    """
    b, rate, w = _runs(batch, lr, "lr", weights)
    rows = np.stack([np.ones_like(b), np.log(b)], axis=1)
    (constant, exponent), covariance, _ = _least_squares(rows, np.log(rate), w)
    interval = None
    if covariance is not None:
        half = _t(len(b) - 2) * math.sqrt(covariance[1, 1])
        interval = (exponent - half, exponent + half)
    return PowerFit(coefficient=math.exp(constant), exponent=exponent, interval=interval)


def _runs(
    batch: ArrayLike, values: ArrayLike, field: str, weights: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    b = reals(batch, "batch", "a number above 0", lambda x: x > 0)
    v = reals(values, field, "a number above 0", lambda x: x > 0)
    w = reals(1.0 if weights is None else weights, "weights", "a number above 0", lambda x: x > 0)
    for name, column in ((field, v), ("weights", w)):
        if len(column) != len(b) and not (name == "weights" and weights is None):
            raise InputError(f"{name} must have {len(b)} values, as batch has, got {len(column)}", field=name)
    if len(np.unique(b)) < 2:
        raise InputError("batch must have at least two different batches", field="batch")
    return b, v, np.broadcast_to(w, b.shape)


def _least_squares(
    rows: NDArray[np.float64], target: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[tuple[float, float], NDArray[np.float64] | None, float]:
    """Two coefficients, their covariance (from three rows on), and the root mean square of the residuals."""
    root = np.sqrt(weights / weights.mean())[:, None]
    scale = np.abs(rows).max(axis=0)
    coefficients, *_ = np.linalg.lstsq(rows * root / scale, target * root[:, 0], rcond=None)
    coefficients = coefficients / scale
    residuals = (target - rows @ coefficients) * root[:, 0]
    covariance = None
    if len(target) > 2:
        normal = (rows * root / scale).T @ (rows * root / scale)
        variance = residuals @ residuals / (len(target) - 2)
        covariance = variance * np.linalg.inv(normal) / np.outer(scale, scale)
    first, second = (float(c) for c in coefficients)
    return (first, second), covariance, float(np.sqrt(np.mean(residuals**2)))


def _ratio_interval(
    top: float, bottom: float, covariance: NDArray[np.float64], freedom: int
) -> tuple[float, float]:
    """Fieller's 95 % interval of top / bottom, both above 0."""
    t2 = _t(freedom) ** 2
    a = bottom**2 - t2 * covariance[1, 1]
    b = top * bottom - t2 * covariance[0, 1]
    c = top**2 - t2 * covariance[0, 0]
    root = math.sqrt(max(b * b - a * c, 0.0))
    if a > 0:
        return max(float((b - root) / a), 0.0), float((b + root) / a)
    # The slope may be 0: there is no upper end.
    lower = (b + root) / a if b * b > a * c else 0.0
    return max(float(lower), 0.0), math.inf


def _t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; beyond the table by Fisher's expansion, good to 1e-4."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
