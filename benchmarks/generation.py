"""Measure generation beside `transformers`: the same exported network, the same prompts, greedy, in one process.

    python benchmarks/generation.py --texts 8 --tokens 64

Prints processor seconds of both, by turns, and the ratio of the medians. Tokens must be equal.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from model.config.network import GPTConfig
from model.huggingface.io import export_network
from model.inference.generate import Prompt, Sampling, generate_batch
from model.nn.gpt import GPT


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--even", action="store_true", help="prompts of equal lengths, without padding")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = GPTConfig(
        vocab_size=given.vocabulary, context=512, layers=given.layers, heads=6, kv_heads=2, width=given.width
    )
    network = GPT(config).initialise(1).eval()
    generator = torch.Generator().manual_seed(2)
    prompts = [
        torch.randint(5, given.vocabulary, (32 if given.even else 8 + 7 * text,), generator=generator).tolist()
        for text in range(given.texts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        export_network(Path(folder), config, network.state_dict(), {"eos_token_id": None, "pad_token_id": 0})
        import transformers

        theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    seen = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])

    def ours_batch() -> list[list[int]]:
        return generate_batch(
            network, [Prompt(one, Sampling(temperature=0.0)) for one in prompts], max_new_tokens=given.tokens
        )

    def ours_alone() -> list[list[int]]:
        greedy = Sampling(temperature=0.0)
        return [generate_batch(network, [Prompt(one, greedy)], max_new_tokens=given.tokens)[0] for one in prompts]

    def theirs_batch() -> list[list[int]]:
        with torch.inference_mode():
            found = theirs.generate(
                padded, attention_mask=seen, max_new_tokens=given.tokens, do_sample=False, use_cache=True
            )
        return found[:, longest:].tolist()

    ways = {"batch": ours_batch, "one at a time": ours_alone, "transformers": theirs_batch}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = {name: way() for name, way in ways.items()}
    for _ in range(given.rounds):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            seconds[name].append(time.process_time() - begun)
    median = {name: statistics.median(some) for name, some in seconds.items()}
    for name, value in median.items():
        same = sum(one == two for one, two in zip(results[name], results["batch"], strict=True))
        print(f"{name}: {value:.3f} processor seconds, {same} of {given.texts} texts as in the batch")
    print(f"transformers / batch: {median['transformers'] / median['batch']:.2f}")
    print(f"one at a time / batch: {median['one at a time'] / median['batch']:.2f}")


if __name__ == "__main__":
    main()
