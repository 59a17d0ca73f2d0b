"""Two schedulers start one recipe over one root at the same moment: one build of each identity, both runs end well.

The thousand races of `test_builders.py` are of builders; these are whole commands, each with its record and page,
on one Prefect server. BESSEMER_RACES says how many (10).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.service.local_server import prefect_server
from tasks.artifacts.artifact import Artifact

pytestmark = pytest.mark.joints

RACES = int(os.environ.get("BESSEMER_RACES", "10"))
PROJECT = Path(__file__).parents[2]
UNTIL = "dedup"
STAGES = ("sample", "clean", "dedup")


def test_two_commands_race(foundry: Path, tmp_path: Path, joint: Callable[..., Any]) -> None:
    with joint("races of two `bessemer run`: one build each") as tally, prefect_server(tmp_path / "server"):
        contents: set[tuple[str, ...]] = set()
        shared = 0
        for race in range(RACES):
            root = tmp_path / f"{race}"
            words = [sys.executable, "-m", "flows.cli", "run", foundry / "foundry.toml", "--root", root]
            racers = [
                subprocess.Popen(
                    [*map(str, words), "--until", UNTIL, "--json"],
                    cwd=PROJECT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(2)
            ]
            reported = [racer.communicate() for racer in racers]
            codes = [racer.returncode for racer in racers]
            if not tally.expect(
                codes == [0, 0], f"race {race}: exit codes {codes}: {[err[-300:] for _, err in reported]}"
            ):
                continue
            records = [json.loads(out)["stages"] for out, _ in reported]
            outcomes = [sorted(entry["outcome"] for entry in pair) for pair in zip(*records, strict=True)]
            tally.expect(outcomes == [["built", "reused"]] * len(STAGES), f"race {race}: {outcomes}")
            shared += {entry["outcome"] for entry in records[0]} == {"built", "reused"}
            artifacts = [Artifact.open(path) for stage in STAGES for path in (root / "artifacts" / stage).iterdir()]
            contents.add(tuple(artifact.content for artifact in artifacts))
            whole = len(artifacts) == len(STAGES) and not any(artifact.verify() for artifact in artifacts)
            tally.expect(whole and not list((root / "work").iterdir()), f"race {race}: {artifacts}, left over in work/")
        tally.expect(len(contents) == 1, f"{len(contents)} different results")
        tally.note = f"in {shared} each built some of the stages"
