"""Networks as ONNX graphs."""

import logging
import warnings
from typing import Any

import torch
from torch import nn


def to_onnx(
    module: nn.Module, rows: torch.Tensor, output: str, **options: Any
) -> torch.onnx.ONNXProgram:
    """A module of ``inputs`` like ``rows`` as an ONNX graph. Raises torch's OnnxExporterError."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its remarks
    options |= {"input_names": ["inputs"], "output_names": [output]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (rows,), dynamo=True, verbose=False, **options)
    assert program is not None
    return program
