"""What is said of a night: where it begins, where its promotion is blocked, and to people far away."""

import platform
from pathlib import Path
from typing import Any

from flows.nightly.nights import Night
from flows.nightly.preflight import Needs, hours_told


def beginning_told(night: Night, needs: Needs | None) -> str:
    """What is new, what it goes on from, and what it will take; without a full stop."""
    count = sum(map(len, night.files.values()))
    base = f"going on from run {night.base}" if night.base else "the first night"
    takes = f"; {hours_told(needs)}" if needs is not None else ""
    return f"{count:,} new file{'' if count == 1 else 's'} of {', '.join(sorted(night.files))}; {base}{takes}"


def blocked_told(night: Night, why: str) -> str:
    """Why the current model stays, and what can be done."""
    return (
        f"nightly: the model of night {night.run_id} was not promoted: {why}. Its weights and scores are written"
        f" (`bessemer compare current {night.run_id}`). The next night goes on from the current model without this"
        f" night's files. `bessemer promote {night.run_id}` promotes it all the same; `bessemer nightly RECIPE --again"
        f" {night.run_id}` has its files read once more."
    )


def message(night: Night, root: str | Path) -> dict[str, Any]:
    """What people are told of a night, as JSON values."""
    page = Path(root) / "runs" / night.run_id / "page.html"
    subject = f"bessemer: night {night.run_id} of {night.recipe} {night.state}"
    text = f"{subject} on {platform.node()}\n\n{night.why}\n\nRoot: {root}\n"
    if page.exists():
        text += f"Page: {page.relative_to(root)}\n"
    return {
        "event": night.state,
        "subject": subject,
        "text": text,
        "why": night.why,
        "recipe": night.recipe,
        "run_id": night.run_id,
        "host": platform.node(),
        "root": str(root),
        "documents": night.documents,
        "tokens": night.tokens,
        "bits_before": night.bits_before,
        "bits_after": night.bits_after,
        "worse": [line["what"] for line in night.verdict if line["blocks"]],
    }
