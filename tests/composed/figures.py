"""Composed figures of a validation's report, and a rank with these figures."""

from isobatch.validate.figures import AllReduceRow


class Alone:
    """The one rank of a group."""

    rank, world_size = 0, 1

    def gather(self, value, kind=None):
        return [value]

    def total(self, values):
        return values

    slowest = total


def row(time_us=100.0, samples=None, **changes):
    """One MB over two ranks in so many microseconds."""
    fields = {
        "dtype": "float32",
        "bytes": 10**6,
        "ranks": 2,
        "nodes": 1,
        "bucket": False,
        "time_us": time_us,
        "p95_us": time_us,
        "alg_bw_gb_s": 1e3 / time_us,
        "bus_bw_gb_s": 1e3 / time_us,
        "wrong_elements": 0,
        "samples_us": samples or [time_us],
    }
    return AllReduceRow(**fields | changes)
