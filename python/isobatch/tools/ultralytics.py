"""ultralytics' args.yaml, left by every run in its folder."""

from collections.abc import Iterator

from isobatch.tools.page import SettingsPage, length
from isobatch.tools.tool import Case, Issue, Reader, Tool, number
from isobatch.words import real

_HARMLESS = """
    agnostic_nms angle augment auto_augment bgr box cache cfg channels_last classes close_mosaic cls cls_* conf copy_paste* crop_fraction
    cutmix d2s deterministic dfl dgrad dis distill_* dlam dlog dnn dynamic embed erasing exist_ok fliplr flipud format fraction half hsv_* imgsz iou
    keras kobj label_smoothing line_* mask_ratio max_det mixup mode mosaic multi_scale name nms opset optimize overlap_mask patience
    perspective plots pose rect retina_masks rle scale shear show* simplify single_cls source split stream_buffer task tracker translate
    val vid_stride visualize warmup_bias_lr warmup_momentum workers workspace int8 cos_lr degrees
"""
"""Of ultralytics 8.4's default.yaml."""
_MATTERS = {"duration": "time"}


def read(page: SettingsPage) -> None:
    """`batch` counts all GPUs. Steps accumulate to about `nbs` samples: round(nbs / batch) micro-batches, at least one."""
    batch, nominal = page.number("batch", default=16), page.whole("nbs", default=64)
    if batch is not None and (batch < 1 or batch != int(batch)):
        page.ask("effective_batch", f"{batch} lets ultralytics choose", "batch")
    elif batch and nominal:
        accumulation = max(round(nominal / batch), 1)
        page.give("effective_batch", int(batch) * accumulation, "batch")
        page.give("accumulation", accumulation, "nbs")
        if int(batch) * accumulation != nominal:
            page.note(
                f"nbs is {nominal}, but batch {int(batch)} × {accumulation} is {int(batch) * accumulation} samples a step"
            )
        decay = page.number("weight_decay", default=0.0005)
        if decay is not None:
            page.give("weight_decay", decay * int(batch) * accumulation / nominal, "weight_decay")
    _devices(page)
    page.name_absent(lr="lr0")
    name = page.word("optimizer", "auto")
    if name == "auto":
        for field in ("optimizer", "lr"):
            page.ask(field, '"auto" lets ultralytics choose it and ignores lr0', "optimizer")
    else:
        page.optimizer("optimizer", name)
        page.number("lr0", "lr")
    page.number("momentum", "momentum", default=0.937)
    epochs = page.number("epochs", default=100)
    if epochs:
        page.give("duration", length(epochs, "ep"), "epochs")
    warmup = page.number("warmup_epochs", default=3.0)
    if warmup:
        page.give("warmup", length(warmup, "ep"), "warmup_epochs")
        page.note(
            "older versions of ultralytics warm up over at least 100 batches; the plan over warmup_epochs as they are"
        )
    page.give("schedule", "cosine" if page.flag("cos_lr") else "linear", "cos_lr")
    page.times_lr("min_lr", page.number("lrf", default=0.01), "lrf")
    if (page.number("fraction", default=1.0) or 1.0) < 1:
        page.note("fraction: dataset_size is that part of the images")
    if page.raw("amp") is not False:
        page.give("precision", "fp16", "amp")
    page.give("batch_norm", True, "")
    page.note("ultralytics moves the learning rate once an epoch; the plan every step")


def _devices(page: SettingsPage) -> None:
    device = page.raw("device")
    if isinstance(device, list):
        page.give("gpus", len(device), "device")
    elif isinstance(device, str) and device.replace(",", "").replace(" ", "").isdigit():
        page.give("gpus", len([part for part in device.split(",") if part.strip()]), "device")
    elif type(device) is int:
        page.give("gpus", 1, "device")


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    settings = case.reading.settings
    batch, nominal = settings.get("batch", 16), settings.get("nbs", 64)
    if settings.get("optimizer", "auto") == "auto":
        yield Issue.note(
            "lr0 and momentum have no effect",
            'optimizer "auto" chooses them by the number of steps',
            "ultralytics, engine/trainer.py: build_optimizer",
            "optimizer: SGD  (or AdamW)",
        )
    if type(batch) is int and type(nominal) is int and batch > 0:
        accumulation = max(round(nominal / batch), 1)
        yield Issue.note(
            f"a step has {batch * accumulation} samples, in {accumulation} batches of {batch}",
            f"ultralytics accumulates to about nbs {nominal}",
            "ultralytics, engine/trainer.py: _build_train_pipeline",
            f"nbs: {batch}  (for steps of {batch})",
        )
        if accumulation > 1:
            yield Issue.note(
                f"the first {number(settings.get('warmup_epochs', 3.0)):g} epochs have smaller steps",
                f"during the warmup the accumulation grows from 1 to {accumulation}",
                "ultralytics, engine/trainer.py: _do_train",
                f"batch: {nominal}  (nothing is accumulated then), or warmup_epochs: 0",
            )
        if batch % case.gpus:
            yield Issue(
                f"a batch has {batch // case.gpus * case.gpus} samples, not {batch}",
                f"each of {case.gpus} GPUs takes {batch} // {case.gpus}",
                "ultralytics, engine/trainer.py: _build_train_pipeline",
                f"batch: {-(-batch // case.gpus) * case.gpus}",
            )
        if batch * accumulation != nominal:
            decay = settings.get("weight_decay", 0.0005)
            yield Issue.note(
                f"weight_decay is {real(decay * batch * accumulation / nominal)}, not {real(decay)}",
                "ultralytics multiplies it by batch × accumulation / nbs",
                "ultralytics, engine/trainer.py: _build_train_pipeline",
                f"nbs: {batch * accumulation}",
            )


ULTRALYTICS = Tool("ultralytics", "ultralytics", Reader("8", read, check, _HARMLESS, _MATTERS))
