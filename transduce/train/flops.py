"""How much of a device a training uses."""

import torch

PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12}
"""Dense bf16 operations a second, from NVIDIA's data sheets, by part of the device's name."""


def peak_of(device: torch.device) -> float | None:
    """Dense bf16 operations that a GPU could do in a second; None where we do not know."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)
