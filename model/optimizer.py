"""AdamW over two groups of parameters: matrices are decayed, everything else is not."""

import torch

from model.config import OptimizerConfig
from model.transformer import GPT


def make_optimizer(network: GPT, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019), fused into one kernel per step.

    Norms, biases and the embedding (which is the output head too) are not decayed.
    """
    decayed = [p for name, p in network.named_parameters() if p.dim() >= 2 and not name.startswith("embedding")]
    kept = [p for name, p in network.named_parameters() if p.dim() < 2 or name.startswith("embedding")]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
