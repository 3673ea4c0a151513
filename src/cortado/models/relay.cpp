#include "cortado/models/relay.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cstdlib>
#include <cstring>

#include "cortado/base/error.h"
#include "cortado/models/joined_parts.h"
#include "cortado/parallel/group.h"

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kMostDims = 8, kHeader = kMostDims + 2;  // type, number of dimensions, sizes

// A tag per message: layer, direction, header or contents.
int tag_of(int64_t layer, int64_t direction, bool contents) {
  return static_cast<int>(layer * 4 + (direction > 0 ? 2 : 0) + (contents ? 1 : 0));
}

Tensor header_of(const std::vector<Tensor>& tensors) {
  Tensor header = at::zeros({static_cast<int64_t>(tensors.size()), kHeader}, at::kLong);
  auto rows = header.accessor<int64_t, 2>();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    TORCH_CHECK(tensors[i].dim() <= kMostDims, "[relay] a state's tensor has ", tensors[i].dim(), " dimensions");
    rows[row][0] = static_cast<int64_t>(tensors[i].scalar_type());
    rows[row][1] = tensors[i].dim();
    for (int64_t d = 0; d < tensors[i].dim(); ++d) rows[row][2 + d] = tensors[i].size(d);
  }
  return header;
}

// One tensor, as a header's row describes it.
struct Described {
  at::ScalarType type;
  std::vector<int64_t> sizes;

  Described(const Tensor& header, int64_t row) {
    const int64_t* fields = header.const_data_ptr<int64_t>() + row * kHeader;
    type = static_cast<at::ScalarType>(fields[0]);
    sizes.assign(fields + 2, fields + 2 + fields[1]);
  }
  int64_t bytes() const { return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type)); }
};

Tensor bytes_of_all(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.detach().contiguous().flatten().view(at::kByte));
  return at::cat(parts);
}

std::vector<Tensor> from_bytes(const Tensor& header, const Tensor& bytes) {
  std::vector<Tensor> tensors;
  int64_t begin = 0;
  for (int64_t i = 0; i < header.size(0); ++i) {
    const Described tensor(header, i);
    tensors.push_back(bytes.narrow(0, begin, tensor.bytes()).clone().view(tensor.type).view(tensor.sizes));
    begin += tensor.bytes();
  }
  return tensors;
}

int64_t length_of(const Tensor& header) {
  int64_t length = 0;
  for (int64_t i = 0; i < header.size(0); ++i) length += Described(header, i).bytes();
  return length;
}

// Converts a state to the tensors that are sent, and back.
std::vector<Tensor> tensors_of(const SequenceState& state) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : state.tensors()) tensors.push_back(tensor);
  return tensors;
}
void replace(SequenceState& state, const std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) state.at(state.tensors()[i].first) = tensors[i];
}

// Receives the state of the previous part and sends its gradient back. x only ties it to the autograd graph.
class ReceiveState : public torch::autograd::Function<ReceiveState> {
 public:
  static variable_list forward(AutogradContext* context, const Variable& x, const Relay* relay, int64_t layer,
                               int64_t count) {
    variable_list state = relay->receive(static_cast<size_t>(count), layer, -1, x.device());
    context->saved_data["relay"] = reinterpret_cast<int64_t>(relay);
    context->saved_data["layer"] = layer;
    context->saved_data["sizes"] = header_of(state);
    variable_list fixed;
    for (const Tensor& tensor : state) {
      if (!tensor.is_floating_point()) fixed.push_back(tensor);
    }
    context->mark_non_differentiable(fixed);
    return state;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* relay = reinterpret_cast<const Relay*>(context->saved_data["relay"].toInt());
    const Tensor header = context->saved_data["sizes"].toTensor();
    std::vector<Tensor> all;
    at::Device device(at::kCPU);
    for (const Tensor& gradient : gradients) {
      if (gradient.defined()) device = gradient.device();
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Described state(header, static_cast<int64_t>(i));
      if (!at::isFloatingType(state.type)) continue;
      const auto options = at::TensorOptions(device).dtype(state.type);
      all.push_back(gradients[i].defined() ? gradients[i].to(options) : at::zeros(state.sizes, options));
    }
    relay->send(all, context->saved_data["layer"].toInt(), -1);
    return {Variable(), Variable(), Variable(), Variable()};
  }
};

// Sends the state to the next part and receives its gradient. Returns y.
class SendState : public torch::autograd::Function<SendState> {
 public:
  static Variable forward(AutogradContext* context, const Variable& y, const Relay* relay, int64_t layer,
                          at::TensorList state) {
    relay->send(state.vec(), layer, +1);
    context->saved_data["relay"] = reinterpret_cast<int64_t>(relay);
    context->saved_data["layer"] = layer;
    std::vector<int64_t> floating;
    for (const Tensor& tensor : state) floating.push_back(tensor.is_floating_point() ? 1 : 0);
    context->saved_data["floating"] = floating;
    return y.view_as(y);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto* relay = reinterpret_cast<const Relay*>(context->saved_data["relay"].toInt());
    const std::vector<int64_t> floating = context->saved_data["floating"].toIntVector();
    const auto count = static_cast<size_t>(std::count(floating.begin(), floating.end(), 1));
    const auto received = relay->receive(count, context->saved_data["layer"].toInt(), +1, gradients[0].device());
    variable_list all = {gradients[0], Variable(), Variable()};
    size_t next = 0;
    for (const int64_t is_floating : floating) all.push_back(is_floating ? received[next++] : Variable());
    return all;
  }
};

}  // namespace

struct Relay::Pending {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensor> tensors;  // tensors being sent
};

namespace {

std::string chosen_way() {
  const char* given = std::getenv("CORTADO_PARTS");
  const std::string way = given ? given : "";
  fail_input_if(!way.empty() && way != "join" && way != "hand", "CORTADO_PARTS must be join or hand, got ", way);
  return way;
}

}  // namespace

Relay::Relay(const Ranks& ranks, int64_t parts)
    : ranks_(ranks), parts_(parts), pending_(std::make_unique<Pending>()), way_(chosen_way()) {
  fail_input_if(parts < 1 || ranks.size() % parts != 0, "[ranks] ", ranks.size(), " processes have no groups of ",
                parts, " that share a sequence");
}

Relay::~Relay() = default;

void Relay::send(const std::vector<Tensor>& tensors, int64_t layer, int64_t first, int64_t last) const {
  if (tensors.empty() || first > last) return;
  const Tensor header = header_of(tensors), contents = bytes_of_all(tensors);
  ranks_.wait([&] {
    for (int64_t direction = first; direction <= last; ++direction) {
      const auto to = static_cast<int>(ranks_.rank() + direction);
      for (const bool with_contents : {false, true}) {
        std::vector<Tensor> message = {with_contents ? contents : header};
        if (message[0].numel() == 0) continue;
        pending_->works.push_back(ranks_.group().handle->send(message, to, tag_of(layer, direction, with_contents)));
        bytes_sent_ += static_cast<int64_t>(message[0].nbytes());
      }
    }
  });
  pending_->tensors.insert(pending_->tensors.end(), {header, contents});
}

int64_t Relay::next_exchange() const {
  constexpr int64_t kBehindLayers = 1 << 20;
  return kBehindLayers + exchanges_++;
}

std::vector<Tensor> Relay::receive(size_t count, int64_t layer, int64_t direction, at::Device device) const {
  if (count == 0) return {};
  const auto from = static_cast<int>(ranks_.rank() + direction);
  // A message from a previous process was tagged as sent to a later one, and vice versa.
  std::vector<Tensor> header = {at::empty({static_cast<int64_t>(count), kHeader}, at::kLong)}, contents;
  ranks_.wait([&] {
    ranks_.group().handle->recv(header, from, tag_of(layer, -direction, false))->wait();
    contents = {at::empty({length_of(header[0])}, at::TensorOptions(device).dtype(at::kByte))};
    if (contents[0].numel() > 0) {
      ranks_.group().handle->recv(contents, from, tag_of(layer, -direction, true))->wait();
    }
  });
  return from_bytes(header[0], contents[0]);
}

Tensor Relay::forward(Mixer& mixer, Layer layer, const Tensor& x, const Batch& batch, SequenceState* kept) const {
  fail_input_if(batch.cu_seqlens.has_value(), "[ranks] packed sequences have no parts in several processes");
  SequenceState own;
  if (!kept) own = mixer.zero_state(x.size(0), x.options().requires_grad(false));
  SequenceState& state = kept ? *kept : own;
  if (joins(mixer, layer.count, batch)) return join(mixer, x, batch, state);
  if (part() > 0)
    replace(state, ReceiveState::apply(x, this, layer.number, static_cast<int64_t>(state.tensors().size())));
  Tensor y = mixer.forward(x, batch, &state);
  if (part() + 1 == parts_) return y;
  const auto left = tensors_of(state);
  return SendState::apply(y, this, layer.number, at::TensorList(left));
}

bool Relay::joins(const Mixer& mixer, int64_t layers, const Batch& batch) const {
  const Joining can = mixer.joining();
  if (way_ == "hand" || can.least == 0 || batch.shortest < can.least) return false;
  return way_ == "join" || static_cast<double>(parts_ - 1) > can.cost * static_cast<double>(layers);
}

Tensor Relay::join(Mixer& mixer, const Tensor& x, const Batch& batch, SequenceState& state) const {
  if (Tensor* position = state.find(StateLayout::kPosition)) *position = at::full_like(*position, batch.before);
  const JoinedParts parts(*this);
  Batch joined = batch;
  joined.parts = &parts;
  return mixer.forward(x, joined, &state);
}

void Relay::hand_back(std::vector<SequenceState>& layers) const {
  const int64_t far = parts_ - 1;
  for (size_t i = 0; i < layers.size() && far > 0; ++i) {
    const auto own = tensors_of(layers[i]);
    if (own.empty()) continue;
    const auto layer = static_cast<int64_t>(i);
    if (part() == far) send(own, layer, -far);
    if (part() == 0) replace(layers[i], receive(own.size(), layer, far, own[0].device()));
  }
}

void Relay::finish() const {
  ranks_.wait([&] {
    for (auto& work : pending_->works) work->wait();
  });
  *pending_ = {};
  exchanges_ = 0;
}

}  // namespace cortado
