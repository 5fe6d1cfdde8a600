"""isobatch inside other people's training code. Each part imports its library when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.integrations import elastic_lightning as elastic_lightning
    from isobatch.integrations import elastic_ray as elastic_ray
    from isobatch.integrations import elastic_transformers as elastic_transformers
    from isobatch.integrations import lightning as lightning
    from isobatch.integrations import optax as optax
    from isobatch.integrations import torch as torch
    from isobatch.integrations import transformers as transformers

__all__ = [
    "elastic_lightning",
    "elastic_ray",
    "elastic_transformers",
    "lightning",
    "optax",
    "torch",
    "transformers",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'isobatch.integrations' has no attribute {name!r}")
    return import_module(f"isobatch.integrations.{name}")


def __dir__() -> list[str]:
    return __all__
