"""AdamW over two groups of parameters: matrices are decayed, everything else is not."""

import torch

from model.config import OptimizerConfig
from model.transformer import GPT


def make_optimizer(network: GPT, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019), fused into one kernel per step.

    Norms, biases and the embedding (which is the output head too) are not decayed. What does not learn is in no group,
    and a group that would be empty is left out.
    """
    learning = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    matrices = {name for name, p in learning.items() if p.dim() >= 2 and not name.startswith(("embedding", "new_rows"))}
    groups = [
        {"params": [p for name, p in learning.items() if name in matrices], "weight_decay": config.weight_decay},
        {"params": [p for name, p in learning.items() if name not in matrices], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
