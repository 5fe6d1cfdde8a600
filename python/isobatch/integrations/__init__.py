"""isobatch inside other people's training code. Each part imports its library when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.integrations import elastic_ray, lightning, optax, torch, transformers

__all__ = ["elastic_ray", "lightning", "optax", "torch", "transformers"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'isobatch.integrations' has no attribute {name!r}")
    return import_module(f"isobatch.integrations.{name}")


def __dir__() -> list[str]:
    return __all__
