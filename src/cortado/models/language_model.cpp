#include "cortado/models/language_model.h"

#include <random>

#include "cortado/base/error.h"
#include "cortado/formats/checksum.h"
#include "cortado/mechanisms/softmax/mixer.h"
#include "cortado/nn/dropout.h"
#include "cortado/nn/linear_cross_entropy.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/positions.h"

namespace cortado {

namespace {

constexpr int64_t kLogitsAtOnce = int64_t{1} << 24;

// Not from torch's generator: making a model must not depend on how it is named.
std::string random_fingerprint() {
  std::random_device device;
  const uint64_t words[2] = {device(), device()};
  Checksum checksum;
  checksum.add(words, sizeof words);
  return checksum.hex();
}

InitializationOptions initialization_options(const ModelConfig& config) {
  InitializationOptions options;
  const Json& json = config.initialization;
  options.layers = static_cast<int64_t>(config.layers.size());
  options.redraw = json.value("type", "lecun") == "normal";
  options.std = json.value("std", 0.02);
  options.scale_residual = json.value("scale_residual", false);
  return options;
}

}  // namespace

LanguageModel::LanguageModel(ModelConfig config)
    : torch::nn::Module("LanguageModel"), config_(std::move(config)), fingerprint_(random_fingerprint()) {
  fail_input_if(config_.vocabulary < 1, "[model] the config names no \"vocabulary\", and no tokenizer has set it");
  embedding_ = register_module("embedding",
                               std::make_shared<Embedding>(config_.vocabulary, config_.dim, config_.scaled_embedding));
  if (config_.positions == PositionKind::kLearned) {
    positions_ = register_module("positions", std::make_shared<Embedding>(config_.context, config_.dim));
  }
  auto stack = register_module("layers", std::make_shared<torch::nn::Module>("layers"));
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    blocks_.push_back(std::make_shared<Block>(config_, static_cast<int64_t>(i)));
    stack->register_module(std::to_string(i), blocks_.back());
    mixers_.push_back(blocks_.back()->mixer());
  }
  norm_ = register_module("norm", make_norm(config_));
  if (!config_.tied) {
    head_ = register_module("head", std::make_shared<Linear>(config_.dim, config_.vocabulary, config_.head_bias));
  } else if (config_.head_bias) {
    tied_bias_ = register_parameter("head_bias", at::zeros({config_.vocabulary}));
  }
  initialize(*this, initialization_options(config_));
}

const Tensor& LanguageModel::head_weight() const { return head_ ? head_->weight : embedding_->weight; }

std::optional<Tensor> LanguageModel::head_bias() const {
  if (head_) return head_->bias;
  return tied_bias_.defined() ? std::optional<Tensor>(tied_bias_) : std::nullopt;
}

at::Device LanguageModel::device() const { return norm_->weight.device(); }
at::ScalarType LanguageModel::dtype() const { return norm_->weight.scalar_type(); }

std::map<std::string, MatrixModule*> LanguageModel::matrices() const {
  std::map<std::string, MatrixModule*> found;
  for (const auto& module : named_modules("", /*include_self=*/false)) {
    auto* matrix = dynamic_cast<MatrixModule*>(module.value().get());
    if (matrix && matrix != positions_.get()) found[module.key() + ".weight"] = matrix;
  }
  return found;
}

void LanguageModel::set_weight_format(WeightFormat format, bool keep_values) {
  for (const auto& [name, matrix] : matrices()) matrix->set_format(format, keep_values);
  weight_format_ = format;
}

int64_t LanguageModel::weight_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& parameter : parameters())
    bytes += parameter.is_meta() ? 0 : static_cast<int64_t>(parameter.nbytes());
  for (const auto& [name, matrix] : matrices()) bytes += matrix->int8() ? matrix->weight_bytes() : 0;
  return bytes;
}

void LanguageModel::check_tokens(const Tensor& tokens, const Batch& batch, const ModelState* state) const {
  fail_input_if(tokens.dim() != 2 || tokens.scalar_type() != at::kLong, "[model] expected int64 tokens [B, T], got ",
                c10::toString(tokens.scalar_type()), " ", tokens.sizes());
  fail_input_if(batch.cu_seqlens && tokens.size(0) != 1, "[model] packed tokens need a batch of one, got ",
                tokens.size(0));
  if (state) {
    fail_input_if(!config_.causal, "[model] a model with \"causal\": false reads whole sequences and has no state");
    fail_input_if(state->layers.size() != blocks_.size(), "[model] the state has ", state->layers.size(),
                  " layers, the model ", blocks_.size());
    fail_input_if(state->rows() != batch.rows(tokens), "[model] the state has ", state->rows(), " rows, the batch ",
                  batch.rows(tokens));
  }
  // On another device the look would make every training step wait for the one before.
  if (tokens.numel() == 0 || (batch.training && !tokens.is_cpu())) return;
  const auto [low, high] = at::aminmax(tokens);
  const int64_t worst = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
  fail_input_if(worst < 0 || worst >= config_.vocabulary, "[model] token ", worst, " is outside the vocabulary 0..",
                config_.vocabulary - 1);
}

Tensor LanguageModel::checked_positions(const Tensor& tokens, const Batch& batch, const ModelState* state) const {
  const auto start = state ? std::optional<Tensor>(state->position) : std::nullopt;
  const Tensor positions = batch.positions(tokens, start);
  if (!positions_ || tokens.numel() == 0) return positions;
  const bool plain = !start && !batch.cu_seqlens;
  const int64_t reached = plain ? tokens.size(1) : positions.max().item<int64_t>() + 1;
  fail_input_if(reached > config_.context, "[model] the model has learned positions for ", config_.context,
                " tokens, the sequence reaches ", reached);
  return positions;
}

Tensor LanguageModel::embed(const Tensor& tokens, const Batch& batch, const ModelState* state) const {
  Tensor x = embedding_->forward(tokens, dtype());
  if (positions_) {
    x = x + positions_->forward(checked_positions(tokens, batch, state), dtype());
  } else if (config_.positions == PositionKind::kSinusoidal) {
    x = x + sinusoidal_positions(checked_positions(tokens, batch, state), config_.dim, x.scalar_type());
  }
  return drop(x, config_.dropout, batch.training);
}

Tensor LanguageModel::hidden(const Tensor& tokens, const Batch& batch, ModelState* state) {
  check_tokens(tokens, batch, state);
  Tensor x = embed(tokens, batch, state);
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->forward(x, batch, state ? &state->layers[i] : nullptr);
  if (state) state->position = state->position + batch.lengths(tokens);
  return norm_->forward(x);
}

void LanguageModel::walk(const Tensor& tokens, const std::function<Tensor(int64_t layer, const Tensor& x)>& mix) const {
  check_tokens(tokens, {}, nullptr);
  Tensor x = embed(tokens, {}, nullptr);
  for (size_t i = 0; i < blocks_.size() && x.defined(); ++i) {
    x = blocks_[i]->forward_with(x, {}, [&](const Tensor& y) { return mix(static_cast<int64_t>(i), y); });
  }
}

Tensor LanguageModel::logits(const Tensor& hidden) const {
  const std::optional<Tensor> bias = head_bias();
  const Tensor z = head_ ? head_->forward(hidden) : embedding_->logits(hidden, bias);
  return config_.final_softcap ? at::tanh(z / *config_.final_softcap) * *config_.final_softcap : z;
}

Tensor LanguageModel::forward(const Tensor& tokens, const Batch& batch, ModelState* state) {
  return logits(hidden(tokens, batch, state));
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets, const Batch& batch) {
  fail_input_if(targets.sizes() != tokens.sizes() || targets.scalar_type() != at::kLong,
                "[model] expected int64 targets of the tokens' shape ", tokens.sizes(), ", got ", targets.sizes());
  if (targets.is_cpu() && targets.numel() > 0) {
    const int64_t worst = targets.max().item<int64_t>();
    fail_input_if(worst >= config_.vocabulary, "[model] target ", worst, " is outside the vocabulary 0..",
                  config_.vocabulary - 1);
  }
  const Tensor last = hidden(tokens, batch).flatten(0, 1);
  if (weight_format_ != WeightFormat::kPlain) return loss_by_logits(last, targets.flatten());
  return linear_cross_entropy(last, head_weight(), head_bias(), targets.flatten(), config_.final_softcap);
}

// For heads whose matrix is not there as such; logits exist for a few rows at a time.
Tensor LanguageModel::loss_by_logits(const Tensor& hidden, const Tensor& targets) const {
  const int64_t rows = std::max<int64_t>(1, kLogitsAtOnce / config_.vocabulary);
  Tensor sum = at::zeros({}, hidden.options().dtype(at::kFloat));
  for (int64_t first = 0; first < hidden.size(0); first += rows) {
    const int64_t count = std::min(rows, hidden.size(0) - first);
    const Tensor z = logits(hidden.narrow(0, first, count)).to(at::kFloat);
    sum = sum + at::cross_entropy_loss(z, targets.narrow(0, first, count), {}, at::Reduction::Sum, -1);
  }
  return sum / targets.ne(-1).sum().clamp_min(1);
}

ModelState LanguageModel::zero_state(int64_t rows) const {
  fail_input_if(!config_.causal, "[model] a model with \"causal\": false reads whole sequences and has no state");
  const auto options = at::TensorOptions().dtype(dtype()).device(device());
  ModelState state;
  for (const auto& mixer : mixers_) {
    state.layers.push_back(mixer->zero_state(rows, options));
    SequenceState& layer = state.layers.back();
    if (cache_type_ && layer.mechanism() == kSoftmax.name) layer = layer.to(at::TensorOptions().dtype(*cache_type_));
  }
  state.position = at::zeros({rows}, options.dtype(at::kLong));
  return state;
}

int64_t LanguageModel::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

double LanguageModel::flops_per_token(int64_t depth) const {
  double flops = 2.0 * static_cast<double>(config_.vocabulary) * static_cast<double>(config_.dim);
  for (const auto& block : blocks_) flops += block->flops_per_token(depth);
  return flops;
}

int64_t LanguageModel::state_bytes(int64_t tokens) const {
  int64_t bytes = 8;  // the position
  for (const auto& mixer : mixers_) bytes += mixer->state_bytes(tokens);
  return bytes;
}

std::string LanguageModel::identity() const {
  return concat(config_.architecture_hash().substr(0, 8), "-", fingerprint_);
}

}  // namespace cortado
