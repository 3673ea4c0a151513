// Describes the tokens of one call, for every layer.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado {

class Relay;          // models/relay.h
class SequenceParts;  // parallel/sequence_parts.h

// The tokens of a call: dense [B, T, D], or packed sequences (B = 1) one after the other, bounded by cu_seqlens. There
// are never pad tokens: the model removes padding on entry (pack_padded).
struct Batch {
  OptionalTensor cu_seqlens;  // int64 [N+1], first 0, last T; none = dense
  bool training = false;      // enables dropout
  // For sequences that are split over several processes: the relay that passes states between them, the number of
  // tokens before this process's part, and the length of the shortest part.
  const Relay* relay = nullptr;
  int64_t before = 0;
  int64_t shortest = 0;
  // Likewise, for a mixer whose states compose (Mixer::joining): gives access to what other processes know.
  const SequenceParts* parts = nullptr;
  // For layers that mix their values with those of the first such layer of the same pass (Mixer::shares_values): that
  // layer writes its values here, [B, T, D], and the later ones read them. The model has one such tensor per pass. Null:
  // the mixer runs alone.
  Tensor* first_values = nullptr;

  // Rows of a state for a call on x: N for packed sequences, else B.
  int64_t rows(const Tensor& x) const { return cu_seqlens ? cu_seqlens->size(0) - 1 : x.size(0); }

  // Returns the position of every token, int64 [B, T], counted from `start` (int64 [rows], tokens seen before; none =
  // 0).
  Tensor positions(const Tensor& x, const OptionalTensor& start = {}) const;

  // Returns the `count` tokens that precede x [B,T,D]: `start` [rows,count,D], or the last ones of the process before.
  OptionalTensor tail_before(const Tensor& x, const OptionalTensor& start) const;

  // Returns the number of tokens that this call adds to each row, int64 [rows].
  Tensor lengths(const Tensor& x) const;
};

// A padded batch with its padding removed: tokens [1, lengths.sum()], and the Batch that describes them.
struct Packed {
  Tensor tokens;
  Batch batch;
};

// Packs tokens [B, T] (or numbers [B, T, C]). Row b has its tokens in its first lengths[b] places (0 <= lengths[b] <=
// T; int64 [B]), the padding after them. After a packed prefill every sequence, even an empty one, has its own row of
// the state, so decoding continues as a dense batch [B, 1]. InputError: lengths out of range.
Packed pack_padded(const Tensor& tokens, const Tensor& lengths);

// Returns the entries of each sequence's last token, [N, ...], from packed [1, T, ...]. InputError: an empty sequence.
Tensor last_of_each(const Tensor& packed, const Batch& batch);

}  // namespace cortado
