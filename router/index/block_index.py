"""Which workers hold which KV blocks: one dictionary from a block's key to the set of its holders.

A block's key stands for everything before it too, so the holders of a prompt's blocks only become fewer along the
prompt. That makes a lookup a search by halving: it reads a number of blocks that grows with the logarithm of the
prompt's length and with how many workers drop out on the way, whatever else is cached.

Sets of workers are bit masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Holders = Callable[[int], int | None]  # key → mask

_MOST_MASKS = 65536
_SLICE = 16384


class BlockIndex:
    """Holders of blocks, bounded: when there are too many, only a share of all keys is kept, the same for all workers.

    With a share of 1 in n, the depth of a match is known to within n blocks on average.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[int, int] = {}
        self._masks: dict[int, int] = {}  # equal masks are one object
        self.sampling = 1  # a key is kept if it is a multiple of this power of two

    def __len__(self) -> int:
        return len(self._holders)

    def store(self, bit: int, keys: Iterable[int]) -> None:
        """The worker holds these blocks."""
        holders, masks, skipped = self._holders, self._masks, self.sampling - 1
        for key in keys:
            if key & skipped:
                continue
            before = holders.get(key)
            if before is None:
                holders[key] = bit
            elif not before & bit:
                both = before | bit
                holders[key] = masks.setdefault(both, both)
        if len(masks) > _MOST_MASKS:
            masks.clear()
        while len(holders) > self._max_blocks:
            self._thin_out()
            holders = self._holders

    def remove(self, bit: int, keys: Iterable[int]) -> None:
        """The worker holds these blocks no longer."""
        holders, masks = self._holders, self._masks
        for key in keys:
            before = holders.get(key, 0)
            if before == bit:
                del holders[key]
            elif before & bit:
                rest = before & ~bit
                holders[key] = masks.setdefault(rest, rest)

    @property
    def holders(self) -> Mapping[int, int]:
        """Key → mask, until something changes."""
        return self._holders

    def clean(self, dropped: int) -> Iterator[None]:
        """Takes workers out of all blocks, a slice at each step."""
        keys = list(self._holders)
        for start in range(0, len(keys), _SLICE):
            holders = self._holders
            for key in keys[start : start + _SLICE]:
                before = holders.get(key, 0)
                if before & dropped:
                    rest = before & ~dropped
                    if rest:
                        holders[key] = self._masks.setdefault(rest, rest)
                    else:
                        del holders[key]
            yield

    def _thin_out(self) -> None:
        self.sampling *= 2
        skipped = self.sampling - 1
        self._holders = {key: mask for key, mask in self._holders.items() if not key & skipped}


def match(
    keys: Sequence[int], candidates: int, holders: Holders, sampling: int = 1, end: int | None = None
) -> list[tuple[int, int]]:
    """How far the candidates' caches follow a prompt.

    Args:
        keys: of the prompt's blocks, in order.
        candidates: mask of workers.
        sampling: of the index: only keys that are multiples of it are known.
        end: so many keys are looked at; all when unset.

    Returns:
        (number of leading blocks, mask of the workers that hold so many and no more), for those that hold any; the
        fewest blocks first.
    """
    places: Sequence[int] = range(len(keys) if end is None else end)
    if sampling > 1:
        places = [place for place in places if not keys[place] & (sampling - 1)]
        keys = [keys[place] for place in places]
    count = len(places)
    found: list[tuple[int, int]] = []
    first = (holders(keys[0]) or 0) & candidates if count else 0
    # Stretches of the prompt: from a block on, up to another one, the holders of the first and of the second.
    stretches = [(0, count, first, 0)]
    while stretches:
        start, stop, held, still = stretches.pop()
        if held == still:
            continue
        if stop - start == 1:
            found.append((places[start] + 1, held & ~still))
            continue
        middle = (start + stop) // 2
        between = (holders(keys[middle]) or 0) & held
        stretches.append((middle, stop, between, still & between))
        stretches.append((start, middle, held, between))
    return found
