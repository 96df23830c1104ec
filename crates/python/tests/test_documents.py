"""What the documents show works: the README's example, and the notebook."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def run(code):
    """Runs code as a program of its own. Returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=300,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("document", ["README.md", "crates/python/README.md"])
def test_the_example_of_a_readme(document):
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        example = re.search(r"```python\n(.*?)```", file.read(), re.S)[1]
    # A fiftieth of the size: 400 MB in 40 MiB.
    for shown, tried in (('memory="2G"', 'memory="40M"'), ("200_000", "2_000")):
        assert example.count(shown) == 1
        example = example.replace(shown, tried)
    checks = "\nassert a.shape == (2000, 50000) and a in pool and b.shape == (50000,)"
    checks += "\nprint(pool.stats()['swapped_out_bytes'])"
    assert int(run(example.replace("pool.empty", "pool.zeros") + checks).splitlines()[-1]) > 300 << 20


def shown(source):
    """The code of a cell. If it ends with an expression, its value is shown."""
    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        tree.body[-1].value = ast.Call(ast.Name("show", ast.Load()), [tree.body[-1].value], [])
    return ast.unparse(ast.fix_missing_locations(tree))


def test_the_notebook():
    for library in ("pandas", "sklearn"):
        pytest.importorskip(library)
    with open(os.path.join(ROOT, "docs", "arrays.ipynb"), encoding="utf-8") as file:
        cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= 5  # it is shown with its figures
    code = "def show(value):\n    getattr(value, '_repr_html_', value.__repr__)()\n"
    code += "\n".join(shown("".join(cell["source"])) for cell in cells)
    printed = run(code + "\nprint(pool.stats()['swapped_out_bytes'] > 2 * pool.memory)")
    assert printed.splitlines()[-1] == "True"
