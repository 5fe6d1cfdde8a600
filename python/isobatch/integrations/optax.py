"""A plan's learning rate as an optax schedule."""

from typing import Any

from isobatch.planning.plan import Plan, refuse_no_plan


def schedule(plan: Plan) -> Any:
    """Returns a function count → learning rate for optax's optimizers, also inside jit, vmap and scan.

    The function looks values up in an array of total_steps + 1 learning rates, in JAX's float type; past the
    end it returns the last one.

    Args:
        plan: feasible, with a duration.

    Raises:
        InputError: the plan is infeasible or has no duration.

    >>> import isobatch as ib
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=1.0, schedule="linear", duration="4st"), 8)
    >>> float(schedule(plan)(3))
    0.25
    """
    refuse_no_plan(plan)
    import jax.numpy as jnp

    curve = plan.schedule
    last = plan.total_steps or 0
    if curve.form.last is not None:
        last = min(last, int(curve.form.last))
    values = jnp.asarray(curve.values(range(last + 1)))
    return lambda count: jnp.take(values, count, mode="clip")
