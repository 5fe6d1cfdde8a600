"""An elastic run under Ray Train, on two nodes, one, and two again: python elastic_ray.py FOLDER.

Each worker writes a line for each of its steps. The nodes go and come where the training says so, by a file,
and waits for its end: no step of this depends on how long anything takes.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

RECIPE = {"effective_batch": 12, "lr": 0.05, "optimizer": "sgd", "dataset_size": 70}
RECIPE |= {"duration": "3ep", "warmup": "1ep"}
SETTINGS = {"split": "uneven", "max_micro_batch": 2}
EVERY, CHANGES, CHANGES_AGAIN = 3, 6, 12


def train(config):
    import ray.train
    import torch
    from torch.nn.functional import mse_loss

    import isobatch as ib
    from isobatch.integrations.elastic_ray import elastic_run, report

    folder = Path(config["folder"])
    torch.manual_seed(0)
    rows = torch.randn(70, 4, dtype=torch.float64)
    own = torch.nn.Linear(3, 1).double()
    model = ray.train.torch.prepare_model(own) if config["ray"] else own
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recipe, settings = ib.Recipe(**RECIPE | config.get("recipe", {})), config.get("settings", SETTINGS)
    if config["ray"]:
        run, saved = elastic_run(recipe, **settings)
    else:
        run, saved = ib.integrations.torch.ElasticRun(recipe, **settings), {}
    if saved:
        own.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    scheduler = run.scheduler(optimizer)

    def wait(name):
        """Until Ray ends this worker, since the number of nodes changes."""
        if run.world.rank == 0:
            (folder / name).touch()
        while True:
            time.sleep(0.2)

    first, then, last = config.get("sizes", (2, 1, 2))
    changed, again = (folder / "change").exists(), (folder / "again").exists()
    if config["ray"] and run.world.size != (size := last if again else then if changed else first) and size:
        wait("other")
    log = folder / f"steps-{run.position.step}-{run.world.size}-{run.world.rank}.jsonl"
    with log.open("a", encoding="utf-8") as lines:
        for step in run.steps(run.loader(torch.utils.data.TensorDataset(torch.arange(70), rows))):
            ids = []
            for micro in step:
                places, batch = micro.batch
                with micro.sync(model):
                    (mse_loss(model(batch[:, :3]), batch[:, 3:]) * micro.weight).backward()
                ids += places.tolist()
            row = {
                "step": step.number,
                "ids": ids,
                "lr": optimizer.param_groups[0]["lr"],
                "world": run.world.size,
            }
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            finished_steps = step.number + 1
            if config["ray"] and (run.finished or finished_steps % EVERY == 0):
                report(run, {}, {"model": own.state_dict(), "optimizer": optimizer.state_dict()})
                if (finished_steps, changed) == (CHANGES, False):
                    wait("change")
                if (finished_steps, again) == (CHANGES_AGAIN, False):
                    wait("again")
    if run.world.rank == 0:
        torch.save(own.state_dict(), folder / "model.pt")


def divided(config):
    """The training of examples/ray/divide.py: on one worker, two, one, and as many as it gets."""
    folder = Path(config["folder"], f"out-{config['job']}")
    folder.mkdir(exist_ok=True)
    train({"folder": str(folder), "ray": True, "sizes": (1, 2, None)})


GOOD = {"recipe": {"effective_batch": 8}, "settings": {"max_micro_batch": 2}}
"""A run that works on 1, 2, 4 and 8 workers alone."""


def nodes_follow(cluster, second, folder, ended, slots):
    """Takes the second node away, and gives another, where the training waits for it."""
    for name in ("change", "again"):
        while not (folder / name).exists():
            if ended.wait(0.2):
                return
        if name == "change":
            cluster.remove_node(second)
        else:
            cluster.add_node(num_cpus=slots, resources={"slot": slots})


def main(folder, good_counts=False):
    """Runs the training on nodes that go and come; with `good_counts` on the second node are two slots."""
    import threading

    import ray
    import ray.train
    from ray.cluster_utils import Cluster
    from ray.train.torch import TorchTrainer

    # With `shutdown_at_exit` a node sets handlers of signals, which only the main thread may, and one is
    # added in another.
    cluster = Cluster(
        shutdown_at_exit=False, initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"slot": 1}}
    )
    slots, most = (2, 4) if good_counts else (1, 2)
    second = cluster.add_node(num_cpus=slots, resources={"slot": slots})
    ended = threading.Event()
    follower = threading.Thread(target=nodes_follow, args=(cluster, second, folder, ended, slots))
    try:
        ray.init(cluster.address, log_to_driver=False)
        follower.start()
        scaling = ray.train.ScalingConfig(
            num_workers=(1, most),
            resources_per_worker={"CPU": 1, "slot": 1},
            elastic_resize_monitor_interval_s=1.0,
        )
        failures = ray.train.FailureConfig(max_failures=-1)
        trainer, config = TorchTrainer, {"folder": str(folder), "ray": True}
        if good_counts:
            sys.path.append(str(Path(__file__).parents[2] / "examples" / "ray"))
            from good_counts import GoodCountsTrainer

            trainer, config = partial(GoodCountsTrainer, counts=(1, 2, 4, 8)), config | GOOD
        trainer(
            train,
            train_loop_config=config,
            scaling_config=scaling,
            run_config=ray.train.RunConfig(name="run", storage_path=str(folder), failure_config=failures),
        ).fit()
    finally:
        ended.set()
        if follower.ident is not None:
            follower.join()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), good_counts="good" in sys.argv[2:])
