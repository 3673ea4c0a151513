#include "cortado/primitives/operator.h"

namespace cortado {
namespace {

bool is_size(char letter) { return letter >= 'A' && letter <= 'Z'; }
bool is_any(const c10::SymInt& size) { return !size.is_heap_allocated() && size.expect_int() < 0; }

}  // namespace

Sizes::Sizes(std::string_view op, const OptionalTensor& cu_seqlens, std::initializer_list<Argument> arguments,
             Types types) {
  sizes_.fill(-1);
  for (const Argument& argument : arguments) {
    fail_input_if(types == Types::kFloating && argument.x && !argument.x->is_floating_point(), "[", op, "] ",
                  argument.name, " must be a floating-point tensor, got ",
                  argument.x ? argument.x->scalar_type() : at::kFloat);
  }
  std::array<std::pair<const char*, c10::SymInt>, 4> heads{{{"", 1}, {"", 1}, {"", 1}, {"", 1}}};
  c10::SymInt reading = 1;
  bool resolved = false;
  const auto resolve = [&] {
    if (std::exchange(resolved, true)) return;
    size('S') = common_heads(op, {heads[0], heads[1], heads[2], heads[3]});
    size('H') = output_heads(op, reading, size('S'));
    size('N') = packed_rows(op, cu_seqlens, size('B'));
  };
  auto next = heads.begin();
  for (const auto& [name, x, shape] : arguments) {
    if (shape.starts_with('N')) resolve();
    if (!x) continue;
    const c10::SymIntArrayRef found = x->sym_sizes();
    bool fits = x->layout() == at::kStrided && found.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) {
      const bool any = !is_size(shape[i]) || is_any((*this)[shape[i]]);
      const bool empty = shape.size() == 4 && i >= 2 && found[i] == 0;
      fits = !empty && (any || found[i] == (*this)[shape[i]]);
    }
    if (!fits) expect_shape(op, name, *x, known(shape));  // or only empty; texts are not for every decoded token
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 'h') *next++ = {name, found[i]};
      if (shape[i] == 'q') reading = found[i];
      if (is_size(shape[i])) size(shape[i]) = found[i];
    }
  }
  resolve();
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
