"""The recipes on the modular recurrence."""

import re
from dataclasses import replace

from bayesgeom.training import publish
from examples.replication.capacity import n_parameters
from examples.replication.training.construction import HORIZON, PERCENT, constructed
from examples.replication.training.recipes import RECIPES, recipe


def test_the_recipes_differ_in_what_their_names_say() -> None:
    plain, own = recipe("recurrence"), constructed()
    sizes = [n_parameters(kind.model_config()) for kind in own.values()]
    assert all(abs(size / 336_768 - 1) <= 0.01 for size in sizes)
    tasks = {"recurrence-opaque": {"opaque": True}, "recurrence-held-out": {"prefixes": "trained"}}
    for name, kind in own.items():
        share = {f"recurrence-first5-labels{percent}": percent / 100 for percent in PERCENT}.get(name, 0.0)
        loss = {"loss_positions": HORIZON if "first5" in name else None, "label_share": share}
        assert kind == replace(plain, name=name, task=replace(plain.task, **tasks.get(name, {})), **loss)
    assert HORIZON == 5 and PERCENT == (1, 5, 25)


def test_the_card_states_where_there_is_a_loss() -> None:
    horizon = [publish._story(RECIPES[f"recurrence{form}"], None) for form in ("", "-first5", "-first5-labels5")]
    stated = [re.findall(r"(?m)^- .* seed \d+(.*)$", own) for own in horizon]
    assert stated == [[""], [", loss_positions 5"], [", loss_positions 5, label_share 0.05"]]
