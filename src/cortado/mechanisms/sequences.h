// Helpers of the mechanism operators that also work on symbolic shapes (torch.compile).
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "cortado/base/error.h"

namespace cortado {

using at::Tensor;

// x [B,T,h,...] with its heads repeated up to `heads`, as repeat_interleave.
inline Tensor repeat_heads(const Tensor& x, const c10::SymInt& heads) {
  return x.sym_size(2) == heads ? x : at::repeat_interleave_symint(x, heads / x.sym_size(2), 2);
}

// The number of the packed sequence that each of `tokens` tokens belongs to, int64 [T].
inline Tensor sequence_numbers(const Tensor& cu_seqlens, const Tensor& x) {
  const Tensor places = at::arange(x.sym_size(1), x.options().dtype(at::kLong));
  return at::searchsorted(cu_seqlens.to(at::kLong), places, /*out_int32=*/false, /*right=*/true) - 1;
}

// "a or none of them" for arguments that belong together.
inline bool given_together(const char* op, std::initializer_list<const std::optional<Tensor>*> arguments,
                           const char* names) {
  size_t given = 0;
  for (const auto* argument : arguments) given += argument->has_value();
  if (given != 0 && given != arguments.size()) {
    throw InputError(concat("[", op, "] ", names, " belong together: give all of them or none"));
  }
  return given != 0;
}

}  // namespace cortado
