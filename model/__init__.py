"""Networks, objectives, engines and the training loop, usable without the pipeline: imports neither Prefect nor
stages."""
