"""Pages taken apart, and tables to make them of."""

from html.parser import HTMLParser

import numpy as np
import pytest

import isobatch as ib
from hostile import HOSTILE

for package in ("altair", "vl_convert", "jinja2", "pyarrow"):
    pytest.importorskip(package, reason="pages, cells and charts come with the extra 'report'")

VOID = {"meta", "input", "br", "link", "img", "hr"}


class Parsed(HTMLParser):
    """The parts of a page: tags with attributes, texts by tag, cells of the table of all rows, open tags."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.open, self.rows = [], {}, [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if dict(attrs).get("id") == "rows":
            self.rows = []
        elif self.rows is not None and tag == "tr":
            self.rows.append([])
        elif self.rows is not None and tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes what was not open"

    def handle_data(self, data):
        if self.rows and {"th", "td"} & {*self.open}:
            self.rows[-1][-1] += data
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def text(self, *names):
        return "\n".join(part for name in names or self.texts for part in self.texts.get(name, ()))

    def of(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def columns_of(parsed):
    """The texts of each column of the table of all rows."""
    return {name: list(values) for name, *values in zip(*parsed.rows, strict=True)}


def hostile_fleet():
    """A fleet's plans with hostile texts in each text column, as Arrow."""
    import pyarrow as pa

    many = len(HOSTILE)
    jobs = {"job": [f"{text}{n}" for n, text in enumerate(HOSTILE)], "effective_batch": [256] * many}
    jobs |= {"lr": [0.1] * many, "team": list(HOSTILE), "<b>no\u202ete</b>": list(HOSTILE)}
    clusters = pa.table({"cluster": [f"{HOSTILE[0]}{n}" for n in range(3)], "gpus_per_node": [8, 7, 6]})
    return ib.plan_fleet(pa.table(jobs), clusters)


def timed_profile():
    """A profile for hours in every plan."""
    from isobatch.forecast.profile import Constant, Profile

    return Profile(
        gradient_bytes=1e8,
        compute_constant=Constant(value=0.01),
        overlap=Constant(value=1),
        compute_per_sample=Constant(value=0.001),
        intra_latency_us=Constant(value=5),
        intra_gb_s=Constant(value=100),
        inter_latency_us=Constant(value=5),
        inter_gb_s=Constant(value=20),
    )


def coinciding_fleet():
    """Plans of two jobs on six clusters of 64 GPUs each, with times."""
    clusters = {"cluster": list("abcdef"), "nodes": [8] * 6, "price_per_gpu_hour": [3, 2, 4, 1, 5, 6]}
    jobs = {"job": ["x", "y"], "effective_batch": [512, 1024], "lr": [0.1] * 2, "duration": ["90st"] * 2}
    return ib.plan_fleet(jobs, clusters, profile=timed_profile())


def split_result(split, *causes, difference=0.0, weights=(1.0, 1.0)):
    """A result of a comparison of splits, not the same where it has causes."""
    from isobatch.equivalence.compare import SplitResult
    from isobatch.equivalence.laws import SplitCause

    return SplitResult(
        split=split,
        same=not causes,
        step=0,
        difference=difference,
        weights=list(weights),
        residual=1e-7,
        groups=[],
        lrs=[0.1],
        norms=[],
        samples=len(weights),
        update=0.0,
        seconds=1.0,
        causes=[SplitCause(name, name, f"{name} in {split}", f"mend {name}") for name in causes],
    )


def comparison(*results):
    """An answer of `same`; without results, of two splits with one cause and a healthy one."""
    from isobatch.equivalence.evidence import Measured
    from isobatch.equivalence.result import Same

    results = results or (
        split_result("1x2x1", "a sum", difference=1.0, weights=(2.0, 2.0)),
        split_result("2x1x1", "a sum", difference=2.0, weights=(2.0, 2.0)),
        split_result("1x1x2"),
    )
    return Same(
        same=all(result.same for result in results),
        measured=[Measured("update", "the change of the weights", "over all compared steps", True)],
        command=["python", "train.py", HOSTILE[0]],
        reference="1x1x2",
        splits=list(results),
        changes=["dropout off"],
        unasked={"4x1x1": "two GPUs"},
        noise=0.0,
        tolerance=1e-4,
        steps=3,
        versions={"torch": "2"},
        seconds=1.0,
    )


def wide_fleet(jobs, *, profile=None):
    """Plans of so many jobs on ten clusters, as NumPy."""
    rng = np.random.default_rng(0)
    table = {
        "job": np.array([f"job-{n:05d}" for n in range(jobs)]),
        "effective_batch": rng.integers(1, 4096, jobs) * 8,
        "lr": rng.uniform(1e-5, 1, jobs),
        "dataset_size": rng.integers(10**5, 10**7, jobs),
        "duration": np.array([f"{epochs}ep" for epochs in rng.integers(1, 90, jobs)]),
    }
    many = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128)
    clusters = [ib.Cluster(nodes=nodes, gpus_per_node=8, price_per_gpu_hour=2.5) for nodes in many]
    return ib.plan_fleet(table, clusters, profile=profile)


def validation(*texts):
    """A report with a failed proof for each text; without texts, one passed and one failed, with figures."""
    from isobatch.equivalence.laws import Cause
    from isobatch.validate import Options, Proof, Report, Verdict
    from isobatch.validate.figures import AllReduce, AllReduceRow, Machine, Rank

    measured = {
        "dtype": "float32",
        "ranks": 2,
        "nodes": 1,
        "bucket": False,
        "p95_us": 20.0,
        "alg_bw_gb_s": 1.0,
    }
    measured |= {"bus_bw_gb_s": 1.0, "wrong_elements": 0, "samples_us": [1.0]}
    sizes = [1024 * 4**n for n in range(6)]
    rows = [AllReduceRow(bytes=size, time_us=10 + size / 1e3, **measured) for size in sizes]
    place = {"rank": 0, "node": 0, "local_rank": 0, "device_memory_bytes": None}
    ranks = [Rank(host=HOSTILE[2], device=HOSTILE[1], **place)]
    machine = {"nodes": 1, "backend": "gloo", "emulated": False, "environment": {}}
    proofs = [
        Proof(name="world", verdict=Verdict.PASS, text=HOSTILE[0]),
        Proof(name="gradient", verdict=Verdict.FAIL, text=HOSTILE[1], diagnosis=Cause.SLOW_LINK.likely()),
    ]
    return Report(
        isobatch_version="0",
        started="",
        wall_seconds=1.0,
        verdict=Verdict.FAIL,
        rehearsal="2/64",
        plan=None,
        plan_digest="",
        options=Options(),
        proofs=[Proof(name="world", verdict=Verdict.FAIL, text=text) for text in texts] or proofs,
        machine=Machine(ranks=ranks, versions={"torch": HOSTILE[0]}, **machine),
        allreduce=AllReduce(table=rows),
    )
