// The objectives that the stages of a conversion minimise.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/convert/chunks.h"
#include "cortado/models/language_model.h"

namespace cortado {

class Objective {
 public:
  virtual ~Objective() = default;

  // The parameters that learn; the rest of the model is frozen.
  virtual Parameters learned() const = 0;
  // The names of the losses, one per part, such as "layer 3".
  virtual std::vector<std::string> parts() const = 0;
  // Combines the losses of all parts into the number that is minimised and reported.
  virtual double total(const std::vector<double>& losses) const = 0;

  // The number of equally weighted terms of which these sequences' losses are means.
  virtual double terms(const Sequences& given) const = 0;
  // The losses of these sequences, one per part. With `weight` > 0, adds weight · d total / d parameter to the
  // gradients of what learns; otherwise computes no gradient.
  virtual std::vector<double> losses(const Sequences& given, double weight) = 0;
};

// The parameters that the model's students learn, by name. Throws InputError if no layer is a student.
Parameters learned_by_students(const LanguageModel& model);

// Attention transfer (LoLCATs, stage 1). The loss of a layer is the mean square of (student output - softmax
// attention's output) for the same q, k and v, before the output projection. The teacher's output flows on to the next
// layer. The total is 1000 times the mean over the layers.
//
// A layer is differentiated as soon as its loss is known, so memory stays close to that of inference.
class AttentionTransfer : public Objective {
 public:
  // Freezes everything except what learns. Throws InputError if no layer can learn from sequences of `context` tokens.
  AttentionTransfer(std::shared_ptr<LanguageModel> model, int64_t context);

  Parameters learned() const override { return learned_; }
  std::vector<std::string> parts() const override;
  double total(const std::vector<double>& losses) const override;
  // Every token counts.
  double terms(const Sequences& given) const override { return static_cast<double>(given.tokens.numel()); }
  std::vector<double> losses(const Sequences& given, double weight) override;

  const std::vector<int64_t>& layers() const { return layers_; }

 private:
  std::shared_ptr<LanguageModel> model_;
  std::vector<int64_t> layers_;  // the layers that learn
  Parameters learned_;
};

// The model's own loss: the mean cross-entropy of the targets, in nats.
//
// With `bptt` > 0 (truncated backpropagation through time) a sequence is read that many tokens at a time. Each piece
// starts from the state of the previous ones, through which no gradient flows, so memory is that of one piece.
class NextToken : public Objective {
 public:
  // Freezes everything except `learned`.
  NextToken(std::shared_ptr<LanguageModel> model, Parameters learned, int64_t bptt = 0);

  Parameters learned() const override { return learned_; }
  std::vector<std::string> parts() const override { return {"next token"}; }
  double total(const std::vector<double>& losses) const override { return losses.at(0); }
  double terms(const Sequences& given) const override {
    return static_cast<double>(given.targets.ge(0).sum().item<int64_t>());
  }
  std::vector<double> losses(const Sequences& given, double weight) override;

 private:
  std::shared_ptr<LanguageModel> model_;
  Parameters learned_;
  int64_t bptt_;
  at::ScalarType frozen_type_;
};

}  // namespace cortado
