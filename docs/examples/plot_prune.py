"""
Which layers does the projection empty?
=======================================

A small network learns scikit-learn's digits three times: without projection, with one target per
layer, and with one target for the whole model. The picture shows what becomes of its layers.
"""

# %%
# The data, and a network with layers of very different sizes.
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from groupsparse import prune

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
train, test = slice(0, 1300), slice(1300, None)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


# %%
# The training loop knows nothing of pruning: the inducer hooks onto the optimizer.
def trained(plan: prune.Plan | None) -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if plan is not None:
        options = {"every": 5, "start": 40, "stop": 140, "schedule": prune.cubic()}
        prune.Inducer(model, plan, optimizer, **options)
    order = torch.Generator().manual_seed(0)
    for _ in range(10):
        for batch in torch.randperm(1300, generator=order).split(65):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


plans = {
    "no projection": None,
    "one target per layer": prune.Plan(0.8, budget="layer"),
    "one target for the model": prune.Plan(0.8),
}
models = {name: trained(plan) for name, plan in plans.items()}

# %%
# Nine in ten entries of the whole model go, the smallest ones, and nothing is finetuned.
for name, model in models.items():
    prune.cut(model, sparsity=0.9)
    right = (model(x[test]).argmax(1) == y[test]).double().mean()
    print(f"{name}: {right:.1%} of the test images right after the cut")
print(prune.report(models["one target for the model"]))

# %%
# The fraction of zeros in each layer. The cut alone takes nearly all from the large layer; where
# the projection shaped the network, the small layers give up entries as well.
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
colors = ("0.6", "#D55E00", "#0072B2")
for place, ((name, model), color) in enumerate(zip(models.items(), colors, strict=True)):
    rows = prune.report(model).rows
    positions = [i + 0.27 * (place - 1) for i in range(len(rows))]
    axes.bar(positions, [row.sparsity for row in rows], width=0.25, color=color, label=name)
axes.set_xticks(range(len(rows)), [f"{row.name}\n{row.parameters:,} entries" for row in rows])
axes.set_ylabel("fraction of zeros")
figure.legend(frameon=False, loc="outside upper center", ncols=3)
plt.show()
