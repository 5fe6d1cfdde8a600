"""Our division in the peers' own simulators, beside their policies.

`python bench/allocate.py PATH` takes a clone of petuum/adaptdl (branch osdi21-artifact) or of
siasosp23/artifacts, neither of which is part of this project, and plays their workloads. Rates, restart
delays, intervals and what a policy may know are theirs. `ours` divides by their objective and knowledge;
`ours, hours` also knows how much of each job is left, as a plan does. `--log FILE` keeps a line a run, and
those that it has are not run again; `--table` only prints; `--day FILE` logs who had what in the last run.

Their simulators want an old NumPy and pandas, and autograd; here four lines stand for what is gone, and the
fit's gradient is written out (equal to autograd's to rounding, and thirty times as fast). That Tiresias'
published mean comes out to the digit shows that the rest is the same.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from isobatch import _core
from isobatch.allocation.division import Division
from isobatch.allocation.jobs import Choices, read_jobs
from isobatch.allocation.nodes import read_held, read_pool

INTERVAL, RESTART, GPUS = 60, 30, 4
LOADS = {0.5: "workloads-0.5", 1.0: "workloads", 1.5: "workloads-1.5", 2.0: "workloads-2.0"}
SIA = {"philly": 8, "saturn": 10, "newtrace": 10}
PUBLISHED_BY_SIA = {"philly": (0.6, 9.5, 14.2), "saturn": (0.7, 10.9, 14.9), "newtrace": (0.7, 4.6, 52.2)}
"""Table 3 of Sia (SOSP 2023): hours of the mean, of the 99th percentile, and of the makespan; saturn is its
Helios.
"""
SPEEDUP = 0.5
"""The speed-up of a job on n GPUs is taken for n to this power: the best of 0.3, 0.5 and 0.7 on workloads 1
to 4 at load 1.
"""


def short_first(hours, p):
    """Weights for a mean with the exponent p that make the division Berg, Vesilo and Harchol-Balter's
    (heSRPT, 2020), of least mean completion for jobs that speed up alike: of m jobs the i-th longest has
    (i/m)^(1/(1-q)) - ((i-1)/m)^(1/(1-q)) of the GPUs.
    """
    m, place = len(hours), np.empty(len(hours))
    place[np.argsort(-np.asarray(hours), kind="stable")] = np.arange(1, m + 1)
    power = 1 / (1 - SPEEDUP)
    return (m * ((place / m) ** power - ((place - 1) / m) ** power)) ** (1 - p * SPEEDUP)


def gradient(params, nodes, replicas, batch, accumulating, step):
    """The gradient of the simulators' fit of step times (goodput.py, `_obj_fn`)."""
    a_c, b_c, a_n, b_n, a_r, b_r, gamma = params
    far, near, more = nodes > 1, (nodes <= 1) & (replicas > 1), np.maximum(replicas - 2, 1e-8)
    compute = a_c + b_c * batch
    network = np.where(far, a_n + b_n * more, np.where(near, a_r + b_r * more, 1e-8 + 1e-8 * more))
    powers = compute**gamma, network**gamma
    total = powers[0] + powers[1]
    log_step = np.log(total) / gamma

    def slope(error):
        norm = np.sqrt((error**2).mean()) * len(error)
        return error / norm if norm else np.zeros(len(error))

    of_step = slope(log_step - np.log(step))
    of_compute = (
        slope(np.log(compute) - np.log(accumulating)) / compute + of_step * powers[0] / compute / total
    )
    of_network = of_step * powers[1] / network / total
    bent = (powers[0] * np.log(compute) + powers[1] * np.log(network)) / total / gamma - log_step / gamma
    return np.array(
        [
            of_compute.sum(),
            (of_compute * batch).sum(),
            of_network[far].sum() - 0.02 * b_n**2 / a_n**3,
            (of_network * more)[far].sum() + 0.02 * b_n / a_n**2,
            of_network[near].sum() - 0.02 * b_r**2 / a_r**3,
            (of_network * more)[near].sum() + 0.02 * b_r / a_r**2,
            (of_step * bent).sum() + 2e-3 * (gamma - 1),
        ]
    )


@contextlib.contextmanager
def quiet():
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def stand_in(path):
    """Puts a simulator on the path, with what is gone of NumPy and pandas, and without the solvers of the
    policies that are not run.
    """
    np.int, np.float = int, float
    pd.DataFrame.append = lambda a, b, ignore_index=False: pd.concat([a, b], ignore_index=ignore_index)
    sys.path.insert(0, str(path))
    if (path / "pollux.py").exists():
        try:
            import pollux  # noqa: F401
        except ModuleNotFoundError:  # without pymoo
            sys.modules["pollux"] = types.ModuleType("pollux")
            sys.modules["pollux"].PolluxPolicy = type("PolluxPolicy", (), {})
    else:
        for name in ("gavel", "sia_fix"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["gavel"].GavelPolicy = sys.modules["sia_fix"].SiaFixPolicy = type("Other", (), {})
        with contextlib.suppress(ModuleNotFoundError):
            import cvxpy

            # SciPy's HiGHS for CBC, which few have: both solve to the end.
            solve = cvxpy.Problem.solve
            cvxpy.Problem.solve = lambda problem, **options: solve(problem, solver=cvxpy.SCIPY)
        sys.modules.setdefault("cvxpy", types.ModuleType("cvxpy"))
    gone = types.ModuleType("autograd")
    gone.numpy, gone.grad = np, lambda function: gradient
    sys.modules["autograd"], sys.modules["autograd.numpy"] = gone, np


class Simulated:
    """Rates of the simulator, in the place of plans."""

    def __init__(self, choices):
        self.of_all = choices

    def choices(self, placement):
        choices = self.of_all
        return replace(
            choices,
            held=(placement[0][choices.job] == choices.kind) & (placement[1][choices.job] == choices.gpus),
        )


def pollux(path, load, number, hours, beside=0):
    """One of Pollux's workloads under our division; returns the cluster, seconds a round, and, of every so
    many rounds, of Pollux's own `optimize` on the same jobs the seconds, and its value over ours by its own
    measure.
    """
    import simulator

    class Ours(simulator.PolluxPolicy):
        def optimize(self, infos, nodes, before, template):
            start = time.perf_counter()
            names, pool = list(infos), read_pool({"node": list(nodes), "gpus": [GPUS] * len(nodes)})
            counts = [
                pool.kinds[0].counts[pool.kinds[0].counts <= info.max_replicas] for info in infos.values()
            ]
            rates = [self.rates(info.speedup_fn, n) for info, n in zip(infos.values(), counts, strict=True)]
            table = {
                "job": names,
                "effective_batch": [1] * len(names),
                "lr": [1.0] * len(names),
                "restarts": [info.num_restarts for info in infos.values()],
                "age_seconds": [info.age for info in infos.values()],
            }
            hours_left = [np.full(len(n), np.nan) for n in counts]
            if hours:
                fair = max(len(nodes) * GPUS // len(names), 1)
                hours_left = [self.left(*job) for job in zip(names, infos.values(), rates, strict=True)]
                each = [
                    job_hours[max(np.searchsorted(n, fair, "right") - 1, 0)]
                    for job_hours, n in zip(hours_left, counts, strict=True)
                ]
                table["weight"] = short_first(np.nan_to_num(each, nan=1.0), -1).tolist()
            gpus = np.concatenate(counts)
            zeros, rate = np.zeros(len(gpus), np.uint32), np.concatenate(rates)
            job = np.repeat(np.arange(len(names)), [len(n) for n in counts])
            choices = Choices(job, zeros, gpus, zeros, zeros > 0, rate, rate, np.concatenate(hours_left))
            placements = [
                {"job": job, "node": node, "gpus": on.count(node)}
                for job, on in before.items()
                for node in set(on)
            ]
            jobs = read_jobs(table, None, {})
            holds, *_ = read_held(placements, pool, jobs.row_of)
            division = Division(jobs, pool, Simulated(choices), holds, "fair", -1.0)
            placed = {
                names[row]: [int(node) for node, n in sorted(job_nodes.items()) for _ in range(n)]
                for row, job_nodes in division.nodes.items()
            }
            self.rounds.append(time.perf_counter() - start)
            if beside and len(self.rounds) % beside == 0:
                self.compare(infos, nodes, before, template, placed)
            return placed, len(nodes)

        def compare(self, infos, nodes, before, template, placed):
            from pollux import Problem

            start = time.perf_counter()
            wish = self.theirs.optimize(infos, nodes, before, template)[0]
            seconds = time.perf_counter() - start
            states = [
                self._allocations_to_state(allocation, infos, nodes) for allocation in (before, placed, wish)
            ]
            measures = {}
            Problem([*infos.values()], [*nodes.values()], states[0])._evaluate(np.stack(states[1:]), measures)
            own_value, pollux_value = -measures["F"][:, 0]
            self.asked.append((seconds, pollux_value / own_value))

        def rates(self, speed, counts):
            """Pollux's goodput; of a job that has not run yet, as many as it has GPUs, as Pollux takes it."""
            if not hasattr(speed, "_goodput_fn"):
                return counts.astype(float)
            fn = speed._goodput_fn
            key = (
                fn._perf_params,
                fn._grad_params,
                speed._max_batch_size,
                speed._atomic_bsz_range,
                len(counts),
            )
            if key not in self.known:
                nodes = np.ceil(counts / GPUS).astype(int)
                self.known[key] = fn.optimize(nodes, counts, *key[2:4], accumulation=True)[0]
            return self.known[key]

        def left(self, name, info, rates):
            """Hours left on each count; not known of a job that has not run yet."""
            if not hasattr(info.speedup_fn, "_goodput_fn"):
                return np.full(len(rates), np.nan)
            job, app = self.jobs[name], self.jobs[name].application
            samples = max(app.get_progress(app.max_epochs) - job.progress, 1.0) * app.init_batch_size
            return samples / rates / 3600

    policy = Ours()
    policy.rounds, policy.known, policy.asked = [], {}, []
    policy.theirs = simulator.PolluxPolicy()
    cluster = simulator.Cluster(
        pd.read_csv(path / LOADS[load] / f"workload-{number}.csv"), policy, 16, num_gpus=GPUS
    )
    policy.jobs = {job.name: job for job in cluster.jobs}
    with quiet():
        while not cluster.all_complete():
            cluster.step(INTERVAL)
    return cluster, policy.rounds, policy.asked


def tiresias(path, load, number, hours):
    """Their Tiresias, which shows that the simulator is theirs."""
    import simulator

    policy = simulator.TiresiasPolicy(lambda: cluster.current_time)
    cluster = simulator.Cluster(pd.read_csv(path / LOADS[load] / f"workload-{number}.csv"), policy, 16)
    with quiet():
        while not cluster.all_complete():
            cluster.step(INTERVAL)
    return cluster, [0.0], []


def sia(path, trace, number, hours, as_published=False):
    """One of Sia's workloads with our division in the place of its integer program, on the same values."""
    import sia as scheduler
    import simulator_config as config
    from cluster import Cluster

    solve = "_SiaPolicy__solve_mip_rescaled"

    class Ours(scheduler.SiaPolicy):
        rounds = []

        def weights(self, names):
            return short_first([left(self.jobs[name]) for name in names], self.p_fairness) if hours else 1.0

    def divided(self, problem, free, weights, pinned):
        start = time.perf_counter()
        names, speedups, factors = problem["adaptive"]
        assert not problem["rigid"][0]
        configs = [self.idx_to_config_map[at] for at in range(speedups.shape[1])]
        before = self.prev_allocs_v2["adaptive"]
        for row, name in enumerate(names):
            if (now := before.get(name)) is not None:
                stays = speedups[row, now]
                speedups[row] *= factors[row]
                speedups[row, now] = stays
        cost = np.minimum(np.round(speedups**self.p_fairness, 2), config.sia_goodput_clip_val)
        value = np.reshape(self.weights(names), (-1, 1)) * (self.lambda_n - cost)
        room = np.array([self.cluster_total_gpus[kind] for kind in self.cluster_ordering], np.uint64)
        legal = speedups > scheduler.ZERO_ALLOC_GAIN
        for name in pinned["adaptive"]:
            row = names.index(name)
            kind, _, gpus = configs[before[name]]
            room[self.cluster_ordering.index(kind)] -= int(gpus)
            legal[row] = False
        at, column = np.nonzero(legal)
        choice, *_ = _core.divide_pool(
            np.searchsorted(at, np.arange(len(names) + 1)).astype(np.uint64),
            np.array([self.cluster_ordering.index(configs[number][0]) for number in column], np.uint32),
            np.array([configs[number][2] for number in column], np.uint64),
            np.ascontiguousarray(value[at, column], np.float64),
            np.zeros(len(names)),
            room,
        )
        jobs, clusters = {}, {}
        for row, name in enumerate(names):
            chosen = (
                before[name]
                if name in pinned["adaptive"]
                else column[choice[row]]
                if choice[row] >= 0
                else None
            )
            before[name] = None if chosen is None else int(chosen)
            jobs[name] = None
            if chosen is not None:
                kind, nodes, gpus = configs[chosen]
                jobs[name] = kind, (nodes, gpus)
                clusters.setdefault(kind, {})[name] = nodes, gpus
        self.prev_allocs_v2["adaptive"] = {name: before[name] for name in names}
        self.rounds.append(time.perf_counter() - start)
        return jobs, clusters

    def timed(self, *arguments):
        start = time.perf_counter()
        answer = getattr(scheduler.SiaPolicy, solve)(self, *arguments)
        self.rounds.append(time.perf_counter() - start)
        return answer

    def left(job):
        """The hours left of a job on one GPU of the first kind on which it has run."""
        app, run = job.reference_app, [kind for kind in kinds if job.perf_params[kind] is not None]
        if not run or job.grad_params is None:
            return 1.0
        samples = max(app.get_progress(app.max_epochs) - job.progress, 1.0) * app.init_batch_size
        goodput = job.get_speedup_fn(run[0]).get_goodput(np.ones(1), np.ones(1))[0]
        return samples / goodput / job.calibration_factor / 3600

    setattr(Ours, solve, timed if as_published else divided)
    kinds = {name: config.cluster_ngpus_per_node[name] for name in config.cluster_nnodes}
    with quiet():
        policy = Ours(
            p_fairness=-0.5, lambda_a=0.01, lambda_n=1.1, project_throughputs=True, share_max_replicas=True
        )
        policy.rounds = []
        policy.populate_valid_configs(config.cluster_nnodes, kinds, config.cluster_max_physical_nnodes)
        workload = pd.read_csv(path / "workloads" / trace / f"workload-{number}.csv")
        cluster = Cluster(
            workload,
            policy,
            config.cluster_nnodes,
            kinds,
            max_physical_nodes=config.cluster_max_physical_nnodes,
        )
        policy.jobs = {job.name: job for job in cluster.jobs}
        while not cluster.all_complete():
            cluster.step(INTERVAL)
    return cluster, policy.rounds, []


POLICIES = {
    "pollux": {
        "ours": (pollux, False),
        "ours, hours": (pollux, True),
        "ours, Pollux asked too": (lambda *case: pollux(*case, beside=25), False),
        "Tiresias": (tiresias, False),
    },
    "sia": {
        "ours": (sia, False),
        "ours, hours": (sia, True),
        "Sia": (lambda *case: sia(*case, as_published=True), False),
    },
}


def figures(cluster, rounds, comparisons):
    """Figures of a run, in seconds but for the milliseconds a round: ours and, where it was asked,
    Pollux's own.
    """
    jobs = cluster.logs[-1]["submitted_jobs"]
    took = [job["completion_time"] - job["submission_time"] for job in jobs]
    return {
        "mean": float(np.mean(took)),
        "p99": float(np.percentile(took, 99)),
        "makespan": float(max(job["completion_time"] for job in jobs)),
        "restarts": sum(job["num_restarts"] or 0 for job in jobs),
        "ms": 1e3 * float(np.median(rounds)),
        **(
            {"pollux_ms": 1e3 * float(np.median([seconds for seconds, _ in comparisons]))}
            if comparisons
            else {}
        ),
        **({"pollux_value": float(np.median([value for _, value in comparisons]))} if comparisons else {}),
    }


def day(cluster, path):
    """Logs who had what, a line a minute, as `isobatch allocate --json` prints it."""
    with path.open("w") as file:
        for record in cluster.logs:
            has = {}
            for job in record["submitted_jobs"]:
                if job["completion_time"] is None:
                    nodes = [f"n{node}" for node in job["allocation"]]
                    has[job["name"]] = {node: nodes.count(node) for node in dict.fromkeys(nodes)}
            jobs = [{"job": name, "nodes": nodes} for name, nodes in has.items()]
            file.write(json.dumps({"seconds": record["timestamp"], "jobs": jobs}) + "\n")


def published(path, load):
    """Pollux's own summary of its runs: of each workload the mean, the 99th percentile, and the makespan."""
    figures_of = []
    summary = json.loads((path / "results-jobload" / f"pollux-{load}" / "summary.json").read_text())["jcts"]
    for name, took in summary.items():
        starts = pd.read_csv(path / LOADS[load] / f"{name}.csv").set_index("name").time
        ends = [starts[job] + seconds for job, seconds in took.items()]
        figures_of.append((np.mean([*took.values()]), np.percentile([*took.values()], 99), max(ends)))
    return np.mean(figures_of, axis=0)


def rows(path, kind, runs):
    """A line for each load or trace and policy: the means over its workloads."""
    for load in dict.fromkeys(run["load"] for run in runs):
        if kind == "pollux":
            mean, p99, makespan = published(path, load)
            yield f"| {load:g} | Pollux, published | 8 | {mean:,.0f} | {p99:,.0f} | {makespan:,.0f} | | |"
        else:
            mean, p99, makespan = (3600 * hours for hours in PUBLISHED_BY_SIA[load])
            yield (
                f"| {load} | Sia, published | {SIA[load]} | {mean:,.0f} | {p99:,.0f} | {makespan:,.0f} | | |"
            )
        for policy in POLICIES[kind]:
            runs_of = [run for run in runs if (run["load"], run["policy"]) == (load, policy)]
            if runs_of:
                mean, p99, makespan, restarts, ms = (
                    np.mean([run[name] for run in runs_of])
                    for name in ("mean", "p99", "makespan", "restarts", "ms")
                )
                times = f"{mean:,.0f} | {p99:,.0f} | {makespan:,.0f}"
                yield f"| {load} | {policy} | {len(runs_of)} | {times} | {restarts:,.0f} | {ms:,.1f} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="a clone of petuum/adaptdl or siasosp23/artifacts")
    parser.add_argument("--loads", nargs="+", help="0.5 1.0 1.5 2.0, or philly saturn newtrace")
    parser.add_argument("--workloads", type=int, nargs="+")
    parser.add_argument("--policies", nargs="+", default=["ours", "ours, hours"])
    parser.add_argument("--log", type=Path, default=Path("build/simulated.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what the log has")
    parser.add_argument("--day", type=Path, help="log who had what in the last run")
    args = parser.parse_args()
    kind = "pollux" if (args.path / "simulator").exists() else "sia"
    path = (args.path / ("simulator" if kind == "pollux" else "sia-simulator")).resolve()
    args.log.parent.mkdir(exist_ok=True, parents=True)
    args.log.touch()
    runs = [json.loads(line) for line in args.log.read_text().splitlines()]
    runs = [run for run in runs if (run["load"] in SIA) == (kind == "sia")]
    if not args.table:
        stand_in(path)
        loads = args.loads or (SIA if kind == "sia" else LOADS)
        cases = [
            (load if kind == "sia" else float(load), number, policy)
            for load in loads
            for number in args.workloads or range(1, 1 + (SIA[load] if kind == "sia" else 8))
            for policy in args.policies
        ]
        logged = {(run["load"], run["workload"], run["policy"]) for run in runs}
        for load, number, policy in cases:
            if (load, number, policy) in logged:
                continue
            play, hours = POLICIES[kind][policy]
            cluster, *took = play(path, load, number, hours)
            runs.append({"load": load, "workload": number, "policy": policy, **figures(cluster, *took)})
            with args.log.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
            print(runs[-1], flush=True)
            if args.day:
                day(cluster, args.day)
    print("| load | policy | workloads | mean, s | p99, s | makespan, s | restarts | ms a round |")
    print("|---|---|---|---|---|---|---|---|")
    print(*rows(path, kind, sorted(runs, key=lambda run: str(run["load"]))), sep="\n")


if __name__ == "__main__":
    main()
