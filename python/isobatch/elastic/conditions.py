"""The conditions for equal bits of a training, besides its chunks.

The ranks compare their conditions; networks whose bits would depend on the rank are refused.
"""

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from isobatch.errors import InputError
from isobatch.words import few


def conditions_of(net: nn.Module) -> dict[str, Any]:
    """Returns the conditions to be equal on all ranks for equal bits, by name, in JSON types."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    devices = {tensor.device for tensor in tensors.values()}
    kinds = {f"{device.type} {_device_name(device)}" for device in devices}
    shapes = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        for name, tensor in tensors.items()
    ]
    backends: Any = torch.backends
    return {
        "device": sorted(kinds),
        "torch version": str(torch.__version__),
        "CUDA version": torch.version.cuda,
        "cuDNN version": backends.cudnn.version() if torch.cuda.is_available() else None,
        "number of threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "TF32": [backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32],
        "reduced precision": [
            str(backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
            str(backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        ],
        "attention kernels": [
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
            backends.cuda.cudnn_sdp_enabled(),
        ],
        "mkldnn": backends.mkldnn.enabled,
        "default dtype": str(torch.get_default_dtype()),
        **{
            name: os.environ.get(name)
            for name in ("CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE")
        },
        "model": f"{len(shapes)} tensors, {hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]}",
        "compiled": _is_compiled(net),
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8").splitlines() if device.type == "cpu" and cpus.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def check_network(net: nn.Module) -> None:
    """Refuses a network without the same bits at every number of ranks."""
    if isinstance(net, DistributedDataParallel):
        raise InputError("wrap takes the network itself, got it in DistributedDataParallel already")
    for name, module in net.named_modules():
        kind = type(module).__name__
        if kind == "FullyShardedDataParallel" or hasattr(module, "set_requires_gradient_sync"):
            raise InputError(
                f"chunk= does not support FSDP, got {kind} {name!r}: every rank needs the whole model"
            )
        if isinstance(module, _NormBase) and module.training and module.running_mean is not None:
            raise InputError(
                f"chunk= does not support batch norm in training mode, got {kind} {name!r}: its running "
                "statistics are of a rank's own samples; use group norm or layer norm, or call .eval() on it"
            )
        if isinstance(module, nn.SyncBatchNorm) and module.training:
            raise InputError(f"chunk= does not support SyncBatchNorm in training mode, got {name!r}")
        if getattr(module, "sparse", False) is True:
            raise InputError(
                f"chunk= does not support sparse gradients, got {kind} {name!r} with sparse=True"
            )
    for name, parameter in net.named_parameters():
        if hasattr(parameter, "device_mesh"):
            raise InputError(
                f"chunk= does not support DTensor, got parameter {name!r}: every rank needs the whole model"
            )
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise InputError("the network has no parameter that requires a gradient")
    if torch.backends.cudnn.benchmark and torch.cuda.is_available():
        raise InputError(
            "torch.backends.cudnn.benchmark must be False with chunk=: it picks kernels by their time"
        )
    if _is_compiled(net):
        _check_compiler()


def _is_compiled(net: nn.Module) -> bool:
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in net.modules()
    )


def _check_compiler() -> None:
    """Refuses a compiler set to choose kernels by a rank's earlier inputs or timings."""
    dynamo, inductor = sys.modules.get("torch._dynamo.config"), sys.modules.get("torch._inductor.config")
    names = [
        name
        for module, name in ((dynamo, "automatic_dynamic_shapes"), (inductor, "max_autotune"))
        if getattr(module, name, False)
    ]
    if names:
        raise InputError(
            f"{few(names)} of torch.compile must be off with chunk=: it compiles by what a rank has seen or "
            "measured before; set torch._dynamo.config.automatic_dynamic_shapes = False, and leave "
            "mode='max-autotune' out"
        )
