// The part that all models share: input, residual blocks of a mixer and a feed-forward, final norm.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cortado/formats/safetensors.h"
#include "cortado/mechanisms/mixer.h"
#include "cortado/models/config.h"
#include "cortado/nn/batch.h"
#include "cortado/nn/embedding.h"
#include "cortado/nn/experts.h"
#include "cortado/nn/linear.h"
#include "cortado/nn/module.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/state.h"

namespace cortado {

class Backbone;

// The context of layer `layer`'s mixer in a model; and that mixer alone, with random weights.
MixerContext mixer_context(const ModelConfig& config, int64_t layer);
std::shared_ptr<Mixer> make_layer_mixer(const ModelConfig& config, int64_t layer);

// Everything a model carries from call to call: one SequenceState per layer, and the position (int64 [rows]) for
// learned and sinusoidal positions.
struct ModelState {
  std::vector<SequenceState> layers;
  Tensor position;

  int64_t rows() const { return position.size(0); }
  ModelState clone() const;
  ModelState compact() const;
  ModelState detach() const;  // without gradient history; growing caches allocate spare memory anew
  ModelState index(const Tensor& rows) const;
  ModelState to(const at::TensorOptions& options) const;
  int64_t bytes() const;
  // Converts the state to a safetensors file, in memory, and back. `identity` is Backbone::identity(), so that of_file()
  // can refuse the state of another model with InputError.
  TensorFile file(const std::string& identity, const NamedTensors& extra = {}) const;
  static ModelState of_file(const TensorFile& file, const std::string& identity, NamedTensors* extra = nullptr);
  // As above for an existing model: checks the state against the model's identity and mixers, and moves it to the
  // model's device and types.
  static ModelState of_file(const TensorFile& file, const Backbone& model, NamedTensors* extra = nullptr);
};

// A residual block: x += dropout(mixer(norm x)); x += dropout(feed_forward(norm x)). With post_norm each branch is
// normed before it is added; without pre_norm not before it. Without a feed-forward the second line is absent.
class Block : public Module {
 public:
  // `layer` is the block's number, from 0.
  Block(const ModelConfig& config, int64_t layer);

  // Maps x [B, T, D] to [B, T, D]; state as in Mixer::forward.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;

  const std::shared_ptr<Mixer>& mixer() const { return mixer_; }
  double flops_per_token(int64_t depth) const;

 private:
  friend class Backbone;
  // As forward(), with `mix` in the mixer's place: it gets the normed x. If it returns an undefined tensor, so does
  // forward_with().
  template <typename Mix>
  Tensor forward_with(const Tensor& x, const Batch& batch, const Mix& mix) const;

  int64_t layer_, layers_;
  std::shared_ptr<Norm> mixer_norm_, mixer_post_norm_;  // null: there is none
  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<Norm> feed_forward_norm_, feed_forward_post_norm_;
  std::shared_ptr<TokenMap> feed_forward_;
  double dropout_;
  bool normed_residual_;
};

// A model is a class derived from Backbone that adds a head; so parameters keep their short names in checkpoints.
// Inputs are tokens, int64 [B, T], or with "input": {"type": "numbers"} floats [B, T, channels], which a linear map
// embeds.
class Backbone : public Module {
 public:
  // The last hidden vectors, after the final norm, [B, T, D]. State as in Mixer::forward. Throws InputError for learned
  // positions beyond the context and for tokens outside the vocabulary.
  Tensor hidden(const Tensor& inputs, const Batch& batch = {}, ModelState* state = nullptr) const;

  // hidden() layer by layer, for callers that do other work in between.
  class Pass {
   public:
    // `state` is a state of the model. Nobody else may use it until the last layer has been run.
    Pass(const Backbone& model, const Tensor& inputs, ModelState& state);
    int64_t layers_left() const { return static_cast<int64_t>(model_.blocks_.size()) - layer_; }
    // Runs the next layer, and after the last one the final norm. The result has the same bits as one hidden() call.
    void advance();
    // The last hidden vectors [B, T, D], once no layer is left.
    const Tensor& hidden() const { return x_; }

   private:
    const Backbone& model_;
    ModelState& state_;
    Tensor x_, lengths_;   // lengths_: of the rows, int64 [B]
    Tensor first_values_;  // Batch::first_values
    int64_t layer_ = 0;
  };

  // Runs whole sequences through the layers with `mix` in the mixers' places: mix(i, x) gets layer i's normed x [B, T,
  // D] and returns what replaces the mixer's output. If it returns an undefined tensor, walk() ends. Layers that share
  // values (Batch::first_values) share those that `mix` gives them.
  void walk(const Tensor& tokens, const std::function<Tensor(int64_t layer, const Tensor& x)>& mix) const;

  // Applies the final norm.
  Tensor normalize(const Tensor& x) const { return norm_->forward(x); }

  ModelState zero_state(int64_t rows) const;
  // Joins the rows of all states into one batch, in which each continues as it would alone, whatever their lengths.
  // Rows leave by ModelState::index(); memory that only they needed is freed at the next join. Growing caches get spare
  // memory for `room` tokens.
  ModelState join(const std::vector<ModelState>& states, int64_t room = 0) const;
  // As ModelState::clone(), without copying growing caches: see StateLayout::fork.
  ModelState fork(const ModelState& state) const;

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;                      // tied weights counted once
  int64_t weight_bytes() const;                         // in memory
  virtual double flops_per_token(int64_t depth) const;  // forward, 2 per multiply-add, head included
  // Bytes of one row's state, for activations of `type` and caches of `cache` (default: `type`).
  int64_t state_bytes(int64_t tokens, at::ScalarType type = at::kFloat, std::optional<at::ScalarType> cache = {}) const;
  // A short text that differs between models whose states do not fit each other: a hash of the config's layers and
  // sizes, and the weights' "fingerprint", which is set when a checkpoint is saved or loaded and random for a fresh
  // model.
  std::string identity() const;
  void set_fingerprint(std::string fingerprint) const { fingerprint_ = std::move(fingerprint); }
  const std::vector<std::shared_ptr<Mixer>>& mixers() const { return mixers_; }

  at::Device device() const { return norm_->weight.device(); }
  // The activations' type; matrices may be stored in a narrower one.
  at::ScalarType dtype() const { return norm_->weight.scalar_type(); }

  // Stores the matrices of all linear maps and of the embedding in a narrower format, for inference
  // (MatrixModule::set_format). Small parameters stay as they are. Such a model cannot be saved.
  void set_weight_format(WeightFormat format, bool keep_values = true);
  WeightFormat weight_format() const { return weight_format_; }
  // The type of softmax and sparse caches in new states; the activations' type unless set.
  std::optional<at::ScalarType> cache_type() const { return cache_type_; }
  void set_cache_type(at::ScalarType type) { cache_type_ = type; }
  // The modules with a matrix, by the parameter name "....weight".
  std::map<std::string, MatrixModule*> matrices() const;

 protected:
  // Draws random weights from torch's default generator. A derived class draws its head's weights and then calls
  // initialize_weights().
  Backbone(const char* name, ModelConfig config);
  void initialize_weights();

  const std::shared_ptr<Embedding>& embedding() const { return embedding_; }

  // The two steps of hidden(): checks and embeds the inputs, giving [B, T, D]; runs the blocks and the final norm.
  Tensor embed(const Tensor& inputs, const Batch& batch, const ModelState* state) const;
  Tensor run_blocks(Tensor x, const Batch& batch, ModelState* state) const;

 private:
  Tensor run_block(int64_t layer, const Tensor& x, const Batch& batch, ModelState* state) const;
  void check_inputs(const Tensor& inputs, const Batch& batch, const ModelState* state) const;
  void check_state(const Tensor& inputs, const Batch& batch, const ModelState& state) const;
  // int64 [B, T]. Throws InputError beyond the last learned position.
  Tensor checked_positions(const Tensor& inputs, const Batch& batch, const ModelState* state) const;

  ModelConfig config_;
  std::shared_ptr<Embedding> embedding_;  // for tokens
  std::shared_ptr<Norm> embedding_norm_;
  std::shared_ptr<Linear> input_;         // for numbers
  std::shared_ptr<Embedding> positions_;  // learned positions
  std::vector<std::shared_ptr<Block>> blocks_;
  std::vector<std::shared_ptr<Mixer>> mixers_;  // the mixers of blocks_
  std::shared_ptr<Norm> norm_;
  WeightFormat weight_format_ = WeightFormat::kPlain;
  std::optional<at::ScalarType> cache_type_;
  mutable std::string fingerprint_;
};

}  // namespace cortado
