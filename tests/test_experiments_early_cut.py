"""Induced GSP that is cut within the trunk: when, to how many zeros, and what stays of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from experiments import networks
from experiments.candidates import EVERYTHING, jobs_of
from experiments.cifar import Images
from experiments.jobs import Setting, rates
from experiments.methods import Induced, Together, attach
from experiments.slot import Data, Settings, Slot
from groupsparse import prune

SETTING = Setting("table1", "tiny", epochs=4, finetune=1, batch=20)  # three steps an epoch


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Slot:
    torch.set_num_threads(1)
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda: networks.cifar_resnet(8))
    pixels = torch.randint(0, 256, (60, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    images = Images(pixels.to(torch.uint8), torch.arange(60) % 10)
    return Slot("tiny", Data(images, images, torch.device("cpu"), held=20), Settings(batch=20))


@pytest.mark.parametrize(
    ("label", "shares"),
    [
        ("GSP 0.9, cut at 50 %", (0.1, 0.4, 0.5)),
        ("GSP 0.8, cut at 70 %", (0.2, 0.6, 0.7)),
    ],
)
def test_the_ramp_ends_before_the_cut(
    slot: Slot, label: str, shares: tuple[float, float, float]
) -> None:
    method = EVERYTHING[label].method
    inducer = Induced(slot, replace(method, level=0.97), 1000).inducer
    start, until, stop = (round(1000 * share) for share in shares)
    assert (inducer.span.start, inducer.span.stop) == (start, stop)
    steps = (start, until - 50, until, stop)
    first, *middle, last, end = (inducer.span.share(at, inducer.schedule) for at in steps)
    assert (first, last, end) == (0.0, pytest.approx(1.0), 1.0)
    assert 0.9 < middle[0] < 0.999


@pytest.mark.parametrize("stopped", range(13))
def test_the_early_cut(slot: Slot, monkeypatch: pytest.MonkeyPatch, stopped: int) -> None:
    """Once, at its step, exactly; then zeros and their momentum stay, also in a run that went on.

    ``stopped``: after so many steps the method is made anew from what it would have written down.
    """
    candidate = EVERYTHING["GSP 0.9, cut at 50 %"]
    often = replace(candidate, method=replace(candidate.method, every=1))
    level = 0.97  # more than the projection itself has
    trunk = jobs_of(SETTING, "early", (level,), 0, candidate=often)[0]
    slot.start(slot.fresh(0))
    step, cuts, zeros = 0, [], []
    magnitude = prune.baselines.magnitude

    def counted(*given: Any, **named: Any) -> prune.Masks:
        cuts.append(step)
        return magnitude(*given, **named)

    monkeypatch.setattr(prune.baselines, "magnitude", counted)
    attached = attach(slot, trunk, 3)
    for epoch in range(4):
        slot.load_epoch("final", 0, epoch, rates(trunk, 3, epoch))
        for _ in range(3):
            if step == stopped:
                state = json.loads(json.dumps(attached.state_dict()))
                attached = attach(slot, trunk, 3)
                attached.load_state_dict(state)
            step += 1
            slot.step()
            assert attached.due() or step != 6
            attached.act()
            zeros.append({name: slot.parameters[place] == 0 for name, place in slot.places.items()})
    assert cuts == [6]
    entries = sum(mask.numel() for mask in slot.masks.values())
    counts = [sum(int(mask.sum()) for mask in each.values()) for each in zeros]
    assert max(counts[:5]) < counts[5] == round(level * entries)
    for each in zeros[6:]:
        assert all(torch.equal(each[name], mask) for name, mask in zeros[5].items())
    for name, place in slot.places.items():
        assert not slot.momenta[place][zeros[5][name]].any()
        assert slot.momenta[place].any()


def test_the_projection_is_ahead_of_the_cuts(slot: Slot) -> None:
    """Zeros rise to what was asked for and stay; the projection works between them, and resumes."""
    candidate = EVERYTHING["GSP 0.8, gradual"]
    often = replace(candidate, method=replace(candidate.method, every=1))
    trunk = jobs_of(SETTING, "both", (0.9,), 0, candidate=often)[0]
    slot.start(slot.fresh(0))
    attached = attach(slot, trunk, 3)
    assert isinstance(attached, Together)
    projection, cuts = attached.parts
    assert isinstance(projection, Induced)
    spans = projection.inducer.span, cuts.pruner.span  # type: ignore[attr-defined]
    assert [(span.start, span.stop) for span in spans] == [(1, 8), (2, 8)]
    counts = []
    for epoch in range(4):
        slot.load_epoch("final", 0, epoch, rates(trunk, 3, epoch))
        for step in range(3):
            state = json.loads(json.dumps(attached.state_dict()))
            attached = attach(slot, trunk, 3)
            attached.load_state_dict(state)
            slot.step()
            assert attached.due() == (3 * epoch + step + 1 in (1, 2, 7, 8))
            attached.act()
            counts.append(sum(slot.zeros().values()))
    assert attached.parts[0].inducer.projections == []  # made anew behind the last one
    entries = sum(mask.numel() for mask in slot.masks.values())
    assert counts[5] < counts[6] < counts[7]
    assert set(counts[7:]) == {round(0.9 * entries)}
