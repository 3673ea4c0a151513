// The decays inside a chunk: sums of gates between any two tokens, and what they multiply.
//
// Layout of this folder's inner routines: [n, B, H, C, *], n chunks of C tokens (C a power of two), all contiguous and
// of the accumulation type. Gates are [n, B|1, H, C, K] per channel or [n, B|1, H, C, 1] per head.
//
// Decays come in two kinds. Gated scans give logs: sums of them are exponentiated. Slot scans give the factors
// themselves, of any sign and size (0 too): the same tree multiplies them, and never divides.
#pragma once

#include "cortado/primitives/types.h"

namespace cortado::gated {

enum class DecayKind { kLogs, kFactors };

// Gradients with respect to sums of gates, or products of factors. enter, leave: [n,B,H,C,K|1]; through: [n,B,H,1,K|1].
struct GateFlow {
  Tensor enter, leave, through;
};

// The sums of gates over a binary tree of blocks.
//
// A pair (s, t), s < t, is parted at exactly one level: s in the first half of a block, t in the second. The sum of the
// gates between them is from_key(s) + to_query(t), both referred to the middle of the block. Every sum here is a sum of
// gates, so there is no difference to cancel, no positive exponent, and -inf needs no care. Of factors, every sum is a
// product.
struct GateTree {
  struct Level {
    int64_t half;     // tokens in half a block
    Tensor to_query;  // Σ of the gates after the middle up to t, t in the second halves: [n,B|1,H,blocks,half,K|1]
    Tensor from_key;  // Σ of the gates after s up to the middle, s in the first halves: the same shape; none for half =
                      // 1, being 0
    Tensor first, second;  // factors only: the products of all of each half, [n,B|1,H,blocks,1,K]
  };
  std::vector<Level> levels;  // half = 1, 2, 4, ..., C/2
  Tensor enter;               // Σ from the chunk's start up to t
  Tensor leave;               // Σ after s up to the chunk's end
  Tensor through;             // Σ of the whole chunk [n,B|1,H,1,K|1]
  bool before;                // reads come before writes: sums up to t leave out t's own gate

  GateTree(const Tensor& g, bool before, DecayKind kind = DecayKind::kLogs);
};

// Walks a tree from its root down, turning the gradients of its sums into the gradient of the gates.
class GateDescent {
 public:
  explicit GateDescent(GateFlow flow) : flow_(std::move(flow)) {}
  // Takes one level, the largest first, with the gradients of its to_query and from_key (shaped as those, with B; for
  // half = 1 there is no from_key).
  void descend(const GateTree::Level& level, const Tensor& to_query, const Tensor& from_key);
  // The gradient of g [n,B,H,C,K|1], when all levels are done.
  Tensor finish(const GateTree& tree) const;

 private:
  GateFlow flow_;
};

// What the pairs of tokens inside the chunks are to give. Undefined or false = not wanted.
struct PairWork {
  Tensor m;           // in: [N,C,C] with N = n·B·H, weights of the pairs (query, key); needed for dy, dx
  Tensor dy, dx;      // in, out: [n,B,H,C,K], added to
  bool scores;        // give scores
  bool gate = false;  // give dg; needs dy and dx, and uses up `flow`
  GateFlow flow = {};
  Tensor scores_out;  // out: [N,C,C], Σ_κ y_t x_s exp(gates between), 0 for s > t
  Tensor dg;          // out: [n,B,H,C,K|1]
  Tensor dbonus;      // out: [B,H,K], if there is a bonus and dy is wanted
};

// One form of decay, of all the chunks of a scan. g undefined: no decay. bonus [1,1,H,1,K] or undefined: reads come
// before writes, and a token sees itself through the bonus.
class Decay {
 public:
  Decay(const Tensor& g, const Tensor& bonus, int64_t chunk, const at::TensorOptions& options,
        DecayKind kind = DecayKind::kLogs);

  Tensor entering(const Tensor& y) const { return enter_.defined() ? y * enter_ : y; }
  Tensor leaving(const Tensor& x) const { return leave_.defined() ? x * leave_ : x; }
  // [n,B|1,H,K|1,1], undefined without gates
  const Tensor& through() const { return through_; }
  bool per_head() const { return pair_.defined(); }
  // Gradients are those of the factors, not of their logs.
  bool of_factors() const { return kind_ == DecayKind::kFactors; }

  // The derivatives of F = Σ_{s<=t} m[t,s] Σ_κ y_t exp(gates between) x_s with respect to m (the scores), y, x and the
  // gates. y may be undefined if only dy is wanted.
  void pairs(const Tensor& y, const Tensor& x, PairWork& work) const;

 private:
  void head_pairs(const Tensor& y, const Tensor& x, PairWork& work) const;
  void channel_pairs(const Tensor& y, const Tensor& x, PairWork& work) const;
  void diagonal(const Tensor& y, const Tensor& x, PairWork& work) const;

  std::optional<GateTree> tree_;  // its levels are exponentiated if gates are per channel
  DecayKind kind_;
  Tensor bonus_;
  Tensor pair_;  // per head or no gates: exp(gates between) [n|1,B|1,H|1,C,C], 0 above the diagonal
  Tensor enter_, leave_, through_;
};

}  // namespace cortado::gated
