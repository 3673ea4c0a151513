#include "cortado/primitives/common.h"

#include <map>

namespace cortado {

at::ScalarType accumulation_type(std::initializer_list<OptionalTensor> tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor || !tensor->defined()) continue;
    if (tensor->scalar_type() == at::kDouble) return at::kDouble;
  }
  return at::kFloat;
}

std::string shape_text(c10::SymIntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool any = !shape[i].is_heap_allocated() && shape[i].expect_int() < 0;
    text += concat(i ? ", " : "", any ? std::string("*") : concat(shape[i]));
  }
  return text + "]";
}

void expect_shape(std::string_view op, std::string_view name, const Tensor& x, std::vector<c10::SymInt> shape) {
  fail_input_if(x.layout() != at::kStrided, "[", op, "] ", name, " must be a dense tensor, got the layout ",
                x.layout());
  bool fits = x.dim() == static_cast<int64_t>(shape.size()), empty = false;
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    const bool any = !shape[i].is_heap_allocated() && shape[i].expect_int() < 0;
    const c10::SymInt size = x.sym_size(static_cast<int64_t>(i));
    fits = any || size == shape[i];
    empty = empty || (shape.size() == 4 && i >= 2 && size == 0);
  }
  if (fits && !empty) return;  // before any text is built: this runs for every decoded token
  fail_input_if(fits, "[", op, "] ", name, " has a size of 0: ", shape_text(x.sym_sizes()),
                "; only batch and time may be empty");
  throw InputError(
      concat("[", op, "] expected ", name, " of shape ", shape_text(shape), ", got ", shape_text(x.sym_sizes())));
}

c10::SymInt common_heads(std::string_view op, std::initializer_list<std::pair<const char*, c10::SymInt>> counts) {
  c10::SymInt heads = 1;
  for (const auto& [name, count] : counts) {
    if (count > heads) heads = count;
  }
  for (const auto& [name, count] : counts) {
    fail_input_if(count < 1 || heads % count != 0, "[", op, "] the heads of ", name, " (", count,
                  ") must divide the largest head count, ", heads);
  }
  return heads;
}

c10::SymInt output_heads(std::string_view op, const c10::SymInt& query_heads, const c10::SymInt& state_heads) {
  const bool fits =
      query_heads >= 1 && (query_heads > state_heads ? query_heads % state_heads == 0 : state_heads % query_heads == 0);
  fail_input_if(!fits, "[", op, "] q's heads (", query_heads, ") must divide, or be a multiple of, the state's heads (",
                state_heads, ")");
  return query_heads > state_heads ? query_heads : state_heads;
}

Tensor expand_heads(const Tensor& x, const c10::SymInt& heads, int64_t dim) {
  return x.sym_size(dim) == heads ? x : at::repeat_interleave_symint(x, heads / x.sym_size(dim), dim);
}

Tensor sum_heads(const Tensor& x, int64_t heads, int64_t dim) {
  return x.size(dim) == heads ? x : x.unflatten(dim, {heads, x.size(dim) / heads}).sum(dim + 1);
}

std::vector<int64_t> sequence_bounds(std::string_view op, const Tensor& cu_seqlens, int64_t tokens) {
  const Tensor list = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  std::vector<int64_t> bounds(list.data_ptr<int64_t>(), list.data_ptr<int64_t>() + list.numel());
  fail_input_if(bounds.empty() || bounds.front() != 0, "[", op, "] cu_seqlens must start with 0");
  for (size_t i = 1; i < bounds.size(); ++i) {
    fail_input_if(bounds[i] < bounds[i - 1], "[", op, "] cu_seqlens must ascend, got ", bounds[i - 1], " before ",
                  bounds[i]);
  }
  fail_input_if(bounds.back() != tokens, "[", op, "] cu_seqlens must end with T = ", tokens, ", got ", bounds.back());
  return bounds;
}

c10::SymInt packed_rows(std::string_view op, const OptionalTensor& cu_seqlens, const c10::SymInt& batch) {
  if (!cu_seqlens) return batch;
  const auto type = cu_seqlens->scalar_type();
  const bool list = cu_seqlens->layout() == at::kStrided && cu_seqlens->dim() == 1 && cu_seqlens->sym_size(0) >= 1;
  if (!list || (type != at::kInt && type != at::kLong)) {
    throw InputError(concat("[", op, "] cu_seqlens must be int32 or int64 of shape [N+1], got ", type, " ",
                            shape_text(cu_seqlens->sym_sizes())));
  }
  fail_input_if(batch != 1, "[", op, "] cu_seqlens needs a batch of 1, got ", batch);
  return cu_seqlens->sym_size(0) - 1;
}

namespace {

// Groups the sequences' numbers by their length.
std::map<int64_t, std::vector<int64_t>> group_by_length(const std::vector<int64_t>& bounds) {
  std::map<int64_t, std::vector<int64_t>> groups;
  for (size_t n = 0; n + 1 < bounds.size(); ++n) {
    groups[bounds[n + 1] - bounds[n]].push_back(static_cast<int64_t>(n));
  }
  return groups;
}

// [1, T, ...] -> [members, length, ...]
Tensor gather_sequences(const Tensor& x, const std::vector<int64_t>& bounds, const std::vector<int64_t>& members,
                        int64_t length) {
  if (!x.defined()) return x;
  if (members.empty()) return x.narrow(0, 0, 0);
  Tensors parts;
  for (const int64_t n : members) parts.push_back(x.narrow(1, bounds[n], length));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 0);
}

}  // namespace

PackedResult for_each_sequence(const std::vector<int64_t>& bounds, const Tensors& timed, const Tensors& rows,
                               const std::function<PackedResult(const Tensors& timed, const Tensors& rows)>& run) {
  const size_t count = bounds.size() - 1;
  std::vector<Tensors> timed_parts, row_parts;  // [result][sequence]
  auto keep = [count](std::vector<Tensors>& parts, const Tensors& results, const std::vector<int64_t>& members) {
    parts.resize(results.size(), Tensors(count));
    for (size_t r = 0; r < results.size(); ++r) {
      if (!results[r].defined()) continue;
      for (size_t i = 0; i < members.size(); ++i) {
        parts[r][members[i]] = results[r].narrow(0, static_cast<int64_t>(i), 1);
      }
    }
  };
  auto groups = group_by_length(bounds);
  if (groups.empty()) groups[0] = {};  // no sequences: run once on empty tensors, for the shapes
  for (const auto& [length, members] : groups) {
    Tensors group_timed, group_rows;
    for (const auto& x : timed) group_timed.push_back(gather_sequences(x, bounds, members, length));
    const Tensor numbers = at::tensor(members, at::kLong);
    for (const auto& x : rows) group_rows.push_back(x.defined() ? x.index_select(0, numbers.to(x.device())) : x);
    const PackedResult results = run(group_timed, group_rows);
    if (members.empty()) {
      PackedResult nothing{{}, results.rows};
      for (const auto& x : results.timed) nothing.timed.push_back(x.defined() ? x.flatten(0, 1).unsqueeze(0) : x);
      return nothing;
    }
    keep(timed_parts, results.timed, members);
    keep(row_parts, results.rows, members);
  }
  PackedResult joined;
  for (const auto& parts : timed_parts) joined.timed.push_back(parts[0].defined() ? at::cat(parts, 1) : Tensor());
  for (const auto& parts : row_parts) joined.rows.push_back(parts[0].defined() ? at::cat(parts, 0) : Tensor());
  return joined;
}

}  // namespace cortado
