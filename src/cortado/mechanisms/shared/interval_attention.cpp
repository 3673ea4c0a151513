#include "cortado/mechanisms/shared/interval_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "cortado/mechanisms/shared/sequences.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct IntervalSizes {
  double scale, softcap;  // softcap 0: none
  int64_t chunk;
};

// The scores [B,H,Cq,Ck] of one chunk of queries and one of keys, -inf where hidden. q [B,H,Cq,K], k [B,H,Ck,K], begin
// and end [B|1,1,Cq,1].
struct ChunkPair {
  Tensor scores, tanh;  // tanh(score/softcap), for the derivative
};
ChunkPair score_pair(const Tensor& q, const Tensor& k, const Tensor& begin, const Tensor& end, int64_t first_key,
                     const IntervalSizes& sizes) {
  ChunkPair pair;
  pair.scores = at::matmul(q, k.transpose(2, 3)) * sizes.scale;
  if (sizes.softcap > 0) {
    pair.tanh = (pair.scores / sizes.softcap).tanh();
    pair.scores = pair.tanh * sizes.softcap;
  }
  const Tensor key = at::arange(first_key, first_key + k.size(2), begin.options());
  pair.scores = pair.scores.masked_fill((key < begin).logical_or(key >= end), -kInfinity);
  return pair;
}

// Calls visit(query, queries, key, keys, begin, end) for every pair of chunks in which some query sees some key.
// Queries are the outer loop.
template <typename Visit>
void for_each_pair(const Tensor& begin, const Tensor& end, int64_t tokens, int64_t keys, int64_t chunk, Visit visit) {
  for (int64_t query = 0; query < tokens; query += chunk) {
    const int64_t queries = std::min(chunk, tokens - query);
    const Tensor from = begin.narrow(1, query, queries), to = end.narrow(1, query, queries);
    const Tensor sees = from < to;
    if (!sees.any().item<bool>()) continue;
    const int64_t first = std::max<int64_t>(0, from.masked_select(sees).min().item<int64_t>());
    const int64_t last = std::min(keys, to.masked_select(sees).max().item<int64_t>());
    const Tensor from4 = from.unsqueeze(1).unsqueeze(3), to4 = to.unsqueeze(1).unsqueeze(3);
    for (int64_t key = first / chunk * chunk; key < last; key += chunk) {
      visit(query, queries, key, std::min(chunk, keys - key), from4, to4);
    }
  }
}

class IntervalAttention : public torch::autograd::Function<IntervalAttention> {
 public:
  // q, k, v [B,H,T,*], all of one type.
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& begin, const Tensor& end, const IntervalSizes& sizes) {
    const int64_t tokens = q.size(2);
    Tensor o = at::zeros({q.size(0), q.size(1), tokens, v.size(3)}, v.options());
    Tensor sum = at::zeros({q.size(0), q.size(1), tokens, 1}, v.options());
    Tensor maximum = at::full_like(sum, -kInfinity);
    for_each_pair(begin, end, tokens, k.size(2), sizes.chunk,
                  [&](int64_t query, int64_t queries, int64_t key, int64_t keys, const Tensor& from, const Tensor& to) {
                    const Tensor scores =
                        score_pair(q.narrow(2, query, queries), k.narrow(2, key, keys), from, to, key, sizes).scores;
                    Tensor m = maximum.narrow(2, query, queries), l = sum.narrow(2, query, queries);
                    Tensor mine = o.narrow(2, query, queries);
                    const Tensor now = at::maximum(m, scores.amax(3, /*keepdim=*/true));
                    const Tensor safe = now.masked_fill(now == -kInfinity, 0);
                    const Tensor p = (scores - safe).exp(), keep = (m - safe).exp();
                    l.mul_(keep).add_(p.sum(3, /*keepdim=*/true));
                    mine.mul_(keep).add_(at::matmul(p, v.narrow(2, key, keys)));
                    m.copy_(now);
                  });
    o.div_(sum.masked_fill(sum == 0, 1));
    const Tensor lse = maximum + sum.log();  // -inf for queries that see no key
    ctx->save_for_backward({q, k, v, begin, end, o, lse});
    ctx->saved_data["scale"] = sizes.scale;
    ctx->saved_data["softcap"] = sizes.softcap;
    ctx->saved_data["chunk"] = sizes.chunk;
    return {o, lse};
  }

  // With P = exp(s - lse): dv = Pᵀ do, ds = P (do vᵀ - do·o + dlse).
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &begin = saved[3], &end = saved[4], &o = saved[5];
    const Tensor lse = saved[6].masked_fill(saved[6] == -kInfinity, 0);
    const IntervalSizes sizes{ctx->saved_data["scale"].toDouble(), ctx->saved_data["softcap"].toDouble(),
                              ctx->saved_data["chunk"].toInt()};
    const Tensor& dout = gradients[0];
    const Tensor shift = gradients[1] - (dout * o).sum(3, /*keepdim=*/true);
    Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    for_each_pair(begin, end, q.size(2), k.size(2), sizes.chunk,
                  [&](int64_t query, int64_t queries, int64_t key, int64_t keys, const Tensor& from, const Tensor& to) {
                    const Tensor qc = q.narrow(2, query, queries), kc = k.narrow(2, key, keys);
                    const ChunkPair pair = score_pair(qc, kc, from, to, key, sizes);
                    const Tensor p = (pair.scores - lse.narrow(2, query, queries)).exp();
                    const Tensor up = dout.narrow(2, query, queries);
                    Tensor ds = at::matmul(up, v.narrow(2, key, keys).transpose(2, 3));
                    ds = p * (ds + shift.narrow(2, query, queries)) * sizes.scale;
                    if (sizes.softcap > 0) ds = ds * (1 - pair.tanh.square());
                    dv.narrow(2, key, keys).add_(at::matmul(p.transpose(2, 3), up));
                    dq.narrow(2, query, queries).add_(at::matmul(ds, kc));
                    dk.narrow(2, key, keys).add_(at::matmul(ds.transpose(2, 3), qc));
                  });
    return {dq, dk, dv, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

TensorTuple<2> interval_attention(const Tensor& q, const Tensor& k, const Tensor& v, const IntervalOptions& options) {
  const NoAutocast as_given;
  const auto type = accumulation_type({q, k, v});
  const int64_t heads = q.size(2);
  auto by_head = [&](const Tensor& x) { return expand_heads(x.to(type), heads).transpose(1, 2).contiguous(); };
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  const auto results = IntervalAttention::apply(by_head(q), by_head(k), by_head(v), options.begin, options.end,
                                                IntervalSizes{scale, options.softcap.value_or(0), options.chunk});
  return {results[0].transpose(1, 2).to(v.scalar_type()), results[1].squeeze(3).transpose(1, 2)};
}

KeyPlaces key_places(const Tensor& q, const JoinedKeys& keys, const OptionalTensor& cu_seqlens) {
  const Tensor count = at::arange(q.size(1), q.options().dtype(at::kLong));
  if (!cu_seqlens) {
    const int64_t total = keys.k.size(1);
    const Tensor own = (count + (total - q.size(1))).unsqueeze(0);
    return {keys.first_key ? keys.first_key->unsqueeze(1).expand({-1, q.size(1)}) : at::zeros_like(own), own,
            at::full_like(own, total)};
  }
  const Tensor bounds = cu_seqlens->to(at::kLong), bounds_k = keys.cu_seqlens_k->to(at::kLong);
  const Tensor sequence = sequence_numbers(bounds, q), end = bounds_k.index_select(0, sequence + 1);
  const Tensor own = end - bounds.index_select(0, sequence + 1) + count;
  return {bounds_k.index_select(0, sequence).unsqueeze(0), own.unsqueeze(0), end.unsqueeze(0)};
}

Tensor merge_attention(const TensorTuple<2>& a, const TensorTuple<2>& b) {
  const auto& [o_a, lse_a] = a;
  const auto& [o_b, lse_b] = b;
  const Tensor joint = at::stack({lse_a, lse_b}, -1), nothing = (joint == -kInfinity).all(-1, /*keepdim=*/true);
  const Tensor weights = at::softmax(joint.masked_fill(nothing, 0), -1);
  const Tensor o = weights.narrow(-1, 0, 1) * o_a + weights.narrow(-1, 1, 1) * o_b;
  return o.to(o_a.scalar_type());
}

}  // namespace cortado
