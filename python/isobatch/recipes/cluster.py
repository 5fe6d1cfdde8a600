"""The hardware to plan for, and its common ground with a recipe: plain numbers, and errors by field."""

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import msgspec

from isobatch import _core
from isobatch.errors import MAX_SHOWN_FAULTS, InputError, missing, raise_all, together, unknown
from isobatch.limits import plain, plain_whole, whole_fields
from isobatch.recipes.names import product_of

if TYPE_CHECKING:
    from msgspec import StructMeta
else:
    StructMeta = type(msgspec.Struct)


NODE_GPUS = 8
"""GPUs of a node where nothing else is said."""


class _Named(StructMeta):
    """Makes records with one InputError for all unknown and missing fields."""

    if not TYPE_CHECKING:  # type checkers know the fields

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                return super().__call__(*args, **fields)
            except TypeError:
                if args:
                    raise
                refuse_names(cls, fields)
                raise


def refuse_names(cls: "type[Record]", names: Collection[str]) -> None:
    """Refuses names of no field of a record, and names the missing fields, in one InputError."""
    known, errors = (*cls.__struct_fields__, *cls.elsewhere), list[InputError]()
    for name in names:
        if name in cls.elsewhere:
            errors.append(InputError(f"{name} {cls.elsewhere[name]}", field=name))
        elif name not in cls.__struct_fields__:
            is_listed = len(errors) < MAX_SHOWN_FAULTS  # to find the nearest of all names takes a millisecond
            errors.append(no_field(name, known) if is_listed else InputError("unknown", field=str(name)))
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in names:
            todo = _how(names) if field.name == "effective_batch" else f"{cls.__name__} needs it"
            errors.append(missing(field.name, todo))
    raise_all(errors)


def no_field(name: Any, known: Collection[str]) -> InputError:
    """Returns the error of an unknown field."""
    if any(setting == name for setting, record, _ in _core.fields() if record == "settings"):
        return InputError(f"unknown field {name!r}: it is a setting, and goes beside the recipe", field=name)
    return unknown("field", name, known, field=str(name))


def _how(names: Collection[str]) -> str:
    """Says how to give the effective batch where it is missing."""
    factors = product_of(names)
    if not factors:
        return "Recipe needs it"
    product = " × ".join(factors)
    values: list[Any] = [names.get(factor) for factor in factors] if isinstance(names, Mapping) else []
    if len(values) == 3 and "model_parallel" not in names and all(type(value) is int for value in values):
        product = f"effective_batch={math.prod(values)}, which is {product}"
    return (
        f"give {product}, or batch_per_gpu instead of {factors[0]}, with gpus and accumulation "
        "(Recipe.from_gpus)"
    )


P = ParamSpec("P")
T = TypeVar("T")


def named_arguments(method: Callable[P, T]) -> Callable[P, T]:
    """Wraps a method of keywords: missing arguments and unknown names are one InputError."""
    signature = inspect.signature(method)
    keywords = (
        parameter for parameter in signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
    )
    required = [parameter.name for parameter in keywords if parameter.default is parameter.empty]

    @functools.wraps(method)
    def call(*args: P.args, **fields: P.kwargs) -> T:
        if len(args) == 1 and not fields.keys() >= set(required):
            known = (*signature.parameters, *getattr(args[0], "__struct_fields__", ()))
            errors = [no_field(name, known) for name in fields if name not in known]
            absent = (name for name in required if name not in fields)
            raise together([*errors, *(missing(name, f"{method.__name__} needs it") for name in absent)])
        return method(*args, **fields)

    return call


class Record(
    msgspec.Struct, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True, metaclass=_Named
):
    """A record of plain Python numbers."""

    elsewhere: ClassVar[dict[str, str]] = {}
    """Names that people look for here, and where they belong."""

    def __post_init__(self) -> None:
        wholes = whole_fields()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            number = plain_whole(value) if name in wholes else plain(value)
            if number is not value:
                msgspec.structs.force_setattr(self, name, number)


class Cluster(
    Record, frozen=True, kw_only=True, dict=True, forbid_unknown_fields=True, repr_omit_defaults=True
):
    """A shape of hardware.

    Args:
        nodes, gpus_per_node: their product is the world size.
        model_parallel, expert_parallel: GPUs that hold one replica, and one full set of experts, here; None:
            as the recipe has it.
        gpu: the type's name.
        memory_gib: of one GPU.
        intra_gb_s, inter_gb_s: bus bandwidth of an all-reduce inside a node, and across nodes (a node's
            network bounds it), GB/s.
        latency_us: of one hop across nodes, microseconds.
        price_per_gpu_hour: in any currency; costs come out in the same.

    Raises:
        InputError: there is no such field. Values are checked when something is planned.

    >>> Cluster(nodes=8, gpus_per_node=8).world_size
    64
    """

    elsewhere: ClassVar[dict[str, str]] = {
        "gpus": (
            "is nodes × gpus_per_node: Cluster(nodes=1, gpus_per_node=16) has 16; plan also takes the number "
            "itself"
        )
    }

    nodes: int = 1
    gpus_per_node: int = 8
    model_parallel: int | None = None
    expert_parallel: int | None = None
    gpu: str | None = None
    memory_gib: float | None = None
    intra_gb_s: float | None = None
    inter_gb_s: float | None = None
    latency_us: float | None = None
    price_per_gpu_hour: float | None = None

    @property
    def world_size(self) -> int:
        """The number of GPUs, one process each."""
        return self.nodes * self.gpus_per_node
