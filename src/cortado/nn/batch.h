// What every layer needs to know about the tokens of one call.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

class Relay;          // models/relay.h
class SequenceParts;  // parallel/sequence_parts.h

// A call's tokens: dense [B, T, D], or packed (B = 1) sequences one after the other, bounded by cu_seqlens.
// There are never pad tokens: a padded batch is packed at the model's door (pack_padded).
struct Batch {
  OptionalTensor cu_seqlens;  // int64 [N+1], first 0, last T; none = dense
  bool training = false;      // dropout acts
  // Of sequences that lie over several processes: who brings states from one to another, the tokens that lie before this
  // part's, and how many the shortest part has.
  const Relay* relay = nullptr;
  int64_t before = 0;
  int64_t shortest = 0;
  // Of them, for a mixer whose states compose (Mixer::joining): where it has from what other processes know.
  const SequenceParts* parts = nullptr;

  // Rows that a state has for a call on x: N packed sequences, else B.
  int64_t rows(const Tensor& x) const { return cu_seqlens ? cu_seqlens->size(0) - 1 : x.size(0); }

  // Position of every token, int64 [B, T], counted from `start` (int64 [rows], tokens seen before; none = 0).
  Tensor positions(const Tensor& x, const OptionalTensor& start = {}) const;

  // What comes before x [B,T,D] of it, `count` tokens: `start` [rows,count,D], or of the process before its last ones.
  OptionalTensor tail_before(const Tensor& x, const OptionalTensor& start) const;

  // Tokens that this call adds to each row: int64 [rows].
  Tensor lengths(const Tensor& x) const;
};

// A padded batch without its padding: tokens [1, lengths.sum()], and the Batch that goes with them.
struct Packed {
  Tensor tokens;
  Batch batch;
};

// tokens [B, T] (or numbers [B, T, C]) with row b's tokens in its first lengths[b] places (0 <= lengths[b] <= T; int64 [B]), the padding
// behind them. A packed prefill gives every sequence its own row of the state, also the empty ones, so that decoding
// goes on as a dense batch [B, 1]. Lengths out of range are an InputError.
Packed pack_padded(const Tensor& tokens, const Tensor& lengths);

// packed [1, T, ...]: the entries of each sequence's last token, [N, ...]; an empty sequence is an InputError.
Tensor last_of_each(const Tensor& packed, const Batch& batch);

}  // namespace cortado
