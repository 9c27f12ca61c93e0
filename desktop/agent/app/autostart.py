"""What starts when this computer's owner logs in: the agent as a systemd user unit, the window by the desktop's autostart.

On Windows the window alone, which starts the agent; its entry is the value in the registry that the installer sets.

::

                        owner's wish "start with the computer"      lending switched on as well
    autostart entry     shown                                       shown
    systemd user unit   disabled                                    enabled

An agent that its window has started goes on as the unit once that is enabled, at once or between two jobs (``take_over``).
Only what the owner does changes either: the setting both, the switch the unit. A start or an update never does; and
where the unit was disabled by hand since (``systemctl --user disable``), that counts as the owner's wish. Sources:
systemd.unit(5), Desktop Application Autostart Specification 0.5.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.own_folders import NoHomeError, home_folder
from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import AgentError, SettingsError
from desktop.agent.updates.release import installation

if sys.platform == "win32":
    import winreg

UNIT = "cottage-agent.service"
ENTRY = "autostart/cottage.desktop"
RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"  # As in installer/desktop/windows/cottage.nsi.
MOVED = "COTTAGE_NOT_MOVED"  # In the environment of an agent in whose place the unit did not start: it tries no second time.
SYSTEMCTL_S = 20.0
ANSWER_S = 90.0  # Five seconds on a quiet computer.
ASK_EVERY_S = 0.2
_HIDDEN = "[Desktop Entry]\nType=Application\nName=Cottage\nHidden=true\n"
_SHOWN = "[Desktop Entry]\nType=Application\nName=Cottage\nExec={program} --hidden\nIcon=cottage\nNoDisplay=true\n"


@dataclass(frozen=True)
class Autostart:
    """Of one home. ``config``, ``system``: where this user's and the whole system's autostart entries are."""

    home: Home
    config: Path
    system: Path = Path("/etc/xdg")

    @classmethod
    def of(cls, home: Home, environment: Mapping[str, str] = os.environ) -> "Autostart":
        """For the user who runs this."""
        named = environment.get("XDG_CONFIG_HOME")
        try:
            return cls(home, Path(named) if named else home_folder() / ".config")
        except NoHomeError:
            # Where no system looks: such a user has nothing that starts at login.
            return cls(home, home.path / ".config")

    def has_unit(self) -> bool:
        """A systemd of this user runs, and knows the agent's unit, which is for the usual home folder."""
        return self.home.is_usual and shutil.which("systemctl") is not None and _systemctl("cat", UNIT).returncode == 0

    def is_enabled(self) -> bool:
        """The unit starts with the next login."""
        return _systemctl("is-enabled", UNIT).stdout.strip() == "enabled"

    def follow(self, *, wish: bool, on: bool) -> None:
        """Let the unit be what the owner wants.

        Args:
            wish: start with the computer; ``on``: the switch.
        """
        if not self.has_unit():
            return
        wanted = wish and on
        if wanted != self.is_enabled():
            done = _systemctl("enable" if wanted else "disable", UNIT)
            if done.returncode:
                LOG.warning("the unit %s cannot be changed: %s", UNIT, printable(done.stderr.strip()))
                return
        self._note(wanted)

    def start(self, *, wish: bool) -> None:
        """Start the unit for an agent that does not run, and enable it where that is the owner's wish.

        Raises:
            SettingsError: there is no such unit here, or it does not start.
        """
        if not self.has_unit():
            raise SettingsError(
                f"no agent runs in {self.home.path}, and no systemd of this user knows {UNIT}: start one with "
                "`cottage node run --stay`"
            )
        done = _systemctl(*(("enable", "--now") if wish else ("start",)), UNIT)
        if done.returncode:
            raise SettingsError(f"{UNIT} does not start: {printable(done.stderr.strip())}")
        self._note(wish)

    def can_take_over(self) -> bool:
        """The unit is to start at login and runs this very program, but this process is not the unit's."""
        if not getattr(sys, "frozen", False) or not self.has_unit() or not self.is_enabled():
            return False
        told = _systemctl("show", "--property=MainPID", "--property=ExecStart", UNIT).stdout
        starts = re.search(r"path=(\S+)", told)
        same = starts is not None and Path(starts[1]).resolve() == Path(sys.executable).resolve()
        return same and f"MainPID={os.getpid()}\n" not in told

    def take_over(self) -> str:
        """Start the unit in the place of this process, which holds the home no longer; returns why it does not start."""
        done = _systemctl("start", UNIT)
        if done.returncode:
            return printable(done.stderr.strip()) or "systemctl fails"
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            try:
                asyncio.run(status.ask(self.home.socket))
            except AgentError:
                time.sleep(ASK_EVERY_S)
            else:
                return ""
        return f"it has not answered for {ANSWER_S:.0f} s"

    def leave(self) -> None:
        """Nothing starts any more, and the unit's agent ends; what the whole system's package starts is hidden."""
        if self.home.is_usual:
            self.show_entry(False)
        if self.has_unit():
            _systemctl("disable", "--now", UNIT)
        self.forget()

    def was_disabled_by_hand(self) -> bool:
        """The unit was enabled here, and somebody else has disabled it since."""
        return self._noted.exists() and self.has_unit() and not self.is_enabled()

    def forget(self) -> None:
        """What was enabled here is no longer."""
        self._noted.unlink(missing_ok=True)

    @property
    def _noted(self) -> Path:
        return self.home.path / "at-login"

    def _note(self, enabled: bool) -> None:
        try:
            if enabled:
                self._noted.write_text(f"{UNIT} was enabled here\n")
            else:
                self._noted.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("%s cannot be kept: %s", self._noted, error.strerror)

    def show_entry(self, shown: bool) -> None:
        """Of the window, because its owner changes the setting; a file of this user's own hides that of the system."""
        if sys.platform == "win32":
            _register(shown)
            return
        mine, everybodys = self.config / ENTRY, (self.system / ENTRY).exists()
        try:
            if shown and everybodys:
                if mine.exists() and "Hidden=true" in mine.read_text():
                    mine.unlink()
            elif shown:
                program = _window()
                if program is not None and not mine.exists():
                    mine.parent.mkdir(parents=True, exist_ok=True)
                    mine.write_text(_SHOWN.format(program=program))
            elif everybodys:
                mine.parent.mkdir(parents=True, exist_ok=True)
                mine.write_text(_HIDDEN)
            else:
                mine.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("%s cannot be changed: %s", mine, error.strerror)


def _window() -> Path | None:
    _, folder = installation()
    if folder is not None:
        return folder.link / "cottage"
    program = Path(sys.executable)
    return program.with_name("cottage" + program.suffix) if getattr(sys, "frozen", False) else None


def _register(shown: bool) -> None:
    """Windows: "Run and RunOnce Registry Keys" of its documentation."""
    if sys.platform == "win32":
        program = _window()
        try:
            with winreg.CreateKeyEx(winreg.HKEY_CURRENT_USER, RUN, 0, winreg.KEY_SET_VALUE) as key:
                if shown and program is not None:
                    winreg.SetValueEx(key, "Cottage", 0, winreg.REG_SZ, f'"{program}" --hidden')
                elif not shown:
                    winreg.DeleteValue(key, "Cottage")
        except FileNotFoundError:
            pass  # It was not there.
        except OSError as error:
            LOG.warning("what starts with the computer cannot be changed: %s", error.strerror)


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = ("systemctl", "--user", "--no-ask-password", *words)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
