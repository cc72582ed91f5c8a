"""Notebooks of the documentation: their cells run here, and `python -m tests.notebooks` keeps
what comes out of them.

    python -m tests.notebooks docs/first_steps.ipynb docs/gallery/*.ipynb
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.seeded_noise import keys_of

Cell = dict[str, Any]
HOME = "/home/ann"  # what outputs call the folder where a notebook runs


def code_cells(notebook: Path) -> list[Cell]:
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]


def shown(value: Any) -> dict[str, Any]:
    """A cell's last value as Jupyter shows it: text, a table, a picture."""
    if hasattr(value, "savefig"):  # of matplotlib
        value.savefig(file := io.BytesIO(), format="png", dpi=80, bbox_inches="tight")
        picture = file.getvalue()
    else:
        picture = getattr(value, "_repr_png_", bytes)()  # of Pillow
    if picture:
        encoded = base64.b64encode(picture).decode()
        return {"text/plain": type(value).__name__, "image/png": encoded}
    html = getattr(value, "_repr_html_", str)()
    return {"text/plain": repr(value)} | ({"text/html": html} if html else {})


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell: what it prints, and its last value."""
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    text = out.getvalue().replace(os.getcwd(), HOME)
    outputs = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    result = {"output_type": "execute_result", "metadata": {}}
    return [*outputs, result | {"data": shown(value)}] if value is not None else outputs


def run(notebook: Path, names: dict[str, Any]) -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    """Each code cell with the outputs that it has now; ``names``: what the cells define.

    Noise in this process is that of the notebook's name, so that a machine gives the same again.
    """
    with keys_of(notebook.stem):
        for cell in code_cells(notebook):
            yield cell, run_cell("".join(cell["source"]), names)


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    """What outputs say as plain text."""
    return ["".join(o.get("text", o.get("data", {}).get("text/plain", ""))) for o in outputs]


def kept(text: str) -> list[str]:
    """Lines as the format of notebooks keeps them."""
    return text.splitlines(keepends=True)


def write(notebook: Path) -> None:
    """Run a notebook in an empty folder and keep its outputs."""
    content = json.loads(notebook.read_text())
    cells = iter([c for c in content["cells"] if c["cell_type"] == "code"])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, (_, outputs) in enumerate(run(notebook, {}), 1):
            for output in outputs:
                if "text" in output:
                    output["text"] = kept(output["text"])
                else:
                    output["execution_count"] = number
                    data = output["data"].items()
                    output["data"] = {k: v if k == "image/png" else kept(v) for k, v in data}
            next(cells).update(outputs=outputs, execution_count=number)
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    for path in [Path(name).absolute() for name in sys.argv[1:]]:
        write(path)
