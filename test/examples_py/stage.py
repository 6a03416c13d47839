"""What the scenario is played on: a server, a pgbouncer before it, and the workers."""

import os
import re
import signal
import socket
import subprocess
import time

import psycopg

PATIENCE = 60       # seconds to wait for what must come. A slow machine needs them, and nothing is decided by less
TTL = 2             # of the workers' leases, in seconds
WORK_MS = 60

CONFIG = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
fsync = off
shared_buffers = 16MB
max_connections = 150
jit = off
# every statement with its parameters: that is how a worker's holder id is known from outside
log_statement = all
log_line_prefix = '%m [%p] %a %e '
"""

POOLER = """
[databases]
app = host={folder} port={port} user=worker
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 40
max_client_conn = 300
ignore_startup_parameters = extra_float_digits
logfile = {folder}/pgbouncer.log
pidfile = {folder}/pgbouncer.pid
"""

# What a program prints whose end was not its own decision, or that has a bug.
CRASHES = re.compile(r"""
    ^Traceback | ^Task\ exception\ was\ never | ^Exception\ (in\ thread|ignored) | Unhandled\ ?[Ee]xception |
    UnhandledPromiseRejection | ^\s*Uncaught | ^panic: | ^fatal\ error: | terminated\ with\ exception |
    ^(PHP\ )?(Fatal\ error|Warning|Notice|Deprecated): | Segmentation\ fault | core\ dumped | corrupted |
    line\ \d+:\ .*(command\ not\ found|unbound\ variable|syntax\ error)""", re.X | re.M)


class InVain(Exception):
    """What was waited for has not come."""


def wait_for(what, ready):
    """The first true answer of ready()."""
    end = time.monotonic() + PATIENCE
    while not (answer := ready()):
        if time.monotonic() > end:
            raise InVain(f"waited {PATIENCE} s in vain for {what}")
        time.sleep(0.05)
    return answer


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout}")
    return done.stdout


class Server:
    """PostgreSQL, with the job table and an audit of it in the database `app`; the workers' role is `worker`."""

    def __init__(self, folder, bindir):
        self.folder = folder
        self.bin = bindir
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = free_port()
        self.db = None

    def create(self, *scripts):
        run(self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
            "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(CONFIG.format(port=self.port, folder=self.folder))
        self.start()
        self.psql("postgres", "-c", "CREATE ROLE worker LOGIN", "-c", "CREATE DATABASE app")
        for script in scripts:
            self.psql("app", "-f", script)

    def psql(self, database, *what):
        run(self.bin / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-p", self.port, "-U", "postgres",
            "-d", database, *what)

    def start(self):
        # its output goes to the log: whoever else holds a pipe's end would be waited for
        run(self.bin / "pg_ctl", "-D", self.data, "-l", self.log, "-t", PATIENCE, "-w", "start")

    def stop(self, mode="fast"):
        if self.db:
            self.db.close()
            self.db = None
        if (self.data / "postmaster.pid").exists():
            run(self.bin / "pg_ctl", "-D", self.data, "-m", mode, "-t", PATIENCE, "-w", "stop")

    def crash(self):
        """The first line of the log that tells of one."""
        found = re.search(r".*(TRAP: |PANIC: |was terminated by signal).*", self.log.read_text(errors="replace"))
        return found and found.group()

    def query(self, sql, *parameters):
        """All rows, over a connection that is not a worker's."""
        if self.db is None:
            self.db = psycopg.connect(host=str(self.folder), port=self.port, user="postgres", dbname="app",
                                      autocommit=True, application_name="director")
        cursor = self.db.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


class Bouncer:
    """pgbouncer in transaction mode."""

    def __init__(self, server):
        self.port = free_port()
        self.config = server.folder / "pgbouncer.ini"
        self.log = server.folder / "pgbouncer.log"
        self.config.write_text(POOLER.format(folder=server.folder, port=server.port, own=self.port))
        self.process = None
        self.crashed = None

    def start(self):
        self.process = subprocess.Popen(["pgbouncer", "-q", self.config], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("pgbouncer to answer", self.answers)

    def answers(self):
        try:
            with psycopg.connect(host="127.0.0.1", port=self.port, user="worker", dbname="app") as db:
                return db.execute("SELECT true").fetchone()[0]
        except psycopg.OperationalError:
            return False

    def crash(self):
        """How it has ended by itself, if it ever has."""
        if self.process and self.process.poll() is not None:
            self.crashed = f"it has ended with {self.process.returncode}"
        return self.crashed

    def stop(self):
        self.crash()
        if self.process:
            self.process.terminate()
            self.process.wait(PATIENCE)
            self.process = None


class Worker:
    """One of the examples, and its present process."""

    def __init__(self, name, command, folder):
        self.name = name
        self.command = command
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        self.process = None
        self.holder = None          # the holder id of this process, as soon as it has been seen
        self.holders = []           # those of the processes before
        self.began = 0              # where the present process's part of err begins
        self.failures = 0

    def environment(self, port):
        return {
            **{key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR")},
            "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "worker", "PGDATABASE": "app",
            "LEASE_ROLE": "mail", "LEASE_TTL": str(TTL), "WORK_MS": str(WORK_MS), "WORKER_NAME": self.name,
        }

    def start(self, port):
        if self.holder:
            self.holders.append(self.holder)
            self.holder = None
        self.began = self.err.stat().st_size if self.err.exists() else 0
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(self.command, cwd=self.out.parent, env=self.environment(port),
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, signo):
        """To the process alone, as `kill PID` does, and not to children of it."""
        self.process.send_signal(signo)

    def kill(self):
        """The process alone."""
        self.process.kill()
        self.process.wait()

    def remove(self):
        """End it, and whatever it has left."""
        if self.process is None:
            return
        self.kill()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def left_something(self):
        """Is there still a process in the process group of one that has ended?"""
        try:
            os.killpg(self.process.pid, 0)
            return True
        except ProcessLookupError:
            return False

    def errors(self):
        """What the present process has written to stderr."""
        if not self.err.exists():
            return ""
        with self.err.open(errors="replace") as file:
            file.seek(self.began)
            return file.read()

    def crashes(self):
        return CRASHES.search(self.errors())


class Seen:
    """The holder ids that turn up in the server's log, and the backends that work for them."""

    def __init__(self, server, workers):
        self.log = server.log
        names = "|".join(sorted((re.escape(w.name) for w in workers), key=len, reverse=True))
        self.id = re.compile(rf"(?<![\w.-])({names})-[0-9a-f]{{8}}(?![0-9a-f])")
        self.line = re.compile(r"\S+ \S+ \S+ \[(\d+)\] (?!director )")
        self.at = 0
        self.ids = {}           # name: those of it, in the order of appearance
        self.backends = {}      # pid: whom its last statement was for

    def look(self):
        with self.log.open("rb") as file:
            file.seek(self.at)
            text = file.read()
        text = text[:text.rfind(b"\n") + 1]
        self.at += len(text)
        pid = None
        for line in text.decode(errors="replace").split("\n"):
            if prefix := self.line.match(line):
                pid = int(prefix.group(1))
            elif not line.startswith("\t"):
                pid = None      # the test's own, or not of a statement
            for found in self.id.finditer(line if pid else ""):
                ids = self.ids.setdefault(found.group(1), [])
                if found.group() not in ids:
                    ids.append(found.group())
                self.backends[pid] = found.group()

    def holder(self, worker):
        """The holder id of the worker's present process, if it has shown it."""
        if worker.holder is None:
            self.look()
            new = [id for id in self.ids.get(worker.name, ()) if id not in worker.holders]
            worker.holder = new[-1] if new else None
        return worker.holder

    def pids(self, holder):
        self.look()
        return [pid for pid, whom in self.backends.items() if whom == holder]
