"""An elastic run in Ray Train: `ScalingConfig(num_workers=(least, most))` restarts it with other workers."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray.train
import torch

from isobatch.elastic.run import ElasticRun
from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe

_FILE = "isobatch.pt"
_RUN = "isobatch"


def elastic_run(recipe: Recipe | Plan, **options: Any) -> tuple[ElasticRun, dict[str, Any]]:
    """Makes the run on Ray's present workers, and reads the last states of `report` (at first none).

    Call it in the function that a TorchTrainer runs on each worker: the process group exists there already.

        def train(config):
            model = ray.train.torch.prepare_model(make_model())
            optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr)
            run, saved = elastic_run(recipe, split="uneven")
            loader, scheduler = run.loader(dataset), run.scheduler(optimizer)
            if saved:
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
            for step in run.steps(loader):
                ...
                if run.finished or (step.number + 1) % 500 == 0:
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    report(run, {"loss": loss}, states)

    Args:
        recipe: the tuned recipe, or a plan.
        options: the other arguments of ElasticRun, except its state.

    Raises:
        InputError: as ElasticRun; or the checkpoint is not one of `report`.
    """
    if "state" in options:
        raise InputError("state is in Ray's checkpoint: leave it out", field="state")
    saved = _saved()
    return ElasticRun(recipe, state=saved.get(_RUN), **options), saved


def report(run: ElasticRun, metrics: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Reports metrics and a checkpoint to Ray Train, with the run's state in it.

    All workers call it, and rank 0 writes.

    Args:
        run: the run; call `report` in its loop, after the scheduler's step.
        metrics: as `ray.train.report` takes them; `step`, the number of finished steps, is added.
        states: the other parts of the checkpoint, such as the model's and the optimizer's state_dict.

    Raises:
        InputError: as `run.state_dict()`; or a name in `states` is reserved for the run.
    """
    if _RUN in states:
        raise InputError(f"states must not have the name {_RUN!r}, which is the run's", field="states")
    state = run.state_dict()
    reported = {"step": state["step"], **metrics}
    if run.world.rank != 0:
        ray.train.report(reported)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save({**states, _RUN: state}, Path(folder) / _FILE)
        ray.train.report(reported, checkpoint=ray.train.Checkpoint.from_directory(folder))


def _saved() -> dict[str, Any]:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return {}
    with checkpoint.as_directory() as folder:
        path = Path(folder) / _FILE
        if not path.exists():
            raise InputError(
                f"{_FILE} is missing in Ray's checkpoint: it must be one that "
                "isobatch.integrations.elastic_ray.report made",
                file=folder,
            )
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return saved
