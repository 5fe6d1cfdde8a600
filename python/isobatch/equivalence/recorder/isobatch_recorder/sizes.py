"""The batch size of a loader in the code: kept as typed, and set to the split's where it trains."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any

from torch.utils.data import DataLoader

from .record import Recorder
from .typed import SET

_LIBRARIES = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric")


def install(recorder: Recorder) -> None:
    """Watches the making of torch's loaders."""
    initialize: Any = DataLoader.__init__
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        arguments = bound.arguments
        sampler = arguments.get("batch_sampler")
        size = arguments.get("batch_size", 1) if sampler is None else getattr(sampler, "batch_size", None)
        place, is_own = _place(self)
        if type(size) is not int or not is_own:
            initialize(self, *args, **kwargs)
            return
        entry = {
            "place": place,
            "size": size,
            "dataset": describe(arguments["dataset"]),
            "passes": 0,
            "id": id(arguments["dataset"]),
        }
        recorder.typed.loaders.append(entry)
        new = _size_for(recorder, entry)
        if new is not None and new != size:
            recorder.note(f"{type(self).__name__}(batch_size={size}) {SET}")
            if sampler is None:
                arguments["batch_size"] = new
            else:
                sampler.batch_size = new
        initialize(*bound.args, **bound.kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def describe(dataset: Any) -> str:
    """Names a dataset by its class and its rows."""
    try:
        rows = f" of {len(dataset)} rows"
    except (TypeError, NotImplementedError, AttributeError):
        rows = ""
    return f"{type(dataset).__name__}{rows}"


def maker(recorder: Recorder, dataset: Any, size: Any) -> dict[str, Any] | None:
    """Returns the entry of the code's own loader of a dataset, for a library's copy of it."""
    ids = set()
    while dataset is not None and id(dataset) not in ids:
        ids.add(id(dataset))
        dataset = getattr(dataset, "dataset", None)  # the shard of an iterable dataset holds the whole one
    entries = [entry for entry in recorder.typed.loaders if entry["id"] in ids]
    return next((entry for entry in entries if entry["size"] == size), entries[0] if entries else None)


def _size_for(recorder: Recorder, entry: dict[str, Any]) -> int | None:
    """Returns the batch size of the split for the loader of the training, None for another one."""
    key = recorder.settings["loader"]
    if key is None or not recorder.typed.sets("loader"):
        return None
    if any(value is not None and entry[name] != value for name, value in key.items()):
        return None
    split = recorder.settings["split"]
    size: int = split["micro_batch"] * (split["ranks"] if recorder.typed.splits_batches else 1)
    return size


def _place(loader: Any) -> tuple[str, bool]:
    """Returns the line of a loader's making, and whether it is the code's own, not a library's."""
    frame = sys._getframe(2)
    # Of a class made from DataLoader, or of Lightning's wrapper of its __init__.
    while frame.f_back is not None and any(value is loader for value in frame.f_locals.values()):
        frame = frame.f_back
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    libraries = tuple(os.path.dirname(file) + os.sep for file in files if file)
    file = frame.f_code.co_filename
    return f"{file}:{frame.f_lineno}", not file.startswith(libraries)
