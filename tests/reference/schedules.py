"""The native kinds, written out in NumPy as their docstrings have them, and arguments to try each with."""

import numpy as np

from isobatch import schedules as S

# Kind → its arguments after the learning rate, by name, and a text (None: it has none).
ARGUMENTS = {
    "constant": ({}, "constant"),
    "cosine": ({"steps": 90, "end": 0.01}, "cosine(until=90%)"),
    "cosine_restarts": (
        {"period": 10, "multiplier": 2.0, "decay": 0.7, "end": 0.001},
        "cosine_restarts(1ep, multiplier=2)",
    ),
    "exponential": ({"gamma": 0.9, "every": 7}, "exponential(gamma=0.97, every=2.4ep)"),
    "goyal": ({"steps_per_epoch": 1.5, "start": 0.01}, "goyal"),
    "inverse_sqrt": ({"timescale": 15}, "inverse_sqrt"),
    "linear": ({"steps": 90, "end": 0.01}, "linear"),
    "linear_to_zero": ({"steps": 90}, "linear_to_zero"),
    "multistep": ({"milestones": [20, 20, 70], "gamma": 0.3}, "multistep(3ep, 6ep)"),
    "one_cycle": ({"steps": 90, "rise_steps": 30, "start": 0.01, "end": 0.001}, "one_cycle"),
    "one_minus_sqrt": ({"steps": 90}, "one_minus_sqrt"),
    "polynomial": ({"steps": 90, "power": 2.5, "end": 0.01}, "polynomial(power=2.5)"),
    "rex": ({"steps": 90, "end": 0.02}, "rex"),
    "step": ({"every": 30, "gamma": 0.3}, "step(3ep, gamma=0.5)"),
    "table": ({}, None),
    "tanh": ({"steps": 90}, "tanh"),
    "trapezoid": ({"steps": 90, "warmup_steps": 10, "decay_steps": 30, "end": 0.01}, "trapezoid"),
    "vaswani": ({"warmup_steps": 40}, "vaswani"),
    "wsd": ({"steps": 90, "decay_steps": 30, "end": 0.01}, "wsd(decay=20%, shape=rex)"),
}
# First arguments in the place of the learning rate.
FIRST = {"table": [0.1, 0.05, 0.08, 0.01], "vaswani": 512}


def constant(x, lr):
    return np.full(len(x), lr)


def linear_to_zero(x, lr, steps):
    return lr - lr * _u(x, steps)


def table(x, values):
    return np.interp(x, range(len(values)), values)


def trapezoid(x, lr, steps, warmup_steps, decay_steps, end=0.0):
    x = np.asarray(x, float)
    return np.where(x < warmup_steps, lr * x / warmup_steps, wsd(x, lr, steps, decay_steps, end))


def goyal(x, lr, steps_per_epoch, start=0.0):
    epoch = np.asarray(x, float) / steps_per_epoch
    rise = start + (lr - start) * epoch / 5
    return np.where(epoch < 5, rise, lr * 0.1 ** np.searchsorted([30, 60, 80], epoch, side="right"))


def vaswani(x, model_dim, warmup_steps):
    n = np.asarray(x, float) + 1
    return model_dim**-0.5 * np.minimum(n**-0.5, n * warmup_steps**-1.5)


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


def curves(length, warm):
    """Schedules of every kind and a few compositions, of a length; a kind without a line here is as
    `ARGUMENTS` has it.
    """
    usual = {
        kind: getattr(S, kind)(FIRST.get(kind, 0.1), **arguments)
        for kind, (arguments, _) in ARGUMENTS.items()
    }
    return usual | {
        "constant": S.constant(0.1),
        "cosine": S.cosine(0.1, length, 0.003),
        "cosine_restarts": S.cosine_restarts(0.1, length // 20 + 1, 1.3, 0.8),
        "exponential": S.exponential(0.1, 0.01, length),
        "goyal": S.goyal(0.1, length / 90),
        "inverse_sqrt": S.inverse_sqrt(0.1, warm),
        "linear": S.linear(0.1, length),
        "linear_to_zero": S.linear_to_zero(0.1, length),
        "multistep": S.multistep(0.1, [length // 3, length // 2]),
        "one_cycle": S.one_cycle(0.1, length, length // 3),
        "one_minus_sqrt": S.one_minus_sqrt(0.1, length, 0.001),
        "polynomial": S.polynomial(0.1, length, 0.5),
        "rex": S.rex(0.1, length),
        "step": S.step(0.1, 2.4, 0.97),
        "table": S.table(np.linspace(0.1, 0.02, 77).tolist()),
        "tanh": S.tanh(0.1, length),
        "trapezoid": S.trapezoid(0.1, length, warm, warm),
        "vaswani": S.vaswani(512, warm),
        "wsd": S.wsd(0.1, length, length // 5, "rex"),
        # Beside the kinds, what was off or may be.
        "polynomial 1.7": S.polynomial(0.1, length, 1.7, 0.01),
        "growing": S.exponential(0.1, 2.0, length),
        "a decay shorter than a step": S.wsd(1000, 10, 0.0001),
        "a bent clock": S.cosine(0.1, length).with_clock(
            [(0, 0), (length // 3, length // 3), (length, 3 * length)]
        ),
        "cycles on a clock": S.cosine_restarts(0.1, 50).with_clock([(0, 0), (1, 1.37)]),
        "growing cycles on a clock": S.cosine_restarts(0.1, 50, 1.5).with_clock(
            [(0, 0), (7, 9.1), (20, 31.7)]
        ),
        "a product": S.product(S.cosine(0.1, length), S.step(1.0, 200, 0.5), S.exponential(1.0, 0.999)),
    }
