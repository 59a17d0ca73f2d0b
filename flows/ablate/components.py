"""What each part of a trained GPT is worth: bits per byte of held-out text with the part taken out, beside the size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.lineage import open_run, run_artifacts
from flows.record import recipe_of
from model.errors import InputError
from tasks.open_tokenizer import open_tokenizer

MOST_CUMULATIVE = 12
"""Points of the curve along which one part after the other is taken out."""


@dataclass(frozen=True)
class BitsPerByte:
    """Bits that each document takes, and its bytes."""

    bits: np.ndarray
    sizes: np.ndarray

    @property
    def value(self) -> float:
        """Of all text together."""
        return float(self.bits.sum() / self.sizes.sum())

    def above(self, other: "BitsPerByte") -> tuple[float, float | None]:
        """How much more this takes than another on the same documents, and the standard error over documents, that of
        a ratio (Cochran 1977, section 2.11); None from one document."""
        more = self.bits - other.bits
        whole, n = self.sizes.sum(), len(self.sizes)
        ratio = more.sum() / whole
        if n < 2:
            return float(ratio), None
        rest = more - ratio * self.sizes
        return float(ratio), float(math.sqrt(n / (n - 1) * (rest**2).sum()) / whole)


def take_apart(root: Path, run: str, advance: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Every layer, attention, MLP and head taken out by itself, then heads and layers one after the other, the one that
    costs least first, as JSON values. InputError where the run's network is no GPT, or has no held-out text."""
    import torch

    from model.components import Kind, Part, parameters, parts_of, without
    from model.scoring import text_nats
    from model.weights import load_gpt
    from tasks.earlier import find_earlier
    from tasks.evaluate.heldout import heldout_texts

    record = open_run(root, run, needs="train")
    artifacts = run_artifacts(record)
    config = recipe_of(root / "runs" / record["run_id"]).evaluate
    tokenizer = open_tokenizer(artifacts["vocab"])
    network = load_gpt(artifacts["train"].path, tokenizer.digest)
    earlier = find_earlier(config.earlier, root, "decontaminate", "evaluate.earlier")
    texts, _ = heldout_texts([*earlier, artifacts["decontaminate"]], config.heldout_max_bytes, config.seed)
    documents = [text for mine in texts.values() for text in mine]
    if not documents:
        raise InputError(f"run {record['run_id']} has no held-out text to measure on (decontaminate.heldout_share)")
    ids = [row.tolist() for row in tokenizer.encode_batch(documents)]
    sizes = np.array([len(text.encode()) for text in documents], dtype=np.int64)

    def measured(parts: Sequence[Part]) -> BitsPerByte:
        with without(network, parts):
            nats = text_nats(network, ids, tokenizer.eos, config.stride, config.batch_tokens)
        return BitsPerByte(np.array(nats) / math.log(2), sizes)

    def line(parts: Sequence[Part], name: str) -> dict[str, Any]:
        found = measured(parts)
        more, error = found.above(whole)
        left = total - parameters(network, parts)
        return {"part": name, "parameters": left, "bits_per_byte": found.value, "more": more, "stderr": error}

    total = sum(weight.numel() for weight in network.parameters())
    parts = parts_of(network)
    cumulative: tuple[Kind, ...] = ("head", "layer")
    steps = len(parts) + 2 * MOST_CUMULATIVE
    torch.set_num_threads(config.threads)
    whole = measured(())
    alone: list[dict[str, Any]] = []
    for done, part in enumerate(parts, start=1):
        alone.append({**line([part], part.name), "kind": part.kind})
        advance(done, steps)
    curves: dict[str, list[dict[str, Any]]] = {}
    for place, kind in enumerate(cumulative):
        order = _cheapest_first(parts, alone, kind)
        curves[kind] = [line((), "whole")]
        for done, count in enumerate(_counts(len(order)), start=1):
            name = f"{count} {kind}{'s' if count > 1 else ''}"
            curves[kind].append({**line(order[:count], name), "taken": [part.name for part in order[:count]]})
            advance(len(parts) + place * MOST_CUMULATIVE + done, steps)
    return {
        "run_id": record["run_id"],
        "parameters": total,
        "bits_per_byte": whole.value,
        "documents": len(documents),
        "bytes": int(sizes.sum()),
        "alone": alone,
        "curves": curves,
    }


def _cheapest_first(parts: Sequence[Any], alone: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    of_kind = [(line["more"], place, part) for place, (part, line) in enumerate(zip(parts, alone, strict=True))]
    return [part for _, _, part in sorted(one for one in of_kind if one[2].kind == kind)]


def _counts(parts: int) -> list[int]:
    """Numbers of parts to take out, all of them where they are few, evenly spread where they are many."""
    points = min(parts, MOST_CUMULATIVE)
    return sorted({round((point + 1) * parts / points) for point in range(points)}) if parts else []
