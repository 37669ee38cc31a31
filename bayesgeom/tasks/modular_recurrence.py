"""Modular recurrence: predict the next number of a sequence that is noise or follows an unknown linear rule.

Half of the sequences follow x_{t+1} = a·x_t + b mod p with a and b uniform, from a uniform start. The others are
independent and uniform. After k numbers the odds for a rule have been multiplied by (number of rules that fit) ·
p^(k−3), which is 1, 1, 1, then p, p², … as long as a rule fits. If no rule fits, the sequence is noise. The difficulty
axis is `n_hypotheses`: p² rules and the noise.

**Opaque form.** Each sequence starts with a header: ORD, a random order of p symbols, SEP. The symbol at place x stands
for the number x in this sequence only. Numbers are then shown as symbols, with ids of their own.

**Prefixes.** A hash of the first three numbers assigns each sequence to one of `prefix_buckets` buckets; one bucket is
held out. The prior is uniform over the rules and starts whose prefix is in the chosen buckets. The noise is restricted
in the same way: its first three numbers are uniform over the prefixes in these buckets. If only rules were restricted,
a held-out prefix would prove that the sequence is noise, and the exact observer would be right not to infer a rule.
Restricted prefixes change the posterior before the third number. From the third on, they multiply the odds for a rule
by a constant near 1: the share of allowed prefixes over the share of allowed rules and starts.

References:
    The follow-up of Agarwal, Dalal & Misra 2025 (arXiv:2512.22471) on the limits of their construction, in their public
    code: p = 17, length 16. There the hash covers prefixes of rules with two different first numbers only, and noise is
    not restricted.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.tasks.base import EvidenceTask, check_parameters, random_order, steps_back, trials_at

_PREFIX = 3  # numbers that determine the bucket
_Numbers = Int64[Tensor, "batch pos_and_one"]


@final
@dataclass(frozen=True, kw_only=True)
class ModularRecurrence(EvidenceTask):
    """`length` numbers below `modulus`; the label at each is the next one, and the last label is not shown.

    `belief` is over the noise, then over all rules (a, b) in the order of a·p + b. Rules are about numbers: in the
    opaque form, about the places of symbols in the header.

    Args:
        modulus: Number of different numbers p.
        length: Numbers in a sequence; each is a scored position.
        rule_share: Prior probability of a rule.
        opaque: Whether a header states which symbol stands for which number, anew in each sequence.
        prefixes: "all": any first three numbers. "trained": those of all buckets except `held_out`. "held_out": those
            of the bucket `held_out`.
        prefix_buckets: Number of buckets of prefixes.
        held_out: The bucket that "trained" leaves out.
        kinds: "both": rules and noise as in the prior. "rules", "noise": only these are drawn; the posterior is still
            that of the prior with both.
        scored_from: Index of the first scored number.
        scored_to: Index after the last scored number. None: all numbers to the end.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> tasks.ModularRecurrence(modulus=5, length=7).n_hypotheses  # 25 rules and the noise
        26
        >>> tasks.ModularRecurrence(modulus=5, length=7, opaque=True).n_pos  # ORD, 5 symbols, SEP and 7 numbers
        14
    """

    name: ClassVar[str] = "modular-recurrence"
    sentence: ClassVar[str] = (
        "Numbers below {task.modulus} follow a hidden rule, each from the one before, or are noise; the "
        "model predicts the next number."
    )
    modulus: int = 17
    length: int = 16
    rule_share: float = 0.5
    opaque: bool = False
    prefixes: Literal["all", "trained", "held_out"] = "all"
    prefix_buckets: int = 5
    held_out: int = 0
    kinds: Literal["both", "rules", "noise"] = "both"
    scored_from: int = 0
    scored_to: int | None = None

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.modulus < 2 or self.length < 1 or not 0 < self.rule_share < 1:
            raise InvalidArgument(f"a recurrence needs modulus ≥ 2, length ≥ 1 and 0 < rule_share < 1, got {self}.")
        if not 0 <= self.scored_from < self._scored.stop <= self.length:
            raise InvalidArgument(
                f"scored numbers need 0 ≤ scored_from < scored_to ≤ length, got {self.scored_from}, "
                f"{self.scored_to} and length {self.length}."
            )
        self._check_prefixes()

    @property
    def n_hypotheses(self) -> int:
        """Number of rules plus one for the noise."""
        return self.modulus**2 + 1

    @property
    def n_header(self) -> int:
        """Number of tokens before the first number: p + 2 in the opaque form, else 0."""
        return self.modulus + 2 if self.opaque else 0

    @property
    def d_vocab(self) -> int:
        return 2 * self.modulus + 2 if self.opaque else self.modulus

    @property
    def n_pos(self) -> int:
        return self.n_header + self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self._drawn(n, generator, 1)[0]

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same header, start and kind, and another rule or other noise."""
        original, donor = self._drawn(n, generator, 2)
        return original, donor

    def _drawn(self, n: int, generator: torch.Generator, n_copies: int) -> list[Trials]:
        """Draw sequences, and copies with the same header, start and kind."""
        drawn = torch.rand(n, generator=generator, dtype=torch.float64, device=generator.device)
        is_rule = drawn < self._drawn_rule_share
        start = self._starts(is_rule, generator)
        copies = [self._numbers(is_rule, start, generator) for _ in range(n_copies)]
        order = random_order(n, self.modulus, generator) if self.opaque else None
        return [self.trials(numbers, order) for numbers in copies]

    def trials(self, numbers: _Numbers, order: Int64[Tensor, "batch number"] | None = None) -> Trials:
        """Build sequences from numbers; the last number is the label and not shown.

        Args:
            numbers: The numbers.
            order: The symbol that stands for each number, by sequence, for the opaque form only.

        Raises:
            InvalidArgument: A prefix is not allowed by `prefixes`, or `order` is missing or not needed.
        """
        if (order is not None) != self.opaque:
            raise InvalidArgument(f"order is the header of the opaque form only; opaque is {self.opaque}.")
        self._check_allowed(numbers)
        belief = self._belief(numbers[:, :-1])
        predictive, labels = self._next_number(numbers[:, :-1], belief), numbers[:, 1:]
        tokens, ids = numbers[:, :-1], torch.arange(self.modulus, device=numbers.device)
        sets = {"inputs": ids}
        if order is not None:
            p, specials = self.modulus, torch.tensor([2 * self.modulus, 2 * self.modulus + 1], device=numbers.device)
            first, last = specials.expand(len(order), 2).split(1, dim=1)
            tokens = torch.cat([first, order, last, order.gather(1, tokens) + p], dim=1)
            labels, predictive = order.gather(1, labels) + p, self._as_symbols(predictive, order)
            sets, ids = {"header": ids, "inputs": ids + p}, ids + p
        tokens, header, shown = tokens.contiguous(), self.n_header, self._scored
        return trials_at(
            slice(header + shown.start, header + shown.stop),
            tokens,
            answers=ids,
            predictive=predictive[:, shown],
            belief=belief[:, shown],
            labels=labels[:, shown],
            token_sets=sets,
            relations=Relations(draw=functools.partial(_relations, header=header, scored=shown), of=tokens),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform`, and `prior_odds`: the rules that fit, at their prior odds against the noise."""
        order, numbers = self._read(trials.tokens)
        fits = trials.at_scored(trials.belief)[:, :, 1:] > 0
        n_fitting = fits.sum(dim=2, keepdim=True)
        share = self.rule_share * (n_fitting > 0).double()
        unweighed = torch.cat([1 - share, share * fits / n_fitting.clamp_min(1)], dim=2)
        uniform = torch.full((1, 1, self.modulus), 1 / self.modulus, dtype=torch.float64, device=numbers.device)
        known = self._mixed(numbers[:, self._scored], unweighed, uniform)
        return {
            "uniform": uniform.expand_as(known),
            "prior_odds": known if order is None else self._as_symbols(known, order),
        }

    @property
    def n_evidence(self) -> int:
        return int(self._scored.stop)

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some numbers again, given the kept ones; the header stays."""
        order, numbers = self._read(trials.tokens)
        return self.trials(torch.stack([self._redrawn(sequence, keep, generator) for sequence in numbers]), order)

    def _redrawn(
        self, numbers: Int64[Tensor, " place"], keep: Bool[Tensor, " evidence"], generator: torch.Generator
    ) -> Int64[Tensor, " number"]:
        """Return a sequence with the kept numbers: one of the rules and starts, or noise, that give them."""
        number = torch.arange(self.modulus, device=numbers.device)
        rule = torch.arange(self.modulus**2, device=numbers.device)
        after = self._successors(number[None])[0]  # by number and rule
        prefixes, rules = self._allowed.to(numbers.device), self._allowed_rules.to(numbers.device)
        fitting_rules, fitting, shown = rules.clone(), prefixes.clone(), number[:, None].expand_as(rules)
        for place, is_kept in enumerate(keep.tolist()):
            if is_kept:
                fitting_rules &= shown == numbers[place]
            if is_kept and place < _PREFIX:
                fitting &= (number == numbers[place]).reshape([-1 if axis == place else 1 for axis in range(_PREFIX)])
            shown = after[shown, rule]
        share, rest = self._drawn_rule_share, float(self.modulus) ** -int(keep[_PREFIX:].sum())
        odds = [
            share * float(fitting_rules.sum() / rules.sum()),
            (1 - share) * rest * float(fitting.sum() / prefixes.sum()),
        ]
        if float(torch.rand((), generator=generator, dtype=torch.float64, device=numbers.device)) * sum(odds) < odds[0]:
            start, chosen = self._one_of(fitting_rules, generator)
            path = [start]
            for _ in range(self.length):
                path.append(after[path[-1], chosen])
            return torch.stack(path)
        drawn = torch.cat([self._one_of(fitting, generator), self._below((1, self.length), generator)[0]])
        drawn[: len(keep)] = torch.where(keep, numbers[: len(keep)], drawn[: len(keep)])
        return drawn[: self.length + 1]

    def _one_of(self, members: Bool[Tensor, "..."], generator: torch.Generator) -> Int64[Tensor, " axis"]:
        """Draw one of the true entries, and return its place along each axis."""
        places = members.nonzero()
        return places[int(torch.randint(len(places), (), generator=generator, device=generator.device))]

    @property
    def _drawn_rule_share(self) -> float:
        """Share of drawn sequences that follow a rule."""
        return 0.0 if self.kinds == "noise" else 1.0 if self.kinds == "rules" else self.rule_share

    def token_labels(self) -> Sequence[str]:
        numbers = [str(i) for i in range(self.modulus)]
        return [*(f"order {i}" for i in numbers), *numbers, "ORD", "SEP"] if self.opaque else numbers

    @property
    def _scored(self) -> slice:
        return slice(self.scored_from, self.length if self.scored_to is None else self.scored_to)

    def _check_prefixes(self) -> None:
        if self.prefix_buckets < 2 or not 0 <= self.held_out < self.prefix_buckets:
            raise InvalidArgument(
                f"buckets of prefixes need prefix_buckets ≥ 2 and 0 ≤ held_out < prefix_buckets, got "
                f"{self.prefix_buckets} and held_out={self.held_out}."
            )
        if self.prefixes == "all":
            return
        if self.length < _PREFIX:
            raise InvalidArgument(
                f"prefixes={self.prefixes!r} needs length ≥ {_PREFIX}, the numbers of a prefix, got {self.length}."
            )
        if not (self._allowed.any() and self._allowed_rules.any()):
            raise InvalidArgument(
                f"no rule has a prefix in the chosen buckets: modulus {self.modulus} is too small for "
                f"{self.prefix_buckets} buckets with prefixes={self.prefixes!r}. Use fewer buckets."
            )

    def _check_allowed(self, numbers: _Numbers) -> None:
        if self.prefixes != "all":
            first, second, third = numbers[:, :_PREFIX].unbind(dim=1)
            is_foreign = ~self._allowed.to(numbers.device)[first, second, third]
            if bool(is_foreign.any()):
                row = int(is_foreign.nonzero()[0])
                raise InvalidArgument(
                    f"sequence {row} starts with {numbers[row, :_PREFIX].tolist()}, which prefixes={self.prefixes!r} "
                    f"excludes. Use prefixes='all' for sequences of any prefix."
                )

    @property
    def _allowed(self) -> Bool[Tensor, "first second third"]:
        """Whether each prefix is in the chosen buckets."""
        if self.prefixes == "all":
            return torch.ones((self.modulus,) * _PREFIX, dtype=torch.bool)
        is_held_out = _buckets(self.modulus, self.prefix_buckets) == self.held_out
        return is_held_out if self.prefixes == "held_out" else ~is_held_out

    @property
    def _allowed_rules(self) -> Bool[Tensor, "first rule"]:
        """Whether each rule has an allowed prefix from each start."""
        first = torch.arange(self.modulus)[:, None]
        after = self._successors(first)[:, 0]
        return self._allowed[first, after, after[after, torch.arange(self.modulus**2)]]

    def _starts(self, is_rule: Bool[Tensor, " batch"], generator: torch.Generator) -> Int64[Tensor, "batch 1"]:
        if self.prefixes == "all":
            return self._below((len(is_rule), 1), generator)
        rules, noise = (mask.flatten(1).sum(dim=1).double() for mask in (self._allowed_rules, self._allowed))
        weights = torch.where(is_rule[:, None], rules.to(is_rule.device), noise.to(is_rule.device))
        return torch.multinomial(weights, 1, generator=generator)

    def _below(self, shape: tuple[int, int], generator: torch.Generator) -> Int64[Tensor, "batch number"]:
        return torch.randint(self.modulus, shape, generator=generator, device=generator.device)

    def _numbers(
        self, is_rule: Bool[Tensor, " batch"], start: Int64[Tensor, "batch 1"], generator: torch.Generator
    ) -> _Numbers:
        n = len(start)
        if self.prefixes == "all":
            slope, offset = self._below((n, 2), generator).split(1, dim=1)
            noise = self._below((n, self.length), generator)
        else:
            rules, others = (mask.to(start.device).flatten(1) for mask in (self._allowed_rules, self._allowed))
            weights = torch.where(is_rule[:, None], rules[start[:, 0]], others[start[:, 0]]).double()
            chosen = torch.multinomial(weights, 1, generator=generator)  # a rule, or the next two numbers of the noise
            slope, offset = chosen // self.modulus, chosen % self.modulus
            noise = torch.cat([slope, offset, self._below((n, self.length - 2), generator)], dim=1)
        numbers = [start]
        for step in range(self.length):
            follows = (slope * numbers[-1] + offset) % self.modulus
            numbers.append(torch.where(is_rule[:, None], follows, noise[:, step : step + 1]))
        return torch.cat(numbers, dim=1)

    def _read(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> tuple[Int64[Tensor, "batch number"] | None, Int64[Tensor, "batch place"]]:
        """Return header and numbers of sequences."""
        if not self.opaque:
            return None, tokens
        order = tokens[:, 1 : 1 + self.modulus]
        return order, order.argsort(dim=1).gather(1, tokens[:, self.n_header :] - self.modulus)

    def _as_symbols(
        self, values: Float64[Tensor, "batch place answer"], order: Int64[Tensor, "batch answer"]
    ) -> Float64[Tensor, "batch place answer"]:
        """Return a distribution over numbers as one over the symbols that stand for them."""
        return torch.empty_like(values).scatter_(2, order[:, None, :].expand_as(values), values)

    def _successors(self, numbers: Int64[Tensor, "batch place"]) -> Int64[Tensor, "batch place rule"]:
        """Return the successor of each number under every rule."""
        number = torch.arange(self.modulus, device=numbers.device)
        rule = torch.arange(self.modulus**2, device=numbers.device)
        return ((rule // self.modulus * number[:, None] + rule) % self.modulus)[numbers]

    def _belief(self, numbers: Int64[Tensor, "batch place"]) -> Float64[Tensor, "batch place hypothesis"]:
        """Return the belief. Likelihoods are relative to that of a fitting rule, 1/p, against the noise's 1/p^k."""
        fits = torch.ones(*numbers.shape, self.modulus**2, dtype=torch.bool, device=numbers.device)
        rules = self._allowed_rules.to(numbers.device)
        fits[:, 0] = rules[numbers[:, 0]]
        fits[:, 1:] = self._successors(numbers[:, :-1]) == numbers[:, 1:, None]
        for earlier, later in itertools.pairwise(fits.unbind(dim=1)):  # several times as fast as cummin
            later &= earlier
        n_steps = torch.arange(numbers.shape[1], device=numbers.device, dtype=torch.float64)
        noise = (1 - self.rule_share) * float(self.modulus) ** -n_steps * self._allowed_share(numbers)
        each = self.rule_share / self.modulus**2 / float(rules.double().mean())
        # In long sequences the probability of noise underflows to 0, which is correct while a rule fits.
        noise = torch.where(fits.any(dim=2), noise, 1.0)
        joint = torch.cat([noise[:, :, None], fits.double() * each], dim=2)
        return joint / joint.sum(dim=2, keepdim=True)

    def _allowed_share(self, numbers: Int64[Tensor, "batch place"]) -> Float64[Tensor, "batch place"]:
        """Return the share of allowed prefixes among those that begin with these numbers, over that among all."""
        allowed = self._allowed.to(numbers.device).double()
        shares = torch.ones(numbers.shape, dtype=torch.float64, device=numbers.device)
        shares[:, 0] = allowed.mean(dim=(1, 2))[numbers[:, 0]]
        shares[:, 1:2] = allowed.mean(dim=2)[numbers[:, :1], numbers[:, 1:2]]
        return shares / allowed.mean()

    def _next_number(
        self, numbers: Int64[Tensor, "batch place"], belief: Float64[Tensor, "batch place hypothesis"]
    ) -> Float64[Tensor, "batch place answer"]:
        """Return the exact predictive over numbers."""
        allowed = self._allowed.to(numbers.device).double()
        noise = torch.ones(*numbers.shape, self.modulus, dtype=torch.float64, device=numbers.device)
        noise[:, 0] = allowed.sum(dim=2)[numbers[:, 0]]
        noise[:, 1:2] = allowed[numbers[:, :1], numbers[:, 1:2]]
        return self._mixed(numbers, belief, noise / noise.sum(dim=2, keepdim=True))

    def _mixed(
        self,
        numbers: Int64[Tensor, "batch place"],
        belief: Float64[Tensor, "batch place hypothesis"],
        noise: Float64[Tensor, "#batch #place answer"],
    ) -> Float64[Tensor, "batch place answer"]:
        """Return the next number under the rules and under noise, weighted by the belief."""
        return (belief[:, :, :1] * noise).scatter_add(2, self._successors(numbers), belief[:, :, 1:])


@functools.lru_cache(maxsize=8)
def _buckets(modulus: int, n: int) -> Int64[Tensor, "first second third"]:
    """Return the bucket of each prefix: the finalizer of MurmurHash3 of its index, modulo the number of buckets."""
    hashes = np.arange(modulus**_PREFIX, dtype=np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)  # modulo 2^32
    hashes ^= hashes >> np.uint32(16)
    return torch.from_numpy((hashes % np.uint32(n)).astype(np.int64)).reshape((modulus,) * _PREFIX)


def _relations(
    tokens: Int64[Tensor, "batch pos"], *, header: int, scored: slice
) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
    """Mark earlier occurrences of this number, their successors, and the current, previous and earlier numbers.

    In the opaque form, also mark the place of the current number in the header.
    """
    back, is_number = steps_back(tokens), torch.arange(tokens.shape[1], device=tokens.device) >= header
    same = (tokens[:, :, None] == tokens[:, None, :]) & (back > 0)
    relations = {
        "after_same_number": torch.nn.functional.pad(same[:, :, :-1], (1, 0)),
        "same_number": same,
        "current_number": back == 0,
        "previous_number": (back == 1) & is_number,
        "earlier_number": (back > 1) & is_number,
    }
    if header:
        symbol = tokens - (header - 2)  # ids of numbers follow those of the header
        relations["place_in_header"] = (symbol[:, :, None] == tokens[:, None, :]) & ~is_number
    return {name: relation[:, header:][:, scored] for name, relation in relations.items()}
