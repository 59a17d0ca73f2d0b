"""Commands, recipes, runs and reports: what calls the stages in order (`runs/pipeline.py`)."""

import os

# Threads that wait by spinning halve each other's speed on busy cores: a training step went from 4150 to 568 tokens a
# second at load 4. It changes no bit of any result, and must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
