"""Shipping what a directory holds, and what comes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kdiff.agent.segment_files import Listing, SegmentFile
from kdiff.agent.shipping import Shipper


@dataclass
class Follower:
    """Rounds of shipping. A segment that was confirmed or left in one is not sent in the next."""

    listing: Listing
    shipper: Shipper
    known: Callable[[SegmentFile], bool] = lambda _: False
    waiting: int = 0
    """Segments that are not known to be in the store, those that were left among them."""
    waiting_bytes: int = 0

    def look(self) -> list[SegmentFile]:
        """What there is to send, in order. Raises StoreError."""
        files = self.listing.read()
        tally = self.shipper.tally
        there = {file.key for file in files}
        tally.confirmed &= there
        tally.outlived &= there
        for key in tally.left.keys() - there:
            del tally.left[key]
        found = [file for file in files if file.key not in tally.confirmed and not self.known(file)]
        self.waiting, self.waiting_bytes = len(found), sum(file.size for file in found)
        return [file for file in found if file.key not in tally.left]

    def round(self) -> bool:
        """Sends what is there; whether there was anything. Raises StoreError where nothing can be sent, EndedError."""
        files = self.look()
        try:
            self.shipper.ship(files)
        finally:
            self.look()
        return bool(files)
