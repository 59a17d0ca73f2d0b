"""Exit codes are an interface: scripts and systemd act on them."""

import re
from pathlib import Path

import model.errors
from model.errors import BessemerError

PAGE = Path(__file__).parents[2] / "docs" / "recover.md"


def test_codes_and_retries_are_those_of_the_page():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .* \| (yes|no) \|$", PAGE.read_text(), re.MULTILINE)
    written = {name: (int(code), again == "yes") for code, name, again in rows}
    classes = [one for one in vars(model.errors).values() if isinstance(one, type) and issubclass(one, BessemerError)]
    assert written == {one.__name__: (one.exit_code, one.retryable) for one in classes if one is not BessemerError}
