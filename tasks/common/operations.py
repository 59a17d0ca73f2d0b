"""Operations: code that decides whether, where and when a stage runs, and nothing of its result; it does not count."""

import functools

from tasks.common.scopes import Reference

OPERATIONS = frozenset(
    {
        "model.code_digest",
        "model.config.launch",
        "model.distributed.heartbeat",
        "model.distributed.protocol",
        "model.files",
        "model.kernel_cache",
        "model.launch.diagnostics",
        "model.launch.failures",
        "model.launch.launcher",
        "model.launch.rendezvous",
        "model.launch.supervisor",
        "model.launch.template",
        "model.launch.watchdog",
        "model.processes",
        "model.train.__main__",
        "model.train.reproduction",
        "model.train.template",
        "tasks.artifacts.build",
        "tasks.artifacts.limits",
        "tasks.artifacts.identity",
        "tasks.artifacts.lease",
        "tasks.artifacts.publish",
        "tasks.artifacts.published",
        "tasks.artifacts.remote",
        "tasks.artifacts.workspace",
        "tasks.common.code_cache",
        "tasks.common.code_fingerprint",
        "tasks.common.confinement",
        "tasks.common.digests",
        "tasks.common.operations",
        "tasks.common.work",
        "tasks.execution",
        "tasks.sample.limits",
        "tasks.train.launcher",
        "tasks.train.limits",
    }
)
"""Modules and packages that decide whether, where and when a stage runs, but nothing of its result: what processes its
parts (`tasks.execution`), where an unfinished build keeps them (`tasks.artifacts.workspace`, `model.files`), what ends
it (`tasks.artifacts.limits`), what finds, fetches and checks files (`tasks.artifacts.published`,
`tasks.artifacts.remote`, `tasks.common.digests`), what launches, watches and restarts the ranks of a training
(`model.launch.supervisor`), and their messages (`model.distributed.protocol`). Counted code must import other names
from the modules that define them, not through these (`tests/test_imports.py`). Functions of the user, which
`tasks.execution.plugins` loads, count by fingerprints of their own, as inputs do; which files an untrusted recipe may
read (`tasks.common.confinement`) changes nothing in these files. `tests/joints/reuse/test_operations.py` changes all of
them at once and checks that identities and bytes stay equal."""

DECLARED_BY = frozenset({Reference("tasks.artifacts.build", ("Stage",))})
"""Classes of operations whose objects declare the roots of a stage's code and do not belong to it."""


@functools.cache
def is_operations(module: str) -> bool:
    """Return whether a module does not count."""
    parts = module.split(".")
    return any(".".join(parts[:end]) in OPERATIONS for end in range(1, len(parts) + 1))
