// Analyses of models and mechanisms; each gives numbers, a table and pictures.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/base/table.h"
#include "cortado/models/language_model.h"

namespace cortado {

// The result of an analysis, in three forms.
struct Finding {
  Json json = Json::object();
  Table table{{}};
  std::vector<std::pair<std::string, std::string>> pictures;  // name, SVG
};

// A text, the model that reads it, and the layers to analyse.
struct Reading {
  LanguageModel& model;
  at::Tensor tokens;               // int64 [1, T]
  std::vector<std::string> names;  // the tokens as texts, for the axes
  std::vector<int64_t> layers;     // empty: all layers
};

// One layer's mixer with its input for a text: the normalised hidden states [1, T, D].
struct LayerReading {
  int64_t layer;
  Mixer& mixer;
  at::Tensor x;
  int64_t heads;
};
// Returns the layers in their order. Throws InputError for a layer that the model does not have.
std::vector<LayerReading> read_layers(const Reading& reading);

// Converts a matrix to nested vectors, row by row.
std::vector<std::vector<double>> rows_of(const at::Tensor& matrix);

//  --- Analyses of a text. They draw T x T pictures; `heads` limits how many of a layer's heads are drawn. ---

// Returns the weights A [H, T, T] with which a mixer's output sums past values: o_t = sum_s A_ts v_s. They are computed
// as the derivative of the output with respect to the values; this is A if o is linear in them, which is checked. If
// the weights differ between a head's channels, as in recurrences, returns their mean over the channels and sets
// same_for_channels to false. Throws InputError if the mixer has no such weights.
struct PairWeights {
  at::Tensor weights;
  bool same_for_channels = true;
};
PairWeights pair_weights(Mixer& mixer, const at::Tensor& x, int64_t heads);
// Analyses attention weights per layer and head: the share of the weight on the last 1, 16 and 64 tokens, the mean
// distance, the entropy, and the share of each memory if the mechanism has several.
Finding analyze_attention(const Reading& reading, int64_t heads);

// Analyses p(l|t) of Latte's mechanisms per layer and head (Latte-Macchiato fig. 6). State 0 is the window, if there is
// one. "usage" is the entropy of the mean of p(l|t) over t, relative to the largest possible; "used" is the exponential
// of that entropy, an effective number of states.
Finding analyze_latents(const Reading& reading, int64_t heads);

// Analyses self-recall errors of the pairs in a linear state (LoLA fig. 3 and 6): e_j(t) = |phi(k_j)'H_t / phi(k_j)'s_t
// - v_j| after token t. Compares a linear state alone, one with a window, and one with a window and a sparse cache
// that keeps the pairs with the largest errors.
struct CollisionOptions {
  int64_t window = 64, cache = 64;
  int64_t heads = 1;  // number of heads to draw
};
Finding analyze_collisions(const Reading& reading, const CollisionOptions& options);
// Returns e_j(t) as [T, T]: row t, column j; NaN if pair j is not in the state after token t. keys [T, F], values [T,
// V].
at::Tensor recall_errors(const at::Tensor& keys, const at::Tensor& values, int64_t window, int64_t cache);

//  --- Analyses without a text. ---

// Analyses singular values of Gram matrices and the least squared error of a feature map of each rank (LoLA eq. 17,
// fig. 4-5): of exp(x'y) and (x'y)^p for n vectors x in d dimensions with i.i.d. normal entries of standard deviation
// d^-1/4, and of the feature maps of a model's layers on a text.
struct SpectrumOptions {
  std::vector<int64_t> n = {128, 256, 512}, d = {16, 64, 128}, powers = {1, 2, 4};
  int64_t seed = 0;
  std::unique_ptr<Reading> reading;  // null: random vectors only
};
Finding analyze_spectrum(const SpectrumOptions& options);
// Returns sum_{i > rank} sigma_i^2 for rank 0 .. n, for the singular values sigma of gram [n, n].
at::Tensor least_errors(const at::Tensor& gram);

// Compares the states of models at each length: pairs per head, floats, bytes (LoLA tables 1-2, Latte table 1).
struct MemoryComparison {
  std::vector<std::pair<std::string, Json>> configs;  // name, a model's config
  std::vector<int64_t> lengths = {1024, 4096, 16384, 65536, 131072};
  int64_t vocabulary = 256;
};
Finding analyze_memory(const MemoryComparison& options);

// Measures time and memory of a model's forward pass, of forward and backward, and of one decoded token after `length`
// tokens (Latte fig. 2 and 4, Macchiato fig. 7). Weights are random, and the models take turns. Reports the median and
// the quartiles of the rounds. Bidirectional models have no decoding time.
struct ScalingOptions {
  std::vector<std::pair<std::string, Json>> models;  // name, config with its vocabulary
  std::vector<int64_t> lengths = {256, 1024, 4096};
  int64_t tokens = 4096;  // tokens per pass; the number of sequences is tokens / length, at least 1
  int64_t sequences = 0;  // sequences per pass at every length; 0: derived from `tokens`
  int64_t rounds = 5;
  bool backward = true;
  std::function<void(const std::string& what)> progress = {};
  std::function<bool()> stop = {};
};
Finding analyze_scaling(const ScalingOptions& options);

// Shows how much of each token a mechanism's slots hold after `tokens` tokens (BLA fig. 1), as a matrix [slots,
// tokens]. An empty name chooses the first mechanism whose slot contents are known without a text. Throws InputError if
// the contents depend on the tokens.
Finding analyze_convolution(const std::string& mechanism, const Json& settings, int64_t tokens);

}  // namespace cortado
