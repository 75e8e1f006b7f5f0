"""One side of a gate: a checkout, a Python, and `hpbench run` in it as a process of its own. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import UsageError
from harness import store
from harness.compare import whole

ROOT = Path(__file__).resolve().parents[2]
WORKING_TREE = "."
"""In place of a commit: the files as they stand."""
LINES = 15
"""Of a failed command's output, that are shown."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A state that can be measured."""

    name: str
    """`base` or `head`."""
    title: str
    """What was asked for, and the commit that it is."""
    python: str
    tree: Path
    """Whose hpbench runs."""
    path: tuple[Path, ...]
    """Folders that come first where modules are looked for."""
    variables: dict[str, str]

    def run(self, arguments: Sequence[str], folder: Path) -> store.Run:
        """`hpbench run ARGUMENTS --out FOLDER` on this side.

        Raises:
            UsageError: it ended without a run, with the end of what it said.
            KeyboardInterrupt: it was stopped.
        """
        folder = folder.absolute()
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.parent / f"{folder.name}.log"
        command = [self.python, "-m", "harness.cli", "run", *arguments, "--out", str(folder)]
        with log.open("w") as file:
            done = subprocess.run(command, cwd=self.tree, env=self._environment(), stdout=file, stderr=subprocess.STDOUT)
        if done.returncode in (130, -2, -15):
            raise KeyboardInterrupt
        if done.returncode not in (0, 1) or not (folder / store.RUN).exists():
            said = " ".join(log.read_text(errors="replace").split("\n")[-LINES:]).strip()
            raise UsageError(f"{self.name} ({self.title}) cannot run: {said or f'exit status {done.returncode}'}; see '{log}'")
        return whole(folder)

    def _environment(self) -> dict[str, str]:
        given = os.environ.get("PYTHONPATH")
        path = [*map(str, self.path), *([given] if given and self.tree == ROOT else [])]
        return {**os.environ, **self.variables, "PYTHONPATH": os.pathsep.join(path)}


@contextlib.contextmanager
def checked_out(name: str, ref: str, project: Path, python: str, install: str | None, out: Path) -> Iterator[Side]:
    """A side, checked out beside the runs and removed again; with `install`, into a virtual environment of its own.

    Raises:
        UsageError: no such commit or Python, or the installation failed.
    """
    if not (interpreter := shutil.which(python)):
        raise UsageError(f"--{name}-python '{python}' is no program: give the path of a Python that has torch")
    with contextlib.ExitStack() as stack:
        checkout = project.resolve()
        title = "the working tree"
        if ref != WORKING_TREE:
            checkout, commit = stack.enter_context(_worktree(project, ref, out / f"{name}-checkout"))
            title = f"{ref} ({commit[:12]})" if ref != commit else commit[:12]
        if python != sys.executable:
            title += f" with {python}"
        variables: dict[str, str] = {}
        if install:
            interpreter, variables = _installed(interpreter, checkout, install, out / f"{name}-environment", name)
            stack.callback(shutil.rmtree, out / f"{name}-environment", ignore_errors=True)
        own = (checkout / "harness" / "cli.py").is_file()
        tree = checkout if own else ROOT
        # A project of plain Python can be imported from where it lies; an installed one must not be hidden by its source.
        sources = () if own or install else tuple(p for p in (checkout / "src", checkout) if p.is_dir())
        yield Side(name=name, title=title, python=interpreter, tree=tree, path=(*sources, tree), variables=variables)


@contextlib.contextmanager
def _worktree(project: Path, ref: str, folder: Path) -> Iterator[tuple[Path, str]]:
    commit = _git(project, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").strip()
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    _git(project, "worktree", "add", "--detach", str(folder), commit)
    try:
        yield folder, commit
    finally:
        _git(project, "worktree", "remove", "--force", str(folder))


def _git(project: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(project), *arguments], check=True, capture_output=True, text=True
        ).stdout  # fmt: skip
    except FileNotFoundError:
        raise UsageError(
            "git is not installed, and commits are checked out with it: install it, or compare two Pythons"
        ) from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split())
        raise UsageError(
            f"git {arguments[0]} in '{project}' failed: {said}; give --base and --head commits, branches or tags of the "
            "repository at --project, or '.' for its files as they stand"
        ) from None


def _installed(python: str, checkout: Path, command: str, folder: Path, name: str) -> tuple[str, dict[str, str]]:
    """An environment that sees all that `python` sees, and in which `command` installed the checkout."""
    _check([python, "-m", "venv", "--without-pip", str(folder)], name)
    own = str(folder / "bin" / "python")
    seen = _check([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], name).strip()
    inside = _check([own, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], name).strip()
    # `--system-site-packages` would see those of the interpreter below, not those of the environment that `python` is in.
    (Path(inside) / "outer.pth").write_text(f"import site; site.addsitedir({seen!r})\n")
    # The pip of the environment around it, which would install there under its own name.
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{own}" -m pip "$@"\n')
    pip.chmod(0o755)
    variables = {"VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    _check(_words(command), name, cwd=checkout, env={**os.environ, **variables})
    return own, variables


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"cannot read --install {command!r}: {error}; write one command, such as 'pip install .'") from None


def _check(command: list[str], name: str, **options: object) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    except (OSError, IndexError) as error:
        said = f"preparing {name} failed: {' '.join(command) or 'an empty command'}: {error}"
        raise UsageError(f"{said}; it is run without a shell: give a program and its arguments") from None
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-LINES:])
        shown = " ".join(command)
        raise UsageError(f"'{shown}' for {name} ended with status {done.returncode}: {said}; try it by hand in the checkout")
    return done.stdout
