"""Training: SEQUENCES + ORDER + TOKENIZER -> MODEL (+ METRICS, STEPS, PERF, EVENTS).

The trainer is `python -m model.train`, a process of its own that knows nothing of the stages. This room writes its
`run.json`, launches it, listens to it, and takes what it made into the artifact. One owner per level: the trainer
restores itself from its checkpoints, the task retries the trainer, an automation restarts the flow run.

Out: `model.safetensors`, `model.json`, `steps.arrow`, `metrics.arrow`; with clocks in them, and therefore outside the
content digest, `perf.arrow` and `events.arrow`.
"""
