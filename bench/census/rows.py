"""Eight rows for a head of transformers, from the arguments of its forward and its config.

The rows have unequal numbers of tokens, boxes, patches and classes. Variants are other guesses of the inputs'
shapes, for heads that refuse the first.
"""

from typing import Any

import torch
from transformers import PretrainedConfig

COUNT, LENGTH = 8, 16
LENGTHS = (16, 5, 9, 12, 6, 15, 7, 10)
"""Tokens of each row."""
VARIANTS = (0, 3, 1)
WAVE = 8000


def rows_of(model_class: Any, config: Any, arguments: set[str], variant: int) -> list[dict[str, Any]]:
    """Makes the rows of a head: inputs by its arguments, then the labels that its name asks for."""
    maker = _Maker(model_class, config, arguments, variant)
    return [maker.row(number) for number in range(COUNT)]


def setting(config: Any, *names: str, default: Any = None) -> Any:
    """Returns the first value of a name in a config, or in its parts."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None and not callable(value):
            return value
    for part in vars(config).values():
        if isinstance(part, PretrainedConfig) and (value := setting(part, *names)) is not None:
            return value
    return default


class _Maker:
    """Makes rows of one head."""

    def __init__(self, model_class: Any, config: Any, arguments: set[str], variant: int) -> None:
        self.config, self.arguments, self.variant = config, arguments, variant
        self.name = model_class.__name__
        self.generator = torch.Generator().manual_seed(7)
        main = getattr(model_class, "main_input_name", "input_ids")
        self.main = main if isinstance(main, str) else main[0]
        vocabulary = setting(config, "vocab_size", default=128)
        self.high = min(99, (vocabulary if isinstance(vocabulary, int) and vocabulary > 8 else 64) - 1)
        self.has_choices = "MultipleChoice" in self.name
        self.is_image = self.main.startswith("pixel_values")
        hears = bool({"input_values", "input_features"} & arguments) and "pixel_values" not in arguments
        classifies = self.is_image and "labels" in arguments and "Classification" in self.name
        self.is_text = "input_ids" in arguments and not classifies
        if hears and (self.main != "input_ids" or "input_ids" not in arguments):
            self.is_text = False
        self.is_audio = hears and not self.is_text
        self.size, self.channels, self.patches = self._image()
        labels = setting(config, "num_labels", default=2)
        self.labels = labels if isinstance(labels, int) else 2

    def row(self, number: int) -> dict[str, Any]:
        """Makes one row."""
        row: dict[str, Any] = {}
        count = LENGTHS[number]
        if self.is_text:
            self._add_text(row, count)
        elif self.is_audio:
            self._add_audio(row, number)
        needs_image = self.variant == 3 or "return_loss" in self.arguments or not self.is_text
        if self.is_image or ("pixel_values" in self.arguments and needs_image):
            self._add_image(row)
        self._add_masks(row, number)
        if "past_values" in self.arguments:
            self._add_series(row, number)
        if "labels" in self.arguments:
            row["labels"] = self._labels(row, number, count)
        if "Question" in self.name and "start_positions" in self.arguments:
            row["start_positions"] = torch.tensor(number % 4)
            row["end_positions"] = torch.tensor(number % 4 + number % 2)
        for name in ("next_sentence_label", "sentence_order_label"):
            if name in self.arguments:
                row[name] = torch.tensor(number % 2)
        if "return_loss" in self.arguments:
            row["return_loss"] = True
        return row

    def _ints(self, *shape: int, low: int = 5, high: int | None = None) -> torch.Tensor:
        return torch.randint(low, high or self.high, shape, generator=self.generator)

    def _reals(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _image(self) -> tuple[list[int], int, int]:
        """Returns the size of an image, its channels and its patches."""
        sees = self.config
        for name in ("vision_config", "backbone_config", "encoder", "vision_encoder_config"):
            if isinstance(part := getattr(self.config, name, None), PretrainedConfig):
                sees = part
                break
        size = setting(sees, "image_size", default=64)
        if isinstance(size, dict):
            size = [size["height"], size["width"]]
        size = list(size) if isinstance(size, list | tuple) else [size, size]
        if max(size) > 384:
            size = [64, 64]
        channels = setting(sees, "num_channels", "in_channels", "in_chans", default=3)
        side = setting(sees, "patch_size", default=16)
        side = side[0] if isinstance(side, list | tuple) else side
        patches = (size[0] // side) * (size[1] // side) if isinstance(side, int) and side else 0
        return size, channels if isinstance(channels, int) and channels <= 16 else 3, patches

    def _add_text(self, row: dict[str, Any], count: int) -> None:
        shape = (3, LENGTH) if self.has_choices else (LENGTH,)
        row["input_ids"] = self._ints(*shape)
        mask = torch.zeros(*shape, dtype=torch.long)
        mask[..., :count] = 1
        if "attention_mask" in self.arguments:
            row["attention_mask"] = mask
        if "qformer_input_ids" in self.arguments:
            row["qformer_input_ids"] = self._ints(LENGTH)
            row["qformer_attention_mask"] = torch.ones(LENGTH, dtype=torch.long)
        if "visual_feats" in self.arguments:
            row["visual_feats"] = self._reals(3, setting(self.config, "visual_feat_dim", default=2048))
            row["visual_pos"] = self._reals(3, 4)
        if "entity_ids" in self.arguments and "Entity" in self.name:
            row["entity_ids"] = self._ints(2, low=1, high=5)
            row["entity_position_ids"] = torch.arange(4).reshape(2, 2)
            row["entity_attention_mask"] = torch.ones(2, dtype=torch.long)
            if "entity_start_positions" in self.arguments:
                row["entity_start_positions"], row["entity_end_positions"] = torch.tensor([[0, 2], [1, 3]])
        if "Longformer" in self.name:
            row["input_ids"][..., [1, 2, 4]] = self.config.sep_token_id
        end = getattr(self.config, "eos_token_id", None)
        is_decoder = bool(getattr(self.config, "is_encoder_decoder", False))
        if is_decoder and "SequenceClassification" in self.name and isinstance(end, int):
            row["input_ids"][LENGTH - 1] = end
            mask[:] = 1
        if "bbox" in self.arguments:
            corner = self._ints(*shape, 2, low=0, high=400)
            row["bbox"] = torch.cat([corner, corner + self._ints(*corner.shape, low=1, high=500)], -1)

    def _add_audio(self, row: dict[str, Any], number: int) -> None:
        if "input_features" in self.arguments and self.main != "input_values":
            names = (
                "num_mel_bins",
                "feature_size",
                "input_feat_per_channel",
                "input_dim",
                "mel_bins",
                "n_mels",
            )
            bins = setting(self.config, *names, "num_mel_channels", default=80)
            positions = setting(self.config, "max_source_positions")
            bins_first = "Whisper" in self.name or self.variant == 1
            frames = 2 * positions if isinstance(positions, int) and bins_first else 128
            name, shape, step = "input_features", (bins, frames) if bins_first else (frames, bins), 8
        else:
            name, shape, frames, step = "input_values", (WAVE,), WAVE, 600
        row[name] = self._reals(*shape)
        if "attention_mask" in self.arguments:
            mask = torch.zeros(frames, dtype=torch.long)
            mask[: frames - step * number] = 1
            row["attention_mask"] = mask

    def _add_image(self, row: dict[str, Any]) -> None:
        name = "pixel_values" if "pixel_values" in self.arguments else self.main
        is_video = "Video" in self.name or "video" in (self.config.model_type or "")
        shape = [self.channels, *self.size]
        if (is_video and name == "pixel_values") or name == "pixel_values_videos":
            shape = [setting(self.config, "num_frames", "frames_per_clip", default=8), *shape]
        row[name] = self._reals(*shape)
        if "pixel_mask" in self.arguments and "Detection" in self.name:
            row["pixel_mask"] = torch.ones(*self.size, dtype=torch.long)

    def _add_masks(self, row: dict[str, Any], number: int) -> None:
        """Adds masked patches, and the masks and classes of universal segmentation."""
        if "bool_masked_pos" in self.arguments and self.patches and "pixel_values" in row:
            draws = torch.rand(self.patches, generator=self.generator)
            row["bool_masked_pos"] = draws > 0.3 + 0.05 * number
        if "noise" in self.arguments and self.patches:
            row["noise"] = torch.rand(self.patches, generator=self.generator)
        if {"mask_labels", "class_labels"} <= self.arguments:
            objects = 1 + number * 3 % 5
            row["mask_labels"] = (torch.rand(objects, *self.size, generator=self.generator) > 0.5).float()
            row["class_labels"] = self._ints(objects, low=0, high=2)
            if "task_inputs" in self.arguments:
                tokens = setting(self.config, "task_seq_len", default=77)
                row["task_inputs"] = self._ints(tokens)
                row["text_inputs"] = self._ints(134, tokens)

    def _add_series(self, row: dict[str, Any], number: int) -> None:
        """Adds a time series: a past, its features, and the values to forecast."""
        config, given = self.config, self.arguments
        context = setting(config, "context_length", default=32)
        future = setting(config, "prediction_length", default=8) or 8
        channels = setting(config, "num_input_channels", "input_size", default=1)
        lags = getattr(config, "lags_sequence", None) or [0]
        past = context + max(lags)
        has_channels = channels > 1 or "num_input_channels" in vars(config)
        shape = (past, channels) if has_channels else (past,)
        row["past_values"] = self._reals(*shape)
        if "past_time_features" in given:
            features = setting(config, "num_time_features", default=0) or 0
            row["past_time_features"] = self._reals(past, features)
            row["future_time_features"] = self._reals(future, features)
        if "past_observed_mask" in given:
            row["past_observed_mask"] = torch.ones(*shape)
        if "future_values" in given:
            row["future_values"] = self._reals(future, *shape[1:])
        if "freq" in given:
            row["freq"] = torch.tensor(0)
        if "target_values" in given:
            targets = setting(config, "num_targets", default=1)
            is_class = "Classification" in self.name
            row["target_values"] = (
                torch.tensor(number % min(2, targets)) if is_class else self._reals(targets)
            )

    def _labels(self, row: dict[str, Any], number: int, count: int) -> Any:
        """Makes the labels of a row by the head's kind."""
        name = self.name
        kinds = ("ForObjectDetection", "ForSegmentation", "InstanceSegmentation")
        if any(kind in name for kind in kinds) and "pixel_values" in self.arguments:
            return self._boxes(number)
        if "ForSemanticSegmentation" in name:
            labels = self._ints(*self.size, low=0, high=self.labels)
            labels[: 2 + 6 * number] = 255
            return labels
        if "DepthEstimation" in name:
            return torch.rand(*self.size, generator=self.generator) + 0.5
        if "AudioFrameClassification" in name:
            frames = {0: 24, 1: 25}.get(self.variant, 49)
            return torch.nn.functional.one_hot(
                self._ints(frames, low=0, high=self.labels), self.labels
            ).float()
        if "TokenClassification" in name:
            return _ignored_after(self._ints(LENGTH, low=0, high=self.labels), count)
        if any(
            kind in name for kind in ("Classification", "XVector", "MultipleChoice", "ImageTextRetrieval")
        ):
            return torch.tensor(number % max(1, 3 if self.has_choices else min(self.labels, 3)))
        if "NextSentence" in name:
            return torch.tensor(number % 2)
        if any(kind in name for kind in ("CTC", "RNNT", "TDT")):
            return _ignored_after(self._ints(4), 1 + number % 3)
        if "MaskedImageModeling" in name and "bool_masked_pos" in row:
            return self._ints(int(row["bool_masked_pos"].sum()))
        if self.is_image and not self.is_text:
            return _ignored_after(self._ints(LENGTH), count)
        copies = ("CausalLM" in name or "LMHead" in name) and self.is_text
        labels = row["input_ids"].clone() if copies else self._ints(LENGTH)
        if labels.dim() == 1:
            _ignored_after(labels, count)
            if "MaskedLM" in name or "PreTraining" in name:
                labels[torch.rand(LENGTH, generator=self.generator) > 0.6] = -100
                labels[0] = 5 + number
        return labels

    def _boxes(self, number: int) -> dict[str, torch.Tensor]:
        count = 1 + number * 3 % 5
        centers = 0.3 + 0.4 * torch.rand(count, 2, generator=self.generator)
        sizes = 0.1 + 0.3 * torch.rand(count, 2, generator=self.generator)
        labels = {
            "class_labels": self._ints(count, low=0, high=max(1, min(self.labels, 5))),
            "boxes": torch.cat([centers, sizes], -1),
        }
        if "Segmentation" in self.name:
            labels["masks"] = (torch.rand(count, *self.size, generator=self.generator) > 0.5).float()
        return labels


def _ignored_after(labels: torch.Tensor, count: int) -> torch.Tensor:
    labels[count:] = -100
    return labels


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Stacks tensors; boxes and masks of unequal numbers stay lists."""
    batch: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], torch.Tensor) and name not in ("mask_labels", "class_labels"):
            is_list = name == "labels" and "bool_masked_pos" in rows[0]  # one label for each masked patch
            batch[name] = torch.cat(values) if is_list else torch.stack(values)
        else:
            batch[name] = values[0] if isinstance(values[0], bool) else values
    return batch
