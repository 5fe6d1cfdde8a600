"""isobatch: tune once, train the same at any GPU count."""

from . import schedules

__all__ = ["schedules"]
