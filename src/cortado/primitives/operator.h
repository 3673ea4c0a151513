// Registers a primitive as a torch operator, and the steps that every op.cpp begins and ends with.
#pragma once

#include <torch/library.h>

#include <string>
#include <utility>

#include "cortado/primitives/common.h"

namespace cortado {

// --- Autograd: an operator X whose gradient is an operator X_backward (differentiable.cpp). ---

// Describes X_backward: its name ("cortado::X_backward") and the arguments of X that its results are the gradients of,
// in that order. Gradients of absent arguments are ignored, and so is that of `optional_work` when it needs none. The
// arguments of X_backward are recognised by their names in its schema:
//
//   grad_...  come first: the gradients of X's first results (zeros if one is missing, unless it is optional)
//   need_...  whether X's argument `optional_work` requires a gradient
//   others    X's argument or result of that name
struct GradientOperator {
  std::string name;
  std::vector<std::string> inputs;
  std::string optional_work = "";
};

// The Autograd kernel of X. Computes the forward and, if a gradient may be needed, records how to call X_backward.
torch::CppFunction differentiable_by(const GradientOperator& gradient);

// The Meta kernel of X_backward. Each result has the shape and type of the argument it is the gradient of. If
// X_backward does not take that argument, it has those of the first argument that is not a gradient. Absent or unneeded
// results are [0].
torch::CppFunction gradients_like(const GradientOperator& gradient);

// The Autograd kernel of X_backward. Computes its results; differentiating them again is an error that says so.
torch::CppFunction once_differentiable();

// --- Registration. ---

// Defines an operator by its schema. `kernel` computes on every device, `meta` makes results of the right shapes from
// shapes, `autograd` records what the gradient needs.
template <typename Kernel, typename Meta>
void define_operator(torch::Library& library, const std::string& schema, Kernel kernel, Meta meta,
                     torch::CppFunction autograd) {
  const std::string name = schema.substr(0, schema.find('('));
  library.def(schema.c_str());
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, std::move(meta)));
  library.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Autograd, std::move(autograd)));
}

// The arguments of X_backward: its own first, then X's or, if `arguments` is set, those instead. `inputs` and
// `optional_work` are those of GradientOperator.
struct GradientSchema {
  std::string given;  // "Tensor? grad_o, bool need_gate"
  std::vector<std::string> inputs;
  std::string optional_work = "";
  std::string arguments = "";  // in place of X's arguments; empty: X's
};

// Returns "X_backward(GIVEN, X's arguments) -> (one Tensor per input)".
std::string schema_of_gradient(const std::string& schema, const GradientSchema& gradient);

// Defines an operator X and its gradient X_backward, which cannot be differentiated again.
template <typename Kernel, typename Meta, typename Gradient>
void define_operator(torch::Library& library, const std::string& schema, Kernel kernel, Meta meta, Gradient gradient,
                     const GradientSchema& of_gradient) {
  const std::string gradient_schema = schema_of_gradient(schema, of_gradient);
  const std::string name = "cortado::" + gradient_schema.substr(0, gradient_schema.find('('));
  const GradientOperator by{name, of_gradient.inputs, of_gradient.optional_work};
  define_operator(library, schema, kernel, meta, differentiable_by(by));
  define_operator(library, gradient_schema, gradient, gradients_like(by), once_differentiable());
}

// Returns the operator "cortado::NAME" as a callable of that signature.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Adapts compute(const Struct&) to the flat argument list that the dispatcher calls. Struct's members are the arguments
// of `Signature` in order. Usage: gathered<decltype(gated_scan), compute>.
template <typename Signature, auto compute>
struct Gathered;
template <typename Result, typename... Arguments, auto compute>
struct Gathered<Result(Arguments...), compute> {
  static Result call(Arguments... arguments) { return compute({arguments...}); }
};
template <typename Signature, auto compute>
inline constexpr auto gathered = &Gathered<Signature, compute>::call;

// The same adapter for compute(const Given&, const Struct&) of a gradient operator. Its own arguments, those of
// void(Given...), precede those of X. Usage: gathered_gradient<void(const OptionalTensor&, bool), decltype(gated_scan),
// compute>.
template <typename Given, typename Signature, auto compute>
struct GatheredGradient;
template <typename... Given, typename Result, typename... Arguments, auto compute>
struct GatheredGradient<void(Given...), Result(Arguments...), compute> {
  static auto call(Given... given, Arguments... arguments) { return compute({given...}, {arguments...}); }
};
template <typename Given, typename Signature, auto compute>
inline constexpr auto gathered_gradient = &GatheredGradient<Given, Signature, compute>::call;

// The bounds of packed sequences, read and checked; null for a dense batch.
class Bounds {
 public:
  Bounds(std::string_view op, const OptionalTensor& cu_seqlens, int64_t tokens) : packed_(cu_seqlens.has_value()) {
    if (packed_) bounds_ = sequence_bounds(op, *cu_seqlens, tokens);
  }
  const std::vector<int64_t>* get() const { return packed_ ? &bounds_ : nullptr; }
  const int64_t* data() const { return packed_ ? bounds_.data() : nullptr; }
  // The number of state rows.
  int64_t rows(int64_t batch) const { return packed_ ? static_cast<int64_t>(bounds_.size()) - 1 : batch; }
  // Runs dense(timed, rows) on the batch, or on every packed sequence (for_each_sequence).
  template <typename Dense>
  PackedResult run(const Tensors& timed, const Tensors& rows, const Dense& dense) const {
    return packed_ ? for_each_sequence(bounds_, timed, rows, dense) : dense(timed, rows);
  }

 private:
  bool packed_;
  std::vector<int64_t> bounds_;
};

// An operator's argument and its shape, one letter per dimension. A capital letter (B, T, K, ...) is a size: its first
// occurrence sets it, later ones must match. * matches any size. h: head count of a tensor that writes the state; q: of
// the one that reads it (common.h). Arguments with an N (state rows) come last; there S, the state's head count, and H,
// the output's, are known.
struct Argument {
  const char* name;
  const Tensor* x;  // null: not given
  std::string_view shape;

  Argument(const char* name, const Tensor& x, std::string_view shape) : name(name), x(&x), shape(shape) {}
  Argument(const char* name, const OptionalTensor& x, std::string_view shape)
      : name(name), x(x ? &*x : nullptr), shape(shape) {}
};

enum class Types { kFloating, kComplexToo };

// Checks an operator's arguments and holds their sizes. It uses only shapes, types and devices, so it also runs on Meta
// and fake tensors.
class Sizes {
 public:
  Sizes(std::string_view op, const OptionalTensor& cu_seqlens, std::initializer_list<Argument> arguments,
        Types types = Types::kFloating);

  // Checks further arguments against the known sizes: those that a gradient operator has besides X's.
  void expect(std::initializer_list<Argument> arguments);

  const c10::SymInt& operator[](char letter) const { return sizes_[letter - 'A']; }
  int64_t number(char letter) const { return (*this)[letter].expect_int(); }
  // An uninitialised tensor of that shape, for Meta kernels.
  Tensor empty(std::string_view shape, const at::TensorOptions& options) const;

 private:
  c10::SymInt& size(char letter) { return sizes_[letter - 'A']; }
  void check_kind(const Argument& argument);
  void check_shape(const Argument& argument);
  std::vector<c10::SymInt> known(std::string_view shape) const;  // -1: not yet known, or any size

  std::string_view op_;
  Types types_;
  std::optional<at::Device> device_;  // of the first argument
  std::array<c10::SymInt, 26> sizes_;
};

// --- Gradients. The gradient of an absent argument, or one that is not wanted, has shape [0]. ---

inline Tensor no_gradient(const Tensor& like) { return at::empty({0}, like.options()); }

// The gradient of x, given that of expand_heads(x) along dimension `dim`.
inline Tensor gradient_of(const Tensor& x, const Tensor& wide, int64_t dim = 2) {
  return sum_heads(wide, x.size(dim), dim).to(x.scalar_type());
}

}  // namespace cortado
