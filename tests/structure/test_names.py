"""A local is named for what it is: `layer`, `estimate`, `report`. The number of vague names does not rise."""

import ast
from collections.abc import Iterator

from tests.structure.source import Source, package_sources, planted

VAGUE = frozenset({"own", "its", "told", "held", "found"})
MOST = 300  # in the whole package; it only shrinks


def vague_targets(source: Source) -> Iterator[str]:
    """Targets of assignments and loops whose name says nothing."""
    for node in source.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield f"{source.at(node)}: {node.id}"


def test_few_targets_have_a_vague_name() -> None:
    found = [target for source in package_sources() for target in vague_targets(source)]
    assert len(found) <= MOST, "\n" + "\n".join(found)


def test_a_vague_target_is_found() -> None:
    text = "own = 1\nfor its, layer in held: print(its)\nrows = [told for told in rows if (found := told)]\nx.own = own"
    assert [target.rpartition(" ")[2] for target in vague_targets(planted(text))] == ["own", "its", "told", "found"]
