"""Estimate the cost of a run before it starts, and forecast which stages it would build.

`cost_model` relates tokens, parameters, devices, days and memory; `calculator` solves it for options of the command
line. `pilot` runs the data stages on a small share of every source, `estimate` extrapolates to all data, and `plan`
combines both. `explain` forecasts each stage, and `preconditions` checks a recipe before its first stage.
"""
