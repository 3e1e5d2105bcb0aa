"""Code of the operator's own that hears of the catalog's changes, in the server's process: in the background, best effort.

A package with an entry point in the group `tidings.subscribers` is found when the server starts. It implements these three:

    EventSubscriber.register(registrar)      is called once, and registers
    EventListener                            which is called for each event, and
    EventFilter                              (filters.py), which says which events those are

and gets a `Subscription` that tells how it is doing. The durable way for events is the change stream; this one loses what a
subscriber does not take in time, and never lets an API call wait.
"""

from tidings.subscribers.filters import EventFilter
from tidings.subscribers.interface import EventListener, EventSubscriber, Registrar, Status, Subscription

__all__ = ["EventFilter", "EventListener", "EventSubscriber", "Registrar", "Status", "Subscription"]
