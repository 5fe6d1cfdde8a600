"""Makes a tiny model of a transformers class: a config built small, then weights that are unequal."""

import copy
import re
import types
import zlib
from typing import Any

import torch
from transformers import PretrainedConfig

from census import families

VOCABULARY = 128
LARGEST = 16e6
"""Parameters of a model that is still tiny."""
LAYERS = re.compile(r"^(n_layers?|depth|(num_)?(.*_)?layers|num_.*blocks)$")
NO_LAYERS = re.compile(
    r"feature_levels|num_feat_extract|conv_|projection|_to_|start|first|dense|intermediate|adapter|stem|"
    r"vision_feature_layer|feature_layer|shared"
)
WIDTH = re.compile(
    r"size|dim|embd|d_model|d_ff|d_kv|d_head|ffn|channels|width|n_inner|rank|d_inner|d_embed|n_embed|d_state|"
    r"hidden"
)
NO_WIDTH = re.compile(
    r"vocab|image|patch|kernel|window|stride|^num_(?!channels_)|^n_(?!inner|embd|embed)|max_|position|crop|"
    r"sampl|num_channels|in_chans|in_channels|chunk|group|codebook|prediction|context|block|pad|"
    r"spatial_merge|temporal|embeddings_size|list_size|tile|grid|bos|eos|rate|queue|scale|_ids?$|partial|"
    r"rescale|downsample|upsample|resolution|dimension|mrope|fft|hop|sequence|segment"
)
EXPERTS, NO_EXPERTS = re.compile(r"experts?$"), re.compile(r"_per_|shared")
PROBABILITY = re.compile(
    r"drop|jitter|mask_time_prob|mask_feature_prob|mask_channel_prob|noise|stochastic|layerdrop"
)
TOKEN = re.compile(r"(token_id|token_index|_idx|token_idx|_token)$")
PER_TOKEN = ("num_experts_per_tok", "top_k", "moe_topk", "num_experts_per_token", "moe_k",
             "num_selected_experts")  # fmt: skip
BY_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "indexer_types")
POSITIONS = ("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions")
WIDTHS = (
    "hidden_size",
    "d_model",
    "n_embd",
    "dim",
    "embed_dim",
    "hidden_dim",
    "encoder_hidden_size",
    "emb_dim",
)
ROUTER = re.compile(r".*(aux|balance|z_loss).*(coef|coefficient|weight|alpha)")


def build(model_class: Any, divisor: int, layers: int, *, routed: bool = False) -> tuple[Any, Any]:
    """Builds a model of a class, its widths divided; returns it with its config."""
    config = families.config_of(model_class)
    if type(config).__name__ in families.SMALL:
        divisor, layers = 1, 4
    shrink(config, divisor, layers)
    if routed:
        _add_router_loss(config)
    if (
        "Classification" in model_class.__name__
        and hasattr(config, "num_labels")
        and "Image" not in model_class.__name__
    ):
        config.num_labels = 3
    config._experts_implementation = "eager"  # grouped kernels ask for widths of 16 bytes
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model_class(copy.deepcopy(config)).parameters())
    if count > LARGEST:
        raise MemoryError(f"{count / 1e6:.0f} M parameters at width / {divisor}")
    torch.manual_seed(0)
    model = model_class(config)
    _steady(model)
    return model, config


def width(config: Any) -> int:
    """Returns the largest hidden width of a config and its parts."""
    own = [value for name, value in vars(config).items() if name in WIDTHS and isinstance(value, int)]
    return max([*own, *map(width, parts(config))], default=0)


def parts(config: Any) -> list[Any]:
    """Lists the configs inside a config."""
    return [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]


def has_router(config: Any) -> bool:
    """Tells whether a config has a balance loss of experts to turn on."""
    return any(hasattr(part, "output_router_logits") for part in [config, *parts(config)])


def shrink(config: Any, divisor: int, layers: int) -> None:
    """Divides widths, cuts layers, vocabularies and experts, and takes random layers out."""
    for name, value in list(vars(config).items()):
        if name.startswith("_") or name in ("architectures", "id2label", "label2id", "transformers_version"):
            continue
        if isinstance(value, PretrainedConfig):
            if type(value).__name__ not in families.FIXED:
                shrink(value, divisor, layers)
        elif isinstance(value, bool):
            if name in ("apply_spec_augment", "use_pretrained_backbone"):
                _put(config, name, False)
        elif isinstance(value, float):
            if PROBABILITY.search(name):
                _put(config, name, 0.0)
        elif isinstance(value, int):
            _put(config, name, _shrunk(name, value, divisor, layers))
        elif isinstance(value, list | tuple) and value:
            _put(config, name, _shrunk_list(name, value, divisor, layers))
    _fit_heads(config)
    _fit_tokens(config)


def _shrunk(name: str, value: int, divisor: int, layers: int) -> int:
    if "vocab" in name and "size" in name:
        return min(value, VOCABULARY)
    if TOKEN.search(name):
        return value if value < 100 else 100 + zlib.crc32(name.encode()) % 20
    if EXPERTS.search(name) and not NO_EXPERTS.search(name):
        return min(value, 4)
    if "kv_shared" in name:
        return 0
    if name == "base_channels":
        return min(value, 32)  # group norm has 32 groups
    if name in PER_TOKEN:
        return min(value, 2)
    if name in ("n_group", "topk_group"):
        return 1
    if LAYERS.match(name) and not NO_LAYERS.search(name):
        return min(value, layers)
    if WIDTH.search(name) and not NO_WIDTH.search(name) and value > 8 and _divides(value, divisor):
        return value // divisor
    return min(value, 4096) if name in POSITIONS else value


def _shrunk_list(name: str, values: Any, divisor: int, layers: int) -> Any:
    if name == "layer_types" and len(set(map(str, values))) > 1:
        kinds = list(dict.fromkeys(values))
        return [*kinds, *values][:layers] if layers >= len(kinds) else kinds[-layers:]
    if name in BY_LAYER:
        return list(values)[:layers]
    if EXPERTS.search(name) and not NO_EXPERTS.search(name):
        return [min(value, 4) for value in values]
    if name == "channel_multiplier":
        return [1] * min(2, len(values))
    if name == "depths":
        return [min(2, value) if isinstance(value, int) else value for value in values]
    is_width = WIDTH.search(name) and not NO_WIDTH.search(name)
    if is_width and all(isinstance(value, int) and _divides(value, divisor) for value in values):
        return type(values)(value // divisor for value in values)
    return values


def _divides(value: int, divisor: int) -> bool:
    return value % divisor == 0 and value // divisor >= 2


def _fit_heads(config: Any) -> None:
    """Makes the attention heads divide the width, and the sections of a rotary embedding fit a head."""
    size, heads, head = (_read(config, name) for name in ("hidden_size", "num_attention_heads", "head_dim"))
    if not (isinstance(size, int) and isinstance(heads, int) and heads):
        return
    if size % heads or (size // heads < 8 and not isinstance(head, int)):
        heads = max(1, size // 16) if size % 16 == 0 else 2 if size % 2 == 0 else 1
        _put(config, "num_attention_heads", heads)
        shared = _read(config, "num_key_value_heads")
        if isinstance(shared, int) and (shared > heads or heads % shared):
            _put(config, "num_key_value_heads", heads)
    if head is None and "head_dim" in vars(config):
        head = size // heads
        _put(config, "head_dim", head)
    has_sections = "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ())
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        if isinstance(rope, dict) and ("mrope_section" in rope or has_sections):
            entries = head if isinstance(head, int) else size // heads
            half = int(entries * rope.get("partial_rotary_factor", 1)) // 2
            rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


def _fit_tokens(config: Any) -> None:
    """Keeps special tokens inside the vocabulary."""
    if "vocab_size" in vars(config) and config.vocab_size is None:
        _put(config, "vocab_size", VOCABULARY)
    decodes = getattr(config, "is_encoder_decoder", False)
    if decodes and getattr(config, "decoder_start_token_id", None) is None:
        _put(config, "decoder_start_token_id", 2)
    tokens = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    for name, token in tokens.items():
        value = getattr(config, name, 0)
        needed = value is None and name in ("pad_token_id", "decoder_start_token_id")
        if needed or (isinstance(value, int) and value >= VOCABULARY):
            _put(config, name, token)


def _read(config: Any, name: str) -> Any:
    """Reads a value; None of one that is not set yet, or another in each layer."""
    try:
        return getattr(config, name, None)
    except (AttributeError, TypeError, ZeroDivisionError, RuntimeError):
        return None


def _add_router_loss(config: Any) -> None:
    for part in [config, *parts(config)]:
        for name in list(vars(part)):
            if name == "output_router_logits":
                _put(part, name, True)
            elif ROUTER.fullmatch(name):
                _put(part, name, 1.0)


def _put(config: Any, name: str, value: Any) -> None:
    if _read(config, name) is value:
        return
    try:
        setattr(config, name, value)
    except (AttributeError, ValueError, TypeError, RuntimeError):  # a property, or a value that is checked
        return


def _steady(model: Any) -> None:
    """Keeps batch norm at its running statistics, and gives every parameter small, unequal values."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
            module.train = types.MethodType(lambda self, mode=True: self, module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.nan_to_num_(0.0, 0.0, 0.0)
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise.to(parameter.dtype) * 0.02)
