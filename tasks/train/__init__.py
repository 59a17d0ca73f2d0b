"""Training: SEQUENCES + ORDER + TOKENIZER -> MODEL (+ METRICS, STEPS, PERF, EVENTS).

The trainer is `python -m model.train`, a process of its own that knows nothing of the stages. This package writes its
`run.json`, launches it, reads its messages, and moves its results into the artifact. Restarts have one owner per level:
the trainer restores itself from its checkpoints, the task retries the trainer, an automation restarts the flow run.

Out: `model.safetensors`, `model.json`, `steps.arrow`, `metrics.arrow`; and, outside the content digest since they
record times, `perf.arrow` and `events.arrow`.
"""
