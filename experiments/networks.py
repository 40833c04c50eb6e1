"""The networks of the paper's experiments, with plain layers and no framework around them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu


def lenet_300_100(classes: int = 10) -> nn.Module:
    """Return the fully connected network 784–300–100–10 for 28 × 28 images."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def lenet_5(classes: int = 10) -> nn.Module:
    """Return LeNet-5 in the form that pruning papers use: 20 and 50 filters, 500 hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


def vgg16(classes: int = 10) -> nn.Module:
    """Return VGG-16 with batch norm for 32 × 32 images: 13 convolutions and one linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return _initialised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, classes)))


def norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Apply batch norm and ReLU."""
    return relu(norm(x))


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut without parameters (option A of He et al., 2016)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - inputs

    def forward(self, x: Tensor, norm_relu: Callable[..., Tensor] = norm_relu) -> Tensor:
        y = norm_relu(self.bn1, self.conv1(x))
        y = self.bn2(self.conv2(y))
        if self.added:  # every other pixel, and channels of zeros on both sides
            half = self.added // 2
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.added - half))
        return relu(x + y)


def cifar_resnet(depth: int, classes: int = 10) -> nn.Module:
    """Return the ResNet of 6n + 2 layers for 32 × 32 images: 20, 56 and 110 in the paper."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth is {depth}; expected 6n + 2, for instance 20, 56 or 110")
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)]
    layers.append(nn.ReLU(inplace=True))
    channels = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 6):
            layers.append(BasicBlock(channels, width, stride=2 if stage and not block else 1))
            channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)]
    return _initialised(nn.Sequential(*layers))


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions around a shortcut."""

    def __init__(
        self, inputs: int, width: int, stride: int, *, keras: bool, shortcut: bool
    ) -> None:
        super().__init__()
        # The original strides at the first 1 × 1 convolution, as Keras does; others at the 3 × 3.
        first, second = (stride, 1) if keras else (1, stride)
        epsilon = 1e-3 if keras else 1e-5
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=keras)
        self.bn1 = nn.BatchNorm2d(width, epsilon)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1, bias=keras)
        self.bn2 = nn.BatchNorm2d(width, epsilon)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=keras)
        self.bn3 = nn.BatchNorm2d(4 * width, epsilon)
        self.shortcut: nn.Module = nn.Identity()
        if shortcut:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=keras),
                nn.BatchNorm2d(4 * width, epsilon),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(classes: int = 1000, *, keras: bool = False, width: int = 64) -> nn.Module:
    """Return ResNet-50; ``width``, the channels after the first convolution, scales all others.

    ``keras=True`` gives the variant whose trained parameters are public in Keras' layout: biases in
    the convolutions, batch norm with ε = 1e-3, stride at the first convolution of a block.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, padding=3, bias=keras),
        nn.BatchNorm2d(width, 1e-3 if keras else 1e-5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = width
    for stage, depth in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            layers.append(Bottleneck(channels, inner, stride, keras=keras, shortcut=not block))
            channels = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return _initialised(nn.Sequential(*layers))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet-300-100": lenet_300_100,
    "lenet-5": lenet_5,
    "vgg16": vgg16,
    "resnet20": lambda: cifar_resnet(20),
    "resnet56": lambda: cifar_resnet(56),
    "resnet110": lambda: cifar_resnet(110),
    "resnet50": resnet50,
}


def _initialised(model: nn.Module) -> nn.Module:
    """Draw convolutions from He's normal distribution, counted by outputs, as the papers do."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
