// Runs all runs of a sweep, several at a time, each in its own process, and collects the results.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cortado/sweep/plan.h"
#include "cortado/sweep/run.h"

namespace cortado {

// Which runs to do, and how.
struct SweepRequest {
  SweepPlan plan;
  std::string out;
  std::vector<std::string> command;  // the command that runs a single run when "--claimed --only ID" is appended
  std::string said = {};             // the command line, recorded in sweep.json
  int64_t jobs = 1;                  // processes at a time; 0: only collect existing results
  int64_t shard = 0, shards = 1;     // which part of the runs this call handles
  std::function<bool()> stop = {};
  bool retry = false;  // repeat failed runs
  bool wait = false;   // wait for runs that other processes have claimed, until each has a result or is abandoned
  bool progress = true;
};

// The result of run_sweep().
struct SweepResult {
  bool done = false;          // every run of all shards has a result
  std::vector<Json> results;  // existing results, in the plan's order
  int64_t elsewhere = 0;      // runs that other processes have claimed
};

// Marks the folder as this sweep's by writing its base, metric and scale to OUT/sweep.json, with the command line
// `said`. Throws InputError if the folder belongs to another sweep. Runs may be added later.
void claim_sweep_folder(const SweepPlan& plan, const std::string& out, const std::string& said = "");

// Runs the sweep in a folder marked by claim_sweep_folder. At the end writes OUT/results.jsonl, table.md, table.json,
// runs.csv and the pictures of all results so far. sweep.json and results.jsonl suffice to continue. A run whose
// process dies gets a result that says so.
SweepResult run_sweep(const SweepRequest& request);

}  // namespace cortado
