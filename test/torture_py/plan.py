"""The plan of a run: what befalls clients, backends and servers, and when. It follows from the seed alone."""

import random

CLIENTS = 12

# kind: (seconds between two of them on the average, seconds to the first)
PACE = {
    "stop": (0.4, 1),           # SIGSTOP of a client, and SIGCONT later
    "kill": (3, 2),             # kill -9 of a client; another takes its place
    "cancel": (0.7, 1),         # pg_cancel_backend
    "terminate": (2, 2),        # pg_terminate_backend
    "kill_backend": (10, 6),    # kill -9 of a backend: the server restarts itself
    "crash": (10, 4),           # kill -9 of the whole server
    "promote": (13, 8),         # the same, and its standby takes over
}


def plan(seed, seconds, bias):
    """Yields (second, kind, parameters) in the order of time."""
    events = []
    for kind, (between, first) in PACE.items():
        dice = random.Random(f"{seed}/{kind}")
        between = bias.get(kind, between)
        at = min(first, between)
        while at < seconds:
            events.append((at, kind, parameters(dice, kind)))
            at += between * dice.uniform(0.5, 1.5)
    return sorted(events)


def parameters(dice, kind):
    client = dice.randrange(CLIENTS)
    if kind == "stop":
        return client, round(dice.choice((dice.uniform(0.05, 0.3), dice.uniform(0.3, 1.2))), 3)
    if kind == "kill":
        return (client,)
    if kind == "crash":
        return ()
    if kind == "promote":
        # for how long the standby is held back: what is granted meanwhile is lost
        return (round(dice.choice((0, dice.uniform(0.2, 0.5), dice.uniform(0.5, 1.5))), 3),)
    return client, dice.choice(("work", "beat"))
