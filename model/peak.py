"""What the devices of a training could do at best, as the measure of what they do (MFU: Chowdhery et al. 2022, PaLM,
appendix B)."""

import torch

from model.config import TrainConfig

DATA_SHEETS = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "tf32": 495e12, "float32": 67e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "tf32": 495e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "tf32": 156e12, "float32": 19.5e12},
    "V100": {"float16": 125e12, "float32": 15.7e12},
}
"""FLOP/s of dense products by NVIDIA's data sheets of the SXM modules, by what the driver calls the device."""


def peak_flops(train: TrainConfig, device: torch.device) -> float | None:
    """FLOP/s of one rank's device in the type of its products; None where no data sheet is known, as of a processor.

    What a processor does in a look before the first step is no bound: others had it then, its clock rises and falls,
    and products of other shapes are faster. Shares of such a peak passed 100%.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((sheet.get(train.dtype) for known, sheet in DATA_SHEETS.items() if known in name), None)
