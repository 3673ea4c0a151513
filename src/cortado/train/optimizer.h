// AdamW over a list of parameters, by torch's fused update.
#pragma once

#include <string>
#include <utility>

#include "cortado/formats/safetensors.h"
#include "cortado/nn/module.h"
#include "cortado/parallel/ranks.h"
#include "cortado/primitives/types.h"
#include "cortado/train/options.h"

namespace cortado {

// torch::optim::AdamW is not used because it runs ten small operations per parameter, which for a small model costs as
// much as its backward. torch's fused operator updates a whole group in one call; a test compares the two.
//
// Weight decay applies to matrices and embeddings only, according to the parameters' roles (nn/module.h).
//
// Several processes with equal gradients can share the optimiser's state (ZeRO stage 1): each keeps the moments of its
// part of the parameters, updates these, and receives the other parameters. Results are equal.
class AdamW {
 public:
  // `shared_out`: divide the state among `ranks`; otherwise each process has all of it.
  AdamW(const Parameters& parameters, const TrainingOptions& options, const Ranks& ranks = {}, bool shared_out = false);

  // Returns the Euclidean norm of all gradients together. Synchronises with the device.
  double gradient_norm() const;
  // Makes one update with this learning rate. Gradients are divided by `divisor` (for clipping: max(1, norm / clip)).
  void step(double rate, double divisor = 1.0);
  // Clears all gradients.
  void clear_gradients();

  int64_t steps() const { return steps_; }
  // Returns the names of the parameters with weight decay.
  std::vector<std::string> decayed() const;

  // Returns the moments by name ("first.NAME", "second.NAME") for a checkpoint. If they are divided, the call is
  // collective: process 0 gets all of them, the others none. `restore` requires exactly these tensors.
  NamedTensors moments() const;
  void restore(const NamedTensors& moments, int64_t steps);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<Tensor> parameters, first, second;  // moments; undefined if another process has them
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

// Returns the divisor of the gradients that makes their norm at most `clip` (0: no limit).
double clip_divisor(double norm, double clip);

}  // namespace cortado
