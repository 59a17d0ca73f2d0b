"""Records that are made again where they are lost."""

import logging
from pathlib import Path
from typing import Any

from model.checksummed_json import read_sealed
from model.errors import IntegrityError

log = logging.getLogger(__name__)


def find_sealed(path: Path, hint: str) -> dict[str, Any] | None:
    """Return the record in a file; None without the file, and where it is damaged, with a warning that ends with
    `hint`."""
    try:
        return read_sealed(path, hint)
    except FileNotFoundError:
        return None
    except IntegrityError as error:
        log.warning("%s", error)
        return None
