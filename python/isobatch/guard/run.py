"""The common ground of all checks: the plan, the ranks, the training's step, the wrapper of its model."""

import copy
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from fractions import Fraction
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from isobatch.equivalence.laws import Cause, Diagnosis, either
from isobatch.equivalence.tensors import checksum, checksum_bytes, dense, differing, free_on_gpu
from isobatch.guard.error import GuardError
from isobatch.planning.plan import Plan
from isobatch.training.exchange import gather_values

LOOK_EVERY_STEPS = 16  # steps between two looks that wait for a GPU
CLOSE_STEPS = 2  # the first steps, at which everything is checked
MAX_CALLS = 4096  # of the model that are kept, in a loop without a step
WITNESS_SECONDS = 2.0  # from the first rank's sight of a fault to the last one's

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Run:
    """Follows a training under guard.

    Attributes:
        start: the plan's step at which it begins; `since`, the optimizer steps since then.
        micro: micro-batches since the last step, by the model's calls; `backwards`, by its gradients, where
            these are seen, and `fresh`, those before the gradients were last cleared.
        rows: samples in the model's input at each call since the last step, in the first steps.
        unrecorded: the model was called in training mode without gradients since the last step.
        whole: this step is a whole one on all ranks, as far as can be known.
        skipped: steps that a loss scaler left out.
        trainer: it takes the steps; empty for a loop of one's own.
        own: the forward under way is the guard's own.
        near: this is one of the first steps; `rare`, it is step 0, 1, 2, 4, 8 …, where a check costs little
            over a long run.
        unchecked: checks that could not be made, and why; `notes`, harmless surprises.
        hooks: takes the hooks out of the script; `first_hooks`, those of the first steps alone.
    """

    def __init__(
        self, plan: Plan, unchecked: list[str], notes: list[str], process_group: dist.ProcessGroup | None
    ) -> None:
        self.plan, self.unchecked, self.notes, self.group = plan, unchecked, notes, process_group
        self.start: int | Fraction = plan.moves[-1].step if plan.moves else 0
        self.since, self.micro, self.backwards, self.fresh, self.skipped = 0, 0, 0, 0, 0
        self.own, self.near, self.rare, self.whole, self.unrecorded = False, True, True, False, False
        self.rows, self.trainer = list[int](), ""
        self.hooks, self.first_hooks = ExitStack(), ExitStack()
        distributed = dist.is_available() and dist.is_initialized()
        self.ranks = dist.get_world_size(process_group) if distributed else 1
        self.rank = dist.get_rank(process_group) if distributed else 0
        self._control: Any = None
        if self.ranks > 1:  # Objects cross by gloo, whatever the gradients use.
            members = None if process_group is None else dist.get_process_group_ranks(process_group)
            self._control = dist.new_group(
                members,
                timeout=_patience(process_group),
                backend="gloo",
                use_local_synchronization=members is not None,
            )
        planned = plan.data_parallel or 1
        if self.ranks != planned:
            self.stop(Cause.ANOTHER_WORLD_SIZE, f"{self.ranks} data-parallel ranks, {planned} planned")
        self._key = self.exchange("key", uuid.uuid4().hex)[0]  # the store outlives this training
        self.planned = [int(n) for n in plan.micro_batches(self.rank)]

    @property
    def step(self) -> int:
        """The next optimizer step, counted as the plan counts."""
        return int(self.start) + self.since

    def advance(self) -> None:
        """Goes on to the next step. Flags that are read many times in a step are set here, once."""
        self.since, self.micro, self.backwards, self.fresh = self.since + 1, 0, 0, 0
        self.rows.clear()
        self.unrecorded = False
        self.near, self.rare = self.since < CLOSE_STEPS, not self.since & (self.since - 1)

    def exchange(self, tag: str, value: Any, kind: Any = Any) -> list[Any]:
        """Returns all ranks' values of type `kind`; stops if ranks are at different steps or checks."""
        if self.ranks == 1:
            return [value]
        try:
            answers = gather_values(((self.since, tag), value), self._control, tuple[tuple[int, str], kind])
        except RuntimeError as error:
            cause = either(Cause.DEAD_RANK.likely(), Cause.UNEQUAL_STEPS.likely())
            raise GuardError(self.step, cause, f"no answer at {tag}: {error}") from error
        if ranks := differing([place for place, _ in answers]):
            steps = ", ".join(f"{since:,} at {check}" for (since, check), _ in answers[:8])
            self.stop(Cause.UNEQUAL_STEPS, f"the ranks have taken different numbers of steps: {steps}", ranks)
        return [value for _, value in answers]

    def unlike(self, name: str, tensors: Sequence[Tensor]) -> list[int]:
        """Lists the ranks with other tensors than most ranks, or all ranks where no majority agrees.

        Where a GPU has no room to read the tensors, none is listed, and the comparison is unchecked.
        """
        room = all(has_room(tensor.device, checksum_bytes(tensors)) for tensor in tensors[:1])
        sums = self.exchange(name, checksum(tensors) if room else None, tuple[int, int] | None)
        if None not in sums:
            return differing(sums)
        self.leave(f"equal {name} on all ranks: no room on a GPU to read them")
        return []

    def leave(self, text: str) -> None:
        """Leaves something unchecked: said once."""
        if text not in self.unchecked:
            self.unchecked.append(text)

    def note(self, text: str) -> None:
        """Notes something harmless: said once, by rank 0."""
        if text not in self.notes:
            self.notes.append(text)
            if self.rank == 0:
                warnings.warn(f"isobatch guard: {text}", stacklevel=2)

    def witnesses(self, name: str) -> list[int]:
        """Returns the ranks with the same fault within some seconds, where each rank looks by itself.

        None are listed if all have it, or there is one rank. The step's all-reduce keeps ranks together, so a
        rank without the fault need not answer.
        """
        if self.ranks == 1:
            return []
        store = dist.distributed_c10d._get_default_store()
        keys = [f"isobatch-guard/{self._key}/{name}/{self.step}/{rank}" for rank in range(self.ranks)]
        store.set(keys[self.rank], "")
        end = time.monotonic() + WITNESS_SECONDS
        while True:
            seeing = [rank for rank, key in enumerate(keys) if store.check([key])]
            if len(seeing) == self.ranks:
                return []
            if time.monotonic() > end:
                return seeing
            time.sleep(WITNESS_SECONDS / 40)

    def most(self, tensor: Any) -> Any:
        """Takes the element-wise maximum over ranks, in place."""
        if self.ranks > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tensor

    def stop(
        self, why: Cause | Diagnosis, text: str, ranks: Sequence[int] = (), *, step: int | None = None
    ) -> NoReturn:
        """Ends the training. Ranks are named only where the others are right."""
        named = tuple(ranks) if len(ranks) < self.ranks else ()
        raise GuardError(self.step if step is None else step, why, text, named, self.trainer)


def _patience(process_group: dist.ProcessGroup | None) -> timedelta | None:
    """Returns the training's own time limit for a late rank; None, torch's default, if unknown."""
    group: Any = process_group or dist.group.WORLD
    try:
        timeout: timedelta = max(
            group._get_backend(device).options._timeout for device in group._device_types
        )
    except (AttributeError, RuntimeError):
        return None
    return timeout


def has_room(device: torch.device, needed: int) -> bool:
    """Tells whether a GPU has this number of bytes to spare, free or unused by the allocator."""
    if device.type != "cuda":
        return True
    return free_on_gpu(device) >= needed


def outside_of_graphs(hook: Hook) -> Hook:
    """Keeps a hook out of the graphs of torch.compile."""
    return cast(Hook, torch.compiler.disable(hook))  # type: ignore[no-untyped-call]


def recorded() -> bool:
    """Tells whether a call is recorded, not run: by torch.jit.trace, by an export, or with fake tensors."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return torch.jit.is_tracing() or torch.compiler.is_compiling() or fake is not None


class CallHook:
    """Calls hook(model, args, kwargs) before each call of a model, outside of its graph if it is compiled.

    A saved, copied or scripted model is without it: what these take is looked up in the model itself first.
    """

    def __init__(self, model: nn.Module, hook: Callable[[nn.Module, Any, Any], None]) -> None:
        self._model = model
        self._compiled = compiled = model._compiled_call_impl
        self._handle: Any = None
        if compiled is None:
            self._handle = model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
            # The methods are of the model alone, not of its class: no other model is concerned.
            self._own = {"__getstate__": self._state, "__prepare_scriptable__": self._unwatched}
            self._own = {name: method for name, method in self._own.items() if name not in vars(model)}
            vars(model).update(self._own)
            return

        def called(*args: Any, **kwargs: Any) -> Any:
            hook(model, args, kwargs)
            return compiled(*args, **kwargs)

        self._called = model._compiled_call_impl = called

    def _state(self) -> Any:
        """Returns the model's state to save or copy."""
        kind: Any = type(self._model)
        state = kind.__getstate__(self._model)
        if isinstance(state, dict):
            state = {name: value for name, value in state.items() if name not in self._own}
            for name in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
                hooks = state.get(name, {})
                state[name] = type(hooks)(
                    (key, value) for key, value in hooks.items() if key != self._handle.id
                )
        return state

    def _unwatched(self) -> nn.Module:
        """Returns a copy of the model for torch.jit.script, with the same weights."""
        return copy.copy(self._model)

    def remove(self) -> None:
        """Removes the hook."""
        if self._handle is not None:
            self._handle.remove()
            for name in self._own:
                vars(self._model).pop(name, None)
        elif self._model._compiled_call_impl is self._called:
            self._model._compiled_call_impl = self._compiled


def inner(model: nn.Module) -> nn.Module:
    """Returns the model inside of DDP, and of torch.compile around it."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def sharded(model: nn.Module) -> bool:
    """Tells whether each rank holds its own part of the weights (fully_shard, FullyShardedDataParallel)."""
    return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules())


def divisor(model: nn.Module, ranks: int) -> float:
    """Returns fully_shard's divisor of the sum over ranks: their number, or a factor of the script's."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            # Older versions of torch have one group.
            groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            factors = [getattr(group, "gradient_divide_factor", None) for group in groups]
            if factors[0] is not None:
                return float(factors[0])
    return float(ranks)


def reentrant(loss: Tensor) -> bool:
    """Tells whether the older kind of activation checkpoint is in a graph: it refuses torch.autograd.grad."""
    nodes, visited = [loss.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        visited.add(node)
        nodes.extend(following for following, _ in node.next_functions)
    return False


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a tensor, made dense."""
    return dense(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
