"""Restarted processes agree on a word that no earlier attempt used, in a store that still has the earlier words."""

import sys
import threading

import torch.distributed as dist


def test_words_of_earlier_attempts_do_no_harm(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "python"))
    ranks = sys.modules.get("cortado._ranks") or __import__("cortado._ranks", fromlist=["agree_on_attempt"])
    store, seen = dist.HashStore(), set()
    for attempt in range(5):
        found = {}
        threads = [threading.Thread(target=lambda rank=rank: found.update({rank: ranks.agree_on_attempt(store, rank, 4, 30)}))
                   for rank in range(4)]  # fmt: skip
        for thread in threads if attempt % 2 else reversed(threads):  # the first to come finds the old words
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found.values())) == 1 and len(found) == 4
        assert not seen & set(found.values())
        seen |= set(found.values())
