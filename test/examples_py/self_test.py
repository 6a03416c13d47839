"""Can the scenario fail? Workers with planted faults go through it, each of which one step or verdict has to find.

    self_test.py WORK BINDIR

The table is without its guard, which would not let some of the faults happen. Prints a line a fault, and writes "PASSED
FAILED" to WORK/tally.
"""

import sys
from pathlib import Path

import stage
from scenario import HERE, Scenario

# what finds it: the words of a step or of a verdict
FAULTS = {
    "none": None,
    "no heartbeat": "leads for longer than a ttl",
    "outlives": "killed, and another leads when its ttl is over",
    "same name": "started anew, and leads under a new name",
    "late": "stopped past its ttl, woken, and leads again by a new term only",
    "twice": "each of its slots was done once",
    "strange": "each of its writes is of a term that it had",
    "leaves out": "none of its slots comes before its turn",
    "gives up": "leads again after a restart of the server",
    "hangs": "leads again after a restart of the server",
    "prints a traceback": "leads again after a restart of the server",
    "prepares": "through pgbouncer, leads for longer than a ttl",
    "no release": "through pgbouncer, SIGTERM, and another leads at once",
    "bad exit": "SIGTERM, and exits with 0",
    "deaf": "SIGTERM, and exits with 0",
    "leaves a child": "SIGTERM, and exits with 0",
}

# the steps that all go through, so that each has led
ALL = {"starts and asks for the lease", "leads again after a restart of the server"}


class SelfTest(Scenario):
    """The scenario. Its reports are kept and not counted, and workers take the steps only that are to find them."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.found = []

    def step(self, words, act, *workers):
        super().step(words, act, *(worker for worker in workers
                                   if words in ALL or FAULTS[worker.name.replace("_", " ")] in (None, words)))

    def report(self, words, fault=None):
        if fault is not None:
            self.found.append((words, str(fault)))

    def show(self, worker):
        pass


def main():
    work, bindir = map(Path, sys.argv[1:])
    stage.PATIENCE = 15
    workers = [(fault.replace(" ", "_"), [sys.executable, HERE / "faulty.py", fault]) for fault in FAULTS]
    test = SelfTest(work, bindir, workers)
    try:
        test.server.create(work / "examples" / "schema.sql", HERE / "audit.sql")
        test.bouncer.start()
        test.server.query("SELECT lease_unprotect('job')")
        test.play_workers()
    finally:
        test.end()
    for fault, step in FAULTS.items():
        name = fault.replace(" ", "_")
        found = [(words.removeprefix(f"{name}: "), why) for words, why in test.found if words.startswith(f"{name}: ")]
        if step is None:
            words = f"{fault}: nothing is found"
            good = not found
        else:
            words = f"{fault}: found by \"{step}\""
            good = step in dict(found)
        Scenario.report(test, words, None if good else "\n        ".join(map(": ".join, found)) or "nothing was found")
    sys.exit(test.failed > 0)


main()
