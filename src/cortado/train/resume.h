// The trainer's checkpoint: one file with all that exact resumption needs.
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

// The progress of training. It holds no random state: every draw (crops, dropout) is a pure function of the seed and of
// these values.
struct TrainerState {
  int64_t step = 0;    // optimiser steps done
  int64_t tokens = 0;  // tokens trained on
  DataPosition data;
  DataIdentity read;                                           // identity of the training split
  double best_loss = std::numeric_limits<double>::infinity();  // on the validation split
  int64_t best_step = 0;
  double validation_loss = std::numeric_limits<double>::infinity();  // the latest
  int64_t validated_step = 0;                                        // step of the latest validation
  // The score that reached the options' target, which ends training.
  std::optional<double> reached = {};
  double seconds = 0;  // training time of all sessions together
  // Gives the learning rate instead of the options' schedule. Not one of the fields.
  std::optional<Plateau> plateau;

  void fields(JsonFields& json);
};

// Writes weights ("model.NAME"), moments and the state (metadata "state") to one safetensors file, atomically: after a
// kill at any moment the file is either the former checkpoint or this one. `about` (the run's settings) becomes
// metadata "about". Throws Failure, and writes nothing, if weights are not finite.
void save_trainer(const std::string& path, const Backbone& model, const NamedTensors& moments,
                  const TrainerState& state, const Json& about);

// Fills the model and the optimiser. Throws InputError if the file is broken or belongs to another model.
TrainerState load_trainer(const std::string& path, Backbone& model, AdamW& optimizer);

}  // namespace cortado
