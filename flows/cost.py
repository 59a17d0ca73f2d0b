"""What a run cost: the time of its stages, and an estimate of the energy that they took.

Nothing is measured but time. The estimate is that of Green Algorithms (Lannelongue, Grealey and Inouye 2021,
doi:10.1002/advs.202100707): power of the cores and of the memory, times what a data centre takes besides.
"""

from typing import Any

from flows.road import STAGES
from tasks.artifact import Artifact

WATTS_A_CORE = 12.0
"""Its figure for a processor that is not named."""
WATTS_A_GIGABYTE = 0.3725
WATTS_OF_GPU = {"H200": 700.0, "H100": 700.0, "A100": 400.0, "V100": 300.0, "L40": 300.0, "T4": 70.0}
"""Boards' power limits as their maker states them, by a word of their names."""
WATTS_OF_OTHER_GPU = 200.0
"""Its figure for one that is not named."""
OF_THE_BUILDING = 1.67
"""Its worldwide mean of power usage effectiveness: what a data centre draws by what its machines do."""


def cost(record: dict[str, Any], artifacts: dict[str, Artifact]) -> dict[str, Any]:
    """`stages`: seconds of each stage's build and about how many watt-hours; `seconds` and `watt_hours` together;
    `assumption` in words. Watt-hours are None for runs that did not note their machine.

    Stages that were built in an earlier run count as they were built, for the model would not be without them.
    """
    machine = record.get("machine")
    stages: list[dict[str, Any]] = []
    for stage in STAGES:
        if stage not in artifacts:
            continue
        seconds = artifacts[stage].manifest["timings"]["seconds"]
        watts = _watts(artifacts[stage], machine) if machine else None
        hours = None if watts is None else OF_THE_BUILDING * watts * seconds / 3600
        stages.append({"stage": stage, "seconds": seconds, "watt_hours": hours})
    if not stages:
        return {}
    return {
        "stages": stages,
        "seconds": sum(line["seconds"] for line in stages),
        "watt_hours": sum(line["watt_hours"] for line in stages) if machine else None,
        "assumption": _assumption(artifacts, machine) if machine else "",
    }


def _watts(artifact: Artifact, machine: dict[str, Any]) -> float:
    """Of all cores and all memory for as long as the stage ran, and of the GPUs that it trained on."""
    watts = machine["cores"] * WATTS_A_CORE + machine["memory_bytes"] / 1e9 * WATTS_A_GIGABYTE
    count, name = _gpus(artifact)
    return watts + count * _gpu_watts(name)


def _gpu_watts(name: str) -> float:
    return next((watts for word, watts in WATTS_OF_GPU.items() if word in name), WATTS_OF_OTHER_GPU)


def _gpus(artifact: Artifact) -> tuple[int, str]:
    """How many GPUs a training ran on, and their name."""
    parts = artifact.manifest["identity_parts"]
    params = parts.get("params", {})
    if artifact.stage != "train" or params.get("device") != "cuda":
        return 0, ""
    libraries = parts.get("libs", {})
    return int(params.get("ranks", 1)), str(libraries.get("gpu", ""))


def _assumption(artifacts: dict[str, Artifact], machine: dict[str, Any]) -> str:
    told = f"{machine['cores']} cores of {WATTS_A_CORE:g} W, {machine['memory_bytes'] / 1e9:,.0f} GB of memory"
    told += f" of {WATTS_A_GIGABYTE:g} W a GB"
    count, name = _gpus(artifacts["train"]) if "train" in artifacts else (0, "")
    if count:
        told += f", {count} GPU{'s' if count > 1 else ''} of {_gpu_watts(name):g} W while training"
    return f"{told}, all of them busy while a stage ran, times {OF_THE_BUILDING:g} for the building"


def energy_told(watt_hours: float) -> str:
    """`8.1 Wh`, `1.2 kWh`, `3.4 MWh`."""
    for unit, name in ((1e6, "MWh"), (1e3, "kWh")):
        if watt_hours >= unit:
            return f"{watt_hours / unit:.1f} {name}"
    return f"{watt_hours:.2g} Wh" if watt_hours < 10 else f"{watt_hours:.0f} Wh"
