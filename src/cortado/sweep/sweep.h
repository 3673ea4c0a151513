// All runs of a sweep, as many at once as fit, each in a process of its own; and what they found.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cortado/sweep/plan.h"
#include "cortado/sweep/run.h"

namespace cortado {

struct SweepRequest {
  SweepPlan plan;
  std::string out;
  std::vector<std::string> command;  // with "--claimed --only" and a run's id behind it, runs that one in a process
  std::string said = {};             // the command as a person gives it: kept in sweep.json
  int64_t jobs = 1;                  // 0: nothing is run, the results that are there are put together
  int64_t shard = 0, shards = 1;     // this one's part of the runs
  std::function<bool()> stop = {};
  bool retry = false;  // runs that failed are done again
  bool wait = false;   // for the runs that others have claimed: until every one has a result, or nobody has it
  bool progress = true;
};

struct SweepResult {
  bool done = false;          // every run of all shards has a result
  std::vector<Json> results;  // of those that have one, in the plan's order
  int64_t elsewhere = 0;      // runs that another process has claimed
};

// The folder is this sweep's from now on, as OUT/sweep.json says: its base, metric and scale. Another sweep's:
// InputError. More runs may be added. `said` is written there, too.
void claim_sweep_folder(const SweepPlan& plan, const std::string& out, const std::string& said = "");

// In a folder claimed so. Writes OUT/results.jsonl, table.md, table.json, runs.csv and pictures of what is there at the
// end; and goes on from sweep.json and results.jsonl alone. A run whose process dies has a result that says so.
SweepResult run_sweep(const SweepRequest& request);

}  // namespace cortado
