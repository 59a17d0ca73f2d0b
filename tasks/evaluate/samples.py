"""Text that the model writes: each prompt continued at each temperature, the same for the same seed."""

import pyarrow as pa

from model.generate import generate_tokens
from model.transformer import GPT
from tasks.evaluate.config import EvaluateConfig
from tasks.seed import seed64
from tasks.tokenizer import Tokenizer

SAMPLES = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("seed", pa.uint64(), nullable=False),
    ]
)
"""`text` is what follows the prompt, up to the end of text or `sample_tokens`."""
PROMPT_CHARS = 60


def heldout_prompts(texts: dict[str, list[str]]) -> tuple[str, ...]:
    """The beginning of the first held-out document of each source, cut before a blank where there is one."""
    prompts = []
    for documents in texts.values():
        for text in documents[:1]:
            beginning = text.strip()[:PROMPT_CHARS]
            whole = beginning.rpartition(" ")[0] if len(text.strip()) > PROMPT_CHARS else beginning
            prompts.append(whole or beginning)
    return tuple(prompt for prompt in prompts if prompt)


def write_samples(network: GPT, tokenizer: Tokenizer, prompts: tuple[str, ...], config: EvaluateConfig) -> pa.Table:
    """SAMPLES: a row for every prompt and temperature."""
    rows = []
    for prompt in prompts:
        for temperature in config.temperatures:
            seed = seed64(config.seed, "evaluate", "sample", f"{temperature}/{prompt}") % 2**63
            ids = generate_tokens(
                network,
                [tokenizer.eos, *tokenizer.encode(prompt)],
                max_new_tokens=config.sample_tokens,
                temperature=temperature,
                top_p=config.top_p,
                seed=seed,
                stop=tokenizer.eos,
            )
            text = tokenizer.decode_following(ids)
            rows.append({"prompt": prompt, "text": text, "temperature": temperature, "seed": seed})
    return pa.Table.from_pylist(rows, schema=SAMPLES)
