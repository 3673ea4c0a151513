// What a stage of a conversion minimises.
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

  // What learns; everything else of the model is frozen.
  virtual Parameters learned() const = 0;
  // What each loss belongs to: "layer 3"; one name where there is one loss.
  virtual std::vector<std::string> parts() const = 0;
  // One number for the losses of all parts: what is minimised and reported.
  virtual double total(const std::vector<double>& losses) const = 0;

  // The losses of these sequences are means over so many terms, of one size.
  virtual double terms(const Sequences& given) const = 0;
  // The losses of these sequences, one a part. With a `weight` above 0, adds weight · d total / d parameter to the
  // gradients of what learns; without, no gradient is computed.
  virtual std::vector<double> losses(const Sequences& given, double weight) = 0;
};

// The parameters that the model's students learn, by their names in the model; no layer is one: InputError.
Parameters learned_by_students(const LanguageModel& model);

// Attention transfer (LoLCATs, stage 1). Every layer's mixer that imitates softmax attention gets the mean square of
// (its output - softmax attention's) from the same q, k and v, before the output projection; the teacher's output is
// what flows on to the next layer. total = 1000 · the mean over these layers.
//
// A layer's graph is differentiated as soon as its loss is known, so memory stays near that of inference.
class AttentionTransfer : public Objective {
 public:
  // Freezes the model but for what learns. InputError: in sequences of `context` tokens no layer has anything to learn.
  AttentionTransfer(std::shared_ptr<LanguageModel> model, int64_t context);

  Parameters learned() const override { return learned_; }
  std::vector<std::string> parts() const override;
  double total(const std::vector<double>& losses) const override;
  // Every token is a lesson.
  double terms(const Sequences& given) const override { return static_cast<double>(given.tokens.numel()); }
  std::vector<double> losses(const Sequences& given, double weight) override;

  const std::vector<int64_t>& layers() const { return layers_; }

 private:
  std::shared_ptr<LanguageModel> model_;
  std::vector<int64_t> layers_;  // those that learn
  Parameters learned_;
};

// The model's own loss: the mean cross-entropy of the targets, in nats.
//
// With `bptt` above 0 (truncated backpropagation through time) a sequence is read so many tokens at a time, each piece
// with the state that those before it left, through which no gradient flows: memory is that of one piece.
class NextToken : public Objective {
 public:
  // Freezes the model but for `learned`.
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
