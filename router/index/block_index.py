"""Maps each KV block's key to the set of workers that hold the block.

A block's key covers everything before it too, so along a prompt the set of holders can only shrink. A lookup is thus a
binary search: it reads a number of blocks that grows with the logarithm of the prompt's length and with the number of
workers that drop out on the way, regardless of what else is cached.

Sets of workers are bit masks. Keys are spread over many small dictionaries, so that scanning all of them, or growing
one, can be done a part at a time, which takes a few milliseconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

Holders = Callable[[int], int]  # key → mask; 0 for a block that no worker holds

_MOST_MASKS = 65536
_PART = 8192  # keys in each dictionary when the index is full
SLICE = 2048  # keys added or removed before other tasks get a turn on the event loop


class BlockIndex:
    """The holders of blocks, bounded: when there are too many blocks, only a share of all keys is kept, the same for
    all workers.

    With a share of 1 in n, the depth of a match is known to within n blocks on average. Keys outside of the share are
    never looked up, and are removed part by part, as room is needed.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        count = max_blocks // _PART | 1  # odd, so that multiples of a power of two are spread too
        self._parts: list[dict[int, int]] = [{} for _ in range(count)]
        self._num_blocks = 0
        self._thinned = count  # parts before this one hold only keys of the current share
        self._masks: dict[int, int] = {}  # interns masks, so that equal ones share an object
        self._sampling = 1
        gets = [part.get for part in self._parts]
        self.holders: Holders = lambda key: gets[key % count](key, 0)

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def sampling(self) -> int:
        """A power of two; only keys that are multiples of it are kept."""
        return self._sampling

    def store(self, bit: int, keys: Iterable[int]) -> None:
        """Records that the worker with this bit holds these blocks."""
        parts, masks, skipped = self._parts, self._masks, self._sampling - 1
        count, new = len(parts), 0
        for key in keys:
            if key & skipped:
                continue
            holders = parts[key % count]
            before = holders.get(key)
            if before is None:
                holders[key] = bit
                new += 1
            elif not before & bit:
                both = before | bit
                holders[key] = masks.setdefault(both, both)
        self._num_blocks += new
        if len(masks) > _MOST_MASKS:
            masks.clear()
        while self._num_blocks > self._max_blocks:
            self._thin_out()

    def remove(self, bits: int, keys: Iterable[int]) -> None:
        """Records that the workers with these bits no longer hold these blocks."""
        parts, masks, kept = self._parts, self._masks, ~bits
        count, gone = len(parts), 0
        for key in keys:
            holders = parts[key % count]
            before = holders.get(key, 0)
            rest = before & kept
            if rest == before:
                continue
            if rest:
                holders[key] = masks.setdefault(rest, rest)
            else:
                del holders[key]
                gone += 1
        self._num_blocks -= gone

    def clean(self, dropped: int) -> Iterator[None]:
        """Removes workers from all blocks, a slice at each iteration."""
        looked_at = 0
        for holders in self._parts:
            looked_at += len(holders)
            held = [key for key, mask in holders.items() if mask & dropped]
            for start in range(0, len(held) or 1, SLICE):
                self.remove(dropped, held[start : start + SLICE])
                if held or looked_at >= SLICE:
                    looked_at = 0
                    yield

    def refine(self) -> None:
        """Doubles the share of keys that is kept from now on."""
        self._sampling //= 2
        self._thinned = len(self._parts)

    def _thin_out(self) -> None:
        """Makes room in one part; once all parts hold only keys of the current share, halves the share first."""
        if self._thinned == len(self._parts):
            self._sampling *= 2
            self._thinned = 0
        holders, skipped = self._parts[self._thinned], self._sampling - 1
        for key in [key for key in holders if key & skipped]:
            del holders[key]
            self._num_blocks -= 1
        self._thinned += 1


def match(
    keys: Sequence[int], candidates: int, holders: Holders, sampling: int = 1, end: int | None = None
) -> list[tuple[int, int]]:
    """Finds how far each candidate's cache follows a prompt.

    Args:
        keys: keys of the prompt's blocks, in order.
        candidates: bit mask of the workers to look at.
        sampling: the index's sampling: only keys that are multiples of it are known.
        end: number of keys to look at; None means all.

    Returns:
        (number of leading blocks, mask of the workers that hold exactly as many), for those that hold any; fewest
        blocks first.
        fewest blocks first.
    """
    places: Sequence[int] = range(len(keys) if end is None else end)
    if sampling > 1:
        places = [place for place in places if not keys[place] & (sampling - 1)]
        keys = [keys[place] for place in places]
    count = len(places)
    found: list[tuple[int, int]] = []
    first = holders(keys[0]) & candidates if count else 0
    # Stretches of the prompt still to search: start, stop, holders at start, holders at stop.
    stretches = [(0, count, first, 0)]
    while stretches:
        start, stop, held, still = stretches.pop()
        if held == still:
            continue
        if stop - start == 1:
            found.append((places[start] + 1, held & ~still))
            continue
        middle = (start + stop) // 2
        between = holders(keys[middle]) & held
        stretches.append((middle, stop, between, still & between))
        stretches.append((start, middle, held, between))
    return found
