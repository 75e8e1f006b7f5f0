"""What a stranger's file may do: no source runs a shell, reads a pickle or loads YAML that makes objects."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from harness import store

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for folder in ("benchmarks", "harness") for path in (ROOT / folder).rglob("*.py")
)


def dangers(source: str) -> list[str]:
    """What must not stand in a source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.partition(".")[0] in ("pickle", "dill", "shelve", "marshal", "joblib")]
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if options.get("shell", "False") != "False" or called in ("os.system", "os.popen", "eval", "exec"):
                found.append(f"{called} runs a shell or a text")
            if called == "torch.load" and options.get("weights_only") != "True":
                found.append("torch.load reads a pickle")
            if called.endswith("np.load") and options.get("allow_pickle", "False") != "False":
                found.append("np.load reads a pickle")
            if called in ("yaml.unsafe_load", "yaml.full_load") or called == "yaml.load" and "_Loader" not in ast.unparse(node):
                found.append(f"{called} makes objects")
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_no_source_gives_a_file_power(path: str) -> None:
    assert dangers((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
        "yaml.unsafe_load(text)",
    ],
)
def test_the_search_for_dangers_can_fail(source: str) -> None:
    assert dangers(source)


def test_a_path_stays_in_its_run_folder(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    assert store.inside(folder, "logs", "0123") == folder / "logs" / "0123"
    (folder / "logs").symlink_to(elsewhere)
    for names in (("logs", "0123"), ("..", "elsewhere"), (str(elsewhere),)):
        with pytest.raises(UsageError, match="leads out of the run folder"):
            store.inside(folder, *names)
