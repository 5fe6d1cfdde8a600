"""Losses of sentence-transformers, timm, segmentation models, torchvision, open_clip and diffusers.

Each is asked as a plain loop trains it: each pass's loss divided by the accumulation, ranks averaged by DDP.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from census.ask import answer

COUNT, WIDTH, CLASSES = 8, 6, 4


class Scored(nn.Module):
    """A layer with a loss on its outputs: of classes, of pixels, or of an image's and a text's features."""

    def __init__(self, loss: Any, width: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(WIDTH, width), loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a pass."""
        return self.loss(self.layer(x), y)


class Segmented(Scored):
    """The same for each pixel."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a pass of images (batch, channels, height, width)."""
        return self.loss(self.layer(x.movedim(1, -1)).movedim(-1, 1), y)


class Towers(nn.Module):
    """Two towers and a temperature, as open_clip trains them."""

    def __init__(self, loss: Any, *, biased: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text, self.loss = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5), loss
        self.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.logit_bias = nn.Parameter(torch.tensor(-1.0)) if biased else None

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a pass."""
        features = F.normalize(self.image(x), dim=-1), F.normalize(self.text(y), dim=-1)
        bias = () if self.logit_bias is None else (self.logit_bias,)
        return self.loss(*features, self.logit_scale.exp(), *bias)


class Embedder(nn.Module):
    """A sentence encoder of one layer: its tokens are a bag of features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, 8)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the features with their embedding."""
        return {**features, "sentence_embedding": self.layer(features["x"])}

    @property
    def device(self) -> torch.device:
        """Returns the device of the layer."""
        return self.layer.weight.device

    def get_embedding_dimension(self) -> int:
        """Returns the embedding's width."""
        return 8

    get_sentence_embedding_dimension = get_embedding_dimension


class Sentences(nn.Module):
    """A loss of sentence-transformers on rows of several sentences and a label."""

    def __init__(self, make: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.loss = make(Embedder())

    def forward(self, label: torch.Tensor, *sentences: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a pass."""
        return self.loss([{"x": sentence} for sentence in sentences], label)


def _reals(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _classes(spread: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    labels = [torch.tensor(number % CLASSES) for number in range(COUNT)]
    if spread:
        labels = [F.one_hot(label, CLASSES).float() * 0.8 + 0.05 for label in labels]
    return list(zip(_reals(COUNT, WIDTH), labels, strict=True))


def questions() -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Yields each loss: its name, its package, and how it is asked."""
    groups = {
        "timm": _timm,
        "segmentation_models_pytorch": _segmentation,
        "open_clip_torch": _clip,
        "torchvision": _detection,
        "sentence-transformers": _sentences,
        "diffusers": _diffusers,
    }
    for package, group in groups.items():
        for name in group():
            yield f"{package}: {name}", package, partial(_ask, group, name)


def _ask(group: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
    model, rows = group()[name]()
    return answer(model, rows)


def _timm() -> dict[str, Any]:
    from timm import loss

    plain = ("LabelSmoothingCrossEntropy", "AsymmetricLossSingleLabel")
    spread = ("SoftTargetCrossEntropy", "BinaryCrossEntropy", "AsymmetricLossMultiLabel", "PolyCrossEntropy",
              "PolyBinaryCrossEntropy", "TwoWayLoss", "ZlprLoss")  # fmt: skip
    return {
        **{name: lambda name=name: (Scored(getattr(loss, name)()), _classes()) for name in plain},
        **{name: lambda name=name: (Scored(getattr(loss, name)()), _classes(True)) for name in spread},
    }


def _segmentation() -> dict[str, Any]:
    from segmentation_models_pytorch import losses

    names = ("DiceLoss", "JaccardLoss", "TverskyLoss", "FocalLoss", "LovaszLoss")

    def make(name: str) -> Any:
        labels = torch.randint(0, CLASSES, (COUNT, 8, 8), generator=torch.Generator().manual_seed(1))
        rows = list(zip(_reals(COUNT, WIDTH, 8, 8), labels, strict=True))
        return Segmented(getattr(losses, name)("multiclass")), rows

    def soft() -> Any:
        labels = torch.randint(0, CLASSES, (COUNT, 8, 8), generator=torch.Generator().manual_seed(1))
        for number, row in enumerate(labels):
            row[: number % 4] = -100
        rows = list(zip(_reals(COUNT, WIDTH, 8, 8), labels, strict=True))
        return Segmented(losses.SoftCrossEntropyLoss(smooth_factor=0.1, ignore_index=-100)), rows

    return {**{name: partial(make, name) for name in names}, "SoftCrossEntropyLoss with ignored pixels": soft}


def _clip() -> dict[str, Any]:
    import open_clip

    def rows() -> Any:
        return list(zip(_reals(COUNT, WIDTH), _reals(COUNT, WIDTH, seed=4), strict=True))

    return {
        "ClipLoss in a plain loop": lambda: (Towers(open_clip.ClipLoss()), rows()),
        "SigLipLoss in a plain loop": lambda: (Towers(open_clip.loss.SigLipLoss(), biased=True), rows()),
    }


def _detection() -> dict[str, Any]:
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator

    def backbone(width: int = 16, *, listed: bool = False) -> Any:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, 8, 1), nn.ReLU(), nn.Conv2d(8, width, 3, 2, 1))
        body.out_channels = [width] if listed else width
        return body

    def rows(**further: Any) -> Any:
        images, targets = torch.rand(COUNT, 3, 96, 96, generator=torch.Generator().manual_seed(2)), []
        for number in range(COUNT):
            count = 1 + number * 3 % 5
            corner = torch.rand(count, 2, generator=torch.Generator().manual_seed(number)) * 50
            boxes = torch.cat([corner, corner + 20 + 4 * number], -1).clamp(max=95)
            target = {"boxes": boxes, "labels": 1 + torch.arange(count) % 2}
            if "masks" in further:
                target["masks"] = torch.ones(count, 96, 96, dtype=torch.uint8)
            targets.append(target)
        return list(zip(images, targets, strict=True))

    sizes = {"min_size": 96, "max_size": 96}
    anchors = partial(AnchorGenerator, ((24, 48),), ((1.0,),))
    # Every anchor and proposal is a sample of the loss: no draw.
    all_samples = {"rpn_batch_size_per_image": 10_000, "box_batch_size_per_image": 10_000}
    return {
        "FasterRCNN": lambda: (
            detection.FasterRCNN(backbone(), 3, rpn_anchor_generator=anchors(), **sizes, **all_samples),
            rows(),
        ),
        "MaskRCNN": lambda: (
            detection.MaskRCNN(backbone(), 3, rpn_anchor_generator=anchors(), **sizes, **all_samples),
            rows(masks=True),
        ),
        "RetinaNet": lambda: (
            detection.RetinaNet(backbone(), 3, anchor_generator=anchors(), **sizes),
            rows(),
        ),
        "FCOS": lambda: (
            detection.FCOS(backbone(32), 3, anchor_generator=AnchorGenerator(((16,),), ((1.0,),)), **sizes),
            rows(),
        ),
        "SSD": lambda: (
            detection.ssd.SSD(
                backbone(listed=True), DefaultBoxGenerator([[2]], scales=[0.3, 0.6]), (96, 96), 3
            ),
            rows(),
        ),
    }


def _sentences() -> dict[str, Any]:
    from sentence_transformers.sentence_transformer import losses

    def rows(sentences: int, label: Callable[[int], Any]) -> Any:
        columns = [_reals(COUNT, WIDTH, seed=seed) for seed in range(sentences)]
        labels = [torch.as_tensor(label(number)) for number in range(COUNT)]
        return list(zip(labels, *columns, strict=True))

    binary, score, wide = (lambda n: n % 2), (lambda n: n / 8), (lambda n: [n / 8, 1 - n / 8])
    vector = lambda n: [n / 8 + place / 9 for place in range(8)]  # noqa: E731
    kinds = {
        "MultipleNegativesRankingLoss": (2, binary),
        "MultipleNegativesSymmetricRankingLoss": (2, binary),
        "CosineSimilarityLoss": (2, score),
        "CoSENTLoss": (2, score),
        "AnglELoss": (2, score),
        "ContrastiveLoss": (2, binary),
        "OnlineContrastiveLoss": (2, binary),
        "TripletLoss": (3, binary),
        "BatchAllTripletLoss": (1, binary),
        "BatchHardTripletLoss": (1, binary),
        "BatchHardSoftMarginTripletLoss": (1, binary),
        "BatchSemiHardTripletLoss": (1, binary),
        "MarginMSELoss": (3, score),
        "MSELoss": (1, vector),
        "DistillKLDivLoss": (3, wide),
        "MegaBatchMarginLoss": (2, binary),
        "ContrastiveTensionLossInBatchNegatives": (2, binary),
        "GlobalOrthogonalRegularizationLoss": (2, binary),
        "EmbedDistillLoss": (1, vector),
    }

    def make(name: str, kind: tuple[int, Any]) -> Any:
        return Sentences(getattr(losses, name)), rows(*kind)

    def softmax() -> Any:
        return Sentences(lambda model: losses.SoftmaxLoss(model, 8, 3)), rows(2, lambda n: n % 3)

    def matryoshka() -> Any:
        def inner(model: Any) -> Any:
            return losses.MatryoshkaLoss(model, losses.CosineSimilarityLoss(model), [8, 4])

        return Sentences(inner), rows(2, score)

    built = {name: partial(make, name, kind) for name, kind in kinds.items()}
    return {**built, "SoftmaxLoss": softmax, "MatryoshkaLoss of CosineSimilarityLoss": matryoshka}


def _diffusers() -> dict[str, Any]:
    def noise(weighted: bool) -> Any:
        from diffusers import DDPMScheduler, UNet2DModel

        torch.manual_seed(0)
        blocks = {
            "block_out_channels": (8, 8),
            "down_block_types": ("DownBlock2D",) * 2,
            "up_block_types": ("UpBlock2D",) * 2,
        }
        net = UNet2DModel(sample_size=8, norm_num_groups=4, layers_per_block=1, **blocks)
        scheduler = DDPMScheduler(50)

        class Denoiser(nn.Module):
            """The loss of train_unconditional.py and, weighted by the SNR, of train_text_to_image.py."""

            def __init__(self) -> None:
                super().__init__()
                self.net = net

            def forward(self, x: torch.Tensor, noise: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
                """Returns the loss of a pass."""
                shown = self.net(scheduler.add_noise(x, noise, step), step).sample
                if not weighted:
                    return F.mse_loss(shown, noise)
                from diffusers.training_utils import compute_snr

                snr = compute_snr(scheduler, step)
                weights = torch.stack([snr, 5.0 * torch.ones_like(step)], dim=1).min(dim=1)[0] / snr
                return (F.mse_loss(shown, noise, reduction="none").mean(dim=(1, 2, 3)) * weights).mean()

        steps = torch.arange(COUNT) * 5 + 3
        return Denoiser(), list(
            zip(_reals(COUNT, 3, 8, 8), _reals(COUNT, 3, 8, 8, seed=4), steps, strict=True)
        )

    return {
        "train_unconditional: UNet2DModel": lambda: noise(False),
        "train_text_to_image: --snr_gamma": lambda: noise(True),
    }
