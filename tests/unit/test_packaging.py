"""What is installed, and who imports whom."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "probes": {"probes"},
    "queries": {"queries"},
    "agent": {"agent", "probes", "queries"},
    "analysis": {"analysis", "queries"},
    "dashboards": {"dashboards", "analysis", "queries"},
}


def package_files() -> list[str]:
    """Files of the packages that git knows, or will when they are added."""
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *MAY_IMPORT]
    # In a container the checkout may belong to another user.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *listing]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build writes beside its sources."""
    tree = tmp_path_factory.mktemp("tree")
    for name in [*package_files(), "pyproject.toml", "README.md", "LICENSE"]:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    built = tmp_path_factory.mktemp("built")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "-w", str(built), str(tree)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [made] = built.glob("*.whl")
    return made


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {f"kdiff/{name}" for name in package_files()}
    assert len(packed) > 50


def test_the_wheel_brings_both_commands_and_both_licences(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        commands = archive.read(info["entry_points.txt"]).decode()
    assert "kdiff = kdiff.analysis.cli:main" in commands
    assert "kdiff-agent = kdiff.agent.cli:main" in commands
    assert {"licenses/LICENSE", "licenses/probes/bpf/LICENSE.md"} <= info.keys()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "kdiff":
                yield from ((node.lineno, f"kdiff.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = []
    for path in files:
        for line, module in imports(path):
            first, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if first in ("", *MAY_IMPORT) or (first == "kdiff" and other not in MAY_IMPORT[package]):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong


@pytest.mark.parametrize("folder", ["tests", "deploy"])
def test_nothing_imports_a_package_by_its_folder(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "typing" not in path.parts
        for line, module in imports(path)
        if module.partition(".")[0] in MAY_IMPORT
    ]
    assert not wrong


def test_every_package_is_typed_and_seen_by_the_type_checker() -> None:
    for package in MAY_IMPORT:
        assert (ROOT / package / "py.typed").is_file()
        assert (ROOT / "deploy" / "dev" / "typing" / "kdiff" / package / "__init__.py").samefile(
            ROOT / package / "__init__.py"
        )
