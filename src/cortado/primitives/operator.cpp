#include "cortado/primitives/operator.h"

#include "cortado/primitives/cuda/tensors.h"

namespace cortado {
namespace {

bool is_size(char letter) { return letter >= 'A' && letter <= 'Z'; }
bool is_any(const c10::SymInt& size) { return !size.is_heap_allocated() && size.expect_int() < 0; }

}  // namespace

std::string schema_of_gradient(const std::string& schema, const GradientSchema& gradient) {
  const size_t first = schema.find('(') + 1;
  const std::string arguments =
      gradient.arguments.empty() ? schema.substr(first, schema.find(") ->") - first) : gradient.arguments;
  std::string results;
  for (const std::string& input : gradient.inputs) results += (results.empty() ? "Tensor d" : ", Tensor d") + input;
  return concat(schema.substr(0, first - 1), "_backward(", gradient.given, ", ", arguments, ") -> (", results, ")");
}

Sizes::Sizes(std::string_view op, const OptionalTensor& cu_seqlens, std::initializer_list<Argument> arguments,
             Types types)
    : op_(op), types_(types) {
  sizes_.fill(-1);
  for (const Argument& argument : arguments) check_kind(argument);
  std::array<std::pair<const char*, c10::SymInt>, 5> heads{{{"", 1}, {"", 1}, {"", 1}, {"", 1}, {"", 1}}};
  c10::SymInt reading = 1;
  bool resolved = false;
  const auto resolve = [&] {
    if (std::exchange(resolved, true)) return;
    size('S') = common_heads(op, {heads[0], heads[1], heads[2], heads[3], heads[4]});
    size('H') = output_heads(op, reading, size('S'));
    size('N') = packed_rows(op, cu_seqlens, size('B'));
    if (!cu_seqlens || !cu_seqlens->is_cpu() || !cuda::has_numbers(*cu_seqlens)) return;
    const auto tokens = size('T').maybe_as_int();
    if (tokens && *tokens >= 0) sequence_bounds(op, *cu_seqlens, *tokens);
  };
  auto next = heads.begin();
  for (const Argument& argument : arguments) {
    const std::string_view shape = argument.shape;
    if (shape.starts_with('N')) resolve();
    if (!argument.x) continue;
    check_shape(argument);
    for (size_t i = 0; i < shape.size(); ++i) {
      const auto dim = static_cast<int64_t>(i);
      if (shape[i] == 'h') *next++ = {argument.name, argument.x->sym_size(dim)};
      if (shape[i] == 'q') reading = argument.x->sym_size(dim);
    }
  }
  resolve();
}

void Sizes::expect(std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    check_kind(argument);
    if (argument.x) check_shape(argument);
  }
}

// Checks the argument's type, and that its device is the others'.
void Sizes::check_kind(const Argument& argument) {
  if (!argument.x) return;
  const Tensor& x = *argument.x;
  const bool number = x.is_floating_point() || (types_ == Types::kComplexToo && x.is_complex());
  fail_input_if(!number, "[", op_, "] ", argument.name, " must be a floating-point ",
                types_ == Types::kComplexToo ? "or complex " : "", "tensor, got ", x.scalar_type());
  if (!device_) device_ = x.device();
  fail_input_if(x.device() != *device_, "[", op_, "] expected ", argument.name, " on ", *device_,
                " as the others, got ", x.device());
}

// Checks the argument's shape against the known sizes, and sets those not yet known.
void Sizes::check_shape(const Argument& argument) {
  const auto& [name, x, shape] = argument;
  const c10::SymIntArrayRef found = x->sym_sizes();
  bool fits = x->layout() == at::kStrided && found.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    const bool any = !is_size(shape[i]) || is_any((*this)[shape[i]]);
    const bool empty = shape.size() == 4 && i >= 2 && found[i] == 0;
    fits = !empty && (any || found[i] == (*this)[shape[i]]);
  }
  if (!fits) expect_shape(op_, name, *x, known(shape));  // a mismatch or a size of 0; texts are built on failure only
  for (size_t i = 0; i < shape.size(); ++i) {
    if (is_size(shape[i])) size(shape[i]) = found[i];
  }
}

std::vector<c10::SymInt> Sizes::known(std::string_view shape) const {
  std::vector<c10::SymInt> sizes;
  sizes.reserve(shape.size());
  for (const char letter : shape) sizes.push_back(is_size(letter) ? (*this)[letter] : c10::SymInt(-1));
  return sizes;
}

Tensor Sizes::empty(std::string_view shape, const at::TensorOptions& options) const {
  return at::empty_symint(known(shape), options);
}

}  // namespace cortado
