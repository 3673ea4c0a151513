// Time cut into chunks: how the scans' inner routines hold their tensors.
#pragma once

#include <ATen/ATen.h>

namespace cortado::gated {

using at::Tensor;

struct Layout {
  int64_t batch, tokens, heads, chunk;
  at::ScalarType type;
  bool reverse = false;

  int64_t full() const { return tokens / chunk; }
  int64_t tail() const { return tokens % chunk; }
  int64_t chunks() const { return full() + (tail() ? 1 : 0); }
};

// The largest chunk, or the next power of two if there are fewer tokens.
int64_t chunk_length(int64_t tokens, int64_t largest);

// [B,T,h,*] -> [n,B,H,C,*] in the accumulation type, heads broadcast, the last chunk filled up with zeros (which as
// gates and keys leave the state as it is) or, being factors, ones. Undefined stays undefined.
Tensor to_chunks(const Tensor& x, const Layout& layout, double filling = 0);
// [n,B,H,C,*] -> [B,T,H,*], the inverse.
Tensor from_chunks(const Tensor& x, const Layout& layout);

}  // namespace cortado::gated
