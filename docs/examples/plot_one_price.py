"""
One price for all vectors
=========================

Four vectors of different lengths share one budget and one multiplier. The picture on top shows what
the projection does to each of them; the one below shows the scalar equation behind it.
"""

# %%
# The vectors are noise with a few spikes, so that some are sparser than others to begin with.
import matplotlib.pyplot as plt
import numpy as np

import groupsparse as gs

random = np.random.default_rng(0)
vectors = []
for spikes, length in [(4, 40), (8, 90), (12, 160), (40, 250)]:
    vector = 0.4 * random.standard_normal(length)
    vector[random.choice(length, size=spikes, replace=False)] += 3.0
    vectors.append(vector)

p = gs.solve(vectors, 0.8)
print(p.status)
print(f"average hoyer {p.hoyer:.12f}, multiplier {p.multiplier:.4f}, duality gap {p.gap:.1e}")

# %%
# Only the average is prescribed. The vectors end up at different Hoyer measures, above and below.
figure, panels = plt.subplots(2, 2, figsize=(9, 5), layout="constrained")
for panel, before, after in zip(panels.flat, vectors, p.value, strict=True):
    places = np.arange(len(before))
    panel.bar(places, after, width=1.0, color="#0072B2", label="projected")
    panel.plot(places, before, ".", color="#D55E00", markersize=4, label="given")
    panel.set_title(f"hoyer {float(gs.hoyer(before)):.2f} → {float(gs.hoyer(after)):.2f}")
panels[0, 0].legend(frameon=False)

# %%
# For every price, the average that it would give: project with that price by hand, and measure. The
# curve never falls, and where it meets the target is the multiplier that `solve` reports.
prices = np.linspace(0, 2 * p.multiplier, 200)
averages = []
for price in prices:
    thresholds = [price / (np.sqrt(len(c)) - 1) for c in vectors]
    shrunk = [np.maximum(np.abs(c) - t, 0) for c, t in zip(vectors, thresholds, strict=True)]
    averages.append(gs.average_hoyer(shrunk))

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(prices, averages, color="#0072B2")
axes.axhline(0.8, color="0.6", linewidth=1)
axes.plot(p.multiplier, 0.8, "o", color="#D55E00")
axes.set(xlabel="multiplier", ylabel="average hoyer")
plt.show()
