// The object "training" of a config.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/lora.h"

namespace cortado {

enum class ScheduleKind { kCosine, kLinear, kConstant };

// Every key has a default. Unknown keys, wrong types and impossible values throw InputError with the key's name.
struct TrainingOptions {
  std::string data;                // a text, or a folder made by `cortado prepare`; "": the caller chooses
  std::string tokenizer = "char";  // for a text file: "byte", "char", "sentencepiece:8000"
  std::string document_separator;  // the separator between documents of a text file; "": the file is one document
  int64_t batch = 12;              // B: crops per batch
  int64_t context = 256;           // T: tokens per crop (a packed batch has batch * context tokens)
  int64_t accumulate = 1;          // batches per optimiser step, whose gradients are summed
  int64_t steps = 2000;            // optimiser steps
  int64_t epochs = 0;              // passes over finite data, instead of steps; 0: use steps
  double target = 0;               // training ends when the task's metric reaches this; 0: none

  double learning_rate = 1e-3;  // at the end of the warm-up
  double minimum_rate = 1e-4;   // at the end of the decay
  int64_t warmup = 100;         // steps
  ScheduleKind schedule = ScheduleKind::kCosine;
  int64_t decay_steps = 2000;  // step at which the minimum is reached; default: steps

  double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices and embeddings (Role, nn/module.h)
  double clip = 1.0;          // largest global gradient norm; 0: no clipping

  // bfloat16: autocast with float32 weights. None stands for "auto", JSON's default: compute_type() measures.
  std::optional<at::ScalarType> dtype = at::kFloat;
  bool packed = false;           // whole documents, packed, instead of random crops
  int64_t evaluate_every = 250;  // steps between validations, each of which also writes a checkpoint
  int64_t evaluate_batches = 0;  // batches from the beginning of the validation split; 0: the whole split
  int64_t log_every = 10;        // steps between lines of metrics.jsonl
  int64_t seed = 1337;

  // The run whose weights and tokenizer this one starts from; "": random weights.
  std::string base;
  // If set, only low-rank adapters are trained. In JSON an object {"rank", "alpha", "targets"}, or absent.
  std::optional<LoraOptions> lora;

  // Keys that may differ when a run is resumed: how long it trains, what it reports, and where its text is by now.
  static constexpr const char* kMayChange[] = {
      "data", "steps", "epochs", "target", "evaluate_every", "evaluate_batches", "log_every"};

  static TrainingOptions from_json(const Json& object, const std::string& place = "training");
  Json to_json() const;  // from_json(to_json()) returns equal options

  int64_t tokens_per_step() const { return batch * context * accumulate; }
  at::ScalarType compute_type() const;  // dtype, or the faster type on this machine if dtype is none
};

}  // namespace cortado
