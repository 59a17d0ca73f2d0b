"""A loop as one writes it by hand, after nanoGPT's: python plain.py RUNG SETTING

Rungs, each with what the one before has: `float32` (scores and softmax written out, all logits at once, torch's AdamW
parameter by parameter, dropout 0.1), `dtype`, `fused` (AdamW in one kernel), `attention` (torch's fused attention),
`no_dropout`, `compile`. `nanogpt` is the loop without dropout and with fused attention, not compiled;
`nanogpt_compiled` is the same under torch.compile, with AdamW in one kernel.
"""

import json
import math
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import load_file
from setting import BETAS, CLIP, EPS, LEARNING_RATE, Watch, chosen
from torch import Tensor, nn
from torch.nn import functional as F

RUNGS = ("float32", "dtype", "fused", "attention", "no_dropout", "compile")


class Plain(nn.Module):
    """GPT-2 over weights under Bessemer's names."""

    def __init__(self, folder: Path, dropout: float, fused_attention: bool) -> None:
        super().__init__()
        self.config = json.loads((folder / "model.json").read_text())["config"]
        weights = load_file(folder / "model.safetensors")
        self.weights = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(w) for name, w in weights.items()})
        self.dropout, self.fused_attention = dropout, fused_attention

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}/weight"], self.weights[f"{name}/bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}/weight"], self.weights[f"{name}/bias"])

    def _attention(self, block: str, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.config["heads"]
        q, k, v = (
            self._linear(f"{block}/attention_{part}", x).view(batch, length, heads, width // heads).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        if self.fused_attention:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = F.dropout(scores.masked_fill(hidden, -torch.inf).softmax(-1), self.dropout) @ v
        return self._linear(f"{block}/attention_out", mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy in nats; tokens and targets are i64[rows, length]."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        table = self.weights["embedding/weight"]
        x = F.dropout(table[tokens] + self.weights["embedding_positions/weight"][place], self.dropout)
        for layer in range(self.config["layers"]):
            block = f"blocks/{layer}"
            x = x + F.dropout(self._attention(block, self._norm(f"{block}/attention_norm", x)), self.dropout)
            hidden = F.gelu(self._linear(f"{block}/mlp_in", self._norm(f"{block}/mlp_norm", x)), approximate="tanh")
            x = x + F.dropout(self._linear(f"{block}/mlp_out", hidden), self.dropout)
        logits = F.linear(self._norm("final_norm", x), table)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main() -> None:
    name, setting = chosen()
    torch.set_num_threads(setting.threads)
    rung = RUNGS.index({"nanogpt": "no_dropout", "nanogpt_compiled": "compile"}.get(name, name))
    lower = rung >= 1 and setting.dtype == "bfloat16"
    network = Plain(
        Path(setting.folder) / "ours", dropout=0.0 if rung >= 4 else setting.dropout, fused_attention=rung >= 3
    ).to(setting.device)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
        weight_decay=0.0,
        **({"fused": True} if rung >= 2 and name != "nanogpt" else {"foreach": rung >= 2}),
    )
    forward = torch.compile(network) if rung >= 5 else network
    rows, watch = setting.rows(), Watch(setting)
    for step in range(setting.steps):
        batch = torch.from_numpy(setting.batch(rows, step)["tokens_BL"]).to(setting.device)
        with torch.autocast(setting.device, dtype=torch.bfloat16) if lower else nullcontext():
            loss = forward(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step_done(float(loss.detach()))
    watch.report()


main()
