"""How often failed ranks are started again, and the durable record of it, which becomes part of EVENTS.

The supervisor appends a line to `restarts.jsonl` before it acts; the trainer takes lines that its journal does not have
yet into EVENTS when it starts and when it ends.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.restart_config import RestartsConfig
from model.sealed import seal, sealed_lines, whole_lines

if TYPE_CHECKING:
    from model.journal import Journal

RECORD = "restarts.jsonl"
LOST = "Remove the file to go on without what it tells of earlier restarts."
LONGEST_PAUSE = 60.0
"""Seconds."""
FEWER_RANKS = "fewer_ranks"
"""The event that says that steps were computed by fewer ranks than the run asks for."""
RECORDED = ("restart", "slow_rank", "all_ranks", "hosts")
"""Kinds of lines, which are kinds of EVENTS."""


class Patience:
    """Restarts in a row without progress, and what each waits."""

    def __init__(self, config: RestartsConfig) -> None:
        self._config = config
        self.in_a_row = 0

    def progress(self) -> None:
        """Something new was reached: counting begins anew."""
        self.in_a_row = 0

    def next_pause(self) -> float | None:
        """Seconds to wait before one more restart; None where there were as many as may be."""
        if self.in_a_row >= self._config.most:
            return None
        self.in_a_row += 1
        return min(self._config.pause_seconds * 2.0 ** (self.in_a_row - 1), LONGEST_PAUSE)


class Record:
    """The file `restarts.jsonl`. A full disk delays lines and loses none while this process lives."""

    def __init__(self, out: Path) -> None:
        self._file = out / RECORD
        self._pending = b""

    def append(self, kind: str, **facts: Any) -> None:
        """Add a line, durable when this returns unless the disk refuses; then it comes with the next one."""
        assert kind in RECORDED, f"{kind} is no kind that the trainer takes over"
        self._pending += seal({"kind": kind, "time": time.time(), **facts}, sort_keys=True, indent=None)
        try:
            self._write()
        except OSError as error:
            sys.stderr.write(f"{self._file} could not be written yet: {error}\n")

    def _write(self) -> None:
        with self._file.open("ab", buffering=0) as file:
            # A kill may have left a part of a line behind the last whole one.
            whole = sum(map(len, whole_lines(self._file, LOST)))
            file.truncate(whole)
            try:
                written = file.write(self._pending)
                if written < len(self._pending):
                    raise OSError(f"{written} of {len(self._pending)} bytes were written")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise
        self._pending = b""


def read_record(out: Path) -> list[dict[str, Any]]:
    """All whole lines of the record; IntegrityError where one is damaged."""
    return sealed_lines(out / RECORD, LOST)


def take_over(out: Path, journal: "Journal") -> None:
    """Add what the supervisor recorded, and `journal` does not have yet, to its EVENTS, under the times of then."""
    kinds = journal.tables()["events"]["kind"].to_pylist()
    taken = sum(kind in RECORDED for kind in kinds)
    for line in read_record(out)[taken:]:
        facts = {key: value for key, value in line.items() if key not in ("kind", "time", "step")}
        journal.add(
            "events",
            seq=journal.count("events"),
            time=line["time"],
            step=line["step"],
            kind=line["kind"],
            detail=json.dumps(facts, sort_keys=True),
            positions=[],
            **{"class": "Infra"},
        )
