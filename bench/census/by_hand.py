"""Builds heads by hand where no rule makes them small, or no rule knows their inputs."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
import transformers as tf

from census import ask, families, rows, tiny
from census.heads import Head

Row = dict[str, Any]


class Build(NamedTuple):
    """A config by the class of its model, and a change of each row by its number."""

    config: Callable[[Any], Any]
    row: Callable[[Row, int, Any], None] = lambda row, number, config: None
    variant: int = 0


def ask_by_hand(head: Head) -> dict[str, Any]:
    """Asks a head of `BUILDS` as `ask_head` asks others."""
    model, batch = build(head.load(), BUILDS[head.name])
    ask._check_loss(model.train(), batch)
    model.zero_grad(set_to_none=True)
    collating = ask.functools.partial(ask.Trainer, data_collator=rows.collate)
    arguments = {"remove_unused_columns": False, "learning_rate": 1e-3}
    return {
        "head": head.name,
        **ask.answer(model, batch, trainer=collating, arguments=arguments),
        "router": False,
    }


def build(model_class: Any, by: Build) -> tuple[Any, list[Row]]:
    """Builds a model, with its rows."""
    config = by.config(model_class)
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = model_class(config)
    tiny._steady(model)
    arguments = set(inspect.signature(model_class.forward).parameters)
    batch = rows.rows_of(model_class, config, arguments, by.variant)
    for number, row in enumerate(batch):
        by.row(row, number, config)
    return model, batch


def ruled(layers: int = 2, divisor: int | None = None, **settings: Any) -> Callable[[Any], Any]:
    """Makes a config by the rules, then with these settings; `part__name` is one of a part."""

    def config_of(model_class: Any) -> Any:
        config = families.config_of(model_class)
        tiny.shrink(config, divisor or ask._sizes(model_class)[0][1], layers)
        for path, value in settings.items():
            *parents, name = path.split("__")
            part = config
            for parent in parents:
                part = getattr(part, parent)
            setattr(part, name, value)
        return config

    return config_of


def made(**settings: Any) -> Callable[[Any], Any]:
    """Makes a config of these settings alone."""
    return lambda model_class: model_class.config_class(**settings)


def detr(*stages: int, **settings: Any) -> Callable[[Any], Any]:
    """Makes a small config of DETR's family on a ResNet."""
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 12}
    sizes = {"d_model": 32, "hidden_size": 32, "dropout": 0.0, "attention_dropout": 0.0}
    backbone = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    resnet = tf.ResNetConfig(**families._resnet(*stages))

    def config_of(model_class: Any) -> Any:
        known = set(inspect.signature(model_class.config_class).parameters)
        given = {**layers, **heads, **sizes, **backbone, **settings}
        return model_class.config_class(
            backbone_config=resnet, **{name: value for name, value in given.items() if name in known}
        )

    return config_of


def _add(**values: Callable[[int, Any], Any]) -> Callable[[Row, int, Any], None]:
    """Sets entries of a row, each by the row's number and the config."""

    def change(row: Row, number: int, config: Any) -> None:
        for name, value in values.items():
            row[name] = value(number, config)

    return change


def _drawn(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + number)


def _reals(*shape: int) -> Callable[[int, Any], torch.Tensor]:
    return lambda number, config: torch.randn(*shape, generator=_drawn(number))


def _ints(*shape: int, low: int = 5, high: int = 99) -> Callable[[int, Any], torch.Tensor]:
    return lambda number, config: torch.randint(low, high, shape, generator=_drawn(number))


def _zeros(*shape: int) -> Callable[[int, Any], torch.Tensor]:
    return lambda number, config: torch.zeros(*shape, dtype=torch.long)


def _ones(*shape: int) -> Callable[[int, Any], torch.Tensor]:
    return lambda number, config: torch.ones(*shape, dtype=torch.long)


def _class(number: int, config: Any) -> torch.Tensor:
    return torch.tensor(number % 2)


def _texts(row: Row, number: int, config: Any) -> None:
    """Marks three phrases in a text, as a detector of phrases reads them."""
    row["input_ids"] = torch.tensor([101, 7, 1012, 8 + number, 1012, 9, 1012, 10, 1012, 11, 1012, 102])
    row["attention_mask"] = torch.ones(12, dtype=torch.long)


def _spectrogram(row: Row, number: int, config: Any) -> None:
    row.pop("attention_mask")
    row["input_values"] = _reals(config.max_length, config.num_mel_bins)(number, config)


def _embedded(row: Row, number: int, config: Any) -> None:
    row.pop("input_ids")
    row["inputs_embeds"] = _reals(16, config.hidden_size)(number, config)


def _embedded_characters(row: Row, number: int, config: Any) -> None:
    _embedded(row, number, config)
    row["char_input_ids"], row["char_count_per_id"] = _ints(16)(number, config), _ones(16)(number, config)


def _wave(row: Row, number: int, config: Any) -> None:
    row.pop("input_features")
    row["input_values"], row["attention_mask"] = _reals(8000)(number, config), _ones(8000)(number, config)


def _question(row: Row, number: int, config: Any) -> None:
    row["input_ids"][3] = config.question_token_id
    row["question_positions"] = torch.tensor([3])
    row["start_positions"], row["end_positions"] = torch.tensor([number % 4]), torch.tensor([number % 4 + 1])


RT = {
    "d_model": 32,
    "encoder_hidden_dim": 32,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "decoder_in_channels": [32, 32, 32],
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "decoder_layers": 2,
    "num_queries": 12,
    "num_denoising": 0,  # they draw random numbers
}


def _on_rt_resnet(model_class: Any) -> Any:
    return model_class.config_class(**(families._settings("RTDetrConfig") | RT))


def _on_hgnet(model_class: Any) -> Any:
    return model_class.config_class(**(families._settings("DFineConfig") | RT))


def _grounded(model_class: Any) -> Any:
    text = tf.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=1100
    )
    sizes = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    }
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 12}
    backbone = families._swin(out_indices=[2, 3, 4], drop_path_rate=0.0)
    plain = {"fusion_droppath": 0.0, "dropout": 0.0}
    return model_class.config_class(text_config=text.to_dict(), backbone_config=backbone, **sizes, **plain)


PERCEIVER = {
    "d_latents": 32,
    "num_latents": 8,
    "d_model": 32,
    "num_blocks": 1,
    "num_self_attends_per_block": 1,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 1,
    "attention_probs_dropout_prob": 0.0,
    "vocab_size": 128,
    "max_position_embeddings": 16,
    "image_size": 32,
}
SAPIENS = {"num_register_tokens": 1, "image_size": 32, "hidden_size": 32, "intermediate_size": 32}
SAPIENS |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_attention_heads": 2}
SAPIENS |= {
    "pos_embed_rescale": None,
    "patch_size": 8,
    "num_first_full_attention_layers": 1,
    "num_last_full_attention_layers": 1,
}
SAPIENS_HEAD = {"upsample_out_channels": [16], "upsample_kernel_sizes": [4], "use_pixel_shuffle": False}
SAPIENS_HEAD |= {"conv_out_channels": [16], "conv_kernel_sizes": [1]}
SAPIENS_HEAD |= {"scale_conv_out_channels": [8], "scale_conv_kernel_sizes": [1]}
SAPIENS_HEAD |= {"scale_final_hidden_sizes": [8], "scale_final_input_size": 128}


def _on_windows(backbone: str, windows: int, group: int, **settings: Any) -> Callable[[Any], Any]:
    """Makes a small config of a detector whose backbone attends within windows."""

    def config_of(model_class: Any) -> Any:
        vision = {"image_size": 64, "pretrain_image_size": 64, "patch_size": 16, "num_windows": windows}
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 1}
        kind = getattr(import_module(model_class.config_class.__module__), backbone)
        known = set(inspect.signature(kind).parameters)
        given = {name: value for name, value in (vision | sizes).items() if name in known}
        heads = {"decoder_self_attention_heads": 2, "decoder_cross_attention_heads": 2}
        decoder = {
            "d_model": 32,
            "decoder_ffn_dim": 32,
            "decoder_layers": 2,
            "num_queries": 12,
            "dropout": 0.0,
        }
        return model_class.config_class(
            backbone_config=kind(**given, out_indices=[1, 2]),
            c2f_num_blocks=1,
            group_detr=group,
            **heads,
            **decoder,
            **settings,
        )

    return config_of


RF_DETR = _on_windows("RfDetrDinov2Config", windows=2, group=2)
FULL = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}

BUILDS: dict[str, Build] = {
    **{
        f"{name}ForObjectDetection": Build(detr(4))
        for name in ("Detr", "ConditionalDetr", "DabDetr", "TableTransformer")
    },
    "DeformableDetrForObjectDetection": Build(detr(2, 3, 4, num_feature_levels=3, decoder_layers=2)),
    "DetrForSegmentation": Build(detr(1, 2, 3, 4, encoder_attention_heads=8, decoder_attention_heads=8)),
    "ConditionalDetrForSegmentation": Build(
        detr(1, 2, 3, 4, encoder_attention_heads=8, decoder_attention_heads=8)
    ),
    "RTDetrForObjectDetection": Build(_on_rt_resnet),
    "RTDetrV2ForObjectDetection": Build(_on_rt_resnet),
    "DFineForObjectDetection": Build(_on_hgnet),
    "Deimv2ForObjectDetection": Build(_on_hgnet),
    "GroundingDinoForObjectDetection": Build(_grounded, _texts),
    "MMGroundingDinoForObjectDetection": Build(_grounded, _texts),
    **{
        name: Build(ruled(use_cache=False))
        for name in (
            "RecurrentGemmaForCausalLM",
            "NemotronHForCausalLM",
            "Zamba2ForSequenceClassification",
            "ZambaForSequenceClassification",
        )
    },
    "NemotronH_Omni_Reasoning_V3": Build(ruled(), _add(use_cache=lambda n, c: False)),
    **{
        f"Wav2Vec2BertFor{kind}": Build(ruled(feature_projection_input_dim=80)) for kind in ("CTC", "XVector")
    },
    "Wav2Vec2BertForAudioFrameClassification": Build(
        ruled(feature_projection_input_dim=80),
        _add(
            labels=lambda n, c: torch.eye(c.num_labels)[
                torch.randint(c.num_labels, (128,), generator=_drawn(n))
            ]
        ),
    ),
    "SeamlessM4TForSpeechToText": Build(ruled(feature_projection_input_dim=80)),
    "SeamlessM4Tv2ForSpeechToText": Build(ruled(feature_projection_input_dim=80)),
    "PerceiverForMaskedLM": Build(made(**PERCEIVER)),
    "PerceiverForSequenceClassification": Build(made(**PERCEIVER)),
    **{
        f"PerceiverForImageClassification{kind}": Build(made(**PERCEIVER))
        for kind in ("Learned", "Fourier", "ConvProcessing")
    },
    "Sapiens2ForSemanticSegmentation": Build(made(**SAPIENS, head_config=SAPIENS_HEAD)),
    "Sapiens2ForPoseEstimation": Build(
        made(**SAPIENS, head_config=SAPIENS_HEAD), _add(labels=_reals(2, 8, 8))
    ),
    "GLPNForDepthEstimation": Build(
        made(
            hidden_sizes=[8, 8, 16, 16],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2],
            decoder_hidden_size=16,
            drop_path_rate=0.0,
        )
    ),
    "SwinForMaskedImageModeling": Build(
        made(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=4,
            encoder_stride=8,
        )
    ),
    "Swinv2ForMaskedImageModeling": Build(
        made(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[1, 1],
            num_heads=[1, 2],
            window_size=4,
            encoder_stride=8,
        )
    ),
    "EsmcForMaskedLM": Build(
        made(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
    ),
    "OwlViTModel": Build(ruled(vision_config__image_size=64, vision_config__patch_size=32), variant=3),
    "Owlv2Model": Build(ruled(vision_config__image_size=64, vision_config__patch_size=32), variant=3),
    "Siglip2Model": Build(
        ruled(),
        _add(
            pixel_values=lambda n, c: torch.randn(
                4, c.vision_config.num_channels * c.vision_config.patch_size**2, generator=_drawn(n)
            ),
            pixel_attention_mask=_ones(4),
            spatial_shapes=lambda n, c: torch.tensor([2, 2]),
        ),
    ),
    "SpeechT5ForTextToSpeech": Build(
        ruled(),
        _add(
            labels=lambda n, c: torch.randn(16, c.num_mel_bins, generator=_drawn(n)),
            speaker_embeddings=lambda n, c: torch.randn(c.speaker_embedding_dim, generator=_drawn(n)),
        ),
    ),
    "MusicgenForCausalLM": Build(
        ruled(),
        lambda row, n, c: row.update(
            input_ids=_ints(c.num_codebooks, 16)(n, c),
            labels=_ints(16, c.num_codebooks)(n, c),
            attention_mask=torch.ones(16, dtype=torch.long),
        ),
    ),
    "BambaForCausalLM": Build(
        ruled(mamba_n_heads=8, mamba_d_head=16, mamba_expand=2, hidden_size=64, mamba_n_groups=1)
    ),
    "ViltForQuestionAnswering": Build(
        ruled(image_size=32),
        _add(
            pixel_values=_reals(3, 32, 32), labels=lambda n, c: torch.rand(c.num_labels, generator=_drawn(n))
        ),
    ),
    "SplinterForPreTraining": Build(ruled(), _question),
    "IdeficsForVisionText2Text": Build(
        ruled(),
        lambda row, n, c: row.update(
            pixel_values=torch.randn(
                1, 3, c.vision_config.image_size, c.vision_config.image_size, generator=_drawn(n)
            ),
            image_attention_mask=torch.ones(16, 1, dtype=torch.long),
        ),
    ),
    "LxmertForQuestionAnswering": Build(ruled(), _add(labels=_class)),
    "VisualBertForVisualReasoning": Build(ruled(), _add(labels=_class)),
    "VisualBertForQuestionAnswering": Build(
        ruled(), _add(labels=lambda n, c: torch.rand(c.num_labels, generator=_drawn(n)).softmax(0))
    ),
    "VisualBertForPreTraining": Build(
        ruled(),
        lambda row, n, c: row.update(
            visual_embeds=_reals(3, c.visual_embedding_dim)(n, c),
            visual_attention_mask=torch.ones(3),
            visual_token_type_ids=torch.ones(3, dtype=torch.long),
            labels=torch.cat([row["labels"], torch.full((3,), -100)]),
        ),
    ),
    "ReformerForMaskedLM": Build(ruled(axial_pos_embds=False, max_position_embeddings=64)),
    "ReformerForQuestionAnswering": Build(ruled(axial_pos_embds=False, max_position_embeddings=64)),
    "ReformerModelWithLMHead": Build(
        ruled(axial_pos_embds=False, is_decoder=True, max_position_embeddings=64)
    ),
    "SeamlessM4TTextToUnitForConditionalGeneration": Build(ruled(), _embedded),
    "Molmo2ForConditionalGeneration": Build(ruled(), _add(mm_token_type_ids=_zeros(16))),
    "XCLIPModel": Build(
        ruled(),
        lambda row, n, c: row.update(
            pixel_values=torch.randn(
                c.vision_config.num_frames,
                3,
                c.vision_config.image_size,
                c.vision_config.image_size,
                generator=_drawn(n),
            )
        ),
        variant=3,
    ),
    "Qwen2_5OmniThinkerForConditionalGeneration": Build(
        ruled(vision_start_token_id=110, vision_end_token_id=111)
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": Build(
        ruled(vision_start_token_id=110, vision_end_token_id=111)
    ),
    "ASTForAudioClassification": Build(ruled(max_length=64, num_mel_bins=32), _spectrogram),
    "VideoMAEForPreTraining": Build(
        ruled(image_size=32, num_frames=4),
        _add(pixel_values=_reals(4, 3, 32, 32), bool_masked_pos=lambda n, c: torch.arange(8) % 2 == 0),
    ),
    "MobileViTForSemanticSegmentation": Build(
        made(
            image_size=64,
            hidden_sizes=[16, 16, 16],
            neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
            aspp_out_channels=16,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            aspp_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
        )
    ),
    "MobileViTV2ForSemanticSegmentation": Build(
        made(
            image_size=64,
            width_multiplier=0.25,
            aspp_out_channels=16,
            base_attn_unit_dims=[32, 32, 32],
            aspp_dropout_prob=0.0,
        )
    ),
    "VivitForVideoClassification": Build(
        ruled(image_size=32, num_frames=4), _add(pixel_values=_reals(4, 3, 32, 32))
    ),
    "Kosmos2ForConditionalGeneration": Build(
        ruled(vision_config__image_size=32, vision_config__patch_size=16, latent_query_num=8),
        lambda row, n, c: row.update(
            pixel_values=_reals(3, 32, 32)(n, c),
            image_embeds_position_mask=(torch.arange(16) < c.latent_query_num).long(),
        ),
    ),
    "BridgeTowerForImageAndTextRetrieval": Build(ruled(divisor=4), _add(labels=_class), variant=3),
    "BrosSpadeELForTokenClassification": Build(
        ruled(),
        lambda row, n, c: row.update(
            bbox_first_token_mask=torch.arange(16) < 5 + n, labels=(torch.arange(16) + 1 + n % 2) % 5
        ),
    ),
    "BrosSpadeEEForTokenClassification": Build(
        ruled(),
        lambda row, n, c: row.update(
            bbox_first_token_mask=torch.arange(16) < 5 + n,
            initial_token_labels=torch.randint(0, 2, (16,), generator=_drawn(n)),
            subsequent_token_labels=(torch.arange(16) + 1 + n % 2) % 5,
        ),
    ),
    "ParakeetForTDT": Build(ruled(), _add(decoder_input_ids=_ints(4), labels=_ints(3))),
    "RoCBertForPreTraining": Build(
        ruled(),
        _add(
            input_shape_ids=_ints(16),
            input_pronunciation_ids=_ints(16),
            attack_input_ids=_ints(16),
            labels_input_ids=_ints(16),
            attack_attention_mask=_ones(16),
            labels_attention_mask=_ones(16),
        ),
    ),
    "TimmWrapperForImageClassification": Build(
        lambda model_class: tf.TimmWrapperConfig(architecture="test_resnet", num_labels=2, do_pooling=True)
    ),
    "RfDetrForObjectDetection": Build(RF_DETR),
    "RfDetrForInstanceSegmentation": Build(RF_DETR),
    "Gemma4ForCausalLM": Build(ruled(divisor=16)),
    "Gemma4UnifiedForCausalLM": Build(ruled(divisor=16)),
    "LukeForEntitySpanClassification": Build(ruled(), _add(labels=lambda n, c: torch.tensor([0, 1]))),
    "OneFormerForUniversalSegmentation": Build(ruled()),
    "GraniteSpeech5ForCTC": Build(ruled(), _add(input_features=_reals(64, 320), attention_mask=_ones(64))),
    "SeamlessM4Tv2TextToUnitForConditionalGeneration": Build(
        ruled(),
        lambda row, n, c: (
            row.update(
                inputs_embeds=_reals(16, c.hidden_size)(n, c),
                char_input_ids=_ints(16)(n, c),
                char_count_per_id=torch.ones(16, dtype=torch.long),
            )
            or row.pop("input_ids")
        ),
    ),
    "MusicgenMelodyForCausalLM": Build(
        ruled(),
        lambda row, n, c: row.update(
            input_ids=_ints(c.num_codebooks, 16)(n, c),
            labels=_ints(16, c.num_codebooks)(n, c),
            attention_mask=torch.ones(16, dtype=torch.long),
        ),
    ),
    "CohereCompassTextForSequenceClassification": Build(
        ruled(layer_types=["full_attention"] * 2, rope_parameters=FULL)
    ),
    "VisualBertForRegionToPhraseAlignment": Build(
        ruled(),
        lambda row, n, c: row.update(
            visual_embeds=_reals(3, c.visual_embedding_dim)(n, c),
            visual_attention_mask=torch.ones(3),
            region_to_phrase_position=torch.tensor([0, 1, 2] + [-1] * 16),
            labels=torch.rand(19, 3, generator=_drawn(n)).softmax(1),
        ),
    ),
    "DbrxForCausalLM": Build(ruled(attn_config__rope_theta=1e4, attn_config__clip_qkv=8.0)),
    "BridgeTowerForContrastiveLearning": Build(ruled(divisor=4, logit_scale_init_value=2.6), variant=3),
    "SpeechEncoderDecoderModel": Build(
        ruled(),
        lambda row, n, c: (
            row.pop("input_features", None) is None
            or row.update(input_values=_reals(8000)(n, c), attention_mask=torch.ones(8000, dtype=torch.long))
        ),
    ),
    "LongformerForMultipleChoice": Build(ruled(attention_window=[8, 8])),
    "ViltForImagesAndTextClassification": Build(
        ruled(image_size=32, num_images=2, modality_type_vocab_size=3),
        _add(pixel_values=_reals(2, 3, 32, 32)),
    ),
    "BlipForQuestionAnswering": Build(
        ruled(text_config__bos_token_id=2, text_config__sep_token_id=3, text_config__pad_token_id=1),
        _add(labels=_ints(16)),
        variant=3,
    ),
    "LwDetrForObjectDetection": Build(
        _on_windows("LwDetrViTConfig", windows=4, group=1, projector_scale_factors=[1.0])
    ),
    "PeAudioModel": Build(ruled(), _add(input_values=_reals(1, 8000))),
    "xLSTMForCausalLM": Build(ruled(embedding_dim=64, num_heads=2, qk_dim_factor=1.0, v_dim_factor=1.0)),
    "CohereCompassForConditionalGeneration": Build(
        ruled(text_config__layer_types=["full_attention"] * 2, text_config__rope_parameters=FULL)
    ),
    "PPFormulaNetForConditionalGeneration": Build(ruled(divisor=1), _add(pixel_values=_reals(3, 512, 512))),
    "NeoMMEForMaskedLM": Build(ruled(divisor=4)),
    "PatchTSTForClassification": Build(
        ruled(layers=2, divisor=2, num_targets=2), _add(target_values=lambda n, c: torch.tensor(n % 2))
    ),
    "FlavaForPreTraining": Build(ruled(), _add(codebook_pixel_values=_reals(3, 112, 112))),
}
