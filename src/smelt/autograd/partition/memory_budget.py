"""Plans that trade work for memory: what to save so that a training step fits, computed again at the least cost.

    choices(problem) → [default, …, least memory]      ever more work, ever less memory; the first that fits is taken

What the backward holds of the forward at one time is what was saved, and what it has computed again and not used up
yet. Where everything between two cuts of the forward is computed again, the second part is all of it: so the forward
is seen as a chain of blocks, parted where little crosses, and a plan chooses for each run of blocks

    one block      how much of it to save: by a minimum cut with some price on bytes (`mincut`), from the default's
                   nothing-heavy-again to random-numbers-only
    several        to save what crosses at the end, and compute all within again

at least work for a bound on what is held while the backward goes through any of them: what was saved up to there, what
is computed again, the backward's own values. Over these choices the plans are exact up to the rounding of bytes to a
128th of what the default saves: dynamic programming along the chain, once for each of some bounds. They are then
rehearsed (`rehearsal`), and those that take more work for no less memory go. The list depends on the graph alone, and
of it the first plan within the budget is taken: so work never falls and the peak never rises as the budget shrinks.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

from torch import fx

from smelt.autograd.joint.aliasing import view_root
from smelt.autograd.partition.costs import own_bytes, work_of
from smelt.autograd.partition.maxflow import INFINITE
from smelt.autograd.partition.mincut import PER_BYTE, Problem, gradients_of, why_not_again
from smelt.autograd.partition.simulate_peak import PeakSimulator
from smelt.base.fast_dataclass import dataclass
from smelt.ir.call_contract import Phase, RecomputePolicy, phase_of, wish_of
from smelt.meta.effects import why_not_share
from smelt.meta.memory_peak import Peak

BLOCKS = 32  # at most so many blocks
SHORT = 12  # values that the default saves
NEAR = 4  # a cut is compared with those so many shares away
STEPS = 128  # bytes are rounded up to this part of what the default saves
PRICES = (0.25, 1.0, 4.0, 16.0, 1e6)  # the work that a byte less is worth; at last, any
BOUNDS = 32  # so many bounds on what is held, evenly down from what the default holds
DOUBT = 0.01  # a plan must promise so much less to be worth more work


@dataclass(frozen=True, slots=True)
class Choice:
    """What to save, what computing the rest again takes, and the bytes that the step allocates for what is saved."""

    saved: tuple[fx.Node, ...]
    work: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fitting:
    """The plan taken for a budget: the bytes it allowed, the peak told of the plan and of the default, and which of the
    ways to run it that is the peak of."""

    choice: Choice
    allowed: int
    peak: Peak
    default: Peak
    way: int = 0

    def __str__(self) -> str:
        return (
            f"memory budget: {self.allowed} bytes at the peak of a step; expected {self.peak.step} of them, "
            f"{self.default.step} without a budget"
        )


def fit(plans: Sequence[Choice], budget: float, peaks_of: Callable[[Choice], Sequence[Peak]]) -> Fitting:
    """The first plan whose peak is within `budget`, or the one with the least peak if there is none.

    A plan has a peak for each way it can be run, the fastest first; other ways go before plans of more work. A budget
    that is an int is the peak itself. A float is a part of the default's saved bytes: the peak may be what it is by
    default, less the other part of them. No peak is below the bytes saved, which spares measuring some plans.
    """
    known: dict[Choice, Sequence[Peak]] = {}

    def peaks(choice: Choice) -> Sequence[Peak]:
        if choice not in known:
            known[choice] = peaks_of(choice)
        return known[choice]

    default = peaks(plans[0])[0]
    allowed = budget if isinstance(budget, int) else default.step - int((1 - budget) * plans[0].bytes)
    best = Fitting(plans[0], allowed, default, default)
    for choice in plans:
        for way, peak in enumerate(peaks(choice) if choice.bytes <= allowed else ()):
            if peak.step <= allowed:
                return Fitting(choice, allowed, peak, default, way)
    for choice in sorted(plans, key=lambda choice: choice.bytes):
        for way, peak in enumerate(peaks(choice) if choice.bytes < best.peak.step else ()):
            if peak.step < best.peak.step:
                best = Fitting(choice, allowed, peak, default, way)
    return best


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to treat the blocks from `first` up to `last`, not included.

    `entered` says that it relies on what crosses into the first block being saved, `left` that it saves what crosses
    out of the last.
    """

    first: int
    last: int
    entered: bool
    left: bool
    kept: frozenset[fx.Node]
    saved: int
    again: int  # bytes that are computed again
    base: int  # bytes that the backward's own values take at the same time
    work: int


class _Facts:
    """What is asked of every value over and over: its bytes, the work it takes, whether it can be had again at all."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.bytes = {node: own_bytes(node) for node in problem.early}
        heavy = {node for node in problem.early if why_not_again(node) is not None}
        self.never = frozenset(node for node in heavy if never_again(node))
        self.work = {node: work_of(node) if node in heavy else 0 for node in problem.early}
        self.savable = frozenset(node for node in problem.early if problem.price(node) < INFINITE)
        self.usual = frozenset(problem.fewest_bytes())
        self.total = self.size(self.usual)

    def size(self, nodes: Iterable[fx.Node]) -> int:
        return sum(self.bytes[node] for node in nodes)

    def reached(self, wanted: Collection[fx.Node]) -> tuple[set[fx.Node], set[fx.Node]]:
        """What of `wanted` is of use, with whatever cannot be computed again; and all that is computed again."""
        saved: set[fx.Node] = set()
        again: set[fx.Node] = set()
        pending = list(self.problem.read)
        while pending:
            node = pending.pop()
            if node in saved or node in again:
                continue
            drawn = self.size(used for used in node.all_input_nodes if used in self.never)
            if (node in wanted and node in self.savable) or node in self.never or 0 < self.bytes[node] <= drawn:
                saved.add(node)  # of random numbers, what was made of them first: it may be but a mask
            else:
                again.add(node)
                pending.extend(node.all_input_nodes)
        return saved, again

    def choice(self, wanted: Collection[fx.Node]) -> Choice:
        """The plan that saves what it can use of `wanted`."""
        saved, again = self.reached(wanted)
        ordered = tuple(node for node in self.problem.early if node in saved)
        return Choice(ordered, sum(self.work[node] for node in again), self.size(saved))


def never_again(node: fx.Node) -> bool:
    """Whether a heavy value cannot be had again, has an effect of its own, or was asked to be kept."""
    return node.op == "placeholder" or why_not_share(node) is not None or wish_of(node) is RecomputePolicy.SAVED


def choices(problem: Problem) -> list[Choice]:
    """Plans for a joint graph in the order of their work; the default comes first."""
    facts = _Facts(problem)
    usual = facts.choice(facts.usual)
    if facts.total == 0:
        return [usual]
    found = {usual.saved: usual}
    for cuts in (_shares, _single_values):
        for wanted in _plans(_Chain(facts, cuts)):
            choice = facts.choice(wanted)
            found.setdefault(choice.saved, choice)
    rehearsal = PeakSimulator(problem)
    peaks = {choice: rehearsal.peaks(set(choice.saved)) for choice in found.values()}
    ordered = sorted(found.values(), key=lambda choice: (choice.work, peaks[choice]))
    best = peaks[usual]
    kept = [usual]
    for choice in ordered:  # ever more work: worth it only for fewer bytes, in one way of counting them or the other
        if any(mine < least * (1 - DOUBT) for mine, least in zip(peaks[choice], best, strict=True)):
            kept.append(choice)
            best = (min(best[0], peaks[choice][0]), min(best[1], peaks[choice][1]))
    return kept


class _Chain:
    """The forward as a chain of blocks, with the options for each run of them."""

    def __init__(self, facts: _Facts, cuts: "Callable[[_Chain], list[int]]") -> None:
        self.facts = facts
        self.nodes = _forward_order(facts.problem)
        self.crossing = self._crossings()
        self.cuts = [0, *cuts(self), len(self.nodes)]  # block k is what lies from cuts[k] up to cuts[k + 1]
        self.base = self._base()

    def _crossings(self) -> list[frozenset[fx.Node]]:
        """By position: the values made before it that the forward needs from there on."""
        last: dict[fx.Node, int] = {}
        for index, node in enumerate(self.nodes):
            if phase_of(node) is not Phase.BACKWARD:
                for used in node.all_input_nodes:
                    root = view_root(used)
                    if self.facts.bytes[root]:
                        last[root] = index
        found: list[frozenset[fx.Node]] = []
        open_now: set[fx.Node] = set()
        for index, node in enumerate(self.nodes):
            open_now = {value for value in open_now if last[value] >= index}
            found.append(frozenset(open_now))
            if node in last:
                open_now.add(node)
        return [*found, frozenset()]

    def _base(self) -> list[int]:
        """By block: the most the backward's own values take while it goes through the block.

        Gradients that are handed out pile up towards the end, so there is room to compute much again before.
        """
        problem = self.facts.problem
        block_of = {
            node: block for block in range(self.blocks) for node in self.nodes[self.cuts[block] : self.cuts[block + 1]]
        }
        late = [node for node in problem.joint.traced.graph.nodes if node in problem.late]
        last = {view_root(used): step for step, node in enumerate(late) for used in node.all_input_nodes}
        last |= {view_root(node): len(late) for node in gradients_of(problem.joint)}
        most = [0] * self.blocks
        leaving: dict[int, int] = {}
        now, block = 0, self.blocks - 1
        for step, node in enumerate(late):
            read = [(block_of[used], used) for used in map(view_root, node.all_input_nodes) if used in block_of]
            block = min([block, *(place for place, used in read if own_bytes(used))])
            size = own_bytes(node) if node in last else 0
            now += size
            most[block] = max(most[block], now)
            leaving[last.get(node, step)] = leaving.get(last.get(node, step), 0) + size
            now -= leaving.pop(step, 0)
        return most

    @property
    def blocks(self) -> int:
        return len(self.cuts) - 1

    @cached_property
    def options(self) -> list[list[_Option]]:
        """Every way to treat every run of blocks, by the first of them."""
        by_price = self._kept_by_price()
        options: list[list[_Option]] = []
        for first in range(self.blocks):
            found = self._options(first, first + 1, self.facts.usual, entered=False)
            for kept in by_price:
                found += self._options(first, first + 1, kept, entered=True)
            for last in range(first + 2, self.blocks + 1):
                found += self._options(first, last, by_price[-1], entered=True)
            options.append(list(dict.fromkeys(found)))
        return options

    def _kept_by_price(self) -> list[frozenset[fx.Node]]:
        """What is saved inside the blocks at each price of a byte, given what crosses between them."""
        facts, problem = self.facts, self.facts.problem
        there = {*problem.living, *problem.free}.union(*(self.crossing[cut] for cut in self.cuts))

        def work(node: fx.Node) -> int:
            return INFINITE if node in facts.never else facts.work[node] * PER_BYTE

        found: list[frozenset[fx.Node]] = []
        for price in PRICES:

            def bytes_at(node: fx.Node, price: float = price) -> int:
                if node not in facts.savable:
                    return INFINITE
                return 1 if node in there else int(facts.bytes[node] * price * PER_BYTE) + 1

            found.append(frozenset(problem.cheapest(bytes_at, work)) - there)
        return found

    def _options(self, first: int, last: int, inside: frozenset[fx.Node], *, entered: bool) -> list[_Option]:
        """To keep `inside` of the blocks, and either what crosses out of them or not."""
        nodes = self.nodes[self.cuts[first] : self.cuts[last]]
        kept = frozenset(node for node in nodes if node in inside)
        ends = self.crossing[self.cuts[last]] - (self.crossing[self.cuts[first]] if entered else frozenset())
        found = []
        for left in (False, True) if ends else (False,):
            mine = kept | ends if left else kept
            rebuilt = self.facts.size(node for node in nodes if node in self.facts.usual and node not in mine)
            base = max(self.base[first:last])
            work = self._work(nodes, mine) if entered else 0
            found.append(_Option(first, last, entered, left, mine, self.facts.size(mine), rebuilt, base, work))
        return found

    def _work(self, nodes: Sequence[fx.Node], kept: Collection[fx.Node]) -> int:
        """What computing again takes within some blocks, all that crosses into them being there."""
        inside = set(nodes)
        again: set[fx.Node] = set()
        pending = [node for node in nodes if node in self.facts.usual]
        while pending:
            node = pending.pop()
            if node in inside and node not in kept and node not in again and node not in self.facts.never:
                again.add(node)
                pending.extend(node.all_input_nodes)
        return sum(self.facts.work[node] for node in again)


def _shares(chain: _Chain) -> list[int]:
    """Cuts: one for each share of the default's bytes, where the least crosses, if that is little."""
    facts = chain.facts
    share = max(1, facts.total // BLOCKS)
    best: dict[int, tuple[int, int, int]] = {}  # by share: bytes that cross, those the default does not save, where
    done = 0
    for index, node in enumerate(chain.nodes):
        crosses = chain.crossing[index]
        here = (facts.size(crosses), facts.size(crosses - facts.usual), index)
        if 0 < done < facts.total:
            best[done // share] = min(best.get(done // share, here), here)
        done += facts.bytes[node] if node in facts.usual else 0
    least = {place: min(best[near][0] for near in best if abs(near - place) <= NEAR) for place in best}
    return sorted(index for place, (crossing, _, index) in best.items() if crossing <= least[place] * 3 // 2)


def _single_values(chain: _Chain) -> list[int]:
    """Cuts for a short chain: after each value that the default saves."""
    facts = chain.facts
    saved = [index for index, node in enumerate(chain.nodes) if node in facts.usual and facts.bytes[node]]
    return [index + 1 for index in saved if index + 1 < len(chain.nodes)] if len(saved) <= SHORT else []


def _forward_order(problem: Problem) -> list[fx.Node]:
    """The early values in the order the forward makes them; what only the backward asked for, next to what it is of."""
    place: dict[fx.Node, int] = {}
    for index, node in enumerate(problem.early):
        inputs = [place[used] for used in node.all_input_nodes if used in place]
        place[node] = index if phase_of(node) is not Phase.BACKWARD else max(inputs, default=0)
    return sorted(problem.early, key=place.__getitem__)


@dataclass(frozen=True, slots=True)
class _Partial:
    """The best known treatment of all blocks up to some cut, at some number of saved bytes."""

    work: int
    saved: int
    option: _Option | None
    before: "_Partial | None"

    def kept(self) -> frozenset[fx.Node]:
        found: set[fx.Node] = set()
        partial: _Partial | None = self
        while partial is not None and partial.option is not None:
            found |= partial.option.kept
            partial = partial.before
        return frozenset(found)


def _plans(chain: _Chain) -> list[frozenset[fx.Node]]:
    """What to save in the plan of least work for each of some bounds on what is held, from the default's own down.

    What the backward's own values add to it is an estimate, so plans are made as if they did, and as if not.
    """
    found: list[frozenset[fx.Node]] = []
    for share in (1, 0):
        usual, high = 0, 0
        for block in range(chain.blocks):
            nodes = chain.nodes[chain.cuts[block] : chain.cuts[block + 1]]
            usual += chain.facts.size(node for node in nodes if node in chain.facts.usual)
            high = max(high, usual + chain.base[block] * share)
        for step in range(1, BOUNDS):
            partial = _least_work(chain, high * step // BOUNDS, share)
            if partial is not None:
                found.append(partial.kept())
    return found


def _least_work(chain: _Chain, bound: int, share: int) -> _Partial | None:
    """The least work for the whole chain of all that holds no more than `bound`, at whatever block the backward is.

    There it holds what was saved up to the block, what it computes again in it, and its own values.
    """
    grain = max(1, chain.facts.total // STEPS)
    # By cut: (whether what crosses it is saved, bytes saved so far) → the best so far.
    reached: list[dict[tuple[bool, int], _Partial]] = [{} for _ in range(chain.blocks + 1)]
    reached[0][True, 0] = _Partial(0, 0, None, None)
    for block in range(chain.blocks):
        for (crossing, _), partial in reached[block].items():
            for option in chain.options[block]:
                saved, work = partial.saved + option.saved, partial.work + option.work
                if saved + option.again + option.base * share > bound or (option.entered and not crossing):
                    continue
                place = (option.left, saved // grain)
                known = reached[option.last].get(place)
                if known is None or (work, saved) < (known.work, known.saved):
                    reached[option.last][place] = _Partial(work, saved, option, partial)
    return min(reached[-1].values(), key=lambda partial: (partial.work, partial.saved), default=None)
