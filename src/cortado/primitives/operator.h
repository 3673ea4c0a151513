// How a primitive becomes an operator of torch: its registration, and the steps that every op.cpp begins and ends with.
#pragma once

#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "cortado/primitives/common.h"
#include "cortado/primitives/differentiable.h"

namespace cortado {

// Defines an operator by its schema. `kernel` computes on every device, `meta` makes results of the right shapes from
// shapes, `autograd` is differentiable_by(...) or, for a gradient, once_differentiable().
template <typename Kernel, typename Meta>
void define_operator(torch::Library& library, const std::string& schema, Kernel kernel, Meta meta,
                     torch::CppFunction autograd) {
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str());
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, meta));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, std::move(autograd)));
}

// The operator "cortado::NAME", to be called as a function of that type.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// compute(const Struct&), whose struct has the arguments of `Signature` as members in that order, as a function of that
// type: what the dispatcher can call. gathered<decltype(gated_scan), compute>.
template <typename Signature, auto compute>
struct Gathered;
template <typename Result, typename... Arguments, auto compute>
struct Gathered<Result(Arguments...), compute> {
  static Result call(Arguments... arguments) { return compute({arguments...}); }
};
template <typename Signature, auto compute>
inline constexpr auto gathered = &Gathered<Signature, compute>::call;

// The bounds of packed sequences, read and checked; null for a plain batch.
class Bounds {
 public:
  Bounds(std::string_view op, const OptionalTensor& cu_seqlens, int64_t tokens) : packed_(cu_seqlens.has_value()) {
    if (packed_) bounds_ = sequence_bounds(op, *cu_seqlens, tokens);
  }
  const std::vector<int64_t>* get() const { return packed_ ? &bounds_ : nullptr; }

 private:
  bool packed_;
  std::vector<int64_t> bounds_;
};

inline void expect_floating(std::string_view op,
                            std::initializer_list<std::pair<const char*, OptionalTensor>> arguments) {
  for (const auto& [name, x] : arguments) {
    fail_input_if(x && !x->is_floating_point(), "[", op, "] ", name, " must be a floating-point tensor, got ",
                  x ? x->scalar_type() : at::kFloat);
  }
}

// --- Gradients. Of what was not given, or is not wanted, they have shape [0]. ---

inline Tensor no_gradient(const Tensor& like) { return at::empty({0}, like.options()); }

// For shapes only: that of x, where `any` is a tensor of the call.
inline Tensor gradient_meta(const OptionalTensor& x, const Tensor& any, bool wanted = true) {
  return x && wanted ? at::empty_symint(x->sym_sizes(), x->options()) : no_gradient(any);
}

// x's own, from that of x with its heads (dimension `dim`) repeated as expand_heads does.
inline Tensor gradient_of(const Tensor& x, const Tensor& wide, int64_t dim = 2) {
  return sum_heads(wide, x.size(dim), dim).to(x.scalar_type());
}

}  // namespace cortado
