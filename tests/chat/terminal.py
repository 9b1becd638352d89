"""A terminal that a test types into and looks at: a tmux of its own around one program.

The screen is what somebody would see.  Nothing here sleeps for a fixed time: tests wait
for what they expect, or for what must not come, until a deadline."""
import os
import re
import shlex
import signal
import subprocess
import time

WAIT_S = 60


class Terminal:
    def __init__(self, folder, command, env, columns=80, rows=24):
        """Starts the command; behind its end the screen says exit=CODE and the modes of the
        terminal."""
        self.socket = os.path.join(folder, "tmux")
        self.log = os.path.join(folder, "raw")
        words = " ".join(shlex.quote(word) for word in command)
        settings = " ".join(shlex.quote(f"{k}={v}") for k, v in env.items() if v is not None)
        unset = " ".join(f"-u {k}" for k, v in env.items() if v is None)
        script = f"trap : INT QUIT; env {unset} {settings} {words}; echo exit=$?; stty -a; exec sleep 1000"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "sh", "-c", script)

    def tmux(self, *words, **kwargs):
        done = subprocess.run(["tmux", "-u", "-S", self.socket, *words], capture_output=True, timeout=WAIT_S, check=False,
                              **kwargs)
        if done.returncode != 0:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def close(self):
        self.tmux("kill-server")

    # ---- keys ----

    def keys(self, *names):
        """Keys by tmux's names: Left, C-c, M-b, Enter."""
        self.tmux("send-keys", *names)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def send(self, line):
        self.type(line)
        self.keys("Enter")

    def paste(self, data, *flags):
        path = self.socket + ".paste"
        with open(path, "wb") as f:
            f.write(data)
        self.tmux("load-buffer", path)
        self.tmux("paste-buffer", "-p", *flags)

    def resize(self, columns, rows=24):
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    # ---- the screen ----

    def screen(self, history=True, escapes=False):
        words = ["capture-pane", "-p"] + (["-S", "-"] if history else []) + (["-e"] if escapes else [])
        return self.tmux(*words).rstrip("\n")

    def wait(self, expected, what="screen", **how):
        """Until a regular expression is on the screen; returns the screen."""
        deadline = time.monotonic() + WAIT_S
        while True:
            screen = self.screen(**how)
            if re.search(expected, screen, flags=re.M):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"no {expected!r} on the {what}:\n{screen}")
            time.sleep(0.03)

    def until(self, condition, what):
        """Until something holds that is not on the screen."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what}:\n{self.screen()}")
            time.sleep(0.03)

    def wait_prompt(self):
        """Until the last line is an empty prompt."""
        return self.wait(r"^> ?\Z")

    # ---- the program ----

    def pid(self):
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            with open(f"/proc/{shell}/task/{shell}/children", encoding="ascii") as f:
                children = f.read().split()
            if children:
                return int(children[0])
            time.sleep(0.02)
        raise AssertionError("the program is not running")

    def kill(self, *signals):
        """Several at once arrive before the program does anything else."""
        pid = self.pid()
        os.kill(pid, signal.SIGSTOP)
        for number in signals:
            os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)

    def wait_exit(self):
        """The exit code, once the terminal is seen to be as it was."""
        screen = self.wait(r"exit=\d+[\s\S]*icanon[\s\S]*echoke")
        modes = screen[screen.index("exit="):]
        for mode in ("isig", "icanon", "echo", "icrnl"):
            if not re.search(rf"(?<![-\w]){mode}\b", modes):
                raise AssertionError(f"the terminal was left without {mode}:\n{modes}")
        return int(re.search(r"exit=(\d+)", screen).group(1))
