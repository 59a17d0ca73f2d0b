"""How long the server's automations wait for an event that another one follows; Prefect loads this module by its name
(`PREFECT_SERVER_EVENTS_CAUSAL_ORDERING`).

A run's change of state follows the change before. Which events were seen is remembered in the server's memory alone, so
that after it was started again the crash of a run that had begun before is held back until a leader comes that never
does. Prefect gives it 15 minutes, for queues between many servers; to the one server here, events come within seconds.
"""

from datetime import timedelta

from prefect.server.events.ordering import memory

SECONDS = 30.0

memory.PRECEDING_EVENT_LOOKBACK = timedelta(seconds=SECONDS)  # pyright: ignore[reportPrivateImportUsage]
CausalOrdering = memory.CausalOrdering
