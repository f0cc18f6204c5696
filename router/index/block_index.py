"""Which workers hold which KV blocks: from a block's key to the set of its holders.

A block's key stands for everything before it too, so the holders of a prompt's blocks only become fewer along the
prompt. That makes a lookup a search by halving: it reads a number of blocks that grows with the logarithm of the
prompt's length and with how many workers drop out on the way, whatever else is cached.

Sets of workers are bit masks. Keys are spread over many small dictionaries, so that whatever goes through all of them,
or has one grow, can be done a part at a time, which takes a few milliseconds at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

Holders = Callable[[int], int]  # key → mask, 0 for a block that nobody holds

_MOST_MASKS = 65536
_PART = 16384  # keys of a dictionary when there is no room left
SLICE = 4096  # keys that are taken in or out before others have their turn on the event loop


class BlockIndex:
    """Holders of blocks, bounded: when there are too many, only a share of all keys is kept, the same for all workers.

    With a share of 1 in n, the depth of a match is known to within n blocks on average. Keys that are kept no longer
    are never asked for, and go part by part, as there is need for room.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        count = max_blocks // _PART | 1  # odd, so that multiples of a power of two are spread too
        self._parts: list[dict[int, int]] = [{} for _ in range(count)]
        self._num_blocks = 0
        self._thinned = count  # the parts before this one have no keys but those that are kept
        self._masks: dict[int, int] = {}  # equal masks are one object
        self._sampling = 1
        gets = [part.get for part in self._parts]
        self.holders: Holders = lambda key: gets[key % count](key, 0)

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def sampling(self) -> int:
        """A key is kept if it is a multiple of this power of two."""
        return self._sampling

    def store(self, bit: int, keys: Iterable[int]) -> None:
        """The worker holds these blocks."""
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
        """The workers hold these blocks no longer."""
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
        """Takes workers out of all blocks, a slice at each step."""
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
        """Keeps twice the share of all keys from now on."""
        self._sampling //= 2
        self._thinned = len(self._parts)

    def _thin_out(self) -> None:
        """Makes room in one part, by a smaller share once all parts have none but keys that are kept."""
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
    first = holders(keys[0]) & candidates if count else 0
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
        between = holders(keys[middle]) & held
        stretches.append((middle, stop, between, still & between))
        stretches.append((start, middle, held, between))
    return found
