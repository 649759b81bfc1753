# SPDX-License-Identifier: Apache-2.0
"""Nodes for ComfyUI: the VAE that is given runs on Convoy (convoy.accelerate)."""

from .nodes import AccelerateVAE, ReportVAE

NODE_CLASS_MAPPINGS = {"ConvoyAccelerateVAE": AccelerateVAE, "ConvoyReportVAE": ReportVAE}
NODE_DISPLAY_NAME_MAPPINGS = {
    "ConvoyAccelerateVAE": "Accelerate VAE (Convoy)",
    "ConvoyReportVAE": "Accelerated VAE: report (Convoy)",
}
