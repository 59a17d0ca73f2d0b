"""What `make audit` says of pip-audit's answer: advisories fail it, a missing answer is reported and does not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit"
SOUND = {"name": "a", "version": "1", "vulns": []}
UNSOUND = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


def audited(
    folder: Path, packages: list[dict[str, Any]] | None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The script beside a pip-audit that answers with `packages`, or not at all for None."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    answer = "" if packages is None else f"printf '%s' '{json.dumps({'dependencies': packages})}' >{folder}/answer.json"
    program = folder / "bin" / "pip-audit"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo pip-audit 2.10.1; exit; fi\n{answer}\necho lost\n'
    )
    program.chmod(0o755)
    reported = {**os.environ, "AUDIT": "", **environment}
    return subprocess.run([AUDIT, folder], capture_output=True, text=True, env=reported, check=False)


def test_an_advisory_fails_and_is_named(tmp_path: Path) -> None:
    done = audited(tmp_path, [SOUND, UNSOUND])
    assert (done.returncode, done.stdout) == (1, "b 2: PYSEC-1, mended in 2.1\n2 packages asked, 1 advisories\n")


def test_what_is_sound_passes_and_what_was_not_asked_is_named(tmp_path: Path) -> None:
    done = audited(tmp_path, [SOUND, UNKNOWN])
    assert done.returncode == 0
    assert done.stdout == "1 packages asked, 0 advisories\n1 not asked, as the index does not know them: c\n"


@pytest.mark.parametrize(("packages", "cause"), [(None, "lost"), ([UNKNOWN], "the index answers for no package")])
@pytest.mark.parametrize(("asked", "code"), [("", 0), ("required", 75)])
def test_no_answer_is_reported_and_fails_only_where_one_is_required(
    tmp_path: Path, packages: list[dict[str, Any]] | None, cause: str, asked: str, code: int
) -> None:
    done = audited(tmp_path, packages, AUDIT=asked)
    assert done.returncode == code
    assert f"the advisories could not be asked ({cause}); nothing is known of the " in done.stderr
