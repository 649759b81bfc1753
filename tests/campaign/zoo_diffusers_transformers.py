# SPDX-License-Identifier: Apache-2.0
"""Models for models.py, in small configurations: diffusers, transformers (also the encoders of
pictures and sound inside of its larger models), sound (encodec, descript-audio-codec, vocos).

Not a program: `models.py PACKAGE... --out F --skip-done` runs them, and says what must be installed
by hand. A package is imported where its models are asked for; nothing is fetched.
"""

import functools
import inspect
import itertools
import re
from typing import Any

from zoo_vision import Case, ids, randn

# ---- transformers --------------------------------------------------------------------------------

_LAYERS = {
    "num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "n_layer", "n_layers",
    "num_encoder_layers", "num_decoder_layers", "decoder_num_layers", "encoder_num_layers",
    "num_block_layers", "num_conv_pos_embeddings_layers", "depth", "num_adapter_layers",
}
_MAPPINGS = (
    "MODEL_MAPPING", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING", "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING", "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING",
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING", "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING", "MODEL_FOR_KEYPOINT_MATCHING_MAPPING",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_CTC_MAPPING", "MODEL_FOR_AUDIO_XVECTOR_MAPPING", "MODEL_FOR_BACKBONE_MAPPING",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING", "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING", "MODEL_FOR_MASK_GENERATION_MAPPING",
    "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING",
)
_SUBS = ("vision_config", "audio_config", "speech_config", "encoder_config", "codec_config",
         "backbone_config", "audio_encoder_config", "vq_config", "qformer_config")


def _shrink(config, depth=0):
    """Fewer layers, and narrow ones of language models."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 3:
            _shrink(value, depth + 1)
        elif name in _LAYERS and isinstance(value, int) and value > 2:
            setattr(config, name, 2)
        elif name in ("depths", "num_blocks", "layer_depths") and isinstance(value, (list, tuple)):
            if all(isinstance(v, int) for v in value):
                setattr(config, name, type(value)(min(v, 2) for v in value))
        elif name == "vocab_size" and isinstance(value, int) and value > 1000:
            config.vocab_size = 1000
            for token in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
                if isinstance(getattr(config, token, None), int) and getattr(config, token) > 999:
                    setattr(config, token, 1)
        elif name == "layer_types" and isinstance(value, list):
            config.layer_types = value[:2]
        elif name in ("use_pretrained_backbone", "use_timm_backbone"):
            setattr(config, name, False)
    for name, small in (("hidden_size", 64), ("intermediate_size", 128), ("head_dim", 16),
                        ("num_attention_heads", 4), ("num_key_value_heads", 2)):
        width = getattr(config, "hidden_size", None)
        wide = isinstance(width, int) and width > 1024
        if (((width and name != "hidden_size") or wide)
                and isinstance(getattr(config, name, None), int)
                and getattr(config, "_narrow", wide)):
            config.__dict__["_narrow"] = True
            setattr(config, name, small)
    config.__dict__.pop("_narrow", None)
    return config


def _choices(name, config):
    """What an argument of forward() may be."""
    import torch

    def of(key, default):
        for held in (config, getattr(config, "vision_config", None),
                     getattr(config, "backbone_config", None)):
            value = getattr(held, key, None)
            if value is not None:
                return value
        return default

    channels = of("num_channels", of("in_channels", 3))
    if not isinstance(channels, int):
        channels = 3
    size = of("image_size", 224)
    size = size if isinstance(size, (list, tuple)) else (size, size)
    size = tuple(size)[-2:] if len(tuple(size)) > 1 else (224, 224)
    if name == "pixel_values":
        found = [randn(1, channels, *size)] if max(size) <= 256 else []
        found += [randn(1, channels, s, s) for s in (64, 224)]
        found += [randn(1, 8, channels, s, s) for s in (64, 224)]
        found += [randn(1, 16, channels, *size)] if max(size) <= 256 else []
        if 256 < max(size) <= 1024:
            found.append(randn(1, channels, *size))
        found.append(randn(1, 2, channels, 64, 64))
        return found
    if name in ("pixel_values_videos", "videos"):
        return [randn(1, 16, 3, *size)] if max(size) <= 256 else [randn(1, 16, 3, 64, 64)]
    if name in ("input_values", "audio_values", "waveform", "audio"):
        return [randn(1, 4000), randn(1, 1, 4000), randn(1, of("max_length", 1024),
                                                        of("num_mel_bins", 128)),
                randn(1, 1, 100, 64), randn(1, 16000), randn(1, 2, 4000)]
    if name == "input_features":
        mel = of("num_mel_bins", of("input_feat_per_channel", 80))
        mel = mel if isinstance(mel, int) else 80
        return [randn(1, mel, 2 * of("max_source_positions", 1500)), randn(1, 100, mel),
                randn(1, mel, 100), randn(1, 1, 1001, 64), randn(2, 100, 160)]
    if name == "spectrogram":
        return [randn(1, 30, of("model_in_dim", of("num_mel_bins", 80)))]
    if name in ("input_ids", "decoder_input_ids", "text_input_ids"):
        return [ids(100, 1, 12) + 3, ids(100, 1, 5) + 3]
    if name == "past_values":
        return [randn(1, of("context_length", 32), of("num_input_channels", 1))]
    if name in ("attention_mask", "decoder_attention_mask"):
        return [torch.ones(1, 12, dtype=torch.long)]
    return []


def _wanted(model):
    names = [p for p in inspect.signature(model.forward).parameters
             if p in ("pixel_values", "pixel_values_videos", "input_values", "input_features",
                      "audio_values", "waveform", "spectrogram", "input_ids", "audio",
                      "decoder_input_ids", "past_values")]
    if "input_values" in names and "decoder_input_ids" in names and "input_ids" in names:
        names.remove("input_ids")
    return names


def _transformers(kind, config_kind, sub):
    import torch
    import transformers

    config = getattr(transformers, config_kind)()
    if sub:
        config = getattr(config, sub)
    _shrink(config)
    with torch.device("meta"):
        count = sum(p.numel() for p in getattr(transformers, kind)(config).parameters())
    if count > 1.5e8:
        raise ValueError(f"{count} parameters")
    model = getattr(transformers, kind)(config).eval().float()
    names = _wanted(model)
    failure: Exception | None = None
    tried = 0
    for some in (names, [n for n in names if n != "input_ids"], names[:1]):
        options = [_choices(name, config) for name in some]
        if not all(options):
            continue
        for values in itertools.product(*options):
            tried += 1
            if tried > 14:
                break
            given = dict(zip(some, values))
            try:
                with torch.no_grad():
                    model(**given)
                return model, [((), given)]
            except Exception as error:
                failure = failure or error
    raise ValueError(f"no input fits ({', '.join(names)}): {failure}")


@functools.cache
def _convolves(model_type):
    """Whether the file of such models speaks of convolutions."""
    import pathlib

    import transformers
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    folder = pathlib.Path(transformers.__path__[0], "models", model_type_to_module_name(model_type))
    return any(re.search(r"nn\.(Conv|Lazy)|Backbone", path.read_text())
               for path in folder.glob("modeling_*.py"))


def _transformers_cases():
    import transformers

    found: dict[str, Case] = {}
    heads: dict[str, int] = {}
    for mapping_name in _MAPPINGS:
        mapping = getattr(transformers, mapping_name, None)
        if mapping is None:
            continue
        names = mapping._model_mapping
        for model_type, kinds in names.items():
            config_kind = mapping._config_mapping.get(model_type)
            if config_kind is None or not _convolves(model_type):
                continue
            heads[model_type] = heads.get(model_type, 0) + 1
            if heads[model_type] > 3:
                continue
            for kind in kinds if isinstance(kinds, (list, tuple)) else (kinds,):
                if mapping_name == "MODEL_FOR_CAUSAL_LM_MAPPING" and not any(
                        w in model_type for w in ("mamba", "jamba", "zamba", "rwkv", "gemma3n",
                                                  "recurrent", "lfm2", "falcon_h1", "bamba",
                                                  "next", "xlstm", "nemotron_h", "trocr")):
                    continue
                found.setdefault(kind, Case(kind, functools.partial(
                    _transformers, kind, config_kind, "")))
    for kind, config in (("SamModel", "SamConfig"), ("UnivNetModel", "UnivNetConfig"),
                         ("SpeechT5HifiGan", "SpeechT5HifiGanConfig"),
                         ("FastSpeech2ConformerHifiGan", "FastSpeech2ConformerHifiGanConfig"),
                         ("VitMatteForImageMatting", "VitMatteConfig"),
                         ("CLIPSegForImageSegmentation", "CLIPSegConfig"),
                         ("Wav2Vec2ForPreTraining", "Wav2Vec2Config"),
                         ("ViTMAEForPreTraining", "ViTMAEConfig"),
                         ("VideoMAEForPreTraining", "VideoMAEConfig"),
                         ("EncodecModel", "EncodecConfig"), ("DacModel", "DacConfig"),
                         ("MimiModel", "MimiConfig"), ("XcodecModel", "XcodecConfig"),
                         ("Swin2SRForImageSuperResolution", "Swin2SRConfig"),
                         ("EfficientLoFTRModel", "EfficientLoFTRConfig")):
        if hasattr(transformers, kind) and hasattr(transformers, config):
            found.setdefault(kind, Case(kind, functools.partial(_transformers, kind, config, "")))
    for case in found.values():
        case.discrete = any(w in case.name for w in (
            "Mimi", "Encodec", "Dac", "Xcodec", "Keypoint", "SuperPoint", "LoFTR", "Glue",
            "Deformable", "RTDetr", "DFine", "Mask2Former", "OmDet", "GroundingDino", "LwDetr",
            "PPDocLayout", "RfDetr", "Deimv2", "VQ", "Tokenizer", "Neucodec", "NeuCodec"))
    yield from found.values()


def _vision_towers():
    """The encoders of pictures and sound inside of larger models."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    mapping = transformers.MODEL_MAPPING
    seen = set()
    for config_kind in CONFIG_MAPPING_NAMES.values():
        for sub in _SUBS:
            try:
                kind = getattr(transformers, config_kind)
                part = kind.sub_configs.get(sub) if hasattr(kind, "sub_configs") else None
                if part is None or part in seen or part.__name__ == "AutoConfig":
                    continue
                seen.add(part)
                model = mapping[part]
                model = model[0] if isinstance(model, (list, tuple)) else model
            except Exception:
                continue
            yield Case(f"{config_kind}.{sub}", functools.partial(
                _transformers, model.__name__, part.__name__, ""))


# ---- diffusers -----------------------------------------------------------------------------------


def _diffusers(kind, keywords, inputs):
    import diffusers

    made = getattr(diffusers, kind, None)
    if made is None:
        from diffusers.models import unets

        made = getattr(unets, kind)
    return made(**keywords), [(args, more) for args, more in inputs()]


_UNET = {"sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1,
         "norm_num_groups": 4}
_COND = _UNET | {"cross_attention_dim": 16, "attention_head_dim": 4, "in_channels": 4,
                 "out_channels": 4, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                 "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}


def _t(*values):
    import torch

    return torch.tensor(values)


def _with_text(channels=4, **more):
    return lambda: [((randn(1, channels, 16, 16), _t(7), randn(1, 5, 16)), more),
                    ((randn(2, channels, 24, 16), _t(9), randn(2, 5, 16)), more)]


def _diffusers_cases():
    with_text = _with_text()

    def case(kind, label="", inputs=with_text, discrete=False, method="", **keywords):
        return Case(f"{kind} {label}".strip(),
                    functools.partial(_diffusers, kind, keywords, inputs),
                    discrete=discrete, method=method)

    plain = lambda channels=3, size=16: (lambda: [((randn(1, channels, size, size), 5), {}),
                                                  ((randn(2, channels, size, 2 * size), 5), {})])
    for down, up in (("DownBlock2D", "UpBlock2D"), ("AttnDownBlock2D", "AttnUpBlock2D"),
                     ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D"),
                     ("SkipDownBlock2D", "SkipUpBlock2D"),
                     ("AttnSkipDownBlock2D", "AttnSkipUpBlock2D"),
                     ("KDownBlock2D", "KUpBlock2D"),
                     ("DownEncoderBlock2D", "UpDecoderBlock2D")):
        yield case("UNet2DModel", down, plain(), **_UNET, attention_head_dim=4,
                   down_block_types=("DownBlock2D", down), up_block_types=(up, "UpBlock2D"))
    for label, more in (
        ("scale_shift", {"resnet_time_scale_shift": "scale_shift"}),
        ("fir", {"downsample_type": "resnet", "upsample_type": "resnet"}),
        ("fourier", {"time_embedding_type": "fourier"}),
        ("class", {"num_class_embeds": 5, "class_embed_type": None}),
    ):
        inputs = plain()
        if label == "class":
            inputs = lambda: [((randn(1, 3, 16, 16), 5), {"class_labels": _t(2)})]
        yield case("UNet2DModel", label, inputs, **_UNET, attention_head_dim=4, **more,
                   down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                   up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    yield case("UNet2DConditionModel", **_COND)
    for label, more in (
        ("linear", {"use_linear_projection": True}), ("act", {"act_fn": "gelu"}),
        ("dual", {"dual_cross_attention": True}), ("upcast", {"upcast_attention": True}),
        ("only cross", {"only_cross_attention": True}),
        ("shift", {"resnet_time_scale_shift": "scale_shift", "resnet_skip_time_act": True,
                   "resnet_out_scale_factor": 1.4}),
        ("kernels", {"conv_in_kernel": 5, "conv_out_kernel": 1}),
        ("transformer layers", {"transformer_layers_per_block": 2}),
        ("fourier", {"time_embedding_type": "fourier"}),
        ("attention", {"attention_type": "gated"}),
        ("mid", {"mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}),
        ("no mid", {"mid_block_type": None}),
        ("simple", {"down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
                    "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
                    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}),
        ("k", {"down_block_types": ("KDownBlock2D", "KCrossAttnDownBlock2D"),
               "up_block_types": ("KCrossAttnUpBlock2D", "KUpBlock2D"), "mid_block_type": None,
               "act_fn": "gelu", "time_embedding_type": "fourier",
               "resnet_time_scale_shift": "scale_shift", "time_cond_proj_dim": None,
               "norm_num_groups": 4}),
    ):
        yield case("UNet2DConditionModel", label, **(_COND | more))
    yield case("UNet2DConditionModel", "freeu", **_COND)
    yield Case("UNet2DConditionModel changed", _unet_changed)
    yield Case("UNet2DConditionModel sliced", functools.partial(_unet_changed, True))
    yield case("ControlNetModel", "", lambda: [(
        (randn(1, 4, 16, 16), _t(7), randn(1, 5, 16), randn(1, 3, 32, 32)), {})],
        **{k: v for k, v in _COND.items() if k not in ("sample_size", "out_channels",
                                                       "up_block_types")},
        conditioning_embedding_out_channels=(8, 16))
    yield case("SparseControlNetModel", "", lambda: [(
        (randn(1, 4, 4, 16, 16), _t(7), randn(1, 5, 16), randn(1, 4, 4, 16, 16)),
        {"conditioning_mask": randn(1, 1, 4, 16, 16)})], in_channels=4,
        conditioning_channels=4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
        cross_attention_dim=16, attention_head_dim=4, motion_num_attention_heads=2,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        use_simplified_condition_embedding=True)
    yield case("ControlNetUnionModel", "", lambda: [(
        (randn(1, 4, 16, 16), _t(7), randn(1, 5, 16), [randn(1, 3, 128, 128)], _t(1), [1],
         [1.0]), {})],
        **{k: v for k, v in _COND.items() if k not in ("sample_size", "out_channels",
                                                       "up_block_types")},
        conditioning_embedding_out_channels=(8, 16), num_trans_channel=8, num_trans_head=2,
        num_trans_layer=1, num_proj_channel=8)
    yield case("UNetControlNetXSModel", "", lambda: [(
        (randn(1, 4, 16, 16), _t(7), randn(1, 5, 16), randn(1, 3, 128, 128)), {})],
        sample_size=16, block_out_channels=(8, 16), norm_num_groups=4, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=1,
        num_attention_heads=2, ctrl_block_out_channels=(4, 8), ctrl_norm_num_groups=2,
        ctrl_num_attention_heads=2, ctrl_conditioning_embedding_out_channels=(8, 16))
    for kind in ("full_adapter", "full_adapter_xl", "light_adapter"):
        yield case("T2IAdapter", kind, lambda: [((randn(1, 3, 64, 64),), {})], in_channels=3,
                   channels=[8, 16, 16, 16], num_res_blocks=1, adapter_type=kind,
                   downscale_factor=16 if kind == "full_adapter_xl" else 8)
    film = lambda: [((randn(1, 4, 4, 16, 16), _t(7), randn(1, 5, 16)), {})]
    yield case("UNet3DConditionModel", "", film, sample_size=16, block_out_channels=(8, 16),
               layers_per_block=1, norm_num_groups=4, cross_attention_dim=16, attention_head_dim=4,
               down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
               up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"))
    yield case("UNetMotionModel", "", film, sample_size=16, block_out_channels=(8, 16),
               layers_per_block=1, norm_num_groups=4, cross_attention_dim=16,
               num_attention_heads=2, motion_num_attention_heads=2,
               down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
               up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"))
    yield case("UNetSpatioTemporalConditionModel", "", lambda: [(
        (randn(1, 4, 8, 16, 16), _t(7), randn(1, 1, 16), randn(1, 3)), {})], sample_size=16,
        in_channels=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=16,
        num_attention_heads=(2, 4), addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24, num_frames=4,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"))
    yield case("I2VGenXLUNet", "", lambda: [((
        randn(1, 4, 4, 16, 16), _t(7), _t(8), randn(1, 4, 4, 16, 16), randn(1, 16)),
        {"encoder_hidden_states": randn(1, 5, 16)})], sample_size=16, block_out_channels=(8, 16),
        layers_per_block=1, norm_num_groups=4, cross_attention_dim=16, attention_head_dim=4,
        num_attention_heads=2, down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"))
    yield case("Kandinsky3UNet", "", lambda: [(
        (randn(1, 4, 16, 16), _t(7), randn(1, 5, 16)),
        {"encoder_attention_mask": randn(1, 5).gt(-9)})], block_out_channels=(32, 64),
        layers_per_block=1, groups=4, cross_attention_dim=32, attention_head_dim=8,
        time_embedding_dim=32, encoder_hid_dim=16, add_cross_attention=(False, True),
        add_self_attention=(False, True))
    yield case("StableCascadeUNet", "", lambda: [((randn(1, 4, 16, 16), randn(1).abs(),
                                                  randn(1, 1, 16)), {})], in_channels=4,
               out_channels=4, conditioning_dim=16, block_out_channels=(16, 32),
               num_attention_heads=(2, 2), down_num_layers_per_block=(1, 1),
               up_num_layers_per_block=(1, 1), down_blocks_repeat_mappers=(1, 1),
               up_blocks_repeat_mappers=(1, 1), clip_text_pooled_in_channels=16,
               block_types_per_layer=(("SDCascadeResBlock", "SDCascadeTimestepBlock"),) * 2,
               timestep_ratio_embedding_dim=16, dropout=(0.0, 0.0), switch_level=(False,),
               self_attn=True, pixel_mapper_in_channels=None)
    yield case("UVit2DModel", "", lambda: [((ids(30, 1, 8, 8), randn(1, 5, 16), randn(1, 16),
                                            randn(1, 5)), {})],
               hidden_size=32, block_out_channels=32, encoder_hidden_size=16, cond_embed_dim=16,
               micro_cond_encode_dim=8, micro_cond_embed_dim=40, vocab_size=33, codebook_size=32,
               num_hidden_layers=1, num_attention_heads=2, in_channels=32, block_num_heads=2,
               num_res_blocks=1, intermediate_size=64)
    yield case("UNet1DModel", "", lambda: [((randn(2, 14, 16), 5), {})], block_out_channels=(
        8, 16, 16, 16), in_channels=14, out_channels=14, time_embedding_type="positional",
        act_fn="silu", layers_per_block=1, norm_num_groups=4, out_block_type="OutConv1DBlock",
        flip_sin_to_cos=False, freq_shift=1.0, mid_block_type="MidResTemporalBlock1D",
        down_block_types=("DownResnetBlock1D",) * 4, up_block_types=("UpResnetBlock1D",) * 3,
        use_timestep_embedding=True)
    yield case("UNet1DModel", "value", lambda: [((randn(2, 14, 16), 5), {})], block_out_channels=(
        8, 16, 16, 16), in_channels=14, out_channels=14, time_embedding_type="positional",
        act_fn="mish", layers_per_block=1, norm_num_groups=4, out_block_type="ValueFunction",
        flip_sin_to_cos=False, freq_shift=1.0, mid_block_type="ValueFunctionMidBlock1D",
        down_block_types=("DownResnetBlock1D",) * 4, up_block_types=(), downsample_each_block=True,
        use_timestep_embedding=True)
    yield case("UNet1DModel", "attention", lambda: [((randn(1, 2, 256), 5), {})], sample_size=256,
               block_out_channels=(8, 8, 16), down_block_types=("DownBlock1DNoSkip", "DownBlock1D",
                                                                "AttnDownBlock1D"),
               up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
               extra_in_channels=16)
    picture = lambda: [((randn(1, 3, 32, 32),), {}), ((randn(2, 3, 32, 64),), {})]
    small = {"block_out_channels": (8, 16), "norm_num_groups": 4,
             "down_block_types": ("DownEncoderBlock2D",) * 2,
             "up_block_types": ("UpDecoderBlock2D",) * 2}
    yield case("AutoencoderKL", "", picture, **small)
    yield case("VQModel", "", picture, discrete=True, num_vq_embeddings=16, **small)
    yield case("VQModel", "spatial", picture, discrete=True, num_vq_embeddings=16,
               norm_type="spatial", **small)
    yield case("AsymmetricAutoencoderKL", "", picture, down_block_out_channels=(8, 16),
               up_block_out_channels=(8, 16), norm_num_groups=4,
               down_block_types=("DownEncoderBlock2D",) * 2,
               up_block_types=("UpDecoderBlock2D",) * 2)
    yield case("AutoencoderTiny", "", picture, encoder_block_out_channels=(8, 8),
               decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 2),
               num_decoder_blocks=(2, 1))
    yield case("AutoencoderOobleck", "", lambda: [((randn(1, 2, 512),), {})],
               encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_channels=8,
               decoder_input_channels=8, channel_multiples=[1, 2])
    yield case("AutoencoderDC", "", picture, latent_channels=4,
               attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
               decoder_block_types=("ResBlock", "EfficientViTBlock"),
               encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
               encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
               encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1],
               downsample_block_type="conv", upsample_block_type="interpolate",
               decoder_norm_types="rms_norm", decoder_act_fns="silu")
    yield case("AutoencoderKLTemporalDecoder", "", lambda: [(
        (randn(3, 3, 32, 32),), {"num_frames": 3})], block_out_channels=(32, 64),
        layers_per_block=1, down_block_types=("DownEncoderBlock2D",) * 2)
    yield case("AutoencoderKLMagvit", "", lambda: [((randn(1, 3, 5, 32, 32),), {})],
               block_out_channels=[8, 8, 8], layers_per_block=1, norm_num_groups=4,
               down_block_types=["SpatialDownBlock3D", "SpatialTemporalDownBlock3D",
                                 "SpatialTemporalDownBlock3D"],
               up_block_types=["SpatialUpBlock3D", "SpatialTemporalUpBlock3D",
                               "SpatialTemporalUpBlock3D"], spatial_group_norm=True)
    yield case("AutoencoderKLAllegro", "", lambda: [((randn(1, 3, 8, 32, 32),), {})],
               block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=2,
               temporal_compression_ratio=4)
    yield case("AutoencoderKLHunyuanVideo", "", lambda: [((randn(1, 3, 5, 16, 16),), {})],
               block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=2)
    yield case("ConsistencyDecoderVAE", "", lambda: [((randn(1, 3, 32, 32),), {})],
               encoder_block_out_channels=[8, 16], encoder_norm_num_groups=4,
               encoder_down_block_types=["DownEncoderBlock2D"] * 2, encoder_layers_per_block=1,
               decoder_block_out_channels=[8, 16], decoder_layers_per_block=1,
               decoder_down_block_types=["ResnetDownsampleBlock2D"] * 2,
               decoder_up_block_types=["ResnetUpsampleBlock2D"] * 2, decoder_norm_num_groups=4)
    yield from _diffusers_transformers(case)


def _unet_changed(sliced=False):
    """After the switches that a pipeline sets."""
    import diffusers

    model = diffusers.UNet2DConditionModel(**_COND)
    if sliced:
        model.set_attention_slice("auto")
    else:
        model.enable_freeu(0.9, 0.2, 1.2, 1.4)
        model.set_attn_processor(diffusers.models.attention_processor.AttnProcessor())
        model.fuse_qkv_projections()
    return model, _with_text()()


def _diffusers_transformers(case):
    heads = {"num_attention_heads": 2, "attention_head_dim": 16}
    yield case("DiTTransformer2DModel", "", lambda: [(
        (randn(1, 4, 16, 16), _t(3), _t(1)), {})], sample_size=16, num_layers=1, **heads,
        num_embeds_ada_norm=9)
    yield case("Transformer2DModel", "", lambda: [((randn(1, 32, 8, 8), randn(1, 5, 16)), {})],
               in_channels=32, num_layers=1, cross_attention_dim=16, norm_num_groups=4, **heads)
    yield case("Transformer2DModel", "linear", lambda: [(
        (randn(1, 32, 8, 8), randn(1, 5, 16)), {})], in_channels=32, num_layers=1,
        cross_attention_dim=16, norm_num_groups=4, use_linear_projection=True, **heads)
    yield case("PixArtTransformer2DModel", "", lambda: [((randn(1, 4, 16, 16),), {
        "encoder_hidden_states": randn(1, 5, 16), "timestep": _t(3),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}})], sample_size=16,
        num_layers=1, cross_attention_dim=32, caption_channels=16, norm_type="ada_norm_single",
        **heads)
    yield case("SD3Transformer2DModel", "", lambda: [((randn(1, 4, 16, 16),), {
        "encoder_hidden_states": randn(1, 5, 16), "pooled_projections": randn(1, 24),
        "timestep": _t(3)})], sample_size=16, in_channels=4, out_channels=4, num_layers=1,
        caption_projection_dim=32, joint_attention_dim=16, pooled_projection_dim=24,
        pos_embed_max_size=16, **heads)
    yield case("HunyuanDiT2DModel", "", lambda: [((randn(1, 4, 16, 16), _t(3)), {
        "encoder_hidden_states": randn(1, 7, 16), "text_embedding_mask": randn(1, 7).gt(-9),
        "encoder_hidden_states_t5": randn(1, 5, 16), "text_embedding_mask_t5":
        randn(1, 5).gt(-9), "image_meta_size": randn(1, 6), "style": _t(0),
        "image_rotary_emb": [randn(64, 16), randn(64, 16)]})], sample_size=16, patch_size=2,
        hidden_size=32, num_layers=2, cross_attention_dim=16, cross_attention_dim_t5=16,
        pooled_projection_dim=16, text_len=7, text_len_t5=5, **heads)
    for kind in ("SanaTransformer2DModel",):
        yield case(kind, "", lambda: [((randn(1, 4, 16, 16),), {
            "encoder_hidden_states": randn(1, 5, 16), "timestep": _t(3)})], in_channels=4,
            out_channels=4, num_layers=2, num_attention_heads=2, attention_head_dim=16,
            num_cross_attention_heads=2, cross_attention_head_dim=16, cross_attention_dim=32,
            caption_channels=16, sample_size=16)
    yield case("CogVideoXTransformer3DModel", "", lambda: [((randn(1, 2, 4, 8, 8),), {
        "encoder_hidden_states": randn(1, 5, 16), "timestep": _t(3)})], in_channels=4,
        out_channels=4, num_layers=1, text_embed_dim=16, sample_width=8, sample_height=8,
        sample_frames=5, max_text_seq_length=5, time_embed_dim=8, **heads)
    yield case("LatteTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8), _t(3)), {
        "encoder_hidden_states": randn(1, 5, 16), "enable_temporal_attentions": True})],
        in_channels=4, out_channels=8, num_layers=1, sample_size=8, cross_attention_dim=32,
        caption_channels=16, video_length=2, patch_size=2, **heads)
    yield case("AllegroTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8),), {
        "encoder_hidden_states": randn(1, 5, 16), "timestep": _t(3),
        "attention_mask": randn(1, 2, 8, 8).gt(-9)})], in_channels=4, out_channels=4,
        num_layers=1, cross_attention_dim=32, caption_channels=16, sample_width=8,
        sample_height=8, sample_frames=2, num_attention_heads=2, attention_head_dim=18)
    wan = {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12,
           "in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 32, "ffn_dim": 32,
           "num_layers": 2, "rope_max_seq_len": 32}
    yield case("WanTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8),), {
        "timestep": _t(3), "encoder_hidden_states": randn(1, 5, 16)})], **wan)
    yield case("SkyReelsV2Transformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8),), {
        "timestep": _t(3), "encoder_hidden_states": randn(1, 5, 16)})], **wan)
    yield case("WanVACETransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8),), {
        "timestep": _t(3), "encoder_hidden_states": randn(1, 5, 16),
        "control_hidden_states": randn(1, 6, 2, 8, 8)})], **wan, vace_layers=[0],
        vace_in_channels=6)
    yield case("HunyuanVideoTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8), _t(3),
        randn(1, 5, 16), randn(1, 5).gt(-9), randn(1, 8)), {"guidance": _t(1000)})],
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1,
        guidance_embeds=True, text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(2, 4, 4))
    yield case("MochiTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8), randn(1, 5, 16),
        _t(3), randn(1, 5).gt(-9)), {})], patch_size=2, num_attention_heads=2,
        attention_head_dim=8, num_layers=2, pooled_projection_dim=16, in_channels=4,
        text_embed_dim=16, time_embed_dim=4, activation_fn="swiglu", max_sequence_length=5)
    yield case("EasyAnimateTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8), _t(3)), {
        "encoder_hidden_states": randn(1, 5, 16)})], num_attention_heads=2,
        attention_head_dim=16, in_channels=4, out_channels=4, num_layers=1, text_embed_dim=16,
        time_embed_dim=8, mmdit_layers=1, sample_width=8, sample_height=8)
    yield case("AuraFlowTransformer2DModel", "", lambda: [((randn(1, 4, 16, 16),), {
        "encoder_hidden_states": randn(1, 5, 16), "timestep": _t(3)})], sample_size=16,
        in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, caption_projection_dim=32,
        joint_attention_dim=16, out_channels=4, pos_embed_max_size=64, **heads)
    yield case("CosmosTransformer3DModel", "", lambda: [((randn(1, 4, 2, 8, 8), _t(3)), {
        "encoder_hidden_states": randn(1, 5, 16), "fps": 30,
        "padding_mask": randn(1, 1, 64, 64)})], in_channels=4, out_channels=4,
        num_attention_heads=2, attention_head_dim=12, num_layers=1, mlp_ratio=2,
        text_embed_dim=16, adaln_lora_dim=4, max_size=(4, 32, 32), patch_size=(1, 2, 2),
        rope_scale=(2.0, 1.0, 1.0), concat_padding_mask=True, extra_pos_embed_type="learnable")


# ---- sound ---------------------------------------------------------------------------------------


def _sound_cases():
    import sys
    import unittest.mock

    # NOTE: it reads files, for which the packages want it, and must fit PyTorch's own version.
    for name in ("torchaudio", "torchaudio.transforms", "torchaudio.functional",
                 "torchaudio.functional.functional"):
        sys.modules.setdefault(name, unittest.mock.MagicMock())

    def dac_model():
        import dac

        return dac.DAC(encoder_dim=8, encoder_rates=[2, 4], decoder_dim=32, decoder_rates=[4, 2],
                       latent_dim=16, n_codebooks=2, codebook_size=16, codebook_dim=4), [
            ((randn(1, 1, 512),), {})]

    def encodec_model(bandwidth=6.0, channels=1):
        import encodec

        model = encodec.EncodecModel._get_model([6.0], sample_rate=24000, channels=channels,
                                                causal=channels == 1,
                                                model_norm="weight_norm" if channels == 1
                                                else "time_group_norm")
        model.set_target_bandwidth(bandwidth)
        return model, [((randn(1, channels, 4000),), {})]

    def seanet(which):
        from encodec import modules

        if which == "encoder":
            return modules.SEANetEncoder(n_filters=4, dimension=8, ratios=[4, 2]), [
                ((randn(1, 1, 800),), {})]
        return modules.SEANetDecoder(n_filters=4, dimension=8, ratios=[4, 2]), [
            ((randn(1, 8, 40),), {})]

    def vocos_model():
        import torch
        from vocos.heads import ISTFTHead
        from vocos.models import VocosBackbone

        return torch.nn.Sequential(VocosBackbone(80, 32, 64, 2), ISTFTHead(32, 64, 16)), [
            ((randn(1, 80, 30),), {})]

    yield Case("DAC", dac_model, discrete=True)
    yield Case("Encodec", encodec_model, discrete=True)
    yield Case("Encodec stereo", functools.partial(encodec_model, channels=2), discrete=True)
    yield Case("SEANet encoder", functools.partial(seanet, "encoder"))
    yield Case("SEANet decoder", functools.partial(seanet, "decoder"))
    yield Case("Vocos", vocos_model)


BY_PACKAGE: dict[str, Any] = {
    "transformers": _transformers_cases, "towers": _vision_towers, "diffusers": _diffusers_cases,
    "sound": _sound_cases,
}
