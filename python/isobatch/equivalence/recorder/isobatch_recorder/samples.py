"""The samples of a pass: a hash of each row that the outermost module gets, and its tokens."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from . import first_weights
from .after_import import AfterImport
from .details import read_inputs
from .record import Recorder

PIPELINING = "torch.distributed.pipelining.stage"


def install(recorder: Recorder) -> None:
    """Watches the calls of the outermost module in training."""
    call = torch.nn.Module.__call__
    depth = 0

    def call_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        trains = depth == 0 and _is_in_training(self) and torch.is_grad_enabled() and not recorder.in_backward
        parameter = next(self.parameters(), None) if trains and not recorder.busy else None
        if parameter is not None and not parameter.is_meta:  # a count of operations trains nothing
            recorder.forwards.append(read_pass(args, kwargs))
            if recorder.settings["details"]:
                recorder.forwards[-1]["inputs"] = read_inputs(self, args, kwargs)
            if not any(model is self for model in recorder.models):
                recorder.models.append(self)
            for name, parameter in self.named_parameters():
                recorder.names.setdefault(
                    id(parameter), name.replace("module.", "").replace("_orig_mod.", "")
                )
            if recorder.settings["weights"] and recorder.optimizers and not recorder.has_weights:
                recorder.has_weights = True
                first_weights.give(recorder, self)
        depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            depth -= 1

    torch.nn.Module.__call__ = call_module  # type: ignore[method-assign]
    sys.meta_path.insert(0, AfterImport(PIPELINING, partial(_watch_stages, recorder=recorder)))


def _watch_stages(module: Any, recorder: Recorder) -> None:
    """Notes a pipeline, since it goes forward ahead; its pass to learn shapes is none of the training."""
    stage = module.PipelineStage
    initialize = stage.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        recorder.goes_ahead = True

    stage.__init__ = __init__
    for name in ("_forward_metadata_inference", "_backward_metadata_inference"):
        if (probe := getattr(stage, name, None)) is not None:
            setattr(stage, name, recorder.unseen()(probe))


def _is_in_training(module: torch.nn.Module) -> bool:
    """Tells training from evaluation, by a wrapper's model.

    Lightning puts a wrapper into evaluation and only its model back into training; DeepSpeed's engine stays
    in training when its model is evaluated.
    """
    wrapped = module._modules.get("module")
    if wrapped is not None:
        return wrapped.training
    return any(part.training for part in (module, *module.children()))


def read_pass(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Hashes each row of the tensors of a call, without their padding, and counts the tokens of its labels.

    Tokens are counted twice, since some losses count before the shift of the labels and some after it.
    """
    inputs = [*_inputs(args, "args"), *_inputs(kwargs, "kwargs")]
    tensors = [(name, value.detach()) for name, value in inputs if _is_input(value)]
    lists = [(name, value) for name, value in inputs if isinstance(value, list)]
    of_lists = [pair for name, value in lists for pair in _tensors(value, name) if _is_input(pair[1])]
    if not tensors and not of_lists:
        return {"hashes": [], "tokens": []}
    targets = (len(value) for _, value in lists if hasattr(value[0], "items"))
    rows = next(targets, (tensors or of_lists)[0][1].shape[0])
    by_row = [(name, value) for name, value in lists if len(value) == rows and not _spans(value, rows)]
    own = {name for name, _ in by_row}
    tensors += [pair for name, value in lists if name not in own for pair in _tensors(value, name)]
    mask = next((t for name, t in tensors if name.endswith("attention_mask") and t.dim() == 2), None)
    labels = _labels(tensors)
    tokens = [] if labels is None else [int((labels[:, 1:] != -100).sum()), int((labels != -100).sum())]
    per_row = [
        (n, t) for n, t in tensors if _is_input(t) and t.shape[0] == rows and not n.endswith("attention_mask")
    ]
    row_mask = mask if mask is not None and len(mask) == rows else None
    return {"hashes": [_hash(row, per_row, by_row, row_mask) for row in range(rows)], "tokens": tokens}


def _is_input(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and not value.requires_grad


def _inputs(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields tensors, and lists as a whole: one may have an entry for each row, such as an image's boxes."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif hasattr(value, "items"):
        for key in sorted(value.keys(), key=str):
            yield from _inputs(value[key], f"{name}.{key}")
    elif isinstance(value, list) and value:
        yield name, value
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _inputs(item, f"{name}.{number}")


def _spans(values: list[Any], rows: int) -> bool:
    """Tells whether each entry of a list is of all rows, such as the levels of a pyramid."""
    return all(isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows for value in values)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value.detach()
    elif hasattr(value, "items"):
        for key in sorted(value.keys(), key=str):
            yield from _tensors(value[key], f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}.{number}")


def _labels(tensors: list[tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    """Returns the labels, -100 if uncounted; without labels the inputs, 0 taken for padding."""
    for name, tensor in tensors:
        if name.endswith("labels") and tensor.dim() == 2:
            return tensor
    for _, tensor in tensors:
        if tensor.dim() == 2 and not tensor.dtype.is_floating_point:
            return tensor.masked_fill(tensor == 0, -100)
    return None


def _hash(
    row: int,
    tensors: list[tuple[str, torch.Tensor]],
    by_row: list[tuple[str, list[Any]]],
    mask: torch.Tensor | None,
) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for name, values in by_row:
        for part, tensor in _tensors(values[row], name):
            digest.update(part.encode() + _plain(tensor))
    for name, tensor in tensors:
        value = tensor[row]
        if mask is not None and value.dim() >= 1 and value.shape[0] == mask.shape[1]:
            value = value[mask[row].bool()]
        elif value.dim() == 1 and value.numel() > 1 and not value.dtype.is_floating_point:
            # Without a mask padding is taken for a run of 0 or -100 at an end.
            content = ((value != 0) & (value != -100)).nonzero().reshape(-1)
            value = value[content[0] : content[-1] + 1] if len(content) else value[:1]
        digest.update(name.encode() + _plain(value))
    return digest.hexdigest()[:12]


def _plain(value: torch.Tensor) -> bytes:
    plain = value.float() if value.dtype == torch.bfloat16 else value
    content: bytes = plain.cpu().contiguous().numpy().tobytes()
    return content
