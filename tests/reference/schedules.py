"""The native kinds, written out in NumPy as their docstrings have them."""

import numpy as np


def _u(x, steps):
    return np.minimum(np.asarray(x, float) / steps, 1)


def linear(x, lr, steps, end=0.0):
    return end + (lr - end) * (1 - _u(x, steps))


def cosine(x, lr, steps, end=0.0):
    return end + (lr - end) * (1 + np.cos(np.pi * _u(x, steps))) / 2


def polynomial(x, lr, steps, power=1.0, end=0.0):
    return end + (lr - end) * (1 - _u(x, steps)) ** power


def one_minus_sqrt(x, lr, steps, end=0.0):
    return end + (lr - end) * (1 - np.sqrt(_u(x, steps)))


def rex(x, lr, steps, end=0.0):
    return end + (lr - end) * (1 - _u(x, steps)) / (1 - _u(x, steps) / 2)


def tanh(x, lr, steps, lower=-6.0, upper=3.0, end=0.0):
    u = _u(x, steps)
    return end + (lr - end) * (1 - np.tanh(lower * (1 - u) + upper * u)) / 2


def exponential(x, lr, gamma, every=1.0):
    return lr * gamma ** (np.asarray(x, float) / every)


def step(x, lr, every, gamma=0.1):
    return lr * gamma ** np.floor(np.asarray(x, float) / every)


def multistep(x, lr, milestones, gamma=0.1):
    return lr * gamma ** np.searchsorted(milestones, np.asarray(x, float), side="right")


def inverse_sqrt(x, lr, timescale):
    return lr / np.sqrt(1 + np.asarray(x, float) / timescale)


def wsd(x, lr, steps, decay_steps, end=0.0):
    return end + (lr - end) * np.clip((steps - np.asarray(x, float)) / decay_steps, 0, 1)


def one_cycle(x, lr, steps, rise_steps, start, end):
    x = np.asarray(x, float)
    rise = lr + (start - lr) * (1 + np.cos(np.pi * _u(x, rise_steps))) / 2
    return np.where(x < rise_steps, rise, cosine(np.maximum(x - rise_steps, 0), lr, steps - rise_steps, end))


def cosine_restarts(x, lr, period, multiplier=1.0, decay=1.0, end=0.0):
    values = []
    for at in np.asarray(x, float):
        start, length, index = 0.0, period, 0
        while at >= start + length:
            start, length, index = start + length, length * multiplier, index + 1
        values.append(cosine(at - start, lr * decay**index, length, end))
    return np.array(values)


def warmup(x, schedule, steps, start=0.0):
    x = np.asarray(x, float)
    after = schedule(np.maximum(x - steps, 0))
    return np.where(x < steps, start + (schedule(np.zeros(1))[0] - start) * x / steps, after)
