"""isobatch: tune once, train the same at any GPU count."""

from . import schedules
from .schedules._matrix import schedule_matrix

__all__ = ["schedule_matrix", "schedules"]
