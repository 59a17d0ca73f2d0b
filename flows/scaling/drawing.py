"""The picture of a ladder: runs, the law through them with its interval, and the size that was held back."""

from typing import Any

import numpy as np


def figure(found: dict[str, Any]) -> dict[str, Any] | None:
    """A Plotly figure as JSON values; None before the first run."""
    points = [(line["parameters"], loss) for line in found["lines"] for loss in line["losses"]]
    if not points:
        return None
    law, said = found["law"], found["prediction"]
    held_back = found["lines"][-1]["parameters"]
    data: list[dict[str, Any]] = []
    if law is not None:
        sizes = np.geomspace(min(size for size, _ in points), held_back * 1.3, 80)
        curve = law["E"] + law["A"] * sizes ** -law["alpha"]
        data.append(_trace("the law", "muted1", sizes.tolist(), curve.tolist(), mode="lines"))
    fitted = [point for point in points if point[0] != held_back]
    data.append(_trace("fitted", "series1", [size for size, _ in fitted], [loss for _, loss in fitted], mode="markers"))
    if said is not None:
        reach = {"type": "data", "symmetric": False, "array": [said["high"] - said["loss"]]}
        reach["arrayminus"] = [said["loss"] - said["low"]]
        data.append(_trace("predicted", "accent", [held_back], [said["loss"]], mode="markers", error_y=reach))
    if later := [loss for size, loss in points if size == held_back]:
        data.append(
            _trace("measured", "series2", [held_back] * len(later), later, mode="markers", marker={"symbol": "x"})
        )
    layout = {
        "height": 360,
        "legend": {"orientation": "h", "y": 1.12},
        "xaxis": {"type": "log", "title": {"text": "weights in blocks"}},
        "yaxis": {"title": {"text": found["measure"]}},
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def _trace(name: str, role: str, x: list[float], y: list[float], **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "name": name, "meta": {"role": role}, "x": x, "y": y, **more}
