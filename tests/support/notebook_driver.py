"""Runs a notebook's cells in a real kernel, and prints their outputs as JSON.

`notebook_driver.py CELLS.json` gets of each cell its source, and a text or null. Once the outputs have that
text the cell is interrupted, as by the button of a notebook.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


async def main(cells: Sequence[tuple[str, str | None]]) -> list[Any]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source, _ in cells])
    client = NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=200)
    async with client.async_setup_kernel():
        for number, (cell, (_, awaited)) in enumerate(zip(notebook.cells, cells, strict=True)):
            running = asyncio.ensure_future(client.async_execute_cell(cell, number))
            if awaited is not None:
                while awaited not in json.dumps(cell.outputs) and not running.done():
                    await asyncio.sleep(0.1)
                await client.km.interrupt_kernel()
            await running
    return [cell.outputs for cell in notebook.cells]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))))
