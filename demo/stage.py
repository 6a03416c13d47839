"""What story.py plays on: a screen with one lane a worker, and the worker processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
MARGIN = " " * 8    # where the lanes begin, behind the time


class Screen:
    """A timeline with one lane a worker. A mark in each lane shows at every line who leads."""

    LEGEND = "* leads   . waits   = is stopped   ! is refused   x is gone"
    COLOURS = {"*": "32;1", ".": "2", "=": "33", "!": "31;1", "x": "31"}

    def __init__(self, names):
        self.start = time.monotonic()
        self.names = names
        self.columns = max(40, min(100, shutil.get_terminal_size((100, 24)).columns))
        self.lane = (self.columns - len(MARGIN)) // len(names)
        self.coloured = (sys.stdout.isatty() and not os.environ.get("NO_COLOR")
                         and os.environ.get("TERM", "dumb") != "dumb")

    def paint(self, text, colour):
        return f"\033[{colour}m{text}\033[0m" if self.coloured and colour and text else text

    def say(self, text="", first="", then="", colour=None):
        for line in textwrap.wrap(text, self.columns, initial_indent=first, subsequent_indent=then) or [""]:
            print(self.paint(line, colour), flush=True)

    def act(self, title, lanes=True):
        self.say()
        self.say(title, "== ", "   ", "1")
        if lanes:
            print((MARGIN + "".join(f"{name:{self.lane}}" for name in self.names)).rstrip(), flush=True)

    def lanes(self, workers, worker, words):
        """Print one line of the timeline: what happens in one lane, and the mark of each."""
        clock = f"{time.monotonic() - self.start:5.1f} s "
        for part in textwrap.wrap(words, self.lane - 3):
            cells = [self.paint(f"{w.mark} {part if w is worker else '':{self.lane - 2}}", self.COLOURS.get(w.mark))
                     for w in workers]
            print((clock + "".join(cells)).rstrip(), flush=True)
            clock = MARGIN


class Worker:
    """A worker process, and a thread that puts what it reports into the queue of events."""

    def __init__(self, name, events):
        self.name, self.events, self.mark, self.process = name, events, " ", None

    def start(self, *options):
        self.dismissed = False
        self.process = subprocess.Popen([sys.executable, "-I", WORKER, self.name, *options],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.listen, args=(self.process,), daemon=True).start()

    def listen(self, process):
        for line in process.stdout:
            self.events.put({"worker": self, "at": time.monotonic(), **json.loads(line)})
        self.events.put({"worker": self, "at": time.monotonic(), "event": "ended", "code": process.wait()})

    def signal(self, number):
        self.dismissed = number in (signal.SIGKILL, signal.SIGTERM)
        self.process.send_signal(number)
        return time.monotonic()
