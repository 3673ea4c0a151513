// parallel_hybrid: two mixers side by side on the layer's input; their outputs are added.
#include "cortado/mechanisms/mamba2/mixer.h"

#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/softmax/mixer.h"

namespace cortado {
namespace {

// State: the tensors of both mixers' states, as "attention.NAME" and "recurrence.NAME".
class ParallelHybridMixer : public Mixer {
 public:
  ParallelHybridMixer(JsonReader& settings, const MixerContext& context) : Mixer("parallel_hybrid") {
    add("attention", kSoftmax, settings, context);
    add("recurrence", kMamba2, settings, context);
  }

  Tensor reference(const Tensor& x) override {
    return sum([&](const Branch& branch) { return branch.mixer->reference(x); });
  }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    std::optional<PairCount> all;
    for (const Branch& branch : branches_) {
      const auto own = branch.mixer->pairs(tokens);
      if (own && !all) all.emplace();
      if (own) all = PairCount{all->softmax + own->softmax, all->state + own->state};
    }
    return all;
  }

  double flops_per_token(int64_t tokens) const override {
    double flops = 0;
    for (const Branch& branch : branches_) flops += branch.mixer->flops_per_token(tokens);
    return flops;
  }

  // Its state composes if both do.
  bool shares_values() const override {
    return branches_[0].mixer->shares_values() || branches_[1].mixer->shares_values();
  }

  Joining joining() const override {
    const Joining a = branches_[0].mixer->joining(), b = branches_[1].mixer->joining();
    if (a.least == 0 || b.least == 0) return {};
    return {std::max(a.least, b.least), std::max(a.cost, b.cost)};
  }

 private:
  struct Branch {
    std::string name;
    std::shared_ptr<Mixer> mixer;
    double scale;
  };

  void add(const std::string& name, const Mechanism& usual, JsonReader& settings, const MixerContext& context) {
    Json own = settings.object(name);
    if (own.empty()) own = {{"mixer", usual.name}};
    const auto mixer = make_mixer(own, context, concat(settings.place(), ".", name));
    branches_.push_back({name, register_module(name, mixer), settings.number(name + "_scale", -1e6, 1e6, 1.0)});
  }

  void declare(StateLayout& layout) const override {
    for (const Branch& branch : branches_) layout.within(branch.name, branch.mixer->state_layout());
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    return sum([&](const Branch& branch) {
      if (!state) return branch.mixer->forward(x, batch, nullptr);
      SequenceState own = state->part(branch.name, branch.mixer->name());
      // In a part of a sequence the caller has set the position of a mixer's state, but does not know those inside.
      Tensor* const position = batch.parts ? own.find(StateLayout::kPosition) : nullptr;
      if (position) *position = at::full_like(*position, batch.before);
      Tensor y = branch.mixer->forward(x, batch, &own);
      state->put(branch.name, std::move(own));
      return y;
    });
  }

  template <typename Mix>
  Tensor sum(const Mix& mix) const {
    Tensor all;
    for (const Branch& branch : branches_) {
      const Tensor y = mix(branch), scaled = branch.scale == 1 ? y : y * branch.scale;
      all = all.defined() ? all + scaled : scaled;
    }
    return all;
  }

  std::vector<Branch> branches_;
};

}  // namespace

extern const Mechanism kParallelHybrid = {
    .name = "parallel_hybrid",
    .family = "hybrid",
    .paper = "Falcon-H1 (Zuo et al. 2025)",
    .equation = "o_t = a attention(x)_t + b recurrence(x)_t",
    .state = "those of both mixers",
    .primitives = {"window_attention", "gated_scan", "short_conv"},
    .make = construct<ParallelHybridMixer>,
};

}  // namespace cortado
