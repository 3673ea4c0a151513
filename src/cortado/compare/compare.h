// Trains one model with several mixers on one budget, and compares what they learn and what they cost.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/base/table.h"

namespace cortado {

// Returns the mixers that can be compared: every causal mechanism and its variants, in the registry's order.
std::vector<std::string> comparable_mixers();
// Returns the config's "mixer" object for one mixer; `latents` applies to mixers with latents. Throws InputError with
// the nearest name for an unknown mixer, and, if `causal`, for one without a causal form.
Json mixer_settings(const std::string& name, int64_t latents, bool causal = true);
// Returns the config with that mixer in every layer, and with positions that the mixer uses (see CompareRequest::bare).
Json with_mixer(const Json& base, const std::string& mixer, int64_t latents, bool bare = false);

// What to compare, and where to write the results.
struct CompareRequest {
  Json config;  // a model's config with "training"; its mixer is replaced
  std::string config_name, data;
  // The command line, recorded in OUT/sweep.json.
  std::string said = {};
  // A sweep's folder: OUT/runs/MIXER/ holds each mixer's run, OUT/table.{md,json} the result.
  std::string out;
  std::vector<std::string> mixers;
  // If true, mixers that see no order (Mechanism::orderless) get no positions. If false, they get sinusoidal ones,
  // unless the config has positions that they use.
  bool bare = false;
  std::vector<int64_t> depths = {256, 4096, 65536};  // decoding is timed after this many tokens
  at::Device device = at::kCPU;
  std::function<bool()> stop;
  bool progress = true;
};

// The result of compare().
struct Comparison {
  bool done = false;  // false: stopped; the same request resumes it without redoing finished runs
  // One object per mixer; a failed run has a "message" in place of the numbers. The fields: the name; the width of the
  // feed-forward, chosen to equalise parameter counts; the parameters; the losses in nats per token on the validation
  // split after the last step, at the training length and, with the same weights, at 4 and 16 times that ("loss_4x",
  // "loss_16x"); tokens per second in training, and in decoding one sequence at each depth; bytes of state at each
  // depth. Fields that an interrupted comparison has not measured are missing.
  Json rows = Json::array();
};

// Trains each mixer's model on the same crops in the same order for the same number of steps. Each feed-forward's width
// brings the parameter count nearest to the softmax model's; a difference above 5 % throws InputError. Speeds are
// measured at the end with the mixers taking turns, because a machine's speed drifts by more than mixers differ.
Comparison compare(const CompareRequest& request);

// Returns the table of Comparison::rows, one line per mixer.
Table comparison_table(const Json& rows, const CompareRequest& request);

}  // namespace cortado
