"""How long the server's automations wait for the event that precedes another; Prefect loads this module by its name
(`PREFECT_SERVER_EVENTS_CAUSAL_ORDERING`).

A run's change of state follows the change before. The server remembers only in memory which events it has seen, so
after a restart the crash of an earlier run waits for a preceding event that never comes. Prefect waits 15 minutes, for
queues between many servers; events reach the one server here within seconds.
"""

from datetime import timedelta

from prefect.server.events.ordering import memory

SECONDS = 30.0

memory.PRECEDING_EVENT_LOOKBACK = timedelta(seconds=SECONDS)  # pyright: ignore[reportPrivateImportUsage]
CausalOrdering = memory.CausalOrdering
