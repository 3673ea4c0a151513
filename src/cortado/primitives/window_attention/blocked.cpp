#include "cortado/primitives/window_attention/blocked.h"

#include "cortado/primitives/common.h"
#include "cortado/primitives/window_attention/operands.h"

namespace cortado {
namespace {

// exp of anything below underflows, and the vectorised exp takes a path 20 times slower there. What is hidden is set to
// this before exp and to 0 after it.
double exp_floor(at::ScalarType type) { return type == at::kDouble ? -700.0 : -80.0; }

// The hidden pairs of some columns of a block's runs, [queries, 1, columns].
struct Hidden {
  Tensor upper;    // bound of the scores: -inf where hidden, +inf elsewhere
  Tensor visible;  // 0 where hidden, 1 elsewhere
};

// Successive blocks mostly hide the same pattern, so the last one is kept.
class HiddenPattern {
 public:
  const Hidden& get(const VisibleKeys& keys, const Block& block, int64_t first, int64_t columns, const Tensor& like) {
    auto pattern = hidden_columns(keys, block, first, columns);
    const bool same = hidden_.upper.defined() && hidden_.upper.size(0) == block.queries &&
                      hidden_.upper.size(2) == columns && pattern == pattern_;
    if (same) return hidden_;
    pattern_ = std::move(pattern);
    const Tensor flags = at::from_blob(pattern_.data(), {block.queries, 1, columns}, at::kByte).to(at::kBool);
    const Tensor unbounded = at::full(flags.sizes(), kInfinity, like.options().device(at::kCPU));
    hidden_.upper = unbounded.masked_fill(flags, -kInfinity).to(like.device());
    hidden_.visible = at::logical_not(flags).to(like.options());
    return hidden_;
  }

 private:
  std::vector<uint8_t> pattern_;
  Hidden hidden_;
};

// Scores of one part of what a block sees: the keys of its window, or the extra set.
struct Part {
  Tensor keys, values;                            // [P, S, *]
  Tensor scores;                                  // [P, rows / P, S], hidden ones -inf
  Tensor tanh;                                    // with a softcap: tanh of the scaled product, not hidden
  std::vector<std::pair<Tensor, Tensor>> masked;  // columns of the scores [·, queries, repeat, columns], and visible
  Tensor view, hidden;                            // first_key, extra_mask: a view of all scores, and bool
};

// [N, T, *] -> the spans of keys of a block's runs, [N · count, keys, *].
Tensor spans(const Tensor& x, const Block& block) {
  if (block.count == 1) return x.narrow(1, block.key, block.keys);
  const int64_t n = x.size(0), time = x.stride(1);
  return x
      .as_strided({n, block.count, block.keys, x.size(2)}, {x.stride(0), block.queries * time, time, x.stride(2)},
                  x.storage_offset() + block.key * time)
      .reshape({n * block.count, block.keys, x.size(2)});
}

// Adds [N · count, keys, *] to the spans of x [N, T, *], which overlap: piece by piece of a run's length.
void add_to_spans(const Tensor& x, const Block& block, const Tensor& values) {
  if (block.count == 1) {
    x.narrow(1, block.key, block.keys).add_(values);
    return;
  }
  const int64_t n = x.size(0), time = x.stride(1);
  const Tensor runs = values.view({n, block.count, block.keys, x.size(2)});
  for (int64_t piece = 0; piece < block.keys; piece += block.queries) {
    const int64_t width = std::min(block.queries, block.keys - piece);
    x.as_strided({n, block.count, width, x.size(2)}, {x.stride(0), block.queries * time, time, x.stride(2)},
                 x.storage_offset() + (block.key + piece) * time)
        .add_(runs.narrow(2, piece, width));
  }
}

// q·kᵀ through the softcap. `keep_tanh`: the backward needs it.
void score(const std::optional<double>& softcap, const Tensor& q, Part& part, bool keep_tanh) {
  part.scores = at::bmm(q, part.keys.transpose(1, 2));
  if (!softcap) return;
  part.scores.tanh_();
  if (keep_tanh) part.tanh = part.scores;
  part.scores = keep_tanh ? part.scores * *softcap : part.scores.mul_(*softcap);
}

// scores -> exp(scores - row_max), in place; row_max is finite.
void exponentiate(const Part& part, const Tensor& row_max) {
  part.scores.sub_(row_max.reshape({part.scores.size(0), -1, 1}));
  const double floor = exp_floor(part.scores.scalar_type());
  if (part.hidden.defined()) {
    part.scores.clamp_min_(floor);
  } else {
    for (const auto& [columns, visible] : part.masked) columns.clamp_min_(floor);
  }
  part.scores.exp_();
  for (const auto& [columns, visible] : part.masked) columns.mul_(visible);
  if (part.hidden.defined()) part.view.masked_fill_(part.hidden, 0.0);
}

Tensor finite_maximum(const Tensor& row_max) { return row_max.masked_fill(row_max == -kInfinity, 0.0); }

// What the backward reads of every row, and the gradients it fills; all in the layouts of Operands.
struct RowGradients {
  Tensor grad_o;        // rows, over the denominator
  Tensor delta;         // (Σ grad_o·o - grad_lse) / denominator, before the division of grad_o
  Tensor row_max;       // finite
  Tensor grad_row_max;  // or undefined
  Tensor q, k, v, extra_k, extra_v;
};

// Adds the gradient of the largest score, which goes to the first key that attains it, to the parts' score gradients.
void add_row_max_gradient(const Tensors& maxima, const Tensors& positions, const Tensors& grad_scores,
                          const Tensor& grad_row_max) {
  Tensor left = grad_row_max;
  for (size_t i = 0; i < maxima.size(); ++i) {
    Tensor own = left;
    if (maxima.size() == 2) {
      const Tensor first_wins = maxima[0] >= maxima[1];
      own = left.masked_fill(i == 0 ? at::logical_not(first_wins) : first_wins, 0.0);
    }
    const Tensor& grad = grad_scores[i];
    grad.scatter_add_(2, positions[i].view({grad.size(0), -1, 1}), own.reshape({grad.size(0), -1, 1}));
  }
}

// The parts' score gradients, given exp(score - row_max) in part.scores.
Tensor score_gradient(const Part& part, const Tensor& grad_o, const Tensor& delta) {
  const Tensor rows = grad_o.reshape({part.scores.size(0), -1, grad_o.size(-1)});
  const Tensor grad = at::bmm(rows, part.values.transpose(1, 2));
  return grad.sub_(delta.reshape({grad.size(0), -1, 1})).mul_(part.scores);
}

// One slice's blocks, forward and backward.
class BlockRunner {
 public:
  BlockRunner(const BlockedInputs& inputs, const BlockedSizes& sizes, const Operands& operands)
      : inputs_(inputs), sizes_(sizes), operands_(operands) {}

  // Fills the rows of `out` (which has no lse).
  void forward(const Block& block, const BlockedOutputs& out) {
    const Tensor q = rows_of(operands_.q, block);
    const std::vector<Part> parts = parts_of(block, q, false);
    if (parts.empty()) return;  // nothing to see: the outputs are filled for that
    Tensor row_max, denominator, o;
    for (const Part& part : parts) {
      const Tensor maximum = part.scores.amax(-1).view({q.size(0), -1});
      row_max = row_max.defined() ? at::maximum(row_max, maximum) : maximum;
    }
    rows_of(out.row_max, block).copy_(row_max);
    const bool guarded = block.some_see_nothing || operands_.first_key.defined();  // a row may see nothing at all
    if (guarded) row_max = finite_maximum(row_max);
    for (const Part& part : parts) {
      exponentiate(part, row_max);
      const Tensor sum = part.scores.sum(-1).view({q.size(0), -1});
      const Tensor read = at::bmm(part.scores, part.values).view({q.size(0), -1, sizes_.value_size});
      denominator = denominator.defined() ? denominator.add_(sum) : sum;
      o = o.defined() ? o.add_(read) : read;
    }
    if (guarded) denominator.masked_fill_(denominator == 0, 1.0);
    rows_of(out.denominator, block).copy_(denominator);
    Tensor target = rows_of(out.o, block);
    at::div_out(target, o, denominator.unsqueeze(-1));
  }

  void backward(const Block& block, const RowGradients& rows) {
    const Tensor q = rows_of(operands_.q, block);
    const Tensor grad_o = rows_of(rows.grad_o, block), delta = rows_of(rows.delta, block);
    const std::vector<Part> parts = parts_of(block, q, true);
    Tensors grads, maxima, positions;
    for (const Part& part : parts) {
      if (rows.grad_row_max.defined()) {
        const auto [maximum, position] = part.scores.max(-1);
        maxima.push_back(maximum.view({q.size(0), -1}));
        positions.push_back(position);
      }
      exponentiate(part, rows_of(rows.row_max, block));
      grads.push_back(score_gradient(part, grad_o, delta));
    }
    if (rows.grad_row_max.defined()) {
      add_row_max_gradient(maxima, positions, grads, rows_of(rows.grad_row_max, block));
    }
    const Tensor grad_q = rows_of(rows.q, block);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const int64_t problems = part.scores.size(0);
      const Tensor grad_v = at::bmm(part.scores.transpose(1, 2), grad_o.reshape({problems, -1, grad_o.size(2)}));
      Tensor& grad = grads[i];
      // c·tanh(u): the factor c (the scores' unit) and the derivative 1 - tanh².
      if (part.tanh.defined()) grad.mul_(part.tanh.square_().neg_().add_(1.0)).mul_(*inputs_.softcap);
      grad_q.add_(at::bmm(grad, part.keys).view(grad_q.sizes()));
      const Tensor grad_k = at::bmm(grad.transpose(1, 2), q.reshape({problems, -1, q.size(2)}));
      const bool window = i == 0 && block.keys > 0;
      if (window) {
        add_to_spans(rows.k, block, grad_k);
        add_to_spans(rows.v, block, grad_v);
      } else {
        const int64_t row = extra_row(block);
        rows.extra_k.select(0, row).add_(grad_k);
        rows.extra_v.select(0, row).add_(grad_v);
      }
    }
  }

 private:
  // The rows [N, Tq·repeat, ...] of a block's queries.
  Tensor rows_of(const Tensor& x, const Block& block) const {
    return x.narrow(1, block.query * sizes_.repeat, block.queries * block.count * sizes_.repeat);
  }

  int64_t extra_row(const Block& block) const { return inputs_.packed ? block.sequence : 0; }

  // The parts of a block with their scores: none, one or two. q is the block's rows [N, rows, K].
  std::vector<Part> parts_of(const Block& block, const Tensor& q, bool keep_tanh) {
    std::vector<Part> found;
    if (block.keys > 0) found.push_back(window_part(block, q, keep_tanh));
    if (sizes_.extra > 0) found.push_back(extra_part(block, q, keep_tanh));
    return found;
  }

  Part window_part(const Block& block, const Tensor& q, bool keep_tanh) {
    Part part{spans(operands_.k, block), spans(operands_.v, block), {}, {}, {}, {}, {}};
    score(inputs_.softcap, q.reshape({part.keys.size(0), -1, q.size(2)}), part, keep_tanh);
    const Tensor by_query = part.scores.view({-1, block.queries, sizes_.repeat, block.keys});
    const BlockMask mask = masked_columns(inputs_.visible, block);
    const auto hide_columns = [&](HiddenPattern& pattern, int64_t first, int64_t columns) {
      if (columns == 0) return;
      const Hidden& hidden = pattern.get(inputs_.visible, block, first, columns, q);
      part.masked.emplace_back(by_query.narrow(3, first, columns), hidden.visible);
      part.masked.back().first.clamp_max_(hidden.upper);
    };
    hide_columns(left_, 0, mask.left_end);
    hide_columns(right_, mask.right_begin, block.keys - mask.right_begin);
    if (operands_.first_key.defined()) {
      const Tensor j = at::arange(block.key, block.key + block.keys, operands_.first_key.options());
      hide(part, part.scores, (j < operands_.first_key.unsqueeze(1)).unsqueeze(1));
    }
    return part;
  }

  static void hide(Part& part, const Tensor& view, const Tensor& hidden) {
    part.view = view;
    part.hidden = hidden;
    part.view.masked_fill_(hidden, -kInfinity);
  }

  Part extra_part(const Block& block, const Tensor& q, bool keep_tanh) {
    const int64_t row = extra_row(block);
    Part part{operands_.extra_k.select(0, row), operands_.extra_v.select(0, row), {}, {}, {}, {}, {}};
    score(inputs_.softcap, q, part, keep_tanh);
    if (operands_.extra_hidden.defined()) {
      const Tensor view = part.scores.view({q.size(0), -1, sizes_.repeat, sizes_.extra});
      hide(part, view, operands_.extra_hidden.select(0, row));  // [N, 1, repeat | 1, E]
    }
    return part;
  }

  const BlockedInputs& inputs_;
  const BlockedSizes& sizes_;
  const Operands& operands_;
  HiddenPattern left_, right_;
};

Tensor part_of(const Tensor& x, Slice slice, int64_t dim = 0) {
  return x.defined() ? x.narrow(dim, slice.begin, slice.count) : x;
}

// Zeros in the layouts of Operands for all problems.
RowGradients zero_gradients(const BlockedInputs& inputs, const BlockedSizes& sizes) {
  const auto options = inputs.q.options().dtype(sizes.type);
  const int64_t problems = sizes.batch * sizes.groups;
  RowGradients grads;
  grads.q = at::zeros({problems, sizes.queries * sizes.repeat, sizes.key_size}, options);
  grads.k = at::zeros({problems, sizes.keys, sizes.key_size}, options);
  grads.v = at::zeros({problems, sizes.keys, sizes.value_size}, options);
  if (inputs.extra_k) {
    const int64_t rows = inputs.packed ? inputs.extra_k->size(0) : 1;
    grads.extra_k = at::zeros({rows, problems, sizes.extra, sizes.key_size}, options);
    grads.extra_v = at::zeros({rows, problems, sizes.extra, sizes.value_size}, options);
  }
  return grads;
}

}  // namespace

BlockedOutputs blocked_forward(const BlockedInputs& inputs) {
  const BlockedSizes sizes = blocked_sizes(inputs);
  const auto blocks = plan_blocks(inputs.visible, plan_limits(inputs, sizes));
  const auto options = inputs.q.options().dtype(sizes.type);
  const int64_t problems = sizes.batch * sizes.groups, rows = sizes.queries * sizes.repeat;
  const BlockedOutputs out{at::zeros({problems, rows, sizes.value_size}, options),
                           {},
                           at::full({problems, rows}, -kInfinity, options),
                           at::ones({problems, rows}, options)};
  for_each_slice(inputs, sizes, blocks, [&](const Operands& operands, Slice slice) {
    BlockRunner runner(inputs, sizes, operands);
    const BlockedOutputs own{part_of(out.o, slice), {}, part_of(out.row_max, slice), part_of(out.denominator, slice)};
    for (const Block& block : blocks) runner.forward(block, own);
  });
  BlockedOutputs outputs;
  outputs.o = from_rows(out.o, sizes).to(inputs.v.scalar_type()).contiguous();
  outputs.row_max = from_rows(out.row_max, sizes).contiguous();
  outputs.denominator = from_rows(out.denominator, sizes).contiguous();
  outputs.lse = outputs.row_max + outputs.denominator.log();
  return outputs;
}

BlockedGradients blocked_backward(const BlockedInputs& inputs, const BlockedOutputs& outputs, const Tensor& grad_o,
                                  const Tensor& grad_lse, const Tensor& grad_row_max) {
  const BlockedSizes sizes = blocked_sizes(inputs);
  const auto blocks = plan_blocks(inputs.visible, plan_limits(inputs, sizes));
  RowGradients grads = zero_gradients(inputs, sizes);
  const Tensor inverse = outputs.denominator.reciprocal();
  Tensor delta = (grad_o.to(sizes.type) * outputs.o.to(sizes.type)).sum(-1);
  if (grad_lse.defined()) delta.sub_(grad_lse);
  grads.delta = to_rows(delta.mul_(inverse), sizes);
  grads.grad_o = to_rows(grad_o, sizes) * to_rows(inverse, sizes).unsqueeze(-1);
  grads.row_max = to_rows(finite_maximum(outputs.row_max), sizes);
  if (grad_row_max.defined()) {
    grads.grad_row_max = to_rows(grad_row_max.masked_fill(outputs.row_max == -kInfinity, 0.0), sizes);
  }
  for_each_slice(inputs, sizes, blocks, [&](const Operands& operands, Slice slice) {
    BlockRunner runner(inputs, sizes, operands);
    const RowGradients own{part_of(grads.grad_o, slice),    part_of(grads.delta, slice),
                           part_of(grads.row_max, slice),   part_of(grads.grad_row_max, slice),
                           part_of(grads.q, slice),         part_of(grads.k, slice),
                           part_of(grads.v, slice),         part_of(grads.extra_k, slice, 1),
                           part_of(grads.extra_v, slice, 1)};
    for (const Block& block : blocks) runner.backward(block, own);
  });
  const auto like = [](const Tensor& gradient, const Tensor& input) {
    return sum_heads(gradient, input.size(2)).to(input.scalar_type()).contiguous();
  };
  BlockedGradients result;
  result.q = like(from_rows(grads.q.mul_(query_factor(inputs)), sizes), inputs.q);
  result.k = like(from_keys(grads.k, sizes), inputs.k);
  result.v = like(from_keys(grads.v, sizes), inputs.v);
  if (inputs.extra_k) {
    result.extra_k = like(from_extra(grads.extra_k, sizes, inputs.packed), *inputs.extra_k);
    result.extra_v = like(from_extra(grads.extra_v, sizes, inputs.packed), *inputs.extra_v);
  }
  return result;
}

}  // namespace cortado
