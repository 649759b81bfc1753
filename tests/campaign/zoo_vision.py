# SPDX-License-Identifier: Apache-2.0
"""Models for models.py, of packages of pictures and volumes: timm, torchvision,
segmentation-models-pytorch, MONAI, kornia, spandrel, ultralytics, open_clip.

Not a program: `models.py PACKAGE... --out F --skip-done` runs them, and says what must be installed
by hand. A package is imported where its models are asked for; nothing is fetched.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Case:
    """make: gives the model and a list of (args, kwargs) that it is called with. discrete: small
    errors may change the result as a whole (boxes that are sorted, pixels that are chosen)."""

    name: str
    make: Callable[[], tuple[Any, list]]
    discrete: bool = False
    method: str = ""


def pictures(*shapes):
    import torch

    generator = torch.Generator().manual_seed(11)
    return [((torch.randn(shape, generator=generator),), {}) for shape in shapes]


def randn(*shape, seed=12):
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(most, *shape, seed=13):
    import torch

    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


# ---- timm ----------------------------------------------------------------------------------------


_SIZES = ("test", "atto", "femto", "pico", "nano", "zepto", "xxt", "xxs", "xt", "xs", "tiny", "_t",
          "small", "_s", "lite", "b0", "_0", "14", "18", "26", "34", "50", "base")


def _timm_names():
    """Two or three small members of each family, by their names."""
    import timm

    families: dict[str, list[tuple[int, str]]] = {}
    for name in timm.list_models():
        config = timm.get_pretrained_cfg(name)
        if (config and config.input_size[-1] > 400) or re.search(
                r"large|huge|giant|gigantic|enormous|_[1-9]b_|_xxlarge|_xl|_[lmhg]_|_[lmhg]$|"
                r"152|200|269|so150m|so400m", name):
            continue
        size = next((i for i, word in enumerate(_SIZES) if word in name), len(_SIZES))
        family = re.sub(r"[\d_].*", "", name) + ":" + timm.model_entrypoint(name).__module__
        families.setdefault(family, []).append((size, name))
    chosen = []
    for members in families.values():
        members.sort()
        chosen += [members[0][1]]
        if len(members) > 3:
            chosen.append(members[1][1])
        if len(members) > 8:
            chosen.append(members[len(members) // 2][1])
    return list(dict.fromkeys(chosen))


def _timm(name, **keywords):
    import timm
    import torch

    config = timm.get_pretrained_cfg(name)
    size = config.input_size[-1] if config else 224
    sizes = [size]
    if not (config and config.fixed_input_size):
        sizes = [96, 128]
    with torch.device("meta"):
        count = sum(p.numel() for p in timm.create_model(name).parameters())
    if count > 7e7:
        raise ValueError(f"{count} parameters")
    model = timm.create_model(name, pretrained=False, **keywords)
    for tried in (sizes, [size]):
        inputs = pictures(*((2 if s < 100 else 1, 3, s, s) for s in tried))
        try:
            with torch.no_grad():
                for args, _ in inputs:
                    model.eval()(*args)
            break
        except Exception:
            continue
    return model, inputs


def _timm_cases():
    for name in _timm_names():
        yield Case(name, functools.partial(_timm, name))
    for name in ("resnet18", "hrnet_w18_small", "efficientnet_b0", "convnext_atto",
                 "mobilenetv3_small_050", "regnetx_002", "swin_tiny_patch4_window7_224",
                 "mobilevit_xxs", "resnest14d", "cspresnet50", "dla34", "maxvit_pico_rw_256",
                 "edgenext_xx_small"):
        yield Case(f"features {name}", functools.partial(_timm, name, features_only=True))


# ---- torchvision ---------------------------------------------------------------------------------


def _torchvision(name, shapes, as_list=False, pair=False, **keywords):
    import torchvision

    keywords = {"weights": None} | keywords
    model = torchvision.models.get_model(name, **keywords)
    inputs = pictures(*shapes)
    if as_list:
        inputs = [((list(args[0]),), {}) for args, _ in inputs]
    if pair:
        inputs = [((args[0], args[0].flip(-1)), {}) for args, _ in inputs]
    return model, inputs


def _torchvision_cases():
    import torchvision

    models = torchvision.models
    for name in models.list_models(models):
        if re.search(r"vit_[lh]|regnet_[xy]_(8|16|32|128)gf|efficientnet_b[3-7]|_l$|"
                     r"vgg1[139]$|101|152|large$|_m$", name):
            continue
        keywords = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        shapes = [(1, 3, 224, 224)]
        if not name.startswith(("vit", "swin", "maxvit", "inception", "alexnet")):
            shapes = [(2, 3, 96, 96), (1, 3, 128, 128)]
        yield Case(name, functools.partial(_torchvision, name, shapes, **keywords))
    for name in models.list_models(models.segmentation):
        yield Case(name, functools.partial(_torchvision, name, [(1, 3, 64, 96), (1, 3, 96, 96)],
                                           weights_backbone=None, aux_loss=True, num_classes=5)
                   if "lraspp" not in name else functools.partial(
                       _torchvision, name, [(1, 3, 64, 96)], weights_backbone=None, num_classes=5))
    for name in models.list_models(models.detection):
        yield Case(name, functools.partial(_torchvision, name, [(1, 3, 96, 96)], as_list=True,
                                           weights_backbone=None, min_size=96, max_size=128)
                   if "ssd" not in name else functools.partial(
                       _torchvision, name, [(1, 3, 96, 96)], as_list=True, weights_backbone=None),
                   discrete=True)
    for name in models.list_models(models.video):
        size = 224 if name.startswith(("mvit", "swin3d")) else 64
        frames = 16 if name.startswith(("mvit", "s3d")) else 8
        if re.search(r"_b$|mvit_v2|swin3d_s", name):
            continue
        yield Case(name, functools.partial(_torchvision, name, [(1, 3, frames, size, size)]))
    for name in models.list_models(models.optical_flow):
        yield Case(name, functools.partial(_torchvision, name, [(1, 3, 128, 128)], pair=True))
    for name in models.list_models(models.quantization):
        if "resnet18" in name or "mobilenet_v2" in name or "shufflenet_v2_x0" in name:
            yield Case(name, functools.partial(_torchvision, name, [(1, 3, 64, 64)]))


# ---- segmentation-models-pytorch -----------------------------------------------------------------


def _smp(architecture, encoder, **keywords):
    import segmentation_models_pytorch as smp

    model = smp.create_model(architecture, encoder_name=encoder, encoder_weights=None, classes=3,
                             **keywords)
    return model, pictures((1, 3, 64, 64), (1, 3, 96, 64))


def _smp_cases():
    for architecture in ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3",
                         "DeepLabV3Plus", "PAN", "UPerNet", "Segformer", "DPT"):
        for encoder in ("resnet18", "efficientnet-b0", "mobilenet_v2", "tu-convnext_atto"):
            if architecture == "DPT":
                encoder = "tu-vit_tiny_patch16_224"
            yield Case(f"{architecture} {encoder}", functools.partial(_smp, architecture, encoder))
            if architecture == "DPT":
                break
    for encoder in ("densenet121", "dpn68", "xception", "inceptionv4", "vgg11_bn", "mit_b0",
                    "timm-regnetx_002", "timm-skresnet18", "timm-gernet_s", "mobileone_s0",
                    "timm-efficientnet-lite0", "se_resnext50_32x4d", "timm-mobilenetv3_small_100",
                    "timm-res2net50_26w_4s", "inceptionresnetv2", "tu-hrnet_w18_small"):
        yield Case(f"Unet {encoder}", functools.partial(_smp, "Unet", encoder))
    yield Case("Unet scse", functools.partial(_smp, "Unet", "resnet18",
                                              decoder_attention_type="scse"))
    yield Case("Unet classes", functools.partial(
        _smp, "Unet", "resnet18", aux_params={"classes": 4, "dropout": 0.2}))


# ---- MONAI ---------------------------------------------------------------------------------------


def _monai(name, shapes, args=(), **keywords):
    import monai.networks.nets as nets

    return getattr(nets, name)(*args, **keywords), pictures(*shapes)


def _monai_cases():
    flat, deep = [(1, 1, 64, 64), (2, 1, 96, 64)], [(1, 1, 32, 32, 32)]
    both = {"in_channels": 1, "out_channels": 2}
    for dims, shapes in ((2, flat), (3, deep)):
        def case(name, label="", shapes=shapes, dims=dims, **keywords):
            keywords.setdefault("spatial_dims", dims)
            return Case(f"{name} {dims}-D{label}",
                        functools.partial(_monai, name, shapes, **keywords))

        yield case("UNet", **both, channels=(4, 8, 16), strides=(2, 2), num_res_units=2)
        yield case("UNet", " plain", **both, channels=(4, 8, 16), strides=(2, 2), norm="batch",
                   act="prelu")
        yield case("AttentionUnet", **both, channels=(4, 8, 16), strides=(2, 2))
        yield case("BasicUNet", **both, features=(4, 4, 8, 8, 16, 4))
        yield case("BasicUNetPlusPlus", **both, features=(4, 4, 8, 8, 16, 4))
        yield case("FlexibleUNet", in_channels=1, out_channels=2, backbone="efficientnet-b0")
        yield case("DynUNet", **both, kernel_size=[3, 3, 3], strides=[1, 2, 2],
                   upsample_kernel_size=[2, 2], res_block=True, filters=[4, 8, 16])
        yield case("DynUNet", " deep", **both, kernel_size=[3, 3, 3, 3], strides=[1, 2, 2, 2],
                   upsample_kernel_size=[2, 2, 2], deep_supervision=True, deep_supr_num=1,
                   filters=[4, 8, 16, 16])
        yield case("SegResNet", **both, init_filters=8, blocks_down=(1, 1), blocks_up=(1,))
        yield case("SegResNetVAE", **both, init_filters=8, blocks_down=(1, 1), blocks_up=(1,),
                   input_image_size=shapes[0][2:], vae_estimate_std=False)
        yield case("SegResNetDS", **both, init_filters=8, blocks_down=(1, 2))
        yield case("VNet", **both)
        yield case("HighResNet", **both)
        yield case("DenseNet121", **both)
        yield case("resnet18", n_input_channels=1, num_classes=3)
        yield case("SENet", in_channels=1, block="se_bottleneck", layers=(1, 1, 1, 1), groups=1,
                   reduction=16, num_classes=3)
        yield case("EfficientNetBN", model_name="efficientnet-b0", in_channels=1, num_classes=3)
        yield case("SwinUNETR", **both, feature_size=12)
        yield case("UNETR", **both, img_size=shapes[0][2:], feature_size=4, hidden_size=24,
                   mlp_dim=48, num_heads=4)
        yield case("ViT", in_channels=1, img_size=shapes[0][2:], patch_size=(16,) * dims,
                   hidden_size=24, mlp_dim=48, num_layers=2, num_heads=4)
        yield case("ViTAutoEnc", in_channels=1, img_size=shapes[0][2:], patch_size=(16,) * dims,
                   hidden_size=24, mlp_dim=48, num_layers=2, num_heads=4)
        yield case("AutoencoderKL", **both, channels=(8, 8), latent_channels=4, norm_num_groups=4,
                   num_res_blocks=1, attention_levels=(False, True))
        yield case("VQVAE", **both, channels=(8, 8), num_res_channels=(8, 8), num_res_layers=1,
                   num_embeddings=16, embedding_dim=8)
        yield case("PatchDiscriminator", channels=8, in_channels=1, num_layers_d=2)
        yield case("MedNeXt", **both, init_filters=4, encoder_expansion_ratio=2,
                   bottleneck_expansion_ratio=2)
        yield case("ResNetFeatures", model_name="resnet10", pretrained=False, in_channels=1)
        yield case("GlobalNet", image_size=shapes[0][2:], in_channels=1, num_channel_initial=4,
                   depth=2)
        yield case("RegUNet", in_channels=1, out_channels=2, num_channel_initial=4, depth=2)
        yield case("LocalNet", in_channels=1, out_channels=2, num_channel_initial=4,
                   extract_levels=(0, 1))
    yield Case("DiNTS", _dints)
    yield Case("AHNet", functools.partial(_monai, "AHNet", [(1, 1, 128, 128)], spatial_dims=2,
                                          in_channels=1, out_channels=2, psp_block_num=0))
    yield Case("Generator", functools.partial(
        _monai, "Generator", [(2, 8)], latent_shape=(8,), start_shape=(8, 4, 4), channels=[8, 4, 1],
        strides=[2, 2, 1]))
    yield Case("Discriminator", functools.partial(
        _monai, "Discriminator", [(2, 1, 32, 32)], in_shape=(1, 32, 32), channels=(4, 8),
        strides=(2, 2)))
    yield Case("AutoEncoder", functools.partial(
        _monai, "AutoEncoder", [(2, 1, 32, 32)], spatial_dims=2, in_channels=1, out_channels=1,
        channels=(4, 8), strides=(2, 2), inter_channels=(8, 8), inter_dilations=(1, 2)))
    yield Case("VarAutoEncoder", functools.partial(
        _monai, "VarAutoEncoder", [(2, 1, 32, 32)], spatial_dims=2, in_shape=(1, 32, 32),
        out_channels=1, latent_size=4, channels=(4, 8), strides=(2, 2)))
    yield Case("HoVerNet", functools.partial(_monai, "HoVerNet", [(1, 3, 256, 256)], in_channels=3,
                                             out_classes=3, mode="fast"))
    yield Case("TorchVisionFCModel", functools.partial(
        _monai, "TorchVisionFCModel", [(1, 3, 64, 64)], model_name="resnet18", num_classes=3))
    yield Case("DiffusionModelUNet", functools.partial(_timed, "DiffusionModelUNet"))
    yield Case("SPADEDiffusionModelUNet", functools.partial(_timed, "SPADEDiffusionModelUNet"))
    yield Case("ControlNet", functools.partial(_timed, "ControlNet"))


def _dints():
    import monai.networks.nets as nets

    space = nets.TopologyInstance(channel_mul=0.25, num_blocks=4, num_depths=3,
                                  use_downsample=True)
    return nets.DiNTS(space, in_channels=1, num_classes=2), pictures((1, 1, 64, 64, 64))


def _timed(name):
    import monai.networks.nets as nets
    import torch

    keywords = {"spatial_dims": 2, "in_channels": 2, "channels": (8, 16), "num_res_blocks": 1,
                "attention_levels": (False, True), "norm_num_groups": 4, "num_head_channels": 8}
    more: dict[str, Any] = {}
    if name != "ControlNet":
        keywords["out_channels"] = 2
    else:
        keywords |= {"conditioning_embedding_in_channels": 1,
                     "conditioning_embedding_num_channels": (8, 8)}
        more["controlnet_cond"] = randn(1, 1, 32, 32)
    if name.startswith("SPADE"):
        keywords["label_nc"] = 3
        more["seg"] = randn(1, 3, 16, 16)
    model = getattr(nets, name)(**keywords)
    return model, [((randn(1, 2, 16, 16), torch.tensor([3])), more)]


# ---- kornia --------------------------------------------------------------------------------------


def _kornia(make, shapes, extra=()):
    import kornia

    scope: dict[str, Any] = {"kornia": kornia}
    exec("import kornia.feature, kornia.contrib, kornia.filters, kornia.enhance", scope)
    return eval(make, scope), [((*args, *extra), {}) for args, _ in pictures(*shapes)]


def _kornia_cases():
    grey, colour, patch = [(1, 1, 64, 64)], [(1, 3, 64, 64)], [(4, 1, 32, 32)]
    for make, shapes in (
        ("feature.HardNet(False)", patch), ("feature.HardNet8(False)", patch),
        ("feature.HyNet(False)", patch), ("feature.SOSNet(False)", patch),
        ("feature.TFeat(False)", patch), ("feature.SIFTDescriptor(32)", patch),
        ("feature.OriNet(False)", patch), ("feature.DeFMO(False)", [(1, 6, 64, 64)]),
        ("feature.DISK()", colour), ("feature.KeyNet(False)", grey),
        ("feature.SOLD2_detector(pretrained=False)", grey), ("filters.DexiNed(False)", colour),
        ("contrib.VisionTransformer(image_size=64)", colour),
        ("contrib.MobileViT()", colour), ("contrib.TinyViT(64)", colour),
        ("feature.KeyNetDetector(False, 50)", grey), ("feature.ScaleSpaceDetector(20)", grey),
    ):
        yield Case(make, functools.partial(_kornia, f"kornia.{make}", shapes),
                   discrete="etector" in make)


# ---- spandrel ------------------------------------------------------------------------------------


def _spandrel(module, name, keywords, channels):
    import importlib

    found = importlib.import_module(f"spandrel.architectures.{module}")
    kind = getattr(found, name, None)
    if kind is None:
        import pathlib

        for path in sorted(pathlib.Path(found.__path__[0]).rglob("*.py")):
            inner = ".".join(path.relative_to(found.__path__[0]).with_suffix("").parts)
            try:
                kind = getattr(importlib.import_module(f"{found.__name__}.{inner}"), name, None)
            except ImportError:
                continue
            if kind is not None:
                break
    return kind(**keywords), pictures((1, channels, 32, 32), (1, channels, 64, 48))


_SPANDREL: dict[tuple[str, str], dict[str, Any]] = {
    ("ESRGAN", "RRDBNet"): {"num_filters": 8, "num_blocks": 2},
    ("Compact", "SRVGGNetCompact"): {"num_feat": 8, "num_conv": 3},
    ("SwinIR", "SwinIR"): {
        "img_size": 32, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8,
        "upsampler": "pixelshuffle", "upscale": 2},
    ("Swin2SR", "Swin2SR"): {
        "img_size": 32, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8,
        "upsampler": "pixelshuffle", "upscale": 2},
    ("HAT", "HAT"): {
        "img_size": 32, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2), "window_size": 8,
        "squeeze_factor": 4, "compress_ratio": 3, "upsampler": "pixelshuffle", "upscale": 2},
    ("DAT", "DAT"): {
        "img_size": 32, "embed_dim": 12, "depth": [1], "num_heads": [2], "split_size": [8, 8],
        "upscale": 2},
    ("OmniSR", "OmniSR"): {"num_feat": 8, "res_num": 1, "up_scale": 2},
    ("Uformer", "Uformer"): {"img_size": 64, "embed_dim": 8, "depths": [1] * 9},
    ("SCUNet", "SCUNet"): {"config": [1] * 7, "dim": 16},
    ("NAFNet", "NAFNet"): {
        "width": 8, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1], "middle_blk_num": 1},
    ("RGT", "RGT"): {
        "img_size": 32, "embed_dim": 12, "depth": [1, 1], "num_heads": [2, 2], "split_size": [8, 8],
        "upscale": 2},
    ("SPAN", "SPAN"): {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 8, "upscale": 2},
    ("PLKSR", "PLKSR"): {"dim": 8, "n_blocks": 2, "upscaling_factor": 2},
    ("PLKSR", "RealPLKSR"): {"dim": 8, "n_blocks": 2, "upscaling_factor": 2},
    ("ATD", "ATD"): {
        "img_size": 32, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2), "window_size": 8,
        "num_tokens": 8, "reducted_dim": 4, "upscale": 2},
    ("DRCT", "DRCT"): {
        "img_size": 32, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2), "window_size": 8,
        "gc": 8, "upscale": 2},
    ("GRL", "GRL"): {"img_size": 64, "embed_dim": 16, "upscale": 2},
    ("DnCNN", "DnCNN"): {"in_nc": 3, "out_nc": 3, "nc": 8, "nb": 4},
    ("DRUNet", "DRUNet"): {"in_nc": 4, "out_nc": 3, "nc": [8, 8, 16, 16], "nb": 1},
    ("FFTformer", "FFTformer"): {"dim": 8, "num_blocks": [1, 1, 1], "num_refinement_blocks": 1},
    ("MixDehazeNet", "MixDehazeNet"): {"embed_dims": [8, 16, 32, 16, 8], "depths": [1] * 5},
    ("RetinexFormer", "RetinexFormer"): {"n_feat": 8},
    ("SAFMN", "SAFMN"): {"dim": 8, "n_blocks": 2},
    ("SAFMNBCIE", "SAFMN_BCIE"): {"dim": 8, "n_blocks": 2},
    ("CRAFT", "CRAFT"): {"embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2)},
    ("KBNet", "KBNet_s"): {
        "width": 8, "middle_blk_num": 1, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]},
    ("DCTLSA", "DCTLSA"): {},
    ("DITN", "DITN_Real"): {},
    ("FDAT", "FDAT"): {},
    ("HVICIDNet", "CIDNet"): {},
    ("MoESR", "MoESR"): {},
    ("MoSR", "MoSR"): {},
    ("RCAN", "RCAN"): {},
    ("SeemoRe", "SeemoRe"): {},
    ("SwiftSRGAN", "SwiftSRGAN"): {},
    ("RealCUGAN", "UpCunet2x"): {},
}


def _spandrel_cases():
    for (module, name), keywords in _SPANDREL.items():
        yield Case(f"{module} {name}", functools.partial(
            _spandrel, module, name, keywords, 4 if name == "DRUNet" else 3))


# ---- ultralytics ---------------------------------------------------------------------------------


def _ultralytics(config):
    from ultralytics.nn import tasks

    kinds = {"-seg": tasks.SegmentationModel, "-pose": tasks.PoseModel, "-obb": tasks.OBBModel,
             "-cls": tasks.ClassificationModel, "rtdetr": tasks.RTDETRDetectionModel,
             "world": tasks.WorldModel, "yoloe": tasks.YOLOEModel}
    kind = next((k for word, k in kinds.items() if word in config), tasks.DetectionModel)
    return kind(f"{config}.yaml", verbose=False), pictures((1, 3, 64, 64), (1, 3, 96, 64))


def _ultralytics_cases():
    for name in ("yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov8n-seg", "yolov8n-pose",
                 "yolov8n-obb", "yolov8n-cls", "yolov8n-p2", "yolov8n-ghost", "yolov9t", "yolov9c",
                 "yolov10n", "yolo11n", "yolo11n-seg", "yolo11n-cls", "yolo12n", "rtdetr-resnet50",
                 "yolov8-rtdetr", "yolov8s-world", "yolo26n", "yolo26n-seg", "yolo26n-pose",
                 "yolo11n-obb"):
        yield Case(name, functools.partial(_ultralytics, name), discrete="rtdetr" in name)


# ---- open_clip -----------------------------------------------------------------------------------


def _open_clip(name, part):
    import open_clip

    config = open_clip.get_model_config(name)
    vision, text = config["vision_cfg"], config["text_cfg"]
    if isinstance(vision.get("layers"), int):
        vision["layers"] = 2
    if "layers" in text:
        text["layers"] = 2
    text["vocab_size"] = min(text.get("vocab_size", 1000), 50000)
    model = open_clip.factory.CLIP(**{k: v for k, v in config.items() if k not in (
        "custom_text", "multimodal_cfg")})
    size = vision.get("image_size", 224)
    size = size if isinstance(size, int) else size[0]
    if part == "vision":
        return model.visual, pictures((1, 3, size, size))
    return model, [((randn(1, 3, size, size), ids(1000, 1, text.get("context_length", 77))), {})]


def _open_clip_cases():
    for name in ("RN50", "RN101-quickgelu", "ViT-B-32", "ViT-S-16", "ViT-B-16-plus",
                 "convnext_tiny", "convnext_base", "mt5-base-ViT-B-32", "coca_base",
                 "MobileCLIP-S1", "ViTamin-S", "swin_base_patch4_window7_224", "nllb-clip-base"):
        for part in ("vision", "both"):
            yield Case(f"{name} {part}", functools.partial(_open_clip, name, part))


BY_PACKAGE: dict[str, Any] = {
    "timm": _timm_cases, "torchvision": _torchvision_cases, "smp": _smp_cases,
    "monai": _monai_cases, "kornia": _kornia_cases, "spandrel": _spandrel_cases,
    "ultralytics": _ultralytics_cases, "open_clip": _open_clip_cases,
}


def cases(package):
    if package in BY_PACKAGE:
        return list(BY_PACKAGE[package]())
    import zoo_diffusers_transformers

    return list(zoo_diffusers_transformers.BY_PACKAGE[package]())
