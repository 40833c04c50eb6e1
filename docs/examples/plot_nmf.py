"""
NMF that hits its sparsity
==========================

A factorisation is asked for parts of a given average Hoyer measure, and gets exactly that. Which
part becomes how sparse is left to the data.
"""

# %%
# The data: images that are sums of a few blobs of different sizes, with some noise. A part is as
# sparse as its blob is small, so no single measure would suit all of them.
import matplotlib.pyplot as plt
import numpy as np

import groupsparse as gs
from groupsparse.nmf import GroupSparseNMF

SIDE = 24
random = np.random.default_rng(0)
i, j = np.mgrid[:SIDE, :SIDE]
centres = [(6, 6), (6, 17), (17, 6), (17, 17), (12, 12), (12, 3)]
widths = [1.2, 1.6, 2.2, 3.0, 4.0, 1.2]
blobs = np.array(
    [
        np.exp(-((i - a) ** 2 + (j - b) ** 2) / (2 * width**2))
        for (a, b), width in zip(centres, widths, strict=True)
    ]
)
blobs[blobs < 0.1] = 0
truth = blobs.reshape(len(blobs), -1)
clean = random.random((300, len(truth))) @ truth
images = np.maximum(clean + 0.02 * random.standard_normal(clean.shape), 0)

# %%
# The same start with and without a target. The loss curve is that of the best factorisation so far,
# which meets the target at every iteration.
target = gs.average_hoyer(truth)
plain = GroupSparseNMF(6, max_iter=150, tol=0, init="random", random_state=0).fit(images)
sparse = GroupSparseNMF(6, hoyer_H=target, max_iter=150, tol=0, init="random", random_state=0).fit(
    images
)
for name, model in (("plain", plain), ("sparse", sparse)):
    error = 100 * model.loss_curve_[-1]
    zeros = gs.zero_fraction(model.components_)
    print(f"{name:6}  error {error:.2f} %  hoyer {model.hoyer_H_:.6f}  zeros {zeros:.0%}")

# %%
# The parts, sorted by their measure. With the target the noise between the blobs is gone.
figure, panels = plt.subplots(3, 6, figsize=(9, 4.6), layout="constrained")
for row, parts in zip(panels, (truth, plain.components_, sparse.components_), strict=True):
    order = np.argsort(gs.hoyer(parts))
    for panel, part in zip(row, parts[order], strict=True):
        panel.imshow(part.reshape(SIDE, SIDE), cmap="gray_r")
        panel.set_title(f"hoyer {float(gs.hoyer(part)):.2f}", fontsize="small")
        panel.set_xticks([])
        panel.set_yticks([])
for row, name in zip(panels, ("truth", "no target", "target"), strict=True):
    row[0].set_ylabel(name)
