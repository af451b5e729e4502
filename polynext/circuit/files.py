"""Circuits in files: one .npz with the nodes as JSON and the matrices beside them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from polynext.circuit.graph import Circuit, Input, Linear, Node, Product, Sum
from polynext.circuit.maps import Matrix


def save_circuit(circuit: Circuit, path: Path) -> None:
    """Writes a circuit, its linear maps as matrices."""
    numbers = {node: i for i, node in enumerate(circuit.order)}
    nodes: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for i, node in enumerate(circuit.order):
        sources = [numbers[s] for s in node.sources]
        nodes.append({"kind": type(node).__name__, "shape": node.shape, "kept": node.kept, "sources": sources})
        if isinstance(node, Linear):
            matrix = node.map.matrix()
            arrays |= {f"{i}.data": matrix.data, f"{i}.columns": matrix.indices, f"{i}.rows": matrix.indptr}
            if node.bias is not None:
                arrays[f"{i}.bias"] = node.bias
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, nodes=np.array(json.dumps(nodes)), **arrays)


def load_circuit(path: Path) -> Circuit:
    """Reads what `save_circuit` wrote."""
    with np.load(path, allow_pickle=False) as file:
        made: list[Node] = []
        for i, fields in enumerate(json.loads(str(file["nodes"]))):
            sources = [made[s] for s in fields["sources"]]
            common: dict[str, Any] = {"shape": tuple(fields["shape"]), "kept": fields["kept"]}
            match fields["kind"]:
                case "Input":
                    made.append(Input(**common))
                case "Sum":
                    made.append(Sum(terms=tuple(sources), **common))
                case "Product":
                    made.append(Product(left=sources[0], right=sources[-1], **common))
                case "Linear":
                    shape = (int(np.prod(common["shape"])), sources[0].size)
                    entries = (file[f"{i}.data"], file[f"{i}.columns"], file[f"{i}.rows"])
                    bias = file.get(f"{i}.bias")
                    matrix = Matrix(sp.csr_array(entries, shape=shape))
                    made.append(Linear(map=matrix, source=sources[0], bias=bias, **common))
    image = next(node for node in made if isinstance(node, Input))
    return Circuit(image, made[-1])
