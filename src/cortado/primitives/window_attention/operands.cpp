#include "cortado/primitives/window_attention/operands.h"

#include <ATen/Parallel.h>

#include "cortado/primitives/common.h"

namespace cortado {
namespace {

// Scores of a slice of one block: 2^17 float32 fill a quarter of a 2 MB L2 cache, and the backward keeps two such.
constexpr int64_t kCachedScores = 1 << 17;
constexpr int64_t kFewRows = 16;  // queries · repeat: decoding, where copying the keys would cost more than using them
constexpr int64_t kManyKeyValues = 1 << 14;  // keys · size of one batch row, from which it pays to leave them in place

// [B,T,h,*] -> [B·groups, T, *] of the accumulation type. A single batch row that needs no conversion stays a view.
Tensor to_keys(const Tensor& x, const BlockedSizes& sizes, bool copy) {
  const Tensor full = expand_heads(x, sizes.groups).to(sizes.type).transpose(1, 2);
  if (full.size(0) == 1 && !copy) return full.squeeze(0);
  return full.contiguous().flatten(0, 1);
}

Tensor to_extra(const Tensor& x, const BlockedInputs& inputs, const BlockedSizes& sizes) {
  const Tensor full = expand_heads(x, sizes.groups).to(sizes.type).transpose(1, 2);  // [B|S, groups, E, *]
  return inputs.packed ? full.contiguous() : full.flatten(0, 1).unsqueeze(0);
}

// [B|S,E] or [B|S,h,E], true = visible -> [S, N, 1, repeat | 1, E], true = hidden.
Tensor hidden_extra(const Tensor& mask, const BlockedInputs& inputs, const BlockedSizes& sizes) {
  const Tensor by_head = at::logical_not(mask.dim() == 2 ? mask.unsqueeze(1) : mask);
  const bool shared = sizes.groups % by_head.size(1) == 0;  // the query heads of a group see the same
  Tensor hidden = expand_heads(by_head, shared ? sizes.groups : sizes.heads(), 1);
  hidden = hidden.unflatten(1, {sizes.groups, shared ? 1 : sizes.repeat}).unsqueeze(2);  // [B|S, groups, 1, r, E]
  return inputs.packed ? hidden : hidden.flatten(0, 1).unsqueeze(0);
}

// The operands of batch rows [first, first + rows).
Operands operands_of(const BlockedInputs& inputs, BlockedSizes sizes, int64_t first, int64_t rows, bool copy) {
  sizes.batch = rows;
  const auto part = [&](const Tensor& x) { return inputs.packed ? x : x.narrow(0, first, rows); };
  Operands operands;
  operands.q = to_rows(expand_heads(inputs.q.narrow(0, first, rows), sizes.heads()), sizes);
  operands.q = operands.q * query_factor(inputs);
  operands.k = to_keys(inputs.k.narrow(0, first, rows), sizes, copy);
  operands.v = to_keys(inputs.v.narrow(0, first, rows), sizes, copy);
  if (sizes.extra > 0) {
    operands.extra_k = to_extra(part(*inputs.extra_k), inputs, sizes);
    operands.extra_v = to_extra(part(*inputs.extra_v), inputs, sizes);
    if (inputs.extra_mask) operands.extra_hidden = hidden_extra(part(*inputs.extra_mask), inputs, sizes);
  }
  if (inputs.first_key) {
    operands.first_key = inputs.first_key->narrow(0, first, rows).repeat_interleave(sizes.groups);
  }
  return operands;
}

Operands narrow_operands(const Operands& all, Slice slice) {
  const auto part = [slice](const Tensor& x, int64_t dim) {
    return x.defined() ? x.narrow(dim, slice.begin, slice.count) : x;
  };
  return {part(all.q, 0),        part(all.k, 0),       part(all.v, 0),
          part(all.extra_k, 1),  part(all.extra_v, 1), part(all.extra_hidden, 1),
          part(all.first_key, 0)};
}

bool few_rows(const BlockedSizes& sizes) { return sizes.queries * sizes.repeat <= kFewRows; }

// Runs task(0) .. task(count-1), on several threads if `parallel`.
void run_tasks(int64_t count, bool parallel, const std::function<void(int64_t)>& task) {
  if (!parallel) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    at::AutoDispatchBelowADInplaceOrView below;  // a worker thread starts with autograd switched on
    for (int64_t i = begin; i < end; ++i) task(i);
  });
}

}  // namespace

BlockedSizes blocked_sizes(const BlockedInputs& inputs) {
  BlockedSizes sizes{};
  sizes.batch = inputs.q.size(0);
  sizes.queries = inputs.q.size(1);
  sizes.keys = inputs.k.size(1);
  sizes.key_size = inputs.q.size(3);
  sizes.value_size = inputs.v.size(3);
  sizes.extra = inputs.extra_k ? inputs.extra_k->size(1) : 0;
  const int64_t state_heads = std::max(inputs.k.size(2), inputs.v.size(2));
  const int64_t heads = std::max(inputs.q.size(2), state_heads);
  bool extra_fits = true;  // an extra set with more heads than k and v: then every query head has its own keys
  for (const auto& x : {inputs.extra_k, inputs.extra_v})
    extra_fits = extra_fits && (!x || state_heads % x->size(2) == 0);
  sizes.groups = extra_fits ? state_heads : heads;
  sizes.repeat = heads / sizes.groups;
  sizes.type = accumulation_type({inputs.q, inputs.k, inputs.v, inputs.extra_k, inputs.extra_v});
  return sizes;
}

Tensor to_rows(const Tensor& x, const BlockedSizes& sizes) {
  const Tensor grouped = x.to(sizes.type).unflatten(2, {sizes.groups, sizes.repeat}).transpose(1, 2);
  return grouped.contiguous().flatten(0, 1).flatten(1, 2);
}

Tensor from_rows(const Tensor& rows, const BlockedSizes& sizes) {
  const Tensor grouped = rows.unflatten(1, {sizes.queries, sizes.repeat}).unflatten(0, {sizes.batch, sizes.groups});
  return grouped.transpose(1, 2).flatten(2, 3);
}

Tensor from_keys(const Tensor& keys, const BlockedSizes& sizes) {
  return keys.unflatten(0, {sizes.batch, sizes.groups}).transpose(1, 2);
}

Tensor from_extra(const Tensor& extra, const BlockedSizes& sizes, bool packed) {
  const Tensor by_row = packed ? extra : extra.squeeze(0).unflatten(0, {sizes.batch, sizes.groups});
  return by_row.transpose(1, 2);
}

double query_factor(const BlockedInputs& inputs) { return inputs.scale / inputs.softcap.value_or(1.0); }

PlanLimits plan_limits(const BlockedInputs& inputs, const BlockedSizes& sizes) {
  PlanLimits limits;
  limits.queries = std::max<int64_t>(1, 64 / sizes.repeat);
  limits.scores = kCachedScores / std::max<int64_t>(1, sizes.repeat);
  limits.split_sequences = inputs.packed && sizes.extra > 0;
  limits.merge = !inputs.first_key;
  return limits;
}

void for_each_slice(const BlockedInputs& inputs, const BlockedSizes& sizes, const std::vector<Block>& blocks,
                    const std::function<void(const Operands&, Slice)>& body) {
  const int64_t problems = sizes.batch * sizes.groups;
  if (problems == 0) return;
  int64_t largest = 1;  // scores of one problem in the largest block
  for (const Block& block : blocks) {
    largest = std::max(largest, block.queries * block.count * (block.keys + sizes.extra) * sizes.repeat);
  }
  const bool cpu = inputs.q.is_cpu() && !at::in_parallel_region();
  const int64_t threads = cpu ? at::get_num_threads() : 1;
  const bool worthwhile = largest * problems >= kCachedScores / 4;
  if (few_rows(sizes) && sizes.batch > 1 && sizes.keys * sizes.groups * sizes.key_size >= kManyKeyValues) {
    run_tasks(sizes.batch, threads > 1 && worthwhile, [&](int64_t row) {
      body(operands_of(inputs, sizes, row, 1, false), {row * sizes.groups, sizes.groups});
    });
    return;
  }
  const Operands all = operands_of(inputs, sizes, 0, sizes.batch, !few_rows(sizes));
  int64_t slices = 1;
  if (inputs.q.is_cpu() && worthwhile) {
    slices = (largest * problems + kCachedScores - 1) / kCachedScores;
    slices = std::min(problems, (slices + threads - 1) / threads * threads);
  }
  const bool parallel = threads > 1 && slices >= threads;
  run_tasks(slices, parallel, [&](int64_t i) {
    const Slice slice{i * problems / slices, (i + 1) * problems / slices - i * problems / slices};
    body(slices == 1 ? all : narrow_operands(all, slice), slice);
  });
}

}  // namespace cortado
