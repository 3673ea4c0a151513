// AdamW over a list of parameters, with torch's fused update.
#pragma once

#include <string>
#include <utility>

#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"
#include "cortado/parallel/ranks.h"
#include "cortado/primitives/types.h"
#include "cortado/train/options.h"

namespace cortado {

// Not torch::optim::AdamW: that loops over the parameters with ten small operations each, which for a small model costs
// as much as its backward. torch's fused operator does a whole group in one call (a test holds the two against each
// other).
//
// Weight decay acts on matrices and embeddings alone, by the parameters' roles (nn/module.h).
//
// Over several processes with the same gradients it can be shared out (ZeRO, stage 1): each keeps the moments of its part
// of the parameters alone, updates these, and gets the others' from the others. The numbers are the same.
class AdamW {
 public:
  // `shared_out`: among `ranks`, else each process has all of it.
  AdamW(const Parameters& parameters, const TrainingOptions& options, const Ranks& ranks = {}, bool shared_out = false);

  // Euclidean norm of all gradients together. Waits for the device.
  double gradient_norm() const;
  // One update with this learning rate; gradients are divided by `divisor` (clipping: max(1, norm / clip)).
  void step(double rate, double divisor = 1.0);
  // Forgets all gradients.
  void clear_gradients();

  int64_t steps() const { return steps_; }
  // Names of the parameters that are decayed.
  std::vector<std::string> decayed() const;

  // Moments by name ("first.NAME", "second.NAME"), for a checkpoint; restore wants exactly these. Where they are shared
  // out, process 0 gets the others' (collective), which get none.
  NamedTensors moments() const;
  void restore(const NamedTensors& moments, int64_t steps);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<Tensor> parameters, first, second;  // moments: undefined where they are another's
    std::vector<int64_t> owners;
  };
  bool owns(const Group& group, size_t i) const { return group.owners[i] == ranks_.rank() || !shared_out_; }
  void share_owners();
  void exchange_parameters();
  void update(Group& group, double rate, const Tensor& divisor);

  TrainingOptions options_;
  Ranks ranks_;
  bool shared_out_;
  Group groups_[2];  // decayed, not decayed
  int64_t steps_ = 0;
};

// What the gradients are divided by so that their norm is at most `clip` (0: no limit).
double clip_divisor(double norm, double clip);

}  // namespace cortado
