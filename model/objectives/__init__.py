"""Training objectives: next tokens (GPT), masked tokens and sentence pairs (BERT), removed spans (T5)."""

from model.config.train import TrainerRun
from model.objectives.base import Objective
from model.objectives.causal import CausalObjective, PrefixObjective
from model.objectives.masked import MaskedObjective
from model.objectives.spans import SpanObjective


def make_objective(run: TrainerRun) -> Objective:
    """Return the objective of the run's network."""
    if run.model.architecture == "bert":
        return MaskedObjective(run.train.seed, run.train.masked_share, run.model.context)
    if run.model.architecture == "t5":
        return SpanObjective(run.train.seed)
    if run.model.attention == "prefix":
        return PrefixObjective(run.pad, run.eos, run.train.seed)
    return CausalObjective(run.pad, run.eos)
