"""Where Triton's kernels run in the tests: on a GPU, and elsewhere in Triton's interpreter.

Tests of kernels import this, and are skipped where they cannot run.
"""

from __future__ import annotations

import os

import pytest
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
language = pytest.importorskip(
    "triton.language", reason="no Triton, which CUDA builds of PyTorch bring along"
)
if not ON_GPU and type(language.sum).__name__ != "InterpretedFunction":
    raise RuntimeError("Triton was imported before TRITON_INTERPRET=1 was set")  # tests nothing
