// Helpers that all primitives share: shapes, heads, packed sequences.
#pragma once

#include <functional>
#include <initializer_list>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/primitives/types.h"

namespace cortado {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The type to accumulate in: float64 if any of the tensors is float64, else float32. Undefined tensors are ignored.
at::ScalarType accumulation_type(std::initializer_list<OptionalTensor> tensors);

// "[2, 16, 4, *]" for an error message; -1 prints as *.
std::string shape_text(c10::SymIntArrayRef shape);

// Throws "[op] expected NAME of shape [...], got [...]" unless x has that shape; a negative entry matches any size.
// Also refuses tensors that are not dense, and head counts or head sizes of 0. (No rows or no tokens are fine: the
// results are then empty.)
void expect_shape(std::string_view op, std::string_view name, const Tensor& x, std::vector<c10::SymInt> shape);

// --- Heads. Head i of a tensor with h heads serves the consecutive heads from i·H/h, as repeat_interleave. ---

// Returns the largest head count (of dimension `dim` of the tensors); every other count must divide it.
c10::SymInt common_heads(std::string_view op, std::initializer_list<std::pair<const char*, c10::SymInt>> counts);
// Returns the output's head count: the larger of q's and the state's. The smaller must divide it.
c10::SymInt output_heads(std::string_view op, const c10::SymInt& query_heads, const c10::SymInt& state_heads);
// Repeats dimension `dim` of x up to `heads`; returns x itself when it has that many already.
Tensor expand_heads(const Tensor& x, const c10::SymInt& heads, int64_t dim = 2);
// The adjoint of expand_heads: sums groups of consecutive heads so that dimension `dim` has `heads`.
Tensor sum_heads(const Tensor& x, int64_t heads, int64_t dim = 2);

// --- Packed sequences. ---

// Reads and checks cu_seqlens (int32/int64 [N+1], ascending, first 0, last `tokens`), on the CPU.
std::vector<int64_t> sequence_bounds(std::string_view op, const Tensor& cu_seqlens, int64_t tokens);
// Shape-only check, usable on Meta tensors: 1-dimensional integers, batch of one. Returns N.
c10::SymInt packed_rows(std::string_view op, const OptionalTensor& cu_seqlens, const c10::SymInt& batch);

// Runs a dense routine on every packed sequence and joins the results.
//
// `timed` are [1, T, ...] tensors (undefined ones stay undefined), `rows` are [N, ...] tensors. Sequences of equal
// length form one dense batch. `run` gets the tensors of one such batch and returns (timed results, row results).
struct PackedResult {
  Tensors timed;
  Tensors rows;
};
PackedResult for_each_sequence(const std::vector<int64_t>& bounds, const Tensors& timed, const Tensors& rows,
                               const std::function<PackedResult(const Tensors& timed, const Tensors& rows)>& run);

// Disables autocast for as long as the object lives, so that an operator's ATen calls compute in the types they are
// given. Otherwise a caller's autocast would turn the matrix products inside our kernels into bfloat16. Every kernel
// and every backward starts with one.
class NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace cortado
