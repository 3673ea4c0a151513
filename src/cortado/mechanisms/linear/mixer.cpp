#include "cortado/mechanisms/linear/mixer.h"

#include "cortado/mechanisms/linear/op.h"
#include "cortado/primitives/gated_scan/op.h"

namespace cortado {

LinearMixer::LinearMixer(const LinearSettings& settings, int64_t dim)
    : Mixer("linear"), settings_(settings), head_dim_(dim / settings.heads) {
  q_ = register_module("q", std::make_shared<Linear>(dim, dim, settings.bias));
  k_ = register_module("k", std::make_shared<Linear>(dim, dim, settings.bias));
  v_ = register_module("v", std::make_shared<Linear>(dim, dim, settings.bias));
  if (settings.gate) g_ = register_module("g", std::make_shared<Linear>(dim, dim, settings.bias));
  o_ = register_module("o", make_output_linear(dim, dim, settings.bias));
}

Tensor LinearMixer::feature_map(const Tensor& x) const {
  const Tensor heads = split_heads(x, settings_.heads);
  return settings_.feature_map == "elu" ? at::elu(heads) + 1 : at::relu(heads);
}

Tensor LinearMixer::output(const Tensor& x, const Tensor& mixed) const {
  Tensor y = merge_heads(mixed);
  if (g_) y = y * at::sigmoid(g_->forward(x));
  return o_->forward(y);
}

Tensor LinearMixer::mix(const Tensor& q, const Tensor& k, const Tensor& v, const Batch& batch,
                        SequenceState* state) const {
  std::optional<Tensor> scan, normalizer;
  if (state) scan = state->at("scan_state");
  if (!settings_.normalize) {
    auto [o, last] = gated_scan(q, k, v, {}, "key", 1.0, {}, scan, batch.cu_seqlens);
    if (state) state->at("scan_state") = last;
    return o;
  }
  if (state) normalizer = state->at("normalizer");
  const LinearResult result =
      normalized_linear(q, k, v, settings_.causal, settings_.epsilon, scan, normalizer, batch.cu_seqlens);
  if (state) {
    state->at("scan_state") = result.state;
    state->at("normalizer") = result.normalizer;
  }
  return result.o;
}

Tensor LinearMixer::forward(const Tensor& x, const Batch& batch, SequenceState* state) {
  return output(x, mix(feature_map(q_->forward(x)), feature_map(k_->forward(x)),
                       split_heads(v_->forward(x), settings_.heads), batch, state));
}

Tensor LinearMixer::reference(const Tensor& x) {
  return output(x, linear_reference(feature_map(q_->forward(x)), feature_map(k_->forward(x)),
                                    split_heads(v_->forward(x), settings_.heads), settings_.causal, settings_.epsilon,
                                    settings_.normalize));
}

SequenceState LinearMixer::zero_state(int64_t rows, const at::TensorOptions& options) const {
  SequenceState state(name());
  const auto wide = scan_options(options);
  state.add("scan_state", at::zeros({rows, settings_.heads, head_dim_, head_dim_}, wide));
  if (settings_.normalize) state.add("normalizer", at::zeros({rows, settings_.heads, head_dim_}, wide));
  return state;
}

int64_t LinearMixer::state_bytes(int64_t) const {
  return settings_.heads * head_dim_ * (head_dim_ + (settings_.normalize ? 1 : 0)) * 4;
}

double LinearMixer::flops_per_token(int64_t) const {
  return linear_flops({q_.get(), k_.get(), v_.get(), g_.get(), o_.get()}) +
         4.0 * static_cast<double>(settings_.heads * head_dim_ * (head_dim_ + 1));
}

const Mechanism kLinear = {
    .name = "linear",
    .family = "linear attention",
    .paper = "linear-attention chapter; Latte-Macchiato eq. 4-5",
    .equation = "o_t = S_t' phi(q_t) / (phi(q_t).z_t), S_t = sum phi(k_s) v_s'",
    .state = "D (D/H + 1)",
    .bidirectional = true,
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          LinearSettings read{};
          read.heads = read_heads(settings, context, context.dim, "dim");
          read.feature_map = settings.choice("feature_map", {"elu", "relu"}, "elu");
          read.normalize = settings.boolean("normalize", true);
          read.epsilon = settings.number("epsilon", 0.0, 1.0, 1e-6);
          read.gate = settings.boolean("gate", true);
          read.bias = settings.boolean("bias", true);
          read.causal = context.causal;
          if (!read.causal && !read.normalize) settings.fail("normalize false has no bidirectional form");
          return std::make_shared<LinearMixer>(read, context.dim);
        },
    .examples = {R"({})", R"({"heads": 3, "gate": false, "bias": false, "epsilon": 0})",
                 R"({"feature_map": "relu", "epsilon": 0.01})"},
};

}  // namespace cortado
