"""Count what keeps this code base readable: sizes, rooms, names, shapes, patches.

    python scripts/house.py            a table: measure, count, limit
    python scripts/house.py --json     the same as one object, with what was counted

A test holds every count at or below its limit.
"""

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("export", "runtime_runner", "targets", "triton_kernels", "src/eagle_aot")
WORKSHOP = ("lab", "scripts")
SHORT = 60
LIMITS = {
    # 33,000 before downloads, the Python API, more families, drafters and stored forms of weights,
    # experts, structured outputs, tools, and limits for what strangers send and for their files;
    # 49,000 before texts shared a GPU's memory; 49,700 before keys and values in INT8; 50,000
    # before drafters stored theirs in it on a GPU; 50,220 before output tables were screened;
    # 50,720 before layers became one kernel; 51,330 before exports kept their compiler files apart;
    # 51,990 and 413 before CUDA C++ for wide heads and tables, and Triton for a round's small work.
    "product lines": 52_690,
    "product files": 418,
    "scripts and lab lines": 11_280,
    "test lines": 55_960,  # 55,184 before attention of wide heads was one kernel
    "class names with two meanings": 0,
    "pairs of runner rooms that import each other": 0,
    "short files with one importer": 8,
    # All patches of the compiler, and where Ray binds the sockets of replicas.
    "files that patch libraries": 2,
    "functions of tensors without shapes": 10,
}
PATCHES = (
    *("patch.object", "mock.patch", "sys.modules[", "setattr(torch", "setattr(exir"),
    "Server.add_insecure_port =",
)


def sources(*folders: str) -> Iterator[Path]:
    """The Python files below folders, data of tests left out."""
    for folder in folders:
        yield from (p for p in sorted((ROOT / folder).rglob("*.py")) if "data" not in p.parts)


def lines(*folders: str) -> int:
    return sum(path.read_text().count("\n") for path in sources(*folders))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    """The name that a file of the product is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("eagle_aot", *parts)
    return ".".join(parts).removesuffix(".__init__")


@cache
def imported(path: Path) -> frozenset[str]:
    """Names of modules, and of what is taken from them, that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(names)


def names_with_two_meanings() -> list[str]:
    """Classes of the product that share their name with another one."""
    places = defaultdict(list)
    for path in sources(*PRODUCT):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    return [f"{name}: {', '.join(files)}" for name, files in places.items() if len(files) > 1]


def two_way_rooms() -> list[str]:
    """Pairs of the runner's folders that import each other; types alone count too."""
    edges = set()
    for path in sources("runtime_runner"):
        room = room_of(module_name(path))
        edges |= {(room, other) for name in imported(path) if (other := room_of(name)) != room}
    pairs = {(a, b) for a, b in edges if a and b and a < b and (b, a) in edges}
    return [f"{a} <-> {b}" for a, b in sorted(pairs)]


def room_of(name: str) -> str | None:
    """The folder of the runner that a module lies in, None for its doors and other packages."""
    parts = name.split(".")
    rooms = {p.parent.name for p in (ROOT / "runtime_runner").glob("*/__init__.py")}
    inside = parts[:2] == ["eagle_aot", "runtime_runner"] and len(parts) > 2
    return parts[2] if inside and parts[2] in rooms else None


def short_with_one_importer() -> list[str]:
    """Files of fewer than `SHORT` lines that only a file in the same folder imports."""
    files = list(sources(*PRODUCT))
    found = []
    for path in files:
        if path.name == "__init__.py" or path.read_text().count("\n") >= SHORT:
            continue
        name = module_name(path)
        importers = [other for other in files if other != path and name in imported(other)]
        if len(importers) == 1 and importers[0].parent == path.parent:
            found.append(f"{path.relative_to(ROOT)} <- {importers[0].name}")
    return found


def patching_files() -> list[str]:
    """Files of the product that replace parts of libraries."""
    texts = ((path, path.read_text()) for path in sources(*PRODUCT))
    return [str(p.relative_to(ROOT)) for p, text in texts if any(mark in text for mark in PATCHES)]


def shapeless_functions() -> list[str]:
    """Public functions with a Tensor among their arguments whose docstrings name no shape: their
    own, their class's or their module's."""
    return [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path in sources(*PRODUCT)
        for function, docstrings in documented(tree(path), [])
        if takes_tensors(function)
        and not function.name.startswith("_")
        and not any("[" in docstring for docstring in docstrings)
    ]


def documented(
    node: ast.Module | ast.ClassDef, above: list[str]
) -> Iterator[tuple[ast.FunctionDef, list[str]]]:
    """Functions with all docstrings that a reader sees around them."""
    around = [*above, ast.get_docstring(node) or ""]
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from documented(child, around)
        elif isinstance(child, ast.FunctionDef) and not is_kernel(child):
            yield child, [*around, ast.get_docstring(child) or ""]


def is_kernel(function: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def takes_tensors(function: ast.FunctionDef) -> bool:
    arguments = (*function.args.args, *function.args.kwonlyargs)
    return any("Tensor" in ast.unparse(a.annotation) for a in arguments if a.annotation)


def measure() -> dict[str, int | list[str]]:
    """Every measure's count, or the list of what it counts."""
    return {
        "product lines": lines(*PRODUCT),
        "product files": len(list(sources(*PRODUCT))),
        "scripts and lab lines": lines(*WORKSHOP),
        "test lines": lines("tests"),
        "class names with two meanings": names_with_two_meanings(),
        "pairs of runner rooms that import each other": two_way_rooms(),
        "short files with one importer": short_with_one_importer(),
        "files that patch libraries": patching_files(),
        "functions of tensors without shapes": shapeless_functions(),
    }


def main() -> None:
    counted = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(counted, indent=1))
        return
    for name, value in counted.items():
        count = value if isinstance(value, int) else len(value)
        print(f"{name:<48} {count:>7,} {LIMITS[name]:>7,}")


if __name__ == "__main__":
    main()
