"""The table of all methods: medians over seeds, and cells that are missing or refused."""

import json


def test_a_cell_is_its_seeds_median(load, tmp_path):
    (methods,) = load("methods")
    cell = {"set": "texts", "budget": 0.1, "method": "gnmax"}
    runs = [(8, 0.5, 0.2), (10, 0.7, 0.4), (9, 0.6, 0.6)]
    found = [
        cell | {"seed": seed, "answered": count, "labels": right, "student": student}
        for seed, (count, right, student) in enumerate(runs)
    ]
    found.append(cell | {"method": "ind_knn", "seed": 0, "refused": "too little"})
    out = tmp_path / "cells.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in found))
    (row,) = (line for line in methods.table(out).splitlines() if line.startswith("| texts | 0.1"))
    columns = dict(zip(methods.METHODS, row.split(" | ")[2:], strict=True))
    assert columns["gnmax"] == "9, 60.0%, 40.0%"
    assert columns["ind_knn"].startswith("nothing affordable")
    assert columns["reverse_knn"] == "not run"
