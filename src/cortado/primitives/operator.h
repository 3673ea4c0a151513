// How a primitive becomes an operator of torch: its registration, and the steps that every op.cpp begins and ends with.
#pragma once

#include <torch/library.h>

#include <string>
#include <utility>

#include "cortado/primitives/common.h"

namespace cortado {

// --- Autograd: an operator X whose gradient is an operator too, X_backward (differentiable.cpp). ---

// X_backward by its name ("cortado::X_backward"), and X's arguments that its results are the gradients of, in that
// order; those of absent arguments and of an `optional_work` that needs none are ignored. Its own arguments are told by
// their names in its schema:
//
//   grad_...  come first: the gradients of X's first results (zeros for one that is missing, unless it is optional)
//   need_...  whether X's argument `optional_work` requires a gradient
//   others    X's argument or result of that name
struct GradientOperator {
  std::string name;
  std::vector<std::string> inputs;
  std::string optional_work = "";
};

// The Autograd kernel of X: computes as usual and, where a gradient will be wanted, notes how to call X_backward.
torch::CppFunction differentiable_by(GradientOperator gradient);

// The Meta kernel of X_backward: results in the shapes and types of those arguments (of the first that is no gradient,
// for one that X_backward does not have), [0] for what is absent or not needed.
torch::CppFunction gradients_like(GradientOperator gradient);

// The Autograd kernel of X_backward: computes as usual, and makes differentiating the results an error that says so.
torch::CppFunction once_differentiable();

// --- Registration. ---

// Defines an operator by its schema. `kernel` computes on every device, `meta` makes results of the right shapes from
// shapes, `autograd` says what becomes of gradients.
template <typename Kernel, typename Meta>
void define_operator(torch::Library& library, const std::string& schema, Kernel kernel, Meta meta,
                     torch::CppFunction autograd) {
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str());
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, std::move(meta)));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, std::move(autograd)));
}

// What the gradient's operator X_backward is given: arguments of its own, in front of X's or, where `schema` has them,
// in place of these. `inputs` and `optional_work` as GradientOperator has them.
struct GradientSchema {
  std::string given;  // "Tensor? grad_o, bool need_gate"
  std::vector<std::string> inputs;
  std::string optional_work = "";
  std::string arguments = "";  // X's, unless some are given
};

// "X_backward(GIVEN, X's arguments) -> (a Tensor for each input)".
std::string schema_of_gradient(const std::string& schema, const GradientSchema& gradient);

// Defines an operator and its gradient, an operator too, which cannot be differentiated again.
template <typename Kernel, typename Meta, typename Gradient>
void define_operator(torch::Library& library, const std::string& schema, Kernel kernel, Meta meta, Gradient gradient,
                     const GradientSchema& of_gradient) {
  const std::string gradient_schema = schema_of_gradient(schema, of_gradient);
  const std::string name = "cortado::" + gradient_schema.substr(0, gradient_schema.find('('));
  const GradientOperator by{name, of_gradient.inputs, of_gradient.optional_work};
  define_operator(library, schema, kernel, meta, differentiable_by(by));
  define_operator(library, gradient_schema, gradient, gradients_like(by), once_differentiable());
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

// compute(const Given&, const Struct&) of a gradient's operator, whose own arguments, those of void(Given...), come before
// those of X: gathered_gradient<void(const OptionalTensor&, bool), decltype(gated_scan), compute>.
template <typename Given, typename Signature, auto compute>
struct GatheredGradient;
template <typename... Given, typename Result, typename... Arguments, auto compute>
struct GatheredGradient<void(Given...), Result(Arguments...), compute> {
  static auto call(Given... given, Arguments... arguments) { return compute({given...}, {arguments...}); }
};
template <typename Given, typename Signature, auto compute>
inline constexpr auto gathered_gradient = &GatheredGradient<Given, Signature, compute>::call;

// The bounds of packed sequences, read and checked; null for a plain batch.
class Bounds {
 public:
  Bounds(std::string_view op, const OptionalTensor& cu_seqlens, int64_t tokens) : packed_(cu_seqlens.has_value()) {
    if (packed_) bounds_ = sequence_bounds(op, *cu_seqlens, tokens);
  }
  const std::vector<int64_t>* get() const { return packed_ ? &bounds_ : nullptr; }
  const int64_t* data() const { return packed_ ? bounds_.data() : nullptr; }
  // Of the states.
  int64_t rows(int64_t batch) const { return packed_ ? static_cast<int64_t>(bounds_.size()) - 1 : batch; }
  // dense(timed, rows) on the batch, or on every sequence (for_each_sequence).
  template <typename Dense>
  PackedResult run(const Tensors& timed, const Tensors& rows, const Dense& dense) const {
    return packed_ ? for_each_sequence(bounds_, timed, rows, dense) : dense(timed, rows);
  }

 private:
  bool packed_;
  std::vector<int64_t> bounds_;
};

// An argument of an operator: a letter a dimension. B, T, K, ... is a size, bound where it first appears and expected
// from there on; * is any; h the heads of what makes the state, q of what reads it (common.h). Arguments with an N, a
// state's rows, come last: S, the state's heads, and H, the output's, are known there.
struct Argument {
  const char* name;
  const Tensor* x;  // null: not given
  std::string_view shape;

  Argument(const char* name, const Tensor& x, std::string_view shape) : name(name), x(&x), shape(shape) {}
  Argument(const char* name, const OptionalTensor& x, std::string_view shape)
      : name(name), x(x ? &*x : nullptr), shape(shape) {}
};

enum class Types { kFloating, kComplexToo };

// Checks arguments, by shapes, types and devices alone, so that it also runs on Meta and fake tensors, and says their
// sizes.
class Sizes {
 public:
  Sizes(std::string_view op, const OptionalTensor& cu_seqlens, std::initializer_list<Argument> arguments,
        Types types = Types::kFloating);

  // Checks more of them by the sizes that are known by now: what a gradient's operator is given beside X's arguments.
  void expect(std::initializer_list<Argument> arguments);

  const c10::SymInt& operator[](char letter) const { return sizes_[letter - 'A']; }
  int64_t number(char letter) const { return (*this)[letter].expect_int(); }
  // A result of that shape, for its shape only.
  Tensor empty(std::string_view shape, const at::TensorOptions& options) const;

 private:
  c10::SymInt& size(char letter) { return sizes_[letter - 'A']; }
  void check_kind(const Argument& argument);
  void check_shape(const Argument& argument);
  std::vector<c10::SymInt> known(std::string_view shape) const;  // -1: not yet, or any

  std::string_view op_;
  Types types_;
  std::optional<at::Device> device_;  // of the first argument
  std::array<c10::SymInt, 26> sizes_;
};

// --- Gradients. Of what was not given, or is not wanted, they have shape [0]. ---

inline Tensor no_gradient(const Tensor& like) { return at::empty({0}, like.options()); }

// x's own, from that of x with its heads (dimension `dim`) repeated as expand_heads does.
inline Tensor gradient_of(const Tensor& x, const Tensor& wide, int64_t dim = 2) {
  return sum_heads(wide, x.size(dim), dim).to(x.scalar_type());
}

}  // namespace cortado
