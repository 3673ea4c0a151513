// What a model or a mechanism does, as numbers, a table and pictures.
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

struct Finding {
  Json json = Json::object();
  Table table{{}};
  std::vector<std::pair<std::string, std::string>> pictures;  // name, SVG
};

// A text as a model reads it, and which of its layers are looked at.
struct Reading {
  LanguageModel& model;
  at::Tensor tokens;               // int64 [1, T]
  std::vector<std::string> names;  // of the tokens, for the axes
  std::vector<int64_t> layers;     // empty: all
};

// What one layer's mixer reads, its normalised input [1, T, D].
struct LayerReading {
  int64_t layer;
  Mixer& mixer;
  at::Tensor x;
  int64_t heads;
};
// In the order of the layers. InputError: a layer that the model doesn't have.
std::vector<LayerReading> read_layers(const Reading& reading);

// A matrix as lists.
std::vector<std::vector<double>> rows_of(const at::Tensor& matrix);

// --- Of a text. T x T pictures: `heads` limits how many of a layer's heads are drawn. ---

// The weights A that a mixer gives to values of the past, o_t = sum_s A_ts v_s: [H, T, T], from the derivative of what
// it computes with respect to its values (which is A, since o is linear in them; that is checked). Where the values of
// a head's channels are weighed differently, as in recurrences, the mean over them. InputError: a mixer that has no
// such weights.
struct PairWeights {
  at::Tensor weights;
  bool same_for_channels = true;
};
PairWeights pair_weights(Mixer& mixer, const at::Tensor& x, int64_t heads);
// By layer and head: the share of the weight on the last 1, 16 and 64 tokens, its mean distance, its entropy; where a
// mechanism has several memories, the share of each.
Finding analyze_attention(const Reading& reading, int64_t heads);

// p(l|t) of Latte's mechanisms by layer and head (Latte-Macchiato fig. 6): state 0 is the window, where there is one.
// "usage": the entropy of the mean of p(l|t) over t, in parts of the largest; "used": its exponential, states.
Finding analyze_latents(const Reading& reading, int64_t heads);

// Self-recall errors of the pairs in a linear state (LoLA fig. 3 and 6): e_j(t) = |phi(k_j)'H_t / phi(k_j)'s_t - v_j|
// after token t, for the linear state alone, behind a window, and behind a window with a sparse cache of the pairs with
// the largest errors.
struct CollisionOptions {
  int64_t window = 64, cache = 64;
  int64_t heads = 1;  // drawn
};
Finding analyze_collisions(const Reading& reading, const CollisionOptions& options);
// [T, T] each: e_j(t) in row t and column j, NaN where pair j is not in the state. keys [T, F], values [T, V].
at::Tensor recall_errors(const at::Tensor& keys, const at::Tensor& values, int64_t window, int64_t cache);

// --- Of no text. ---

// Singular values of Gram matrices, and the least squared error of a feature map of each rank (LoLA eq. 17, fig. 4-5):
// of exp(x'y) and (x'y)^p for n vectors x ~ N(0, d^-1/4), and of what a model's layers make of a text.
struct SpectrumOptions {
  std::vector<int64_t> n = {128, 256, 512}, d = {16, 64, 128}, powers = {1, 2, 4};
  int64_t seed = 0;
  std::unique_ptr<Reading> reading;  // none: random vectors only
};
Finding analyze_spectrum(const SpectrumOptions& options);
// sum_{i > rank} sigma_i^2 for rank 0 .. n. gram [n, n].
at::Tensor least_errors(const at::Tensor& gram);

// What models keep at each length: pairs a head, floats, bytes (LoLA tables 1-2, Latte table 1).
struct MemoryComparison {
  std::vector<std::pair<std::string, Json>> configs;  // name, a model's config
  std::vector<int64_t> lengths = {1024, 4096, 16384, 65536, 131072};
  int64_t vocabulary = 256;
};
Finding analyze_memory(const MemoryComparison& options);

// Time and memory of a model's forward pass, forward and backward, and a decoded token after as many (Latte fig. 2 and
// 4, Macchiato fig. 7), with random weights, several models in turns: the median and quarters of the rounds. Models that
// read both ways decode nothing.
struct ScalingOptions {
  std::vector<std::pair<std::string, Json>> models;  // name, config with its vocabulary
  std::vector<int64_t> lengths = {256, 1024, 4096};
  int64_t tokens = 4096;  // of a pass: sequences times length, as near as it goes
  int64_t sequences = 0;  // of a pass, at every length; 0: as `tokens` has it
  int64_t rounds = 5;
  bool backward = true;
  std::function<void(const std::string& what)> progress = {};
  std::function<bool()> stop = {};
};
Finding analyze_scaling(const ScalingOptions& options);

// How much of every token a mechanism's slots hold after so many (BLA fig. 1): [slots, tokens]. No name: the first
// mechanism that says so. InputError: it depends on the tokens there.
Finding analyze_convolution(const std::string& mechanism, const Json& settings, int64_t tokens);

}  // namespace cortado
