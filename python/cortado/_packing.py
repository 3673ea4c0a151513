"""Converts a batch to packed sequences: removes padding, and keeps documents within a row apart."""

from __future__ import annotations

import dataclasses
import typing

import torch


@dataclasses.dataclass
class Packing:
    """The tokens of a batch [B, T] that are read, as packed documents. Every row has at least one document."""

    kept: torch.Tensor  # bool [B, T]
    starts: torch.Tensor  # bool [kept]: whether a document begins at this kept token; rows in their order
    bounds: torch.Tensor  # int64 [N+1]: bounds of documents among the kept tokens; a row of padding has an empty document
    last: torch.Tensor  # int64 [B]: index of each row's last document

    @property
    def one_a_row(self) -> bool:
        return self.bounds.shape[0] - 1 == self.kept.shape[0]

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [1, kept]"""
        return x[self.kept][None]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """[1, kept, D] -> [B, T, D]. Padding gets the values of the token before it, so the last column always has those of
        each row's last token."""
        lengths = self.kept.sum(1)
        before = lengths.cumsum(0) - lengths
        nearest = before[:, None] + self.kept.cumsum(1).sub(1).clamp(min=0)
        return packed[0, nearest.clamp(max=packed.shape[1] - 1)]

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns for every token the label of the next token of its document, or -100 if there is none: [B, T]."""
        following = labels[self.kept].roll(-1)
        following = following.masked_fill(self.starts.roll(-1), -100)
        return torch.full_like(labels, -100).masked_scatter(self.kept, following)


def mask_of(tokens: torch.Tensor, attention_mask: torch.Tensor | None, before: int) -> torch.Tensor | None:
    """Returns which of the tokens [B, T] are not padding; None: all. `before`: number of tokens read before these."""
    if attention_mask is None:
        return None
    rows, length = tokens.shape
    if attention_mask.dim() != 2 or attention_mask.shape[0] != rows or attention_mask.shape[1] not in (length, before + length):
        raise ValueError(f"[model] expected an attention_mask of shape [{rows}, {before + length}], 0 for padding, got "
                         f"{list(attention_mask.shape)}: other masks are not known to cortado models")  # fmt: skip
    if attention_mask.dtype != torch.bool and bool(((attention_mask != 0) & (attention_mask != 1)).any()):
        raise ValueError("[model] an attention_mask is 1 for tokens and 0 for padding, and has no other numbers")
    mask = attention_mask[:, -length:].bool()
    return None if bool(mask.all()) else mask


def _of_row(x: torch.Tensor, tokens: torch.Tensor, name: str) -> torch.Tensor:
    """Expands [T], [1, T] or [B, T] to [B, T]."""
    if x.dim() not in (1, 2) or x.shape[-1] != tokens.shape[1] or (x.dim() == 2 and x.shape[0] not in (1, tokens.shape[0])):
        raise ValueError(f"[model] expected {name} of shape {list(tokens.shape)}, got {list(x.shape)}")
    return x.expand(tokens.shape)


def _by_positions(positions: torch.Tensor, kept: torch.Tensor, first: torch.Tensor, before: torch.Tensor | None,
                  cached: int) -> torch.Tensor:  # fmt: skip
    """Returns where documents begin: where positions do not increase by one, but start at 0. `before` [B]: tokens that each
    row's state has read, if known."""
    found = positions[kept]
    starts = first | (found != found.roll(1) + 1)
    wrong = starts & ~first & (found != 0)
    if before is not None:
        wrong |= first & (found != before[:, None].expand_as(kept)[kept])
    else:  # the amount of padding before them is unknown
        wrong |= first & ((found < 1) | (found > cached))
    if bool(wrong.any()):
        at = int(found[wrong][0])
        raise ValueError(f"[model] position_ids: {at} stands where a document begins or a text goes on; cortado models count every "
                         "document from 0, and what follows a cache from there")  # fmt: skip
    return starts


def _by_bounds(bounds: torch.Tensor, kept: torch.Tensor, first: torch.Tensor, name: str) -> torch.Tensor:
    """Returns where documents begin, from bounds [N+1] among all tokens of all rows, padding included."""
    whole = kept.numel()
    good = bounds.dim() == 1 and bounds.numel() > 1 and int(bounds[0]) == 0 and int(bounds[-1]) == whole
    if not good or bool((bounds.diff() < 0).any()):
        raise ValueError(f"[model] expected {name} to go from 0 to {whole}, the number of tokens, got {bounds.tolist()[:8]}")
    document = torch.searchsorted(bounds.long(), torch.arange(whole, device=bounds.device), right=True).view(kept.shape)[kept]
    return first | (document != document.roll(1))


def packing_of(tokens: torch.Tensor, attention_mask: torch.Tensor | None = None, cached: int = 0, *,
               position_ids: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
               cu_seq_lens_q: torch.Tensor | None = None, cu_seq_lens_k: torch.Tensor | None = None) -> Packing | None:  # fmt: skip
    """Accepts each way in which transformers and TRL mark documents. Returns None if every row is one document without
    padding."""
    said = (position_ids, seq_idx, cu_seq_lens_q, cu_seq_lens_k)
    if attention_mask is None and all(it is None for it in said):
        return None
    return _packing_of(tokens, attention_mask, cached, *said)


@torch.compiler.disable(reason="where padding and documents are is looked at: without a mask the graph is whole")
def _packing_of(tokens: torch.Tensor, attention_mask: torch.Tensor | None, cached: int, position_ids: torch.Tensor | None,
                seq_idx: torch.Tensor | None, cu_seq_lens_q: torch.Tensor | None,
                cu_seq_lens_k: torch.Tensor | None) -> Packing | None:  # fmt: skip
    mask = mask_of(tokens, attention_mask, cached)
    if mask is None and all(it is None for it in (position_ids, seq_idx, cu_seq_lens_q, cu_seq_lens_k)):
        return None
    kept = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    first = (kept & (kept.cumsum(1) == 1))[kept]  # the first kept token of every row
    found = {}
    if position_ids is not None:
        known = attention_mask is not None and attention_mask.shape[1] == cached + tokens.shape[1]
        before = attention_mask[:, :cached].sum(1) if known and attention_mask is not None else None
        if cached == 0:
            before = first.new_zeros(tokens.shape[0], dtype=torch.int64)
        found["position_ids"] = _by_positions(_of_row(position_ids, tokens, "position_ids"), kept, first, before, cached)
    if seq_idx is not None:
        numbers = _of_row(seq_idx, tokens, "seq_idx")[kept]
        found["seq_idx"] = first | (numbers != numbers.roll(1))
    for name, bounds in (("cu_seq_lens_q", cu_seq_lens_q), ("cu_seq_lens_k", cu_seq_lens_k)):
        if bounds is not None:
            found[name] = _by_bounds(bounds, kept, first, name)
    starts = first
    for number, (name, own) in enumerate(found.items()):
        if number and not torch.equal(own, starts):
            raise ValueError(f"[model] {next(iter(found))} and {name} let documents begin at different tokens")
        starts = own
    if mask is None and torch.equal(starts, first):
        return None
    return _packed(kept, starts)


def _packed(kept: torch.Tensor, starts: torch.Tensor) -> Packing:
    lengths = kept.sum(1)
    before = lengths.cumsum(0) - lengths
    places = starts.nonzero().flatten()
    ends = lengths.sum()[None]
    # A row that is all padding has an empty document, before the document of the next row.
    bounds = torch.cat([places, before[lengths == 0], ends]).sort().values
    documents = torch.zeros_like(kept, dtype=torch.int64).masked_scatter(kept, starts.long()).sum(1).clamp(min=1)
    return Packing(kept, starts, bounds, documents.cumsum(0) - 1)
