// Estimates the cost of runs before they are made.
#pragma once

#include <string>
#include <vector>

#include "cortado/sweep/run.h"

namespace cortado {

// The estimated cost of one run.
struct Estimate {
  int64_t tokens = 0;   // that the run will read, repetitions included
  double seconds = 0;   // on this machine, validations included
  std::string problem;  // why there is no estimate; "": it was measured
};

// Returns one estimate per run, in their order; fewer if training.stop() asks to stop. Each is measured with a few
// steps of small batches, once for all runs that differ only in settings without influence on time (rates, seeds). A
// vocabulary to be learned from the text is taken to have the size that the config names. For texts, validations only
// count if the config limits their number of batches. A run that ends at its "target" may cost less.
std::vector<Estimate> estimate_runs(const std::vector<SweepRun>& runs, const SweepTraining& training,
                                    const std::function<void(int64_t done)>& progress = {});

// Estimates a sequence of commands. Commands that train are measured. Others have the "hours" stated in the file, no
// tokens, and a "problem" if the file states no hours.
std::vector<Estimate> estimate_commands(const std::vector<SweepRun>& commands, const SweepTraining& training);

}  // namespace cortado
