"""isobatch: tune once, train the same at any GPU count."""

from isobatch._core import __version__
from isobatch._elastic import Elastic, ElasticMany, elastic, elastic_many
from isobatch._goodput import optimize_goodput
from isobatch.errors import InputError

__all__ = [
    "Elastic",
    "ElasticMany",
    "InputError",
    "__version__",
    "elastic",
    "elastic_many",
    "optimize_goodput",
]
