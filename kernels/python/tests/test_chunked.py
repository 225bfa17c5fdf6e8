"""Tests of `chunked` on the CPU. Needs PyTorch."""

from __future__ import annotations

import collections
import copy
import dataclasses
import doctest
import functools
import pickle
import types

import pytest
import torch
from batches import Counter, batch, close, gradients, network, profiles  # noqa: F401
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import gridguard.torch as ours
from gridguard import GridguardError, _chunked

chunked = ours.chunked
Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Case:
    """A call of a function, and options of `chunked`."""

    function: object
    args: tuple = ()
    kwargs: dict = dataclasses.field(default_factory=dict)
    options: dict = dataclasses.field(default_factory=dict)


class Changing(nn.Module):
    """A module with a layer, a buffer and an attribute, which a function changes."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.change, self.last = nn.Linear(8, 8).double(), change, None
        self.register_buffer("total", torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        x = self.layer(x)
        self.change(self, x)
        return x


class FrozenBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.ones(8))

    def forward(self, x):
        return x - self.running_mean


def fill_cache(module, x):
    if module.last is None:
        module.last = torch.ones(8)


def writes(x, out):
    out["y"] = x * 2
    return x


def keyword_only(x, *, y, scale=2.0, flag=None):
    return x * scale + y if flag is None else x


def nested(x):
    return {"a": [x * 2, None, "text"], "b": (x.long(), x[:, :0]), "c": Pair(x, x.sin())}


def masked(x, mask):
    return x.masked_fill(mask, -torch.inf).softmax(-1)


def in_place(x):
    x.mul_(2)
    return x


def draw(x, generator):
    return x * torch.rand(x.shape, generator=generator, dtype=x.dtype)


x20 = functools.partial(batch, 20, True)
square = functools.partial(torch.ones, 8, 8, dtype=torch.float64)
frozen = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8).eval()).double()
rows = functools.partial(torch.randn, 20, dtype=torch.float64)
EQUAL = {
    "module": lambda: Case(network(), (x20(),)),
    "one item": lambda: Case(network(), (batch(1, True),)),
    "no items": lambda: Case(network(), (batch(0, True),)),
    "an item at a time": lambda: Case(network(), (x20(),), {}, {"chunk": 1}),
    "recompute": lambda: Case(network(), (x20(),), {}, {"recompute": True}),
    "memory": lambda: Case(network(), (x20(),), {}, {"chunk": None, "memory": "20KiB"}),
    "non-leaf input": lambda: Case(network(), (x20() * 2,)),
    "view as input": lambda: Case(network(), (batch(40, True)[::2],)),
    "expanded input": lambda: Case(network(), (batch(1, True).expand(20, 8),)),
    "channels_last": lambda: Case(nn.Conv2d(8, 4, 3).double(), (rows(8, 5, 5).to(memory_format=torch.channels_last),)),
    "negative dim": lambda: Case(lambda x: x.sin(), (x20().T,), {}, {"dim": -1}),
    "inner dim": lambda: Case(nn.LSTM(8, 8).double(), (rows(7, 8).transpose(0, 1),), {}, {"dim": 1}),
    "axes of outputs": lambda: Case(
        nn.LSTM(8, 8, batch_first=True).double(), (rows(7, 8),), {}, {"out_dim": (0, (1, 1))}
    ),
    "transformer": lambda: Case(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double(), (rows(7, 8),)),
    "by position": lambda: Case(torch.matmul, (x20(), square()), {}, {"dim": (0, None)}),
    "whole tensor of the batch's size": lambda: Case(torch.matmul, (batch(8, True), square()), {}, {"dim": (0, None)}),
    "other tensor without the batch": lambda: Case(torch.matmul, (x20(), square())),
    "by name": lambda: Case(keyword_only, (x20(),), {"y": batch(20, True)}, {"dim": {"x": 0, "y": 0}}),
    "positions and names": lambda: Case(torch.add, (x20(),), {"other": x20(), "alpha": 3}, {"dim": {0: 0, "other": 0}}),
    "an axis for each tensor of an argument": lambda: Case(
        lambda both: both["x"] + both["scale"],
        ({"x": x20(), "scale": rows()[:1]},),
        {},
        {"dim": ({"x": 0, "scale": None},)},
    ),
    "None and other values": lambda: Case(
        lambda x, y, flag, kind: x * flag, (x20(), None, 3.0, "text"), {}, {"dim": (0, 0, None, None)}
    ),
    "boolean mask of the batch": lambda: Case(masked, (x20(), rows(8) > 1), {}, {"dim": (0, 0)}),
    "same tensor twice": lambda: Case(lambda x, y: x * y, (x20(),) * 2, {}, {"dim": (0, 0)}),
    "trees of outputs": lambda: Case(nested, (x20(),)),
    "output is the input": lambda: Case(lambda x: x, (x20(),)),
    "input changed in place": lambda: Case(in_place, (batch(),)),
    "in-place modules": lambda: Case(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)).double(), (x20(),)),
    "frozen BatchNorm": lambda: Case(copy.deepcopy(frozen), (x20(),)),
    "statistics that nothing updates": lambda: Case(FrozenBatchNorm(), (x20(),)),
    "InstanceNorm": lambda: Case(nn.InstanceNorm1d(4).double(), (rows(4, 5),)),
    "a cache that the first chunk fills": lambda: Case(Changing(fill_cache), (x20(),)),
    "lazy layers": lambda: Case(nn.Sequential(nn.LazyLinear(4, dtype=torch.float64)), (batch(),)),
    "weight norm": lambda: Case(parametrizations.weight_norm(nn.Linear(8, 8).double()), (x20(),)),
    "checkpoint inside": lambda: Case(lambda x: checkpoint(torch.sin, x, use_reentrant=False), (x20(),)),
    "checkpoint outside": lambda: Case(
        lambda x: checkpoint(chunked(torch.sin, chunk=3), x, use_reentrant=False), (x20(),)
    ),
    "chunks in chunks": lambda: Case(chunked(network(), memory="20KiB"), (x20(),)),
    "hook of the module": lambda: Case(hooked(), (x20(),)),
    "bound method": lambda: Case(network().forward, (x20(),)),
    "partial": lambda: Case(functools.partial(keyword_only, scale=3.0, y=torch.ones(())), (x20(),)),
}


def hooked():
    model = network()
    model.register_forward_hook(lambda module, args, out: out - out.mean(0))
    return model


def outcome(case, is_chunked):
    """Return all that a call leaves: outputs, gradients, buffers, arguments and the random state."""
    torch.manual_seed(0)
    case = case()
    function = case.function
    if is_chunked:
        function = chunked(function, **({"chunk": 6} | case.options))
    out = function(*case.args, **case.kwargs)
    modules = function if isinstance(function, nn.Module) else nn.Module()
    inputs = [one for one in tree_leaves((case.args, case.kwargs)) if isinstance(one, torch.Tensor)]
    outs = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor) and one.requires_grad]
    wanted = [one for one in [*inputs, *modules.parameters()] if one.requires_grad]
    grads = ()
    if outs:
        weights = [torch.arange(one.numel(), dtype=one.dtype).sin().view(one.shape) for one in outs]
        grads = torch.autograd.grad(outs, wanted, weights, allow_unused=True)
    return [out, *grads, dict(modules.named_buffers()), inputs, torch.get_rng_state()]


@pytest.mark.parametrize("name", EQUAL)
def test_chunks_leave_what_the_whole_batch_leaves(name):
    whole, found = outcome(EQUAL[name], False), outcome(EQUAL[name], True)
    assert len(whole) == len(found)
    for one, other in zip(whole, found):
        for leaf, own in zip(tree_leaves(one), tree_leaves(other)):
            assert leaf == own if isinstance(leaf, str) else close(own, leaf) is None
        assert torch.utils._pytree.tree_structure(one) == torch.utils._pytree.tree_structure(other)


later = nn.BatchNorm1d(8)
held = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
_MIXES = ours.DependentItemsError


async def coroutine(x):
    return x


REFUSED = {
    "BatchNorm": (nn.Sequential(nn.Linear(8, 8), held), _MIXES, r"1.1 \(BatchNorm1d\) in Sequential mixes items"),
    "BatchNorm by a global name": (lambda x: later(x), _MIXES, "BatchNorm1d mixes items"),
    "BatchNorm in a partial": (functools.partial(torch.sin, held), _MIXES, "mixes"),
    "BatchNorm without statistics": (nn.BatchNorm1d(8, track_running_stats=False).eval(), _MIXES, "over the batch"),
    "SyncBatchNorm": (nn.SyncBatchNorm(8), _MIXES, "SyncBatchNorm mixes items"),
    "LazyBatchNorm": (nn.Sequential(nn.LazyBatchNorm1d()), _MIXES, r"LazyBatchNorm1d\) in Sequential mixes items"),
    "lazy module": (nn.LazyLinear(3), TypeError, "LazyLinear has no parameters yet"),
    "InstanceNorm with statistics": (nn.InstanceNorm1d(8, track_running_stats=True), _MIXES, "updates its statistics"),
    "spectral norm": (parametrizations.spectral_norm(nn.Linear(8, 8).double()), _MIXES, "changes '_[uv]'"),
    "accumulator": (Changing(lambda module, x: module.total.add_(x.sum())), _MIXES, "changes 'total'"),
    "new accumulator": (Changing(lambda module, x: setattr(module, "total", x.sum()[None])), _MIXES, "total"),
    "state in an attribute": (Changing(lambda module, x: setattr(module, "last", x)), _MIXES, "'last'"),
    "sum": (lambda x: x.sum(), ours.ChunkError, r"output 0 has the shape \(\) for 5 items"),
    "number of items": (lambda x: (x, len(x)), ours.ChunkError, "output 1 is a int"),
    "another type": (lambda x: types.SimpleNamespace(x=x), ours.ChunkError, "output 0 is a SimpleNamespace"),
    "sparse output": (lambda x: x.to_sparse(), ours.ChunkError, "output 0 has the shape"),
    "selected rows": (lambda x: x[x[:, 0] > 0], ours.ChunkError, "output 0 has the shape"),
    "coroutine": (coroutine, TypeError, "coroutine returns a coroutine"),
    "generator": (lambda x: (yield x), TypeError, "returns a coroutine or a generator"),
    "class": (nn.Linear, TypeError, "function is of type type"),
}
_PASS = r"pass dim=\(0, 0\) to split it, or dim=\(0, None\) to pass it whole"
_WRITES = "writes into a list or a dictionary"
# Arguments and options follow.
REFUSED |= {
    "size of the batch by accident": (torch.matmul, ValueError, f"argument 1 may have .*{_PASS}", lambda: (batch(8), square())),
    "list of the batch's length": (
        lambda x, lengths: x, ValueError, f"argument 1 may have .*{_PASS}", lambda: (batch(), [3] * 20)
    ),
    "first tensor of one element": (torch.mul, ValueError, r"dim=\(0, None\)", lambda: (torch.ones(1), batch())),
    "different numbers of items": (
        torch.add, ValueError, "the shapes of the inputs", lambda: (batch(), batch(3)), {"dim": (0, 0)}
    ),
    "no tensor": (torch.add, ValueError, "has no tensor with this axis", lambda: (batch(), 3), {"dim": (0, 0)}),
    "no axis": (torch.sin, ValueError, "has no tensor with this axis", lambda: (batch(),), {"dim": (2,)}),
    "no axis at all": (torch.sin, ValueError, "the shapes of the inputs", lambda: (torch.tensor(1.0),)),
    "too few axes": (torch.add, ValueError, "1 axes, but the call has 2", lambda: (batch(), batch()), {"dim": (0,)}),
    "unknown name": (keyword_only, ValueError, "dim names z", lambda: (batch(),), {"dim": {"z": 0}}),
    "another tree": (torch.add, ValueError, "another structure", lambda: ([batch()], 2), {"dim": ([0, 0], None)}),
    "a dictionary that it writes": (writes, GridguardError, _WRITES, lambda: (batch(), {})),
    "a list that it writes": (lambda x, out: out.append(x) or x, GridguardError, _WRITES, lambda: (batch(), [])),
    "a tensor that it writes": (
        lambda x, total: total.add_(x.sum()) * x, GridguardError, "changes input 0, which",
        lambda: (batch(), torch.zeros(1)),
    ),
    "an attribute that it writes": (
        lambda x, held: setattr(held, "y", x) or x, GridguardError, "changes 'y'",
        lambda: (batch(), types.SimpleNamespace(y=0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_chunks_can_compute_is_refused(name):
    """Refuse functions that mix items, calls whose items are not named, and arguments that chunks write into."""
    function, error, text, *call = REFUSED[name]
    args, options = (*call, {})[:2] if call else (lambda: (batch(),), {})
    with pytest.raises(error, match=text):
        chunked(function, chunk=5, **options)(*args())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_normalisation_that_is_unfrozen_later_is_refused_in_every_kind_of_call():
    model, x = copy.deepcopy(frozen), batch()
    calls = (
        chunked(model, chunk=6),
        chunked(lambda x: model(x), chunk=6),
        torch.compile(chunked(model, chunk=6), backend="eager"),
    )
    for call in calls:
        close(call(x), frozen(x))
    model[1].train()
    for call in calls:
        with pytest.raises(Exception, match="mixes items"):
            call(x)
    with pytest.raises(_MIXES):
        torch.func.vmap(calls[0])(x[None])


def test_no_chunk_is_repeated_after_it_changed_its_input():
    def function(x):
        x.add_(1)
        if len(x) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return x

    with pytest.raises(torch.cuda.OutOfMemoryError):
        chunked(function)(batch())


def test_the_example_runs():
    assert doctest.testmod(_chunked) == doctest.TestResults(failed=0, attempted=6)


def test_only_chunks_run_and_are_views_of_the_inputs():
    x, seen = batch(), []

    def function(part):
        seen.append(part.data_ptr() - x.data_ptr())
        return part * 2

    with torch.no_grad():
        chunked(function, chunk=6)(x)
    assert seen == [row * 8 * 8 for row in (0, 6, 12, 18)]
    seen.clear()
    chunked(function, memory="1MiB")(x)
    assert [place // 64 for place in seen] == [0, 1, 2, 4], "the first chunks are measured"


def test_one_gradient_of_the_input_is_allocated_for_all_chunks():
    x, grads = batch(requires_grad=True), []
    y = x * 1
    y.register_hook(lambda grad: grads.append(grad))
    out = chunked(lambda part: part * 3, chunk=3)(y)
    for _ in range(2):
        out.backward(torch.ones_like(out), retain_graph=True)
    assert len(grads) == 2 and grads[0].data_ptr() != grads[1].data_ptr()
    close(x.grad, torch.full_like(x, 6.0))


def test_second_derivatives_exist():
    x = batch(5, requires_grad=True)
    function = chunked(lambda part: (part.sin() * part, part[:, :2].exp()), chunk=2)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_grad_modes_and_autocast_hold():
    model = network().float()
    function, x = chunked(model, chunk=6), batch().float()
    with torch.inference_mode():
        assert function(x).is_inference()
    with torch.no_grad():
        assert not function(x.clone().requires_grad_()).requires_grad
    assert function(x).requires_grad, "parameters need gradients"
    x.requires_grad_()
    for recompute in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = chunked(model, chunk=6, recompute=recompute)(x), model(x)
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found, expected)
        leaves = [x, *model.parameters()]
        torch.testing.assert_close(gradients(found, leaves), gradients(expected, leaves), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("recompute", [False, True])
def test_random_numbers_are_drawn_by_chunk_and_again_in_the_backward_pass(recompute):
    x = torch.ones(40, 64, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator()
    for function, kwargs in (
        (nn.Dropout(0.5), {}),
        (draw, {"generator": generator}),
        (functools.partial(draw, generator=generator), {}),
        (lambda x: draw(x, generator), {}),
    ):
        out = chunked(function, chunk=10, recompute=recompute)(x, **kwargs)
        assert not torch.equal(out[:10], out[10:20])
        state = generator.get_state(), torch.get_rng_state()
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out), "the backward pass has the numbers of the forward pass"
        assert torch.equal(state[0], generator.get_state()) and torch.equal(state[1], torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_has_the_chunks_or_is_compiled_inside(backend):
    model, x = network(), batch(requires_grad=True)
    expected = gradients(model(x), [x])
    torch.compiler.reset()
    outside = torch.compile(chunked(model, chunk=6), backend=backend, fullgraph=True)
    inside = chunked(torch.compile(model, backend=backend, fullgraph=True), chunk=6)
    measured = chunked(model, memory="20KiB")
    broken = torch.compile(lambda x: measured(x).sin(), backend=backend)
    close(gradients(outside(x), [x]), expected)
    close(gradients(inside(x), [x]), expected)
    close(broken(x), model(x).sin())
    assert measured._engine.sizes, "memory is measured between the graphs"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_transforms_meta_and_fake_tensors_run():
    x = batch()
    function = chunked(torch.sin, chunk=6)
    close(torch.func.vmap(function)(x[None])[0], x.sin())
    close(torch.func.jvp(function, (x,), (x,))[1], x * x.cos())
    close(torch.func.grad(lambda x: function(x).sum())(x), x.cos())
    assert chunked(torch.sin, chunk=6)(x.to("meta")).shape == x.shape
    assert torch.export.export(chunked(network(), chunk=6), (x,)).module()(x).shape == (20, 4)
    with FlopCounterMode(display=False) as flops:
        chunked(network(), chunk=6)(x)
    assert flops.get_total_flops() == 2 * 20 * (8 * 16 + 16 * 4)
    with FakeTensorMode() as mode:
        assert function(mode.from_tensor(x)).shape == x.shape
    measured = chunked(network(), memory=10**6)
    for call, text in (
        (lambda: torch.func.vmap(measured)(x[None]), "under transforms"),
        (lambda: measured(x.to("meta")), "meta tensors"),
        (lambda: checkpoint(measured, x, use_reentrant=False), "inside of a checkpoint"),
    ):
        with pytest.raises(GridguardError, match=text):
            call()


def shift(x, by=50):
    return x + 1e-3 * torch.cat((torch.zeros_like(x[:by]), x[:-by])) if len(x) > by else x


BLIND = {
    "item 50 before": (shift, lambda: batch(120), {"chunk": 60}, r"50 of 120 items: 60, 61, 62, .*in chunks of 60"),
    "masked logit": (
        lambda x: torch.cat((x - x.mean(0), torch.full_like(x[:, :1], -1e9)), 1),
        batch,
        {},
        "output 0 differs in 20 of 20 items",
    ),
    "small mean": (lambda x: x + 1e-3 * x.mean(0), lambda: batch().float(), {}, "differs in 20 of 20 items"),
    "number of items": (lambda x: x * len(x), batch, {}, "in chunks of 1"),
    "accumulator": (Changing(lambda module, x: module.total.add_(x.sum())), batch, {}, "changes 'total'"),
    "random numbers": (
        lambda x: x * torch.randn(x.shape),
        batch,
        {"chunk": 3},
        r"it draws random numbers, .*call eval\(\)",
    ),
    "transposed": (lambda x: x.flatten().view(8, -1).T.reshape(len(x), 8), batch, {}, "differs in"),
}


@pytest.mark.parametrize("name", BLIND)
def test_verify_finds_items_that_depend_on_others(name):
    function, x, options, text = BLIND[name]
    x = x()
    with pytest.raises(_MIXES, match=text):
        chunked(function, **options).verify(x)


def test_verify_changes_nothing():
    model, generator, calls = Changing(fill_cache), torch.Generator(), []
    model.bias = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    x, other = x20(), batch()

    def function(x, other, generator, model=model):
        calls.append(1)
        other.mul_(2)
        return model(x) * model.bias + torch.rand(1, generator=generator).detach() * 0 + torch.rand(1) * 0

    before = copy.deepcopy((model.state_dict(), x, other, generator.get_state(), torch.get_rng_state()))
    for call in (chunked(function, (0, 0, None), chunk=6), chunked(model, chunk=6)):
        call.verify(*((x, other, generator) if call._inner() is function else (x,)))
    now = (model.state_dict(), x, other, generator.get_state(), torch.get_rng_state())
    for one, two in zip(tree_leaves(before), tree_leaves(now)):
        assert torch.equal(one, two)
    assert model.last is None and x.grad is None and model.layer.weight.grad is None
    lock = types.SimpleNamespace(lock=__import__("threading").Lock())
    with pytest.raises(GridguardError, match="cannot be verified, because it cannot be copied"):
        chunked(lambda x, lock: x, (0, None)).verify(x, lock)


def test_a_module_is_transparent():
    model, x = network(), batch()
    model.note = "kept"
    expected, call = model(x), chunked(model, chunk=6)
    assert isinstance(call, (nn.Sequential)) and isinstance(call, ours.Chunked)
    assert list(call.state_dict()) == list(model.state_dict()) and call.note == "kept" and repr(call) == repr(model)
    assert [name for name, _ in call.named_modules()] == [name for name, _ in model.named_modules()]
    weights = {name: torch.zeros_like(one) for name, one in call.named_parameters()}
    close(torch.func.functional_call(call, weights, (x,)), torch.zeros(20, 4, dtype=x.dtype))
    sizes = []
    model[0].register_forward_hook(lambda module, args, out: sizes.append(len(out)))
    replica = call._replicate_for_data_parallel()
    replica._parameters, replica._modules = model._parameters.copy(), model._modules.copy()
    replica._modules["0"] = copy.copy(model[0])
    replica._modules["0"]._parameters = {name: torch.zeros_like(one) for name, one in model[0]._parameters.items()}
    assert not torch.equal(replica(x), expected) and sizes == [6, 6, 6, 2], "a replica has its own weights"
    model[0]._forward_hooks.clear()
    for copied in (copy.copy(call), copy.deepcopy(call), pickle.loads(pickle.dumps(call))):
        assert isinstance(copied, ours.Chunked)
        close(copied(x), expected)
    assert copied[0].weight is not model[0].weight
    model.eval()
    assert not call.training
    outer = nn.ModuleDict({"inner": call})
    outer.load_state_dict({f"inner.{name}": torch.zeros_like(one) for name, one in model.state_dict().items()})
    assert not call(x).any()
    call.forward = functools.partial(lambda forward, x: forward(x) + 1, call.forward)
    close(call(x), torch.ones(20, 4, dtype=x.dtype))
    del call.forward
    model.forward = chunked(model.forward, chunk=6)
    close(chunked(model, chunk=4)(x), torch.zeros(20, 4, dtype=x.dtype))
    assert list(dict(model.named_parameters())) == list(weights) and not model(x).any()


class Math:
    @chunked
    def double(self, x):
        return x * 2


@chunked
def decorated(x):
    """Doubles."""
    return x * 2


def test_a_function_stays_a_function():
    x = batch()
    close(Math().double(x), x * 2)
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "Doubles."
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    close(pickle.loads(pickle.dumps(chunked(network().forward, chunk=6)))(x).shape, (20, 4))
    error = pickle.loads(pickle.dumps(ours.ChunkError("text", 3, x)))
    assert error.done == 3 and str(error) == "text"


def test_a_failing_chunk_is_named_and_earlier_outputs_are_kept():
    def function(x):
        if (x > 100).any():
            raise KeyError("broken")
        return x * 2, "text"

    x = batch(20, requires_grad=True)
    broken = x.detach().clone()
    broken[13] = 200.0
    for one in (broken, broken.clone().requires_grad_()):
        with pytest.raises(ours.ChunkError, match=r"chunk 3 of .*function \(items 12 to 17 of 20\) failed") as raised:
            chunked(function, chunk=6)(one)
        assert raised.value.done == 12 and isinstance(raised.value.__cause__, KeyError)
        close(raised.value.output[0], broken[:12] * 2)
        assert raised.value.output[1] == "text"
    shapes = chunked(lambda x: x[:, :3] if (x > 100).any() else x, chunk=6)
    with pytest.raises(
        ours.ChunkError, match=r"chunk 3 .*: its outputs are .*3.*, but after the first chunk's outputs"
    ):
        shapes(broken)


def test_wrong_options_are_refused():
    for options, error, text in (
        ({"chunk": 0}, ValueError, "chunk is 0"),
        ({"chunk": 2.5}, ValueError, "chunk is 2.5"),
        ({"chunk": 2, "memory": 100}, ValueError, "pass one of them"),
        ({"memory": "much"}, ValueError, "memory is 'much'"),
        ({"dim": "0"}, TypeError, "str"),
        ({"dim": (None,)}, ValueError, "pass an axis"),
    ):
        with pytest.raises(error, match=text):
            chunked(torch.sin, **options)
