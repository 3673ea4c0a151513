// One model, one budget, several mixers: which learns best, and what does each cost?
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "cortado/base/json.h"
#include "cortado/base/table.h"

namespace cortado {

// The mixers that a comparison knows: every causal mechanism, and Macchiato's variants, in the registry's order.
std::vector<std::string> comparable_mixers();
// The config's "mixer" object of one, with `latents` where it has latents; InputError names the nearest, and refuses one
// that has no causal form unless that is asked for.
Json mixer_settings(const std::string& name, int64_t latents, bool causal = true);
// The config with that mixer in every layer, and positions that it uses (see CompareRequest::bare).
Json with_mixer(const Json& base, const std::string& mixer, int64_t latents, bool bare = false);

struct CompareRequest {
  Json config;  // a model's config with "training"; its mixer is replaced
  std::string config_name, data;
  std::string said = {};  // the command as a person gives it: kept in OUT/sweep.json
  std::string out;        // a sweep's folder: OUT/runs/MIXER/ each mixer's run; OUT/table.{md,json} the result
  std::vector<std::string> mixers;
  // Mixers that see no order (Mechanism::orderless) without any positions; otherwise with sinusoidal ones where the
  // config has none that they use.
  bool bare = false;
  std::vector<int64_t> depths = {256, 4096, 65536};  // tokens before the ones that decoding is timed at
  at::Device device = at::kCPU;
  std::function<bool()> stop;
  bool progress = true;
};

struct Comparison {
  bool done = false;  // false: stopped; the same request goes on, and finished runs are not redone
  // One object a mixer, with a "message" in place of numbers where its run failed: its name; the width of its feed-forward, chosen so that parameters agree; its parameters; the
  // losses in nats a token on the validation split after the last step, at the training length and ("loss_4x",
  // "loss_16x") with the same weights at 4 and 16 times that; tokens a second in training, and decoding one sequence at
  // each depth; and bytes of state at each. What an interrupted comparison hasn't measured is not there.
  Json rows = Json::array();
};

// Trains each mixer's model on the same crops in the same order, for the same steps. The feed-forward of each is
// widened or narrowed so that its parameters come nearest to the softmax model's; more than 5 % off is an InputError.
// Speeds are measured at the end, all mixers in turns, since a machine's speed drifts by more than mixers differ.
Comparison compare(const CompareRequest& request);

Table comparison_table(const Json& rows, const CompareRequest& request);

}  // namespace cortado
