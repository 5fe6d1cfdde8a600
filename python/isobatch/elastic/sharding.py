"""The state of a sharded training (HSDP): a replica is a group of ranks with a shard each, and is sharded
anew for each crew, from its ranks' shards.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, debug, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from isobatch.elastic.group import connecting
from isobatch.elastic.messages import OUT, Circle, Held
from isobatch.elastic.training import TrainingState
from isobatch.errors import InputError, must_be
from isobatch.training.world import set_timeout

ShardBy: TypeAlias = Callable[[nn.Module, DeviceMesh], Any]
"""Applies fully_shard to a network, over a mesh of (replicate, shard)."""

_PART = "part of a DTensor"
"""The only key of a dict that replaces a DTensor without its mesh, as the mesh's groups end with the crew.
Its value: the local tensor, the dimension of each shard, shape and stride.
"""


class ShardedState(TrainingState):
    """A training state with one shard on each rank.

    A network from fully_shard is bound to one crew, by its groups and by leftovers of an interrupted pass. So
    for each crew the network is made again, from a copy without values, and gets this rank's shards. The
    network object stays the same, its modules and parameters do not.
    """

    def __init__(
        self, net: nn.Module, optimizer: Optimizer, extra: Mapping[str, Any], shard: ShardBy, shards: int
    ) -> None:
        super().__init__(net, optimizer, extra)
        self._shard, self.shards = shard, shards
        names = {parameter: name for name, parameter in net.named_parameters()}
        self._names = [
            [names.get(parameter, "") for parameter in group["params"]] for group in optimizer.param_groups
        ]
        if not all(name for group in self._names for name in group):
            raise InputError("optimizer must have parameters of net only: shard those of one network")
        self._plain = _without_values(net)
        self._mesh: DeviceMesh | None = None
        self._place = 0
        self._folded: Any = None
        self._sharded: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}  # Parameters and buffers until all are sharded for the first time.
        self._prepared: tuple[int, Any] | None = None

    def description(self) -> dict[str, Any]:
        """Returns facts shared by all ranks, with the number of shards."""
        return {**super().description(), "shards": self.shards}

    def extras(self) -> dict[str, Any]:
        """Returns the states of the training's extras."""
        states = super().extras()
        for name, state in states.items():
            if any(isinstance(leaf, DTensor) for leaf in tree_leaves(state)):
                raise InputError(
                    f"extra's {name} has a DTensor in its state, of a mesh that ends with the crew: hold "
                    "this rank's part, parameter.to_local(), in its place",
                    field="extra",
                )
        return states

    # ---- from crew to crew ----

    def unfold(self, lease: float, timeout: float) -> None:
        """Shards the network over this rank's replica in the new crew."""
        place, folded = dist.get_rank() % self.shards, self._folded
        self._mesh = _mesh(self.shards, self.device.type, lease, timeout)
        if folded is not None:
            _become(self.net, deepcopy(self._plain))
        else:
            parts = self.net.named_parameters, self.net.named_buffers
            self._whole = {name: tensor for part in parts for name, tensor in part(remove_duplicate=False)}
        self._shard(self.net, self._mesh)
        for name, parameter in self.net.named_parameters():
            if not isinstance(parameter, DTensor) or parameter.device_mesh != self._mesh:
                raise InputError(
                    f"shard must leave no parameter whole, and {name} is: call fully_shard(net, mesh=mesh) "
                    "in it, with the mesh that it is given",
                    field="shard",
                )
        if folded is None:
            self._deal_states()
        else:
            buffers, *shards = folded
            # If this rank had another shard before, it gets this shard from a replica that goes on.
            values, states = self.unpack(shards) if place == self._place else ({}, None)
            self._assign(values, self.unpack(buffers))
            self._set_parameters(dict(self.net.named_parameters()))
            if states is not None:
                self.optimizer.load_state_dict(states)
        self._sharded = dict(self.net.named_parameters(remove_duplicate=False))
        self._place, self._folded, self._whole = place, None, {}

    def fold(self) -> None:
        """Lets go of the crew's mesh, and keeps only this rank's shards."""
        if self._mesh is None:
            return
        if self._folded is None and not self._whole:  # Else a loss came before they were unfolded.
            buffers = dict(self.net.named_buffers(remove_duplicate=False))
            # An interrupted pass leaves whole layers' parameters in the network, so the shards noted by
            # `unfold` are used.
            self.extras()
            self._folded = self.pack([buffers, self._sharded, self.optimizer.state_dict()])
        self._sharded = {}
        _become(self.net, deepcopy(self._plain))
        if self._whole:
            self._put(self._whole)
        else:
            self._set_parameters(dict(self.net.named_parameters()))
            self.optimizer.state.clear()
        getattr(self._mesh, "_pg_registry", {}).clear()
        self._mesh = None
        # This cache has meshes of earlier crews, which compare equal to later ones.
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        FakeTensorMode.cache_clear()  # Else this cache grows with each crew.

    def pack(self, tree: Any) -> Any:
        """Replaces DTensors by parts."""
        return tree_map_only(DTensor, _part_of, tree)

    def unpack(self, tree: Any) -> Any:
        """Replaces parts by DTensors of this crew."""
        return tree_map(
            lambda leaf: self._sharded_again(*leaf[_PART]) if _is_part(leaf) else leaf, tree, is_leaf=_is_part
        )

    def _sharded_again(self, local: torch.Tensor, dimensions: Any, shape: Any, stride: Any) -> DTensor:
        placements = [Replicate() if dimension is None else Shard(dimension) for dimension in dimensions]
        form: dict[str, Any] = {"shape": torch.Size(shape), "stride": tuple(stride), "run_check": False}
        return DTensor.from_local(local.to(self.device), self._mesh, placements, **form)

    def _assign(self, values: dict[str, Any], buffers: Mapping[str, Any]) -> None:
        """Gives parameters without storage their values, or else empty storage; and buffers their values."""
        parameters: dict[int, nn.Parameter] = {}
        for name, parameter in self.net.named_parameters(remove_duplicate=False):
            if id(parameter) not in parameters:
                if (value := values.get(name)) is None:
                    value = torch.empty_like(parameter, device=self.device)
                parameters[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            values[name] = parameters[id(parameter)]
        self.net.load_state_dict(values, strict=False, assign=True)
        self._put(buffers)  # load_state_dict skips non-persistent buffers.

    def _put(self, tensors: Mapping[str, Any]) -> None:
        """Sets the network's parameters or buffers to these tensors."""
        for name, tensor in tensors.items():
            module, _, own = name.rpartition(".")
            setattr(self.net.get_submodule(module), own, tensor)

    def _set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Gives the optimizer the network's parameters; their states move with them."""
        for group, names in zip(self.optimizer.param_groups, self._names, strict=True):
            for at, name in enumerate(names):
                state = self.optimizer.state.pop(group["params"][at], None)
                group["params"][at] = parameters[name]
                if state is not None:
                    self.optimizer.state[parameters[name]] = state

    def _deal_states(self) -> None:
        """Shards the optimizer's state of a checkpoint like its parameters."""
        self._set_parameters(dict(self.net.named_parameters()))
        for parameter in self._parameters():
            state = self.optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[name] = distribute_tensor(
                        value, parameter.device_mesh, parameter.placements, src_data_rank=None
                    )

    # ---- a step that some ranks have applied ----

    def prepare(self, step: int) -> None:
        """Keeps a step's gradients, for `settle` to apply if another rank has applied the step."""
        self._prepared = step, self.pack([parameter.grad for parameter in self._parameters()])

    def settle(self, own: Held, circle: Circle) -> Held:
        """Catches up with a rank one step ahead, if this rank was about to apply the same step. The body's
        code after the optimizer's step is not repeated: a rank with `extra` gets another replica's state."""
        every = circle.held("settled", own)
        ahead = max(every, key=lambda state: (state.trained, state.step))
        prepared, self._prepared = self._prepared, None
        if not own.trained or own.step == ahead.step:
            return own
        if prepared is None or prepared[0] != ahead.step or self.extra:
            return own._replace(step=OUT, trained=False)
        for parameter, gradient in zip(self._parameters(), self.unpack(prepared[1]), strict=True):
            parameter.grad = gradient
        self.torn = True
        type(self.optimizer).step(self.optimizer)
        self.torn = False
        self.optimizer.zero_grad()
        return Held(ahead.step, True, self.checksum(), ahead.run)

    def _parameters(self) -> list[Any]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _is_part(leaf: Any) -> bool:
    return isinstance(leaf, dict) and [*leaf] == [_PART]


def _part_of(whole: DTensor) -> dict[str, Any]:
    kinds = [type(placement) for placement in whole.placements]
    if not {*kinds} <= {Shard, Replicate}:
        raise InputError(f"a DTensor must be sharded or replicated, got {kinds[0].__name__}")
    dimensions = [getattr(placement, "dim", None) for placement in whole.placements]
    return {_PART: [whole.to_local().detach(), dimensions, [*whole.shape], [*whole.stride()]]}


def check_shards(shard: ShardBy | None, shards: int, ranks: int, min_ranks: int | None) -> None:
    """Refuses numbers of ranks without whole replicas, or with only a single replica."""
    if type(shards) is not int or shards < 1:
        raise must_be("a whole number from 1", shards, field="shards")
    if (shard is None) != (shards == 1):
        raise InputError(
            "shard and shards go together: pass shard=, which calls fully_shard(net, mesh=mesh), and "
            "shards=, the ranks of a replica, from 2",
            field="shard" if shard is None else "shards",
        )
    for field, count in ("ranks", ranks), ("min_ranks", min_ranks):
        if count is not None and count % shards:
            raise must_be(f"a multiple of shards, {shards}", count, field=field)
    if shard is not None and ranks == shards:
        raise InputError(
            f"ranks must be 2 replicas or more of {shards} shards, got {ranks}: a lost shard of the only "
            "replica is lost; train with ElasticRun and go on from a checkpoint",
            field="ranks",
        )


def _mesh(shards: int, device: str, lease: float, timeout: float) -> DeviceMesh:
    """Forms this rank's two groups: the ranks with the same shard, and the ranks of its replica."""
    ranks = torch.arange(dist.get_world_size()).view(-1, shards)
    row, column = divmod(dist.get_rank(), shards)
    groups: list[Any] = []
    for members in ranks[:, column].tolist(), ranks[row].tolist():
        groups.append(dist.new_group(members, timeout=connecting(lease), use_local_synchronization=True))
        groups[-1].of_run = True
        set_timeout(timedelta(seconds=timeout), groups[-1])
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def _without_values(net: nn.Module) -> nn.Module:
    """Copies a network, leaving its parameters without storage."""
    memo: dict[int, Any] = {}
    for parameter in net.parameters():
        empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        empty.__dict__.update(parameter.__dict__)
        memo[id(parameter)] = empty
    try:
        return deepcopy(net, memo)
    except Exception as error:  # A user's module may raise anything.
        raise InputError(f"net cannot be copied: {type(error).__name__}: {error}", field="net") from None


def _become(net: nn.Module, template: nn.Module) -> None:
    """Turns a network into a template's, in place: the script's reference stays valid in each crew."""
    _empty(net)
    net.__class__ = template.__class__
    net.__dict__.clear()
    net.__dict__.update(template.__dict__)


def _empty(net: nn.Module) -> None:
    """Empties sharded modules: they and fully_shard's states refer to each other and to the crew's groups."""
    # torch's private table of sharded modules, imported only here.
    from torch.distributed._composable_state import _get_module_state, _module_state_mapping

    for module in [*net.modules()]:
        if (state := _get_module_state(module)) is not None:
            # An interrupted pass may have left whole layers in the first one.
            for holder in getattr(state, "_comm_ctx", state), state, module:
                vars(holder).clear()
            del _module_state_mapping[module]
