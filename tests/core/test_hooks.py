import re
import threading

import pytest
import torch
from torch import nn

from bayesgeom.core.errors import HookFault
from bayesgeom.core.run import RESID_POST
from bayesgeom.core.torch_state import Hook, hooked, lock_of, site_hook, store_activation
from tests.ablations.plain import n_hooks


def parts() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))


def test_hooks_of_every_kind_see_their_pass_and_are_removed_alone() -> None:
    model, seen = parts(), list[str]()
    own = model[0].register_forward_hook(lambda m, i, out: seen.append("user"))
    hooks = [
        Hook(part=model[0], call=lambda m, inputs: seen.append(f"pre {tuple(inputs[0].shape)}"), kind="pre"),
        Hook(part=model[0], call=lambda m, i, out: seen.append(f"forward {tuple(out.shape)}"), is_first=True),
        Hook(part=model[1], call=lambda m, i, out: seen.append(f"backward {tuple(out[0].shape)}"), kind="backward"),
    ]
    with hooked(model, hooks, by="tiny") as fired:
        model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert seen == ["pre (2, 3)", "forward (2, 5)", "user", "backward (2, 7)"]
    assert fired == [1, 1, 1]
    assert n_hooks(model) == 1 and not model[1]._backward_hooks
    own.remove()


def test_keyword_arguments_are_passed_on_and_results_replace_outputs() -> None:
    class Named(nn.Module):
        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    part = Named()
    hooks = [
        Hook(part=part, call=lambda m, a, k: (a, {"x": k["x"] + 1}), kind="pre", with_kwargs=True),
        Hook(part=part, call=lambda m, a, k, out: out + k["x"], with_kwargs=True),
    ]
    with hooked(part, hooks, by="tiny"):
        assert float(part(x=torch.tensor(3.0))) == 12  # 2·(3 + 1) + 4
    assert float(part(x=torch.tensor(3.0))) == 6


@pytest.mark.parametrize("n", [0, 2])
def test_a_hook_that_does_not_fire_once_is_named(n: int) -> None:
    model, recorded = parts(), {}
    hook = site_hook((RESID_POST, 1), model[0], store_activation(recorded, (RESID_POST, 1)))
    message = re.escape(f"site 'resid_post' of layer 1 of tiny fired {n} times in one pass instead of 1")
    with pytest.raises(HookFault, match=message), hooked(model, [hook], by="tiny"):
        for _ in range(n):
            model[0](torch.ones(3))
    assert n_hooks(model) == 0
    with hooked(model, [hook], by="tiny", times=None) as fired:
        for _ in range(n):
            model[0](torch.ones(3))
    assert fired == [n]


def test_a_failure_inside_is_what_is_raised_and_leaves_no_hook_and_no_lock() -> None:
    model = parts()
    with pytest.raises(ZeroDivisionError), hooked(model, [Hook(part=model[0], call=lambda *_: None)], by="tiny"):
        raise ZeroDivisionError
    assert n_hooks(model) == 0 and is_free(model)


def test_a_failure_while_hooks_are_set_removes_those_already_set() -> None:
    model = parts()

    def hooks():  # type: ignore[no-untyped-def]
        yield Hook(part=model[0], call=lambda *_: None)
        raise LookupError("no such point")

    with pytest.raises(LookupError, match="no such point"), hooked(model, hooks(), by="tiny"):
        raise AssertionError("the block must not run")
    assert n_hooks(model) == 0 and is_free(model)


def test_the_block_holds_the_models_lock_and_does_not_hear_other_threads() -> None:
    model, seen = parts(), list[torch.Tensor]()
    with hooked(model, [Hook(part=model[0], call=lambda m, i, out: seen.append(out))], by="tiny"):
        assert not is_free(model)
        other = threading.Thread(target=model, args=(torch.ones(3),))  # a pass that does not ask for the lock
        other.start()
        other.join()
        assert seen == []
        model(torch.ones(3))
    assert len(seen) == 1 and is_free(model)


def is_free(model: nn.Module) -> bool:
    """Whether another thread can take the model's lock."""
    found = list[bool]()

    def take() -> None:
        taken = lock_of(model).acquire(blocking=False)
        found.append(taken)
        if taken:
            lock_of(model).release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]
