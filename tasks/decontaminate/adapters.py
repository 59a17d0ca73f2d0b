"""Field maps of known benchmarks: which keys of a record make up its context, choices and answer.

A benchmark takes the map of its `adapter`, else that of its name, else GENERIC. The maps are for files with one JSON
object an item and the keys `id`, `lang`, `match_text`; what differs between benchmarks is how an item is put together.
"""

from tasks.decontaminate.config import Benchmark, BenchmarkFields

GENERIC = BenchmarkFields()
"""A passage, question or prompt, where present; choices, or a free answer."""

_QUESTION = BenchmarkFields(context=("question",))
_READING = BenchmarkFields(context=("passage", "question"))
_PROMPT = BenchmarkFields(context=("prompt",))
_SENTENCES = BenchmarkFields(context=())
"""Nothing but sentences to choose from."""
_RELATION = BenchmarkFields(context=("question", "relation"))
"""A premise, and the question whether its cause or its effect is sought."""
_TWO_CONTEXTS = BenchmarkFields(context=(), choices="context_options", continuation="continuation")
"""Winograd schemas by partial scoring: one end after several beginnings."""

ADAPTERS: dict[str, BenchmarkFields] = {
    "generic": GENERIC,
    "arc_challenge": _QUESTION,
    "arc_easy": _QUESTION,
    "bigbench_conceptual_combinations": _QUESTION,
    "bigbench_logical_deduction": _QUESTION,
    "bigbench_misconceptions": _QUESTION,
    "bigbench_strategy_qa": _QUESTION,
    "bigbench_understanding_fables": _QUESTION,
    "blimp": _SENTENCES,
    "boolq": _READING,
    "cmrc2018": _READING,
    "commonsense_qa": _QUESTION,
    "copa": _QUESTION,
    "drcd": _READING,
    "gsm8k": _QUESTION,
    "hellaswag": _QUESTION,
    "humaneval": _PROMPT,
    "lambada": _PROMPT,
    "mmlu": _QUESTION,
    "ntrex": _QUESTION,
    "parus": _RELATION,
    "piqa": _QUESTION,
    "svamp": _QUESTION,
    "truthfulqa": _QUESTION,
    "winograd_wsc": _TWO_CONTEXTS,
    "xcopa": _QUESTION,
    "xquad": _READING,
}


def fields_of(benchmark: Benchmark) -> BenchmarkFields:
    """The field map of a benchmark: its own, its adapter's, its namesake's, or the generic one."""
    if benchmark.fields is not None:
        return benchmark.fields
    return ADAPTERS.get(benchmark.adapter or benchmark.name, GENERIC)
