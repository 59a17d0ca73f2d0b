"""How large a model the data can feed: compute-optimal sizes, and what repeated text is worth."""

import math

TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022 ("Chinchilla"), table 3: compute-optimal training reads about 20 tokens for each parameter."""

REPETITION_DECAY = 15.387743
"""R*_D of Muennighoff et al. 2023 ("Scaling data-constrained language models", section 5): repetitions after which
1/e of a fresh token's worth is left."""

GOOD_EPOCHS = 4.0
"""Repetition up to here is almost as good as new text (Muennighoff et al. 2023, abstract)."""


def effective_tokens(unique: float, epochs: float) -> float:
    """What `unique` tokens read `epochs` times are worth in fresh tokens (Muennighoff et al. 2023, equation 5).

    D' = U + U R* (1 - exp(-R / R*)) with R = epochs - 1 repetitions; up to one epoch every token is fresh.
    """
    if epochs <= 1:
        return unique * epochs
    repetitions = epochs - 1
    return unique * (1 + REPETITION_DECAY * (1 - math.exp(-repetitions / REPETITION_DECAY)))


def parameters_fed_by(tokens: float) -> float:
    """Parameters of the compute-optimal model for that many (effective) tokens."""
    return tokens / TOKENS_PER_PARAMETER
