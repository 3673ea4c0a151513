#include "cortado/primitives/common.h"
#include "cortado/primitives/recomputed.h"
#include "cortado/primitives/window_attention/inputs.h"

namespace cortado::window {
namespace {

constexpr int64_t kBlock = 128;       // queries per block
constexpr int64_t kSharedSpan = 256;  // span of keys up to which packed sequences share a block

// A block: queries first .. first + count - 1, and the span of keys that they see.
struct Block {
  int64_t first, count, key, keys, sequence;
};

// Cuts the queries into blocks. Long sequences do not share a block; no sequences do if the extra set has a row per
// sequence.
std::vector<Block> blocks_of(const AttentionInputs& in) {
  const auto& [begin, end, sequence] = in.visible;
  std::vector<Block> blocks;
  const int64_t tokens = static_cast<int64_t>(begin.size());
  for (int64_t first = 0; first < tokens;) {
    Block block{first, 0, in.k.size(1), 0, sequence[first]};
    int64_t last = 0, t = first;
    for (; t < std::min(tokens, first + kBlock); ++t) {
      const bool sees = begin[t] < end[t];
      const int64_t key = sees ? std::min(block.key, begin[t]) : block.key,
                    after = sees ? std::max(last, end[t]) : last;
      const bool apart = (in.packed && in.extra_k) || after - key > kSharedSpan;
      if (sequence[t] != block.sequence && apart) break;
      block.key = key;
      last = after;
    }
    block.count = t - first;
    block.keys = std::max<int64_t>(last - block.key, 0);
    if (block.keys == 0) block.key = 0;
    blocks.push_back(block);
    first = t;
  }
  return blocks;
}

// Which of the block's keys and of the extra set its queries see: bool [B|1,H|1,queries,keys]; undefined: all.
struct Seen {
  Tensor keys, extra;
};

Seen seen_by(const AttentionInputs& in, const Block& block, int64_t heads) {
  const auto numbers = at::TensorOptions(at::kLong);
  const auto column = [&](const std::vector<int64_t>& list) {
    const std::vector<int64_t> part(list.begin() + block.first, list.begin() + block.first + block.count);
    return at::tensor(part, numbers).to(in.q.device()).unsqueeze(1);
  };
  const Tensor j = at::arange(block.key, block.key + block.keys, numbers.device(in.q.device()));
  Seen seen;
  seen.keys = (j >= column(in.visible.begin)).logical_and(j < column(in.visible.end)).unsqueeze(0).unsqueeze(0);
  if (in.first_key) seen.keys = seen.keys.logical_and(j >= in.first_key->view({-1, 1, 1, 1}));
  if (!in.extra_mask) return seen;
  const Tensor mask = in.packed ? in.extra_mask->narrow(0, block.sequence, 1) : *in.extra_mask;
  const Tensor by_head = mask.dim() == 2 ? mask.unsqueeze(1) : expand_heads(mask, heads, 1);
  seen.extra = by_head.unsqueeze(2);
  return seen;
}

// Returns scores against keys, -inf for keys that are not seen.
Tensor scores_of(const AttentionInputs& in, const Tensor& q, const Tensor& k, const Tensor& seen) {
  Tensor scores = at::matmul(q, k.transpose(2, 3)) * in.scale;
  if (in.softcap) scores = at::tanh(scores / *in.softcap) * *in.softcap;
  return seen.defined() ? scores.masked_fill(seen.logical_not(), -kInfinity) : scores;
}

// q, k, v and an extra set's k and v (or undefined), [B,H,*,*] -> o [B,H,T,V], lse, row_max and denominator [B,H,T].
Tensors attend(const AttentionInputs& in, const Tensors& given, const Seen& seen) {
  const Tensor &q = given[0], &extra_k = given[3];
  Tensor scores = scores_of(in, q, given[1], seen.keys), values = given[2];
  if (extra_k.defined()) {
    scores = at::cat({scores, scores_of(in, q, extra_k, seen.extra)}, 3);
    values = at::cat({values, given[4]}, 2);
  }
  if (scores.size(3) == 0) {
    const Tensor none = at::full(scores.sizes().slice(0, 3), -kInfinity, scores.options());
    return {at::matmul(scores, values), none, none, at::ones_like(none)};
  }
  const Tensor row_max = std::get<0>(scores.max(3));
  const Tensor nothing = row_max == -kInfinity, shift = row_max.detach().masked_fill(nothing, 0);
  const Tensor weights = (scores - shift.unsqueeze(3)).exp();
  const Tensor sum = weights.sum(3), denominator = sum.masked_fill(nothing, 1);
  const Tensor o = at::matmul(weights, values) / denominator.unsqueeze(3);
  return {o, (shift + denominator.log()).masked_fill(nothing, -kInfinity), row_max, denominator};
}

// The attention as a function of q, k, v and the extra set's k and v.
Computation attention_of(const AttentionInputs& in) {
  return [&in](const Tensors& given) -> Tensors {
    const int64_t heads = std::max({in.q.size(2), in.k.size(2), in.v.size(2)});
    const auto type = accumulation_type({in.q, in.k, in.v, in.extra_k, in.extra_v});
    Tensors all;  // [B|N,H,T,*]
    for (const Tensor& x : given) {
      all.push_back(x.defined() ? expand_heads(x.to(type), heads).transpose(1, 2) : x);
    }
    std::vector<Tensors> made(4);
    for (const Block& block : blocks_of(in)) {
      Tensors part = {all[0].narrow(2, block.first, block.count), all[1].narrow(2, block.key, block.keys),
                      all[2].narrow(2, block.key, block.keys), all[3], all[4]};
      for (size_t i = 3; i < 5 && in.packed; ++i) {
        if (part[i].defined()) part[i] = part[i].narrow(0, block.sequence, 1);
      }
      const Seen seen = seen_by(in, block, heads);
      const Tensors out = recomputed([&in, seen](const Tensors& some) { return attend(in, some, seen); }, part);
      for (size_t i = 0; i < made.size(); ++i) made[i].push_back(out[i].transpose(1, 2));
    }
    if (made[0].empty()) {  // no queries: only the shapes matter
      const Tensor o = at::matmul(at::matmul(all[0], all[1].transpose(2, 3)), all[2]).transpose(1, 2);
      return {o, o.sum(3), o.sum(3), o.sum(3)};
    }
    Tensors joined;
    for (const Tensors& parts : made) joined.push_back(at::cat(parts, 1));
    return joined;
  };
}

Tensors inputs_of(const AttentionInputs& in) {
  return {in.q, in.k, in.v, in.extra_k.value_or(Tensor()), in.extra_v.value_or(Tensor())};
}

}  // namespace

AttentionOutputs forward_by_aten(const AttentionInputs& in) {
  const at::NoGradGuard no_grad;
  const Tensors made = attention_of(in)(inputs_of(in));
  return {made[0].to(in.v.scalar_type()).contiguous(), made[1].contiguous(), made[2].contiguous(),
          made[3].contiguous()};
}

InputGradients backward_by_aten(const AttentionInputs& in, const Tensor& grad_o, const Tensor& grad_lse,
                                const Tensor& grad_row_max) {
  const Tensors found = gradients_of(attention_of(in), inputs_of(in), {grad_o, grad_lse, grad_row_max, {}});
  return {found[0], found[1], found[2], found[3], found[4]};
}

}  // namespace cortado::window
