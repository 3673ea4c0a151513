// cortado sweep: many runs from one file, and what they found.
#include "cortado/sweep/sweep.h"

#include <signal.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/machine.h"
#include "cortado/base/signals.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/common.h"
#include "cortado/models/config.h"
#include "cortado/sweep/claim.h"
#include "cortado/sweep/results.h"
#include "cortado/train/options.h"

namespace cortado {
namespace {

struct SweepOptions {
  std::string file, scale, out, only, shard, data;
  std::vector<std::string> settings;
  int64_t jobs = 0;
  bool claimed = false, list = false, dry = false, table = false, json = false, quiet = false, retry = false;
  std::shared_ptr<CommonOptions> common;

  SweepPlan plan() const { return read_sweep(file, scale, settings); }
  std::string folder(const SweepPlan& plan) const {
    return out.empty() ? concat("runs/sweeps/", plan.name, plan.scale.empty() ? "" : "-", plan.scale) : out;
  }
  SweepTraining training(at::Device device) const {
    return {device, data.empty() ? shipped_file("data/tinyshakespeare.txt") : data, interrupt_requested};
  }
};

// "2/8" -> 1, 8.
std::pair<int64_t, int64_t> shard_of(const std::string& text) {
  if (text.empty()) return {0, 1};
  int64_t number = 0, count = 0;
  char rest = 0;
  const bool good = std::sscanf(text.c_str(), "%ld/%ld%c", &number, &count, &rest) == 2;
  fail_input_if(!good || number < 1 || number > count, "[--shard] expected I/N with 1 <= I <= N, got \"", text, "\"");
  return {number - 1, count};
}

// One run. Started by a sweep, which has claimed it, it ends with it, even if that is killed; else it has a claim of its
// own. What has ended already is only printed.
void run_only(const SweepOptions& options, const SweepPlan& plan) {
  const SweepRun& run = plan.run(options.only);
  const SweepPlace place{options.folder(plan)};
  SweepTraining training = options.training(options.common->apply());
  if (options.claimed) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (!options.claimed) claim_sweep_folder(plan, place.out);
  const auto claim = options.claimed ? nullptr : Claim::take(place.claim(run));
  if (!options.claimed && !claim) throw Failure(concat("[sweep] ", run.id, " is at work in another process"));
  catch_interrupts();
  auto touched = std::chrono::steady_clock::now();
  training.stop = [&] {
    const auto now = std::chrono::steady_clock::now();
    if (claim && now - touched > std::chrono::seconds(kClaimSeconds / 6)) {
      claim->touch();
      touched = now;
    }
    return interrupt_requested();
  };
  const bool ended = std::filesystem::exists(place.result(run));
  const std::optional<Json> result = ended ? read_json_file(place.result(run)) : run_one(plan, run, place, training);
  if (!result) exit_if_interrupted();
  if (result) std::cout << result->dump(2) << std::endl;
}

// Every run by its id, and whether its config can be one.
void list_runs(const SweepOptions& options, const SweepPlan& plan) {
  Json rows = Json::array();
  bool good = true;
  for (const SweepRun& run : plan.runs) {
    Json row = {{"id", run.id}, {"config", run.config}};
    try {
      const ModelConfig model = ModelConfig::from_json(run.config, run.id);
      TrainingOptions::from_json(model.training);
    } catch (const InputError& error) {
      row["problem"] = error.what();
      good = false;
    }
    rows.push_back(row);
  }
  if (options.json) std::cout << rows.dump(2) << std::endl;
  if (!options.json) std::cout << table_of(rows, {{"run", "/id"}, {"", "/problem"}}).text() << std::flush;
  fail_input_if(!good, "[sweep] configs that can't be");
}

// The commands, and the hours that the file says they took.
void print_commands(const SweepOptions& options, const SweepPlan& plan) {
  Json rows = Json::array();
  for (const SweepRun& run : plan.runs) {
    std::string words = "cortado";
    for (const std::string& word : run.words) words += " " + word;
    rows.push_back({{"id", run.id}, {"command", words}});
    rows.back().update(run.config.is_object() ? run.config : Json::object());
  }
  if (options.json) std::cout << Json{{"commands", rows}}.dump(2) << std::endl;
  if (!options.json)
    std::cout << table_of(rows, {{"step", "/id"}, {"hours", "/hours", decimals(2)}, {"command", "/command"}}).text()
              << std::flush;
}

void print_plan(const SweepOptions& options, const SweepPlan& plan) {
  if (plan.commands) return print_commands(options, plan);
  const SweepTraining training = options.training(options.common->apply());
  Json rows = Json::array();
  double total = 0;
  for (const SweepRun& run : plan.runs) {
    Json row = {{"id", run.id}};
    try {
      const double seconds = estimate_seconds(run, training);
      row["hours"] = seconds / 3600;
      total += seconds;
    } catch (const std::exception& error) {
      row["problem"] = std::string(error.what());
    }
    rows.push_back(row);
  }
  if (options.json) {
    std::cout << Json{{"runs", rows}, {"hours", total / 3600}}.dump(2) << std::endl;
    return;
  }
  std::cout << table_of(rows, {{"run", "/id"}, {"hours", "/hours", decimals(3)}, {"", "/problem"}}).text()
            << plan.runs.size() << " runs, about " << human_seconds(total) << " on one thread group of this machine ("
            << this_machine().cpu << ")" << std::endl;
}

// This command as it was given, for its processes: without what is theirs to say, and with `threads` each.
std::vector<std::string> own_command(const SweepOptions& options, const SweepPlan& plan, int64_t threads) {
  std::vector<std::string> command = {"/proc/self/exe", "sweep", options.file, "--out", options.folder(plan)};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {flag, value});
  };
  command[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  add("--scale", options.scale);
  add("--data", options.data);
  for (const std::string& setting : options.settings) add("--set", setting);
  add("--device", options.common->device);
  add("--threads", std::to_string(threads));
  return command;
}

// What comes to the same results when a person types it.
std::string as_given(const SweepOptions& options) {
  std::string words = "cortado sweep " + shell_quoted(options.file);
  if (!options.scale.empty()) words += " --scale " + shell_quoted(options.scale);
  if (!options.data.empty()) words += " --data " + shell_quoted(options.data);
  for (const std::string& setting : options.settings) words += " --set " + shell_quoted(setting);
  return words;
}

void report(const SweepOptions& options, const SweepPlan& plan, const SweepResult& result) {
  if (options.json) {
    std::cout << Json(result.results).dump(2) << std::endl;
  } else {
    std::cout << sweep_table(plan, sweep_rows(plan, result.results)).text() << result.results.size() << " of "
              << plan.runs.size() << " runs; more in " << options.folder(plan) << std::endl;
  }
}

void run(const SweepOptions& options) {
  const SweepPlan plan = options.plan();
  if (!options.only.empty() && !plan.commands) return run_only(options, plan);
  if (options.list && !plan.commands) return list_runs(options, plan);
  if (options.list) return print_commands(options, plan);
  if (options.dry) return print_plan(options, plan);
  const auto [shard, shards] = shard_of(options.shard);
  fail_input_if(plan.commands && (shards > 1 || options.jobs > 1 || !options.only.empty()), "[", options.file,
                "] is a sequence of commands: --shard, --jobs and --only are for sweeps of trainings");
  const int64_t cores = std::max<int64_t>(1, this_machine().threads);
  const int64_t threads = options.common->threads > 0 ? options.common->threads : 1;
  SweepRequest request{.plan = plan, .out = options.folder(plan), .command = own_command(options, plan, threads)};
  request.jobs = options.jobs > 0 ? options.jobs : std::max<int64_t>(1, cores / threads);
  fail_input_if(request.jobs * threads > cores, "[--jobs] ", request.jobs, " runs of ", threads,
                " threads are more than ", "this process's ", cores, " cores");
  if (plan.commands) request.jobs = 1;
  if (options.table) request.jobs = 0;
  request.said = as_given(options);
  request.shard = shard;
  request.shards = shards;
  request.stop = interrupt_requested;
  request.progress = !options.quiet;
  request.retry = options.retry;
  catch_interrupts();
  const SweepResult result = run_sweep(request);
  report(options, plan, result);
  if (interrupt_requested()) {
    std::cerr << "stopped; the same command goes on" << std::endl;
    exit_if_interrupted();
  }
  if (result.elsewhere > 0) std::cerr << result.elsewhere << " runs are others' work" << std::endl;
}

constexpr const char* kSweepFooter =
    "Examples:\n"
    "  cortado sweep experiments/blurry-window/mqar.json --scale smoke\n"
    "  cortado sweep experiments/blurry-window/mqar.json --scale laptop --dry-run       prints the runs and their "
    "hours\n"
    "  cortado sweep FILE --out /shared/mqar --shard 3/8                                 one of eight machines' part\n"
    "Interrupted or killed, the same command goes on; finished runs are not redone. docs/sweeps.md has the file's "
    "form.";

}  // namespace

void add_sweep_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("sweep", "Train what a file of experiments says, and print what was found");
  const auto options = std::make_shared<SweepOptions>();
  command.add_option("FILE", options->file, "the sweep (JSON)")->required();
  command.add_option("--scale", options->scale, "one of the file's scales: smoke, laptop, paper");
  command.add_option("--out", options->out, "folder of runs and results (default runs/sweeps/NAME)");
  command.add_option("--set", options->settings, "change the config of all runs: training.steps=100 (repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  command.add_option("--data", options->data, "a text, for models of language (default Tiny Shakespeare)");
  command.add_option("--jobs", options->jobs, "runs at once (default: as many as --threads of each fit the cores)")
      ->check(CLI::PositiveNumber);
  command.add_option("--shard", options->shard, "only every N-th run, from the I-th on")->type_name("I/N");
  command.add_option("--only", options->only, "one run, in this process, by its id")->type_name("ID");
  command.add_flag("--claimed", options->claimed)->group("");  // for the processes of a sweep
  command.add_flag("--list", options->list, "print the runs and check their configs");
  command.add_flag("--dry-run", options->dry, "print the runs and their hours on this machine");
  command.add_flag("--table", options->table, "run nothing: put together what has been found so far");
  command.add_flag("--retry", options->retry, "do runs that failed again");
  command.add_flag("--json", options->json, "print JSON");
  command.add_flag("--quiet", options->quiet, "show no progress bar");
  command.footer(kSweepFooter);
  options->common = add_common_options(command);
  command.callback([options] { run(*options); });
}

}  // namespace cortado
