"""The model: called by its wrapper, in training mode, with equal weights on all ranks, gradients cleared."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from isobatch.equivalence.laws import Cause
from isobatch.equivalence.tensors import tensors_in
from isobatch.guard.optimizer import Optimizers
from isobatch.guard.run import CallHook, Run, inner, local, outside_of_graphs, recorded, sharded
from isobatch.words import few_ranks

IN_EVAL_MODE = "the model trains in eval mode: part of it is frozen, or nothing in it depends on the mode"
WRITTEN = "weights that are written between the optimizer's steps: what is written is not compared"
UNSEEN = (
    "the gradient of some steps is not of calls of the attached model: these steps are not checked in full"
)


class ModelWatch:
    """Watches the calls of a wrapped model, and of a new wrapper, as DDP needs after an unfreezing."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        on_forward: Callable[[], None],
        on_inputs: Callable[[tuple[Any, ...], dict[str, Any]], None],
    ) -> None:
        """Hooks into calls; `on_inputs` gets the arguments of the inner model's, the guard's own too."""
        self._run, self.model, self._on_forward, self._on_inputs = run, model, on_forward, on_inputs
        self.inner, self.replicated = inner(model), not sharded(model)
        self._in_eval_mode = self._in_train_mode = self._bypassed = False
        self._eval_matters: bool | None = None  # unknown until a call in eval mode
        params = [p for p in self.inner.parameters() if p.requires_grad]
        self._smallest = min(params, key=Tensor.numel, default=None)
        self._stepped = _version(self._smallest)
        self._written: int | None = None  # how often the smallest parameter was written when a step ended
        self._hook = self._hooked(model, self._forward)
        if self.inner is not model:
            self._hooked(self.inner, self._inner_forward)

    def _hooked(self, model: nn.Module, hook: Callable[[nn.Module, Any, Any], None]) -> CallHook:
        call_hook = CallHook(model, hook)
        self._run.hooks.callback(call_hook.remove)
        return call_hook

    @outside_of_graphs
    def _inner_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes calls past the wrapper, and finds a new wrapper."""
        if model is not self.inner or recorded():
            return
        if not self._run.own and torch.is_grad_enabled():
            wrapper = getattr(DistributedDataParallel, "_active_ddp_module", None)
            if wrapper is None:
                self._bypassed = True
            elif wrapper.module is self.inner and wrapper is not getattr(self.model, "_orig_mod", self.model):
                self._hook.remove()
                self.model, self._hook = wrapper, self._hooked(wrapper, self._forward)
                self._called(args, kwargs)  # this call was past the new wrapper's hook already
        self._on_inputs(args, kwargs)

    @outside_of_graphs
    def _forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model is self.model and not recorded():
            self._called(args, kwargs)
            if model is self.inner:
                self._on_inputs(args, kwargs)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run = self._run
        # The wrapper's mode says nothing: after a validation, Lightning restores only the inner model's.
        if run.own or not torch.is_grad_enabled():
            run.unrecorded = run.unrecorded or (not run.own and self.inner.training)
            return
        if not self.inner.training:
            self._in_eval_mode = True
            if self._eval_matters is None:
                self._eval_matters = _mode_matters(self.inner)
            if self._eval_matters:
                return
        else:
            self._in_train_mode = True
        if run.near:
            sizes = [len(tensor) for tensor in tensors_in([*args, *kwargs.values()]) if tensor.dim()]
            run.rows.append(max(sizes[:1], default=0))
        self._on_forward()

    def stepping(self) -> None:
        """Notes writes since the last step ended; those within a step are the optimizer's own."""
        if self._smallest is not None and self._written not in (None, self._smallest._version):
            self._written = None
            self._run.leave(WRITTEN)

    def stepped(self) -> None:
        """Notes the end of a step."""
        if self._smallest is not None:
            self._written = self._smallest._version

    def check_calls(self, batches: int) -> None:
        """Stops at an optimizer step on a gradient without calls of the wrapper in training mode.

        `batches`: those of the loader that the step is on, where the calls do not tell the micro-batches.
        """
        run, in_eval_mode, bypassed = self._run, self._in_eval_mode, self._bypassed
        trains, stepped = self._in_train_mode, self._stepped
        self._in_eval_mode = self._in_train_mode = self._bypassed = False
        self._stepped = _version(self._smallest)
        if run.micro:
            if in_eval_mode and not trains:
                run.note(IN_EVAL_MODE)
            return
        if in_eval_mode:
            run.stop(Cause.EVAL_MODE, "the forward passes before this step were in eval mode")
        if not any(p.grad is not None for p in self.inner.parameters()):
            return
        if bypassed:
            run.stop(Cause.WRAPPER_BYPASSED, "the wrapper's forward was not called before this step")
        if run.since and not run.backwards and self._stepped == stepped:
            run.stop(Cause.STEPPED_TWICE, "no forward pass since the last optimizer step")
        run.note(UNSEEN)
        run.micro = batches or run.backwards - run.fresh or len(run.planned)

    def check_weights(self) -> None:
        """Compares the ranks' weights."""
        run = self._run
        if not self.replicated:
            return
        ranks = run.unlike("weights", [local(p) for p in self.inner.parameters()])
        if len(ranks) == run.ranks:
            why = Cause.OTHER_WEIGHTS.likely("they differ, and no majority tells which are right")
            run.stop(why, "the ranks' weights differ")
        elif ranks:
            text = f"the weights of {few_ranks(ranks)} are not those of the others"
            run.stop(Cause.OTHER_WEIGHTS.likely(few_ranks(ranks)), text, ranks)


def _version(param: Tensor | None) -> tuple[int, int]:
    """Returns a number of a parameter's gradient and of its writes: the same if it is the same gradient."""
    grad = None if param is None else param.grad
    return (0, 0) if grad is None else (id(grad), grad._version)


def _mode_matters(model: nn.Module) -> bool:
    """Tells whether training mode is another training: all trains, with dropout or batch norm."""
    if any(not p.requires_grad for p in model.parameters()):
        return False
    return any(
        (isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats)
        or any("drop" in name and isinstance(rate, float) and rate > 0 for name, rate in vars(module).items())
        or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        for module in model.modules()
    )


def _is_zero(grad: Tensor) -> bool:
    return not bool((grad._values() if grad.is_sparse else grad).any())


class ZeroGradCheck:
    """Notices gradients left over from the last step.

    A few parameters are looked at: if one has a gradient whenever another arrives, nobody cleared it. One
    that is 0 by itself, as of a critic's last bias, tells nothing, and a script may clear one itself. An
    adversary's pass may add to the last step's, if they are cleared after that.
    """

    def __init__(self, run: Run, model: nn.Module, optimizers: Optimizers) -> None:
        self._run, owned = run, optimizers.owned()
        self._kept, self._cleared = set[int](), set[int]()
        params = [p for p in model.parameters() if p.requires_grad]
        params = [p for p in params if id(p) in owned] or params
        matrices = [p for p in params if p.dim() > 1] or params
        chosen = (min(params, key=Tensor.numel), min(matrices, key=Tensor.numel), matrices[0])
        self._params = list({id(p): p for p in chosen}.values())
        self._zero = set[int]()  # the ones with a gradient of 0 at the last step
        # A sharded parameter's hook is never called: then this check sees nothing.
        for p in self._params:
            handle = p.register_hook(functools.partial(self._arriving, p))  # type: ignore[no-untyped-call]
            run.first_hooks.callback(handle.remove)

    @outside_of_graphs
    def _arriving(self, param: Tensor, _: Tensor) -> None:
        run, before = self._run, param.grad
        if not run.since or run.own:
            return
        if before is None or _is_zero(before):
            self._cleared |= {id(param)} - (set() if before is None else self._zero)
        elif id(param) not in self._cleared:
            self._kept.add(id(param))

    def check(self) -> None:
        """Checks before an optimizer step."""
        uncleared = self._kept - self._cleared
        self._kept.clear()
        self._cleared.clear()
        self._zero = {id(p) for p in self._params if p.grad is not None and _is_zero(p.grad)}
        if uncleared:
            text = "the first gradient of this step was added to the last step's, which zero_grad had not"
            self._run.stop(Cause.GRADIENTS_KEPT, f"{text} cleared")
