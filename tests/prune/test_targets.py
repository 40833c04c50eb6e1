"""Which parameters a pattern names, and what one vector of them is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from groupsparse import InvalidInput, UnsupportedType, prune
from groupsparse.prune.targets import DEFAULT_TARGETS, Matcher
from groupsparse.prune.vectors import as_rows, like_parameter, vector_view


def names(model: nn.Module, *patterns: str, ignore: tuple[str, ...] = ()) -> list[str]:
    return [found.name for found in prune.select(model, patterns, ignore)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm = nn.LayerNorm([4, 8])
        self.head = nn.Linear(8, 3)


def test_classes_names_and_patterns() -> None:
    block = Block()
    assert names(block, "Linear") == ["attention.out_proj.weight", "head.weight"]  # a subclass too
    assert names(block, "head") == ["head.weight"]
    assert names(block, "head.bias") == ["head.bias"]
    assert names(block, "re:.*proj.*") == ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert names(block, "MultiheadAttention", ignore=("re:.*out_proj",)) == [
        "attention.in_proj_weight"
    ]
    assert names(block, "Linear", ignore=("re:.*head",)) == ["attention.out_proj.weight"]
    assert [t.name for t in prune.select(block, nn.Linear, "head")] == ["attention.out_proj.weight"]


def test_a_pattern_must_match_the_whole_name() -> None:
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "header": nn.Linear(2, 2)})
    assert names(model, "re:head") == ["head.weight"]
    assert names(model, "head") == ["head.weight"]


def test_biases_and_norms_never_come_along(convnet: nn.Module) -> None:
    assert names(convnet, "re:.*") == ["0.weight", "3.weight", "7.weight"]
    assert names(Block(), "norm", "head") == ["head.weight"]
    assert names(Block(), "norm.weight") == ["norm.weight"]
    assert names(convnet, *DEFAULT_TARGETS) == ["0.weight", "3.weight", "7.weight"]


def test_one_layer_is_a_model() -> None:
    assert names(nn.Linear(3, 2), "Linear") == ["weight"]


def test_tied_parameters_appear_once_and_any_name_can_protect_them() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    model["head"].weight = model["embed"].weight
    assert names(model, "Linear", "Embedding") == ["embed.weight"]
    assert names(model, "Linear") == ["embed.weight"]
    assert Matcher(model)("head", prune.select(model, "Linear")[0])
    with pytest.raises(InvalidInput, match="match no parameter"):
        names(model, "Embedding", ignore=("head",))


def test_one_module_used_twice_appears_once() -> None:
    layer = nn.Linear(4, 4)
    assert names(nn.Sequential(layer, layer), "Linear") == ["0.weight"]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from inside torch.compile
def test_wrappers_do_not_show_in_names(convnet: nn.Module) -> None:
    compiled = torch.compile(convnet)
    assert names(compiled, "Conv2d") == ["0.weight", "3.weight"]  # type: ignore[arg-type]
    partly = nn.Sequential(torch.compile(nn.Linear(3, 3)), nn.Linear(3, 3))  # type: ignore[arg-type]
    assert names(partly, "Linear") == ["0.weight", "1.weight"]
    assert names(partly, "0.weight") == ["0.weight"]


def test_nothing_matched_says_what_there_is(convnet: nn.Module) -> None:
    with pytest.raises(InvalidInput, match=r"Conv3d.*Conv2d, Linear.*'0.weight'"):
        names(convnet, "Conv3d")
    with pytest.raises(InvalidInput, match="has no parameters"):
        names(nn.ReLU(), "Linear")


@pytest.mark.parametrize("pattern", ["re:(", "", 3])
def test_broken_patterns(pattern: str, convnet: nn.Module) -> None:
    with pytest.raises(InvalidInput):
        prune.select(convnet, (pattern,))
    with pytest.raises(InvalidInput, match="a pattern is"):
        prune.select(convnet, 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a pattern is Linear"):
        prune.select(convnet, convnet[7])


def test_meta_lazy_and_quantised_models_are_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    with pytest.raises(InvalidInput, match="meta"):
        prune.select(model, "Linear")
    with pytest.raises(InvalidInput, match="no shape yet"):
        prune.select(nn.LazyLinear(3), "LazyLinear")
    with pytest.raises(
        InvalidInput, match=r"weight has dtype torch.float8_e4m3fn; expected float16"
    ):
        prune.cut(nn.Linear(3, 3).to(torch.float8_e4m3fn), 0.5)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("norm", "part"),
    [
        (nn.utils.weight_norm, "weight_v"),
        (nn.utils.spectral_norm, "weight_orig"),
        (nn.utils.parametrizations.weight_norm, "parametrizations.weight.original1"),
        (nn.utils.parametrizations.orthogonal, "parametrizations.weight.original"),
    ],
)
def test_what_a_weight_is_computed_from(norm: Callable[..., nn.Module], part: str) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 3)), nn.Linear(3, 2))
    before = copy.deepcopy(model.state_dict())
    for attempt in (prune.project_, prune.report, lambda m: prune.cut(m, 0.9)):
        with pytest.raises(InvalidInput, match=r"0\..*computed from.*remove_parametrizations"):
            attempt(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert names(model, "Linear", ignore=("0",)) == ["1.weight"]
    assert names(model, f"0.{part}") == [f"0.{part}"]


@pytest.mark.parametrize(
    ("layer", "kind", "count", "length"),
    [
        (nn.Conv2d(3, 8, 5), "filter", 8, 75),
        (nn.Conv2d(3, 8, 5), "kernel", 24, 25),
        (nn.Conv2d(3, 8, 5), "layer", 1, 600),
        (nn.Conv2d(8, 4, 1), "kernel", 4, 8),  # a kernel of one entry: the filter
        (nn.Conv2d(8, 8, 3, groups=8), "filter", 8, 9),
        (nn.Conv1d(3, 8, 5), "kernel", 24, 5),
        (nn.Linear(6, 4), "filter", 4, 6),
        (nn.Linear(6, 4), "kernel", 4, 6),
        (nn.ConvTranspose2d(6, 4, 3), "filter", 4, 54),
        (nn.ConvTranspose2d(6, 4, 3, groups=2), "filter", 4, 27),
        (nn.ConvTranspose2d(6, 4, 3), "kernel", 24, 9),
    ],
)
def test_vectors(layer: nn.Module, kind: str, count: int, length: int) -> None:
    (target,) = prune.select(layer, DEFAULT_TARGETS)
    view, axes = vector_view(target, kind)
    rows = as_rows(view, axes)
    assert rows.shape == (count, length)
    assert torch.equal(like_parameter(rows, view, axes, target.parameter.shape), target.parameter)


class Conv1D(nn.Module):
    """As in Hugging Face's GPT-2: a Linear whose matrix is inputs × outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))


def test_a_linear_layer_that_lies_on_its_side() -> None:
    (target,) = prune.select(Conv1D(), DEFAULT_TARGETS)
    assert as_rows(*vector_view(target, "filter")).shape == (4, 6)


def test_filters_of_a_transposed_convolution_make_one_output_channel() -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False)
    (target,) = prune.select(layer, DEFAULT_TARGETS)
    view, axes = vector_view(target, "filter")
    with torch.no_grad():
        rows = as_rows(view, axes).clone()
        rows[4] = 0
        layer.weight.copy_(like_parameter(rows, view, axes, layer.weight.shape))
        dead = layer(torch.randn(1, 4, 5, 5))[0].abs().sum(dim=(1, 2)) == 0
    assert dead.nonzero().flatten().tolist() == [4]


def test_rows_of_a_channels_last_convolution_are_filters() -> None:
    layer = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    (target,) = prune.select(layer, DEFAULT_TARGETS)
    view, axes = vector_view(target, "filter")
    assert torch.equal(as_rows(view, axes)[5], layer.weight[5].reshape(-1))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"hoyer": 1.5}, InvalidInput),
        ({"hoyer": float("nan")}, InvalidInput),
        ({"hoyer": True}, UnsupportedType),
        ({"hoyer": "0.8"}, UnsupportedType),
        ({"vectors": "row"}, InvalidInput),
        ({"vectors": {"Linear": "row"}}, InvalidInput),
        ({"budget": "network"}, InvalidInput),
        ({"budget": {"Linear": 2.0}}, InvalidInput),
        ({"layer_weights": {"Linear": 0.0}}, InvalidInput),
        ({"layer_weights": {"Linear": "2"}}, UnsupportedType),
        ({"layer_weights": [1.0]}, UnsupportedType),
        ({"weights": {"Linear": [1.0, 2.0]}}, UnsupportedType),
        ({"budget": 0.8}, UnsupportedType),
        ({"vectors": None}, UnsupportedType),
    ],
)
def test_impossible_plans(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        prune.Plan(**options)  # type: ignore[arg-type]


def groups(model: nn.Module, plan: prune.Plan) -> list[tuple[float, list[str]]]:
    return [(g.hoyer, [m.target.name for m in g.members]) for g in plan.resolve(model)]


def test_who_shares_a_budget(convnet: nn.Module) -> None:
    everything = ["0.weight", "3.weight", "7.weight"]
    assert groups(convnet, prune.Plan(0.7)) == [(0.7, everything)]
    assert groups(convnet, prune.Plan(0.7, budget="layer")) == [(0.7, [n]) for n in everything]
    mixed = prune.Plan(0.6, budget={("0", "7"): 0.9, "re:3": 0.5})
    assert groups(convnet, mixed) == [(0.9, ["0.weight", "7.weight"]), (0.5, ["3.weight"])]
    each = prune.Plan(0.6, budget={"Conv2d": 0.9})
    assert groups(convnet, each) == [(0.9, ["0.weight"]), (0.9, ["3.weight"]), (0.6, ["7.weight"])]


def test_a_pattern_written_for_nothing_is_an_error(convnet: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="nose"):
        prune.Plan(budget={"nose": 0.5}).resolve(convnet)
    with pytest.raises(InvalidInput, match="nose"):
        prune.Plan(layer_weights={"nose": 2.0}).resolve(convnet)


def test_the_papers_plan(convnet: nn.Module) -> None:
    resolved = prune.Plan.paper(0.9).resolve(convnet)
    assert [g.members[0].kind for g in resolved] == ["filter", "filter", "layer"]
    assert [len(g.members) for g in resolved] == [1, 1, 1]


def test_layers_with_one_input_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 2))
    assert groups(model, prune.Plan()) == [(0.8, ["1.weight"])]
    with pytest.raises(InvalidInput, match="single entry"):
        prune.Plan().resolve(model[0])
