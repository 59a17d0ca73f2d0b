"""The list of a root's runs as a page, `runs/index.html`: the newest of them with loss and held-out figures."""

from dataclasses import dataclass
from pathlib import Path

from flows.metrics.formatting import format_model
from flows.metrics.run_metrics import read_saved_metrics
from flows.reports.page.page import address
from flows.reports.page.render import write_figures
from flows.runs.lineage import NetworkLine
from flows.runs.record import PAGE, RunData, newest_runs, settings_of, state_of

RUN_LIST = "index.html"

MAX_RUNS = 100
"""The page is written at the end of each run, and reading the figures of a run takes about 3 ms."""

NO_MODEL: NetworkLine = {"architecture": None, "parameters": None}

COMPARISON = "compare-"
"""What the name of a comparison's page begins with, in the folder of the second run."""


@dataclass(frozen=True)
class RunLine:
    """A run of the list; None for what it does not have."""

    run_id: str
    started: float
    name: str
    settings: str
    state: str
    network: str
    page: str | None
    """Address."""
    compared: list[tuple[str, str]]
    """Address and title of the comparisons with other runs."""
    loss: float | None
    bits: float | None
    xz: float | None
    ngram: float | None
    seconds: float | None


def write_run_list(root: Path) -> Path:
    """Write the page and return its path."""
    records, count = newest_runs(root, MAX_RUNS)
    folder = root / "runs"
    lines = [_line(record, folder) for record in reversed(records)]
    path = folder / RUN_LIST
    write_figures("run_list.html", {}, path, root=str(root), lines=lines, count=count)
    return path


def _line(record: RunData, folder: Path) -> RunLine:
    findings = read_saved_metrics(record) or {}
    bits = next((line for line in findings.get("bits_per_byte", ()) if line["source"] == "all"), {})
    ended, page = record.get("finished"), Path(record.get("page") or folder / record["run_id"] / PAGE)
    compared = sorted((folder / record["run_id"]).glob(f"{COMPARISON}*.html"))
    return RunLine(
        run_id=record["run_id"],
        started=record["started"],
        name=record["recipe_name"],
        settings=settings_of(record),
        state=state_of(record),
        network=format_model(findings.get("model", NO_MODEL)),
        page=address(page, folder) if page.is_file() else None,
        compared=[(address(path, folder), path.stem.removeprefix(COMPARISON)) for path in compared],
        loss=findings.get("training", {}).get("last_loss"),
        bits=bits.get("model"),
        xz=bits.get("xz"),
        ngram=bits.get("5gram"),
        seconds=ended - record["started"] if ended else None,
    )
