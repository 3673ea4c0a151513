// serial_hybrid: a recurrence whose input is the layer's input and what attention and a feed-forward make of it and of
// the model's embedding.
#include "cortado/mechanisms/mamba2/mixer.h"

#include "cortado/mechanisms/registry.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/nn/feed_forward.h"
#include "cortado/nn/norm/norms.h"

namespace cortado {
namespace {

// State: the tensors of the attention's and the recurrence's states, as "attention.NAME" and "recurrence.NAME".
class SerialHybridMixer : public Mixer {
 public:
  SerialHybridMixer(JsonReader& settings, const MixerContext& context) : Mixer("serial_hybrid") {
    const double eps = settings.number("norm_eps", 0.0, 1.0, 1e-5);
    if (settings.boolean("recall", true)) add_recall(settings, context, eps);
    norm_ = register_module("norm", std::make_shared<RmsNorm>(context.dim, eps));
    Json own = settings.object("recurrence");
    if (own.empty()) own = {{"mixer", kMamba2.name}};
    recurrence_ = register_module("recurrence", make_mixer(own, context, settings.place() + ".recurrence"));
    settings.fail_if(recurrence_->shares_values(), "the recurrence shares values of its own with other layers");
  }

  Tensor reference(const Tensor& x) override {
    Tensor sum = x;
    if (attention_) sum = x + recalled(attention_->reference(attention_norm_->forward(side_by_side(x, x))));
    return recurrence_->reference(norm_->forward(sum));
  }

  std::optional<PairCount> pairs(int64_t tokens) const override {
    const auto stored = recurrence_->pairs(tokens);
    if (!attention_) return stored;
    PairCount all = *attention_->pairs(tokens);
    if (stored) all = {all.softmax + stored->softmax, all.state + stored->state};
    return all;
  }

  double flops_per_token(int64_t tokens) const override {
    const double own = recurrence_->flops_per_token(tokens);
    if (!attention_) return own;
    return own + attention_->flops_per_token(tokens) + feed_forward_->flops_per_token() + linear_flops({out_.get()});
  }

  bool shares_values() const override { return true; }

  Joining joining() const override { return attention_ ? Joining{} : recurrence_->joining(); }

 private:
  void add_recall(JsonReader& settings, const MixerContext& context, double eps) {
    const int64_t dim = context.dim;
    MixerContext wide = context;
    wide.dim = 2 * dim;
    JsonReader inner(settings.object("attention"), settings.place() + ".attention");
    AttentionSettings attention = AttentionSettings::read_all(inner, wide);
    inner.finish();
    attention.output_dim = dim;
    attention_norm_ = register_module("attention_norm", std::make_shared<RmsNorm>(wide.dim, eps));
    attention_ = register_module("attention", std::make_shared<SoftmaxMixer>(attention, wide.dim));
    feed_forward_norm_ = register_module("feed_forward_norm", std::make_shared<RmsNorm>(dim, eps));
    const FeedForwardOptions options = {.dim = dim,
                                        .hidden = settings.integer("feed_forward", 1, 1 << 20, 4 * dim),
                                        .gated = true,
                                        .activation = Activation::kGelu,
                                        .bias = settings.boolean("bias", false)};
    feed_forward_ = register_module("feed_forward", std::make_shared<FeedForward>(options));
    out_ = register_module("out", std::make_shared<Linear>(dim, dim));
  }

  void declare(StateLayout& layout) const override {
    if (attention_) layout.within("attention", attention_->state_layout());
    layout.within("recurrence", recurrence_->state_layout());
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    Tensor embedded = x;  // where the layer is the first one of its kind
    if (Tensor* const first = batch.first_values) {
      if (!first->defined()) *first = x;
      embedded = *first;
    }
    Tensor sum = x;
    if (attention_) {
      const Tensor both = attention_norm_->forward(side_by_side(x, embedded));
      sum = x + recalled(run(*attention_, "attention", both, batch, state));
    }
    return run(*recurrence_, "recurrence", norm_->forward(sum), batch, state);
  }

  // Under autocast to another 16-bit type cat() refuses x.
  static Tensor side_by_side(const Tensor& x, const Tensor& embedded) {
    const NoAutocast as_given;
    return at::cat({x, embedded}, -1);
  }

  // Runs a mixer on its part of the state.
  static Tensor run(Mixer& mixer, const std::string& name, const Tensor& x, const Batch& batch, SequenceState* state) {
    Batch own_batch = batch;
    own_batch.first_values = nullptr;
    if (!state) return mixer.forward(x, own_batch, nullptr);
    SequenceState own = state->part(name, mixer.name());
    // In a part of a sequence the caller has set the position of a mixer's state, but does not know those inside.
    Tensor* const position = batch.parts ? own.find(StateLayout::kPosition) : nullptr;
    if (position) *position = at::full_like(*position, batch.before);
    Tensor y = mixer.forward(x, own_batch, &own);
    state->put(name, std::move(own));
    return y;
  }

  // The part after the attention.
  Tensor recalled(const Tensor& attended) const {
    return out_->forward(feed_forward_->forward(feed_forward_norm_->forward(attended)));
  }

  // Null without recall, but for norm_ and recurrence_.
  std::shared_ptr<RmsNorm> attention_norm_, feed_forward_norm_, norm_;
  std::shared_ptr<SoftmaxMixer> attention_;
  std::shared_ptr<FeedForward> feed_forward_;
  std::shared_ptr<Linear> out_;
  std::shared_ptr<Mixer> recurrence_;
};

}  // namespace

extern const Mechanism kSerialHybrid = {
    .name = "serial_hybrid",
    .family = "hybrid",
    .paper = "Zamba2 (Glorioso et al. 2024)",
    .equation = "o_t = recurrence(x + W f(attention([x, e])))_t",
    .state = "those of both mixers",
    .primitives = {"window_attention", "gated_scan", "short_conv"},
    .make = construct<SerialHybridMixer>,
};

}  // namespace cortado
