"""Programs with all that they start, ended after some seconds at the latest."""

import os
import select
import signal
import subprocess
import tempfile

# Seconds for what is asked to end, before it is killed.
GRACE = 20


class Bounded:
    """A program in a session of its own, and what it leaves running there."""

    def __init__(self, command, **more):
        # What still runs keeps the other end open.
        self.alive, held = os.pipe()
        try:
            passed = [held, *more.pop("pass_fds", [])]
            self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=passed, **more)
        except OSError:
            os.close(self.alive)
            raise
        finally:
            os.close(held)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        os.close(self.alive)

    def ended(self, seconds):
        """Whether all of it has ended within some seconds."""
        return bool(select.select([self.alive], [], [], seconds)[0])

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.ended(0):
                break
            try:
                os.killpg(self.child.pid, number)
            except ProcessLookupError:
                break
            self.ended(GRACE)
        # A program may have closed the descriptor.
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def line(file, seconds):
    """The next line of an unbuffered file, empty at its end; None if none comes within some seconds."""
    return file.readline() if select.select([file], [], [], seconds)[0] else None


def run(command, seconds, **more):
    """Exit code, None if it did not end within some seconds, and what it said."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        with Bounded(command, stdout=out, stderr=out, **more) as program:
            try:
                code = program.child.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
        out.seek(0)
        return code, out.read()
