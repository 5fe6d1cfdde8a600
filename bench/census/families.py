"""Configs of families of transformers that no rule makes small or complete."""

from typing import Any

import transformers as tf

SMALL = {"BeitConfig", "Data2VecVisionConfig", "ConvNextConfig", "ConvNextV2Config", "ResNetConfig",
         "DPTConfig", "EomtConfig", "EomtDinov3Config", "SegformerConfig", "HGNetV2Config",
         "BrosConfig"}  # fmt: skip
"""Configs that are small as `config_of` makes them."""
FIXED = {"HGNetV2Config"}
"""Configs that are small as made here, as a part of another config too."""
VISION = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 4}
STAGES = ["stage1", "stage2", "stage3", "stage4"]
HYBRID = {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}
BROS = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "HunYuanDenseV1Config": {"head_dim": 32},
    "HunYuanMoEV1Config": {"head_dim": 32},
    "BambaConfig": {"attn_layer_indices": [1]},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "JambaConfig": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "Lfm2MoeConfig": HYBRID,
    "BrosConfig": BROS,
    "ChameleonConfig": {"vocabulary_map": {"<image>": 4}},
    "Emu3Config": {"vocabulary_map": {"<image>": 4}},
    "EsmConfig": {"vocab_size": 128},
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "Dots1Config": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "DeepseekOcr2Config": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "Granite4VisionConfig": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [1]},
    "Blip2Config": {"image_token_index": 100},
    "InstructBlipConfig": {"image_token_index": 100},
    "InstructBlipVideoConfig": {"video_token_index": 100},
    "BridgeTowerConfig": {"contrastive_hidden_size": 16},
}
"""Arguments of configs that need no other config."""


def config_of(model_class: Any) -> Any:
    """Makes the config of a class, with the parts that it cannot do without."""
    kind = model_class.config_class
    name = kind.__name__
    if name in ("EncoderDecoderConfig", "VisionEncoderDecoderConfig", "SpeechEncoderDecoderConfig"):
        return _encoder_decoder(kind)
    if name == "VisionTextDualEncoderConfig":
        return kind.from_vision_text_configs(tf.ViTConfig(), tf.BertConfig())
    return kind(**_settings(name))


def _encoder_decoder(kind: Any) -> Any:
    encoder = {"E": tf.BertConfig, "V": tf.ViTConfig, "S": tf.Wav2Vec2Config}[kind.__name__[0]]()
    config = kind.from_encoder_decoder_configs(
        encoder, tf.BertConfig(is_decoder=True, add_cross_attention=True)
    )
    config.decoder_start_token_id, config.pad_token_id, config.vocab_size = 2, 1, 128
    return config


def _resnet(*stages: int) -> dict[str, Any]:
    return {
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "out_features": [f"stage{stage}" for stage in stages],
    }


def _hgnet() -> dict[str, Any]:
    return {
        "embedding_size": 8,
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 16, 16, 32],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [16, 16, 32, 32],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1],
    }


def _swin(**outputs: Any) -> Any:
    return tf.SwinConfig(
        image_size=64, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, **outputs
    )


def _settings(name: str) -> dict[str, Any]:
    """Returns the arguments of a config by its name; none where the rules of `tiny` suffice."""
    alone = {
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "num_queries": 12,
    }
    if name in ("DetrConfig", "ConditionalDetrConfig", "DabDetrConfig", "TableTransformerConfig"):
        return {**alone, "backbone_config": tf.ResNetConfig(**_resnet(4))}
    if name == "DeformableDetrConfig":
        return {**alone, "backbone_config": tf.ResNetConfig(**_resnet(2, 3, 4))}
    if name in ("RTDetrConfig", "RTDetrV2Config"):
        stages = {"hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1], "out_features": STAGES[1:]}
        backbone = tf.RTDetrResNetConfig(embedding_size=32, layer_type="basic", **stages)
        return {
            "backbone_config": backbone,
            "encoder_in_channels": [32, 64, 64],
            "num_queries": 12,
            "num_denoising": 4,
        }
    if name in ("MaskFormerConfig", "Mask2FormerConfig"):
        return {"backbone_config": _swin(out_features=STAGES)}
    if name == "OneFormerConfig":
        return {"backbone_config": _swin(out_features=STAGES), "num_queries": 10}
    if name == "UperNetConfig":
        backbone = tf.ResNetConfig(**_resnet(1, 2, 3, 4))
        return {"backbone_config": backbone, "hidden_size": 16, "auxiliary_in_channels": 16}
    if name in ("AutoformerConfig", "InformerConfig", "TimeSeriesTransformerConfig"):
        return {
            "prediction_length": 4,
            "context_length": 12,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
            "d_model": 16,
        }
    if name in ("GroundingDinoConfig", "MMGroundingDinoConfig"):
        return {"backbone_config": _swin(out_indices=[2, 3, 4]), "num_queries": 12}
    if name in ("BeitConfig", "Data2VecVisionConfig"):
        scales = {"out_indices": [1, 2, 3, 4], "pool_scales": [1, 2]}
        return {**VISION, **scales, "image_size": 32, "patch_size": 4, "use_mask_token": True}
    if name in ("ConvNextConfig", "ConvNextV2Config"):
        return {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": 32}
    if name == "ResNetConfig":
        return _resnet(4)
    if name in ("DFineConfig", "Deimv2Config"):
        backbone = tf.HGNetV2Config(**_hgnet(), out_features=STAGES[1:])
        return {"backbone_config": backbone, "encoder_in_channels": [16, 32, 32], "num_denoising": 4}
    if name == "HGNetV2Config":
        return _hgnet()
    if name == "DPTConfig":
        neck = {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16]}
        return {**VISION, **neck, "fusion_hidden_size": 16, "image_size": 32, "patch_size": 8}
    if name in ("EomtConfig", "EomtDinov3Config"):
        queries = {"num_blocks": 2, "num_queries": 10, "num_upscale_blocks": 1}
        return {**VISION, **queries, "hidden_size": 32, "image_size": 64, "patch_size": 16}
    if name == "SegformerConfig":
        heads = {"num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16, "image_size": 64}
        return {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], **heads}
    return dict(SETTINGS.get(name, {}))
