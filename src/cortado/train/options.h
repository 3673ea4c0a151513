// How to train: the object "training" of a config.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/nn/lora.h"

namespace cortado {

enum class ScheduleKind { kCosine, kLinear, kConstant };

// Every key has a default; unknown keys, wrong types and impossible values are InputErrors that name the key.
struct TrainingOptions {
  std::string data;                // a text, or a folder made by `cortado prepare`; "": the caller decides
  std::string tokenizer = "char";  // for a text file: "byte", "char", "sentencepiece:8000"
  std::string document_separator;  // of a text file: what stands between documents; "": the file is one
  int64_t batch = 12;              // B: crops in a batch
  int64_t context = 256;           // T: tokens in a crop (a packed batch has batch * context tokens)
  int64_t accumulate = 1;          // batches whose gradients are added up before a step
  int64_t steps = 2000;            // optimiser steps
  int64_t epochs = 0;              // of data with an end, in place of steps; 0: steps
  double target = 0;               // of the task's metric: where it is reached, training ends; 0: none

  double learning_rate = 1e-3;  // at the end of the warm-up
  double minimum_rate = 1e-4;   // at the end of the decay
  int64_t warmup = 100;         // steps
  ScheduleKind schedule = ScheduleKind::kCosine;
  int64_t decay_steps = 2000;  // where the minimum is reached; default: steps

  double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;
  double weight_decay = 0.1;  // on matrices and embeddings (Role, nn/module.h)
  double clip = 1.0;          // largest global gradient norm; 0: no clipping

  // bfloat16: autocast, the weights stay float32. None is "auto", JSON's default: compute_type() measures.
  std::optional<at::ScalarType> dtype = at::kFloat;
  bool packed = false;           // whole documents one after the other instead of random crops
  int64_t evaluate_every = 250;  // steps between validations, each of which also writes a checkpoint
  int64_t evaluate_batches = 0;  // batches from the beginning of the validation split; 0: all of it
  int64_t log_every = 10;        // steps between lines of metrics.jsonl
  int64_t seed = 1337;

  // A run whose weights and tokenizer this one starts from; "": random weights.
  std::string base;
  // Only low-rank adapters learn (in JSON an object {"rank", "alpha", "targets"}, or absent).
  std::optional<LoraOptions> lora;

  static TrainingOptions from_json(const Json& object, const std::string& place = "training");
  Json to_json() const;  // round trip: from_json(to_json()) is the same

  int64_t tokens_per_step() const { return batch * context * accumulate; }
  at::ScalarType compute_type() const;  // where dtype says none: what this machine multiplies faster
};

}  // namespace cortado
