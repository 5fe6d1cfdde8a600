"""A script as users write it, for `mypy --strict`: nothing in it has to be asserted to be known."""

import isobatch as ib


def loader(batch_size: int, batches: int) -> list[list[int]]:
    """A DataLoader's arguments."""
    return [list(range(batch_size))] * batches


def rate(plan: ib.FeasiblePlan, step: int) -> float:
    return plan.lr_at(step) * plan.lr_scale


def main() -> None:
    recipe = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", duration="1000st")
    plan = ib.plan(recipe, 64, policy="grow", rule="linear", max_micro_batch=16).require()
    data = loader(plan.micro_batch, plan.accumulation)
    total: int = plan.effective_batch + plan.data_parallel
    print(len(data), total, plan.lr_at(5), rate(plan, 5), plan.weight_decay, plan.min_lr)

    strict = ib.plan(recipe, ib.Cluster(nodes=2), strict=True)
    print(loader(strict.micro_batch, strict.accumulation))

    loose = ib.plan(recipe, 7)
    if isinstance(loose, ib.FeasiblePlan):
        print(loose.micro_batch + 1)
    else:
        print(loose.explain(), [option.micro_batch + 1 for option in loose.options])

    moved = ib.replan(plan, at_step=50, cluster=4, split="uneven").require()
    print(moved.micro_batch + moved.moves[-1].before.micro_batch)


if __name__ == "__main__":
    main()
