"""The scenario that all example workers go through together; test/examples calls it.

    scenario.py WORK BINDIR NAME=COMMAND…

NAME=COMMAND is a worker, or an adoption if NAME ends with "!": a program that sees for itself whether all is well.
Prints a line a check, for a worker and a step, and writes "PASSED FAILED" to WORK/tally.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import stage
import verdict
from stage import TTL, Bouncer, InVain, Seen, Server, Worker, wait_for

HERE = Path(__file__).parent
DOWN = 3            # seconds that a server is away: long enough for several attempts to reconnect
ENOUGH = 2          # steps that a worker may fail before the others are not tried with it
SHOWN = 15          # lines of a failing program's output


class Scenario:
    def __init__(self, work, bindir, workers):
        folder = work / "play"
        folder.mkdir()
        self.work = work
        self.server = Server(folder, bindir)
        self.bouncer = Bouncer(self.server)
        self.workers = [Worker(name, command, folder) for name, command in workers]
        self.seen = Seen(self.server, self.workers)
        self.port = self.server.port        # where workers connect to
        self.passed = self.failed = 0

    # reports

    def report(self, words, fault=None):
        if fault is None:
            self.passed += 1
            print(f"ok      {words}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED  {words}\n        {fault}", flush=True)
        (self.work / "tally").write_text(f"{self.passed} {self.failed}\n")

    def step(self, words, act, *workers):
        """Check one thing for each of the workers: act(worker) raises InVain where it is not so."""
        for worker in workers:
            if worker.failures >= ENOUGH:
                self.report(f"{worker.name}: {words}", "not tried: it has failed before")
                continue
            try:
                act(worker)
                if crash := worker.crashes():
                    raise InVain(f"it wrote to stderr: {crash.group().strip()}")
                self.report(f"{worker.name}: {words}")
            except InVain as fault:
                worker.failures += 1
                self.report(f"{worker.name}: {words}", fault)
                self.show(worker)
                worker.remove()
                if worker.failures < ENOUGH:
                    worker.start(self.port)

    def show(self, worker):
        for file in (worker.out, worker.err):
            lines = file.read_text(errors="replace").splitlines()[-SHOWN:] if file.exists() else []
            for line in lines:
                print(f"        {file.suffix[1:]}: {line}", flush=True)

    # what the database says

    def last(self):
        """The number of the last write."""
        return self.server.query("SELECT n FROM audit_counter")[0][0]

    def writes(self, since, holder=None, but=None):
        """How many there were after that number, by that holder, or by others than that."""
        return self.server.query("SELECT count(*) FROM audit WHERE n > %s AND worker = coalesce(%s, worker) "
                                 "AND worker IS DISTINCT FROM %s", since, holder, but)[0][0]

    def last_term(self, holder):
        """Token of that holder's last term, and why it ended."""
        rows = self.server.query("SELECT fencing_token, end_reason FROM lease_history WHERE role = 'mail' "
                                 "AND holder_id = %s ORDER BY fencing_token DESC LIMIT 1", holder)
        return rows[0] if rows else (None, None)

    def leads(self, holder):
        return self.server.query("SELECT EXISTS (SELECT FROM lease_status WHERE role = 'mail' AND live "
                                 "AND holder_id = %s)", holder)[0][0]

    # what workers go through

    def alive(self, worker):
        if not worker.runs():
            raise InVain(f"it has ended by itself, with {worker.process.returncode}")
        return True

    def starts(self, worker):
        """It asks for the lease, under a holder id that no process before it had."""
        wait_for("a new holder id in its requests", lambda: self.alive(worker) and self.seen.holder(worker))

    def make_lead(self, worker):
        """Give it the lease, as an operator would. Until it has written something as the leader."""
        self.starts(worker)
        before = self.last()

        def works():
            self.alive(worker)
            if self.writes(before, worker.holder):
                return True
            if not self.leads(worker.holder):
                # the ttl leaves it time to notice, and its first renewal makes it its own
                self.server.query("DO $$BEGIN PERFORM lease_revoke('mail', '%s', '30 s'); "
                                  "EXCEPTION WHEN lock_not_available THEN END$$" % worker.holder)
            # who campaigns notices by itself at the head of the queue only; others have to ask anew
            self.server.query("SELECT pg_cancel_backend(pid) FROM lease_locks "
                              "WHERE role = 'mail' AND mode = 'queue' AND NOT granted AND pid = ANY (%s)",
                              self.seen.pids(worker.holder))
            return False

        wait_for("work by it, having been given the lease", works)

    def leads_on(self, worker):
        """It keeps the lease for longer than a ttl, so its heartbeat beats."""
        self.make_lead(worker)
        wait_for("a term that lasts", lambda: self.alive(worker) and self.server.query(
            "SELECT max(at) - min(at) > %s * interval '1 s' FROM audit WHERE worker = %s AND token = "
            "(SELECT max(token) FROM audit WHERE worker = %s)", 1.5 * TTL, worker.holder, worker.holder)[0][0])

    def killed(self, worker):
        self.make_lead(worker)
        worker.kill()
        before = self.last()
        wait_for("work by another", lambda: self.writes(before, but=worker.holder))
        if self.last_term(worker.holder)[1] != "expired":
            raise InVain(f"its term did not run out: {self.last_term(worker.holder)}")
        wait_for("its child processes to end", lambda: not worker.left_something())

    def started_anew(self, worker):
        worker.remove()
        worker.start(self.port)
        self.make_lead(worker)

    def stopped(self, worker):
        self.make_lead(worker)
        worker.signal(signal.SIGSTOP)
        try:
            before = self.last()
            wait_for("work by another", lambda: self.writes(before, but=worker.holder) > 2)
            token, reason = self.last_term(worker.holder)
            if reason != "expired":
                raise InVain(f"its term did not run out: {reason}")
        finally:
            worker.signal(signal.SIGCONT)
        self.make_lead(worker)
        late = self.server.query(
            "SELECT count(*) FROM audit WHERE worker = %s AND token = %s "
            "AND n > (SELECT min(n) FROM audit WHERE token > %s)", worker.holder, token, token)[0][0]
        if late:
            raise InVain(f"{late} writes by its old term after the first one of the next")

    def leaves_to_another(self, worker):
        for _ in range(3):          # a machine that hangs for a ttl may well end the term first
            self.make_lead(worker)
            before = self.last()
            worker.signal(signal.SIGTERM)
            self.ends(worker)
            reason = self.last_term(worker.holder)[1]
            wait_for("work by another", lambda: self.writes(before, but=worker.holder))
            worker.start(self.port)
            if reason == "released":
                return
        raise InVain(f"its term was not released: {reason}")

    def ends(self, worker):
        """Of itself, with 0, and it leaves nothing behind."""
        try:
            code = worker.process.wait(stage.PATIENCE)
        except subprocess.TimeoutExpired:
            raise InVain(f"it was still there after {stage.PATIENCE} s") from None
        if code:
            raise InVain(f"it exited with {code}")
        wait_for("its child processes to end", lambda: not worker.left_something())
        if worker.crashes():
            raise InVain("its last words on stderr are those of a crash")

    def leaves(self, worker):
        """As a leader or as one that waits."""
        self.starts(worker)
        worker.signal(signal.SIGTERM)
        self.ends(worker)
        if self.leads(worker.holder):
            raise InVain("it has not released its term")

    # the acts

    def away(self, stop, start):
        """Something is stopped under all of them, and started again."""
        stop()
        time.sleep(DOWN)
        start()

    def directly(self):
        for worker in self.workers:
            worker.start(self.port)
        self.step("starts and asks for the lease", self.starts, *self.workers)
        wait_for("work", lambda: self.last() > 0)
        for worker in self.workers:
            self.step("leads for longer than a ttl", self.leads_on, worker)
            self.step("killed, and another leads when its ttl is over", self.killed, worker)
            self.step("started anew, and leads under a new name", self.started_anew, worker)
            self.step("stopped past its ttl, woken, and leads again by a new term only", self.stopped, worker)
        self.away(self.server.stop, self.server.start)
        self.step("leads again after a restart of the server", self.make_lead, *self.workers)
        self.away(lambda: self.server.stop("immediate"), self.server.start)
        self.step("leads again after a crash of the server", self.make_lead, *self.workers)
        self.all_leave("SIGTERM, and exits with 0")

    def pooled(self):
        self.port = self.bouncer.port
        for worker in self.workers:
            if worker.failures < ENOUGH:
                worker.start(self.port)
        for worker in self.workers:
            self.step("through pgbouncer, leads for longer than a ttl", self.leads_on, worker)
            self.step("through pgbouncer, stopped, woken, and leads again by a new term only", self.stopped, worker)
            self.step("through pgbouncer, SIGTERM, and another leads at once", self.leaves_to_another, worker)
        self.away(self.bouncer.stop, self.bouncer.start)
        self.step("leads again after a restart of pgbouncer", self.make_lead, *self.workers)
        self.all_leave("through pgbouncer, SIGTERM, and exits with 0")

    def all_leave(self, words):
        for worker in self.workers:
            self.step(words, self.leaves, worker)
            worker.remove()

    def adoption(self, name, command, how, port):
        program = Worker(name, command, self.server.folder)
        words = f"{name}: saves pass while it leads, and are refused afterwards{how}"
        try:
            program.start(port)
            self.ends(program)
            self.report(words)
        except InVain as fault:
            self.report(words, fault)
            self.show(program)
        finally:
            program.remove()

    def play(self, programs):
        self.server.create(self.work / "examples" / "schema.sql", HERE / "audit.sql")
        self.bouncer.start()
        if self.workers:
            self.play_workers()
        for name, command in programs:
            self.adoption(name, command, "", self.server.port)
            self.adoption(name, command, ", through pgbouncer", self.bouncer.port)
        self.report("pgbouncer has not crashed", self.bouncer.crash())
        self.report("the server has not crashed", self.server.crash())

    def play_workers(self):
        began = time.monotonic()
        self.directly()
        print(f"-- directly connected: {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        self.pooled()
        print(f"-- through pgbouncer: {time.monotonic() - began:.0f} s", flush=True)
        for words, faults in verdict.verdicts(self.server, self.workers):
            self.report(words, "\n        ".join(faults) or None)
        print(verdict.summary(self.server), flush=True)

    def end(self):
        for worker in self.workers:
            worker.remove()
        self.bouncer.stop()
        self.server.stop("immediate")


def main():
    work, bindir = map(Path, sys.argv[1:3])
    programs = [word.split("=", 1) for word in sys.argv[3:]]
    programs = [(name, [Path(command)]) for name, command in programs]
    scenario = Scenario(work, bindir, [(n, c) for n, c in programs if not n.endswith("!")])
    try:
        scenario.play([(n.rstrip("!"), c) for n, c in programs if n.endswith("!")])
    except (InVain, RuntimeError) as fault:
        scenario.report("the scenario", fault)
    finally:
        scenario.end()
    sys.exit(scenario.failed > 0)


if __name__ == "__main__":
    main()
