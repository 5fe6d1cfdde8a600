"""What a notebook shows of a value, and its figures as a chart or a data frame: made by `isobatch.report`, which is found by its name,
since it knows the values and they must not know it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Showing:
    """A value that a notebook shows as a small table."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """HTML for a notebook's cell; None without the extra `report`: the notebook then shows the text."""
        try:
            found: str = import_module("isobatch.report.cell").html_of(self)
        except ModuleNotFoundError:
            return None
        return found

    def to_pandas(self) -> Any:
        """The figures as a `pandas.DataFrame`.

        Raises:
            InputError: pandas is not installed.
        """
        return import_module("isobatch.report.frames").frame_of(self)


class Plotting(Showing):
    """A value that has a chart, too."""

    __slots__ = ()

    def plot(self) -> Any:
        """The value as an `altair.Chart`, which notebooks draw, and whose `save` writes HTML, SVG or PNG.

        Raises:
            InputError: the extra `report` is not installed, or there is nothing to draw.
        """
        return import_module("isobatch.report.plots").chart_of(self)
