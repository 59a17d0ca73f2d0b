"""Networks, objectives, engines and the training loop. Knows neither Prefect nor the stages: copied out, it trains."""
