#include "cortado/models/backbone.h"

#include <algorithm>
#include <random>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/formats/checksum.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/models/relay.h"
#include "cortado/nn/matmul.h"
#include "cortado/nn/rotary/rotary.h"
#include "cortado/primitives/cuda/runtime.h"

namespace cortado {
namespace {

// Does not use torch's generator, so that naming a model does not change its random weights.
std::string random_fingerprint() {
  std::random_device device;
  const uint64_t words[2] = {device(), device()};
  Checksum checksum;
  checksum.add(words, sizeof words);
  return checksum.hex();
}

InitializationOptions initialization_options(const ModelConfig& config) {
  const Json& json = config.initialization;
  return {.redraw = json.value("type", "lecun") == "normal",
          .std = json.value("std", 0.02),
          .scale_residual = json.value("scale_residual", false),
          .layers = static_cast<int64_t>(config.layers.size())};
}

std::shared_ptr<Norm> make_norm(const ModelConfig& config) {
  if (config.norm == NormKind::kRms) return std::make_shared<RmsNorm>(config.dim, config.norm_eps);
  return std::make_shared<LayerNorm>(config.dim, config.norm_eps, config.norm_bias);
}

std::shared_ptr<TokenMap> make_feed_forward(const FeedForwardConfig& config, int64_t dim) {
  const bool experts = config.kind == FeedForwardKind::kExperts;
  const FeedForwardOptions options = {.dim = dim,
                                      .hidden = config.dim,
                                      .gated = experts ? config.experts.gated : config.kind != FeedForwardKind::kMlp,
                                      .activation = config.activation,
                                      .bias = config.bias};
  if (experts) return std::make_shared<Experts>(options, config.experts);
  return std::make_shared<FeedForward>(options);
}

// Returns x + branch, x if branch is undefined, and its norm; without a norm the sum twice.
NormedSum normed_sum(const std::shared_ptr<Norm>& norm, const Tensor& x, const Tensor& branch) {
  if (norm) return norm->forward_of_sum(x, branch);
  const Tensor sum = branch.defined() ? x + branch : x;
  return {sum, sum};
}

double embedding_scale(const ModelConfig& config) {
  return config.embedding_scale.value_or(config.scaled_embedding ? std::sqrt(static_cast<double>(config.dim)) : 1.0);
}

constexpr const char* kPosition = "position";

template <typename Change>
ModelState transform(const ModelState& state, const Tensor& position, const Change& change) {
  ModelState result;
  for (const SequenceState& layer : state.layers) result.layers.push_back(change(layer));
  result.position = position;
  return result;
}

// Converts `read` to the types and the device of `zero`, the mixer's own state.
SequenceState fit(const SequenceState& read, const SequenceState& zero, const StateLayout& layout,
                  const std::string& place) {
  fail_input_if(read.mechanism() != zero.mechanism(), place, " is a state of ", read.mechanism(), ", the model needs ",
                zero.mechanism());
  layout.check(read, place);
  SequenceState result(read.mechanism());
  for (const auto& [name, wanted] : zero.tensors()) result.add(name, read.at(name).to(wanted.options()));
  return result;
}

}  // namespace

MixerContext mixer_context(const ModelConfig& config, int64_t layer) {
  return {.dim = config.dim,
          .heads = config.heads,
          .layer = layer,
          .layers = static_cast<int64_t>(config.layers.size()),
          .causal = config.causal,
          .rotary = config.positions == PositionKind::kRotary,
          .rope_theta = config.rope_theta,
          .rope_scaling = config.rope_scaling};
}

std::shared_ptr<Mixer> make_layer_mixer(const ModelConfig& config, int64_t layer) {
  return make_mixer(config.layers[layer], mixer_context(config, layer), concat("layers[", layer, "]"));
}

Block::Block(const ModelConfig& config, int64_t layer)
    : Module("Block"),
      layer_(layer),
      layers_(static_cast<int64_t>(config.layers.size())),
      dropout_(config.dropout),
      normed_residual_(config.normed_residual) {
  const bool before = config.has_pre_norm(layer), after = config.has_post_norm(layer);
  if (before) mixer_norm_ = register_module("mixer_norm", make_norm(config));
  mixer_ = register_module("mixer", make_layer_mixer(config, layer));
  if (after) mixer_post_norm_ = register_module("mixer_post_norm", make_norm(config));
  const FeedForwardConfig feed_forward = config.feed_forward_of(layer);
  if (feed_forward.kind == FeedForwardKind::kNone) return;
  if (before) feed_forward_norm_ = register_module("feed_forward_norm", make_norm(config));
  feed_forward_ = register_module("feed_forward", make_feed_forward(feed_forward, config.dim));
  if (after) feed_forward_post_norm_ = register_module("feed_forward_post_norm", make_norm(config));
}

template <typename Mix>
Tensor Block::forward_with(const Tensor& x, const Batch& batch, const Mix& mix) const {
  const auto ready = [&](Tensor branch, const std::shared_ptr<Norm>& post) {
    if (post) branch = post->forward(branch);
    return batch.training ? at::dropout(branch, dropout_, true) : branch;
  };
  const auto [sum, normed] = normed_sum(mixer_norm_, x, {});
  const Tensor& stream = normed_residual_ ? normed : sum;
  const Tensor branch = mix(normed);
  if (!branch.defined()) return {};
  if (!feed_forward_) return stream + ready(branch, mixer_post_norm_);
  const auto [after, y] = normed_sum(feed_forward_norm_, stream, ready(branch, mixer_post_norm_));
  const Tensor& mixed = normed_residual_ ? y : after;
  if (feed_forward_post_norm_ || (batch.training && dropout_ > 0)) {
    return mixed + ready(feed_forward_->forward(y), feed_forward_post_norm_);
  }
  return feed_forward_->forward_onto(mixed, y);
}

Tensor Block::forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
  return forward_with(x, batch, [&](const Tensor& y) {
    return batch.relay ? batch.relay->forward(*mixer_, {layer_, layers_}, y, batch, state)
                       : mixer_->forward(y, batch, state);
  });
}

double Block::flops_per_token(int64_t depth) const {
  return mixer_->flops_per_token(depth) + (feed_forward_ ? feed_forward_->flops_per_token() : 0.0);
}

Backbone::Backbone(const char* name, ModelConfig config)
    : Module(name), config_(std::move(config)), fingerprint_(random_fingerprint()) {
  if (config_.channels > 0) {
    input_ = register_module("input", std::make_shared<Linear>(config_.channels, config_.dim, /*with_bias=*/true));
  } else {
    fail_input_if(config_.vocabulary < 1, "[model] the config names no \"vocabulary\", and no tokenizer has set it");
    embedding_ = register_module(
        "embedding", std::make_shared<Embedding>(config_.vocabulary, config_.dim, embedding_scale(config_)));
  }
  if (config_.positions == PositionKind::kLearned) {
    positions_ = register_module("positions", std::make_shared<Embedding>(config_.context, config_.dim));
  }
  if (config_.embedding_norm) embedding_norm_ = register_module("embedding_norm", make_norm(config_));
  auto stack = register_module("layers", std::make_shared<torch::nn::Module>("layers"));
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    blocks_.push_back(std::make_shared<Block>(config_, static_cast<int64_t>(i)));
    stack->register_module(std::to_string(i), blocks_.back());
    mixers_.push_back(blocks_.back()->mixer());
  }
  norm_ = register_module("norm", make_norm(config_));
}

void Backbone::initialize_weights() { initialize(*this, initialization_options(config_)); }

std::map<std::string, MatrixModule*> Backbone::matrices() const {
  std::map<std::string, MatrixModule*> found;
  for (const auto& module : named_modules("", /*include_self=*/false)) {
    auto* matrix = dynamic_cast<MatrixModule*>(module.value().get());
    if (matrix && matrix != positions_.get()) found[module.key() + ".weight"] = matrix;
  }
  return found;
}

void Backbone::set_weight_format(WeightFormat format, bool keep_values) {
  for (const auto& [name, matrix] : matrices()) {
    // 4 bits for the embedding or the head would cost more in quality than they save in memory.
    const bool of_words = name == "embedding.weight" || name == "head.weight";
    matrix->set_format(of_words && format == WeightFormat::kInt4 ? WeightFormat::kWords : format, keep_values);
  }
  weight_format_ = format;
}

int64_t Backbone::weight_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& parameter : parameters())
    bytes += parameter.is_meta() ? 0 : static_cast<int64_t>(parameter.nbytes());
  for (const auto& [name, matrix] : matrices()) bytes += matrix->packed() ? matrix->weight_bytes() : 0;
  return bytes;
}

void Backbone::check_state(const Tensor& inputs, const Batch& batch, const ModelState& state) const {
  fail_input_if(!config_.causal, "[model] a model with \"causal\": false reads whole sequences and has no state");
  fail_input_if(state.layers.size() != blocks_.size(), "[model] the state has ", state.layers.size(),
                " layers, the model ", blocks_.size());
  fail_input_if(state.rows() != batch.rows(inputs), "[model] the state has ", state.rows(), " rows, the batch ",
                batch.rows(inputs));
}

void Backbone::check_inputs(const Tensor& inputs, const Batch& batch, const ModelState* state) const {
  if (input_) {
    fail_input_if(inputs.dim() != 3 || inputs.size(2) != config_.channels || !inputs.is_floating_point(),
                  "[model] expected numbers [B, T, ", config_.channels, "], got ", c10::toString(inputs.scalar_type()),
                  " ", inputs.sizes());
  } else {
    fail_input_if(inputs.dim() != 2 || inputs.scalar_type() != at::kLong, "[model] expected int64 tokens [B, T], got ",
                  c10::toString(inputs.scalar_type()), " ", inputs.sizes());
  }
  fail_input_if(batch.cu_seqlens && inputs.size(0) != 1, "[model] packed tokens need a batch of one, got ",
                inputs.size(0));
  if (state) check_state(inputs, batch, *state);
  // On another device, reading the tokens would make every training step wait for the previous one, and it would
  // prevent graph capture.
  const bool unseen = inputs.is_cuda() && cuda::capturing(inputs.device().index());
  if (input_ || inputs.numel() == 0 || (batch.training && !inputs.is_cpu()) || unseen) return;
  const auto [low, high] = at::aminmax(inputs);
  const int64_t worst = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
  fail_input_if(worst < 0 || worst >= config_.vocabulary, "[model] token ", worst, " is outside the vocabulary 0..",
                config_.vocabulary - 1);
}

Tensor Backbone::checked_positions(const Tensor& inputs, const Batch& batch, const ModelState* state) const {
  auto start = state ? std::optional<Tensor>(state->position) : std::nullopt;
  if (batch.before > 0) start = at::full({batch.rows(inputs)}, batch.before, inputs.options().dtype(at::kLong));
  const Tensor positions = batch.positions(inputs, start);
  if (!positions_ || inputs.numel() == 0) return positions;
  const bool plain = !start && !batch.cu_seqlens;
  const int64_t reached = plain ? inputs.size(1) : positions.max().item<int64_t>() + 1;
  fail_input_if(reached > config_.context, "[model] the model has learned positions for ", config_.context,
                " tokens, the sequence reaches ", reached);
  return positions;
}

Tensor Backbone::embed(const Tensor& inputs, const Batch& batch, const ModelState* state) const {
  check_inputs(inputs, batch, state);
  Tensor x = input_ ? input_->forward(inputs.to(dtype())) : embedding_->forward(inputs, dtype());
  if (positions_) {
    x = x + positions_->forward(checked_positions(inputs, batch, state), dtype());
  } else if (config_.positions == PositionKind::kSinusoidal) {
    x = x + sinusoidal_positions(checked_positions(inputs, batch, state), config_.dim, x.scalar_type());
  }
  if (embedding_norm_) x = embedding_norm_->forward(x);
  return at::dropout(x, config_.dropout, batch.training);
}

Tensor Backbone::run_block(int64_t layer, const Tensor& x, const Batch& batch, ModelState* state) const {
  const auto i = static_cast<size_t>(layer);
  return blocks_[i]->forward(x, batch, state ? &state->layers[i] : nullptr);
}

Tensor Backbone::run_blocks(Tensor x, const Batch& batch, ModelState* state) const {
  Tensor first_values;
  Batch pass = batch;
  pass.first_values = &first_values;
  for (int64_t i = 0; i < static_cast<int64_t>(blocks_.size()); ++i) x = run_block(i, x, pass, state);
  return norm_->forward(x);
}

Tensor Backbone::hidden(const Tensor& inputs, const Batch& batch, ModelState* state) const {
  const Tensor last = run_blocks(embed(inputs, batch, state), batch, state);
  if (state) state->position = state->position + batch.lengths(inputs);
  return last;
}

Backbone::Pass::Pass(const Backbone& model, const Tensor& inputs, ModelState& state)
    : model_(model), state_(state), x_(model.embed(inputs, {}, &state)), lengths_(Batch{}.lengths(inputs)) {}

void Backbone::Pass::advance() {
  x_ = model_.run_block(layer_++, x_, {.cu_seqlens = {}, .first_values = &first_values_}, &state_);
  if (layers_left() > 0) return;
  x_ = model_.norm_->forward(x_);
  state_.position = state_.position + std::exchange(lengths_, {});
}

void Backbone::walk(const Tensor& tokens, const std::function<Tensor(int64_t layer, const Tensor& x)>& mix) const {
  Tensor x = embed(tokens, {}, nullptr);
  for (size_t i = 0; i < blocks_.size() && x.defined(); ++i) {
    x = blocks_[i]->forward_with(x, {}, [&](const Tensor& y) { return mix(static_cast<int64_t>(i), y); });
  }
}

ModelState Backbone::zero_state(int64_t rows) const {
  fail_input_if(!config_.causal, "[model] a model with \"causal\": false reads whole sequences and has no state");
  const auto options = at::TensorOptions().dtype(dtype()).device(device());
  ModelState state;
  for (const auto& mixer : mixers_) {
    state.layers.push_back(mixer->zero_state(rows, options, cache_type_));
  }
  state.position = at::zeros({rows}, options.dtype(at::kLong));
  return state;
}

ModelState Backbone::join(const std::vector<ModelState>& states, int64_t room) const {
  fail_input_if(states.empty(), "[state] there are no states to join");
  ModelState all;
  std::vector<Tensor> positions;
  for (const ModelState& state : states) {
    fail_input_if(state.layers.size() != mixers_.size(), "[state] join: a state has ", state.layers.size(),
                  " layers, the model ", mixers_.size());
    positions.push_back(state.position);
  }
  for (size_t i = 0; i < mixers_.size(); ++i) {
    std::vector<SequenceState> layers;
    for (const ModelState& state : states) layers.push_back(state.layers[i]);
    all.layers.push_back(mixers_[i]->state_layout().join(layers, room));
  }
  all.position = at::cat(positions);
  return all;
}

ModelState Backbone::fork(const ModelState& state) const {
  ModelState copy;
  for (size_t i = 0; i < mixers_.size(); ++i) {
    copy.layers.push_back(mixers_[i]->state_layout().fork(state.layers.at(i)));
  }
  copy.position = state.position.clone();
  return copy;
}

int64_t Backbone::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

double Backbone::flops_per_token(int64_t depth) const {
  double flops = 2.0 * static_cast<double>(config_.channels) * static_cast<double>(config_.dim);
  for (const auto& block : blocks_) flops += block->flops_per_token(depth);
  return flops;
}

int64_t Backbone::state_bytes(int64_t tokens, at::ScalarType type, std::optional<at::ScalarType> cache) const {
  int64_t bytes = 8;  // the position
  for (const auto& mixer : mixers_) bytes += mixer->state_bytes(tokens, type, cache);
  return bytes;
}

std::string Backbone::identity() const { return concat(config_.architecture_hash().substr(0, 8), "-", fingerprint_); }

ModelState ModelState::clone() const {
  return transform(*this, position.clone(), [](const SequenceState& layer) { return layer.clone(); });
}

ModelState ModelState::compact() const {
  return transform(*this, position.clone(), [](const SequenceState& layer) { return layer.compact(); });
}

ModelState ModelState::detach() const {
  return transform(*this, position, [](const SequenceState& layer) { return layer.detach(); });
}

ModelState ModelState::index(const Tensor& rows) const {
  return transform(*this, position.index_select(0, rows.to(position.device())),
                   [&](const SequenceState& layer) { return layer.index(rows); });
}

ModelState ModelState::to(const at::TensorOptions& options) const {
  const Tensor moved = options.has_device() ? position.to(options.device()) : position;
  return transform(*this, moved, [&](const SequenceState& layer) { return layer.to(options); });
}

int64_t ModelState::bytes() const {
  int64_t total = position.numel() * position.element_size();
  for (const SequenceState& layer : layers) total += layer.bytes();
  return total;
}

TensorFile ModelState::file(const std::string& identity, const NamedTensors& extra) const {
  auto all = extra;
  for (const auto& [name, tensor] : extra) {
    fail_input_if(name == kPosition, "[state] \"", kPosition, "\" is the state's own");
  }
  all.emplace_back(kPosition, position);
  return file_of_states(layers, identity, all);
}

ModelState ModelState::of_file(const TensorFile& file, const std::string& identity, NamedTensors* extra) {
  ModelState state;
  NamedTensors all;
  state.layers = states_of_file(file, identity, &all);
  for (const auto& [name, tensor] : all) {
    if (name == kPosition) {
      state.position = tensor;
    } else if (extra) {
      extra->emplace_back(name, tensor);
    }
  }
  fail_input_if(!state.position.defined() || state.position.dim() != 1 || state.position.scalar_type() != at::kLong,
                "[state] ", file.path, " lacks the position");
  for (const SequenceState& layer : state.layers) {
    fail_input_if(!layer.empty() && layer.rows() != state.rows(), "[state] ", file.path, " has layers of ",
                  layer.rows(), " and ", state.rows(), " rows");
  }
  return state;
}

ModelState ModelState::of_file(const TensorFile& file, const Backbone& model, NamedTensors* extra) {
  ModelState state = of_file(file, model.identity(), extra);
  const ModelState zero = model.zero_state(state.rows());
  fail_input_if(state.layers.size() != zero.layers.size(), "[state] ", file.path, " has ", state.layers.size(),
                " layers, the model ", zero.layers.size());
  for (size_t i = 0; i < zero.layers.size(); ++i) {
    const auto place = concat("[state] ", file.path, ": layer ", i);
    state.layers[i] = fit(state.layers[i], zero.layers[i], model.mixers()[i]->state_layout(), place);
  }
  state.position = state.position.to(zero.position.device());
  return state;
}

}  // namespace cortado
