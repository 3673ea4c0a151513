// Nodes of torch's backward graph: what differs between the versions of torch that the project builds with.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

namespace cortado {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13

using NodePointer = std::shared_ptr<torch::autograd::Node>;

template <class T, class... Arguments>
std::shared_ptr<T> make_node(Arguments&&... arguments) {
  return {new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode};
}

#else

using NodePointer = c10::intrusive_ptr<torch::autograd::Node>;

template <class T, class... Arguments>
c10::intrusive_ptr<T> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

#endif

}  // namespace cortado
