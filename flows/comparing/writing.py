"""The comparison of two runs as one HTML file."""

from pathlib import Path
from typing import Any

from flows.comparing.charts import figures
from flows.comparing.differing import OTHER_TEXT
from flows.findings import open_artifacts
from flows.page.rendering import fill
from model.durable import write_atomically


def comparison_page(found: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The page of what `compare` found between the runs of `records`."""
    artifacts = [open_artifacts(record) for record in records]
    told = {"found": found, "figures": figures(found, artifacts), "other_text": OTHER_TEXT}
    return fill("flows.comparing", "template.html", told)


def write_comparison(found: dict[str, Any], records: list[dict[str, Any]], path: Path) -> None:
    """Write the page to `path`."""
    write_atomically(path, comparison_page(found, records).encode("utf-8", errors="replace"))
