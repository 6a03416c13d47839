"""One etcd and three Patroni nodes on loopback ports: start, look, cut replication, kill.

Whatever is started here is a child of this process or a server under the work folder.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

PATIENCE = 120      # seconds to wait for what must come; a slow machine needs them, and no verdict hangs on them
SCOPE = "soak"
SETTINGS = {
    # Generous, so that no stall of a busy machine looks like a death: two writable primaries are outside of what
    # fencing in the database can promise.
    "ttl": 10,
    "loop_wait": 1,
    "retry_timeout": 3,
    "maximum_lag_on_failover": 1 << 30,     # loss allowed
    "primary_start_timeout": 0,             # fail over at once, where the default restarts a crashed primary in place
    "synchronous_mode": False,
    "postgresql": {
        "use_pg_rewind": True,
        "use_slots": True,
        "parameters": {"wal_log_hints": "on", "wal_keep_size": "256MB", "fsync": "off", "shared_buffers": "16MB",
                       "max_connections": 60},
    },
}


class TooLittle(Exception):
    """The test could not make happen what it wanted to look at."""


def wait_for(what, ready, patience=PATIENCE, step=0.1):
    """The first true answer of ready()."""
    end = time.monotonic() + patience
    while not (answer := ready()):
        if time.monotonic() > end:
            raise TooLittle(f"waited {patience} s in vain for {what}")
        time.sleep(step)
    return answer


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def signal_all(pids, signo):
    for pid in pids:
        try:
            os.kill(pid, signo)
        except ProcessLookupError:
            pass


class Node:
    def __init__(self, work, name, port, api):
        self.name = name
        self.port = port
        self.api = api
        self.data = work / name
        self.conf = work / f"{name}.yml"
        self.log = work / f"{name}.log"
        self.patroni = None

    def start(self):
        with self.log.open("ab") as log:
            self.patroni = subprocess.Popen(["patroni", self.conf], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def postmaster(self):
        """Its process, if it is really this node's."""
        pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        if not Path(f"/proc/{pid}/cwd").samefile(self.data):
            raise ProcessLookupError(f"{self.name} has no postmaster")
        return pid

    def backends(self):
        """The processes of this node's server other than the postmaster."""
        parent, found = self.postmaster(), []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(stat.parent.name))
            except OSError:
                pass
        return found

    def kill_postgres(self):
        """kill -9 of the whole server at once."""
        postmaster = self.postmaster()
        os.kill(postmaster, signal.SIGSTOP)         # no new backend while the others are listed
        signal_all([postmaster, *self.backends()], signal.SIGKILL)

    def kill_patroni(self):
        self.patroni.kill()
        self.patroni.wait()

    def answers(self, path):
        """Does Patroni's health check say yes?"""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/{path}", timeout=3) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False


class Cluster:
    def __init__(self, work, bindir):
        ports = free_ports(8)
        self.work = work
        self.bindir = bindir
        self.client_port, self.peer_port = ports[:2]
        self.nodes = [Node(work, f"n{i + 1}", ports[2 + i], ports[5 + i]) for i in range(3)]
        self.passwords = {name: secrets.token_hex(8) for name in ("postgres", "replicator", "rewinder", "app")}
        self.etcd = None

    def conninfo(self, user):
        """For whichever node takes writes."""
        return psycopg.conninfo.make_conninfo(
            host=",".join("127.0.0.1" for _ in self.nodes), port=",".join(str(n.port) for n in self.nodes),
            user=user, password=self.passwords[user], dbname="postgres",
            target_session_attrs="read-write", connect_timeout=5)

    def configuration(self, node):
        def user(name):
            return {"username": name, "password": self.passwords[name]}

        return {
            "scope": SCOPE,
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}"},
            "etcd3": {"hosts": [f"127.0.0.1:{self.client_port}"]},
            "bootstrap": {"dcs": SETTINGS, "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums"]},
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.data),
                "bin_dir": self.bindir,
                "pgpass": str(self.work / f"{node.name}.pgpass"),
                "parameters": {"unix_socket_directories": str(self.work)},
                "pg_hba": ["host all all 127.0.0.1/32 scram-sha-256",
                           "host replication replicator 127.0.0.1/32 scram-sha-256"],
                "authentication": {"superuser": user("postgres"), "replication": user("replicator"),
                                   "rewind": user("rewinder")},
                "basebackup": [{"checkpoint": "fast"}],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def start(self):
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.client_port, self.peer_port))
        with (self.work / "etcd.log").open("ab") as log:
            self.etcd = subprocess.Popen(
                ["etcd", "--name", "etcd", "--data-dir", self.work / "etcd", "--unsafe-no-fsync",
                 "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"etcd={peer}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for node in self.nodes:
            node.conf.write_text(json.dumps(self.configuration(node)))      # YAML includes JSON
            node.conf.chmod(0o600)
            node.start()

    def stop(self):
        for node in self.nodes:
            if node.patroni:
                node.kill_patroni()
            try:
                node.kill_postgres()
            except (OSError, ValueError):       # it does not run
                pass
        if self.etcd:
            self.etcd.kill()
            self.etcd.wait()

    def query(self, statement, *args):
        """Ask the leader, as superuser. None while there is none."""
        try:
            with psycopg.connect(self.conninfo("postgres"), autocommit=True) as db:
                cursor = db.execute(statement, args or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError:
            return None

    def leader(self):
        return next((node for node in self.nodes if node.answers("primary")), None)

    def healthy(self):
        """The leader, when the two others follow it closely; else None.

        Patroni fails over only to a node that it knows to be well, so each round starts from here.
        """
        leader = self.leader()
        if leader and sum(node.answers("replica") for node in self.nodes) == 2:
            following = self.query("SELECT inet_server_port(), count(*) FROM pg_stat_replication"
                                   " WHERE state = 'streaming' AND application_name = ANY (%s)"
                                   " AND pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) < 65536",
                                   [node.name for node in self.nodes])
            if following == [(leader.port, 2)]:
                return leader
        return None

    def walsenders(self):
        return {pid for pid, in self.query("SELECT pid FROM pg_stat_replication") or ()}

    def switchover(self, leader):
        candidate = next(node for node in self.nodes if node is not leader)
        return subprocess.run(["patronictl", "-c", leader.conf, "switchover", "--leader", leader.name, "--candidate",
                               candidate.name, "--force", SCOPE], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)
