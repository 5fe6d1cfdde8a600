"""An admin policy of SkyPilot: a task gets a number of nodes at which its recipe works, and its plan.

In ~/.sky/config.yaml: `admin_policy: good_counts.GoodCounts`, with this file where Python finds it. A task
names its recipe by `envs: {ISOBATCH_RECIPE: job.toml}`; its `num_nodes` is the most that it may get.
"""

from __future__ import annotations

import sky

import isobatch as ib


class GoodCounts(sky.AdminPolicy):
    """Rounds a task's nodes down to a feasible number; tasks without a recipe pass as they are."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Sets the number of nodes and the variables of the plan (ISOBATCH_MICRO_BATCH and so on).

        Raises:
            InputError: the recipe cannot be read, the task has no GPUs or several kinds of them, or no number
                of nodes up to its own works.
        """
        task = user_request.task
        if recipe := task.envs.get("ISOBATCH_RECIPE"):
            node = ib.Cluster(gpus_per_node=gpus_of(task))
            each, most = node.gpus_per_node, task.num_nodes
            counts = ib.counts(ib.Recipe.load(recipe), range(each, most * each + 1, each), cluster=node)
            if not counts.working:
                why = f"{recipe} works on no number of nodes up to {most} of {each} GPUs"
                raise ib.InputError(f"{why}: see isobatch counts {recipe}", field="num_nodes")
            plan = counts.plan_at(counts.working[-1])
            task.num_nodes = counts.working[-1] // each
            env = plan.to("kubeflow").settings["spec"]["trainer"]["env"]
            task.update_envs({variable["name"]: variable["value"] for variable in env})
        return sky.MutatedUserRequest(task, user_request.skypilot_config)


def gpus_of(task: sky.Task) -> int:
    """Returns the GPUs of a node, the same for all resources of the task."""
    numbers = {sum((resources.accelerators or {}).values()) for resources in task.resources}
    if len(numbers) != 1 or (number := numbers.pop()) < 1 or number != int(number):
        why = f"must be one whole number of GPUs, got {sorted(numbers)}"
        raise ib.InputError(f"accelerators {why}, such as H100:8", field="accelerators")
    return int(number)
