#include "cortado/primitives/gates.h"

namespace cortado {

c10::SymInt gate_heads(std::string_view op, const Tensor& g, const c10::SymInt& batch, const c10::SymInt& tokens,
                       const c10::SymInt& keys) {
  switch (g.dim()) {
    case 1:
      return g.sym_size(0);
    case 2:
      expect_shape(op, "g", g, {-1, keys});
      return g.sym_size(0);
    case 3:
      expect_shape(op, "g", g, {batch, tokens, -1});
      return g.sym_size(2);
    default:
      expect_shape(op, "g", g, {batch, tokens, -1, keys});
      return g.sym_size(2);
  }
}

Tensor timed_gate(const OptionalTensor& g, int64_t tokens) {
  if (!g) return {};
  if (g->dim() >= 3) return *g;
  std::vector<int64_t> sizes = g->sizes().vec();
  sizes.insert(sizes.begin(), {1, tokens});
  return g->expand(sizes);
}

Tensor token_decay(const Tensor& g, int64_t heads, at::ScalarType type) {
  const Tensor now = g.dim() >= 3 ? g.select(1, 0) : g.unsqueeze(0);  // [B|1,h] or [B|1,h,K]
  const Tensor decay = expand_heads(now.to(type), heads, 1).exp();
  return decay.dim() == 2 ? decay.unsqueeze(-1).unsqueeze(-1) : decay.unsqueeze(-1);
}

Tensor gate_gradient(const Tensor& wide, const Tensor& g) {
  if (g.dim() >= 3) return sum_heads(wide, g.size(2)).to(g.scalar_type());
  return sum_heads(wide.sum(at::IntArrayRef{0, 1}), g.size(0), 0).to(g.scalar_type());
}

Tensor first_of_copies(const Tensor& state, int64_t state_heads) {
  if (state.size(1) == state_heads) return state;
  return state.unflatten(1, {state_heads, state.size(1) / state_heads}).select(2, 0).contiguous();
}

Tensor spread_to_copies(const Tensor& gradient, int64_t heads) {
  const int64_t state_heads = gradient.size(1);
  if (state_heads == heads) return gradient;
  const Tensor wide = at::zeros({gradient.size(0), heads, gradient.size(2), gradient.size(3)}, gradient.options());
  wide.unflatten(1, {state_heads, heads / state_heads}).select(2, 0).copy_(gradient);
  return wide;
}

}  // namespace cortado
