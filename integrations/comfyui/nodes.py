# SPDX-License-Identifier: Apache-2.0
"""What the nodes do. ComfyUI's own code is not imported: a VAE is whatever has a first_stage_model
that is a torch.nn.Module."""

from typing import Any


def _model(vae):
    """The model of a VAE; an error says what was given instead."""
    import torch

    model = getattr(vae, "first_stage_model", None)
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"vae is a {type(vae).__name__} without a first_stage_model of PyTorch; legal: the VAE "
            "of a checkpoint or of Load VAE")
    return model


class AccelerateVAE:
    """The same VAE, its convolutions and norms on Convoy. ComfyUI hands one VAE object around, and
    so it is changed in place: enabled=False makes it PyTorch's again."""

    RETURN_TYPES = ("VAE",)
    FUNCTION = "accelerate"
    CATEGORY = "model_patches/vae"
    DESCRIPTION = "Runs the convolutions and norms of a VAE on Convoy, and leaves what it has not."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {
            "vae": ("VAE",),
            "enabled": ("BOOLEAN", {"default": True}),
            "quality": (["fast", "exact"], {
                "tooltip": "exact rounds wherever the model's own steps do; fast rounds less often "
                           "and errs less"}),
        }}

    def accelerate(self, vae, enabled=True, quality="fast"):
        import convoy

        model = _model(vae)
        if enabled:
            convoy.accelerate(model, quality=quality)
        else:
            convoy.restore(model)
        return (vae,)


class ReportVAE:
    """What Convoy took over of a VAE in the calls so far, as text. Connect it behind a decode, so
    that there have been some."""

    RETURN_TYPES = ("STRING",)
    FUNCTION = "report"
    CATEGORY = "model_patches/vae"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"vae": ("VAE",)}, "optional": {"image": ("IMAGE",)}}

    @classmethod
    def IS_CHANGED(cls, **inputs) -> float:
        return float("nan")  # Never the same as before: the calls go on.

    def report(self, vae, image=None) -> dict[str, Any]:
        import convoy

        text = str(convoy.report(_model(vae)))
        return {"ui": {"text": [text]}, "result": (text,)}


__all__ = ["AccelerateVAE", "ReportVAE"]
