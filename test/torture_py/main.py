"""A torture run, its report and the verdict; test/torture calls it.

    main.py WORK SECONDS SEED BIAS [INVARIANT…]

With names of invariants it ends as soon as one of those is broken, and succeeds when one was.
"""

import json
import sys
import time
import traceback
from pathlib import Path

from check import INVARIANTS
from director import Director

SHOWN = 5           # examples of a broken invariant

# What must have happened at least, in a minute, for the run to mean anything.
ENOUGH = {"grants": 120, "takeovers": 60, "renewals": 60, "renewals refused": 20, "writes committed": 120,
          "writes refused": 60, "clients killed": 5, "stops": 30, "cancels": 10, "terminations": 5,
          "backends killed": 1, "crashes": 1, "promotions": 1, "grants lost by promotions": 1}


def counts(director):
    book = director.book
    result = dict(director.done)
    granted = sorted((t for t in book.terms if t.acked is not None), key=lambda t: (t.role, t.era, t.granted))
    result["grants"] = len(granted)
    result["takeovers"] = sum(a.role == b.role and a.holder != b.holder for a, b in zip(granted, granted[1:]))
    result["grants lost by promotions"] = sum(
        t.era + 1 in book.came_over and t.token > book.came_over[t.era + 1].get(t.role, [0])[0] for t in granted)
    result["renewals"] = book.events["renew", "yes"]
    result["renewals refused"] = book.events["renew", "no"]
    result["checks"] = book.events["check", "yes"]
    result["checks refused"] = book.events["check", "no"] + book.events["check", "err"]
    result["writes committed"] = sum(write.fate == "committed" for write in book.writes)
    result["writes refused"] = book.events["write", "err"]
    result["writes rolled back"] = sum(write.fate == "absent" for write in book.writes) - result["writes refused"]
    result["writes of unknown outcome"] = sum(write.fate is None for write in book.writes)
    return result


def main():
    work, seconds, seed, bias = sys.argv[1], float(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    until = sys.argv[5:]
    start = time.monotonic()
    director = Director(work, seed, seconds, bias, until)
    try:
        director.run()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        for log in sorted(Path(work).glob("*.log")):
            print(f"{log.name}:", *log.read_text(errors="replace").splitlines()[-10:], sep="\n    ")
        print("0 passed, 1 failed")
        sys.exit(1)
    done = counts(director)
    broken = {name: faults for name, faults in director.book.faults.items() if faults}

    if until:
        words = ", ".join(f"{name} {len(faults)} times" for name, faults in broken.items())
        print(f"{time.monotonic() - start:.0f} s: broke {words or 'nothing'}")
        for faults in broken.values():
            print(f"    {faults[0]}")
        if director.broken:
            print("    besides:", *director.broken[:SHOWN], sep="\n    ")
        sys.exit(not director.caught())

    print(f"seed {seed}, {time.monotonic() - start:.0f} s: "
          + ", ".join(f"{number} {what}" for what, number in done.items()))
    print("refusals: " + ", ".join(f"{what} {state}: {number}"
                                   for (what, state), number in sorted(director.book.states.items())))
    few = [f"{done.get(what, 0)} {what}" for what, number in ENOUGH.items()
           if done.get(what, 0) < number * seconds // 60]
    verdicts = {text: director.book.faults[name] for name, text in INVARIANTS.items()}
    verdicts["neither server nor client broke down"] = director.broken
    verdicts["enough happened"] = few
    for text, faults in verdicts.items():
        print(f"{'FAILED ' if faults else 'ok     '} {text}" + (f": {len(faults)} times" if faults else ""))
        for fault in faults[:SHOWN]:
            print(f"        {fault}")
    failed = sum(bool(faults) for faults in verdicts.values())
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
