"""What fine-tuning came to, in lines."""

from typing import Any

from model.finetune.metrics import main_measure


def told_result(found: dict[str, Any]) -> list[str]:
    """A line for each task: its measures on test examples, or held-out ones where there are none, beside those of a
    guess that reads nothing, how far apart the seeds are, and whether one label alone is ever answered."""
    scores = found["scores"]
    lines = []
    for task in found["tasks"]:
        name = task["name"]
        split = "test" if name in scores["test"] else "development"
        main = main_measure(task["kind"], scores[split][name])
        guess = scores["guess"][split][name]
        measures = ", ".join(
            f"{measure} {value:.3f} (guess {guess[measure]:.3f})" if measure in guess else f"{measure} {value:.3f}"
            for measure, value in scores[split][name].items()
        )
        values = [one[split][name][main] for one in scores["seeds"]]
        spread = f"; {main} of {len(values)} seeds {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
        said = scores.get("said", {}).get(name, {})
        one_label = _one_label_told(*said) if len(said) == 1 and scores[split][name][main] < 1 else ""
        what = "test" if split == "test" else "held-out examples, which chose the epoch"
        lines.append(f"{name}, {what}: {measures}{spread}{one_label}")
    return [*lines, f"seed {scores['seed']} after epoch {scores['epoch']} is kept"]


def _one_label_told(label: str) -> str:
    return (
        f". Every one of them is answered {label!r}: the texts made no difference. More epochs, a higher learning_rate,"
        f" more examples of other labels or a better trained model may help"
    )
