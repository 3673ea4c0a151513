#include "cortado/models/language_model.h"

#include "cortado/base/error.h"
#include "cortado/nn/cross_entropy/op.h"

namespace cortado {
namespace {

constexpr int64_t kLogitsAtOnce = int64_t{1} << 24;

}  // namespace

LanguageModel::LanguageModel(ModelConfig given) : Backbone("LanguageModel", std::move(given)) {
  const ModelConfig& config = this->config();
  fail_input_if(config.channels > 0, "[model] \"input\" is numbers: a language model reads tokens");
  fail_input_if(config.head.kind != HeadKind::kLanguage, "[model] \"head\" is not a language model's");
  if (!config.tied) {
    head_ = register_module("head", std::make_shared<Linear>(config.dim, config.vocabulary, config.head_bias));
  } else if (config.head_bias) {
    register_parameter(tied_bias_, "head_bias", at::zeros({config.vocabulary}), Role::kGain);
  }
  initialize_weights();
}

std::optional<Tensor> LanguageModel::head_bias() const {
  if (head_) return head_->bias;
  return tied_bias_.defined() ? std::optional<Tensor>(tied_bias_) : std::nullopt;
}

Tensor LanguageModel::logits(const Tensor& hidden) const {
  const std::optional<Tensor> bias = head_bias();
  const Tensor z = head_ ? head_->forward(hidden) : embedding()->logits(hidden, bias);
  return config().final_softcap ? at::tanh(z / *config().final_softcap) * *config().final_softcap : z;
}

Tensor LanguageModel::forward(const Tensor& tokens, const Batch& batch, ModelState* state) {
  return logits(hidden(tokens, batch, state));
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets, const Batch& batch) {
  return loss_of(hidden(tokens, batch), targets);
}

Tensor LanguageModel::loss_of(const Tensor& hidden, const Tensor& targets) const {
  fail_input_if(targets.sizes() != hidden.sizes().slice(0, 2) || targets.scalar_type() != at::kLong,
                "[model] expected int64 targets of the tokens' shape ", hidden.sizes().slice(0, 2), ", got ",
                targets.sizes());
  if (targets.is_cpu() && targets.numel() > 0) {
    const int64_t worst = targets.max().item<int64_t>();
    fail_input_if(worst >= config().vocabulary, "[model] target ", worst, " is outside the vocabulary 0..",
                  config().vocabulary - 1);
  }
  Tensor last = hidden.flatten(0, 1), wanted = targets.flatten().clamp_min(-1);
  // If few tokens have a target, as in most tasks, the head is applied to those only.
  const Tensor counted = wanted.ge(0).nonzero().squeeze(1);
  if (counted.size(0) > 0 && 2 * counted.size(0) < wanted.size(0)) {
    last = last.index_select(0, counted.to(last.device()));
    wanted = wanted.index_select(0, counted);
  }
  wanted = wanted.to(last.device());
  if (weight_format() != WeightFormat::kPlain || (head_ && !head_->plain())) return loss_by_logits(last, wanted);
  const Tensor& weight = head_ ? head_->weight : embedding()->weight;
  return linear_cross_entropy(last, weight, head_bias(), wanted, config().final_softcap);
}

// For heads without a plain matrix. Logits exist for a few rows at a time.
Tensor LanguageModel::loss_by_logits(const Tensor& hidden, const Tensor& targets) const {
  const int64_t rows = std::max<int64_t>(1, kLogitsAtOnce / config().vocabulary);
  const auto type = hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor sum = at::zeros({}, hidden.options().dtype(type));
  for (int64_t first = 0; first < hidden.size(0); first += rows) {
    const int64_t count = std::min(rows, hidden.size(0) - first);
    const Tensor z = logits(hidden.narrow(0, first, count)).to(type);
    sum = sum + at::cross_entropy_loss(z, targets.narrow(0, first, count), {}, at::Reduction::Sum, -1);
  }
  return sum / targets.ne(-1).sum().clamp_min(1);
}

double LanguageModel::flops_per_token(int64_t depth) const {
  return 2.0 * static_cast<double>(config().vocabulary) * static_cast<double>(config().dim) +
         Backbone::flops_per_token(depth);
}

}  // namespace cortado
