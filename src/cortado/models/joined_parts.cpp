#include "cortado/models/joined_parts.h"

#include <ATen/ExpandUtils.h>
#include <torch/csrc/autograd/custom_function.h>

namespace cortado {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One exchange among the processes of a group, with a number of its own.
class Exchange {
 public:
  Exchange(const Relay& relay, int64_t number) : relay_(&relay), number_(number) {}
  explicit Exchange(AutogradContext* context)
      : relay_(reinterpret_cast<const Relay*>(context->saved_data["relay"].toInt())),
        number_(context->saved_data["number"].toInt()) {}
  void save(AutogradContext* context) const {
    context->saved_data["relay"] = reinterpret_cast<int64_t>(relay_);
    context->saved_data["number"] = number_;
  }

  int64_t part() const { return relay_->part(); }
  int64_t last() const { return relay_->parts() - 1; }
  void send(const Tensors& tensors, int64_t first, int64_t last) const {
    relay_->send(tensors, number_, first - part(), last - part());
  }
  Tensors receive(size_t count, int64_t from, const Tensor& like) const {
    return relay_->receive(count, number_, from - part(), like.device());
  }

 private:
  const Relay* relay_;
  int64_t number_;
};

class TailBefore : public torch::autograd::Function<TailBefore> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& tail, const Tensor& start, const Exchange& exchange) {
    exchange.save(context);
    const int64_t part = exchange.part();
    if (part < exchange.last()) exchange.send({tail}, part + 1, part + 1);
    return part > 0 ? exchange.receive(1, part - 1, tail)[0] : start.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Exchange exchange(context);
    const int64_t part = exchange.part();
    if (part > 0) exchange.send(gradients, part - 1, part - 1);
    Tensor tail;
    if (part < exchange.last()) tail = exchange.receive(1, part + 1, gradients[0])[0];
    return {tail, part == 0 ? gradients[0] : Tensor(), Tensor()};
  }
};

using Decay = SequenceParts::Decay;

// The gradients of decay·S: with respect to S, and to the decay.
Tensor decayed_back(Decay kind, const Tensor& decay, const Tensor& gradient) {
  return kind == Decay::kFactors ? decay * gradient : at::matmul(decay.transpose(-1, -2), gradient);
}
Tensor decay_gradient(Decay kind, const Tensor& decay, const Tensor& state, const Tensor& gradient) {
  if (kind == Decay::kFactors) return at::sum_to(gradient * state, decay.sizes());
  return at::matmul(gradient, state.transpose(-1, -2));
}

// The state S_p before part p: S_0 = start, S_{p+1} = decay_p S_p + own_p.
class StateBefore : public torch::autograd::Function<StateBefore> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& decay, const Tensor& own, const Tensor& start,
                        Decay kind, const Exchange& exchange) {
    exchange.save(context);
    context->saved_data["kind"] = static_cast<int64_t>(kind);
    const int64_t part = exchange.part();
    exchange.send({decay, part == 0 ? decayed(kind, decay, start) + own : own}, part + 1, exchange.last());
    Tensor state = start.clone();
    for (int64_t before = 0; before < part; ++before) {
      const Tensors left = exchange.receive(2, before, own);
      state = before == 0 ? left[1] : decayed(kind, left[0], state) + left[1];
    }
    context->save_for_backward({decay, state});
    return state;
  }

  // E_p is the gradient of the state after part p: E_last = 0, E_p = dS_{p+1} + decay_{p+1}ᵀ E_{p+1}.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Exchange exchange(context);
    const auto kind = static_cast<Decay>(context->saved_data["kind"].toInt());
    const auto saved = context->get_saved_variables();
    const Tensor &decay = saved[0], &state = saved[1];
    const int64_t part = exchange.part();
    exchange.send({gradients[0].contiguous(), decay}, 0, part - 1);
    Tensor left;  // E_p; undefined for the last part, whose final state nobody reads
    for (int64_t behind = exchange.last(); behind > part; --behind) {
      const Tensors begun = exchange.receive(2, behind, state);
      left = left.defined() ? begun[0] + decayed_back(kind, begun[1], left) : begun[0];
    }
    if (!left.defined()) return {Tensor(), Tensor(), part == 0 ? gradients[0] : Tensor(), Tensor(), Tensor()};
    const Tensor start = part == 0 ? gradients[0] + decayed_back(kind, decay, left) : Tensor();
    return {decay_gradient(kind, decay, state, left), left, start, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor JoinedParts::tail_before(const Tensor& tail, const Tensor& start) const {
  return TailBefore::apply(tail, start, Exchange(relay_, relay_.next_exchange()));
}

Tensor JoinedParts::state_before(const Tensor& decay, const Tensor& own, const Tensor& start, Decay kind) const {
  return StateBefore::apply(decay, own, start, kind, Exchange(relay_, relay_.next_exchange()));
}

Tensor JoinedParts::maximum_before(const Tensor& own, const Tensor& start) const {
  const at::NoGradGuard no_grad;
  const Exchange exchange(relay_, relay_.next_exchange());
  const int64_t part = exchange.part();
  exchange.send({part == 0 ? at::maximum(own, start) : own}, part + 1, exchange.last());
  Tensor largest = part == 0 ? start.clone() : exchange.receive(1, 0, own)[0];
  for (int64_t before = 1; before < part; ++before) largest = at::maximum(largest, exchange.receive(1, before, own)[0]);
  return largest;
}

}  // namespace cortado
