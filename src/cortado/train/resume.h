// The trainer's checkpoint: everything that continuing exactly needs, in one file.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "cortado/base/json.h"
#include "cortado/data/batches.h"
#include "cortado/models/backbone.h"
#include "cortado/train/optimizer.h"
#include "cortado/train/schedule.h"

namespace cortado {

// Where training stands. Nothing random is kept: every draw (crops, dropout) is a pure function of the seed and of
// what is below.
struct TrainerState {
  int64_t step = 0;    // optimiser steps done
  int64_t tokens = 0;  // trained on
  DataPosition data;
  DataIdentity read;                                           // of the training split
  double best_loss = std::numeric_limits<double>::infinity();  // on the validation split
  int64_t best_step = 0;
  double validation_loss = std::numeric_limits<double>::infinity();  // the latest
  int64_t validated_step = 0;                                        // when
  std::optional<double> reached = {};  // the score that reached the options' target: nothing is left to do
  double seconds = 0;                  // spent training, all sessions together
  std::optional<Plateau> plateau;  // gives the learning rate in place of the options' schedule; not among the fields

  void fields(JsonFields& json);
};

// Weights ("model.NAME"), moments and state (metadata "state") in one safetensors file, written beside its place and
// renamed: a kill at any moment leaves either the former checkpoint or this one, never a mixture. `about` is kept as
// metadata "about" (the run's settings). Weights that are not finite: Failure, nothing is written.
void save_trainer(const std::string& path, const Backbone& model, const NamedTensors& moments,
                  const TrainerState& state, const Json& about);

// Fills model and optimiser; InputError when the file is broken or of another model.
TrainerState load_trainer(const std::string& path, Backbone& model, AdamW& optimizer);

}  // namespace cortado
