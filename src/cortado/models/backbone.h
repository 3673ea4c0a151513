// What every model is but for its head: input, residual blocks of a mixer and a feed-forward, final norm.
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

// What the mixer of layer `layer` is told of the model; and that mixer alone, with random weights.
MixerContext mixer_context(const ModelConfig& config, int64_t layer);
std::shared_ptr<Mixer> make_layer_mixer(const ModelConfig& config, int64_t layer);

// Everything a model carries from call to call: one SequenceState a layer, and the position (int64 [rows]) for
// learned/sinusoidal positions.
struct ModelState {
  std::vector<SequenceState> layers;
  Tensor position;

  int64_t rows() const { return position.size(0); }
  ModelState clone() const;
  ModelState compact() const;
  ModelState detach() const;  // the same, through which no gradient flows; growing caches get room anew
  ModelState index(const Tensor& rows) const;
  ModelState to(const at::TensorOptions& options) const;
  int64_t bytes() const;
  // `identity`: Backbone::identity(), so that a state of another model is refused with one line.
  void save(const std::string& path, const std::string& identity, const NamedTensors& extra = {}) const;
  static ModelState load(const std::string& path, const std::string& identity, NamedTensors* extra = nullptr);
  // The same for a model that is there: checked against its identity and mixers, and moved to its device and types.
  static ModelState load(const std::string& path, const Backbone& model, NamedTensors* extra = nullptr);
};

// A residual block, on the normalised stream:
// x += dropout(mixer(norm x)); x += dropout(feed_forward(norm x)). With post_norm each branch is normalised once more
// before it is added. Without a feed-forward the second line is absent.
class Block : public Module {
 public:
  // `layer`: this block's number, from 0.
  Block(const ModelConfig& config, int64_t layer);

  // x [B, T, D] -> the same; state as in Mixer::forward.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const;

  // The same with something else in the mixer's place: `mix` gets the normalised x. Where it returns nothing (an
  // undefined tensor), so does this.
  using Mix = std::function<Tensor(const Tensor& x)>;
  Tensor forward_with(const Tensor& x, const Batch& batch, const Mix& mix) const;

  const std::shared_ptr<Mixer>& mixer() const { return mixer_; }
  double flops_per_token(int64_t depth) const;

 private:
  int64_t layer_, layers_;
  std::shared_ptr<Norm> mixer_norm_, mixer_post_norm_;
  std::shared_ptr<Mixer> mixer_;
  std::shared_ptr<Norm> feed_forward_norm_, feed_forward_post_norm_;
  std::shared_ptr<TokenMap> feed_forward_;
  double dropout_;
};

// A model is a class derived from it, which adds a head: so parameters keep their short names in checkpoints. What goes
// in are tokens, int64 [B, T], or with "input": {"type": "numbers"} floats [B, T, channels] by a linear map.
class Backbone : public Module {
 public:
  // The last hidden vectors (after the final norm), [B, T, D]. State as in Mixer::forward. Learned positions past the
  // context, or token ids outside the vocabulary, are InputErrors.
  Tensor hidden(const Tensor& inputs, const Batch& batch = {}, ModelState* state = nullptr) const;

  // hidden() in steps, for whoever has something else to do in between: a text on its way through the layers.
  class Pass {
   public:
    // `state` is one of the model's, and nobody else's until the last layer has been passed.
    Pass(const Backbone& model, const Tensor& inputs, ModelState& state);
    int64_t layers_left() const { return static_cast<int64_t>(model_.blocks_.size()) - layer_; }
    // Through the next layer, and the final norm behind the last; the same bits as all of them at once.
    void advance();
    // [B, T, D], as of hidden(), when none is left.
    const Tensor& hidden() const { return x_; }

   private:
    const Backbone& model_;
    ModelState& state_;
    Tensor x_, lengths_;  // lengths_: of the rows, int64 [B]
    int64_t layer_ = 0;
  };

  // Runs whole sequences through the layers with something else in the mixers' places: `mix(i, x)` gets layer i's
  // normalised x [B, T, D] and returns what goes on in place of the mixer's output, or nothing (an undefined tensor) to
  // end there.
  void walk(const Tensor& tokens, const std::function<Tensor(int64_t layer, const Tensor& x)>& mix) const;

  // The final norm.
  Tensor normalize(const Tensor& x) const { return norm_->forward(x); }

  ModelState zero_state(int64_t rows) const;
  // The rows of all of them as one batch, each of which goes on as it would alone, whatever it has read. Rows leave by
  // ModelState::index; what only they needed goes at the next join. Growing caches get memory for `room` tokens more.
  ModelState join(const std::vector<ModelState>& states, int64_t room = 0) const;
  // As ModelState::clone, but growing caches are not copied: see StateLayout::fork.
  ModelState fork(const ModelState& state) const;

  const ModelConfig& config() const { return config_; }
  int64_t parameter_count() const;                      // tied weights counted once
  int64_t weight_bytes() const;                         // what they take in memory
  virtual double flops_per_token(int64_t depth) const;  // forward, 2 per multiply-add, head included
  // Of one row, with activations of this type, and caches of another if one is given.
  int64_t state_bytes(int64_t tokens, at::ScalarType type = at::kFloat, std::optional<at::ScalarType> cache = {}) const;
  // A short text that differs between models whose states don't fit each other: hash of the config's layers and sizes,
  // and of the weights' "fingerprint" (set when a checkpoint is saved or loaded; random for a fresh model).
  std::string identity() const;
  void set_fingerprint(std::string fingerprint) const { fingerprint_ = std::move(fingerprint); }
  const std::vector<std::shared_ptr<Mixer>>& mixers() const { return mixers_; }

  at::Device device() const { return norm_->weight.device(); }
  // Of activations; the matrices may be kept in less.
  at::ScalarType dtype() const { return norm_->weight.scalar_type(); }

  // Keeps the matrices of all linear maps and of the embedding in a narrower format, for inference
  // (MatrixModule::set_format). Small parameters stay as they are. Such a model is not saved again.
  void set_weight_format(WeightFormat format, bool keep_values = true);
  WeightFormat weight_format() const { return weight_format_; }
  // The type of softmax layers' and sparse caches in the states to come; the activations' unless set.
  std::optional<at::ScalarType> cache_type() const { return cache_type_; }
  void set_cache_type(at::ScalarType type) { cache_type_ = type; }
  // The modules with a matrix by the names of their parameters "....weight".
  std::map<std::string, MatrixModule*> matrices() const;

 protected:
  // Random weights from torch's default generator. A head that is added draws its own, and then calls initialize().
  Backbone(const char* name, ModelConfig config);
  void initialize_weights();

  const std::shared_ptr<Embedding>& embedding() const { return embedding_; }

  // What hidden() is made of: inputs, checked, -> [B, T, D]; and what the blocks and the norm make of it.
  Tensor embed(const Tensor& inputs, const Batch& batch, const ModelState* state) const;
  Tensor run_blocks(Tensor x, const Batch& batch, ModelState* state) const;

 private:
  Tensor run_block(int64_t layer, const Tensor& x, const Batch& batch, ModelState* state) const;
  void check_inputs(const Tensor& inputs, const Batch& batch, const ModelState* state) const;
  void check_state(const Tensor& inputs, const Batch& batch, const ModelState& state) const;
  // int64 [B, T]; InputError where learned positions end.
  Tensor checked_positions(const Tensor& inputs, const Batch& batch, const ModelState* state) const;

  ModelConfig config_;
  std::shared_ptr<Embedding> embedding_;  // of tokens
  std::shared_ptr<Norm> embedding_norm_;
  std::shared_ptr<Linear> input_;         // of numbers
  std::shared_ptr<Embedding> positions_;  // learned ones
  std::vector<std::shared_ptr<Block>> blocks_;
  std::vector<std::shared_ptr<Mixer>> mixers_;  // the blocks'
  std::shared_ptr<Norm> norm_;
  WeightFormat weight_format_ = WeightFormat::kPlain;
  std::optional<at::ScalarType> cache_type_;
  mutable std::string fingerprint_;
};

}  // namespace cortado
