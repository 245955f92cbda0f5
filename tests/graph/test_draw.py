from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given

from oplib.graph import Graph, parse
from tests.graph.helpers import graphs

TEXT = """\
graph f(x: f32[3]):
    add: f32[3] = gt.add(x, 1.0)
    log: token[ordered] = gt.log(add)
    log_1: token[ordered] = gt.log(x, after=log)
    x_1: f32[3] = functionalized(gt.inc_, &x)
    write x = x_1
    return add, '"quoted" <b> | #'"""


def test_dot_shows_the_lines_of_the_text_and_the_names_on_edges() -> None:
    drawn = parse(TEXT).dot()
    assert drawn.startswith('digraph "f" {')
    assert 'n1 [label="add: f32[3] = gt.add(x, 1.0)"];' in drawn
    assert 'n1 -> n2 [label="add"];' in drawn
    assert 'n2 -> n3 [label="log", style=dashed];' in drawn
    assert '\\"quoted\\"' in drawn


def test_mermaid_shows_the_same_and_no_markup() -> None:
    drawn = parse(TEXT).mermaid()
    assert drawn.startswith("flowchart TD")
    assert '    n0(["x: f32[3]"])' in drawn
    assert "    n2 -.->|log| n3" in drawn
    assert "    n1 -->|add| n2" in drawn
    assert "&" not in drawn.replace("&x", "")
    assert "#quot;quoted#quot; #lt;b> #124; #35;" in drawn


def test_a_written_region_has_one_colour() -> None:
    drawn = parse(TEXT).dot()
    coloured = {line.split()[0] for line in drawn.splitlines() if "fillcolor" in line}
    assert coloured == {"n0", "n4", "n5"}
    assert len(set(re.findall("#[0-9a-f]{6}", drawn))) == 1
    assert "    style n4 fill:#cfe8ff" in parse(TEXT).mermaid().splitlines()


@given(graphs())
def test_every_node_is_drawn_once(graph: Graph) -> None:
    for drawn in (graph.dot(), graph.mermaid()):
        places = re.findall(r"^    n(\d+) ?[\[(]", drawn, re.MULTILINE)
        assert [int(place) for place in places] == list(range(len(graph.nodes)))


def test_the_page_is_well_formed_loads_nothing_and_shows_every_node() -> None:
    graph = parse(TEXT)
    page = graph.html()
    root = ElementTree.fromstring(page.split("\n", 1)[1].replace('"utf-8">', '"utf-8"/>'))
    assert "".join(root.find("body/pre").itertext()) == TEXT  # type: ignore[union-attr]
    names = "{http://www.w3.org/2000/svg}"
    drawn = ["".join(text.itertext()) for text in root.iter(f"{names}text")]
    assert drawn == ["x: f32[3]", *(line.strip() for line in TEXT.splitlines()[1:])]
    assert not any(word in page for word in ("<script", "src=", "href=", "@import"))
    assert [path.get("class") for path in root.iter(f"{names}path")].count("dashed") == 1
    tops = [float(str(box.get("y"))) for box in root.iter(f"{names}rect")]
    assert tops[0] < tops[1] < tops[2] < tops[3]
    assert tops[4] > tops[0]
    assert graph._repr_html_() in page
