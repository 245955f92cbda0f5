"""Floors, imports, sizes and notes: what the source must obey, checked with `ast`."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "oplib"


@dataclass(frozen=True)
class Group:
    """Modules of one noun, in the order in which they may import each other: upwards only."""

    modules: tuple[str, ...]


def loose(names: str) -> Group:
    """Return the group of modules that lie directly in oplib/."""
    return Group(tuple(names.split()))


def package(name: str, names: str) -> Group:
    """Return the group of the modules of ``oplib/name/``; its ``__init__`` comes last."""
    return Group((*(f"{name}.{module}" for module in names.split()), name))


def joined(*groups: Group) -> Group:
    """Return one group of the modules of several: they may import those named before them."""
    return Group(tuple(module for group in groups for module in group.modules))


Floors = tuple[tuple[Group, ...], ...]

# A module imports from the floors below, and in its own group from modules named before it.
# Groups on one floor are siblings: they do not know each other.
FLOORS: Floors = (
    # 0: words
    (loose("_record errors _text _drawing _state _tree dtypes _dims"),),
    # 1: a language that has never heard of tensors
    (
        package(
            "schema",
            "types literals defaults model callables signature rules lexer hints cursor "
            "literal_syntax type_syntax syntax annotations infer",
        ),
    ),
    # 2: things with `._keys`
    (
        package(
            "dispatch",
            "keys tags facets preference gradient_rule operator packet ledger registry pending "
            "source ranks convert describe lifting bind choice interpreter plan overload explain",
        ),
    ),
    # 3: tensors
    (
        package(
            "tensor",
            "geometry strided view_rules addressing storage grad_hooks grad_meta meta_array tensor "
            "writes methods handles protocols",
        ),
    ),
    # 4: registration
    (
        joined(
            loose("kernels definitions facet_registration library custom"),
            package("shapes", "spec functions builders"),
            package("prims", "declare arithmetic views addresses writing"),
        ),
    ),
    # 5: stages and interpreters
    (
        package("backends", "arrays entries results missing host stage numpy registration"),
        package(
            "autograd",
            "modes wrapper gradients observe anomaly engine family general_grad hooks "
            "returned context recorder general layer_facts layer_outputs layer_plan pylayer stage "
            "backward_graph checkpoint",
        ),
        package("meta", "conversion mode context placement results stage estimate"),
        package(
            "functionalize",
            "access storage opaque tapes views level writes interpreter memory groups outcome "
            "settle finish run",
        ),
        package(
            "graph",
            "literals values names ir builder text compare draw tokens operands parse fitting "
            "invariants verify evaluate source passes.manager passes.dead_code passes.cse "
            "passes.constant_folding passes.peepholes passes.reinplace passes.memory_plan passes "
            "readiness",
        ),
    ),
    # 6: what combines siblings
    (
        package(
            "program", "recorder signature export program saving capture kernels joint compile"
        ),
        loose("checked"),
        loose("amp"),
    ),
    # 7: built-in operators
    (
        package(
            "std",
            "declare creation elementwise comparison joining linalg reductions scan views indexing "
            "inplace nn complex decompositions matrices contractions sorting fft scatter "
            "special activations losses layers random stored",
        ),
    ),
    # 8: what looks at the whole
    (
        package(
            "testing",
            "compare space hints report problem numeric gradcheck memory calls sampling session "
            "drawing reproduction "
            "checks.schema checks.mutation checks.alias checks.fake checks.determinism "
            "checks.functional checks.agreement checks.gradient checks opcheck "
            "parametrize plugin",
        ),
        loose("array_api"),
    ),
    # 9: the command line
    (loose("__main__"),),
)

ROOT = ""  # the name of oplib/__init__.py among the modules: the map, which may import everything

FILE_LINES, FILE_LIMIT = 450, 600
FUNCTION_LINES, FUNCTION_LIMIT = 60, 100


# -- reading ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One import of a module of the package: ``target`` is imported at ``line`` by ``source``."""

    source: str
    target: str
    line: int
    inside_function: bool


@dataclass
class Source:
    """A parsed package: its modules by dotted name, relative to the package."""

    name: str
    paths: dict[str, Path] = field(default_factory=dict)
    trees: dict[str, ast.Module] = field(default_factory=dict)

    def imports(self) -> Iterator[Import]:
        for module, tree in self.trees.items():
            yield from self._imports_below(module, tree, inside_function=False)

    def _imports_below(
        self, module: str, parent: ast.AST, inside_function: bool
    ) -> Iterator[Import]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in self._targets(module, node):
                    yield Import(module, target, node.lineno, inside_function)
            nested = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from self._imports_below(module, node, inside_function or nested)

    def _targets(self, module: str, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """Yield the modules of the package that `node` imports."""
        if isinstance(node, ast.Import):
            absolute = [alias.name for alias in node.names]
        else:
            base = self._base(module, node)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if self._relative(name) in self.trees]
            absolute = [*modules, base] if len(modules) < len(inner) else modules
        for name in absolute:
            if name == self.name or name.startswith(f"{self.name}."):
                yield self._relative(name)

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = [self.name, *module.split(".")] if module else [self.name]
        drop = node.level - (self.paths[module].name == "__init__.py")
        return ".".join([*parts[: len(parts) - drop], *filter(None, [node.module])])

    def _relative(self, absolute: str) -> str:
        return absolute.removeprefix(self.name).removeprefix(".")


def read(directory: Path) -> Source:
    """Parse every module below `directory`."""
    source = Source(directory.name)
    for path in sorted(directory.rglob("*.py")):
        parts = path.relative_to(directory).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source.paths[module] = path
        source.trees[module] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return source


# -- the rules: each yields one line per violation ---------------------------------------------


def unknown_modules(source: Source, floors: Floors) -> Iterator[str]:
    known = {module for floor in floors for group in floor for module in group.modules}
    for module in sorted(source.trees.keys() - known - {ROOT}):
        yield f"{source.name}/{module}: on no floor; enter it in FLOORS"


def upward_imports(source: Source, floors: Floors) -> Iterator[str]:
    place = {
        module: (floor, group, position)
        for floor, groups in enumerate(floors)
        for group, members in enumerate(groups)
        for position, module in enumerate(members.modules)
    }
    top = len(floors) - 1
    for found in source.imports():
        if found.source not in place or (found.target and found.target not in place):
            continue  # the map, or reported by unknown_modules
        floor, group, position = place[found.source]
        if found.target == ROOT:
            allowed = floor == top
        else:
            their_floor, their_group, their_position = place[found.target]
            allowed = their_floor < floor or (
                (their_floor, their_group) == (floor, group) and their_position < position
            )
        if not allowed:
            target = found.target or source.name
            yield f"{source.name}/{found.source}:{found.line}: floor {floor} imports {target}"


def import_cycles(source: Source) -> Iterator[str]:
    graph: dict[str, set[str]] = {module: set() for module in source.trees}
    for found in source.imports():
        graph[found.source].add(found.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield " -> ".join(module or source.name for module in error.args[1])


def hidden_imports(source: Source) -> Iterator[str]:
    """Yield imports inside functions; only an ``__init__`` may load its modules when needed."""
    for found in source.imports():
        if found.inside_function:
            target = found.target or source.name
            yield f"{source.name}/{found.source}:{found.line}: a function imports {target}"
    inward = re.compile(
        rf"(importlib\.)?import_module\(.*(__name__|__package__|['\"](\.|{source.name}\b))"
    )
    for module, tree in source.trees.items():
        calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if source.paths[module].name != "__init__.py":
            yield from (f"{source.name}/{module}: {text}" for text in filter(inward.match, calls))


NOTE = re.compile(r"(?P<citation>See )?\bNote \[(?P<title>[^\]]+)\]", re.IGNORECASE)


def dangling_notes(texts: Mapping[Path, str]) -> Iterator[str]:
    """Yield citations of notes that exist nowhere, and titles that are defined twice."""
    defined: dict[str, Path] = {}
    cited: list[tuple[Path, str]] = []
    for path, text in texts.items():
        for match in NOTE.finditer(re.sub(r"\s*\n[\s#]*", " ", text)):
            title = match["title"]
            if match["citation"]:
                cited.append((path, title))
            elif title in defined:
                yield f"{path}: Note [{title}] is already written in {defined[title]}"
            else:
                defined[title] = path
    for path, title in cited:
        if title not in defined:
            yield f"{path}: Note [{title}] is written nowhere"


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return lines_of(function.body[0]) if ast.get_docstring(function) is not None else 0


def oversized(source: Source, file_lines: int, function_lines: int) -> Iterator[str]:
    """Yield the files and functions above a size, longest first; a docstring is no code."""
    sizes: list[tuple[int, str]] = []
    for module, tree in source.trees.items():
        path = source.paths[module]
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > file_lines:
            sizes.append((length, f"{length:5} lines  {path.name} ({module or source.name})"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = lines_of(node) - docstring_lines(node)
                if length > function_lines:
                    where = f"{module or source.name}:{node.lineno} {node.name}()"
                    sizes.append((length, f"{length:5} lines  {where}"))
    return (text for _, text in sorted(sizes, reverse=True))


# -- oplib obeys -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oplib_source() -> Source:
    return read(PACKAGE)


def assert_none(violations: Iterable[str]) -> None:
    found = list(violations)
    assert not found, "\n" + "\n".join(found)


def test_every_module_is_on_a_floor(oplib_source: Source) -> None:
    assert_none(unknown_modules(oplib_source, FLOORS))


def test_imports_point_down(oplib_source: Source) -> None:
    assert_none(upward_imports(oplib_source, FLOORS))


def test_imports_form_no_cycle(oplib_source: Source) -> None:
    assert_none(import_cycles(oplib_source))


def test_no_import_of_oplib_hides_in_a_function(oplib_source: Source) -> None:
    assert_none(hidden_imports(oplib_source))


def test_every_cited_note_is_written_once() -> None:
    assert_none(dangling_notes({path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}))


def test_files_and_functions_stay_small(oplib_source: Source) -> None:
    for line in oversized(oplib_source, FILE_LINES, FUNCTION_LINES):
        print(line)  # shown by `pytest -rP`
    assert_none(oversized(oplib_source, FILE_LIMIT, FUNCTION_LIMIT))


# -- each rule fails on what is wrong ----------------------------------------------------------


TOY_FLOORS: Floors = (
    (loose("words _state"),),
    (package("left", "one two"), package("right", "three")),
    (loose("top"),),
)


def toy(tmp_path: Path, files: Mapping[str, str]) -> Source:
    """Write a package ``toy`` of `files` (``"left/one"`` is ``toy/left/one.py``) and read it."""
    for name, text in {"__init__": "", **files}.items():
        path = tmp_path / "toy" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read(tmp_path / "toy")


def test_a_module_that_is_on_no_floor_is_reported(tmp_path: Path) -> None:
    source = toy(tmp_path, {"words": "", "left/one": "", "left/extra": ""})
    assert list(unknown_modules(source, TOY_FLOORS)) == [
        "toy/left.extra: on no floor; enter it in FLOORS"
    ]


@pytest.mark.parametrize(
    ("module", "text", "target"),
    [
        ("words", "from .top import f", "top"),
        ("words", "from . import top", "top"),
        ("words", "import toy.top", "toy.top"),
        ("words", "from toy import top", "top"),
        ("words", "from ._state import x", "a module named after it"),
        ("left/one", "from .two import x", "a module named after it"),
        ("left/one", "from . import two", "a module named after it"),
        ("left/one", "from . import x", "its own __init__"),
        ("left/one", "from ..right.three import x", "a sibling"),
        ("left/one", "from ..right import x", "a sibling package"),
        ("left/__init__", "from ..right.three import x", "a sibling, from __init__"),
        ("left/two", "from .. import x", "the map"),
        ("left/two", "if TYPE_CHECKING:\n    from ..top import x", "top, for its types"),
        ("left/two", "class A:\n    import toy.top", "top, in a class"),
        ("left/two", "def f():\n    from ..top import x", "top, in a function"),
    ],
)
def test_an_import_that_does_not_point_down_is_reported(
    tmp_path: Path, module: str, text: str, target: str
) -> None:
    layout = dict.fromkeys(["words", "_state", "left/__init__", "left/one", "left/two"], "")
    layout |= dict.fromkeys(["right/__init__", "right/three", "top"], "")
    source = toy(tmp_path, {**layout, module: text})
    assert len(list(upward_imports(source, TOY_FLOORS))) == 1, target


def test_imports_that_point_down_are_accepted(tmp_path: Path) -> None:
    source = toy(
        tmp_path,
        {
            "__init__": "from .top import f\nfrom . import left",
            "words": "import os\nfrom toyish import x",
            "_state": "from .words import x",
            "left/__init__": "from .one import x\nfrom . import two",
            "left/one": "from ..words import x\nimport toy._state",
            "left/two": "from .one import x\nfrom .. import words",
            "right/__init__": "",
            "right/three": "from toy import words, _state",
            "top": "import toy.left\nfrom . import right\nimport toy",
        },
    )
    assert_none(upward_imports(source, TOY_FLOORS))


def test_a_cycle_is_reported_with_its_modules(tmp_path: Path) -> None:
    source = toy(tmp_path, {"a": "from .b import x", "b": "from . import c", "c": "import toy.a"})
    [cycle] = import_cycles(source)
    assert set(cycle.split(" -> ")) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import toy.words",
        "async def f():\n    from .words import x",
        "class A:\n    def f(self):\n        if x:\n            from . import words",
        "def f():\n    importlib.import_module('toy.words')",
        "def f():\n    import_module('.words', __package__)",
        "def f():\n    importlib.import_module(f'{__name__}.words')",
    ],
)
def test_an_import_inside_a_function_is_reported(tmp_path: Path, text: str) -> None:
    assert len(list(hidden_imports(toy(tmp_path, {"words": "", "top": text})))) == 1


def test_an_optional_package_may_be_imported_inside_a_function(tmp_path: Path) -> None:
    text = "def f():\n    import numba\n    from scipy import special\n    import_module('toybox')"
    assert_none(hidden_imports(toy(tmp_path, {"top": text})))


def test_a_package_may_load_its_own_modules_when_they_are_needed(tmp_path: Path) -> None:
    text = "def __getattr__(name):\n    return importlib.import_module(f'{__name__}.{name}')"
    assert_none(hidden_imports(toy(tmp_path, {"left/__init__": text})))


def test_a_note_that_is_cited_but_not_written_is_reported() -> None:
    text = "# Note [Written]\n# See Note [Written]\n# see\n# Note [A long\n#   title]"
    assert list(dangling_notes({Path("a.py"): text})) == [
        "a.py: Note [A long title] is written nowhere"
    ]


def test_a_note_that_is_written_twice_is_reported() -> None:
    texts = {Path("a.py"): "Note [Twice]", Path("b.py"): "Note [Twice]. See Note [Twice]."}
    assert list(dangling_notes(texts)) == ["b.py: Note [Twice] is already written in a.py"]


def test_long_files_and_functions_are_reported_longest_first(tmp_path: Path) -> None:
    body = "\n".join(["    x = 1"] * 10)
    documented = "\n".join(['    """Say', *["    more."] * 10, '    """', "    return 1"])
    source = toy(tmp_path, {"a": f"def long():\n{body}\n\ndef short():\n{documented}\n"})
    reports = [re.sub(r"\s+", " ", line).strip() for line in oversized(source, 20, 10)]
    assert reports == ["26 lines a.py (a)", "11 lines a:1 long()"]
