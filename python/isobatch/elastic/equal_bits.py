"""The gradients of a run in chunks, and the digests of runs.

Each chunk's gradient is kept separate. The step's gradient is their sum in a tree of fixed order, bit for bit
the same at any number of ranks.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from isobatch.elastic.agreement import RankGroup
from isobatch.elastic.conditions import check_network, conditions_of
from isobatch.elastic.summation import GradientLayout, TreeSum
from isobatch.errors import InputError
from isobatch.training.chunks import Chunk

_VARIABLE = "ISOBATCH_CHUNK_DIGESTS"
"""The environment variable that names the folder for the chunks' digests: each rank writes a line for each
chunk, with its step, its number and the SHA-256 of its gradient.
"""
_NONDETERMINISTIC = "does not have a deterministic implementation"


class EqualBits:
    """The networks of a run in chunks."""

    in_use = False  # Whether any run of this process is in chunks: `isobatch same` asks.

    def __init__(self, ranks: RankGroup) -> None:
        EqualBits.in_use = True
        self._ranks = ranks
        folder = os.environ.get(_VARIABLE)
        self._digests = None if not folder else Path(folder) / f"rank-{ranks.rank}.txt"
        if self._digests is not None:
            self._digests.parent.mkdir(parents=True, exist_ok=True)
        self._networks: dict[nn.Module, _Network] = {}

    def wrap(self, net: nn.Module, *, send: bool) -> nn.Module:
        """Registers a network, with rank 0's values on all ranks if they are to be sent, and returns it."""
        if net in self._networks:
            return net
        facts: dict[str, Any] | InputError
        try:
            check_network(net)
            facts = conditions_of(net)
        except InputError as error:
            facts = error
        self._ranks.agree(facts, "bits depend on it: start all ranks alike")
        group: Any = None
        if self._ranks.size > 1:
            on_cpu = all(tensor.device.type == "cpu" for tensor in net.parameters())
            # Each network has its own group: ranks may begin the rounds of two networks in different orders.
            group = self._ranks.group() if on_cpu and not self._networks else dist.new_group()
            for tensor in (*net.parameters(), *net.buffers()) if send else ():
                dist.broadcast(tensor.detach(), 0, group)
        self._networks[net] = _Network(net, group, self._digests)
        return net

    @contextmanager
    def apart(self, net: nn.Module, chunk: Chunk) -> Iterator[None]:
        """Keeps a chunk's gradient separate; after the rank's last chunk the step's sum is in `.grad`."""
        network = self._networks.get(getattr(net, "_orig_mod", net))
        if network is None:
            raise InputError("micro.sync(model) needs the model of run.wrap(net) with chunk=")
        was_deterministic = torch.are_deterministic_algorithms_enabled()
        only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
        network.begin(chunk)
        torch.use_deterministic_algorithms(True)
        try:
            yield
        except RuntimeError as error:
            kernel, mark, _ = str(error).partition(_NONDETERMINISTIC)
            if not mark:
                raise
            raise InputError(
                f"{kernel.strip()} {mark}, which chunk= needs: replace it in the model"
            ) from error
        finally:
            torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warned)
        network.end(chunk)


class _Network:
    """A network, and the sum of the step under way."""

    def __init__(self, net: nn.Module, group: Any, digests: Path | None) -> None:
        self._net, self._group, self._digests = net, group, digests
        self._buffers = [(module, name) for module in net.modules() for name in module._buffers]
        self._norms = [module for module in net.modules() if isinstance(module, _NormBase)]
        self._parameters: list[nn.Parameter] = []
        self._before: list[Tensor | None] = []
        self._complete = True  # So far every chunk of this rank had a gradient for every parameter.
        self._sum: TreeSum | None = None

    def begin(self, chunk: Chunk) -> None:
        """Begins a chunk; the first one also begins the step's sum."""
        if self._sum is None:
            self._begin_step(chunk)
        elif any(parameter.grad is not None for parameter in self._parameters):
            raise InputError("backward was called outside of `with micro.sync(model)`: call it inside")
        for parameter in self._parameters:
            parameter.grad = None
        self._versions = self._buffer_versions()

    def _begin_step(self, chunk: Chunk) -> None:
        if any(norm.training for norm in self._norms):
            check_network(self._net)
        parameters = [parameter for parameter in self._net.parameters() if parameter.requires_grad]
        if [*map(id, parameters)] != [*map(id, self._parameters)]:
            self._parameters = parameters
            self._ones = torch.ones(len(parameters), device=parameters[0].device, dtype=parameters[0].dtype)
            ranks = 1 if self._group is None else dist.get_world_size(self._group)
            self._layout = GradientLayout([*parameters, self._ones], ranks)
        self._before = [parameter.grad for parameter in parameters]
        self._complete = True
        self._sum = TreeSum(self._layout, chunk.own, chunk.chunks, self._group)

    def end(self, chunk: Chunk) -> None:
        """Adds the chunk's gradient; after the rank's last chunk puts the step's sum into `.grad`."""
        assert self._sum is not None
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        if chunk.number is not None:
            self._check(gradients)
            present = [gradient is not None for gradient in gradients]
            dense = [
                torch.zeros_like(parameter) if gradient is None else gradient
                for parameter, gradient in zip(self._parameters, gradients, strict=True)
            ]
            if self._digests is not None:
                with self._digests.open("a") as file:
                    file.write(f"{chunk.step} {chunk.number} {_combine(dense)}\n")
            if all(present):
                dense.append(self._ones.clone())
            else:
                self._complete = False
                dense.append(self._ones.new_tensor(present))
            self._sum.add(chunk.number, dense)
        if chunk.last:
            *totals, counts = self._sum.result()
            self._sum = None
            self._put(totals, counts)

    def _put(self, totals: list[Tensor], counts: Tensor) -> None:
        """Adds the sums to `.grad`; parameters without a gradient in any chunk keep theirs."""
        used = [True] * len(totals) if self._complete else (counts > 0).tolist()
        rows = zip(self._parameters, totals, self._before, used, strict=True)
        for parameter, total, before, is_used in rows:
            if is_used:
                parameter.grad = total if before is None else before.add_(total)
            else:
                parameter.grad = before
        self._before = []

    def _check(self, gradients: list[Tensor | None]) -> None:
        if all(gradient is None for gradient in gradients):
            raise InputError("a chunk has no gradient: call backward inside of `with micro.sync(model)`")
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            raise InputError("chunk= does not support sparse gradients")
        rows = zip(self._buffers, self._versions, self._buffer_versions(), strict=True)
        for (module, name), before, now in rows:
            if before != now:
                raise InputError(
                    f"buffer {name!r} of {type(module).__name__} changes in forward: with chunk= it would "
                    "differ between ranks"
                )

    def _buffer_versions(self) -> list[tuple[int, int]]:
        buffers = (module._buffers.get(name) for module, name in self._buffers)
        return [(0, 0) if buffer is None else (id(buffer), buffer._version) for buffer in buffers]


# ---- digests ----


def digest(*parts: Any) -> str:
    """Returns the SHA-256 of networks and optimizers, without the optimizers' learning rate and settings.

    >>> net = torch.nn.Linear(2, 2)
    >>> before = digest(net)
    >>> _ = net.weight.data[0, 0].nextafter_(torch.tensor(9.0))
    >>> before != digest(net)
    True
    """
    states = [part.state_dict() for part in parts]
    return _combine(
        _leaves([state["state"] if {*state} == {"state", "param_groups"} else state for state in states])
    )


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for name in sorted(tree, key=str):
            yield from _leaves(tree[name])
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


def _combine(leaves: Iterable[Any]) -> str:
    """Hashes leaves in parallel threads: hashlib and copies from a GPU let other threads run."""
    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(_hash, leaves))).hexdigest()


def _hash(leaf: Any) -> bytes:
    if not isinstance(leaf, Tensor):
        return hashlib.sha256(repr(leaf).encode()).digest()
    kind = hashlib.sha256(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
    kind.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return kind.digest()
