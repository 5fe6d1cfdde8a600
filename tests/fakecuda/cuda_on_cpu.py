"""A simulated CUDA over the CPU, in this process and for good: see the package.

Tensors on "cuda" are the CPU's with their storages in a ledger: they give `.device` "cuda", count in
`memory_allocated`, and raise an out-of-memory error beyond the GPU's size; results of them are in the ledger
too, and an operation on tensors of both kinds fails as on CUDA. NCCL is gloo that refuses the CPU's tensors.
Kernels take no time and are over at their launch. `GPU.syncs` counts the host's waits for the device.
"""

import contextlib
import os
import socket
import threading
import time
import types
import weakref
from pathlib import Path

import contexts
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COUNT = int(os.environ.get("FAKE_GPUS") or 0)
NAME = "NVIDIA H100 80GB HBM3"
HUGE = 8192  # the side of a matrix product that a GPU does in a millisecond: here it is not done
PUBLISHED_BYTES = 16 << 20
PEER_BYTES = 8 << 20

_Device = torch.device
_want = threading.local()  # .device: "cuda" or "cpu" for new tensors; None: by their operands


class _Gpu:
    """The current GPU of this process: its ledger of storages, and its counts in bytes."""

    def __init__(self):
        self.index, self.process, self.asked_by = 0, None, None
        self.storages, self.now, self.peak, self.reserved, self.peak_reserved = {}, 0, 0, 0, 0
        self.others, self.published, self.syncs = 0, 0, 0
        self.peers = set()  # of NCCL's groups: each has buffers until the group is destroyed

    def open(self):
        """Enters this process on the GPU, as CUDA's first call does; refuses a fork of one."""
        if self.process == os.getpid():
            return
        if self.is_fork():
            todo = "To use CUDA with multiprocessing, you must use the 'spawn' start method"
            raise RuntimeError(f"Cannot re-initialize CUDA in forked subprocess. {todo}")
        self.process = os.getpid()
        contexts.write(self.index, 0)

    def is_fork(self):
        """Tells whether this process is a fork of one after a call of CUDA."""
        return any(known not in (None, os.getpid()) for known in (self.process, self.asked_by))

    def free(self):
        """Counts the bytes left to this process."""
        own = contexts.total_bytes() - contexts.DRIVER_BYTES - self.others
        return max(0, own - self.reserved - PEER_BYTES * len(self.peers))

    def look_around(self):
        """Counts the bytes of other processes on this GPU."""
        bytes_of = contexts.read(self.index)
        self.others = sum(count for process, count in bytes_of.items() if process != os.getpid())

    def take(self, tensor):
        """Enters a tensor's storage, if the GPU has room for it."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.storages:
            return
        self.open()
        size = -(-storage.nbytes() // 512) * 512
        if self.now + size > self.reserved + self.free():
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB")
        self.storages[storage._cdata] = size
        self.now += size
        self.peak, self.reserved = max(self.peak, self.now), max(self.reserved, self.now)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        if self.reserved - self.published > PUBLISHED_BYTES:
            self.publish()
        weakref.finalize(storage, self.drop, storage._cdata)

    def drop(self, key):
        """Frees a storage."""
        self.now -= self.storages.pop(key, 0)

    def publish(self):
        """Tells the other processes how much this one has."""
        self.published = self.reserved
        contexts.write(self.index, self.reserved)

    def has(self, tensor):
        """Tells whether a tensor is on the GPU."""
        try:
            return tensor.untyped_storage()._cdata in self.storages
        except (NotImplementedError, RuntimeError):  # sparse, fake or functional: it has none
            return False


GPU = _Gpu()


@contextlib.contextmanager
def _making(device):
    """Sets the device of new tensors inside."""
    before, _want.device = getattr(_want, "device", None), device
    try:
        yield
    finally:
        _want.device = before


def _kind(device):
    """Returns "cuda" or "cpu" of a device's name; None: it names none."""
    if isinstance(device, bool) or not isinstance(device, _Device | str | int):
        return None
    if isinstance(device, int):
        return "cuda"
    kind = str(device).split(":")[0]
    return kind if kind in ("cuda", "cpu") else None


TAKES_BOTH = frozenset(
    ["copy_", "_to_copy", "index", "index_put_", "_index_put_impl_", "set_", "embedding", "mul_out"]
)
"""Operations of CUDA that also take tensors of the CPU; DDP's C++ fills its buckets by the last one."""
ATTENTION = frozenset(["multi_head_attention_forward", "scaled_dot_product_attention"])
"""Functions with a causal mask from C++, here on the CPU."""


class _Ledger(TorchDispatchMode):
    """Enters the results of operations on a GPU's tensors."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, torch.Tensor)]
        on_gpu = [GPU.has(tensor) for tensor in tensors]
        name = function.__name__.removesuffix(".out") + "_out" * function.__name__.endswith(".out")
        name = name.split(".")[0]
        want = getattr(_want, "device", None)
        strange = any(tensor.dim() and not is_on for tensor, is_on in zip(tensors, on_gpu, strict=True))
        if any(on_gpu) and strange and name not in TAKES_BOTH and want is None:
            text = "Expected all tensors to be on the same device, but found at least two devices"
            raise RuntimeError(f"{text}, cuda:0 and cpu! ({name})")
        if name == "_local_scalar_dense" and any(on_gpu):
            GPU.syncs += 1
        result = function(*args, **(kwargs or {}))
        if want == "cuda" or (any(on_gpu) and want is None):
            for leaf in tree_leaves(result):
                is_new = isinstance(leaf, torch.Tensor) and all(leaf is not old for old in tensors)
                if is_new or (isinstance(leaf, torch.Tensor) and want == "cuda"):
                    GPU.take(leaf)
        return result


class _Devices(TorchFunctionMode):
    """Answers where a tensor is, and moves and makes tensors."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if name == "__get__" and args:
            of = getattr(function, "__self__", None)
            if of is torch.Tensor.device and GPU.has(args[0]):
                return _Device("cuda", GPU.index)
            if of is torch.Tensor.is_cuda:
                return GPU.has(args[0])
            if of is torch.Tensor.is_cpu:
                return not GPU.has(args[0]) and function(*args, **kwargs)
        elif name == "get_device":
            return GPU.index if GPU.has(args[0]) else -1
        elif name == "cuda":
            return self._to(args[0], "cuda", {})
        elif name == "cpu":
            return self._to(args[0], "cpu", {})
        elif name == "to":
            return self._moved(function, args, kwargs)
        elif name in ("numpy", "__array__") and args and GPU.has(args[0]):
            todo = "Use Tensor.cpu() to copy the tensor to host memory first."
            raise TypeError(f"can't convert cuda:0 device type tensor to numpy. {todo}")
        elif name == "matmul" and args[0].shape == (HUGE, HUGE) and "out" in kwargs:
            return kwargs["out"].fill_(1)
        elif name == "pin_memory":
            return args[0]
        elif name in ATTENTION and GPU.has(args[0]):
            with _making("cuda"):
                return function(*args, **kwargs)
        kwargs.pop("pin_memory", None)
        if (kind := _kind(kwargs.get("device"))) is None:
            return function(*args, **kwargs)
        generator = kwargs.get("generator")
        if kind == "cuda" and generator is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if name == "randn" and args[:2] == (HUGE, HUGE):  # a view of one element
            return self(torch.randn, 1, **kwargs).expand(HUGE, HUGE)
        kwargs["device"] = "cpu"
        with _making("cuda" if kind == "cuda" else None):
            return function(*args, **kwargs)

    def __call__(self, function, *args, **kwargs):
        return self.__torch_function__(function, (), args, kwargs)

    def _moved(self, function, args, kwargs):
        tensor, *rest = args
        device = kwargs.pop("device", None)
        if rest and isinstance(rest[0], torch.Tensor):  # like another
            device, rest[0] = ("cuda" if GPU.has(rest[0]) else "cpu"), rest[0].dtype
        elif rest and (rest[0] is None or _kind(rest[0]) is not None):
            device = rest.pop(0)
        kind = _kind(device)
        if kind is None and device is not None:
            return function(tensor, device, *rest, **kwargs)
        kwargs.pop("non_blocking", None)
        copy, layout = kwargs.pop("copy", False), {k: kwargs[k] for k in ("memory_format",) if k in kwargs}
        dtype = kwargs.get("dtype") or next((word for word in rest if isinstance(word, torch.dtype)), None)
        moved = tensor
        if kind is not None and (kind == "cuda") != GPU.has(tensor):
            moved, copy = self._to(tensor, kind, layout), False
        return function(moved, dtype=dtype or tensor.dtype, copy=copy, **layout)

    def _to(self, tensor, kind, options):
        if (kind == "cuda") == GPU.has(tensor):
            return tensor
        if kind == "cpu":
            GPU.syncs += 1
        with _making(kind):
            return tensor.clone(**options)


class Event:
    """A moment on the stream: that of the host, which is never ahead of it."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.timed, self.at = enable_timing, None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None, "never recorded"

    def query(self):
        return True

    def wait(self, stream=None):
        pass

    def elapsed_time(self, end):
        if not (self.timed and end.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return (end.at - self.at) * 1e3


class Stream:
    """The one stream."""

    def __init__(self, *_, **__):
        self.device, self.device_index, self.stream_id, self.cuda_stream = _Device("cuda", GPU.index), 0, 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def is_capturing(self):
        return False

    synchronize = wait_stream = wait_event = lambda self, *_: None


def _index(device):
    if device is None:
        return GPU.index
    return device if isinstance(device, int) else torch.device(device).index or 0


def is_available():
    if os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1":
        GPU.asked_by = GPU.asked_by or os.getpid()
    return COUNT > 0


def set_device(device):
    if not 0 <= _index(device) < COUNT:
        raise RuntimeError("CUDA error: invalid device ordinal")
    GPU.index = _index(device)
    GPU.open()


def synchronize(device=None):
    GPU.open()
    GPU.syncs += 1


def mem_get_info(device=None):
    GPU.open()
    GPU.look_around()
    return GPU.free(), contexts.total_bytes()


def reset_peak_memory_stats(device=None):
    GPU.open()
    GPU.peak, GPU.peak_reserved = GPU.now, GPU.reserved


def empty_cache():
    if GPU.process is not None:
        GPU.reserved = GPU.now
        GPU.publish()


def get_device_properties(device=None):
    GPU.open()
    index, total = _index(device), contexts.total_bytes()
    kind = {"name": NAME, "total_memory": total, "major": 9, "minor": 0, "multi_processor_count": 132}
    place = {"pci_domain_id": 0, "pci_bus_id": 0x3B + index, "pci_device_id": 0, "uuid": f"GPU-{index}"}
    return types.SimpleNamespace(L2_cache_size=50 << 20, **kind, **place)


def _sleep(cycles):
    time.sleep(cycles / 2e9)


def _set_rng_state(state, device="cuda"):
    if state.device.type != "cpu":
        raise TypeError("RNG state must be a torch.ByteTensor")


_autocast = torch.autocast
_is_autocast, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


class autocast(_autocast):
    """The CPU's, also of a GPU."""

    def __init__(self, device_type, *args, **kwargs):
        super().__init__("cpu", *args, **kwargs)


def _install_cuda():
    cuda, opened = torch.cuda, lambda value: lambda *_: (GPU.open(), value())[1]
    functions = {
        "device_count": lambda: COUNT,
        "is_initialized": lambda: GPU.process == os.getpid(),
        "init": GPU.open,
        "_lazy_init": GPU.open,
        "current_device": opened(lambda: GPU.index),
        "memory_allocated": lambda device=None: GPU.now,
        "max_memory_allocated": lambda device=None: GPU.peak,
        "memory_reserved": lambda device=None: GPU.reserved,
        "max_memory_reserved": lambda device=None: GPU.peak_reserved,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_rng_state": opened(lambda: torch.ByteTensor(16)),
        "get_rng_state_all": lambda: [torch.ByteTensor(16) for _ in range(COUNT)],
        "set_rng_state": _set_rng_state,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "Event": Event,
        "Stream": Stream,
    }
    own = (is_available, set_device, synchronize, mem_get_info, reset_peak_memory_stats)
    for function in (*own, empty_cache, get_device_properties, _sleep):
        functions[function.__name__] = function
    for name, function in functions.items():
        setattr(cuda, name, function)
    torch.cuda.random.get_rng_state = functions["get_rng_state"]
    torch._C._cuda_isInBadFork = GPU.is_fork
    torch.accelerator.is_available, torch.accelerator.device_count = is_available, functions["device_count"]
    torch.accelerator.current_device_index = lambda: GPU.index
    torch.accelerator.current_stream = functions["current_stream"]
    torch.autocast = autocast
    torch.is_autocast_enabled = lambda device="cuda": _is_autocast("cpu")
    torch.get_autocast_dtype = lambda device: _autocast_dtype("cpu")
    cuda.amp.common.amp_definitely_not_available = lambda: False
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        setattr(torch.optim.Optimizer, name, lambda self: None)


_BACKENDS = {}  # by a group's name: what it was asked for


def _backend(group):
    return _BACKENDS.get((group or dist.group.WORLD).group_name, "gloo")


class Nccl(dist.ProcessGroupGloo):
    """NCCL's backend in a group: it prints its environment and its abort, and carries nothing."""

    instances = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.instances.append(self)  # torch itself holds only the C++ of it.
        names = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_RETHROW_CUDA_ERRORS"
        print("NCCL is made with", *(f"{name}={os.environ.get(name)}" for name in names), flush=True)

    def abort(self):
        print("NCCL is aborted", flush=True)


def _install_nccl():
    dist.distributed_c10d.ProcessGroupNCCL = Nccl
    init, new, config = dist.init_process_group, dist.new_group, dist.get_backend_config
    pairs, destroy = dist.batch_isend_irecv, dist.destroy_process_group

    def init_process_group(backend=None, *args, **kwargs):
        wanted_backend = backend or "nccl"
        init("gloo" if "nccl" in wanted_backend else wanted_backend, *args, **kwargs)
        _BACKENDS[dist.group.WORLD.group_name] = "nccl" if "nccl" in wanted_backend else wanted_backend

    def new_group(ranks=None, *args, **kwargs):
        wanted_backend = kwargs.get("backend") or _backend(None)
        kwargs["backend"] = "gloo" if wanted_backend == "nccl" else wanted_backend
        group = new(ranks, *args, **kwargs)
        if isinstance(group, dist.ProcessGroup):
            _BACKENDS[group.group_name] = wanted_backend
        return group

    def refuse(tensors, group):
        if _backend(group) == "nccl" and not all(map(GPU.has, tensors)):
            raise RuntimeError("No backend type associated with device type cpu")

    def checked(name):
        real = getattr(dist, name)

        def call(first, *args, **kwargs):
            group = kwargs.get("group") or next(
                (value for value in args if isinstance(value, dist.ProcessGroup)), None
            )
            refuse([leaf for leaf in tree_leaves(first) if isinstance(leaf, torch.Tensor)], group)
            return real(first, *args, **kwargs)

        setattr(dist, name, call)

    def batch_isend_irecv(operations):
        refuse([operation.tensor for operation in operations], None)
        GPU.peers.update((sent.group or dist.group.WORLD, sent.peer) for sent in operations)
        return pairs(operations)

    def destroy_process_group(group=None):
        GPU.peers = {peer for peer in GPU.peers if peer[0] != (group or dist.group.WORLD)}
        destroy(group)

    for name in ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor"):
        checked(name)
    dist.init_process_group, dist.new_group = init_process_group, new_group
    dist.batch_isend_irecv, dist.destroy_process_group = batch_isend_irecv, destroy_process_group
    dist.get_backend_config = lambda group=None: "cuda:nccl" if _backend(group) == "nccl" else config(group)


def _install_ddp(devices):
    make = DistributedDataParallel.__init__

    def init(self, module, device_ids=None, *args, **kwargs):
        on_gpu = GPU.has(next(module.parameters()))
        if on_gpu != (device_ids is not None):
            raise ValueError(f"device_ids {device_ids} of a module on {'a GPU' if on_gpu else 'the CPU'}")
        devices.__exit__(None, None, None)  # its C++ sees the CPU's tensors
        try:
            make(self, module, None, *args, **kwargs)
        finally:
            devices.__enter__()

    register = DistributedDataParallel.register_comm_hook

    def register_comm_hook(self, state, hook):
        def on_gpu(state, bucket):
            GPU.take(bucket.buffer())  # which C++ has made
            return hook(state, bucket)

        register(self, state, on_gpu)

    DistributedDataParallel.__init__ = init
    DistributedDataParallel.register_comm_hook = register_comm_hook


def install():
    """Makes CUDA up in this process, for good."""
    devices = _Devices()
    _install_cuda()
    _install_nccl()
    _install_ddp(devices)
    if name := os.environ.get("FAKE_HOST"):
        read = Path.read_text
        socket.gethostname = lambda: name
        Path.read_text = lambda self, *a, **k: name if self.name == "boot_id" else read(self, *a, **k)
    devices.__enter__()
    _Ledger().__enter__()
