// Fuzzing of operators: records valid calls and draws new arguments for them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cortado/base/error.h"

namespace cortado::testing {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Describe an argument, and a call with all of its arguments, for messages. A tensor appears as its type and shape.
inline std::string text_of(const IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const Tensor& x = value.toTensor();
    return concat(x.scalar_type(), x.sizes(), x.layout() == at::kStrided ? "" : " sparse", x.is_meta() ? " meta" : "");
  }
  if (value.isList()) {
    std::string all = "[";
    for (const IValue& entry : value.toListRef()) all += concat(all.size() > 1 ? ", " : "", text_of(entry));
    return all + "]";
  }
  return concat(value);
}

inline std::string text_of(const c10::OperatorHandle& op, const Stack& arguments) {
  std::string text = op.schema().name() + "(";
  for (size_t i = 0; i < arguments.size(); ++i) {
    text += concat(i ? ", " : "", op.schema().arguments()[i].name(), "=", text_of(arguments[i]));
  }
  return text + ")";
}

// Returns a deep copy of the arguments, detached from any autograd graph.
inline IValue copy_of(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(value.toTensor().detach().clone()) : value;
  if (!value.isList()) return value;
  auto list = c10::impl::GenericList(value.toList().elementType());
  for (const IValue& entry : value.toListRef()) list.push_back(copy_of(entry));
  return list;
}

// Valid calls of each of our operators, by operator name.
using Calls = std::map<std::string, std::vector<Stack>>;

// Records calls of our operators during its lifetime: up to 40 calls of different shapes per operator.
class NotedCalls {
 public:
  explicit NotedCalls(Calls& calls)
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&note).needsInputs(true))) {
    into() = &calls;
  }
  ~NotedCalls() { at::removeCallback(handle_); }
  NotedCalls(const NotedCalls&) = delete;
  NotedCalls& operator=(const NotedCalls&) = delete;

 private:
  static constexpr size_t kMost = 40;

  static Calls*& into() {
    static thread_local Calls* calls = nullptr;
    return calls;
  }

  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::string name = function.name();
    const auto schema = function.operator_schema();
    if (!name.starts_with("cortado::") || !schema || function.inputs().size() != schema->arguments().size()) return {};
    std::vector<Stack>& noted = (*into())[name];
    if (noted.size() >= kMost) return {};
    Stack arguments;
    for (const IValue& value : function.inputs()) arguments.push_back(copy_of(value));
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    for (const Stack& other : noted) {
      if (text_of(op, other) == text_of(op, arguments)) return {};
    }
    noted.push_back(std::move(arguments));
    return {};
  }

  at::CallbackHandle handle_;
};

// Replaces arguments of a valid call by random ones.
class Changes {
 public:
  Changes(uint64_t seed, const std::vector<Stack>& others) : random_(seed), others_(others) {}

  // Replaces one to three arguments.
  Stack changed(const c10::OperatorHandle& op, Stack arguments) {
    if (arguments.empty()) return arguments;
    for (size_t count = 1 + below(3); count > 0; --count) {
      const size_t place = below(arguments.size());
      arguments[place] = changed(arguments[place], *op.schema().arguments()[place].type(), place);
    }
    return arguments;
  }

  size_t below(size_t end) { return random_() % end; }

 private:
  using Type = c10::Type;

  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }

  IValue changed(const IValue& value, const Type& type, size_t place) {
    if (const auto* optional = type.castRaw<c10::OptionalType>()) {
      if (!value.isNone() && below(4) == 0) return {};
      return changed(value, *optional->getElementType(), place);
    }
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return changed(value.isTensor() && below(6) ? value.toTensor() : any_tensor());
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return one_of<int64_t>({std::numeric_limits<int64_t>::min(), -2, -1, 0, 1, 2, 3, 4, 5, 7, 30, int64_t{1} << 31,
                                (int64_t{1} << 53) + 1, std::numeric_limits<int64_t>::max()});
      case c10::TypeKind::FloatType:
        return one_of<double>({0.0, -1.0, 1e-30, 0.5, 3.0, 1e30, -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()});
      case c10::TypeKind::BoolType:
        return below(2) == 0;
      case c10::TypeKind::StringType:
        return below(2) ? others_[below(others_.size())][place] : IValue(one_of<std::string>({"", "nothing", "{}"}));
      case c10::TypeKind::ListType:
        return changed_list(value, type);
      default:
        return value;
    }
  }

  IValue changed_list(const IValue& value, const Type& type) {
    std::vector<IValue> entries = value.toListRef().vec();
    const auto element = type.expectRef<c10::ListType>().getElementType();
    const size_t what = below(4);
    if (what == 0 || entries.empty()) {
      entries.push_back(entries.empty() ? changed(IValue(), *element, 0) : entries[below(entries.size())]);
    } else if (what == 1) {
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(below(entries.size())));
    } else {
      IValue& entry = entries[below(entries.size())];
      entry = what == 2 ? entries[below(entries.size())] : changed(entry, *element, 0);
    }
    auto list = c10::impl::GenericList(value.toList().elementType());
    for (const IValue& entry : entries) {
      if (entry.isNone() && element->kind() != c10::TypeKind::OptionalType) return value;
      list.push_back(entry);
    }
    return list;
  }

  // Returns a tensor from any valid call of the operator.
  Tensor any_tensor() {
    for (int tries = 0; tries < 20; ++tries) {
      const Stack& other = others_[below(others_.size())];
      const IValue& value = other[below(other.size())];
      if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
    }
    return at::ones({2, 3});
  }

  // Returns x with `size` entries in dimension `dim`.
  static Tensor with_size(const Tensor& x, int64_t dim, int64_t size) {
    if (x.size(dim) > 0) return x.index_select(dim, at::arange(size).remainder(x.size(dim)));
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes[dim] = size;
    return at::ones(sizes, x.options());
  }

  Tensor changed(Tensor x) {
    if (x.layout() != at::kStrided || x.is_meta()) return any_tensor();
    const auto dim = x.dim() ? static_cast<int64_t>(below(x.dim())) : 0;
    switch (below(x.dim() ? 12 : 4)) {
      case 0:
        return x.unsqueeze(dim);
      case 1:
        return x.to(one_of({at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kBool,
                            at::kComplexFloat, at::kByte}));
      case 2:
        return any_tensor();
      case 3:
        return with_values(x);
      case 4:
        return x.size(dim) > 0 ? x.select(dim, static_cast<int64_t>(below(x.size(dim)))) : x.squeeze(dim);
      case 5:
        return x.transpose(dim, static_cast<int64_t>(below(x.dim())));
      case 6:
        return x.size(dim) > 0 ? x.narrow(dim, 0, 1).expand_as(x) : x;  // all entries at one address
      case 7:
        return below(2) ? at::empty_like(x, x.options().device(at::kMeta)) : x.to_sparse();
      case 8:
        return with_size(x, dim, 2 * x.size(dim)).slice(dim, 0, 2 * x.size(dim), 2);  // with gaps between entries
      default:
        return with_size(
            x, dim,
            one_of<int64_t>({0, 1, 2, 3, x.size(dim) + 1, std::max<int64_t>(0, x.size(dim) - 1), 2 * x.size(dim)}));
    }
  }

  Tensor with_values(const Tensor& x) {
    const double infinity = std::numeric_limits<double>::infinity();
    Tensor y = x.clone();
    const bool wide = x.scalar_type() == at::kLong, whole = at::isIntegralType(x.scalar_type(), true);
    const auto number =
        whole && wide
            ? at::Scalar(one_of<int64_t>({-1, 0, 1, 5, 1000, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}))
        : whole ? at::Scalar(one_of<int64_t>({0, 1, 5, 100}))
                : at::Scalar(one_of({infinity, -infinity, 0.0, 6e4, -6e4, std::nan("")}));
    if (x.numel() == 0) return y;
    if (below(2) || x.dim() == 0) return at::full_like(y, number);
    y.select(0, static_cast<int64_t>(below(y.size(0)))).fill_(number);
    return y;
  }

  std::mt19937_64 random_;
  const std::vector<Stack>& others_;
};

}  // namespace cortado::testing
