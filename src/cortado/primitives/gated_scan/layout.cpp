#include "cortado/primitives/gated_scan/layout.h"

#include <bit>

namespace cortado::gated {

namespace {

// The time axis (dimension 1) of [B,T,h,*] from `start`, as chunks: [n,B,h,C,*], a view.
Tensor as_chunks(const Tensor& x, int64_t start, int64_t chunks, int64_t chunk) {
  const Tensor parts = x.narrow(1, start, chunks * chunk).unflatten(1, {chunks, chunk});
  return x.dim() == 4 ? parts.permute({1, 0, 3, 2, 4}) : parts.permute({1, 0, 3, 2});
}

}  // namespace

int64_t chunk_length(int64_t tokens, int64_t largest) {
  return std::min<int64_t>(largest, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens))));
}

Tensor to_chunks(const Tensor& x, const Layout& layout, double filling) {
  if (!x.defined()) return x;
  const Tensor source = layout.reverse ? x.flip(1) : x;
  std::vector<int64_t> sizes{layout.chunks(), x.size(0), layout.heads, layout.chunk};
  if (x.dim() == 4) sizes.push_back(x.size(3));
  Tensor target = at::empty(sizes, x.options().dtype(layout.type));
  const Tensor grouped = target.unflatten(2, {x.size(2), layout.heads / x.size(2)});
  if (layout.full()) {
    grouped.narrow(0, 0, layout.full()).copy_(as_chunks(source, 0, layout.full(), layout.chunk).unsqueeze(3));
  }
  if (const int64_t tail = layout.tail()) {
    const Tensor last = grouped.narrow(0, layout.full(), 1);
    last.narrow(4, 0, tail).copy_(as_chunks(source, layout.full() * layout.chunk, 1, tail).unsqueeze(3));
    last.narrow(4, tail, layout.chunk - tail).fill_(filling);
  }
  return target;
}

Tensor from_chunks(const Tensor& x, const Layout& layout) {
  if (!x.defined()) return x;
  std::vector<int64_t> sizes{layout.batch, layout.tokens, layout.heads};
  if (x.dim() == 5) sizes.push_back(x.size(4));
  const Tensor target = at::empty(sizes, x.options());
  if (layout.full()) {
    as_chunks(target, 0, layout.full(), layout.chunk).copy_(x.narrow(0, 0, layout.full()));
  }
  if (const int64_t tail = layout.tail()) {
    as_chunks(target, layout.full() * layout.chunk, 1, tail).copy_(x.narrow(0, layout.full(), 1).narrow(3, 0, tail));
  }
  return layout.reverse ? target.flip(1) : target;
}

}  // namespace cortado::gated
