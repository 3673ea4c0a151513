// What runs will cost, before they are made.
#pragma once

#include <string>
#include <vector>

#include "cortado/sweep/run.h"

namespace cortado {

struct Estimate {
  int64_t tokens = 0;   // that the run will read, as often as it reads them
  double seconds = 0;   // here, its validations included
  std::string problem;  // why it can't be said; "": it was measured
};

// In the order of the runs; shorter where training.stop() says so. A few steps of each are made, with few examples in a
// batch, and one of those that differ in nothing that costs time (rates, seeds) stands for all. A vocabulary that would
// be learned from the text is taken to be as large as it says. Of a text's validations only those count whose number of
// batches the config says; a run that ends at its "target" costs less.
std::vector<Estimate> estimate_runs(const std::vector<SweepRun>& runs, const SweepTraining& training,
                                    const std::function<void(int64_t done)>& progress = {});

// A sequence of commands: what those cost that train. Of the others nothing is known but the "hours" that the file says:
// no tokens, and a "problem" where it says none.
std::vector<Estimate> estimate_commands(const std::vector<SweepRun>& commands, const SweepTraining& training);

}  // namespace cortado
