"""The derivative of ``project`` on tensors, and its use in compiled and batched code."""

from __future__ import annotations

import numpy as np
import pytest

import groupsparse as gs

torch = pytest.importorskip("torch", reason="needs the extra groupsparse[torch]")

# PyTorch warns of its own use of it, when the first forward derivative is taken.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def normal(*shape, seed=0, grad=True):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return values.requires_grad_(grad)


@pytest.mark.parametrize("target", [0.05, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None])
def test_gradient(target, axis):
    assert torch.autograd.gradcheck(lambda x: gs.project(x, target, axis=axis), normal(3, 4, 5))


@pytest.mark.parametrize("target", [0.3, 0.6, 0.9])
def test_gradient_with_weights(target):
    weights = torch.from_numpy(np.random.default_rng(1).uniform(0.2, 1.0, size=(3, 6)))
    assert torch.autograd.gradcheck(lambda x: gs.project(x, target, weights=weights), normal(3, 6))
    first = weights[0]
    assert torch.autograd.gradcheck(lambda x: gs.project(x, target, weights=first), normal(3, 6))


def test_gradient_of_a_container_with_a_vector_of_length_one():
    def both(x, y, z):
        answer = gs.project({"x": x, "y": y, "z": z}, 0.7)
        return answer["x"], answer["y"], answer["z"]

    assert torch.autograd.gradcheck(both, (normal(5), normal(2, 4, seed=1), normal(1, seed=2)))


def test_1_sparse_vectors_let_only_their_own_entry_through():
    x = torch.tensor([[3.0, 1.0, 2.0], [-1.0, 5.0, 0.5]], dtype=torch.float64, requires_grad=True)
    gs.project(x, 1.0).sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


def test_an_input_that_is_sparse_enough_has_the_identity_as_derivative():
    x = torch.tensor([[0.0, 2.0, 0.0, 0.1]], dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    gs.project(x, 0.5).backward(cotangent)
    assert torch.equal(x.grad, cotangent)


def test_twice_in_one_graph():
    def twice(x):
        return gs.project(x + 0.5 * gs.project(x, 0.6), 0.8)

    assert torch.autograd.gradcheck(twice, normal(3, 7))


def test_second_derivatives_are_refused():
    x = normal(3, 7)
    (gradient,) = torch.autograd.grad((gs.project(x, 0.8) ** 2).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.func.hessian(lambda x: (gs.project(x, 0.8) ** 2).sum())(x.detach())


@pytest.mark.parametrize("target", [0.05, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("weighted", [False, True])
def test_forward_derivative(target, weighted):
    """The tangent of PyTorch's forward mode, against differences and against the backward."""
    weights = torch.from_numpy(np.random.default_rng(1).uniform(0.2, 1.0, 6)) if weighted else None

    def projected(x):
        return gs.project(x, target, weights=weights)

    x = normal(3, 6)
    assert torch.autograd.gradcheck(projected, x, check_forward_ad=True)
    jacobian = torch.func.jacrev(projected)(x.detach())
    assert jacobian.abs().max() > 0.1
    torch.testing.assert_close(
        torch.func.jacfwd(projected)(x.detach()), jacobian, rtol=0, atol=1e-12
    )


def test_forward_derivative_of_containers_and_of_what_does_not_move():
    x, y, z = normal(5, grad=False), normal(1, grad=False), normal(5, seed=1, grad=False)
    tangents = torch.ones(5).double(), torch.full((1,), 7.0).double()
    _, (_, moved) = torch.func.jvp(lambda x, y: gs.project([x, y], 0.7), (x, y), tangents)
    assert moved.tolist() == [7.0]
    _, moved = torch.func.jvp(lambda x: gs.project(x, 0.0), (z,), (x,))
    assert torch.equal(moved, x)


def test_compiled_without_graph_breaks():
    def loss(x):
        rows = {"a": x[:2].ravel(), "b": x[2]}
        return gs.project(2 * x, 0.8).sin().sum() + gs.project(rows, 0.6)["b"].cos().sum()

    eager, compiled = normal(4, 9), normal(4, 9)
    loss(eager).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(compiled).backward()
    torch.testing.assert_close(compiled.grad, eager.grad, rtol=0, atol=1e-14)


def test_the_measure_compiles_too():
    measure = torch.compile(lambda x: gs.hoyer(x, axis=(0, 2)), fullgraph=True, backend="aot_eager")
    x = normal(3, 4, 5, grad=False)
    torch.testing.assert_close(measure(x), gs.hoyer(x, axis=(0, 2)), rtol=0, atol=1e-14)


def test_registered_as_pytorch_expects():
    arguments = ([normal(4, 7)], 0.8, [1], [], -1.0, -1.0, "")
    torch.library.opcheck(torch.ops.groupsparse.project.default, arguments)


def test_vmap_projects_every_member_by_itself():
    batch = normal(3, 4, 7, grad=False)
    answers = torch.func.vmap(lambda x: gs.project(x, 0.8))(batch)
    for one, given in zip(answers, batch, strict=True):
        assert torch.equal(one, gs.project(given, 0.8))


def test_derivatives_of_a_batch():
    batch = normal(3, 4, 7, grad=False)

    def loss(x):
        return gs.project({"x": x}, 0.8)["x"].sin().sum()

    for gradient in (torch.func.grad, torch.func.jacfwd):
        together = torch.func.vmap(gradient(loss))(batch)
        for one, given in zip(together, batch, strict=True):
            x = given.clone().requires_grad_()
            loss(x).backward()
            torch.testing.assert_close(one, x.grad, rtol=0, atol=1e-12)


def test_the_measure_is_differentiable_too():
    assert torch.autograd.gradcheck(gs.hoyer, normal(3, 6))
