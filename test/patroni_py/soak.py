"""The soak: clients at work on a Patroni cluster whose leader is killed again and again.

    soak.py WORK BINDIR KILLS

Prints a line a round (the time from the last acknowledged write to the first acknowledged grant; the timelines and the
tokens of by_function on both sides; what was acknowledged and lost; the stale writes refused so far), a table of those
times, and a line an invariant. Writes "PASSED FAILED" to WORK/tally.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import check
from cluster import PATIENCE, Cluster, TooLittle, signal_all, wait_for

HERE = Path(__file__).parent
# what is done to the leader, and whether replication is cut before, so that acknowledged grants are lost for certain
ROUNDS = [
    ("kill -9 postgres", True),
    ("switchover", False),
    ("kill -9 postgres and patroni", True),
    ("kill -9 postgres", False),
    ("kill -9 postmaster", True),
    ("kill -9 postgres and patroni", False),
]
# name, lease, way, term; a lease by functions, one by hand-made statements, one by both, and two of an hour
CLIENTS = [
    ("f1", "by_function", "function", "short"),
    ("f2", "by_function", "function", "short"),
    ("u1", "by_upsert", "upsert", "short"),
    ("u2", "by_upsert", "upsert", "short"),
    ("m1", "by_both", "function", "short"),
    ("m2", "by_both", "upsert", "short"),
    ("lf", "long_function", "function", "long"),
    ("lu", "long_upsert", "upsert", "long"),
]
SETUP = """
CREATE EXTENSION leader_lease;
CREATE FUNCTION timeline() RETURNS int LANGUAGE sql
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int;
GRANT SELECT, INSERT, UPDATE ON leader_lease TO app;
"""
TABLES = """
CREATE TABLE counter_{0} (n bigint, token bigint);
INSERT INTO counter_{0} VALUES (0);
CREATE TABLE journal_{0} (n bigint PRIMARY KEY, token bigint NOT NULL, id text NOT NULL, term int NOT NULL,
                          timeline int NOT NULL DEFAULT timeline());
SELECT lease_protect('counter_{0}', '{0}', 'token'), lease_protect('journal_{0}', '{0}', 'token');
GRANT SELECT, UPDATE ON counter_{0} TO app;
GRANT SELECT, INSERT ON journal_{0} TO app;
"""
EXTRA_ROUNDS = 3


class Clients:
    """The client processes, and what they have noted so far."""

    def __init__(self, folder, conninfo):
        self.folder = folder
        self.environment = os.environ | {"CONNINFO": conninfo}
        self.processes = {}
        self.files = {}
        self.records = []
        self.granted = []           # those of acknowledged grants
        self.at_work = set()        # (client, timeline) with an acknowledged grant or write

    def start(self, name, lease, way, term):
        file = self.folder / f"{name}.jsonl"
        file.touch()
        self.files[name] = file.open()
        with (self.folder / f"{name}.err").open("ab") as err:
            self.processes[name] = subprocess.Popen(
                [sys.executable, HERE / "client.py", name, lease, way, term, file],
                stdin=subprocess.DEVNULL, stdout=err, stderr=err, env=self.environment)

    def signal(self, names, signo):
        for name in names:
            self.processes[name].send_signal(signo)

    def stop(self, names):
        self.signal(names, signal.SIGCONT)
        self.signal(names, signal.SIGTERM)
        for name in names:
            process = self.processes.pop(name)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.read()

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def read(self):
        """All records, with what has come since the last time."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise TooLittle(f"client {name} died:\n" + (self.folder / f"{name}.err").read_text())
        for file in self.files.values():
            while True:
                at = file.tell()
                line = file.readline()
                if not line.endswith("\n"):
                    file.seek(at)
                    break
                self.add(json.loads(line))
        return self.records

    def add(self, record):
        self.records.append(record)
        if record["outcome"] == "yes" and record["what"] in ("grant", "write"):
            self.at_work.add((record["client"], record["timeline"]))
            if record["what"] == "grant":
                self.granted.append(record)

    def grants(self, **conditions):
        """Acknowledged grants; conditions: timeline, since (when it was asked for)."""
        since = conditions.pop("since", 0)
        self.read()
        return [g for g in self.granted
                if g["sent"] >= since and all(g[key] == value for key, value in conditions.items())]

    def wait_for_work(self, names, timeline):
        """Until they work there: with a new term, as they should, or with the old one."""
        wait_for(f"work of {names} on timeline {timeline}",
                 lambda: self.read() and self.at_work >= {(name, timeline) for name in names})

    def wait_for_grants(self, leases, **conditions):
        wait_for(f"grants of {leases}", lambda: set(leases) <= {g["lease"] for g in self.grants(**conditions)})


class Soak:
    def __init__(self, work, bindir, kills):
        self.kills = kills
        self.cluster = Cluster(work, bindir)
        (work / "notes").mkdir()
        self.clients = Clients(work / "notes", self.cluster.conninfo("app"))
        self.leases = list(dict.fromkeys(lease for _, lease, _, _ in CLIENTS))
        self.short = [lease for lease in self.leases if not lease.startswith("long")]
        self.long = [name for name, _, _, term in CLIENTS if term == "long"]    # one client a lease
        self.rounds = []
        self.trouble = []

    def set_up(self):
        began = time.monotonic()
        self.cluster.start()
        wait_for("three healthy nodes", self.cluster.healthy)
        script = "CREATE ROLE app LOGIN PASSWORD '%s';" % self.cluster.passwords["app"] + SETUP
        for lease in self.leases + [f"new_{n + 1}" for n in range(self.kills + EXTRA_ROUNDS)]:
            script += TABLES.format(lease)
        self.cluster.query(script)
        for client in CLIENTS:
            self.clients.start(*client)
        self.clients.wait_for_grants(self.leases)
        print(f"three nodes and {len(CLIENTS)} clients up after {time.monotonic() - began:.0f} s", flush=True)

    def lose_what_follows(self, number):
        """Cut replication; return when grants of every lease, new ones included, are known to nobody but the leader.

        A stopped walsender sends nothing. Returns the walsenders and the clients of the new lease.
        """
        new = [(f"n{number}{way[0]}", f"new_{number}", way, "short") for way in ("function", "upsert")]
        cut = self.cluster.walsenders()
        signal_all(cut, signal.SIGSTOP)
        for client in new:
            self.clients.start(*client)
        while True:
            since = time.monotonic()
            self.clients.signal(self.long, signal.SIGUSR1)
            self.clients.wait_for_grants(self.leases + [f"new_{number}"], since=since)
            late = self.cluster.walsenders() - cut
            if not late:
                return cut, [name for name, *_ in new]
            signal_all(late, signal.SIGSTOP)
            cut |= late

    def strike(self, kind, leader, cut):
        """Do it. False when it was refused."""
        if kind == "switchover":
            answer = self.cluster.switchover(leader)
            if answer.returncode:
                print(answer.stdout, answer.stderr, flush=True)
            return answer.returncode == 0
        if kind == "kill -9 postmaster":
            os.kill(leader.postmaster(), signal.SIGKILL)    # its backends leave when they notice
            signal_all(cut, signal.SIGKILL)                 # what is stopped does not notice
        else:
            if "patroni" in kind:
                leader.kill_patroni()
            leader.kill_postgres()
        return True

    def round(self, number):
        """One failover. False when none came of it."""
        kind, lossy = ROUNDS[len(self.rounds) % len(ROUNDS)]
        leader = wait_for("three healthy nodes", self.cluster.healthy)
        (before,), = self.cluster.query("SELECT timeline()")
        cut, new = self.lose_what_follows(number) if lossy else (set(), [])
        self.clients.wait_for_grants(self.short, since=time.monotonic())
        self.clients.wait_for_work(self.long, before)

        # These sleep through it: the two whose terms last for an hour, and the one who led last.
        last = self.clients.grants(lease="by_function")[-1]["client"]
        asleep = [*self.long, last]
        self.clients.signal(asleep, signal.SIGSTOP)
        struck = time.monotonic()
        try:
            done = self.strike(kind, leader, cut)
            # A switchover lets clients in until it shuts down; after a kill, who gets in on the same timeline has found
            # the old primary restarted in place.
            grant = done and wait_for("a grant after the failover", lambda: next(
                (g for g in self.clients.grants(since=struck)
                 if g["timeline"] > before or g["link"] > struck and kind != "switchover"), None), step=0.02)
        finally:
            self.clients.signal(asleep, signal.SIGCONT)
        if leader.patroni.poll() is not None:
            leader.start()
        if not grant or grant["timeline"] == before:
            print(f"round {number}: {kind}: no failover came of it", flush=True)
            self.clients.stop(new)
            return False
        after = grant["timeline"]
        self.clients.wait_for_grants(self.short + ([f"new_{number}"] if lossy else []), timeline=after)
        self.clients.wait_for_work(self.long, after)
        self.clients.stop(new)
        self.note(number, kind, lossy, before, asleep, grant)
        return True

    def note(self, number, kind, lossy, before, asleep, grant):
        """Add to the rounds what this one came to, and print it."""
        records = self.clients.read()
        after = grant["timeline"]
        # who slept may have noted an answer of before only when it woke up
        writes = [r["done"] for r in records if r["what"] == "write" and r["outcome"] == "yes"
                  and r["timeline"] == before and r["client"] not in asleep]
        kept = wait_for("the new leader's rows", lambda: self.rows(f"WHERE timeline = {before}"))
        tokens = [[g["token"] for g in self.clients.grants(lease="by_function", timeline=t)] for t in (before, after)]
        self.rounds.append({
            "number": number, "kind": kind, "lossy": lossy, "before": before, "after": after, "paused": self.long,
            "seconds": grant["done"] - max(writes),
            "lost": check.lost(records, before, {row[2] for rows in kept.values() for row in rows}),
        })
        refused = sum(r["what"] == "write" and r["outcome"] == "LF001" and r["term"] < r["timeline"] == after
                      for r in records)
        lost = self.rounds[-1]["lost"]
        print(f"round {number}: {kind}{', replication cut' if lossy else ''}: {self.rounds[-1]['seconds']:.2f} s, "
              f"timeline {before} -> {after}, tokens {max(tokens[0])} -> {min(tokens[1])}, "
              f"lost {lost['grants']} grants and {lost['writes']} writes, refused {refused} stale writes", flush=True)

    def rows(self, condition=""):
        """The journals of all leases; None while there is no leader."""
        leases = self.leases + [f"new_{n + 1}" for n in range(self.kills + EXTRA_ROUNDS)]
        found = self.cluster.query(" UNION ALL ".join(
            f"SELECT '{lease}', n, token, id, term, timeline FROM journal_{lease} {condition}" for lease in leases)
            + " ORDER BY 1, 2")
        if found is None:
            return None
        by_lease = {lease: [] for lease in leases}
        for lease, *row in found:
            by_lease[lease].append(tuple(row))
        return by_lease

    def run(self):
        self.set_up()
        rows = {}
        try:
            for number in range(1, self.kills + EXTRA_ROUNDS + 1):
                if len(self.rounds) < self.kills:
                    self.round(number)
        except TooLittle as error:
            self.trouble.append(str(error))
            self.show_logs()
        self.clients.stop(list(self.clients.processes))
        try:
            rows = wait_for("the last leader's rows", self.rows)
        except TooLittle as error:
            self.trouble.append(str(error))
        return self.verdict(rows)

    def show_logs(self):
        for log in [*(node.log for node in self.cluster.nodes), self.cluster.work / "etcd.log"]:
            print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))

    def verdict(self, rows):
        records = self.clients.read()
        times = defaultdict(list)
        for one in self.rounds:
            times[one["kind"]].append(one["seconds"])
        times["all"] = [one["seconds"] for one in self.rounds]
        print("\nseconds from the last acknowledged write to the first acknowledged grant")
        print(f"{'':30}{'rounds':>7}{'min':>8}{'median':>8}{'max':>8}")
        for kind, seconds in times.items():
            if seconds:
                least, middle, most = min(seconds), statistics.median(seconds), max(seconds)
                print(f"{kind:30}{len(seconds):7}{least:8.2f}{middle:8.2f}{most:8.2f}")
        outcomes = defaultdict(int)
        for r in records:
            outcomes[f"{r['what']} {r['outcome']}"] += 1
        print("\n" + ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items())))
        print(f"{sum(map(len, rows.values()))} rows survived\n")

        failed = 0
        verdicts = check.verdicts(check.Book(records, rows, self.rounds, self.kills, self.trouble))
        for words, faults in verdicts:
            print(f"{'FAILED' if faults else 'ok    '}  {words}")
            for fault in faults[:5]:
                print(f"        {fault}")
            if len(faults) > 5:
                print(f"        and {len(faults) - 5} more")
            failed += bool(faults)
        return len(verdicts) - failed, failed


def main():
    work = Path(sys.argv[1])
    soak = Soak(work, sys.argv[2], int(sys.argv[3]))
    try:
        passed, failed = soak.run()
    except TooLittle as error:
        print(f"FAILED  {error}")
        soak.show_logs()
        passed, failed = 0, 1
    finally:
        soak.clients.kill()
        soak.cluster.stop()
    (work / "tally").write_text(f"{passed} {failed}\n")
    sys.exit(failed > 0)


main()
